"""Trained here, published by the commands, used elsewhere: the same scores, the metrics of the results on the cards.

"Elsewhere" is an environment of links to only what a card tells people to install; the Hub is that of these tests.
"""

import json
import os
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from huggingface_hub import hf_hub_download
from typer.testing import CliRunner

from evidence.building import build_backbone
from evidence.miniature.generation import generate
from scalar_retrieval import index
from scalar_retrieval.eval.benchmarks.registry import load_benchmark
from scalar_retrieval.eval.run import evaluate
from scalar_retrieval.gallery.gallery import GalleryWriter
from scalar_retrieval.hub_cards.__main__ import app
from scalar_retrieval.hub_cards.privacy import check_card
from scalar_retrieval.modeling_scalar import load_model
from scalar_retrieval.trainer.recipe import parse_arguments
from scalar_retrieval.trainer.run import _build_model, train
from scalar_retrieval.trainer.semantic_targets import make_semantic_targets
from tests.conftest import ROOT
from tests.hub_cards.clean_environment import CleanEnvironment
from tests.hub_cards.conftest import use_hub
from tests.hub_cards.folders import blocks
from tests.hub_cards.hub_server import HubServer
from tests.hub_cards.pushing import push_adapter, push_gallery, push_metric, push_model, push_space

pytestmark = pytest.mark.e2e

RECIPES = ROOT / "recipes"

# Two texts and two clips, one without picture and one without sound: the same here and elsewhere.
INPUTS = """
import torch
generator = torch.Generator().manual_seed(0)
frames = torch.randint(0, 256, (6, 48, 64, 3), generator=generator, dtype=torch.uint8)
sound = 0.1 * torch.randn(16_000, generator=generator)
INPUTS = dict(
    text=["a low bell", "a red star, while somebody talks about tigers"],
    videos=[frames, None], audio=[None, sound], subtitles=["tigers sleep all day", "and so do we"],
)
"""


def train_run(folder, recipes, output, *options):
    fixed = ["--root", folder / "data", "--output_dir", output, "--per_device_train_batch_size", "8", "--use_cpu"]
    fixed += ["true", "--dataloader_num_workers", "0", "--report_to", "none", "--disable_tqdm", "true"]
    arguments = [*(RECIPES / f"{name}.yaml" for name in recipes), *fixed, *options]
    os.chdir(ROOT)
    assert train(*parse_arguments(list(map(str, arguments))))


@pytest.fixture(scope="module")
def made(unless_fast, tmp_path_factory):
    """A backbone, two adapters that score differently, evaluations, and a search gallery, in miniature."""
    folder = tmp_path_factory.mktemp("made")
    generate(folder / "data", num_train=24, num_validation=0, num_test=6, num_proc=1)
    targets = folder / "targets.safetensors"
    make_semantic_targets(load_benchmark("miniature", folder / "data", "train"), targets, "light", num_neighbors=4)
    build_backbone(folder / "data", folder / "new", seed=50)
    train_run(folder, ["miniature_backbone"], folder / "backbone", "--model", folder / "new", "--max_steps", "2")
    for name, recipes in (("adapter", ["miniature"]), ("gram", ["gram", "miniature"])):
        options = ("--model", folder / "backbone", "--semantic_targets", targets, "--max_steps", "3")
        train_run(folder, recipes, folder / name, *options, "--loss_warmup_steps", "1")
        settings = {"rates": (0.0, 0.5), "depths": (3,), "progress": False}
        evaluate(folder / name, "miniature", folder / "data", output=folder / name / "results", **settings)
    index(folder / "data" / "test", folder / "gallery", folder / "adapter")
    return folder


@pytest.fixture(scope="module")
def elsewhere(made, tmp_path_factory):
    """The Hub with all of it, and where it is used: `run(packages, script)`."""
    home = tmp_path_factory.mktemp("home")
    environments = {}
    with HubServer() as hub, pytest.MonkeyPatch.context() as patch:
        use_hub(hub, home, patch)
        api = hub.api()
        push_model(made / "backbone", "user/backbone", api=api)
        # A user gives a folder and a name, nothing else.
        done = CliRunner().invoke(app, ["adapter", str(made / "adapter"), "user/adapter"])
        assert done.exit_code == 0 and f"Published: {hub.url}/user/adapter/commit/" in done.stdout, done.output
        push_adapter(made / "gram", "user/gram", api=api)
        push_gallery(made / "adapter" / "results" / "embeddings", "user/store", api=api)
        push_gallery(made / "gallery", "user/videos", media=True, api=api)
        for metric in ("retrieval", "aggregation_gain"):
            source = ROOT / "eval" / "metrics" / metric
            push_metric(source, f"user/{metric}", api=api)
        push_space("user/demo", gallery="user/videos", api=api)

        def run(packages, script, **env):
            key = tuple(sorted(packages))
            if key not in environments:
                environments[key] = CleanEnvironment(tmp_path_factory.mktemp("site") / "packages", list(key))
            return environments[key].run(script, os.environ | env, tmp_path_factory.mktemp("cwd"))

        def card(repo_id, repo_type="model"):
            return Path(hf_hub_download(repo_id, "README.md", repo_type=repo_type, endpoint=hub.url)).read_text()

        yield SimpleNamespace(hub=hub, api=api, run=run, card=card)


def scores_of(model, processor):
    space = {}
    exec(INPUTS, space)
    with torch.no_grad():
        return model.eval()(**processor(**space["INPUTS"])).scores


def scores_here(name):
    """What this project makes of a model."""
    return scores_of(*load_model(name))


SCORE = (
    INPUTS
    + """
import json
from transformers import AutoConfig, AutoModel, AutoProcessor

def scores(model, repo_id="user/adapter"):
    processor = AutoProcessor.from_pretrained(repo_id, trust_remote_code=True)
    with torch.no_grad():
        return model.eval()(**processor(**INPUTS)).scores.tolist()

found = {}
"""
)
PEFT = SCORE + "from peft import AutoPeftModelForFeatureExtraction, PeftModel\n"
TOLD = "print(json.dumps(found))\n"

LOADED = {
    "user/backbone": "AutoModel.from_pretrained('user/backbone', trust_remote_code=True)",
    "adapter by peft": "AutoPeftModelForFeatureExtraction.from_pretrained('user/adapter', trust_remote_code=True)",
    "adapter by transformers": "AutoModel.from_pretrained('user/adapter', trust_remote_code=True)",
    "gram by transformers": "AutoModel.from_pretrained('user/gram', trust_remote_code=True)",
    "gram by its configuration": "AutoModel.from_pretrained('user/gram', trust_remote_code=True, "
    "config=AutoConfig.from_pretrained('user/gram', trust_remote_code=True))",
}


def test_the_same_scores_elsewhere_and_offline(elsewhere, made):
    """Every way to load and the snippets of adapters' cards, with torch, transformers and peft alone; then offline."""
    api = elsewhere.api
    commit = api.model_info("user/backbone").sha
    script = PEFT + "".join(f"found[{name!r}] = scores({load})\n" for name, load in LOADED.items())
    script += f"""
found["a revision"] = scores(AutoModel.from_pretrained("user/backbone", revision="{commit}", trust_remote_code=True))

base = AutoModel.from_pretrained("user/backbone", trust_remote_code=True)
several = PeftModel.from_pretrained(base, "user/adapter", adapter_name="one")
several.load_adapter("user/adapter", adapter_name="two")
several.set_adapter("two")
found["one of several"] = scores(several)

import importlib.util
found["strangers"] = [n for n in ("datasets", "av", "PIL", "modeling_scalar", "eval") if importlib.util.find_spec(n)]
"""
    packages = ["torch", "transformers>=5.23", "peft>=0.21"]
    snippets = snippets_of(elsewhere, ("user/adapter", "model"), ("user/gram", "model"))
    assert list(snippets) == [" ".join(packages)]
    printed = elsewhere.run(packages, "".join([script, *snippets.values(), TOLD]))
    assert "user/adapter\n" in printed and "user/gram\n" in printed
    found = json.loads(printed.splitlines()[-1])
    assert found.pop("strangers") == []
    here = {name: scores_here(made / name) for name in ("backbone", "adapter", "gram")}
    expected = {
        "user/backbone": here["backbone"],
        "a revision": here["backbone"],
        "adapter by peft": here["adapter"],
        "adapter by transformers": here["adapter"],
        "one of several": here["adapter"],
        "gram by transformers": here["gram"],
        "gram by its configuration": here["gram"],
    }
    assert found.keys() == expected.keys()
    for name, scores in expected.items():
        difference = (torch.tensor(found[name]) - scores).abs().max()
        assert difference <= 1e-6, f"{name}: {difference}"
    assert len({tuple(scores.flatten().tolist()) for scores in here.values()}) == 3  # all are different

    some = ("user/backbone", "adapter by peft", "gram by its configuration")
    script = PEFT + "".join(f"found[{name!r}] = scores({LOADED[name]})\n" for name in some) + TOLD
    with elsewhere.hub.offline():
        again = json.loads(elsewhere.run(packages, script, HF_HUB_OFFLINE="1").splitlines()[-1])
    assert again == {name: found[name] for name in some}


def test_the_programs_here_take_ids_of_the_hub_too(elsewhere, made, tmp_path, monkeypatch):
    """Evaluation, search and training read a published model as they read a folder."""
    monkeypatch.chdir(tmp_path)
    expected = scores_here(made / "adapter")
    torch.testing.assert_close(scores_here("user/adapter"), expected, atol=1e-6, rtol=0)
    settings = {"rates": (0.0,), "depths": (), "progress": False}
    result = evaluate("user/adapter", "miniature", made / "data", **settings)
    here = json.loads((made / "adapter" / "results" / "results.json").read_text())
    assert result["retrieval"]["rates"][0]["methods"] == here["retrieval"]["rates"][0]["methods"]
    assert result["embedded"]["weights"] == here["embedded"]["weights"]
    assert len(index(made / "data" / "test", "gallery", "user/adapter")) == 6
    # Training starts at the base that was trained on, whatever comes later.
    commit = elsewhere.api.model_info("user/backbone").sha
    for name in ("user/backbone", "user/adapter"):
        options = ["--benchmark", "miniature", "--root", "data", "--output_dir", "run", "--use_cpu", "true"]
        model, processor = _build_model(*parse_arguments(["--model", name, *options]))
        assert model.peft_config["default"].revision == commit
    torch.testing.assert_close(scores_of(model, processor), expected, atol=1e-6, rtol=0)


# Cards ---------------------------------------------------------------------------------------------------------------

CARDS = [
    ("user/backbone", "model"),
    ("user/adapter", "model"),
    ("user/gram", "model"),
    ("user/store", "dataset"),
    ("user/videos", "dataset"),
    ("user/retrieval", "space"),
    ("user/aggregation_gain", "space"),
    ("user/demo", "space"),
]


@pytest.mark.parametrize(("repo_id", "repo_type"), CARDS)
def test_what_was_published_keeps_the_rules_and_holds_no_stranger(elsewhere, repo_id, repo_type, tmp_path):
    files = elsewhere.hub.repo(repo_id, repo_type).files()
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    check_card((tmp_path / "README.md").read_text())
    assert len(elsewhere.hub.repo(repo_id, repo_type).commits) == 2  # the first commit is the Hub's own
    suffixes = {Path(name).suffix for name in files if name != ".gitattributes"}
    assert suffixes <= {".md", ".json", ".safetensors", ".py", ".csv", ".png", ".arrow", ".txt", ".mp4", ".srt", ""}
    local = [name for name, content in files.items() if str(tmp_path.parent).encode() in content]
    assert not local, f"{local} name folders of this machine"


def snippets_of(elsewhere, *cards):
    """The snippets of cards, which then tell the name, by the packages that the cards tell people to install."""
    scripts = {}
    for repo_id, repo_type in cards:
        text = elsewhere.card(repo_id, repo_type)
        *_, install = re.findall(r"^pip install (.*)$", text, re.MULTILINE)  # before it, of a gallery, our own
        snippets = "\n".join(blocks(text))
        assert f'"{repo_id}"' in snippets
        packages = install.replace('"', "")
        run = f"exec(compile({snippets!r}, {repo_id!r}, 'exec'), {{'__name__': '__main__'}})\nprint({repo_id!r})\n"
        scripts[packages] = scripts.get(packages, "") + run
    return scripts


@pytest.mark.parametrize(
    "cards",
    [
        [("user/backbone", "model")],
        [("user/store", "dataset"), ("user/videos", "dataset")],
    ],
    ids=["models", "galleries"],
)
def test_every_snippet_of_a_card_runs_where_only_its_packages_are(elsewhere, cards):
    scripts = snippets_of(elsewhere, *cards)
    printed = "".join(elsewhere.run(packages.split(), script) for packages, script in scripts.items())
    assert all(f"{repo_id}\n" in printed for repo_id, _ in cards)


@pytest.mark.parametrize("name", ["retrieval", "aggregation_gain"])
def test_the_examples_of_a_metric_give_the_results_that_they_show(elsewhere, name):
    text = elsewhere.card(f"user/{name}", "space")
    *_, install = re.findall(r"^pip install (.*)$", text, re.MULTILINE)
    script = f"import doctest\n__doc__ = {''.join(blocks(text))!r}\nprint(doctest.testmod())"
    printed = elsewhere.run(install.replace('"', "").split(), script)
    assert re.search(r"TestResults\(failed=0, attempted=[1-9]", printed), printed


def test_a_gallery_of_another_or_an_unknown_model_is_refused(elsewhere, made, tmp_path):
    store = made / "gram" / "results" / "embeddings"
    with pytest.raises(ValueError, match="user/adapter at .* has other weights than expected"):
        push_gallery(store, "user/wrong", model="user/adapter", api=elsewhere.api)
    # Evaluated as `runs/gone` in another working directory: a relative folder is not taken for an id of the Hub.
    store = shutil.copytree(store, tmp_path / "store")
    with GalleryWriter(store) as writer:
        writer.metadata["model"] = "runs/gone"
        writer.commit()
    with pytest.raises(OSError, match="The model runs/gone does not exist.*--model"):
        push_gallery(store, "user/wrong", api=elsewhere.api)
    assert ("dataset", "user/wrong") not in elsewhere.hub.repos
