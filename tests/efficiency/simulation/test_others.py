"""Steps that are no transformer's: linear problems and shared requests, by name or file, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from densing.core import InputError, UnknownNameError
from densing.efficiency.simulation.convex import Convex, check_convex, convex_names, load_convex
from densing.efficiency.simulation.gather import Gather, gather_names
from densing.efficiency.simulation.models import workload_names
from densing.efficiency.simulation.others import load_other
from densing.efficiency.simulation.served import EDGE, Served, check_served, load_served, served_names

PROBLEM = Convex(10, 5, 50, 2)
REQUEST = Served("toy", (1.0, 2.0, 4.0), (0.25, 0.5, 1.0), (8.0, 16.0), (0.125, 0.0625), tokens=3, width=5)


def test_every_name_is_one_kind_of_step_with_its_source() -> None:
    kinds = {Gather: gather_names(), Convex: convex_names(), Served: served_names()}
    for kind, names in kinds.items():
        for name in names:
            found = load_other(name)
            assert type(found) is kind
            assert (
                found.name == name and found.source and found.evidence in {"derived", "recalled", "measured", "assumed"}
            )
    assert {load_other(name) for name in workload_names()} == {None}


def test_a_file_is_the_kind_of_step_that_its_fields_are_of(tmp_path: Path) -> None:
    problem, request, gather = (tmp_path / f"{name}.toml" for name in ("problem", "request", "gather"))
    problem.write_text('n = 10\nd = 5\nnnz = 50\npartitions = 2\nloss = "squares"\n')
    request.write_text(
        "device_s = [1]\nedge_s = [2]\ndevice_ends_s = [0, 1]\nedge_ends_s = [0, 1]\ntokens = 3\nwidth = 5\n"
    )
    gather.write_text("table_rows = 100\nwidth = 8\nrows = 10\ntrain_s = 0.001\n")
    assert load_other(str(problem)) == load_convex(problem) == replace(PROBLEM, name="problem", loss="squares")
    assert load_other(str(request)) == load_served(request)
    assert isinstance(load_other(str(gather)), Gather)


def test_what_no_step_is_named_is_refused_and_what_may_be_a_transformer_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownNameError, match="film-words"):
        load_other("film-word")
    # Folders and files of a transformer's configuration, there or not.
    Path("mine").mkdir()
    assert [load_other(name) for name in ("mine", "hub/mine", "config.json")] == [None, None, None]


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("n", 0, "n is 0; give 1 or more"),
        ("d", 0, "d is 0"),
        ("nnz", 0, "nnz is 0"),
        ("partitions", 0, "partitions is 0"),
        ("nnz", 51, "51 entries of 10 items by 5 features; give at most 50"),
        ("loss", "hinge", "hinge"),
    ],
)
def test_linear_problems_that_cannot_be_are_refused(field: str, value: int | str, words: str) -> None:
    check_convex(PROBLEM)
    check_convex(replace(PROBLEM, n=1, d=1, nnz=1, partitions=1))
    with pytest.raises((InputError, UnknownNameError), match=words):
        check_convex(replace(PROBLEM, **{field: value}))
    assert PROBLEM.sent == 5 * 8


def test_a_request_is_computed_here_up_to_the_cut_and_there_from_it_to_the_exit() -> None:
    assert REQUEST.layers == 3
    assert REQUEST.split(3, None) == (8 + 1 + 2 + 4 + 16, 0)
    assert REQUEST.split(2, None) == (8 + 1 + 2 + 16, 0)
    assert REQUEST.split(2, EDGE) == (0, 0.125 + 0.25 + 0.5 + 0.0625)
    assert [REQUEST.split(2, cut) for cut in (0, 1, 2)] == [(8, 0.8125), (9, 0.5625), (11, 0.0625)]
    for left_at, cut, words in ((0, None, "exit=0"), (4, None, "exit=4"), (2, 3, "cut=3 lies"), (2, -2, "cut=-2")):
        with pytest.raises(InputError, match=words):
            REQUEST.split(left_at, cut)


def test_a_request_sends_numbers_of_tokens_states_or_levels_filled_to_bytes() -> None:
    # Levels of five numbers: 2, 3, 5 bytes at 2, 4, 8 bits, and 8 of their range.
    assert [REQUEST.sent(1, bits) for bits in (2, 4, 8, 16)] == [3 * 10, 3 * 11, 3 * 13, 3 * 10]
    assert (REQUEST.sent(None, 2), REQUEST.sent(EDGE, 2), REQUEST.sent(0, 16)) == (0, 12, 30)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"edge_s": (1.0,)}, "3 and 1 layers"),
        ({"device_s": (), "edge_s": ()}, "0 and 0 layers"),
        ({"device_s": (1.0, -1.0, 1.0)}, "device_s: -1.0 is out of range"),
        ({"edge_s": (1.0, float("inf"), 1.0)}, "edge_s: inf is out of range"),
        ({"device_ends_s": (0.0, float("nan"))}, "device_ends_s: nan"),
        ({"edge_ends_s": (-1.0, 0.0)}, "edge_ends_s: -1.0"),
        ({"tokens": 0}, "tokens: 0 is out of range; give a whole number from 1"),
        ({"width": 0}, "width: 0"),
        ({"parameters": -1}, "parameters: -1 is out of range; give a whole number from 0"),
    ],
)
def test_requests_that_cannot_be_are_refused(change: dict[str, object], words: str) -> None:
    check_served(replace(REQUEST, device_s=(0.0,) * 3, tokens=1, width=1))
    with pytest.raises(InputError, match=words):
        check_served(replace(REQUEST, **change))
