"""The model in mteb: a task made from the miniature set, scored by mteb and by our own metrics."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from datasets import Audio, Dataset, Video

from evidence.miniature.generation import generate
from scalar_retrieval.eval.benchmarks.registry import load_benchmark
from scalar_retrieval.eval.embedding.embed_dataset import embed_dataset
from scalar_retrieval.eval.protocol.first_stage import evaluate_embeddings
from scalar_retrieval.eval.protocol.missing import mask_modalities
from scalar_retrieval.gallery.decoding import tolerant
from scalar_retrieval.modeling_scalar import MODALITIES, ScalarModel
from scalar_retrieval.modeling_scalar.model_identity import identify
from scalar_retrieval.modeling_scalar.scores_scalar import retrieval_scores
from tests.conftest import make_tiny_config
from tests.eval.protocol.slow_matching import evaluate_two_stage
from tests.gallery.decoding.reading import read_audio

mteb = pytest.importorskip("mteb")

from mteb.abstasks.retrieval import AbsTaskRetrieval  # noqa: E402
from mteb.abstasks.task_metadata import TaskMetadata  # noqa: E402
from mteb.models.model_implementations import MODEL_REGISTRY  # noqa: E402
from mteb.results import TaskResult  # noqa: E402

from evidence.mveb import Masked  # noqa: E402
from scalar_retrieval.eval.adapters.mteb_model import ScalarSearch, load_search  # noqa: E402

NUM_CLIPS = 40


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Several blocks of queries, as a real task has."""
    monkeypatch.setattr("scalar_retrieval.eval.adapters.mteb_model._BLOCK", 16)


def make_task(category, queries, corpus, relevant, top_ranked=None):
    described = {"name": "MiniatureRetrieval", "description": "Clips with sound, made by a program."}
    data = {"dataset": {"path": "none/none", "revision": "0"}, "eval_splits": ["test"], "eval_langs": ["eng-Latn"]}
    unknown = dict.fromkeys(["reference", "date", "domains", "task_subtypes", "license", "annotations_creators"])
    unknown |= dict.fromkeys(["dialect", "sample_creation", "bibtex_citation"])

    class Task(AbsTaskRetrieval):
        metadata = TaskMetadata(
            type="Any2AnyRetrieval",
            category=category,
            modalities=["text", "video", "audio"],
            main_score="ndcg_at_10",
            **described,
            **data,
            **unknown,
        )

        def load_data(self, **kwargs):
            split = {"queries": queries, "corpus": corpus, "relevant_docs": relevant, "top_ranked": top_ranked}
            self.dataset = {"default": {"test": split}}
            self.data_loaded = True

    return Task()


def run_mteb(model, *task):
    options = {"batch_size": 16, "show_progress_bar": False}
    task = make_task("t2va", *task)
    result = mteb.evaluate(model, task, cache=None, encode_kwargs=options, show_progress_bar=False)
    (scores,) = result.task_results[0].scores["test"]
    return scores


@pytest.fixture(scope="module")
def benchmark(tmp_path_factory):
    """Clips with picture or sound: in mteb a clip is video, video and sound, or video and text."""
    root = generate(
        tmp_path_factory.mktemp("miniature") / "set",
        num_train=1,
        num_validation=0,
        num_test=NUM_CLIPS + 10,
        num_proc=1,
    )
    dataset = load_benchmark("miniature", root, "test").filter(lambda row: row["video_path"] or row["audio_path"])
    # Words that the tiny tokenizer knows: equal texts would be ties, which mteb breaks by name.
    words = "red blue circle square dog cat barks meows low high".split()

    def reword(row, index):
        first, second = words[index % 10], words[index // 10]
        return {"caption": f"a {first} and the {second}", "subtitle": row["subtitle"] and f"hello {second} {first}"}

    return dataset.select(range(NUM_CLIPS)).map(reword, with_indices=True)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(1)
    model = ScalarModel(make_tiny_config(initializer_range=0.3)).eval()
    torch.nn.init.normal_(model.match_head.classifier.weight)
    return model


@pytest.fixture(scope="module")
def sides(benchmark):
    """Captions, and clips as mteb has them: undecoded video and audio columns, and a text."""
    rows = list(benchmark)
    captions = Dataset.from_list([{"id": f"q{i}", "text": row["caption"]} for i, row in enumerate(rows)])
    columns = {
        "id": [row["video_id"] for row in rows],
        "video": [row["video_path"] for row in rows],
        "audio": [row["audio_path"] for row in rows],
        "text": [row["subtitle"] or "" for row in rows],
    }
    return captions, Dataset.from_dict(columns)


@pytest.fixture(scope="module")
def embeddings(model, tiny_processor, benchmark):
    return embed_dataset(model, tiny_processor, benchmark, progress=False)


@pytest.mark.parametrize("depth", [None, 5])
def test_mteb_finds_the_metrics_that_we_find(model, tiny_processor, sides, embeddings, benchmark, depth):
    captions, clips = sides
    relevant = {f"q{row}": {name: 1} for row, name in enumerate(clips["id"])}
    scores = run_mteb(ScalarSearch(model, tiny_processor, "tests/tiny", rerank_depth=depth), captions, clips, relevant)
    seen = replace(embeddings, modality_mask=embeddings.modality_mask & torch.tensor([True, True, False]))
    (first,) = evaluate_embeddings(seen, ("scalar",), (0.0,), query_temperature=0.1)["rates"]
    expected = first["methods"]["scalar"]
    if depth is not None:
        (ours,) = evaluate_two_stage(model, tiny_processor, benchmark, seen, depths=(depth,), progress=False)
        assert any(ours[name] != value for name, value in expected.items() if name in ours)
        expected = ours
    assert 0 < expected["text_to_video_recall_at_10"] < 100
    # mteb's metrics are fractions, rounded to five digits.
    for theirs, name in (
        ("recall_at_1", "recall_at_1"),
        ("hit_rate_at_5", "recall_at_5"),
        ("ndcg_at_10", "ndcg_at_10"),
        ("map_at_100", "mean_average_precision"),
    ):
        assert scores[theirs] == pytest.approx(expected[f"text_to_video_{name}"] / 100, abs=2e-5), theirs


def ask(search, category, queries, corpus, top_k=NUM_CLIPS, **options):
    metadata = make_task(category, queries, corpus, {}).metadata
    given = {"task_metadata": metadata, "hf_split": "test", "hf_subset": "default", "num_proc": None}
    given["encode_kwargs"] = {"show_progress_bar": False}
    search.index(corpus, **given)
    return search.search(queries, top_k=top_k, **given, **options)


CASES = [
    ("t2va", "scalar"),
    ("t2vt", "gram"),
    ("t2v", "scalar"),
    ("t2va", "audio"),  # scores only what is heard
    ("va2t", "scalar"),
    ("v2t", "scalar"),
    ("a2v", "scalar"),
    ("v2a", "scalar"),
]


@pytest.mark.parametrize(("category", "method"), CASES)
def test_every_task_has_our_scores(model, tiny_processor, sides, embeddings, category, method):
    captions, clips = sides
    options = {"method": method, "query_temperature": 0.1}
    search = ScalarSearch(model, tiny_processor, "tests/tiny", score_options=dict(options))
    queries, documents = category.split("2")
    tables, rows, masks = [], [], []
    for side in (queries, documents):
        masks.append(embeddings.modality_mask & torch.tensor([letter in side for letter in "vat"]))
        rows.append(torch.ones(NUM_CLIPS).bool() if side == "t" else masks[-1].any(1))
        tables.append((captions if side == "t" else clips).select(rows[-1].nonzero().flatten()))
    texts, vectors = embeddings.text_embeds, embeddings.modality_embeds
    options["modalities"] = MODALITIES
    if documents == "t":  # texts are ranked for clips
        scores = retrieval_scores(texts, vectors[rows[0]], masks[0][rows[0]], **options).T
    else:
        asked = texts if queries == "t" else vectors[:, "vat".index(queries)]
        scores = retrieval_scores(asked[rows[0]], vectors[rows[1]], masks[1][rows[1]], **options)
    found = ask(search, category, *tables)
    for name, values in zip(tables[0]["id"], scores.tolist(), strict=True):
        scored = {place: value for place, value in enumerate(values) if value > -math.inf}
        expected = {tables[1]["id"][place]: value for place, value in scored.items()}
        assert found[name] == pytest.approx(expected, abs=1e-6)


def test_instructions_and_turns_are_read_with_the_query_as_mteb_writes_them(model, tiny_processor, sides):
    clips = sides[1].select(range(3))
    search = ScalarSearch(model, tiny_processor, "tests/tiny")
    said = [{"role": "dog", "content": "a cat"}, {"role": "cat", "content": "low tone"}]
    for asked, plain in (
        ({"text": ["a cat", "a dog"], "instruction": ["low tone", None]}, ["a cat low tone", "a dog"]),
        ({"text": [said]}, ["dog: a cat; cat: low tone"]),
        ({"text": [["a", "cat"]]}, ["a; cat"]),
    ):
        ids = {"id": ["q0", "q1"][: len(plain)]}
        expected = ask(search, "t2va", Dataset.from_dict(ids | {"text": plain}), clips)
        assert ask(search, "t2va", Dataset.from_dict(ids | asked), clips) == expected


@pytest.mark.parametrize("rerank_depth", [None, 3])
def test_a_reranking_task_gets_back_the_documents_it_lists(model, tiny_processor, sides, rerank_depth):
    captions, clips = sides[0].select(range(3)), sides[1]
    listed = {"q0": clips["id"][3:8], "q1": clips["id"][:2], "q2": []}
    search = ScalarSearch(model, tiny_processor, "tests/tiny", rerank_depth=rerank_depth)
    found = ask(search, "t2va", captions, clips, top_ranked=listed)
    assert {name: sorted(scores) for name, scores in found.items()} == {q: sorted(ids) for q, ids in listed.items()}
    if rerank_depth is None:
        everything = ask(search, "t2va", captions, clips)
        assert all(everything[name].items() >= scores.items() for name, scores in found.items())


def test_every_form_of_a_clip_gives_the_same_scores(model, tiny_processor, sides):
    captions, clips = sides[0].select(range(4)), sides[1].filter(lambda row: row["video"] and row["audio"])
    paths = clips.select(range(3)).select_columns(["id", "video", "audio"]).to_dict()
    contents, arrays = dict(paths), dict(paths)
    for name in ("video", "audio"):
        contents[name] = [{"bytes": Path(path).read_bytes(), "path": Path(path).name} for path in paths[name]]
    arrays["audio"] = [{"array": read_audio(path), "sampling_rate": 16_000} for path in paths["audio"]]
    search = ScalarSearch(model, tiny_processor, "tests/tiny", num_workers=1)
    files = Dataset.from_dict(paths)
    expected = ask(search, "t2va", captions, files)
    decoded = files.cast_column("video", Video()).cast_column("audio", Audio())
    for corpus in (decoded, Dataset.from_dict(contents), Dataset.from_dict(arrays)):
        for query, scores in ask(search, "t2va", captions, corpus).items():
            assert scores == pytest.approx(expected[query], abs=1e-6)


@pytest.mark.parametrize("category", ["t2it", "va2va"])
def test_other_tasks_are_refused(model, tiny_processor, sides, category):
    captions, clips = sides
    with pytest.raises(ValueError, match="MiniatureRetrieval goes from .* ranks clips"):
        ask(ScalarSearch(model, tiny_processor, "tests/tiny"), category, captions, clips)


def test_what_cannot_be_read_can_count_as_absent_and_is_listed(model, tiny_processor, sides):
    captions, clips = sides
    corpus = Dataset.from_dict({"id": ["x"], "video": [b"no video"], "text": ["hello"]})
    search = ScalarSearch(model, tolerant(tiny_processor), "tests/tiny")
    assert list(ask(search, "t2vt", captions.select([0]), corpus)["q0"]) == ["x"]
    assert len(search.problems) == 1 and search.problems[0].startswith("x: ")


@pytest.mark.parametrize("rate", [0.0, 0.5, 1.0])
def test_a_masked_corpus_has_the_scores_of_one_that_lacks_the_same_cells(model, tiny_processor, sides, rate):
    captions, clips = sides[0], sides[1].filter(lambda row: row["video"] and row["audio"]).remove_columns("text")
    kept = mask_modalities(clips["id"], torch.ones(len(clips), 2, dtype=torch.bool), rate)

    def lose(row, index):
        return {name: row[name] if kept[index, place] else None for place, name in enumerate(("video", "audio"))}

    search = ScalarSearch(model, tiny_processor, "tests/tiny")
    expected = ask(search, "t2va", captions, clips.map(lose, with_indices=True))
    masked = Masked(search, rate)
    found = ask(masked, "t2va", captions, clips)
    assert len(clips) > 10 and found.keys() == expected.keys()
    for query, scores in found.items():
        assert scores == pytest.approx(expected[query], abs=1e-6)
    assert masked.mteb_model_meta.experiment_kwargs["masked"] == rate


def test_mteb_loads_a_model_by_its_metadata_and_its_mock_run_passes(tiny_model_dir, monkeypatch):
    """The loader is called as mteb does, which itself first asks for torchcodec."""
    known = {"license": "mit", "languages": ["eng-Latn"], "training_datasets": {"MSRVTTT2V"}, "open_weights": True}
    search = ScalarSearch.from_pretrained(tiny_model_dir, "tests/tiny", "cpu", **known)
    meta = search.mteb_model_meta
    for name, value in known.items():
        assert getattr(meta, name) == value
    assert (meta.name, meta.revision) == ("tests/tiny", identify(tiny_model_dir).fingerprint[:40])
    monkeypatch.setitem(MODEL_REGISTRY, meta.name, meta)
    assert json.loads(json.dumps(meta.to_dict()))["loader"] == "load_search"  # as mteb writes it beside results
    meta = mteb.get_model_meta("tests/tiny", meta.revision)  # as the command does
    options = {"device": "cpu"} | meta.loader_kwargs | meta.experiment_kwargs
    model = meta.loader(meta.name, revision=meta.revision, **options)
    assert model.score_options == search.score_options
    found = mteb.mock_run(model)
    assert found.all_passed, found.to_markdown()
    for name in ("MockVideoRetrievalT2V", "MockVideoRetrievalV2T", "MockInstructionRetrieval"):
        assert isinstance(found[name], TaskResult)
    with pytest.raises(ValueError, match="has the revision"):
        load_search("tests/tiny", "0" * 40, str(tiny_model_dir), "cpu")
