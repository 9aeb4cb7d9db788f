"""The servers of tests hang, end and run again, and end with those who started them."""

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.e2e  # galleries on them are in test_conformance.py and test_table.py

STARTING = """
from tests.search.postgres_servers import PostgresServers
servers = PostgresServers()
servers(2)[1].pause()
print(servers.folder, flush=True)
input()
"""


def ask(address, statement):
    import psycopg

    with psycopg.connect(address, autocommit=True, connect_timeout=2) as connection:
        return connection.execute(statement).statusmessage


def test_servers_that_hang_or_were_killed_go_on_with_what_they_held(postgres):
    servers = postgres(3)
    databases = [server.new_database() for server in servers]
    for database in databases:
        ask(database, "CREATE EXTENSION vector; CREATE EXTENSION postgres_fdw; CREATE TABLE made AS SELECT 1")
    servers[0].pause()
    servers[1].kill()
    for database in databases[:2]:
        with pytest.raises(Exception, match="timeout|refused|unexpectedly"):
            ask(database, "SELECT 1")
    servers[0].resume()
    servers[1].start()
    assert [ask(database, "TABLE made") for database in databases] == ["SELECT 1"] * 3


def test_servers_end_with_a_process_that_is_killed(postgres):
    running = subprocess.Popen([sys.executable, "-c", STARTING], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    folder = Path(running.stdout.readline().decode().strip())
    servers = [psutil.Process(int((folder / name / "postmaster.pid").read_text().split()[0])) for name in "01"]
    assert all(server.is_running() for server in servers)
    running.kill()
    running.communicate()
    _, alive = psutil.wait_procs(servers, timeout=60)
    assert not alive
    deadline = time.monotonic() + 60
    while folder.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not folder.exists()
