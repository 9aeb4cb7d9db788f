"""AVCaps (Sudarsanam et al., 2025): clips with captions by people who only heard the sound, only saw the frames, or
had both. This is the kind of a caption: which modalities a query is about.

The annotation is `<split>_captions.json`, lists of captions by clip id. `GPT_AV_captions`, which a language model
wrote from the other captions, do not describe observations of a clip and are not used.
"""

from pathlib import Path

from .descs import Entry, descs_benchmark, is_text, read_json

_KINDS = {"audio_captions": "audio", "visual_captions": "video", "audio_visual_captions": "video and audio"}
_FORMAT = f"AVCaps' own JSON, an object of clip ids to objects with lists of captions in {', '.join(_KINDS)}"


def _read(path: Path) -> list[Entry]:
    entries = []
    for video_id, item in read_json(path, dict, _FORMAT).items():
        # The captions of people, kind by kind.
        captions = []
        kinds = []
        if isinstance(item, dict):
            for name, kind in _KINDS.items():
                texts = item.get(name)
                if isinstance(texts, list):
                    written = [text for text in texts if text != ""]  # some annotators wrote nothing
                    captions += written
                    kinds += [kind] * len(written)
        if not captions or not all(map(is_text, captions)):
            raise ValueError(f"The clip {video_id!r} of {path} must have captions as {_FORMAT}; got {item!r:.200}.")
        entries.append(Entry(video_id, captions, kinds=kinds))
    return entries


_FILES = {"train": "train_captions.json", "validation": "val_captions.json", "test": "test_captions.json"}
AVCAPS = descs_benchmark("AVCaps", _FILES, read=_read, captions="all")

__all__ = ["AVCAPS"]
