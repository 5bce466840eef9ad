"""Results that are kept: the same as made, made anew for other data or where a file is damaged, and never run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from densing.core import Array, cached
from tests.support.command import densing


@dataclass(frozen=True)
class Part:
    name: str
    ends: tuple[float, float] | None


@dataclass(frozen=True)
class Whole:
    draws: Array
    parts: dict[str, Part]
    table: pd.DataFrame


WHOLE = Whole(
    np.array([[0.1, np.nan], [np.inf, 1 / 3]]),
    {"a": Part("first", (-np.inf, 0.1 + 0.2)), "b": Part("second", None)},
    pd.DataFrame(
        {
            "n": [1, 2],
            "x": [1 / 3, np.inf],
            "word": ["one", ""],
            "day": pd.to_datetime(["2026-03-02", None]),
            "held": [True, False],
        }
    ),
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DENSING_CACHE", str(tmp_path))
    return tmp_path / "results"


def kept(*inputs: object, made: list[object], most: int = 1) -> Whole:
    def make() -> Whole:
        made.append(inputs)
        return WHOLE

    return cached(make, Whole, "whole", *inputs, by=cached, most=most)


def test_what_is_kept_is_what_was_made_to_the_last_digit(folder: Path) -> None:
    made: list[object] = []
    kept(np.arange(3.0), {"seed": 1}, made=made)
    again = kept(np.arange(3.0), {"seed": 1}, made=made)
    assert len(made) == 1
    np.testing.assert_array_equal(again.draws, WHOLE.draws)
    assert again.parts == WHOLE.parts
    pd.testing.assert_frame_equal(again.table, WHOLE.table, check_exact=True)
    again.draws[0, 0] = 2.0  # as writable as what was made


@pytest.mark.parametrize("other", [(np.arange(3.0) + 1e-16 + 1, {}), (np.arange(3), {}), (np.arange(3.0), {"seed": 2})])
def test_other_data_or_choices_are_worked_out_anew(folder: Path, other: tuple[object, ...]) -> None:
    made: list[object] = []
    kept(np.arange(3.0), {}, made=made)
    kept(*other, made=made)
    assert len(made) == 2


def test_a_damaged_file_is_made_anew_and_old_ones_go(folder: Path) -> None:
    made: list[object] = []
    kept(1, made=made)
    [file] = folder.iterdir()
    for damage in (b"", file.read_bytes()[:-3], b"\x80", b"\x83\xa5draws\x01\xa5parts\x80\xa5table\x01"):
        file.write_bytes(damage)
        assert kept(1, made=made).parts == WHOLE.parts
    assert len(made) == 5
    for number in range(4):
        kept(number, made=made, most=2)
    assert len(list(folder.iterdir())) == 2


def test_a_change_anywhere_in_the_wing_makes_it_anew(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The function stands in one room, and computes with what another has.
    wing = tmp_path / "made_house" / "wing"
    for room in (wing.parent, wing, wing / "one", wing / "other"):
        room.mkdir(exist_ok=True)
        (room / "__init__.py").write_text("")
    (wing / "one" / "work.py").write_text("def work():\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    work = import_module("made_house.wing.one.work").work
    made: list[object] = []

    def make() -> Whole:
        made.append(1)
        return WHOLE

    for _ in range(2):
        cached(make, Whole, "whole", by=work)
    assert len(made) == 1
    for changes, file in enumerate(("__init__.py", "table.csv"), 2):
        (wing / "other" / file).write_text("# changed")
        cached(make, Whole, "whole", by=work)
        assert len(made) == changes


def test_trend_answers_from_what_is_kept_the_same_and_loads_no_estimator(folder: Path, tmp_path: Path) -> None:
    quick = ("trend", "-b", "mmlu", "--until", "2023-12-31", "--permutations", "19", "--bootstrap", "50", "--json")
    cold, warm = densing(*quick), densing(*quick)
    assert cold.stdout == warm.stdout and json.loads(cold.stdout)["data"]["estimates"]
    assert densing(*quick, "--seed", "1").stdout != cold.stdout
    heavy = "{'scipy.stats', 'scipy.optimize', 'statsmodels'}"
    code = (
        f"import sys; sys.argv = ['densing', *{quick!r}]\n"
        "from densing.cli import main\n"
        "try:\n    main()\n"
        f"except SystemExit:\n    print(sorted({heavy} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ})
    assert done.stdout == cold.stdout
    assert done.stderr.splitlines()[-1] == "[]"


def test_processes_side_by_side_make_a_result_once(folder: Path) -> None:
    code = (
        "import os, time\n"
        "from densing.core import cached\n"
        "def make():\n    time.sleep(0.5)\n    return f'made by {os.getpid()}'\n"
        "print(cached(make, str, 'shared', by=cached))"
    )
    crowd = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert len({process.communicate(timeout=60)[0] for process in crowd}) == 1
    assert [file.suffix for file in folder.parent.rglob("*") if file.is_file()] == [".msgpack"], "no lock is left"
    assert all(process.returncode == 0 for process in crowd)
