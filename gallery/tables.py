"""The tables of a gallery: embedded clips, the captions that describe some of them, and the media files they were read
from. Each of the three (see [`~gallery.storage`]) is one that `datasets.load_from_disk` reads:

`clips/`
    `clip_id` (string); `video`, `audio`, `subtitle` (lists of D floats): unit vectors, zero where the clip lacks the
    modality; `presence` (list of 3 bools): which of the three it has, in this order; `gram` (list of 9 floats): their
    Gram matrix, see [`~gallery.columns.gram_of`]; `video_codes`, `audio_codes`, `subtitle_codes` (lists of D bytes),
    `code_scale` and `code_error`: the vectors in eight bits, see [`~gallery.exact.codes`]; `concat_video_audio`,
    `concat_video_subtitle` and `concat_video_audio_subtitle` of checkpoints with concatenation heads; `duration` of
    the sound in seconds, if known; `seconds`: how long the clip lasts, if known; `problems` (list of
    strings): what could not be read and counts as absent.
`queries/`
    `query_id`, `caption` (strings); `embedding` (list of D floats): a unit vector, or one for each modality (3 D
    floats); `clip_ids` (list of strings): the clips that the query describes. Only benchmarks have them.
`files/`
    `path`, `size`, `mtime_ns`, `sha256` of each media file as it was when it was read, and `reason` (string) if
    nothing, or not all of its windows, could be read. Only galleries of one's own files have them; the `clip_id` is
    the path then, or names a window of it (see [`~gallery.windows`]).

Vectors of any other model are a gallery too, once they are written with `datasets` alone (`clips/`, and for evaluation
`queries/`; of the columns those described first, up to `presence`):

    Dataset.from_dict({"clip_id": ids, "video": v, "audio": a, "subtitle": s, "presence": p}).save_to_disk("X/clips")
    Dataset.from_dict({"query_id": q, "caption": c, "embedding": t, "clip_ids": lists}).save_to_disk("X/queries")
"""

from dataclasses import dataclass

KEYS = {"clips": "clip_id", "files": "path", "queries": "query_id"}
"""The column that names the rows of a table."""
COPIED_ROWS = 16_384
"""How many rows are checked or copied at a time."""


@dataclass(frozen=True)
class MediaFile:
    """A file as it was when it was read; `reason` says why nothing, or not all of its windows, could be read."""

    path: str
    size: int
    mtime_ns: int
    sha256: str
    reason: str | None = None


__all__ = ["COPIED_ROWS", "KEYS", "MediaFile"]
