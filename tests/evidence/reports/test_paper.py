"""Every number of the published tables against the LaTeX of the paper."""

import re

import pytest

from evidence.reports import paper
from evidence.reports.paper import published

RETRIEVAL = ["msrvtt", "didemo", "activitynet", "vatex", "audiocaps"]
# The first part that a row's label contains names the row.
KEYS = {
    "UMT-L": "umt_l", "LanguageBind": "languagebind", "mPLUG-2": "mplug_2", "VideoPrism": "videoprism_b",
    "VAST": "vast", "full-FT (same": "scalar_full_ft", "uniform weights": "scalar_uniform",
    "full objective": "scalar", r"\ours": "scalar", "masked training views": "no_masked_views",
    "{mask}": "no_cross_arity", "{sem}": "no_semantic", "{unif}": "no_uniformity", "yper": "hypergram",
    "GRAM (paper)": "gram_published", "GRAM": "gram", r"\gram": "gram", "PMRL": "pmrl", r"\pmrl": "pmrl",
    "margin": "margin",
}  # fmt: skip


@pytest.fixture(scope="module")
def text(shared_dir):
    return (shared_dir / "paper" / "scalar.tex").read_text(encoding="utf-8")


def numbers(cell):
    """All decimals of a cell; `None` for the paper's dash."""
    found = [float(number) for number in re.findall(r"[-+]?\d+\.\d+", cell)]
    return found or ([None] if "--" in cell else [])


def table(text, label, columns):
    """The rows of a table by name, or by benchmark and name; of each the numbers in its last columns."""
    body = text[text.index(rf"\label{{{label}}}") :]
    body = body[body.index(r"\midrule") : body.index(r"\bottomrule")]
    body = "\n".join(line for line in body.splitlines() if not line.lstrip().startswith("%"))
    rows, benchmark = {}, None
    for line in body.split(r"\\"):
        cells = line.split("&")
        if len(cells) <= columns:
            continue
        labels = " ".join(cells[:-columns])
        benchmark = next((key for key, name in paper.BENCHMARKS.items() if name in labels), benchmark)
        name = next((key for part, key in KEYS.items() if part in labels), None)
        found = tuple(number for cell in cells[-columns:] for number in numbers(cell))
        key = name if benchmark is None else (benchmark, name)
        assert key not in rows
        rows[key] = found
    assert rows
    return rows


def ours(table):
    return {(benchmark, name): row for benchmark, rows in table.items() for name, row in rows.items()}


def difference(one, other):
    return pytest.approx(tuple(a - b for a, b in zip(one, other, strict=True)), abs=1e-9)


def test_both_stages_on_msrvtt_are_those_of_table_1(text):
    assert table(text, "tab:msrvtt", 4) == paper.TWO_STAGE["msrvtt"]


def test_both_stages_on_the_other_benchmarks_are_those_of_table_2(text):
    rows = table(text, "tab:transfer", 8)
    expected = {
        benchmark: {name: row[2 * i : 2 * i + 2] for name, row in rows.items() if row[2 * i] is not None}
        for i, benchmark in enumerate(RETRIEVAL[1:])
    }
    assert expected == {benchmark: paper.TWO_STAGE[benchmark] for benchmark in RETRIEVAL[1:]}
    # What is left out is a dash in both columns.
    assert all(row[2 * i + 1] is None for row in rows.values() for i in range(4) if row[2 * i] is None)


@pytest.mark.parametrize(
    ("label", "columns", "values", "rates"),
    [
        ("tab:missing", 5, paper.MISSING, 5),
        ("tab:supp-missing-two-stage", 6, paper.TWO_STAGE_MISSING, 5),
    ],
)
def test_missing_modalities_and_margins_are_those_of_tables_3_and_s4(label, columns, values, rates, text):
    rows = table(text, label, columns)
    assert {key: row for key, row in rows.items() if key[1] != "margin"} == ours(values)
    margins = {key[0]: row for key, row in rows.items() if key[1] == "margin"}
    assert list(margins) == RETRIEVAL
    for benchmark, margin in margins.items():
        scalar, gram = values[benchmark]["scalar"], values[benchmark]["gram"]
        assert margin == difference(scalar[:rates], gram[:rates])


def test_components_and_gains_are_those_of_tables_s3_and_4(text):
    components, gains = table(text, "tab:supp-gain-components", 15), table(text, "tab:gain", 5)
    assert components.keys() == gains.keys()
    for name, row in components.items():
        for i, benchmark in enumerate(RETRIEVAL):
            best, joint, gain = row[3 * i : 3 * i + 3]
            if best is None:
                assert name not in paper.COMPONENTS[benchmark] and gains[name][i] is None
            else:
                assert paper.COMPONENTS[benchmark][name] == (best, joint)
                assert gain == gains[name][i] == pytest.approx(joint - best, abs=1e-9)
    assert sum(map(len, paper.COMPONENTS.values())) == 24  # five rows, five benchmarks, one dash


def test_ablations_are_those_of_table_5(text):
    rows = table(text, "tab:loss_ablation", 8)
    for i, benchmark in enumerate(RETRIEVAL):
        assert paper.ABLATION[benchmark] == {name: row[i : i + 1] for name, row in rows.items()}
    assert paper.ABLATION_MEANS == {name: row[5:] for name, row in rows.items()}


def test_the_ladder_is_that_of_table_s5(text):
    rows = table(text, "tab:supp-subset-ladder", 4)
    assert {key: row[:3] for key, row in rows.items()} == ours(paper.LADDER)
    assert all(row[3] == pytest.approx(row[2] - row[0], abs=1e-9) for row in rows.values())


def test_classification_is_that_of_table_s6(text):
    body = text[text.index(r"\label{tab:supp-vggsound}") :]
    body = body[body.index(r"\midrule") : body.index(r"\bottomrule")]
    lines = [[numbers(cell) for cell in line.split("&")[1:]] for line in body.split(r"\\") if line.count("&") == 2]
    published_gram, gram, scalar, video, audio, uniform = lines
    assert scalar[0] == [34.9, 0.3]  # three seeds
    expected = {"gram_published": published_gram, "gram": gram, "scalar": [scalar[0][:1], scalar[1]]}
    expected = {name: [at_1[0], at_10[0]] for name, (at_1, at_10) in expected.items()}
    for place, name in enumerate(("scalar", "gram")):
        expected[name] += [column[place] for pathway in (video, audio) for column in pathway]
    expected["scalar_uniform"] = [column[0] for column in uniform]
    assert {name: list(row) for name, row in paper.CLASSIFICATION["vggsound"].items()} == expected


def test_seed_statistics_are_those_of_table_s8(text):
    rows = table(text, "tab:supp-seed-ci", 5)
    assert {key[0]: {"scalar": row[:4]} for key, row in rows.items()} == paper.SEEDS
    for (benchmark, _), row in rows.items():
        singles = {name: paper.TWO_STAGE[benchmark].get(name, (None,))[0] for name in ("gram", "pmrl", "hypergram")}
        assert row[4:] == tuple(singles.values())


def test_latent_numbers_are_those_of_the_text(text):
    number = r"\$(\S+)\$"
    cosines = rf"is {number} for VAST, {number} for\s+GRAM, and {number} for \\ours"
    silhouettes = rf"silhouette is {number},\s+{number}, and {number}"
    groups = re.search(f"{cosines}.*?{silhouettes}", text, re.DOTALL).groups()
    found = [float(group) for group in groups]
    expected = dict(zip(("vast", "gram", "scalar"), zip(found[:3], found[3:], strict=True), strict=True))
    assert paper.LATENT == {"vggsound": expected}


# What stands beside measured values ----------------------------------------------------------------------------------


def test_rows_are_those_of_the_benchmark_or_if_asked_for_means_over_what_is_published():
    assert published(paper.MISSING, "vatex", mean=True) == {
        "paper: SCALAR": paper.MISSING["vatex"]["scalar"],
        "paper: GRAM": paper.MISSING["vatex"]["gram"],
    }
    assert "paper: LanguageBind" in published(paper.TWO_STAGE, "didemo")
    assert published(paper.MISSING, "miniature") == {}
    rows = published(paper.TWO_STAGE, "miniature", mean=True)
    # (54.0 + 48.9 + 53.7 + 89.8) / 4; video to text is published for one benchmark alone
    assert rows["paper, mean of 4: HyperGRAM"] == pytest.approx((61.6, 86.225))
    assert not any("LanguageBind" in name for name in rows)
