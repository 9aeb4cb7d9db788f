"""What a gallery knows of media files: read once, and kept up to date by the one process that writes."""

from collections.abc import Iterable, Sequence

from gallery.gallery import Gallery, MediaFile
from modeling_scalar.configuration_scalar import MODALITIES

_AUDIO, _SUBTITLE = MODALITIES.index("audio"), MODALITIES.index("subtitle")


class Known:
    """
    The files of a gallery, their clips, and what could not be read of these.

    Args:
        gallery ([`~gallery.gallery.Gallery`]): as it is now; all later changes have to be told.

    Attributes:
        files (`dict[str, MediaFile]`): by path.
        clips (`dict[str, list[str]]`): of each file that has any.
        problems (`dict[str, list[str]]`): by clip.
        gone (`set[str]`, *optional*): files that are not there any more; `None` as long as nobody has looked.
    """

    def __init__(self, gallery: Gallery):
        self.files: dict[str, MediaFile] = dict(gallery.files)
        self.clips = gallery.clips_of_files()
        self.problems = gallery.problems()
        self.gone: set[str] | None = None
        rows = zip(gallery.clip_ids, gallery.modality_mask.tolist(), strict=True)
        self._presence = {name: (row[_AUDIO], row[_SUBTITLE]) for name, row in rows}

    def problems_of(self, path: str) -> list[str]:
        """What could not be read in the clips of a file."""
        return [problem for name in self.clips.get(path, ()) for problem in self.problems.get(name, ())]

    def is_unheard(self, path: str) -> bool:
        """Whether a file has sound and no subtitles, and everything in it could be read."""
        presence = [self._presence[name] for name in self.clips.get(path, ())]
        has_sound, has_words = (any(column) for column in zip(*presence, strict=True)) if presence else (False, False)
        return has_sound and not has_words and not self.problems_of(path)

    def put_clip(self, path: str, name: str, mask: Sequence[bool], problems: Sequence[str]) -> None:
        """A clip of a file is there, or there again."""
        names = self.clips.setdefault(path, [])
        if name not in self._presence:
            names.append(name)
        self._presence[name] = mask[_AUDIO], mask[_SUBTITLE]
        self.problems.pop(name, None)
        if problems:
            self.problems[name] = list(problems)

    def remove_clips(self, path: str, names: Iterable[str]) -> None:
        """Clips of a file are gone."""
        names = set(names)
        self.clips[path] = [name for name in self.clips.get(path, ()) if name not in names]
        if not self.clips[path]:
            del self.clips[path]
        for name in names:
            del self._presence[name]
            self.problems.pop(name, None)

    def put_files(self, files: Iterable[MediaFile]) -> None:
        """Files are noted as they are now."""
        self.files |= {file.path: file for file in files}

    def forget(self, paths: Iterable[str]) -> None:
        """Files are gone, with all their clips."""
        for path in paths:
            self.remove_clips(path, list(self.clips.get(path, ())))
            self.files.pop(path, None)


__all__ = ["Known"]
