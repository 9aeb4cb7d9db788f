"""Trained here, published by the commands, used elsewhere: the same scores, the metrics of the results on the cards.

"Elsewhere" is an environment of links to only what a card tells people to install; the Hub is that of these tests.
"""

import json
import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from huggingface_hub import hf_hub_download
from typer.testing import CliRunner

from scalar_retrieval import index
from scalar_retrieval.eval.run import evaluate
from scalar_retrieval.hub_cards.__main__ import app
from scalar_retrieval.modeling_scalar import load_model
from scalar_retrieval.trainer.recipe import parse_arguments
from scalar_retrieval.trainer.run import _build_model
from tests.conftest import ROOT
from tests.hub_cards.clean_environment import CleanEnvironment
from tests.hub_cards.conftest import use_hub
from tests.hub_cards.folders import blocks
from tests.hub_cards.hub_server import HubServer
from tests.hub_cards.pushing import push_adapter, push_gallery, push_model
from tests.test_training import make_line, overlay
from tests.test_training import run as train

pytestmark = pytest.mark.e2e

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


@pytest.fixture(scope="module")
def made(unless_fast, tmp_path_factory):
    """A backbone, two adapters that score differently, evaluations, and a search gallery, in miniature."""
    folder = make_line(tmp_path_factory.mktemp("made"))
    for name, recipes in (("adapter", []), ("gram", [ROOT / "recipes" / "gram.yaml"])):
        steps = ("--max_steps", "3", "--loss_warmup_steps", "1", "--output_dir", folder / name)
        assert train(*recipes, *overlay(folder), *steps)
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


LOAD = """
import json
from peft import AutoPeftModelForFeatureExtraction, PeftModel
from transformers import AutoConfig, AutoModel, AutoProcessor

remote = {"trust_remote_code": True}
found = {}

def tell(name, model):
    processor = AutoProcessor.from_pretrained("user/adapter", **remote)
    with torch.no_grad():
        found[name] = model.eval()(**processor(**INPUTS)).scores.tolist()

base = AutoModel.from_pretrained("user/backbone", revision="COMMIT", **remote)
tell("backbone", base)
tell("adapter by peft", AutoPeftModelForFeatureExtraction.from_pretrained("user/adapter", **remote))
tell("adapter by transformers", AutoModel.from_pretrained("user/adapter", **remote))
tell("gram by transformers", AutoModel.from_pretrained("user/gram", **remote))
config = AutoConfig.from_pretrained("user/gram", **remote)
tell("gram by its configuration", AutoModel.from_pretrained("user/gram", config=config, **remote))
several = PeftModel.from_pretrained(base, "user/adapter", adapter_name="one")
several.load_adapter("user/adapter", adapter_name="two")
several.set_adapter("two")
tell("adapter as one of several", several)
"""


def test_the_same_scores_elsewhere_and_offline(elsewhere, made):
    """Every way to load and the snippets of adapters' cards, with torch, transformers and peft alone; then offline."""
    script = INPUTS + LOAD.replace("COMMIT", elsewhere.hub.repo("user/backbone").head.sha)
    snippets = snippets_of(elsewhere, ("user/adapter", "model"), ("user/gram", "model"))
    ((packages, snippet),) = snippets.items()
    assert packages == "torch transformers>=5.23 peft>=0.21"
    printed = elsewhere.run(packages.split(), f"{script}{snippet}print(json.dumps(found))")
    assert "user/adapter\n" in printed and "user/gram\n" in printed
    found = json.loads(printed.splitlines()[-1])
    here = {name: scores_here(made / name) for name in ("backbone", "adapter", "gram")}
    assert len(found) == 6
    for name, scores in found.items():
        difference = (torch.tensor(scores) - here[name.split()[0]]).abs().max()
        assert difference <= 1e-6, f"{name}: {difference}"
    assert len({tuple(scores.flatten().tolist()) for scores in here.values()}) == 3  # all are different

    with elsewhere.hub.offline():
        again = elsewhere.run(packages.split(), f"{script}print(json.dumps(found))", HF_HUB_OFFLINE="1")
    assert json.loads(again.splitlines()[-1]) == found


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
    options = ["--benchmark", "miniature", "--root", "data", "--output_dir", "run", "--use_cpu", "true"]
    model, processor = _build_model(*parse_arguments(["--model", "user/adapter", *options]))
    assert model.peft_config["default"].revision == elsewhere.hub.repo("user/backbone").head.sha
    torch.testing.assert_close(scores_of(model, processor), expected, atol=1e-6, rtol=0)


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
    "cards", [[("user/backbone", "model")], [("user/store", "dataset"), ("user/videos", "dataset")]]
)
def test_every_snippet_of_a_card_runs_where_only_its_packages_are(elsewhere, cards):
    scripts = snippets_of(elsewhere, *cards)
    printed = "".join(elsewhere.run(packages.split(), script) for packages, script in scripts.items())
    assert all(f"{repo_id}\n" in printed for repo_id, _ in cards)
