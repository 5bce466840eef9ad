"""Runs of different size: how many devices each had, and in what else they differ."""

from __future__ import annotations

from densing.efficiency.profile.run import merge_run
from densing.efficiency.profile.scaling import scaling_notes, scaling_of
from densing.efficiency.profile.utilisation import parse_spec, run_utilisation
from tests.support.straggler_runs import A100, H100, changed, profiles


def test_the_size_of_a_run_is_what_any_rank_knows() -> None:
    run = changed(world_size=(-1, 8, -1))
    assert run.world_size == 8
    found = run_utilisation(run, parse_spec("params=1e6,tokens=1000"))
    assert found.model is not None and found.model.devices == 8 and found.notes == ()
    assert [row.devices for row in scaling_of({"a": merge_run(profiles()), "b": run}, "strong", {}).rows] == [3, 8]


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
