"""What leaves a folder when a model or an adapter is published, and what never does."""

import json
import pickle
import shutil

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file

from hub_cards.models import find_base, stage_adapter, stage_model
from hub_cards.publishing import PublishError
from modeling_scalar import ScalarModel, ScalarProcessor, load_model
from modeling_scalar.loading_scalar import weight_digests

CODE = {
    *("aggregation_scalar.py", "baseline_scores_scalar.py", "configuration_scalar.py", "pairs_scalar.py"),
    *("feature_extraction_scalar.py", "image_processing_scalar.py", "media_scalar.py", "modeling_beats.py"),
    *("modeling_scalar.py", "processing_scalar.py"),
}
PROCESSOR = {"processor_config.json", "tokenizer.json", "tokenizer_config.json"}


@pytest.fixture
def staged(tmp_path):
    (tmp_path / "staged").mkdir()
    return tmp_path / "staged"


@pytest.fixture
def model_dir(tmp_path, tiny_model_dir):
    return shutil.copytree(tiny_model_dir, tmp_path / "model")


@pytest.fixture
def adapter_dir(tmp_path, model_dir, tiny_processor):
    """An adapter as a run leaves it, with what must stay here."""
    folder = tmp_path / "run"
    base, _ = load_model(model_dir, aggregation="gram")
    config = LoraConfig(
        task_type="FEATURE_EXTRACTION",
        r=2,
        target_modules=r"text_model\..*\.query",
        modules_to_save=["text_projection"],
    )
    model = get_peft_model(base, config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0))
    model.save_pretrained(folder)
    base.config.save_pretrained(folder)
    tiny_processor.save_pretrained(folder)
    (folder / "recipe.json").write_text(json.dumps({"model": str(model_dir), "seed": 1, "output_dir": "runs/x"}))
    (folder / "training_args.bin").write_bytes(pickle.dumps({"hub_token": "secret"}))
    (folder / "README.md").write_text("[More Information Needed]")
    (folder / "checkpoint-2").mkdir()
    (folder / "checkpoint-2" / "optimizer.pt").write_bytes(b"state")
    write_result(folder / "checkpoint-2" / "results", folder)
    write_result(folder / "results", folder)
    return folder


def write_result(folder, model, benchmark="miniature", sha256="a" * 64, weights=None, **changes):
    figures = {"text_to_video_recall_at_1": 12.5, "video_to_text_recall_at_1": 10.0}
    rate = {"rate": 0.0, "methods": {"gram": figures}, "best_pathway": {}, "aggregation_gain": {"gram": 1.0}}
    protocol = {"num_queries": 2, "num_clips": 2, "num_pairs": 2, "mask_seed": 0, "tie_rule": "against"}
    result = {
        "label": "gram", "seed": 1, "model": str(model), "benchmark": benchmark, "split": "test", "task": "retrieval",
        "score": {"method": "gram", "query_temperature": 0.1}, "retrieval": protocol | {"rates": [rate]},
        "two_stage": [], "latent": None, "left_out": [], "problems": [f"{folder}/clips/b.mp4: no sound"],
        "gallery": {"num_clips": 2, "ids": ["/data/a.mp4", "b"], "presence": [[1, 1, 1], [1, 0, 0]], "sha256": sha256},
        "embedded": {"model": str(model), "weights": weight_digests(model) if weights is None else weights},
        "versions": {"torch": "2"}, "source": None, "date": "2026-01-01", "arguments": {"root": "/home/me/data/x"},
    }  # fmt: skip
    (folder / "report").mkdir(parents=True)
    (folder / "results.json").write_text(json.dumps(result | changes))
    (folder / "report" / "retrieval.csv").write_text("a,b\n")
    (folder / "report" / "gain.png").write_bytes(b"\x89PNG")
    (folder / "queries.parquet").write_bytes(b"PAR1")
    (folder / "embeddings").mkdir()


def names(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}


def test_of_a_run_only_what_others_need_is_staged(adapter_dir, staged, model_dir):
    stage_adapter(adapter_dir, staged, "user/base", "f" * 40)
    result = "results/miniature-test-aaaaaaaa"
    assert names(staged) == CODE | PROCESSOR | {
        *("adapter_config.json", "adapter_model.safetensors", "config.json", "recipe.json"),
        *(f"{result}/results.json", f"{result}/report/retrieval.csv", f"{result}/report/gain.png"),
    }
    adapter = json.loads((staged / "adapter_config.json").read_text())
    assert (adapter["base_model_name_or_path"], adapter["revision"]) == ("user/base", "f" * 40)
    assert adapter["r"] == 2
    before = load_file(adapter_dir / "adapter_model.safetensors")
    assert before.keys() == load_file(staged / "adapter_model.safetensors").keys()
    config = json.loads((staged / "config.json").read_text())
    assert config["aggregation"] == "gram" and config["auto_map"] == {
        "AutoConfig": "configuration_scalar.ScalarConfig",
        "AutoModel": "modeling_scalar.ScalarModel",
    }
    for file in staged.rglob("*.json"):
        if file.name != "tokenizer.json":
            assert str(model_dir.parent) not in file.read_text(), f"{file.name} names a folder of this machine"
    written = json.loads((staged / result / "results.json").read_text())
    assert written["arguments"] == {"root": "x"} and written["problems"] == ["b.mp4: no sound"]
    assert written["gallery"]["ids"] == ["/data/a.mp4", "b"]  # they are hashed, and stay
    assert json.loads((staged / "recipe.json").read_text()) == {"model": "model", "seed": 1, "output_dir": "runs/x"}


def test_a_whole_model_is_staged_with_the_code_of_this_version(model_dir, staged):
    (model_dir / "modeling_scalar.py").write_text("raise SystemExit")
    config = json.loads((model_dir / "config.json").read_text())
    config["auto_map"] = {"AutoModel": "somebody/else--modeling.Model"}
    (model_dir / "config.json").write_text(json.dumps(config))
    stage_model(model_dir, staged)
    assert names(staged) == CODE | PROCESSOR | {"config.json", "model.safetensors"}
    assert "SystemExit" not in (staged / "modeling_scalar.py").read_text()
    assert json.loads((staged / "config.json").read_text())["auto_map"]["AutoModel"] == "modeling_scalar.ScalarModel"
    assert isinstance(ScalarProcessor.from_pretrained(staged), ScalarProcessor)


def test_a_sharded_model_keeps_its_index(tiny_model, tiny_processor, tmp_path, staged, batch):
    tiny_model.save_pretrained(tmp_path / "sharded", max_shard_size="60KB")
    tiny_processor.save_pretrained(tmp_path / "sharded")
    stage_model(tmp_path / "sharded", staged)
    assert len(list(staged.glob("model-*.safetensors"))) > 1
    with torch.no_grad():
        assert torch.equal(ScalarModel.from_pretrained(staged)(**batch).scores, tiny_model(**batch).scores)


def test_a_merged_model_scores_as_the_adapter(adapter_dir, model_dir, staged, batch):
    stage_model(adapter_dir, staged, merge=True)
    merged, adapted = ScalarModel.from_pretrained(staged).eval(), load_model(adapter_dir)[0]
    with torch.no_grad():
        scores, expected = merged(**batch).scores, adapted(**batch).scores
        base = load_model(model_dir, aggregation="gram")[0](**batch).scores
    torch.testing.assert_close(scores, expected, atol=1e-6, rtol=0)
    assert (scores - base).abs().max() > 1e-3 and merged.config.aggregation == "gram"
    assert "adapter_config.json" not in names(staged)
    assert json.loads((staged / "merge.json").read_text()) == {"base_model": "model", "base_model_revision": None}
    assert (staged / "results" / "miniature-test-aaaaaaaa").is_dir()  # measured with the adapter that was merged


def test_results_of_other_weights_are_refused(adapter_dir, staged):
    write_result(adapter_dir / "old", adapter_dir, sha256="b" * 64, weights={"adapter_model.safetensors": "0" * 64})
    with pytest.raises(ValueError, match="measured with other weights"):
        stage_adapter(adapter_dir, staged, "user/base", None)


def test_results_in_the_folder_of_another_model_are_its_own(adapter_dir, staged, tmp_path):
    """Another run beneath this one, and what `--dry-run` writes when it is called in the folder of the run."""
    stage_adapter(adapter_dir, staged, "user/base", None)
    shutil.copytree(staged, adapter_dir / "published" / "adapter")
    write_result(adapter_dir / "other" / "results", adapter_dir, weights={"adapter_model.safetensors": "0" * 64})
    shutil.copy(adapter_dir / "config.json", adapter_dir / "other")
    (tmp_path / "again").mkdir()
    stage_adapter(adapter_dir, tmp_path / "again", "user/base", None)
    assert names(tmp_path / "again") == names(staged)


def test_coordinates_of_codecarbon_stay_here(adapter_dir, staged):
    columns = "timestamp,emissions,energy_consumed,duration,region,longitude,latitude,codecarbon_version"
    row = '2026-01-01,0.1,0.2,3,"upper, bavaria",11.5820,48.1351,3.0'
    (adapter_dir / "emissions.csv").write_text(f"{columns}\n{row}\n")
    stage_adapter(adapter_dir, staged, "user/base", None)
    assert (staged / "emissions.csv").read_text() == (
        "timestamp,emissions,energy_consumed,duration,region,codecarbon_version\n"
        '2026-01-01,0.1,0.2,3,"upper, bavaria",3.0\n'
    )


def test_results_can_be_chosen(adapter_dir, staged, tmp_path):
    write_result(tmp_path / "elsewhere", adapter_dir, benchmark="msrvtt")
    stage_adapter(adapter_dir, staged, "user/base", None, results=[tmp_path / "elsewhere" / "results.json"])
    assert [path.name for path in (staged / "results").iterdir()] == ["msrvtt-test-aaaaaaaa"]
    with pytest.raises(FileNotFoundError, match="no results.json at .*run/nowhere"):
        (staged / "adapter_model.safetensors").unlink()
        stage_adapter(adapter_dir, staged, "user/base", None, results=[adapter_dir / "nowhere"])


def test_two_results_of_one_gallery_are_refused(adapter_dir, staged):
    write_result(adapter_dir / "again", adapter_dir)
    with pytest.raises(ValueError, match="--results"):
        stage_adapter(adapter_dir, staged, "user/base", None)


def damaged(folder, name, content=b"no"):
    (folder / name).write_bytes(content)


@pytest.mark.parametrize(
    ("kind", "damage", "error", "message"),
    [
        ("model", lambda f: shutil.rmtree(f), FileNotFoundError, "There is no folder"),
        ("model", lambda f: (f / "config.json").unlink(), ValueError, "holds no config.json: it is no saved model"),
        ("model", lambda f: (f / "model.safetensors").unlink(), ValueError, r"holds no weights \(model\*"),
        (
            "model",
            lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"),
            ValueError,
            "only .'pytorch_model.bin'., which are pickles",
        ),
        ("model", lambda f: damaged(f, "model.safetensors"), ValueError, "is not a safetensors file"),
        ("model", lambda f: (f / "processor_config.json").unlink(), ValueError, "holds no processor"),
        ("adapter", lambda f: (f / "adapter_config.json").unlink(), ValueError, "no adapter_config.json"),
        ("adapter", lambda f: (f / "config.json").unlink(), ValueError, "holds no config.json, the configuration"),
        ("adapter", lambda f: damaged(f, "recipe.json"), ValueError, "recipe.json is not JSON"),
        ("adapter", lambda f: damaged(f, "results/results.json", b"{}"), ValueError, "is not a result"),
    ],
)
def test_what_is_missing_or_broken_is_named(adapter_dir, model_dir, staged, kind, damage, error, message):
    damage(model_dir if kind == "model" else adapter_dir)
    with pytest.raises(error, match=message):
        if kind == "model":
            stage_model(model_dir, staged)
        else:
            stage_adapter(adapter_dir, staged, "user/base", None)


def test_an_adapter_is_not_taken_for_a_model(adapter_dir, model_dir, staged):
    with pytest.raises(ValueError, match="holds an adapter: publish it with push-adapter, or .* --merge"):
        stage_model(adapter_dir, staged)
    with pytest.raises(ValueError, match="holds no adapter that could be merged"):
        stage_model(model_dir, staged, merge=True)


# The base ------------------------------------------------------------------------------------------------------------


def put_on_hub(hub, repo_id, folder):
    hub.api().create_repo(repo_id)
    return hub.api().upload_folder(repo_id=repo_id, folder_path=folder).oid


def record(folder, endpoint, revision, repo_id="user/base"):
    (folder / "hub.json").write_text(json.dumps({"endpoint": endpoint, "repo_id": repo_id, "revision": revision}))


def test_the_base_is_found_where_its_folder_was_pushed(hub, adapter_dir, model_dir):
    commit = put_on_hub(hub, "user/base", model_dir)
    record(model_dir, hub.url, commit)
    assert find_base(hub.api(), adapter_dir, None) == ("user/base", commit)
    with hub.offline():
        assert find_base(hub.api(), adapter_dir, None, offline=True) == ("user/base", commit)


@pytest.mark.parametrize("endpoint", [None, "https://huggingface.co"])
def test_a_base_that_was_not_pushed_here_is_asked_for(hub, adapter_dir, model_dir, endpoint):
    if endpoint:
        record(model_dir, endpoint, "f" * 40)
    with pytest.raises(ValueError, match=f"push-model {model_dir} user/name.*--base"):
        find_base(hub.api(), adapter_dir, None)


def test_a_base_whose_folder_is_gone_is_asked_for(hub, adapter_dir, model_dir):
    commit = put_on_hub(hub, "user/base", model_dir)
    shutil.rmtree(model_dir)
    with pytest.raises(ValueError, match="which is gone.*--base"):
        find_base(hub.api(), adapter_dir, None)
    assert find_base(hub.api(), adapter_dir, "user/base") == ("user/base", commit)


def test_a_folder_without_an_adapter_is_said_to_be_none(hub, adapter_dir, model_dir, tmp_path):
    with pytest.raises(ValueError, match="holds no adapter_config.json: it is no saved adapter.$"):
        find_base(hub.api(), model_dir, None)
    with pytest.raises(FileNotFoundError, match="There is no folder"):
        find_base(hub.api(), tmp_path / "nowhere", None)
    (adapter_dir / "adapter_config.json").rename(adapter_dir / "checkpoint-2" / "adapter_config.json")
    with pytest.raises(ValueError, match=r"did not finish left \['checkpoint-2'\]: resume it, or publish"):
        find_base(hub.api(), adapter_dir, None)


def test_the_base_has_the_name_that_the_hub_gives(hub, adapter_dir, model_dir):
    commit = put_on_hub(hub, "user/base", model_dir)
    there = {"Location": "/api/models/user/base?blobs=true"}
    with hub.fail("GET", "/api/models/user/old", status=307, headers=there):
        assert find_base(hub.api(), adapter_dir, "user/old") == ("user/base", commit)


def test_a_private_base_is_spoken_of(hub, adapter_dir, model_dir, caplog):
    put_on_hub(hub, "user/base", model_dir)
    find_base(hub.api(), adapter_dir, "user/base")
    assert not caplog.records
    hub.repo("user/base").private = True
    find_base(hub.api(), adapter_dir, "user/base")
    assert "user/base is private: only who may read it can load an adapter of it." in caplog.text


def test_a_base_with_other_weights_is_refused(hub, adapter_dir, model_dir):
    commit = put_on_hub(hub, "user/base", model_dir)
    record(model_dir, hub.url, commit)
    weights = load_file(model_dir / "model.safetensors")
    save_file({name: value + 1 if value.is_floating_point() else value for name, value in weights.items()},
              model_dir / "model.safetensors")  # fmt: skip
    with pytest.raises(ValueError, match="is not the base that this adapter was trained on"):
        find_base(hub.api(), adapter_dir, None)


def test_a_base_that_was_loaded_from_the_hub_keeps_its_revision(hub, adapter_dir, model_dir):
    old = put_on_hub(hub, "user/base", model_dir)
    new = hub.api().upload_file(path_or_fileobj=b"x", path_in_repo="notes.txt", repo_id="user/base").oid
    config = json.loads((adapter_dir / "adapter_config.json").read_text())
    for revision, expected in ((None, new), (old, old)):
        content = config | {"base_model_name_or_path": "user/base", "revision": revision}
        (adapter_dir / "adapter_config.json").write_text(json.dumps(content))
        assert find_base(hub.api(), adapter_dir, None) == ("user/base", expected)


def test_a_base_without_weights_is_refused(hub, adapter_dir):
    hub.api().create_repo("user/empty")
    (adapter_dir / "adapter_config.json").write_text(
        json.dumps({"base_model_name_or_path": "user/empty", "revision": None})
    )
    with pytest.raises(PublishError, match="user/empty holds no weights of a model"):
        find_base(hub.api(), adapter_dir, None)
