"""Steps that gather rows: presets, files of one's own, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from densing.core import InputError, UnknownNameError
from densing.efficiency.simulation.gather import Gather, check_gather, gather_names, load_gather

STEP = Gather("toy", table_rows=100, width=8, rows=10, train_s=0.001)


def test_every_preset_says_where_its_figures_are_from() -> None:
    for name in gather_names():
        step = load_gather(name)
        assert step.name == name and step.source and step.evidence in {"derived", "recalled"}


def test_a_table_of_111_million_rows_is_57_gigabytes() -> None:
    step = load_gather("sage-papers100m")
    assert step.table_rows * step.row_bytes == 111_059_956 * 128 * 4
    assert step.table_parameters == 14_215_674_368


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("table_rows = 100\nwidth = 8\nrows = 10\ntrain_s = 0.001\n")
    assert load_gather(file) == replace(STEP, name="mine")
    file.write_text("table_rows = 100\nwidht = 8\n")
    with pytest.raises(InputError, match="widht"):
        load_gather(file)
    file.write_text("table_rows = 'many'\n")
    with pytest.raises(InputError, match=r"mine.toml: .*correct the field"):
        load_gather(file)
    file.write_text("table_rows = \n")
    with pytest.raises(InputError, match="not readable TOML"):
        load_gather(file)
    with pytest.raises(UnknownNameError, match="sage-redit"):
        load_gather("sage-redit")


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("width", 0, "width: 0 is out of range; give a whole number from 1"),
        ("rows", 101, "101 distinct rows of a table of 100; give at most that many"),
        ("table_rows", -1, "table_rows: -1 is out of range"),
        ("train_s", float("nan"), "train_s: nan is out of range; give seconds"),
        ("sample_s", -1.0, "sample_s: -1.0 is out of range"),
        ("dtype_bytes", 3, "3 is not a valid number of bytes"),
    ],
)
def test_numbers_that_do_not_go_together_are_refused(field: str, value: float, words: str) -> None:
    with pytest.raises(InputError, match=words):
        check_gather(replace(STEP, **{field: value}))
