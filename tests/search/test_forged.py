"""What a stranger wrote: any value in any field of a gallery's manifest is refused in one sentence, or harmless."""

import hashlib
import json
import math
import shutil
from copy import deepcopy

import pyarrow as pa
import pytest

from scalar_retrieval.gallery.gallery import Gallery, GalleryWriter, MediaFile, verify_gallery
from scalar_retrieval.gallery.repair import repair
from scalar_retrieval.gallery.store.columns import clip_table
from scalar_retrieval.gallery.store.places import MANIFEST
from scalar_retrieval.gallery.store.storage import signed
from scalar_retrieval.search.__main__ import info
from tests.gallery.conftest import make_clips, make_queries

DEEP = "deep"
KINDS = [
    None, True, 0, 1, -1, 2**63, 10**400, 0.5, 1e300, math.inf, "", "inf", "../../x", "\ud800", [], {}, [None], [[1]],
    ["x"], {"": 1}, {"x": None}, {"x": {"x": []}}, DEEP,
]  # fmt: skip
PARTS = 12  # one of which is quick: over all fields it has every value
METADATA = {
    "model": "some/model",
    "model_revision": "main",
    "local_model": "model",
    "fingerprint": "f" * 64,
    "weights": {"model.safetensors": "0" * 64},
    "training": {"seed": 1},
    "query_temperature": 0.2,
    "modalities": ["video", "audio", "subtitle"],
    "score_options": {"method": "scalar", "modality_scale": [1.0, 2.0, 1.0], "modality_offset": [0.0, 0.1, 0.0]},
    "least_score": {
        "score": 0.5,
        "num_clips": 3,
        "modalities": ["video", "audio", "subtitle"],
        "score_options": {
            "method": "scalar",
            "query_temperature": 0.2,
            "modality_scale": [1.0, 2.0, 1.0],
            "modality_offset": [0.0, 0.1, 0.0],
        },
    },
    "segment": 30.0,
    "scenes": True,
    "num_frames": 2,
    "max_audio_seconds": 5.0,
    "plan": {"dtype": "float16"},
    "benchmark": "own",
    "split": "test",
    "task": "retrieval",
    "trained_on": 0,
    "kinds": {"q": "kind"},
    "problems": ["nothing"],
    "left_out": ["x"],
    "versions": {"torch": "2"},
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A gallery with every entry of metadata, and clips that were removed."""
    folder = tmp_path_factory.mktemp("forged") / "gallery"
    names, embeds, mask = make_clips(6)
    with GalleryWriter(folder) as writer:
        writer.metadata = METADATA
        writer.put_clips(names, embeds, mask)
        writer.put_files([MediaFile(name, 1, 2, "a" * 64) for name in names])
        writer.commit()
        writer.remove_clips(names[1:2])
        writer.commit()
    return folder


def places_in(content, path=()):
    """The paths to every value in a document."""
    yield path
    for key in content if isinstance(content, dict) else range(len(content)) if isinstance(content, list) else ():
        yield from places_in(content[key], (*path, key))


def forged(content, path, value, sign=lambda content: content):
    """A document with another value, as text."""
    content = deepcopy(content)
    place = content
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    text = json.dumps(sign(content))
    # Deeper than a program can go, but not than the parser.
    return text.replace(json.dumps(DEEP), "[" * 300 + "]" * 300)


def use(folder):
    """Everything that reads the manifest; returns what a search finds."""
    gallery = Gallery.open(folder)
    found = gallery.search(make_queries(1), 3)[0]
    gallery.search(like=gallery.clip_named("0-5.mp4"), k=2)
    gallery.facts()
    info(gallery=str(folder))
    verify_gallery(folder)
    return [(hit.clip_id, hit.score) for hit in found], found.matches_well


@pytest.mark.promise("errors", "A forged gallery is refused in one sentence")
@pytest.mark.parametrize("part", [pytest.param(n, marks=pytest.mark.slow if n else ()) for n in range(PARTS)])
def test_any_value_in_any_field_of_a_manifest_is_refused_in_a_sentence_or_harmless(whole, capsys, part):
    path = whole / MANIFEST
    raw = path.read_text()
    expected = use(whole)
    content = json.loads(raw)
    content.pop("sha256")
    num_refused = 0
    for number, place in enumerate(list(places_in(content))[1:]):
        for value in KINDS[(number + part) % PARTS :: PARTS]:
            path.write_text(forged(content, place, value, signed))
            try:
                got = use(whole)
            except (OSError, ValueError) as error:
                num_refused += 1
                assert str(error)
            except Exception as error:
                raise AssertionError(f"{place} as {value!r:.40}: {type(error).__name__}: {error}") from error
            else:
                # Of the metadata, scores depend on these entries alone.
                is_other = place[0] == "metadata" and place[1:2] not in (
                    (),
                    ("score_options",),
                    ("query_temperature",),
                )
                assert got[0] == expected[0] or not is_other, (place, value)
    path.write_text(raw)
    assert num_refused > 100


def forge_table(folder, name, number, table):
    """Replace a file of a table, with everything that the manifest says of it."""
    content = json.loads((folder / MANIFEST).read_text())
    entry = content["tables"][name][number]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    raw = sink.getvalue().to_pybytes()
    (folder / name / entry["file"]).unlink()  # it is mapped
    (folder / name / entry["file"]).write_bytes(raw)
    entry |= {"rows": len(table), "bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
    (folder / MANIFEST).write_text(json.dumps(signed(content)))


def other_tables(table):
    """Tables with another column in the place of each, without it, with it twice, and with nulls in it."""
    yield "further", table.append_column("further", table.column(0))
    for place, field in enumerate(table.schema):
        yield f"no {field.name}", table.remove_column(place)
        yield f"{field.name} twice", table.append_column(field.name, table.column(place))
        other = {"bytes": pa.array([b"x"] * len(table)), "lists": pa.array([[[0.5]]] * len(table))}
        if field.name not in ("seconds", "reason", "texts", "recorded_ns", "place", "language"):
            other["nulls"] = pa.nulls(len(table), field.type)
        for kind, column in other.items():
            yield f"{field.name} of {kind}", table.set_column(place, field.name, column)


@pytest.mark.parametrize("name", ["clips", "files"])
def test_tables_of_other_columns_are_refused_in_a_sentence(whole, tmp_path, name, capsys):
    folder = shutil.copytree(whole, tmp_path / "gallery")
    (entry,) = json.loads((folder / MANIFEST).read_text())["tables"][name]
    table = pa.ipc.open_stream(folder / name / entry["file"]).read_all()
    for what, other in other_tables(table):
        forge_table(folder, name, 0, other)
        with pytest.raises(ValueError, match=f"{name}/data.* is damaged: .*scalar repair"):
            use(folder)
            pytest.fail(what)
    forge_table(folder, name, 0, table)
    use(folder)


def test_a_file_with_other_vectors_than_the_first_of_its_table_is_left_out_by_a_repair(tmp_path):
    names, embeds, mask = make_clips(6)
    with GalleryWriter(tmp_path) as writer:
        for half in (slice(0, 5), slice(5, 6)):
            writer.put_clips(names[half], embeds[half], mask[half])
            writer.commit()
    other = clip_table(names[5:], embeds[5:, :, :2], mask[5:], METADATA["modalities"])
    forge_table(tmp_path, "clips", 1, other)
    with pytest.raises(ValueError, match="its columns are not those of the first"):
        use(tmp_path)
    repair(tmp_path)
    assert Gallery.open(tmp_path).clip_ids == names[:5] and verify_gallery(tmp_path)
