"""Tables of what was measured beside the paper's: kinds of captions, weights, and what the second stage separates."""

from evidence.reports import further_tables, paper_tables
from evidence.reports.further_tables import separation_table
from evidence.reports.results import load_results
from scalar_retrieval.eval.reports.result_files import R1
from tests.eval.reports.made_runs import make_run, save, with_rules


def test_recall_by_kind_of_caption_has_a_column_for_each_kind(tmp_path):
    runs = [make_run("scalar", 50), make_run("scalar", 51), make_run("gram", 50, method="gram")]
    for shift, run in enumerate(runs[:2]):
        run["retrieval"]["kinds"] = [
            {"kind": kind, "num_queries": count, R1: {"scalar": recall + shift, "audio": recall}}
            for kind, count, recall in (("several", 700, 20.0), ("single", 300, 40.0))
        ]
    table = further_tables.kinds_table(load_results([save(tmp_path / "some", *runs)]))
    assert [heading for _, heading in table.columns[4:]] == ["several", "single"]
    assert [[str(cell) for cell in row[3:]] for row in table.rows] == [
        ["SCALAR (own)", "20.5 ± 0.7", "40.5 ± 0.7"],
        ["audio *", "20.0 ± 0.0", "40.0 ± 0.0"],
    ]
    assert "several 700 of miniature; single 300 of miniature" in table.note
    assert further_tables.kinds_table(load_results([save(tmp_path / "none", make_run("scalar"))])).rows == []


def rows_of(table):
    return {tuple(row[1 : table.num_keys]): [str(cell) for cell in row[table.num_keys :]] for row in table.rows}


def test_the_papers_tables_take_the_match_at_the_papers_depth(tmp_path):
    plain = make_run("scalar", two_stage=30.0)
    expected = load_results([save(tmp_path / "plain", plain)])
    found = load_results([save(tmp_path / "rules", with_rules(plain))])
    for table in (
        paper_tables.retrieval_table,
        paper_tables.transfer_table,
        paper_tables.seeds_table,
        lambda results: paper_tables.two_stage_missing_table(results, "zeros"),
    ):
        assert table(found).rows == table(expected).rows
    largest = load_results([save(tmp_path / "largest", with_rules(plain, depths=(5, 20)))])
    assert rows_of(paper_tables.two_stage_missing_table(largest, "absent"))[("SCALAR", "1")][0] == "10.0"


def test_what_the_match_separates_stands_beside_the_weight_run_by_run(tmp_path):
    given = make_run("scalar", 51) | {"two_stage_fusion": {"split": None, "weight": 0.05}}
    results = load_results([save(tmp_path, with_rules(make_run("scalar", 50)), given)])
    rows = rows_of(separation_table(results))
    assert rows["SCALAR", "50"] == ["0.765", "1000", "49000", "50", "0.100", "validation"]
    assert rows["SCALAR", "51"] == ["–", "–", "–", "–", "0.050", "given"]
