"""Which words belong to a media file: the subtitle file next to it, else a text track inside."""

from modeling_scalar.media_scalar import MEDIA_FILES, TEXT_FILES, find_sidecar

__all__ = ["MEDIA_FILES", "TEXT_FILES", "find_sidecar"]
