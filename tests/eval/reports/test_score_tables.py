"""Tables of every score on the same embeddings, of weights and of differences."""

from eval.reports import paper_tables, score_tables
from eval.reports.result_files import load_results
from eval.reports.result_schema import method_title
from modeling_scalar.scores_scalar import METHODS
from tests.eval.reports.made_runs import cells, make_run, save


def test_every_joint_score_has_a_name_for_readers():
    titles = {name: method_title(name) for name in METHODS}
    assert {name for name, title in titles.items() if title == name} == {"video", "audio", "subtitle"}
    assert len(set(titles.values())) == len(titles) and method_title("of a plugin") == "of a plugin"


def test_every_score_has_a_row_with_its_metrics(results):
    table = score_tables.scores_table(results, "text_to_video")
    assert [row[1:4] for row in table.blocks[2]] == [
        ["GRAM", "2", "GRAM volume (own)"],
        ["GRAM", "2", "uniform centroid"],
        ["GRAM", "2", "video"],
        ["GRAM", "2", "audio *"],
    ]
    own = ["13.0 ± 4.2", "14.0 ± 4.2", "15.0 ± 4.2", "16.0 ± 4.2", "17.0 ± 4.2", "7.0 ± 0.0", "9.0 ± 0.0"]
    assert [str(cell) for cell in table.blocks[2][0][4:]] == [*own, "-2.0 ± 4.2", "10 ± 0"]
    back = score_tables.scores_table(results, "video_to_text")
    assert str(back.blocks[2][0][4]) == "12.0 ± 4.2" and len(back.columns) == 4 + 7
    masked = score_tables.scores_missing_table(results)
    assert [str(cell) for cell in masked.blocks[2][1][4:]] == [f"{11 - step:.1f} ± 4.2" for step in range(5)]


def test_a_score_that_one_seed_alone_measured_has_a_row_with_its_number_of_seeds(tmp_path):
    runs = [make_run("scalar", 50), make_run("scalar", 51)]
    for entry in runs[1]["retrieval"]["rates"]:
        entry["methods"]["symile"] = entry["methods"]["uniform"]
    table = score_tables.scores_table(load_results([save(tmp_path, *runs)]), "text_to_video")
    assert {row[3]: row[2] for row in table.rows}["Symile"] == "1"
    assert {row[3]: row[2] for row in table.rows}["uniform centroid"] == "2"


def test_recall_by_kind_of_caption_has_a_column_for_each_kind(tmp_path):
    runs = [make_run("scalar", 50), make_run("scalar", 51), make_run("gram", 50, method="gram")]
    for shift, run in enumerate(runs[:2]):
        run["retrieval"]["kinds"] = [
            {
                "kind": kind,
                "num_queries": count,
                "text_to_video_recall_at_1": {"scalar": recall + shift, "audio": recall},
            }
            for kind, count, recall in (("several", 700, 20.0), ("single", 300, 40.0))
        ]
    table = score_tables.kinds_table(load_results([save(tmp_path / "some", *runs)]))
    assert [heading for _, heading in table.columns[4:]] == ["several", "single"]
    assert [[str(cell) for cell in row[3:]] for row in table.rows] == [
        ["SCALAR (own)", "20.5 ± 0.7", "40.5 ± 0.7"],
        ["audio *", "20.0 ± 0.0", "40.0 ± 0.0"],
    ]
    assert "several 700 of miniature; single 300 of miniature" in table.note
    assert score_tables.kinds_table(load_results([save(tmp_path / "none", make_run("scalar"))])).blocks == []


def test_weights_differences_and_latent_numbers_are_laid_out(tmp_path):
    latent = {"num_classes": 8, "text_centroid_cosine": 0.444, "silhouette": {"video": 0.2, "audio": 0.199}}
    found = load_results([save(tmp_path, make_run("scalar", benchmark="vggsound", latent=latent))])
    assert cells(paper_tables.latent_table(found), "SCALAR") == ["8", "0.44", "0.20", "0.20", "–"]
    assert cells(paper_tables.latent_table(found), "paper: GRAM") == ["–", "0.48", "–", "0.26", "–"]
    assert cells(score_tables.weights_table(found), "50 %") == [
        "100",
        "88",
        "80",
        "0.50",
        "0.30",
        "0.20",
        "70",
        "20",
        "10",
    ]
    assert cells(score_tables.differences_table(found), "SCALAR − uniform centroid") == [
        "+2.0",
        "[+0.5, +3.5] at 95 %",
    ]
