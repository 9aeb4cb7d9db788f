"""The commands as they are typed: what they say, how they end, and what they leave in the folder."""

import json
from shutil import copytree

import pytest
from typer.testing import CliRunner

from hub_cards.__main__ import app
from hub_cards.card import Details, read_card
from modeling_scalar.model_identity import identify

NAME = "user/scalar"


@pytest.fixture
def model_dir(tmp_path, tiny_model_dir):
    return copytree(tiny_model_dir, tmp_path / "a folder")


@pytest.fixture
def push(hub, model_dir):
    def push(*options, name=NAME, code=0):
        result = CliRunner().invoke(app, ["model", str(model_dir), name, *options])
        assert result.exit_code == code, result.output
        return result

    return push


def test_a_model_is_pushed_and_its_folder_takes_a_note(hub, push, model_dir):
    commit = push("--license", "mit").stdout.removeprefix(f"Published: {hub.url}/{NAME}/commit/").strip()
    assert commit == hub.repo(NAME).branches["main"]
    note = {"endpoint": hub.url, "repo_id": NAME, "revision": commit, "fingerprint": identify(NAME).fingerprint}
    assert json.loads((model_dir / "hub.json").read_text()) == note
    assert push().stdout == f"Nothing has changed since the last push: {hub.url}/{NAME}/commit/{commit}\n"
    assert "hub.json" not in hub.repo(NAME).files()


def test_a_folder_that_takes_no_note_does_not_hide_the_push(hub, push, model_dir, caplog):
    (model_dir / "hub.json").mkdir()
    assert push().stdout.startswith("Published: ")
    assert f"{NAME} was published, but that could not be noted in {model_dir}" in caplog.text


def test_a_pull_request_is_no_place_of_a_model(hub, push, model_dir):
    push("--license", "mit")
    note = (model_dir / "hub.json").read_text()
    assert push("--license", "apache-2.0", "--create-pr").stdout.startswith("Pull request opened: ")
    push("--license", "cc0-1.0", "--revision", "refs/pr/1")
    assert (model_dir / "hub.json").read_text() == note


def test_a_licence_of_ones_own_has_a_name_and_a_link(hub, push):
    assert "--license-name" in push("--license", "other", code=1).stderr and not hub.repos
    push("--license", "other", "--license-name", "my-licence", "--license-link", "https://example.org/licence")
    push("--language", "en")
    found = read_card(hub.repo(NAME).files()["README.md"].decode())[1]
    named = {"license": "other", "license_name": "my-licence", "license_link": "https://example.org/licence"}
    assert found == Details(named | {"language": ["en"]})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--output", "there"], "--output is the folder of a dry run"),
        (["--create-pr", "--revision", "v2"], "refs/pr/N"),
        (["--license-name", "my-licence"], "give --license other too"),
        (["--license", "mit", "--license-link", "https://example.org"], "give --license other too"),
        (["--merge"], "holds no adapter to merge"),
        (["--results", "nowhere"], "There is no results.json at nowhere"),
    ],
)
def test_what_cannot_be_is_said_in_a_line(hub, push, options, message):
    result = push(*options, code=1)
    assert result.stderr.startswith("Error: ") and message in result.stderr.splitlines()[-1] and not result.stdout
    assert not hub.repos


def test_a_dry_run_shows_the_card_and_sends_nothing(hub, push, tmp_path):
    result = push("--dry-run", "--output", str(tmp_path / "out"))
    assert result.stdout.startswith("---\n") and "Nothing was sent." in result.stderr and hub.requests == []
    assert (tmp_path / "out" / "README.md").read_text() == result.stdout.removesuffix("\n")


def test_a_card_that_shows_a_token_is_not_sent_to_the_hub(hub, tmp_path):
    def validate(text):
        (tmp_path / "README.md").write_text(f"---\nlicense: mit\n---\n{text}\n")
        return CliRunner().invoke(app, ["validate", str(tmp_path)])

    assert validate("# A model").stdout == f"{tmp_path}: a valid card.\n" and len(hub.requests) == 1
    found = validate("hf_abcdefghijklmnopqrstuvwxyz")
    assert found.exit_code == 1 and "looks like an access token" in found.stdout and len(hub.requests) == 1


def test_what_the_hub_says_of_a_card_is_reported(hub, tmp_path):
    (tmp_path / "README.md").write_text("---\nlicense: mine\n---\n")
    with hub.fail("POST", "/validate-yaml", status=400, body=b"- a licence\n- a tag"):
        reported = CliRunner().invoke(app, ["validate", str(tmp_path)])
    assert reported.exit_code == 1 and reported.stdout == "- a licence\n- a tag\n"
    with hub.offline():
        reported = CliRunner().invoke(app, ["validate", str(tmp_path)])
    assert reported.exit_code == 0 and "the Hub was not asked about its own rules" in reported.stdout


def test_a_card_that_the_hub_refuses_is_not_published(hub, push):
    error = {"errors": [{"message": '"license" must be one of [mit]'}]}
    with hub.fail("POST", "/validate-yaml", status=400, body=error):
        assert '"license" must be one of [mit]' in push("--license", "mine", code=1).stderr
    assert not hub.repos
