"""The engines that pass the tests that all must pass."""

import pytest

from search.engine.address import parse_tables
from search.engine.asking import EngineSearcher
from search.engine.collection import Collection
from search.engine.push import push
from search.engine.table import Table
from tests.search.conformance import OPTIONAL, Conformance
from tests.search.engines import KINDS, make_client


class Folder:
    """A gallery in its folder."""

    refuses = frozenset()

    def hold(self, gallery):
        return gallery.searcher

    def close(self):
        pass


class Qdrant:
    """A collection in one of the engines of [`~tests.search.engines`]."""

    refuses = frozenset(OPTIONAL)

    def __init__(self, kind, folder):
        self.collection = Collection(make_client(kind, folder), f"test-{folder.parent.name}")

    def hold(self, gallery):
        push(gallery, self.collection)
        return EngineSearcher(self.collection, "it")

    def close(self):
        self.collection.client.delete_collection(self.collection.name)
        self.collection.close()


class Postgres:
    """A table of PostgreSQL, on one node or on several."""

    refuses = frozenset({"unique", "method", "mask"})

    def __init__(self, servers):
        addresses = ",".join(f"{server.new_database()}/clips" for server in servers)
        self.table = Table(parse_tables(addresses))

    def hold(self, gallery):
        push(gallery, self.table)
        return EngineSearcher(self.table, "it")

    def close(self):
        self.table.close()


NODES = {"postgresql": 1, "postgresql, three nodes": 3}
MARKS = {"server": pytest.mark.engine, "postgresql, three nodes": pytest.mark.e2e}


@pytest.fixture(params=[pytest.param(name, marks=MARKS.get(name, ())) for name in ("folder", *KINDS, *NODES)])
def engine(request, tmp_path_factory):
    if request.param == "folder":
        engine = Folder()
    elif request.param in NODES:
        engine = Postgres(request.getfixturevalue("postgres")(NODES[request.param]))
    else:
        engine = Qdrant(request.param, tmp_path_factory.mktemp("engine") / "data")
    yield engine
    engine.close()


class TestEngines(Conformance):
    pass
