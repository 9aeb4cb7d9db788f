"""`scalar eval mteb`: made clips as tasks of mteb, a tiny joint encoder, and our own metrics beside mteb's."""

import json
import sys

import pytest
import torch
from datasets import Dataset

from eval.__main__ import app
from eval.benchmarks.registry import load_benchmark
from eval.embedding.embed_dataset import embed_dataset
from eval.embedding.embeddings import FUSED
from eval.metrics.retrieval.ranking import relevant_ranks, retrieval_metrics
from eval.miniature import generate
from eval.settings import MtebConfig
from gallery.decoding import sandboxed
from modeling_scalar import load_model
from modeling_scalar.scores_scalar import retrieval_scores
from tests.joint_encoders import CHAT_TEMPLATE, write_joint_encoder

pytestmark = pytest.mark.e2e

mteb = pytest.importorskip("mteb")

from mteb.results import TaskResult  # noqa: E402

from eval.adapters import mteb_model, mteb_run  # noqa: E402
from eval.adapters.mteb_run import Comparison, find_tasks  # noqa: E402
from tests.eval.adapters.test_mteb_model import make_task  # noqa: E402

WAYS = {"scalar", "uniform", FUSED, "video", "audio"}
FEW = 4  # clips of the other tasks
BOTH, SILENT, TEXTS = "MiniatureT2VARetrieval", "MiniatureT2VRetrieval", "MiniatureVA2TRetrieval"


@pytest.fixture(scope="module", autouse=True)
def no_abstention():
    """mteb's areas under curves of abstention take ten times as long as everything else."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mteb._evaluators.retrieval_metrics.nauc", lambda *arguments: 0.0)
        yield


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """With one frame of a clip, which is nearly all that it costs."""
    folder = tmp_path_factory.mktemp("encoders")
    model, processor = load_model(write_joint_encoder(folder / "published", chat_template=CHAT_TEMPLATE))
    processor.num_frames = 1
    for part in (model, processor):
        part.save_pretrained(folder / "encoder")
    return folder / "encoder"


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    """Clips with picture and sound, and one that lacks either, without subtitles, as mteb has none.

    More than ten: what a way cannot score is ranked last here and not at all by mteb.
    """
    root = generate(
        tmp_path_factory.mktemp("made") / "set", num_train=0, num_validation=0, num_test=24, seed=5, num_proc=1
    )
    dataset = load_benchmark("miniature", root, "test").remove_columns("subtitle")
    whole = [row for row in dataset if row["video_path"] and row["audio_path"]][:9]
    part = [next(row for row in dataset if row["video_path"] and not row["audio_path"])]
    part += [next(row for row in dataset if row["audio_path"] and not row["video_path"])]
    return Dataset.from_list([row | {"subtitle": None} for row in whole + part])


@pytest.fixture(scope="module")
def tasks(clips):
    """Three tasks in mteb's registry: of video and sound, of video alone, and from clips to texts."""
    captions = Dataset.from_dict({"id": [f"q{row}" for row in range(len(clips))], "text": clips["caption"][:]})
    media = Dataset.from_dict(
        {"id": clips["video_id"][:], "video": clips["video_path"][:], "audio": clips["audio_path"][:]}
    )
    to_clip = {f"q{row}": {name: 1} for row, name in enumerate(clips["video_id"])}
    some = dict(list(to_clip.items())[:FEW])
    to_text = {name: {query: 1} for query, (name,) in some.items()}
    made = {
        BOTH: make_task("t2va", captions, media, to_clip),
        SILENT: make_task("t2v", captions.select(range(FEW)), media.select(range(FEW)), some),
        TEXTS: make_task("va2t", media.select(range(FEW)), captions.select(range(FEW)), to_text),
    }  # fmt: skip
    registry = sys.modules["mteb.get_tasks"]._TASKS_REGISTRY
    with pytest.MonkeyPatch.context() as patch:
        for name, task in made.items():
            kind = type(task)
            patch.setattr(kind, "metadata", kind.metadata.model_copy(update={"name": name}))
            patch.setitem(registry, name, kind)
        yield made


def run(*arguments):
    app(["mteb", *map(str, arguments)], standalone_mode=False)


@pytest.fixture(scope="module")
def result(encoder, tasks, tmp_path_factory):
    """The command's folder and what it printed, and how often clips were read."""
    output, counts, printed = tmp_path_factory.mktemp("mteb") / "results of mteb", [], []
    with pytest.MonkeyPatch.context() as patch:
        for name in ("embed_rows", "embed_fused_rows", "embed_captions"):
            original = getattr(mteb_model, name)
            patch.setattr(
                mteb_model, name, lambda *given, call=original, name=name: counts.append(name) or call(*given)
            )
        patch.setattr("eval.__main__.show", lambda *lines: printed.extend(lines))
        run("--model", encoder, "--tasks", f"{BOTH},{SILENT}", "--tasks", TEXTS, "--output", output)
    return output, printed, counts


@pytest.fixture(scope="module")
def expected(encoder, clips):
    """Our metrics of each way: nDCG at 10 of both directions, and text to video with nothing but pictures."""
    model, processor = load_model(encoder)
    embeddings = embed_dataset(model, processor, clips, progress=False)
    texts, parts, mask = embeddings.text_embeds, embeddings.modality_embeds, embeddings.modality_mask
    processor = sandboxed(processor)
    read = [
        processor.read_clip(row["video_path"], audio=row["audio_path"], subtitle=None, processed=True) for row in clips
    ]
    with torch.no_grad():
        fused = torch.stack(
            [
                model.get_fused_features(**processor.fuse([clip], mask[row : row + 1]))[0]
                for row, clip in enumerate(read)
            ]
        )
    options = model.score_options()

    def scores(way, rows, keep):
        if way == FUSED and len(keep) > 1:
            return texts[rows] @ fused[rows].T
        mask_here = mask[rows] & torch.tensor([name in keep for name in embeddings.modalities])
        way = keep[0] if way == FUSED else way
        given = options | {"method": way}
        return retrieval_scores(texts[rows], parts[rows], mask_here, modalities=embeddings.modalities, **given)

    def ndcg(values):
        pairs = torch.arange(len(values))[:, None].expand(-1, 2)
        return retrieval_metrics(relevant_ranks(values, pairs))["ndcg_at_10"] / 100

    everything, some, both = torch.arange(len(clips)), torch.arange(FEW), ["video", "audio"]
    return {
        BOTH: {way: ndcg(scores(way, everything, both)) for way in WAYS},
        SILENT: {way: ndcg(scores(way, some, ["video"])) for way in WAYS - {"audio"}},
        TEXTS: {way: ndcg(scores(way, some, both).T) for way in WAYS},
    }


def test_every_way_is_a_model_of_mteb_with_the_metrics_that_we_find(result, expected):
    output, _, _ = result
    folders = {path.name.removeprefix("local__encoder-"): path for path in (output / "results").iterdir()}
    assert set(folders) == WAYS
    for way, folder in folders.items():
        (revision,) = folder.iterdir()
        meta = json.loads((revision / "model_meta.json").read_text())
        assert (meta["name"], meta["revision"], meta["loader"]) == (f"local/encoder-{way}", revision.name, "load_way")
        assert meta["experiment_kwargs"] is None and meta["modalities"] == ["text", "video", "audio"]
        for task, scores in expected.items():
            path = revision / f"{task}.json"
            assert path.is_file() == (way in scores), (task, way)
            if way in scores:
                assert TaskResult.from_disk(path).get_score() == pytest.approx(scores[way], abs=2e-5), (task, way)
    assert len(set(expected[BOTH].values())) == len(WAYS)  # no two ways by chance the same
    loaded = mteb.ResultCache(output).load_results(only_main_score=False)
    assert {found.model_name for found in loaded.model_results} == {f"local/encoder-{way}" for way in WAYS}


def test_clips_are_embedded_once_for_all_ways(result):
    _, _, counts = result
    assert counts.count("embed_rows") == counts.count("embed_captions") == 3  # once for each task
    assert counts.count("embed_fused_rows") == 3


def test_the_table_has_a_row_for_each_task_and_a_column_for_each_way(result, expected):
    output, printed, _ = result
    assert printed[-1] == f"mteb's results are in {output / 'results'}."
    assert (output / "table.txt").read_text().splitlines() == printed[:-2]
    header, *rows, mean = (line.split("  ") for line in printed[:5])
    cells = [[cell.strip() for cell in line if cell.strip()] for line in (header, *rows, mean)]
    assert cells[0] == ["task", "metric", "SCALAR", "equal weights", "fused", "video", "audio", "best single"]
    for (task, scores), row in zip(expected.items(), cells[1:4], strict=True):
        assert row[:2] == [task, "ndcg_at_10"]
        shown = [scores.get(way) for way in ("scalar", "uniform", FUSED, "video", "audio")]
        assert [cell if cell == "-" else float(cell) for cell in row[2:7]] == [
            "-" if value is None else pytest.approx(value, abs=6e-5) for value in shown
        ]
        best = max((name for name in ("video", "audio") if name in scores), key=scores.get)
        value, name = row[7].split(" ")
        assert name == best and float(value) == pytest.approx(scores[best], abs=6e-5)
    assert cells[4][0] == "mean" and cells[4][-2] == "-"  # not every task has sound
    assert float(cells[4][1]) == pytest.approx(sum(scores["scalar"] for scores in expected.values()) / 3, abs=6e-5)
    assert "chosen by the scores shown, which flatters it" in printed[6]


def test_what_is_there_is_not_computed_again(result, encoder, monkeypatch):
    output, printed, _ = result
    again = []
    monkeypatch.setattr("eval.__main__.show", lambda *lines: again.extend(lines))
    monkeypatch.setattr(mteb_model, "embed_rows", lambda *given: pytest.fail("clips were embedded again"))
    run("--model", encoder, "--tasks", f"{BOTH},{SILENT},{TEXTS}", "--output", output)
    assert again == printed


def test_another_precision_has_results_of_its_own(result, encoder):
    output, _, _ = result
    config = MtebConfig(
        model_path=str(encoder), tasks=[SILENT], output=output, fused=False, model_dtype="bfloat16", progress=False
    )
    (row,) = mteb_run.evaluate(config).rows
    assert set(row["scores"]) == {"scalar", "uniform", "video"}
    (path,) = (output / "results" / "local__encoder-scalar").rglob(f"*bfloat16*/{SILENT}.json")
    assert TaskResult.from_disk(path).get_score() == row["scores"]["scalar"]


def test_a_way_is_a_model_that_mteb_loads_and_its_mock_run_passes(result):
    """What needs torchcodec, made sound in mteb's own classes, is skipped by mteb where that is not installed, and so
    `mteb.get_model` would ask for it."""
    meta = mteb.get_model_meta("local/encoder-scalar", fetch_from_hf=False)
    model = meta.loader(meta.name, revision=meta.revision, **meta.loader_kwargs)
    assert model.score_options["method"] == "scalar" and model.mteb_model_meta.name == "local/encoder-scalar"
    found = mteb.mock_run(model)
    assert found.all_passed, found.to_markdown()
    passed = {name for name, status in found.items() if isinstance(status, TaskResult)}
    assert passed >= {
        "MockVideoRetrievalT2V",
        "MockVideoRetrievalV2T",
        "MockRetrievalTask",
        "MockInstructionRetrieval",
    }
    meta = mteb.get_model_meta("local/encoder-fused", fetch_from_hf=False)
    assert meta.loader(meta.name, revision=meta.revision, **meta.loader_kwargs).fuses


def test_names_of_benchmarks_and_tasks_are_found_with_their_commas():
    given = ["MVEB(text, video, v1), MSVDT2VRetrieval", "VALOR32KT2VARetrieval"]
    found = {task.metadata.name: of_benchmark for task, of_benchmark in find_tasks(given)}
    assert len(found) == 21 and found["MSVDV2TRetrieval"] is True and found["MSVDT2VRetrieval"] is False
    tasks = {task.metadata.name: task.metadata for task, _ in find_tasks(["MVEB(text, video, v1)"])}
    fit = [name for name, metadata in tasks.items() if mteb_model.why_not(metadata, ["video", "audio"]) is None]
    assert len(tasks) == 19 and len(fit) == 8 and all("Retrieval" in name for name in fit)
    assert mteb_model.why_not(tasks["VGGSoundV"], ["video"]) == (
        "The task VGGSoundV is one of VideoClassification; retrieval and reranking can be scored."
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["VALOR32KT2VARetrieva"], "neither a benchmark nor a task 'VALOR32KT2VARetrieva'. Did you mean .*Retrieval'"),
        (["MVEB(text, video, v2)"], r"neither a benchmark nor a task .*Did you mean 'MVEB\(text, video, v1\)'"),
        (["no such thing at all"], "neither a benchmark nor a task 'no such thing at all'.$"),
        ([" , "], "Name at least one"),
    ],
)
def test_an_unknown_task_is_refused(given, message):
    with pytest.raises(ValueError, match=message):
        find_tasks(given)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["VGGSoundV", BOTH], "The task VGGSoundV is one of VideoClassification; retrieval"),
        (["VATEXVT2ARetrieval"], r"goes from \['text', 'video'\] to \['audio'\]"),
        (["MVEB(video, v1)"], "The task AVMemeVideoClassification is one of .* The task BreakfastClassification"),
    ],
)
def test_a_task_that_is_none_for_this_model_is_refused(encoder, tasks, tmp_path, names, message):
    with pytest.raises(ValueError, match=message):
        mteb_run.evaluate(MtebConfig(model_path=str(encoder), tasks=names, output=tmp_path))
    assert not list(tmp_path.iterdir())


def test_a_task_of_a_modality_that_the_model_lacks_says_so(tasks):
    metadata = type(tasks[BOTH]).metadata
    assert mteb_model.why_not(metadata, ["video", "subtitle"]) is None
    assert mteb_model.why_not(metadata, ["subtitle"]) == (
        f"The task {BOTH} needs audio or video; the model embeds subtitle."
    )


def test_what_is_left_out_of_a_benchmark_stands_under_the_table():
    scores = {"scalar": 0.5, "uniform": 0.4, "video": 0.3, "subtitle": 0.45}
    found = Comparison(
        ["video", "subtitle"], [{"task": "A", "metric": "ndcg_at_10", "scores": scores}], ["B is none."]
    )
    assert found.table().splitlines() == [
        "task  metric      SCALAR  equal weights  video   subtitle  best single",
        "A     ndcg_at_10  0.5000  0.4000         0.3000  0.4500    0.4500 subtitle",
        "",
        "The best single modality of a task is chosen by the scores shown, which flatters it.",
        "Left out: B is none.",
    ]


def test_without_mteb_the_extra_is_named(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "mteb", None)
    monkeypatch.delitem(sys.modules, "eval.adapters.mteb_run")
    with pytest.raises(SystemExit):
        run("--model", "model", "--tasks", "VALOR32KT2VARetrieval")
    assert capsys.readouterr().err.endswith('is not installed: `pip install "scalar-retrieval[mteb]"`.\n')


def test_a_name_without_an_organisation_is_refused():
    with pytest.raises(ValueError, match="an organisation and a model separated by a slash, got 'scalar'"):
        MtebConfig(model_path="model", tasks=["VALOR32KT2VARetrieval"], name="scalar")
