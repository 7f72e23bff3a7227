import csv
import io

import pytest

from tessera.app.report.tables_html import HtmlTable, _escaped, interval, mean, percent, without_empty_columns

SHEET = HtmlTable(
    "How far, 100%", ("model", "K_max", "note"), [("exp2_L", "9 [8, 10]", 'a "b", c')], words=frozenset({2})
)


def test_csv_reads_back_as_it_was():
    assert list(csv.reader(io.StringIO(SHEET.csv))) == [list(SHEET.head), *map(list, SHEET.rows)]


def test_latex_escapes_what_it_must_and_aligns_numbers_right():
    latex = SHEET.latex
    assert r"\begin{tabular}{lrl}" in latex and r"exp2\_L & 9 [8, 10] & " in latex
    assert r"\caption{How far, 100\%}" in latex and r"$K_{\max}$" in latex
    assert latex.count(r"\\") == 2  # a head and a row


def test_every_special_character_is_escaped():
    assert _escaped("a_b & 5% #1 {x} ~ ^ \\") == (
        r"a\_b \& 5\% \#1 \{x\} \textasciitilde{} \textasciicircum{} \textbackslash{}"
    )


def test_ragged_rows_are_refused():
    with pytest.raises(ValueError, match="rows of"):
        HtmlTable("x", ("a", "b"), [("1",)])


def test_numbers_come_with_their_intervals_and_nothing_stands_for_what_is_unknown():
    share = {"value": 0.875, "low": 0.77, "high": 0.95}
    assert percent(share) == "88 [77, 95]"
    assert percent(None) == percent({"value": None}) == mean(None) == ""
    assert mean({"value": 1.5, "low": 1.25, "high": 1.75}) == "1.50 [1.25, 1.75]"
    assert interval({"value": 0.5, "low": 0.4, "high": 0.6}) == "0.50 [0.40, 0.60]"
    assert interval(None) == "not measured"


def test_columns_that_say_nothing_are_left_out():
    full = HtmlTable("x", ("name", "a", "b", "c"), [("one", "", "1", "w"), ("two", "", "", "v")], words=frozenset({3}))
    less = without_empty_columns(full)
    assert list(less.head) == ["name", "b", "c"] and less.words == {2}
    assert [list(row) for row in less.rows] == [["one", "1", "w"], ["two", "", "v"]]
