"""The scores of `evidence.weighted`, registered in the tests that import the fixture: other tests count the scores."""

import pytest

from evidence.weighted import WEIGHTED
from scalar_retrieval.modeling_scalar.scores_scalar import METHODS

_REGISTERED = {name: METHODS.pop(name) for name in WEIGHTED}


@pytest.fixture(autouse=True)
def fixed_weights(monkeypatch):
    for name, method in _REGISTERED.items():
        monkeypatch.setitem(METHODS, name, method)
