import doctest
import json
import re
import shutil
import sys
from pathlib import Path

import evaluate
import pytest
import torch

from scalar_retrieval.eval.metrics.retrieval.ranking import relevant_ranks, retrieval_metrics
from tests.eval.slow import slow_metrics, slow_ranks

METRICS = Path(__file__).resolve().parents[3] / "eval" / "metrics"
NAMES = ("retrieval", "aggregation_gain")
SHAPES = [(20, 1), (30, 2), (25, 49), (40, 13)]


def random_case(queries, candidates, levels, share=0.3, seed=0):
    """Scores with ties and some -inf, and relevant candidates in random order, several in some rows."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(levels, (queries, candidates), generator=generator).float()
    scores[torch.rand(scores.shape, generator=generator) < 0.05] = -torch.inf
    relevant = torch.rand(scores.shape, generator=generator) < share
    relevant[torch.arange(queries), torch.randint(candidates, (queries,), generator=generator)] = True
    pairs = relevant.nonzero()
    return scores, relevant, pairs[torch.randperm(len(pairs), generator=generator)]


@pytest.mark.parametrize(("levels", "block"), [(1, None), (2, 1), (5, 30), (1000, None)])
@pytest.mark.parametrize(("queries", "candidates"), SHAPES)
def test_ranks_and_metrics_agree_with_slow_loops(queries, candidates, levels, block, monkeypatch):
    if block is not None:
        monkeypatch.setattr("scalar_retrieval.eval.metrics.retrieval.ranking._BLOCK_ELEMENTS", block)
    scores, relevant, pairs = random_case(queries, candidates, levels)
    ranks = relevant_ranks(scores, pairs)
    assert torch.equal(ranks, slow_ranks(scores, pairs))
    assert retrieval_metrics(ranks, pairs[:, 0]) == pytest.approx(slow_metrics(ranks, pairs[:, 0]), abs=1e-9)
    if candidates > 2:
        assert relevant.sum(dim=1).max() > 1 and len(ranks.unique()) > 2


def test_no_queries_have_no_ranks():
    assert relevant_ranks(torch.zeros(0, 4), torch.zeros(0, 2, dtype=torch.long)).tolist() == []


@pytest.mark.parametrize(
    ("scores", "pairs", "message"),
    [
        (torch.zeros(1, 3), [[0, 1], [0, 3]], r"\(1, 3\); \[\[0, 3\]\] are not"),
        (torch.zeros(1, 3), [[0, 1], [0, 1]], "must be unique"),
        (torch.zeros(3, 2), [[1, 1]], r"rows \[0, 2\] have no relevant candidate"),
        (torch.tensor([[0.0, 1.0], [torch.nan, 1.0]]), [[0, 0], [1, 1]], r"NaN in query rows \[1\]"),
    ],
)
def test_bad_scores_and_pairs_are_named(scores, pairs, message):
    with pytest.raises(ValueError, match=message):
        relevant_ranks(scores, torch.tensor(pairs))


@pytest.fixture(scope="module")
def copied(tmp_path_factory):
    """The folders as they would be pushed, away from this project."""
    target = tmp_path_factory.mktemp("elsewhere") / "eval" / "metrics"
    target.mkdir(parents=True)
    for name in NAMES:
        shutil.copytree(METRICS / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
    return target.parents[1]


@pytest.fixture(scope="module")
def modules(tmp_path_factory, copied):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluate.config, "HF_MODULES_CACHE", tmp_path_factory.mktemp("modules"))
        options = {"cache_dir": str(tmp_path_factory.mktemp("cache")), "keep_in_memory": True}
        yield {name: evaluate.load(str(copied / "eval" / "metrics" / name), **options) for name in NAMES}


def card_examples(name):
    text = (METRICS / name / "README.md").read_text(encoding="utf-8")
    return "\n".join(re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL))


ALONE = """\
import doctest, importlib.util, sys
sys.path[0] = ""
assert importlib.util.find_spec("scalar_retrieval") is None
print(doctest.testfile(sys.argv[1], module_relative=False))
"""


@pytest.mark.e2e
def test_modules_load_offline_from_a_copy_and_their_cards_are_correct(commands, tmp_path, copied):
    examples = "\n".join(map(card_examples, NAMES))
    count = len(doctest.DocTestParser().get_examples(examples))
    assert count > 10
    (tmp_path / "cards.txt").write_text(examples, encoding="utf-8")
    (tmp_path / "script.py").write_text(ALONE)
    done = commands.run(tmp_path / "script.py", tmp_path / "cards.txt", cwd=copied, is_elsewhere=True, timeout=120)
    assert done.code == 0, done.stderr
    assert f"failed=0, attempted={count})" in done.stdout, done.stdout


@pytest.mark.parametrize("name", NAMES)
def test_folders_hold_what_their_spaces_need(name):
    folder = METRICS / name
    ((script, inputs),) = json.loads((folder / "example.json").read_text(encoding="utf-8")).items()
    assert script == f"{name}.py" and list(inputs)[:2] == ["predictions", "references"]
    lines = (folder / "requirements.txt").read_text(encoding="utf-8").splitlines()
    required = {line.split(">")[0] for line in lines if not line.startswith(("#", "--"))}
    scripts = "".join(path.read_text() for path in folder.glob("*.py"))
    imported = set(re.findall(r"^(?:import|from) (\w+)", scripts, flags=re.MULTILINE))
    assert imported - set(sys.stdlib_module_names) == required


@pytest.mark.parametrize(("queries", "candidates"), SHAPES)
def test_modules_equal_the_functions(modules, queries, candidates):
    scores, relevant, pairs = random_case(queries, candidates, 4)
    references = [row.nonzero().flatten().tolist() for row in relevant]
    expected = retrieval_metrics(relevant_ranks(scores, pairs), pairs[:, 0])
    assert modules["retrieval"].compute(predictions=scores, references=references) == pytest.approx(expected)
    for start in range(0, queries, 8):
        batch = slice(start, start + 8)
        modules["retrieval"].add_batch(predictions=scores[batch].numpy(), references=references[batch])
    assert modules["retrieval"].compute() == pytest.approx(expected)

    pathways = {name: random_case(queries, candidates, 4, seed=seed)[0] for seed, name in enumerate("abc", start=1)}
    recalls = {}
    for name, found in pathways.items():
        recalls[name] = retrieval_metrics(relevant_ranks(found, pairs), pairs[:, 0])["recall_at_1"]
    best = max(pathways, key=recalls.__getitem__)  # of equals the first
    result = modules["aggregation_gain"].compute(predictions=scores, references=references, pathways=pathways)
    joint = expected["recall_at_1"]
    assert result.pop("best_pathway") == best
    assert list(result.values()) == pytest.approx([joint - recalls[best], joint, recalls[best]])


def test_retrieval_module_keeps_scores_apart_that_single_precision_merges(modules):
    metrics = modules["retrieval"].compute(predictions=[[1.0, 1.0 + 1e-12]], references=[1], k=[1])
    assert metrics["recall_at_1"] == 100
