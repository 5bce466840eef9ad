"""How results show themselves: at a prompt, in a notebook, in LaTeX; hostile names included."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from densing.core import Card, Field, Listing, Note, Readable, column, formatting, listing_of, numeric

HOSTILE = "<script>alert(1)</script> & 50 %_\\"


class Result(Readable):
    def __init__(self, table: Listing | None) -> None:
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
    fields = (
        Field("Model", column("model")),
        numeric("Released", "released", formatting.day),
        numeric("Parameters", "params", formatting.size),
        numeric("Density", "density"),
        Field("Known as", column("known_as"), optional=True),
        Field("Source", lambda row: "made up", minor=True),
    )
    return Result(Listing("Two models.", pd.DataFrame(table), fields))


def test_a_prompt_shows_title_facts_table_and_the_severest_note_first(result: Result) -> None:
    lines = repr(result).splitlines()
    assert lines[0] == f"Densities of {HOSTILE}"
    assert lines[1:3] == ["  models         2", "  doubling time  3.7 months"]
    assert [line.split()[-4:] for line in lines[4:7]] == [
        ["Model", "Released", "Parameters", "Density"], ["2024-07-01", "7", "B", "1.2"], ["b", "–", "–", "0.50"],
    ]  # fmt: skip
    assert "nan" not in repr(result).lower() and "nat" not in repr(result).lower()
    assert lines[-2].startswith("  error:") and lines[-1] == "  info: ends in 2024"


def test_long_tables_end_with_what_is_left_out() -> None:
    long = Result(listing_of("Forty.", pd.DataFrame({"x": range(40)})))
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
    frame = pd.DataFrame({"value": [0.5, 0.0, -0.25, 12345.6, float("inf"), np.float32(0.125)]})
    table = listing_of("Values.", frame)
    assert [line.strip() for line in repr(Result(table)).splitlines()[-9:-2]] == [
        "value", "0.500", "0", "−0.250", "12,346", "∞", "0.125",
    ]  # fmt: skip
    assert r"$-$0.250" in Result(table).to_latex() and r"$\infty$" in Result(table).to_latex()


def test_all_forms_show_the_same_cells_and_leave_out_the_same_columns(result: Result) -> None:
    assert result.table is not None
    frame = result.table.texts()
    assert frame.columns.tolist() == ["Model", "Released", "Parameters", "Density"]
    for cell in ("2024-07-01", "7 B", "1.2", "0.50"):
        assert all(cell in text for text in (repr(result), result._repr_html_(), result.to_latex()))
        assert cell in frame.to_numpy()
    assert "made up" in "\n".join(result.table.lines(every=True)) and "made up" not in repr(result)


def test_a_narrow_terminal_folds_text_keeps_figures_and_leaves_out_columns_from_the_end(result: Result) -> None:
    table = result.table
    assert table is not None
    for room in range(16, 90):
        lines, hidden = table.laid_out(room)
        assert max(map(len, lines)) <= max(room, 16)
        heads = [field.head for field in table.main()]
        assert lines[0].split() + hidden == heads
    assert len(table.laid_out(60)[0]) > len(table.lines()), "a long name folds"
    assert "2024-07-01" in "".join(table.laid_out(30)[0])


def test_wide_and_combining_characters_take_their_columns() -> None:
    rows = [{"name": "模型"}, {"name": "e\u0301"}, {"name": "abcd"}]
    lines = Listing(
        "Names.", [{**row, "n": 1} for row in rows], (Field("A", column("name")), numeric("N", "n"))
    ).lines()
    assert lines[1:] == ["模型  1.0", "e\u0301     1.0", "abcd  1.0"]
