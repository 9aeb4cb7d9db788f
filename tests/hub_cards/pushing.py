"""Pushes as tests give them: what, where to, what the publisher says, and options."""

from hub_cards import adapter, gallery, metric, model, space
from hub_cards.hub.publishing import push
from hub_cards.settings import AdapterPush, GalleryPush, MetricPush, ModelPush, SpacePush


def Target(name, **options):  # noqa: N802
    """Where a push goes."""
    return {"name": name} | options


def settings_of(kind, target, details, output=None, **options):
    """The settings of a push; with a folder for it, of a dry run."""
    return kind(**target, **details.data, **options, dry_run=output is not None, output=output)


def push_model(source, target, details, api=None, **options):
    return push(settings_of(ModelPush, target, details, folder=source, **options), model.KIND, api)


def push_adapter(source, target, details, api=None, **options):
    return push(settings_of(AdapterPush, target, details, folder=source, **options), adapter.KIND, api)


def push_gallery(source, target, details, api=None, **options):
    return push(settings_of(GalleryPush, target, details, folder=source, **options), gallery.KIND, api)


def push_metric(source, target, details, api=None, **options):
    return push(settings_of(MetricPush, target, details, folder=source, **options), metric.KIND, api)


def push_space(target, details, api=None, **options):
    return push(settings_of(SpacePush, target, details, **options), space.KIND, api)
