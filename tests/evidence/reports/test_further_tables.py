"""Tables of what was measured beside the paper's: kinds of captions, weights, and what the second stage separates."""

from eval.reports.result_files import R1
from evidence.reports import further_tables, paper_tables
from evidence.reports.further_tables import separation_table
from evidence.reports.results import load_results
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
    assert further_tables.kinds_table(load_results([save(tmp_path / "none", make_run("scalar"))])).blocks == []


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


def test_tables_hold_benchmarks_of_different_modalities_side_by_side(tmp_path):
    other = make_run("scalar", benchmark="gallery")
    for entry in other["retrieval"]["rates"]:
        entry |= {"presence": {"video": 9, "title": 9}, "mean_weight": {"video": 0.6, "title": 0.4}}
        entry["decided"] = {"video": 6, "title": 3}
    steps = ({"modalities": ["video"]}, {"modalities": ["video", "title"]})
    other["retrieval"]["ladder"] = [step | {"num_unscorable_clips": 0, R1: {"scalar": 5.0}} for step in steps]
    results = load_results([save(tmp_path / "runs", other, make_run("scalar"))])
    weights = further_tables.weights_table(results)
    rows = {row[0]: dict(zip(weights.columns, map(str, row), strict=True)) for row in weights.rows}
    assert rows["miniature"]["weight", "title"] == rows["gallery"]["weight", "audio"] == "–"
    assert rows["miniature"]["weight", "audio"] == "0.30" and rows["gallery"]["weight", "title"] == "0.40"
    ladder = paper_tables.ladder_table(results)
    assert [name for _, name in ladder.columns[3:]] == ["V", "VT", "VA", "VAS", "Δ V→all"]
    assert "V video, T title, A audio, S subtitle" in ladder.note
    # The paper's values stand beside its own modalities alone.
    vatex = save(tmp_path / "vatex", make_run("scalar", benchmark="vatex"))
    assert any("paper" in row[1] for row in paper_tables.ladder_table(load_results([vatex])).rows)
    both = load_results([tmp_path / "runs", vatex])
    assert not any("paper" in row[1] for row in paper_tables.ladder_table(both).rows)
