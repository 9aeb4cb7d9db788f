"""Layouts of a table: on a screen and in CSV."""

import csv

import pytest

from evidence.reports.tables import Cell, MetricsTable, markdown, write_csv


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (Cell(), "–"),
        (Cell((1.0, 3.0), signed=True), "+2.0 ± 1.4"),  # sample deviation: sqrt(2), not 1
        (Cell((0.2, -0.1, -0.1), signed=True), "+0.0 ± 0.2"),  # their float64 mean is -1e-17
        (Cell((-0.0,), signed=True), "-0.0"),  # as the paper prints it
    ],
)
def test_a_mean_has_the_sample_deviation_of_two_or_more(cell, text):
    assert str(cell) == text


def test_repeated_keys_are_blank_on_a_screen_and_csv_repeats_them_with_all_digits_and_deviations(tmp_path):
    rows = [["A", "one", Cell((1.0, 3.0))], ["A", "two & 50 %", Cell((5.0,))]], [["B", "one", Cell()]]
    columns = [("", "benchmark"), ("", "label"), ("T→V", "R@1")]
    table = MetricsTable("example", "An example", "A note.", columns, list(rows), num_keys=2)
    assert markdown(table).splitlines() == [
        "| benchmark | label      |   T→V R@1 |",
        "| --------- | ---------- | --------: |",
        "| A         | one        | 2.0 ± 1.4 |",
        "|           | two & 50 % |       5.0 |",
        "| B         | one        |         – |",
    ]
    write_csv(table, tmp_path / "table.csv")
    assert list(csv.reader((tmp_path / "table.csv").open(newline=""))) == [
        ["benchmark", "label", "T→V R@1", "T→V R@1 sd"],
        ["A", "one", "2.0", str(2**0.5)],
        ["A", "two & 50 %", "5.0", ""],
        ["B", "one", "", ""],
    ]
