"""The evidence of the README is computed from the results in the repository."""

from pathlib import Path

from evidence.study.differences import Difference, format_interval, with_interval
from evidence.study.measure import AS_TRAINED
from evidence.study.results import Quantity, StudyResults

ROOT = Path(__file__).resolve().parents[3]
ROWS = {
    "GRAM's volume": Quantity("gram"),
    "equal weights": Quantity("scalar_uniform"),
    "equal weights, captions of several modalities": Quantity("scalar_uniform", kinds=("several",)),
    "span distance, GRAM's embeddings": Quantity("gram", "gram_span"),
    "corrected volume, two fitted parameters": Quantity("gram", "gram_corrected"),
}


def test_the_readme_shows_what_wins_and_what_loses_at_both_temperatures():
    """SCALAR as trained, at the paper's temperature and at the fitted one, minus others with the fit that is kept."""
    results = StudyResults(ROOT / "evidence" / "study" / "results")
    (temperature,) = {entry["options"]["query_temperature"] for entry in results.entries("scalar", None, AS_TRAINED)}
    expected = [["minus", "as in the paper, 0.1", f"fitted, {temperature:g}"]]
    for words, theirs in ROWS.items():
        row = [words]
        for variant in ("scalar_01", "scalar"):
            ours = Quantity(variant, numbers=AS_TRAINED, kinds=theirs.kinds)
            row.append(format_interval(with_interval(results, Difference(words, words, ours, theirs))))
        expected.append(row)

    section = (ROOT / "README.md").read_text(encoding="utf-8").split("## Evidence")[1].split("##")[0]
    shown = []
    for line in section.splitlines():
        if line.startswith("| "):
            shown.append([cell.strip() for cell in line.strip("|").split("|")])
    assert shown == expected
