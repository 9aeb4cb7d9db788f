"""The engines that pass the tests that all must pass."""

import pytest

from search.engine.asking import EngineSearcher
from search.engine.collection import Collection
from search.engine.push import push
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


ENGINES = {"folder": lambda folder: Folder()} | {
    kind: lambda folder, kind=kind: Qdrant(kind, folder) for kind in KINDS
}


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.engine if name == "server" else ()) for name in ENGINES])
def engine(request, tmp_path_factory):
    engine = ENGINES[request.param](tmp_path_factory.mktemp("engine") / "data")
    yield engine
    engine.close()


class TestEngines(Conformance):
    pass
