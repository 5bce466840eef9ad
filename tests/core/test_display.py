"""How results show themselves: at a prompt, in a notebook, in LaTeX; hostile names included."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from densing.core import Card, Note, Readable

HOSTILE = "<script>alert(1)</script> & 50 %_\\"


class Result(Readable):
    def __init__(self, table: pd.DataFrame | None) -> None:
        self.table = table

    def card(self) -> Card:
        notes = (Note("late", "info", "ends in 2024"), Note("wrong", "error", f"of {HOSTILE}"))
        return Card(f"Densities of {HOSTILE}", {"models": "2", "doubling time": "3.7 months"}, self.table, notes)


@pytest.fixture
def result() -> Result:
    table = {
        "model": [HOSTILE, "b"],
        "released": pd.to_datetime(["2024-07-01", None]),
        "params": [7e9, np.nan],
        "density": [1.23456, 0.5],
    }
    return Result(pd.DataFrame(table))


def test_a_prompt_shows_title_facts_table_and_the_severest_note_first(result: Result) -> None:
    lines = repr(result).splitlines()
    assert lines[0] == f"Densities of {HOSTILE}"
    assert lines[1:3] == ["  models         2", "  doubling time  3.7 months"]
    assert "7,000,000,000" in repr(result) and "1.23" in repr(result) and "2024-07-01" in repr(result)
    assert "nan" not in repr(result).lower() and "nat" not in repr(result).lower()
    assert lines[-2].startswith("  error:") and lines[-1] == "  info: ends in 2024"


def test_long_tables_end_with_what_is_left_out() -> None:
    long = Result(pd.DataFrame({"x": range(40)}))
    assert repr(long).count("\n") < 20 and "... 30 more rows" in repr(long)
    assert "... 10 more rows" in long._repr_html_()


def test_names_are_text_in_a_notebook(result: Result) -> None:
    shown = result._repr_html_()
    assert "<script>" not in shown and "&lt;script&gt;" in shown
    assert "<script>" not in result.style().to_html()


def test_latex_escapes_what_latex_would_read(result: Result) -> None:
    written = result.to_latex(label="tab:x")
    assert r"\& 50 \%\_\textbackslash{}" in written and r"\label{tab:x}" in written and r"\toprule" in written


def test_without_a_table_there_is_none_to_write() -> None:
    for method in (Result(None).to_latex, Result(None).style):
        with pytest.raises(ValueError, match="no table"):
            method()
    assert "Densities" in Result(None)._repr_html_()


def test_numbers_are_written_as_everywhere_else() -> None:
    table = pd.DataFrame({"value": [0.5, 0.0, -0.25, 12345.6, float("inf"), np.float32(0.125)]})
    assert [line.strip() for line in repr(Result(table)).splitlines()[-9:-2]] == [
        "value", "0.500", "0", "−0.250", "12,346", "∞", "0.125",
    ]  # fmt: skip
    assert r"$-$0.250" in Result(table).to_latex() and r"$\infty$" in Result(table).to_latex()
