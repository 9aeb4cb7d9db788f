"""Pushes as tests give them: what, where to, the licence, and options."""

from hub_cards import adapter, gallery, metric, model, space
from hub_cards.card import Details
from hub_cards.publishing import push
from hub_cards.settings import AdapterPush, GalleryPush, MetricPush, ModelPush, SpacePush


def settings_of(kind, name, details=None, output=None, **options):
    """The settings of a push; with a folder for it, of a dry run."""
    details = details or Details()
    return kind(name=name, license=details.data.get("license"), **options, dry_run=output)


def push_model(source, name, details, api=None, **options):
    return push(settings_of(ModelPush, name, details, folder=source, **options), model.KIND, api)


def push_adapter(source, name, details, api=None, **options):
    return push(settings_of(AdapterPush, name, details, folder=source, **options), adapter.KIND, api)


def push_gallery(source, name, details, api=None, **options):
    return push(settings_of(GalleryPush, name, details, folder=source, **options), gallery.KIND, api)


def push_metric(source, name, details, api=None, **options):
    return push(settings_of(MetricPush, name, details, folder=source, **options), metric.KIND, api)


def push_space(name, details, api=None, **options):
    return push(settings_of(SpacePush, name, details, **options), space.KIND, api)
