"""The published tables are what the rows in the repository say; a changed row changes them."""

from __future__ import annotations

import re

import pytest
import results


def test_the_tables_are_what_the_rows_say():
    text = results.PAGE.read_text(encoding="utf-8")
    assert set(re.findall(r"<!-- rows: (\w+) -->", text)) == set(results.TABLES)
    assert results.page_with_tables(text) == text, "type: python scripts/results.py"


def test_a_changed_row_changes_its_table(monkeypatch):
    true = results.read_kept

    def one_wrong(name):
        rows = true(name)
        return [{**rows[0], "em": not rows[0]["em"]}, *rows[1:]] if name == results.SHIPPED else rows

    before = results.shipped_table()
    monkeypatch.setattr(results, "read_kept", one_wrong)
    assert results.shipped_table() != before


def test_rows_are_small_whole_and_hold_no_question():
    for path in results.ROWS.glob("*.jsonl.zst"):
        assert path.stat().st_size < 200_000, path.name
        rows = results.read_kept(path.name.removesuffix(".jsonl.zst"))
        assert len({row["id"] for row in rows}) == len(rows)
        assert not any("question" in row for row in rows)
    whole = {row["id"] for row in results.read_kept("whole-question")}
    assert len(whole) == 3_604
    assert {row["id"] for row in results.read_kept(results.SHIPPED)} <= whole


@pytest.mark.parametrize(
    ("value", "text"), [(0.5, ".500"), (-0.25, "-.250"), (1.0, "1.000"), (2.04, "2.040"), (None, "–")]
)
def test_figures_are_written_as_in_the_page(value, text):
    assert results._figure(value) == text
