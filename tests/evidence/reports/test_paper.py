"""Every number of the published tables against the LaTeX of the paper."""

import re

import pytest

from evidence.reports import paper
from evidence.reports.paper import published

RETRIEVAL = ["msrvtt", "didemo", "activitynet", "vatex", "audiocaps"]


@pytest.fixture(scope="module")
def text(shared_dir):
    return (shared_dir / "paper" / "scalar.tex").read_text(encoding="utf-8")


def rows_of(text, label, columns):
    """The rows of a table: of each the decimals in its last columns, `None` for the paper's dash."""
    body = text[text.index(rf"\label{{{label}}}") :]
    body = body[body.index(r"\midrule") : body.index(r"\bottomrule")]
    body = "\n".join(line for line in body.splitlines() if not line.lstrip().startswith("%"))
    rows = []
    for line in body.split(r"\\"):
        cells = line.split("&")
        if len(cells) > columns:
            found = re.findall(r"[-+]?\d+\.\d+|--", " ".join(cells[-columns:]))
            rows.append(tuple(None if number == "--" else float(number) for number in found))
    return rows


def joined(parts):
    return tuple(number for part in parts for number in part)


def minus(first, second):
    return tuple(round(a - b, 1) for a, b in zip(first, second, strict=True))


def with_margins(table, rates):
    for rows in table.values():
        yield from (rows["scalar"], rows["gram"], minus(rows["scalar"][:rates], rows["gram"][:rates]))


def components(name):
    """The best pathway, the joint score and the gain on each benchmark."""
    for benchmark in RETRIEVAL:
        best, joint = paper.COMPONENTS[benchmark].get(name, (None, None))
        yield (best, joint, None if best is None else round(joint - best, 1))


def seeds(benchmark):
    single = [paper.TWO_STAGE[benchmark].get(name, (None,))[0] for name in ("gram", "pmrl", "hypergram")]
    return (*paper.SEEDS[benchmark]["scalar"], *single)


COMPARED = ("gram", "pmrl", "hypergram", "scalar_uniform", "scalar")
SOUNDS = paper.CLASSIFICATION["vggsound"]
PATHWAYS = list(zip(SOUNDS["scalar"], SOUNDS["gram"], strict=True))
TABLES = {
    # Tables 1 and 2: what is left out is a dash
    ("tab:msrvtt", 4): paper.TWO_STAGE["msrvtt"].values(),
    ("tab:transfer", 8): [
        joined(paper.TWO_STAGE[benchmark].get(name, (None, None)) for benchmark in RETRIEVAL[1:])
        for name in paper.TWO_STAGE["msrvtt"]
    ],
    ("tab:missing", 5): with_margins(paper.MISSING, 5),  # Table 3
    ("tab:supp-missing-two-stage", 6): with_margins(paper.TWO_STAGE_MISSING, 5),  # Table S4
    ("tab:supp-gain-components", 15): [joined(components(name)) for name in COMPARED],  # Table S3
    ("tab:gain", 5): [tuple(gain for *_, gain in components(name)) for name in COMPARED],  # Table 4
    ("tab:loss_ablation", 8): [  # Table 5
        joined(paper.ABLATION[benchmark][name] for benchmark in RETRIEVAL) + means
        for name, means in paper.ABLATION_MEANS.items()
    ],
    ("tab:supp-subset-ladder", 4): [  # Table S5
        (*row, round(row[2] - row[0], 1)) for rows in paper.LADDER.values() for row in (rows["scalar"], rows["gram"])
    ],
    ("tab:supp-vggsound", 2): [  # Table S6; its SCALAR has a deviation of three seeds
        SOUNDS["gram_published"],
        SOUNDS["gram"][:2],
        (SOUNDS["scalar"][0], 0.3, SOUNDS["scalar"][1]),
        *(joined(PATHWAYS[place : place + 2]) for place in (2, 4)),
        SOUNDS["scalar_uniform"],
    ],
    ("tab:supp-seed-ci", 5): map(seeds, RETRIEVAL),  # Table S8
}


@pytest.mark.parametrize("label, columns", TABLES)
def test_numbers_of_a_table_are_those_of_the_paper(label, columns, text):
    assert list(TABLES[label, columns]) == rows_of(text, label, columns)


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
    assert list(published(paper.MISSING, "vatex", mean=True)) == ["paper: SCALAR", "paper: GRAM"]
    assert published(paper.MISSING, "miniature") == {}
    rows = published(paper.TWO_STAGE, "miniature", mean=True)
    # (54.0 + 48.9 + 53.7 + 89.8) / 4; video to text is published for one benchmark alone
    assert rows["paper, mean of 4: HyperGRAM"] == pytest.approx((61.6, 86.225))
    assert not any("LanguageBind" in name for name in rows)
