"""Layouts of a table: on a screen and in CSV."""

import csv

import pytest

from evidence.reports.tables import Cell, MetricsTable, markdown, write_csv


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (Cell(), "–"),
        (Cell((12.34,)), "12.3"),
        (Cell((-1.0,), signed=True), "-1.0"),
        (Cell((1.0, 3.0), signed=True), "+2.0 ± 1.4"),  # sample deviation: sqrt(2), not 1
        (Cell((20.0, 22.0, 24.0)), "22.0 ± 2.0"),
        (Cell((950.0,), digits=0), "950"),
        (Cell((0.2, -0.1, -0.1), signed=True), "+0.0 ± 0.2"),  # their float64 mean is -1e-17
        (Cell((-0.0,), signed=True), "-0.0"),  # as the paper prints it
        (Cell((54.6,), published_deviation=0.2), "54.6 ± 0.2"),
    ],
)
def test_a_mean_has_the_sample_deviation_of_two_or_more(cell, text):
    assert str(cell) == text


@pytest.fixture
def table():
    blocks = [[["A", "one", Cell((1.0, 3.0)), ""], ["A", "two & 50 %", Cell((5.0,)), ""]], [["B", "one", Cell(), ""]]]
    columns = [("", "benchmark"), ("", "label"), ("T→V", "R@1"), ("T→V", "R@10")]
    return MetricsTable("example", "An example", "A note.", columns, blocks, num_keys=2)


def test_columns_of_a_table_stand_below_each_other_and_repeated_keys_are_blank(table):
    assert markdown(table).splitlines() == [
        "| benchmark | label      |   T→V R@1 | T→V R@10 |",
        "| --------- | ---------- | --------: | -------: |",
        "| A         | one        | 2.0 ± 1.4 |          |",
        "|           | two & 50 % |       5.0 |          |",
        "| B         | one        |         – |          |",
    ]


def test_csv_keeps_digits_repeats_keys_and_has_columns_for_deviations(table, tmp_path):
    write_csv(table, tmp_path / "table.csv")
    header, first, *rest = csv.reader((tmp_path / "table.csv").open(newline=""))
    assert header == ["benchmark", "label", "T→V R@1", "T→V R@1 sd", "T→V R@10"]
    assert first[:3] == ["A", "one", "2.0"] and float(first[3]) == pytest.approx(2**0.5)
    assert rest == [["A", "two & 50 %", "5.0", "", ""], ["B", "one", "", "", ""]]
