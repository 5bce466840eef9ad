"""MFU: what is read of the model, what is lacking, whose peak counts. Scaling: in what runs of other size differ."""

from __future__ import annotations

import pytest

from densing.core.errors import InputError
from densing.efficiency.profile.efficiency import parse_spec, run_utilisation, scaling_notes, scaling_of
from densing.efficiency.profile.run import merge_run
from tests.support.straggler_runs import A100, H100, changed, profiles


def test_utilisation_of_a_run_uses_its_own_device_and_says_what_it_lacks() -> None:
    run = merge_run(profiles((0, 0)))
    used = run_utilisation(run, parse_spec("params=1e6,tokens=1000"))
    # 6 N per token; 1000 tokens in 1 ms on the three devices of the world, 312 TFLOP/s each (A100, bf16 dense).
    assert used.model is not None
    assert used.model.percent == pytest.approx(100 * 6e6 * 1e6 / (3 * 312e12))
    with pytest.raises(InputError, match="tokens"):
        run_utilisation(run, parse_spec("params=1e6"))
    with pytest.raises(InputError, match="not key=value"):
        parse_spec("params")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("", "--mfu '': add params=NUMBER"),
        (" , ", "add params=NUMBER"),
        ("peek=3", "--mfu: unknown key 'peek'; did you mean 'peak'\\? \\(known: .*params.*seq"),
        ("parms=3", "did you mean 'params'"),
        ("params=7B", "params=7B is not a number; write 7e9$"),
        ("params=1.5 m", "write 1.5e6$"),
        ("tokens=many", "write e.g. 7e9"),
        ("params=-1", "params=-1 is not a number above 0"),
        ("tokens=0", "tokens=0 is not a number above 0"),
        ("seq=nan", "seq=nan is not"),
        ("devices=inf", "devices=inf is not a whole number"),
        ("devices=2.5", "devices=2.5 is not a whole number"),
        ("attention=2", "attention=2 is not 0 or 1"),
        ("params=1,parameters=2", "repeats a key"),
    ],
)
def test_what_utilisation_cannot_read_is_named_by_the_users_keys(spec: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_spec(spec)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("tokens=1", "^--mfu: add params=NUMBER$"),
        ("params=1e6,tokens=1,layers=2", "^--mfu: layers=2 alone: also give heads, head_dim and seq$"),
        ("params=1e6,tokens=1,layers=2,seq=8", "^--mfu: layers=2 and seq=8 alone: also give heads and head_dim$"),
        ("params=1e6,tokens=1,attention=1", "attention=1 alone: also give layers, heads, head_dim and seq"),
        ("params=1e6,tokens=1,batch=3", "formula palm: unknown key 'batch'.*known: attention.*params"),
        ("formula=mosaicml,params=1e6,tokens=1,layers=1", "add hidden=NUMBER and seq=NUMBER .formula mosaicml"),
        ("formula=megatron,params=1e6", "formula megatron: unknown key 'params'"),
        ("formula=megatron,batch=1,seq=1,layers=1,hidden=1,vocabulary=1,tokens=5", "per iteration; leave tokens out"),
        ("formula=plam,params=1", "^--mfu: unknown FLOPs formula 'plam'; did you mean 'palm'"),
        ("params=1e6,tokens=1,recompute=selective", "^--mfu: recompute=selective: formula palm .*formula=megatron"),
        ("params=1e6,tokens=1,dtype=foo", "^--mfu: unknown data type 'foo'"),
        ("params=1e6,tokens=1,peak=312e12", "^--mfu: peak .*write 312"),
        ("params=1e15,tokens=1000", "^--mfu: [HM]FU .* above 100 %.*peak=TFLOPS to --mfu$"),
    ],
)
def test_what_utilisation_lacks_is_named_by_the_users_keys(spec: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        run_utilisation(merge_run(profiles()), parse_spec(spec))


def test_utilisation_takes_a_shape_whole_or_not_at_all() -> None:
    run = merge_run(profiles())
    plain = run_utilisation(run, parse_spec("params=1e6,tokens=1000,peak=312,dtype=foo"))
    shaped = run_utilisation(run, parse_spec("params=1e6,tokens=1000,peak=312,layers=2,heads=4,head_dim=8,seq=16"))
    without = run_utilisation(run, parse_spec("params=1e6,tokens=1000,peak=312,layers=2,attention=0"))
    assert plain.model is not None and shaped.model is not None and without.model is not None
    assert plain.model.peak.dtype == "foo"
    assert shaped.model.percent / plain.model.percent == pytest.approx((6e6 + 12 * 2 * 4 * 8 * 16) / 6e6)
    assert without.model.percent == plain.model.percent


def test_an_unknown_peak_is_asked_for_by_its_key() -> None:
    used = run_utilisation(merge_run(profiles()), parse_spec("params=1e6,tokens=1,device=Ascend910B3"))
    assert used.model is None and used.hardware is None
    assert used.notes[0].code == "peak-unknown" and used.notes[0].message.endswith("peak=TFLOPS in --mfu")


def test_unlike_devices_have_no_common_peak() -> None:
    run, spec = changed(devices=((A100,), (H100,), (A100,))), "params=1e6,tokens=1000"
    with pytest.raises(InputError, match=r"^--mfu: the traces list several devices .*device=NAME"):
        run_utilisation(run, parse_spec(spec))
    assert run_utilisation(run, parse_spec(f"{spec},device={H100}")).model is not None
    assert run_utilisation(run, parse_spec(f"{spec},peak=300")).model is not None
    same = changed(devices=((A100,), ("NVIDIA A100-PG509-200",), (A100,)))
    assert run_utilisation(same, parse_spec(spec)).model is not None


def test_a_run_of_unknown_size_says_what_was_counted() -> None:
    run = changed(world_size=(-1, -1, -1))
    [note] = run_utilisation(run, parse_spec("params=1e6,tokens=1000")).notes
    assert note.code == "devices-assumed" and "3 profiled" in note.message
    assert run_utilisation(run, parse_spec("params=1e6,tokens=1000,devices=64")).notes == ()


def test_the_size_of_a_run_is_what_any_rank_knows() -> None:
    run = changed(world_size=(-1, 8, -1))
    assert run.world_size == 8
    used = run_utilisation(run, parse_spec("params=1e6,tokens=1000"))
    assert used.model is not None and used.model.devices == 8 and used.notes == ()
    assert [row.devices for row in scaling_of({"a": merge_run(profiles()), "b": run}, "strong", {}).rows] == [3, 8]


@pytest.mark.parametrize(("sizes", "told"), [((1, 1, 1), False), ((-1, -1, 1), False), ((0, -1, 0), True)])
def test_a_size_is_assumed_where_no_rank_states_one(sizes: tuple[int, int, int], told: bool) -> None:
    run = changed(world_size=sizes)
    assert [note.code for note in scaling_notes({"run": run})] == ["size-assumed"] * told


def test_runs_that_differ_in_more_than_size_are_told() -> None:
    small, large = changed(), changed(world_size=(8, 8, 8))
    assert list(scaling_notes({"small": small, "large": large})) == []
    other = changed(devices=((H100,),) * 3)
    [note] = scaling_notes({"small": small, "other": other})
    assert note.code == "different-devices" and f"small: {A100}; other: {H100}" in note.message
    [note] = scaling_notes({"small": small, "unknown": changed(world_size=(-1, -1, -1), devices=((), (), ()))})
    assert note.code == "size-assumed" and note.message.startswith("unknown: no trace states")
    [note] = scaling_notes(
        {"small": small, "host": changed(world_size=(9, 9, 9), devices=((), (), ()), on_host=(True,) * 3)}
    )
    assert note.code == "different-devices" and "host: processor" in note.message
