"""Pushes as tests give them: what, where to, the licence, and options."""

from scalar_retrieval.hub_cards import adapter, gallery, metric, model, space
from scalar_retrieval.hub_cards.publishing import push
from scalar_retrieval.hub_cards.settings import AdapterPush, GalleryPush, MetricPush, ModelPush, SpacePush

LICENCE = {"license": "mit"}  # without one, the Hub warns of the card


def push_model(source, name, api=None, **options):
    return push(ModelPush(folder=source, name=name, **LICENCE | options), model.KIND, api)


def push_adapter(source, name, api=None, **options):
    return push(AdapterPush(folder=source, name=name, **LICENCE | options), adapter.KIND, api)


def push_gallery(source, name, api=None, **options):
    return push(GalleryPush(folder=source, name=name, **LICENCE | options), gallery.KIND, api)


def push_metric(source, name, api=None, **options):
    return push(MetricPush(folder=source, name=name, **options), metric.KIND, api)


def push_space(name, api=None, **options):
    return push(SpacePush(name=name, **options), space.KIND, api)
