import csv
import io

import pytest

from tessera.app.report.tables_html import HtmlTable, _escaped, cell, in_words, interval

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
    assert in_words(share, "%") == "88 [77, 95]"
    assert in_words(None) == in_words({"value": None}, "%") == ""
    assert interval({"value": 1.5, "low": 1.25, "high": 1.75}) == "1.50 [1.25, 1.75]"
    assert in_words(True) == "✓" and in_words(False) == "✗" and in_words([1, 2.5], "g") == "1, 2.5"


def test_one_sample_has_no_interval_unless_it_is_of_a_share():
    assert interval({"value": 2.0, "low": 2.0, "high": 2.0, "n": 1}) == "2.00"
    assert interval({"value": 2.0, "low": 2.0, "high": 2.0, "n": 64}) == "2.00 [2.00, 2.00]"
    assert in_words({"value": 1.0, "low": 0.21, "high": 1.0, "n": 1}, "%") == "100 [21, 100]"
    assert interval({"value": 2.0, "low": None, "high": None}) == "2.00"


def test_a_cell_is_found_by_its_path_and_unknown_ones_are_empty():
    row = {"n": 8, "detector": {"exact": {"value": 0.5, "low": 0.25, "high": 0.75}}, "succeeds": {"paper": True}}
    assert [cell(row, what) for what in ("n", "detector.exact:%", "succeeds.paper", "succeeds.strict", "a.b.c")] == [
        "8", "50 [25, 75]", "✓", "", "",
    ]  # fmt: skip


def test_columns_that_say_nothing_are_left_out():
    records = [{"name": "one", "b": 1, "c": "w"}, {"name": "two", "c": "v"}]
    less = HtmlTable.of("x", records, {"name": "name", "a": "a", "b": "b", "c": "c"}, words=("c",))
    assert list(less.head) == ["name", "b", "c"] and less.words == {2}
    assert [list(row) for row in less.rows] == [["one", "1", "w"], ["two", "", "v"]]
