"""Keywords and settings as transformers' processors take them; an unknown one is refused by its nearest known name."""

import difflib
import inspect
from collections.abc import Iterable, Mapping
from typing import Any, Self

import torch
from transformers.feature_extraction_utils import BatchFeature

# What transformers writes beside the settings, or hands on to whatever it loads.
_SERVICE = {"auto_map", "processor_class", "image_processor_type", "feature_extractor_type"}


def nearest_name(name: str, known: Iterable[str], likeness: float = 0.75) -> str | None:
    """The known name that this one is most like, if there is one."""
    close = difflib.get_close_matches(name.lower(), sorted(known), n=1, cutoff=likeness)
    return close[0] if close else None


def refuse_unknown(names: Iterable[str], known: Iterable[str], what: str, listed: Iterable[str] | None = None) -> None:
    """Refuse names that are not known.

    Raises:
        TypeError: with the nearest known name, or with those that are worth listing, by default all.
    """
    known = set(known)
    for name in names:
        if name not in known:
            near = nearest_name(name, known)
            hint = f"Did you mean `{near}`?" if near else f"Known are: {', '.join(sorted(listed or known))}."
            raise TypeError(f"`{name}` is not {what}. {hint}")


def refuse_slips(names: Iterable[str], known: Iterable[str], what: str) -> None:
    """Refuse names that are nearly known; others may be somebody else's.

    Raises:
        TypeError: with the nearest known name.
    """
    known = set(known)
    slips = [name for name in names if name not in known | _SERVICE and nearest_name(name, known, likeness=0.85)]
    refuse_unknown(slips, known, what)


def tensor_type(return_tensors: Any) -> str | None:
    """Return `"pt"`, `"np"` or `None`, of whichever spelling transformers has for it.

    Raises:
        ValueError: another kind of tensors.
    """
    kind = getattr(return_tensors, "value", return_tensors)
    if kind not in ("pt", "np", None):
        raise ValueError(
            f"`return_tensors` must be 'pt' (torch), 'np' (NumPy) or None (lists, with an array per clip), "
            f"got {return_tensors!r}."
        )
    return kind


def to_batch(data: Mapping[str, Any], return_tensors: Any) -> BatchFeature:
    """Make a `BatchFeature` of tensors, of arrays, or of lists with an array per clip where it has pixels or sound."""
    kind = tensor_type(return_tensors)
    if kind is None:
        data = {
            name: value
            if not isinstance(value, torch.Tensor)
            else list(value.numpy())
            if value.is_floating_point()
            else value.tolist()
            for name, value in data.items()
        }
    return BatchFeature(dict(data), tensor_type=kind)


class Settings:
    """Construction of a part of a processor from settings, from files of them, and from what should replace them.

    A class says which names it has beside the arguments of its `__init__` (`other_names`), and what they come to
    (`translate`).
    """

    other_names: tuple[str, ...] = ()

    @classmethod
    def setting_names(cls) -> set[str]:
        """Every name that a setting can be given by."""
        parameters = inspect.signature(cls.__init__).parameters.values()
        return {p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD} - {"self"} | set(cls.other_names)

    @classmethod
    def translate(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Turn transformers' names into arguments of `__init__`; refuse what contradicts them or is not done here."""
        return dict(settings)

    @classmethod
    def known_only(cls, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Take out what transformers writes beside the settings, for its own `__init__`; refuse unknown names.

        Raises:
            TypeError: a name that no setting has.
        """
        service = {name: kwargs.pop(name) for name in _SERVICE & kwargs.keys()}
        refuse_unknown(kwargs, cls.setting_names(), f"a setting of {cls.__name__}")
        return service

    @classmethod
    def unknown(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Refuse settings that are nearly known.

        Returns:
            Those that are not known at all, which transformers leaves to others.
        Raises:
            TypeError: a misspelt name.
        """
        names = cls.setting_names()
        refuse_slips(settings, names, f"a setting of {cls.__name__}")
        return {name: value for name, value in settings.items() if name not in names | _SERVICE}

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any], **kwargs: Any) -> Self | tuple[Self, dict[str, Any]]:
        """Build from saved settings and what replaces them, in either's names; as in transformers, except slips.

        Args:
            settings (`Mapping`): as saved. What no setting is called like becomes an attribute.
            **kwargs: what replaces them. The rest is ignored, or returned with `return_unused_kwargs=True`.
        Raises:
            TypeError: a misspelt name.
        """
        wants_rest = kwargs.pop("return_unused_kwargs", False)
        rest, others = cls.unknown(kwargs), cls.unknown(settings)
        saved = cls.translate({name: value for name, value in settings.items() if name not in others})
        changes = cls.translate({name: value for name, value in kwargs.items() if name not in rest})
        built = cls(**(saved | changes))
        for name, value in others.items():
            setattr(built, name, value)
        return (built, rest) if wants_rest else built

    def replace(self, **settings: Any) -> Self:
        """A copy with other values of some settings, itself if there are none.

        Raises:
            TypeError: a name that no setting has.
        """
        refuse_unknown(settings, self.setting_names(), f"a setting of {type(self).__name__}")
        return self.from_dict(self.to_dict(), **settings) if settings else self


def agree(own: dict[str, Any], name: str, value: Any, source: str) -> None:
    """Note that a setting comes to a value.

    Raises:
        ValueError: it was given another one.
    """
    if own.get(name) is not None and own[name] != value:
        raise ValueError(f"{source} means `{name}={value!r}`, which contradicts `{name}={own[name]!r}`.")
    own[name] = value


__all__ = ["Settings", "agree", "nearest_name", "refuse_slips", "refuse_unknown", "tensor_type", "to_batch"]
