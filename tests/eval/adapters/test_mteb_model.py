"""The model in mteb: a task made from the miniature set, scored by mteb and by our own metrics."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from datasets import Audio, Dataset, Video

from evidence.miniature.generation import generate
from scalar_retrieval.eval.benchmarks.registry import load_benchmark
from scalar_retrieval.eval.embedding.embed_dataset import embed_dataset
from scalar_retrieval.eval.metrics.retrieval.ranking import relevant_ranks, retrieval_metrics
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
    class Task(AbsTaskRetrieval):
        metadata = TaskMetadata(
            name="MiniatureRetrieval",
            description="Clips with sound, made by a program.",
            dataset={"path": "none/none", "revision": "0"},
            type="Any2AnyRetrieval",
            category=category,
            modalities=["text", "video", "audio"],
            eval_splits=["test"],
            eval_langs=["eng-Latn"],
            main_score="ndcg_at_10",
            reference=None,
            date=("2026-01-01", "2026-01-02"),
            domains=["Web"],
            task_subtypes=[],
            license="cc0-1.0",
            annotations_creators="derived",
            dialect=[],
            sample_creation="created",
            bibtex_citation="",
        )

        def load_data(self, **kwargs):
            split = {"queries": queries, "corpus": corpus, "relevant_docs": relevant, "top_ranked": top_ranked}
            self.dataset = {"default": {"test": split}}
            self.data_loaded = True

    return Task()


def run_mteb(model, *task):
    options = {"batch_size": 16, "show_progress_bar": False}
    task = make_task(*task)
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


def check(scores, expected):
    """mteb's metrics are fractions, rounded to five digits."""
    assert 0 < expected["recall_at_10"] < 100 and expected["mean_rank"] > 1
    for theirs, ours in [
        ("recall_at_1", "recall_at_1"),
        ("hit_rate_at_5", "recall_at_5"),
        ("recall_at_10", "recall_at_10"),
        ("ndcg_at_10", "ndcg_at_10"),
        ("map_at_100", "mean_average_precision"),
    ]:
        assert scores[theirs] == pytest.approx(expected[ours] / 100, abs=2e-5), theirs


def our_metrics(embeddings, options, modalities, direction="text_to_video"):
    """Ours, of the clips that have one of these modalities, with nothing but them."""
    mask = embeddings.modality_mask & torch.tensor([name in modalities for name in MODALITIES])
    rows = mask.any(dim=1).nonzero().flatten()
    texts, clips = embeddings.text_embeds[rows], embeddings.modality_embeds[rows]
    scores = retrieval_scores(texts, clips, mask[rows], direction=direction, modalities=MODALITIES, **options)
    pairs = torch.arange(len(rows))[:, None].expand(-1, 2)
    return retrieval_metrics(relevant_ranks(scores if direction == "text_to_video" else scores.T, pairs))


CASES = [
    ("t2va", "scalar"),
    ("t2vt", "gram"),
    ("t2v", "scalar"),
    ("va2t", "scalar"),
    ("v2t", "scalar"),
]


@pytest.mark.parametrize(("category", "method"), CASES)
def test_mteb_finds_the_metrics_that_we_find(model, tiny_processor, sides, embeddings, category, method):
    captions, clips = sides
    letters = {"v": "video", "a": "audio", "t": "subtitle"}
    queries, documents = category.split("2")
    by_text = queries == "t"
    modalities = [letters[letter] for letter in (documents if by_text else queries)]
    index = [MODALITIES.index(name) for name in modalities]
    rows = embeddings.modality_mask[:, index].any(dim=1).nonzero().flatten().tolist()
    assert not embeddings.modality_mask[rows][:, index].all() or category in ("t2v", "v2t")  # clips lack this or that
    options = {"method": method, "query_temperature": 0.1}
    search = ScalarSearch(model, tiny_processor, "tests/tiny", score_options=options)
    names = [clips[row]["id"] for row in rows], [f"q{row}" for row in rows]
    relevant = {query: {document: 1} for document, query in zip(*(names if by_text else names[::-1]), strict=True)}
    task = (captions.select(rows), clips.select(rows)) if by_text else (clips.select(rows), captions.select(rows))
    scores = run_mteb(search, category, *task, relevant)
    check(scores, our_metrics(embeddings, options, modalities, "text_to_video" if by_text else "video_to_text"))


@pytest.mark.parametrize("depth", [5, 50])
def test_two_stages_are_those_of_our_protocol(model, tiny_processor, sides, embeddings, benchmark, depth):
    captions, clips = sides
    relevant = {f"q{i}": {name: 1} for i, name in enumerate(clips["id"])}
    search = ScalarSearch(model, tiny_processor, "tests/tiny", rerank_depth=depth)
    scores = run_mteb(search, "t2va", captions, clips, relevant)
    silent = replace(embeddings, modality_mask=embeddings.modality_mask & torch.tensor([True, True, False]))
    (ours,) = evaluate_two_stage(model, tiny_processor, benchmark, silent, depths=(depth,), progress=False)
    ours = {name.removeprefix("text_to_video_"): value for name, value in ours.items()}
    check(scores, ours)
    first = our_metrics(embeddings, model.score_options(), ("video", "audio"))
    assert any(ours[name] != value for name, value in first.items() if name in ours)


def ask(search, category, queries, corpus, **options):
    metadata = make_task(category, queries, corpus, {}).metadata
    given = {"task_metadata": metadata, "hf_split": "test", "hf_subset": "default", "num_proc": None}
    given["encode_kwargs"] = {"show_progress_bar": False}
    search.index(corpus, **given)
    return search.search(queries, top_k=options.pop("top_k", 10), **given, **options)


def test_instructions_and_turns_are_read_with_the_query_as_mteb_writes_them(model, tiny_processor, sides):
    captions, clips = sides[0], sides[1].select(range(3))
    search = ScalarSearch(model, tiny_processor, "tests/tiny")
    reported = captions.select(range(2)).add_column("instruction", ["low tone", None])
    said = [[{"role": "dog", "content": captions["text"][0]}, {"role": "cat", "content": "low tone"}], ["a", "cat"]]
    turns = Dataset.from_dict({"id": ["q0"], "text": [said[0]]}), Dataset.from_dict({"id": ["q1"], "text": [said[1]]})
    texts = captions["text"]
    for asked, plain in (
        (reported, [f"{texts[0]} low tone", texts[1]]),
        (turns[0], [f"dog: {texts[0]}; cat: low tone"]),
        (turns[1], ["a; cat"]),
    ):
        expected = ask(search, "t2va", Dataset.from_dict({"id": asked["id"], "text": plain}), clips)
        assert ask(search, "t2va", asked, clips) == expected


@pytest.mark.parametrize(("category", "place", "parts"), [("a2v", 1, [True, False]), ("v2a", 0, [False, True])])
def test_a_sound_or_a_video_asks_as_a_text_does(model, tiny_processor, sides, embeddings, category, place, parts):
    _, clips = sides
    mask = embeddings.modality_mask & torch.tensor([*parts, False])
    asking, there = embeddings.modality_mask[:, place].nonzero().flatten(), mask.any(dim=1).nonzero().flatten()
    search = ScalarSearch(model, tiny_processor, "tests/tiny")
    found = ask(search, category, clips.select(asking), clips.select(there), top_k=NUM_CLIPS)
    vectors = embeddings.modality_embeds
    expected = retrieval_scores(vectors[asking, place], vectors[there], mask[there], **model.score_options())
    for row, values in zip(asking.tolist(), expected.tolist(), strict=True):
        documents = [clips["id"][document] for document in there.tolist()]
        assert found[clips["id"][row]] == pytest.approx(dict(zip(documents, values, strict=True)), abs=1e-6)


@pytest.mark.parametrize("rerank_depth", [None, 3])
def test_a_reranking_task_gets_back_the_documents_it_lists(model, tiny_processor, sides, rerank_depth):
    captions, clips = sides
    listed = {"q0": clips["id"][3:8], "q1": clips["id"][:2], "q2": []}
    search = ScalarSearch(model, tiny_processor, "tests/tiny", rerank_depth=rerank_depth)
    found = ask(search, "t2va", captions.select(range(3)), clips, top_ranked=listed)
    assert {name: set(documents) for name, documents in found.items()} == {
        name: set(documents) for name, documents in listed.items()
    }
    everything = ask(search, "t2va", captions.select(range(3)), clips, top_k=NUM_CLIPS)
    if rerank_depth is None:
        assert found["q0"] == {name: everything["q0"][name] for name in found["q0"]}


def test_what_a_method_cannot_score_is_left_out(model, tiny_processor, sides, embeddings):
    captions, clips = sides
    search = ScalarSearch(model, tiny_processor, "tests/tiny", score_options={"method": "audio"})
    found = ask(search, "t2va", captions.select([0]), clips, top_k=NUM_CLIPS)
    audible = [name for name, mask in zip(clips["id"], embeddings.modality_mask[:, 1].tolist(), strict=True) if mask]
    assert 0 < len(audible) < NUM_CLIPS and set(found["q0"]) == set(audible)


def test_every_form_of_a_clip_gives_the_same_scores(model, tiny_processor, sides):
    captions, clips = sides
    rows = [row for row in clips if row["video"] is not None and row["audio"] is not None][:3]
    paths = {name: [row[name] for row in rows] for name in ("id", "video", "audio")}
    contents = {"id": paths["id"]}
    arrays = {"id": paths["id"], "video": paths["video"], "audio": []}
    for name in ("video", "audio"):
        contents[name] = [{"bytes": Path(path).read_bytes(), "path": Path(path).name} for path in paths[name]]
    for path in paths["audio"]:
        arrays["audio"].append({"array": read_audio(path), "sampling_rate": 16_000})
    corpora = [
        Dataset.from_dict(paths),
        Dataset.from_dict(paths).cast_column("video", Video()).cast_column("audio", Audio()),
        Dataset.from_dict(contents),
        Dataset.from_dict(arrays),
    ]
    search = ScalarSearch(model, tiny_processor, "tests/tiny", num_workers=1)
    expected, *found = [ask(search, "t2va", captions.select(range(4)), corpus) for corpus in corpora]
    for other in found:
        for query in expected:
            assert other[query] == pytest.approx(expected[query], abs=1e-6)


@pytest.mark.parametrize("category", ["i2t", "t2it", "vt2v", "va2va"])
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
    captions, clips = sides[0], sides[1].filter(lambda row: row["video"] and row["audio"])
    kept = mask_modalities(clips["id"], torch.ones(len(clips), 2, dtype=torch.bool), rate)
    cells = {"id": clips["id"]}
    for name, column in zip(("video", "audio"), kept.T.tolist(), strict=True):
        cells[name] = [cell if is_kept else None for cell, is_kept in zip(clips[name], column, strict=True)]
    search = ScalarSearch(model, tiny_processor, "tests/tiny")
    expected = ask(search, "t2va", captions, Dataset.from_dict(cells), top_k=100)
    masked = Masked(search, rate)
    found = ask(masked, "t2va", captions, clips, top_k=100)
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
    passed = {name for name, status in found.items() if isinstance(status, TaskResult)}
    assert passed >= {
        "MockVideoRetrievalT2V",
        "MockVideoRetrievalV2T",
        "MockRetrievalTask",
        "MockInstructionRetrieval",
    }
    with pytest.raises(ValueError, match="has the revision"):
        load_search("tests/tiny", "0" * 40, str(tiny_model_dir), "cpu")
