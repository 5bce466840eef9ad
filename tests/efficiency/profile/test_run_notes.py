"""What a run says of itself as a whole: unlike ranks, devices, one line in a notebook."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from densing.core.errors import InputError
from densing.efficiency.profile.rank import RankProfile
from densing.efficiency.profile.run import RunProfile, merge_run
from densing.efficiency.profile.run_notes import run_notes
from densing.efficiency.profile.scaling import scaling_notes, scaling_of
from densing.efficiency.profile.utilisation import parse_spec, run_utilisation
from densing.report.profile import render
from tests.efficiency.profile.test_run import profiles

A100, H100 = "NVIDIA A100-SXM4-40GB", "NVIDIA H100 80GB HBM3"


def changed(**fields: tuple[object, ...]) -> RunProfile:
    """Merge ranks of which single fields are replaced, rank by rank."""
    ranks: list[RankProfile] = profiles((0, 0, 0))
    for name, values in fields.items():
        ranks = [replace(rank, **{name: value}) for rank, value in zip(ranks, values, strict=True)]
    return merge_run(ranks)


def test_an_object_prints_as_one_line() -> None:
    run = merge_run(profiles())
    assert repr(run) == "RunProfile(ranks=3, window='steps', steps=12, exposed_pct=35.67, overlap_pct=0, idle_pct=11)"
    assert len(repr(run.ranks[0])) < 400 and repr(run.ranks[0]).startswith(
        "RankProfile(rank=0, window='steps', steps=4"
    )


def test_alike_ranks_need_no_word() -> None:
    codes = {note.code for note in changed().notes}
    assert not codes & {"mixed-devices", "mixed-work", "mixed-world-sizes", "mixed-steps", "rank-beyond-world"}


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ({"devices": ((A100,), (H100,), ())}, "mixed-devices", f"{A100} (1 rank(s), rank0.json); {H100} (1 rank(s)"),
        ({"on_host": (False, False, True)}, "mixed-work", "accelerator (2 rank(s), rank0.json); processor (1 rank(s)"),
        ({"steps": (profiles()[0].steps, (), ())}, "mixed-steps", "2 of 3 ranks mark no steps (rank1.json)"),
        ({"world_size": (3, 3, 8)}, "mixed-world-sizes", "3 (2 rank(s), rank0.json); 8 (1 rank(s)"),
        ({"world_size": (3, 3, 2)}, "rank-beyond-world", "rank2.json: is rank 2 of a run that has 2 ranks"),
    ],
)
def test_unlike_ranks_are_named(fields: dict[str, tuple[object, ...]], code: str, words: str) -> None:
    [note] = [note for note in changed(**fields).notes if note.code == code]
    assert words in note.message and note.severity == "warning"


def test_devices_are_those_of_all_ranks() -> None:
    assert changed(devices=((A100,), (H100, A100), ())).devices == (A100, H100)
    assert changed(devices=((), (), ())).devices == ()


def test_unlike_devices_have_no_common_peak() -> None:
    run, spec = changed(devices=((A100,), (H100,), (A100,))), "params=1e6,tokens=1000"
    with pytest.raises(InputError, match=r"^--mfu: the traces list several devices .*device=NAME"):
        run_utilisation(run, parse_spec(spec))
    assert run_utilisation(run, parse_spec(f"{spec},device={H100}")).model is not None
    assert run_utilisation(run, parse_spec(f"{spec},peak=300")).model is not None
    same = changed(devices=((A100,), ("NVIDIA A100-PG509-200",), (A100,)))
    assert run_utilisation(same, parse_spec(spec)).model is not None


def test_the_size_of_a_run_is_what_any_rank_knows() -> None:
    run = changed(world_size=(-1, 8, -1))
    assert run.world_size == 8
    found = run_utilisation(run, parse_spec("params=1e6,tokens=1000"))
    assert found.model is not None and found.model.devices == 8 and found.notes == ()
    assert [row.devices for row in scaling_of({"a": merge_run(profiles()), "b": run}, "strong", {}).rows] == [3, 8]


def test_a_run_of_unknown_size_says_what_was_counted() -> None:
    run = changed(world_size=(-1, -1, -1))
    [note] = run_utilisation(run, parse_spec("params=1e6,tokens=1000")).notes
    assert note.code == "devices-assumed" and "3 profiled" in note.message
    assert run_utilisation(run, parse_spec("params=1e6,tokens=1000,devices=64")).notes == ()


def test_runs_that_differ_in_more_than_size_are_told() -> None:
    small, large = changed(), changed(world_size=(8, 8, 8))
    assert list(scaling_notes({"small": small, "large": large})) == []
    other = changed(devices=((H100,),) * 3)
    [note] = scaling_notes({"small": small, "other": other})
    assert note.code == "different-devices" and f"small: {A100}; other: {H100}" in note.message
    [note] = scaling_notes({"small": small, "unknown": changed(world_size=(-1, -1, -1), devices=((), (), ()))})
    assert note.code == "size-assumed" and note.message.startswith("unknown: no trace tells")
    [note] = scaling_notes(
        {"small": small, "host": changed(world_size=(9, 9, 9), devices=((), (), ()), on_host=(True,) * 3)}
    )
    assert note.code == "different-devices" and "host: processor" in note.message


def test_missing_ranks_are_named_where_they_are_few() -> None:
    def told(world: int) -> str:
        [text] = [note.message for note in changed(world_size=(world,) * 3).notes if note.code == "ranks-missing"]
        return text

    assert told(5) == "3 of the run's 5 ranks were profiled; missing: 3, 4"
    assert told(4096) == "3 of the run's 4096 ranks were profiled; missing: 3 to 4095"
    assert told(4) == "3 of the run's 4 ranks were profiled; missing: 3"


def test_a_header_may_claim_any_number_of_ranks() -> None:
    """Told by arithmetic: as many ranks as fit into 31 bits were once counted one by one."""
    run = changed(world_size=(2**31 - 1,) * 3)
    assert [n.message for n in run.notes if n.code == "ranks-missing"] == [
        "3 of the run's 2147483647 ranks were profiled; missing: 3 to 2147483646"
    ]
    assert run.world_size == 2**31 - 1 and "3 of 2147483647" in render(run)


def test_gaps_between_ranks_are_abbreviated() -> None:
    ranks = [replace(one, rank=rank, world_size=40) for one, rank in zip(profiles((0, 0, 0)), (2, 5, 9), strict=True)]
    [text] = [note.message for note in run_notes(ranks) if note.code == "ranks-missing"]
    assert text.endswith("missing: 0, 1, 3, 4, 6 to 8, 10 to 39")
    every_second = [replace(ranks[0], rank=rank, world_size=40) for rank in range(0, 40, 2)]
    [text] = [note.message for note in run_notes(every_second) if note.code == "ranks-missing"]
    assert text.endswith("missing: 1, 3, 5, 7, 9, 11, 13, 15 and 12 more")
