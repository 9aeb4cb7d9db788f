"""Pushes as tests give them: what, where to, the licence, and options."""

from scalar_retrieval.hub_cards import adapter, gallery, model, space
from scalar_retrieval.hub_cards.publishing import Push, send


def _pushes(kind):
    def push(source, repo_id, api=None, **options):
        # Without a licence, the Hub warns of the card.
        return send(Push(source=source, repo_id=repo_id, **{"license": "mit"} | options), kind.KIND, api)

    return push


push_model, push_adapter, push_gallery = map(_pushes, (model, adapter, gallery))


def push_space(repo_id, gallery, **options):
    return _pushes(space)(gallery, repo_id, **options)
