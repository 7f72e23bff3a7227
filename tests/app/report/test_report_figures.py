import re

from tessera.app.report.columns import ReportColumn
from tessera.app.report.figures import _SERIES, k_curves, svg
from tessera.studies.clevr.entries import Paper
from tessera.studies.swingby.figures import INK


def share(value):
    return {"value": value, "low": max(0, value - 0.1), "high": min(1, value + 0.1)}


def evaluated(name="one", paper=9):
    found = {"value": 3, "low": 2, "high": 4}
    scores = {
        "max_train_objects": 3,
        "k_max": {"paper": found},
        "rows": [{"k": k, "n": 64, "all_found": share(1 / k), "succeeds": {"paper": k < 4}} for k in (1, 2, 3, 4)],
    }
    return ReportColumn(name, scores=scores, paper=Paper(paper))


def test_a_chart_has_the_colors_of_the_page_and_words_that_can_be_read():
    text = svg(k_curves([evaluated()], "paper"), "reach", "shares by K")
    assert "var(--ink, " + INK in text and f"var(--series-0, {_SERIES[0]})" in text
    assert f"stroke: {INK}" not in text  # none left that would not follow the page
    assert "<text" in text and "training range: 1 to 3 objects" in text and 'aria-label="shares by K"' in text


def test_the_same_numbers_give_the_same_text_and_no_date():
    first, again = (svg(k_curves([evaluated()], "paper"), "reach", "x") for _ in range(2))
    assert first == again and "dc:date" not in first


def test_two_charts_on_a_page_share_no_id():
    texts = [svg(k_curves([evaluated()], "paper"), name, "x") for name in ("a", "b")]
    one, two = (set(re.findall(r'\bid="([^"]+)"', text)) for text in texts)
    assert one and not one & two
    for text, ids in zip(texts, (one, two)):
        assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', text)) <= ids


def test_a_model_without_counts_leaves_the_others_as_they_are():
    assert svg(k_curves([evaluated(), ReportColumn("other")], "paper"), "reach", "x").startswith("<svg")
