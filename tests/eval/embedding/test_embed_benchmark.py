import shutil
import signal
import time
from pathlib import Path

import pytest
import torch

from evidence.miniature.generation import generate
from scalar_retrieval.eval.benchmarks.registry import load_benchmark, load_split
from scalar_retrieval.eval.embedding import embed_benchmark as module
from scalar_retrieval.eval.embedding.embed_benchmark import embed_benchmark
from scalar_retrieval.eval.embedding.embed_dataset import embed_dataset
from scalar_retrieval.eval.embedding.embeddings import Embeddings
from scalar_retrieval.gallery import embedding
from scalar_retrieval.gallery.gallery import Gallery
from scalar_retrieval.modeling_scalar import load_model
from scalar_retrieval.modeling_scalar.model_identity import identify

ROOT = Path(__file__).resolve().parents[3]
NUM_CLIPS = 21


@pytest.fixture(autouse=True)
def one_thread():
    """As the processes that are started here: sums of several threads may round otherwise."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    counts = {"num_train": 1, "num_validation": 0, "num_test": NUM_CLIPS}
    return generate(tmp_path_factory.mktemp("embed") / "data", **counts, num_proc=1)


@pytest.fixture(scope="module")
def embed(tiny_model_dir, data):
    def run(output, **options):
        source = {"model": tiny_model_dir, "benchmark": "miniature", "root": data}
        job = {"batch_size": 4, "progress": False, "dtype": "float32"}
        return embed_benchmark(output, **source | job | options)

    return run


@pytest.fixture(scope="module")
def whole(embed, tmp_path_factory):
    """A finished store, to which nothing is written."""
    torch.set_num_threads(1)
    return embed(tmp_path_factory.mktemp("whole") / "store").path


@pytest.fixture(scope="module")
def reference(tiny_model_dir, data):
    """The same by the other way, in memory."""
    model, processor = load_model(tiny_model_dir)
    torch.set_num_threads(1)
    dataset = load_split("miniature", data).dataset
    return embed_dataset(model, processor, dataset, batch_size=4, progress=False)


def rows_of(store):
    """The bytes of the two data sets; what `datasets` writes beside them holds a random fingerprint."""
    return [file.read_bytes() for name in ("clips", "queries") for file in sorted((store / name).glob("*.arrow"))]


def held(store):
    """How many clips and captions are there."""
    try:
        gallery = Gallery.open(store)
    except FileNotFoundError:
        return 0, 0
    return len(gallery), 0 if gallery.queries is None else len(gallery.queries)


def files_of(folder):
    """When each file was written, but for locks."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


def test_store_holds_what_embedding_in_memory_gives_and_where_it_comes_from(whole, reference, data, tiny_model_dir):
    gallery, store = Gallery.open(whole), Embeddings.load(whole)
    for name in ("text_embeds", "modality_embeds", "modality_mask", "pairs"):
        assert torch.equal(getattr(store, name), getattr(reference, name)), name
    for name in ("clip_ids", "query_ids", "captions", "problems"):
        assert getattr(store, name) == getattr(reference, name), name
    assert len(store.clip_ids) == NUM_CLIPS and not store.modality_mask.all() and store.modality_mask.all(1).any()
    assert [path.name for path in whole.parent.iterdir()] == ["store"]
    assert gallery.facts()["gallery_sha256"] == reference.manifest()["sha256"]
    described = {"model": str(tiny_model_dir), "benchmark": "miniature", "split": "test", "task": "retrieval"}
    described["score_options"] = {"method": "scalar", "query_temperature": 0.1}
    described["fingerprint"] = identify(tiny_model_dir).fingerprint
    described["kinds"] = {f"{row['video_id']}#0": row["kind"] for row in load_benchmark("miniature", data)}
    assert gallery.metadata == gallery.metadata | described
    assert {"versions", "training", "left_out", "benchmark_description"} <= gallery.metadata.keys()


def test_by_default_clips_are_rounded_once_to_half_precision_and_captions_are_not(
    tiny_model_dir, data, reference, tmp_path
):
    embed_benchmark(tmp_path / "store", tiny_model_dir, "miniature", data, batch_size=4, progress=False)
    store = Embeddings.load(tmp_path / "store")
    assert torch.equal(store.modality_embeds, reference.modality_embeds.half())
    assert torch.equal(store.text_embeds, reference.text_embeds)


# Going on


def counting(monkeypatch, stop_after=None):
    """Count batches that are computed; optionally stop, as by Ctrl-C, before one more is."""
    computed = []

    def counted(run):
        def count(*arguments):
            if len(computed) == stop_after:
                raise KeyboardInterrupt
            computed.append(run.__name__)
            return run(*arguments)

        return count

    for place, name in ((embedding, "embed_clips"), (module, "embed_captions")):
        monkeypatch.setattr(place, name, counted(getattr(place, name)))
    return computed


@pytest.mark.parametrize(("stop_after", "kept"), [(0, (0, 0)), (3, (12, 0)), (8, (21, 8))])
def test_interrupted_run_goes_on_to_the_same_bytes(embed, whole, tmp_path, monkeypatch, stop_after, kept):
    """21 clips and 21 captions in batches of 4: 12 batches."""
    monkeypatch.setattr(module, "_CAPTIONS", 4)
    store = tmp_path / "store"
    with monkeypatch.context() as patched:
        counting(patched, stop_after)
        with pytest.raises(KeyboardInterrupt):
            embed(store)
    assert held(store) == kept
    with pytest.raises((FileNotFoundError, ValueError), match="no gallery in|are unfinished: .*Run the same"):
        Embeddings.load(store)
    computed = counting(monkeypatch)
    embed(store)
    assert len(computed) == 12 - stop_after
    assert rows_of(store) == rows_of(whole)


def test_finished_store_is_left_alone(embed, whole, monkeypatch):
    before = files_of(whole)
    computed = counting(monkeypatch)
    assert embed(whole).facts() == Gallery.open(whole).facts()
    with pytest.raises(ValueError, match="with other settings. These differ: dtype"):
        embed(whole, dtype="float16")
    assert computed == [] and files_of(whole) == before


CHANGES = [
    ({"batch_size": 5}, "batch_size"),
    ({"dtype": "float16"}, "dtype"),
    ({"split": "train"}, "the clips, their files, texts or captions"),
    ({"benchmark": "miniature_classes"}, "the clips, their files, texts or captions"),
]


def test_other_arguments_are_refused_not_mixed(embed, tmp_path, monkeypatch):
    store = tmp_path / "store"
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        counting(patched, 5)
        embed(store)
    before = files_of(store)
    for change, message in CHANGES:
        with pytest.raises(ValueError, match=f"with other settings. These differ: {message}"):
            embed(store, **change)
    assert files_of(store) == before


def test_other_weights_files_and_versions_are_refused(embed, tiny_model_dir, data, tmp_path, monkeypatch):
    store = tmp_path / "store"
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        counting(patched, 5)
        embed(store)
    model, _ = load_model(tiny_model_dir)
    with torch.no_grad():
        model.audio_projection.weight[3, 3] += 1e-3
    model.save_pretrained(shutil.copytree(tiny_model_dir, tmp_path / "weights"))
    with pytest.raises(ValueError, match="These differ: the weights or settings of the model or its processor"):
        embed(store, model=tmp_path / "weights")
    # Where model and data lie does not matter, but what the files hold.
    shutil.copytree(tiny_model_dir, tmp_path / "moved")
    shutil.copytree(data, tmp_path / "data")
    with monkeypatch.context() as patched:
        patched.setattr(module, "versions", lambda: {"torch": "0.4"})
        with pytest.raises(ValueError, match="These differ: versions"):
            embed(store)
    film = next((tmp_path / "data" / "test").glob("*.mp4"))
    content = film.read_bytes()
    film.write_bytes(content + b"\0")
    with pytest.raises(ValueError, match="These differ: the clips, their files"):
        embed(store, root=tmp_path / "data")
    film.write_bytes(content)
    embed(store, model=tmp_path / "moved", root=tmp_path / "data")
    embed(store)


def test_what_cannot_be_read_is_an_error_or_listed_in_the_order_of_the_clips(embed, data, tmp_path):
    root = shutil.copytree(data, tmp_path / "data")
    dataset = load_split("miniature", root).dataset
    # Those that keep something to be scored by: a subtitle.
    films = {row["video_id"]: Path(row["video_path"]) for row in dataset if row["subtitle"] and row["video_path"]}
    broken = list(films)[-4:]
    for name in broken:
        films[name].write_bytes(films[name].read_bytes()[:200])
    job = {"output": tmp_path / "store", "root": root, "batch_size": 2}
    with pytest.raises(ValueError, match=rf"{broken[0]}.*`on_error` to \"missing\""):
        embed(**job)
    assert held(tmp_path / "store") == (dataset["video_id"].index(broken[0]) // 2 * 2, 0)
    gallery = embed(**job, on_error="missing")
    assert list(gallery.problems()) == broken
    store = Embeddings.load(tmp_path / "store")
    assert store.problems == [f"{name}: {one}" for name, reported in gallery.problems().items() for one in reported]
    # Among the clips that are there are some with problems.
    with pytest.raises(ValueError, match="with other settings. These differ: on_error"):
        embed(**job)


@pytest.mark.e2e
def test_killed_run_goes_on_to_the_same_bytes(embed, commands, tiny_model_dir, data, tmp_path, monkeypatch):
    """Killed without warning in the middle, by the command a user types."""
    job = {"batch_size": 1, "dtype": "float16"}
    embed(tmp_path / "whole", **job)
    store = tmp_path / "store"
    source = ["--model", tiny_model_dir, "--benchmark", "miniature", "--root", data, "--output", store]
    command = ["-m", "scalar_retrieval.eval", "embed", *source, "--batch-size", "1"]
    running, stop = commands.start(*command), time.monotonic() + 60
    while held(store)[0] < 3 and time.monotonic() < stop:
        time.sleep(0.001)
    running.kill(signal.SIGSTOP)
    with pytest.raises(ValueError, match="Another process writes"):  # once it is killed, nothing is in the way
        embed(store, **job)
    running.kill(signal.SIGKILL)
    running.wait()
    done, num_captions = held(store)
    assert 3 <= done < NUM_CLIPS and not num_captions, "the run ended before it was killed"
    computed = counting(monkeypatch)
    embed(store, **job)
    assert computed == ["embed_clips"] * (NUM_CLIPS - done) + ["embed_captions"] * NUM_CLIPS
    assert rows_of(store) == rows_of(tmp_path / "whole")
