"""The documentation as a site: every page, link, anchor and reference in it is there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    environment = os.environ | {
        "NO_MKDOCS_2_WARNING": "1",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder],
        check=True, cwd=ROOT, env=environment,
    )  # fmt: skip
    return folder


def test_every_page_is_in_the_site_and_the_front_page_is_the_readme(site):
    for path in (ROOT / "docs").glob("*.md"):
        assert (site / path.stem / "index.html").is_file()
    front = (site / "index.html").read_text(encoding="utf-8")
    assert front.count("<math") == (ROOT / "README.md").read_text(encoding="utf-8").count("$$") // 2 > 0
    assert "arithmatex" not in front and '<script src="http' not in front


def test_the_reference_has_what_users_import_with_types_and_links(site):
    page = (site / "reference" / "modeling_scalar" / "index.html").read_text(encoding="utf-8")
    assert 'id="scalar_retrieval.modeling_scalar.scores_scalar.retrieval_scores"' in page
    assert "The modalities of each clip; at least one True" in page
    assert 'href="#scalar_retrieval.modeling_scalar.scores_scalar.ScoreOptions"' in page
    assert "[<code>" not in page and "(`" not in page
