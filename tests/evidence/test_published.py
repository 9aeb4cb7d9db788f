"""Every number that the pages, README and the tables of results have is computed from the shipped ranks."""

import re
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml

from evidence.composed import report as composed_report
from evidence.encoders import report as encoders_report
from evidence.stamps import report as stamps_report
from evidence.study import report as study_report
from evidence.study.differences import described_differences, format_interval
from evidence.study.results import StudyResults
from evidence.study.tables import short_table
from evidence.study.tuning import GRID

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "evidence" / "study" / "results"
PAGES = {
    "study": (study_report, StudyResults, "miniature_study"),
    "stamps": (stamps_report, stamps_report.StampsResults, "real_pictures"),
    "composed": (composed_report, composed_report.ComposedResults, "composed_clips"),
    "encoders": (encoders_report, encoders_report.EncodersResults, "encoders"),
}
DIFFERENCE = r"[+−]\d+\.\d(?= \[)"
INTERVAL = r"[+−]\d+\.\d \[−?\d+\.\d, −?\d+\.\d\]"


def words_of(path):
    return " ".join((ROOT / path).read_text(encoding="utf-8").split())


@pytest.fixture(scope="module", params=PAGES)
def published(request):
    report, kind, page = PAGES[request.param]
    return request.param, report, kind(ROOT / "evidence" / request.param / "results"), page


def test_the_page_and_the_tables_are_computed_from_the_results_which_are_small(published):
    name, report, results, page = published
    template = (ROOT / "evidence" / name / "page.md").read_text(encoding="utf-8")
    again = f"run `python -m evidence {name} --report-only --page docs/{page}.md` (with --output, if not study)"
    assert (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8") == report.fill(template, results), again
    written = (results.folder / "README.md").read_text(encoding="utf-8")
    assert written == report.report(results), f"run `python -m evidence {name} --report-only`"
    most = 4e6 if name == "study" else 1e6
    assert sum(path.stat().st_size for path in results.folder.iterdir()) < most


# The study's sentences, recomputed without the code that wrote them -------------------------------------------------

STUDY = "docs/miniature_study.md"
PLAIN, FITTED = "as trained", "fitted"
AT_PAPERS = ("scalar_01", "scalar", PLAIN)
AS_TRAINED = ("scalar", "scalar", PLAIN)
KEPT = ("scalar", "scalar", FITTED)
GRAM = ("gram", "gram", FITTED)
EQUAL = ("scalar_uniform", "uniform", FITTED)
SPAN = ("gram", "gram_span", PLAIN)
CORRECTED = ("gram", "gram_corrected", FITTED)
BACK, COMPLETE = {"direction": "video_to_text"}, {"clips": "complete"}


class Ranks:
    """The shipped ranks of both sets of clips."""

    def __init__(self):
        self.study = StudyResults(RESULTS).study
        self.rows = {}
        for row in pq.read_table(RESULTS / "ranks.parquet", filters=[("masked", "==", "nothing")]).to_pylist():
            key = [row[name] for name in ("experiment", "variant", "score", "numbers", "clips", "direction")]
            self.rows.setdefault(tuple(key), []).append(np.frombuffer(row["ranks"], dtype=np.uint8))

    def recall(self, of, clips="test", direction="text_to_video", kind=None, measure="recall"):
        """R@1, or MRR@10 of both directions, in percent: the mean over queries and trainings of both sets."""
        if measure == "mrr":
            ways = ("text_to_video", "video_to_text")
            return sum(self.recall(of, clips, way, kind, "mrr of one way") for way in ways) / 2
        variant, score, numbers = of
        found = []
        for name in ("main", "repeated"):
            key = [name, variant, score, numbers, clips, direction]
            if tuple(key) not in self.rows:  # it has nothing to fit
                key[3] = PLAIN
            for ranks in self.rows[tuple(key)]:
                values = ranks == 1 if measure == "recall" else np.where(ranks <= 10, 1 / ranks, 0)
                if kind is not None:
                    queries = self.study["clips"][name]["queries"]
                    values = values[[about[0] == kind for about in queries]]
                found.append(100 * values)
        return np.concatenate(found).mean()

    def minus(self, first, second, **options):
        return self.recall(first, **options) - self.recall(second, **options)


@pytest.fixture(scope="module")
def ranks():
    return Ranks()


SENTENCES = {
    "With **one** fitted temperature, 0.41": [
        (AS_TRAINED, GRAM, {}), (AS_TRAINED, GRAM, BACK),
        (AS_TRAINED, GRAM, COMPLETE), (AS_TRAINED, GRAM, BACK | COMPLETE),
    ],
    "in one training seven numbers:": [
        (KEPT, GRAM, {}), (KEPT, GRAM, BACK), (KEPT, GRAM, COMPLETE), (KEPT, GRAM, BACK | COMPLETE),
    ],
    "Trained and scored at 0.1, nothing fitted, SCALAR leads GRAM by": [
        (AT_PAPERS, GRAM, {}), (AT_PAPERS, GRAM, BACK), (AT_PAPERS, GRAM, COMPLETE),
    ],
    "Minus the span distance on GRAM's embeddings, nothing fitted:": [
        (AT_PAPERS, SPAN, {}), (AT_PAPERS, SPAN, COMPLETE),
        (AT_PAPERS, SPAN, BACK), (AT_PAPERS, SPAN, {"measure": "mrr"}),
    ],
    "Minus the corrected volume (two fitted numbers):": [(AT_PAPERS, CORRECTED, {})],
    "Minus equal weights, captions about several modalities:": [
        (AT_PAPERS, EQUAL, {"kind": "several"}), (AS_TRAINED, EQUAL, {"kind": "several"}),
    ],
    "The size depends on the mixture of captions:": [
        (KEPT, EQUAL, {"kind": "single"}), (KEPT, EQUAL, {"kind": "several"}), (KEPT, EQUAL, {"kind": "shared"}),
    ],
    "The lead over GRAM is positive for every kind:": [
        (KEPT, GRAM, {"kind": "single"}), (KEPT, GRAM, {"kind": "several"}), (KEPT, GRAM, {"kind": "shared"}),
    ],
}  # fmt: skip


@pytest.mark.parametrize("sentence", SENTENCES)
def test_the_numbers_of_a_sentence_are_those_of_the_ranks(ranks, sentence):
    _, _, after = words_of(STUDY).partition(sentence)
    expected = [ranks.minus(first, second, **options) for first, second, options in SENTENCES[sentence]]
    shown = [float(number.replace("−", "-")) for number in re.findall(DIFFERENCE, after)[: len(expected)]]
    assert shown == pytest.approx(expected, abs=0.0501)


def test_another_mixture_of_captions_is_the_mean_of_the_kinds(ranks):
    """A third of each kind, and 10/80/10."""
    leads = [ranks.minus(KEPT, EQUAL, kind=kind) for kind in ("single", "several", "shared")]
    mixed = [np.average(leads, weights=weights) for weights in ([1, 1, 1], [10, 80, 10])]
    found = re.search(r"That is \+(\d+\.\d) at a third each, and \+(\d+\.\d) at 10/80/10", words_of(STUDY))
    assert [float(number) for number in found.groups()] == pytest.approx(mixed, abs=0.0501)


def test_what_the_sentences_say_of_fits_is_what_was_kept():
    results = StudyResults(RESULTS)
    assert {entry["options"]["query_temperature"] for entry in results.entries("scalar", None, PLAIN)} == {0.41}
    counts = []
    for variant, score in (("scalar", None), ("gram", None), ("gram", "gram_corrected")):
        fits = [fit for entry in results.entries(variant, score, FITTED) for fit in entry["fits"] if fit["kept"]]
        counts.append([fit["count"] for fit in fits])
    assert counts == [[7], [], [2] * 6]  # of six trainings


# README --------------------------------------------------------------------------------------------------------------

ROWS = {
    "GRAM's volume": GRAM,
    "equal weights": EQUAL,
    "equal weights, captions of several modalities": EQUAL,
    "span distance, GRAM's embeddings": SPAN,
    "corrected volume, two fitted parameters": CORRECTED,
}
"""What SCALAR is compared with in README: at the paper's temperature, then at the fitted one."""


def test_the_numbers_of_the_readme_are_those_of_the_ranks_and_of_the_study(ranks):
    results = StudyResults(RESULTS)
    known = {row[0]: {str(cell) for cell in row} for row in short_table(results).rows}
    for line in (ROOT / "README.md").read_text(encoding="utf-8").splitlines():
        title = line.strip("| ").split("|")[0].strip()
        assert title not in known or known[title].issuperset(re.findall(r"\d+\.\d ± \d+\.\d", line))
        if title in ROWS:
            options = {"kind": "several"} if "several" in title else {}
            expected = [ranks.minus(own, ROWS[title], **options) for own in (AT_PAPERS, AS_TRAINED)]
            shown = [float(number.replace("−", "-")) for number in re.findall(DIFFERENCE, line)]
            assert shown == pytest.approx(expected, abs=0.0501), title
    found = {format_interval(entry) for entry in described_differences(results).values()}
    assert found.issuperset(re.findall(INTERVAL, words_of("README.md")))


# What the ranks are of -----------------------------------------------------------------------------------------------


def test_the_recipe_of_the_demo_has_the_settings_that_were_chosen():
    recipe = yaml.safe_load((ROOT / "recipes" / "miniature.yaml").read_text(encoding="utf-8"))
    chosen = StudyResults(RESULTS).study["tuning"]["methods"]["scalar"]["chosen"]
    assert {name: recipe[name] for name in GRID} == chosen


def test_every_method_was_chosen_by_its_trials_on_validation_clips():
    for method in StudyResults(RESULTS).study["tuning"]["methods"].values():
        for trial in method["trials"]:
            assert trial["mean_reciprocal_rank"] == pytest.approx(np.mean(trial["found"]))
        best = max(method["trials"], key=lambda trial: trial["mean_reciprocal_rank"])
        assert method["chosen"] == best["settings"]
        # What was tried once the results were known changes nothing, as the page says.
        for trial in method["later"]:
            assert trial["mean_reciprocal_rank"] == pytest.approx(np.mean(trial["found"]))
            assert trial["mean_reciprocal_rank"] < best["mean_reciprocal_rank"]


def test_claims_are_those_that_were_named():
    for name, judged in (("stamps", stamps_report.judged), ("encoders", encoders_report.judged)):
        _, kind, _ = PAGES[name]
        named = yaml.safe_load((ROOT / "evidence" / name / "claims.yaml").read_text(encoding="utf-8"))["claims"]
        for claim, entry in zip(named, judged(kind(ROOT / "evidence" / name / "results")), strict=True):
            assert claim.items() <= entry.items()


MEANS = {
    "stamps": lambda shown, row: shown.mean(row["regime"], row["method"]),
    "composed": lambda shown, row: shown.mean(
        row["score"], numbers=row["numbers"], clips=row["clips"], direction=row["direction"]
    ),
    "encoders": lambda shown, row: shown.mean(
        row["set"], row["method"], direction=row["direction"], regimes=(row["regime"],)
    ),
}
"""By study, how to ask for the mean that a row of its ranks gives; ranks count up to the tenth, of the stamps all."""


@pytest.mark.parametrize("name", MEANS)
def test_mean_reciprocal_ranks_are_those_of_the_ranks(name):
    """Recomputed in plain Python."""
    last = 255 if name == "stamps" else 10
    shown = PAGES[name][1](ROOT / "evidence" / name / "results")
    for row in pq.read_table(shown.folder / "ranks.parquet").to_pylist():
        expected = 100 * sum(1 / rank for rank in row["ranks"] if rank <= last) / len(row["ranks"])
        assert MEANS[name](shown, row) == pytest.approx(expected)


def test_all_claims_on_languages_are_met_as_the_page_says():
    shown = stamps_report.StampsResults(ROOT / "evidence" / "stamps" / "results")
    assert all(entry["met"] for entry in stamps_report.compare(shown.languages))
    assert len(shown.languages) == 16
