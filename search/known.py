"""The gallery's records of media files, read once and kept up to date by the one process that writes."""

from collections.abc import Iterable, Sequence
from functools import reduce
from operator import or_

import torch

from gallery.decoding import IN_PART
from gallery.gallery import Gallery, MediaFile


class Known:
    """
    The files of a gallery, their clips, and the problems of these.

    Args:
        gallery ([`~gallery.gallery.Gallery`]): as it is now; later changes must be passed to the methods.
        modalities (sequence of `str`): of its present and future clips.

    Attributes:
        files (`dict[str, MediaFile]`): by path.
        clips (`dict[str, list[str]]`): clips of each file that has any.
        problems (`dict[str, list[str]]`): by clip.
    """

    def __init__(self, gallery: Gallery, modalities: Sequence[str]):
        self.files: dict[str, MediaFile] = dict(gallery.files)
        self.clips = gallery.clips_of_files()
        self.problems = gallery.problems()
        # Bit masks instead of lists of bools: there may be millions.
        self._bits = {name: 2**place for place, name in enumerate(modalities)}
        mask = gallery.modality_mask.long() if len(gallery) else torch.zeros(0, len(modalities), dtype=torch.long)
        presence = (mask @ torch.tensor(list(self._bits.values()))).tolist()
        self._presence = dict(zip(gallery.clip_ids, presence, strict=True))

    def problems_of(self, path: str) -> list[str]:
        """The problems of the clips of a file."""
        return [problem for name in self.clips.get(path, ()) for problem in self.problems.get(name, ())]

    def lacks(self, path: str, words: str, source: str) -> bool:
        """Whether a file has the modality `source` of words (sound, for speech), but not the words, and
        its only problems are streams that were read in part."""
        names = self.clips.get(path, ())
        presence = reduce(or_, (self._presence[name] for name in names), 0) | ~sum(self._bits.values())
        asked = self._bits.get(words, 0)
        is_lacking = bool(names) and asked and not presence & asked and presence & self._bits.get(source, -1)
        return bool(is_lacking) and all(IN_PART in problem for problem in self.problems_of(path))

    def put_clip(self, path: str, name: str, mask: Sequence[bool], problems: Sequence[str]) -> None:
        """Record a new or changed clip of a file."""
        names = self.clips.setdefault(path, [])
        if name not in self._presence:
            names.append(name)
        self._presence[name] = sum(bit for bit, here in zip(self._bits.values(), mask, strict=True) if here)
        self.problems.pop(name, None)
        if problems:
            self.problems[name] = list(problems)

    def remove_clips(self, path: str, names: Iterable[str]) -> None:
        """Forget clips of a file."""
        names = set(names)
        self.clips[path] = [name for name in self.clips.get(path, ()) if name not in names]
        if not self.clips[path]:
            del self.clips[path]
        for name in names:
            del self._presence[name]
            self.problems.pop(name, None)

    def move(self, old: str, file: MediaFile) -> dict[str, str]:
        """Rename a file; returns the new names of its clips by their old names."""
        names = {name: file.path + name.removeprefix(old) for name in self.clips.pop(old)}
        self.clips[file.path] = list(names.values())
        for before, name in names.items():
            self._presence[name] = self._presence.pop(before)
            if before in self.problems:
                self.problems[name] = self.problems.pop(before)
        del self.files[old]
        self.files[file.path] = file
        return names

    def put_files(self, files: Iterable[MediaFile]) -> None:
        """Record files as they are now."""
        self.files |= {file.path: file for file in files}

    def forget(self, paths: Iterable[str]) -> None:
        """Forget files, with all their clips."""
        for path in paths:
            self.remove_clips(path, list(self.clips.get(path, ())))
            self.files.pop(path, None)


__all__ = ["Known"]
