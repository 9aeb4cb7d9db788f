"""Pushes as tests give them: what, where to, the licence, and options."""

from scalar_retrieval.hub_cards import adapter, gallery, metric, model, space
from scalar_retrieval.hub_cards.publishing import Push, send

LICENCE = {"license": "mit"}  # without one, the Hub warns of the card


def push_model(source, repo_id, api=None, **options):
    return send(Push(source=source, repo_id=repo_id, **LICENCE | options), model.KIND, api)


def push_adapter(source, repo_id, api=None, **options):
    return send(Push(source=source, repo_id=repo_id, **LICENCE | options), adapter.KIND, api)


def push_gallery(source, repo_id, api=None, **options):
    return send(Push(source=source, repo_id=repo_id, **LICENCE | options), gallery.KIND, api)


def push_metric(source, repo_id, api=None, **options):
    return send(Push(source=source, repo_id=repo_id, **options), metric.KIND, api)


def push_space(repo_id, gallery, api=None, **options):
    return send(Push(source=gallery, repo_id=repo_id, **options), space.KIND, api)
