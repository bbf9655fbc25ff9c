"""Markdown tables, whole and line by line."""

from __future__ import annotations

from helion_sinkhorn.lab.tuning import markdown


def test_a_table_is_its_head_and_its_lines():
    rows = [(1, "a"), (2, "")]
    whole = markdown.table(("n", ""), rows)
    assert whole == "| n |  |\n|---|---|\n| 1 | a |\n| 2 |  |"
    assert whole.splitlines() == [*markdown.head(("n", "")).splitlines(), *map(markdown.line, rows)]


def test_records_have_the_columns_of_all_and_a_rule_as_asked():
    records = iter([{"a": 1}, {"b": 0.5, "a": None}])
    assert markdown.of_records(records, " --- ") == "| a | b |\n| --- | --- |\n| 1 |  |\n| None | 0.5 |"


def test_a_bar_does_not_end_a_cell():
    assert markdown.line(["|x|", "y"]) == r"| \|x\| | y |"
