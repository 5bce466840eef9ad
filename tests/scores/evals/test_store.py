"""The result store: keys, names, damage, merging."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from densing.core.errors import ArtefactError, InputError
from densing.scores.evals.identity import UnitKey, canonical_json, safe_name
from densing.scores.evals.store import RunStore, Unit, merge, read_run
from tests.support.eval_files import finish, finish_many, key, samples_of, write_results

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


# ---- keys ----------------------------------------------------------------------------------------------------


@given(st.dictionaries(st.text(max_size=5), JSON, max_size=4))
def test_digest_is_of_content(settings: dict[str, object]) -> None:
    turned = dict(reversed(settings.items()))
    first = UnitKey({}, {}, settings, "a")
    assert first.digest == UnitKey({}, {}, turned, "b").digest
    assert UnitKey.from_dict(json.loads(json.dumps(first.to_dict()))).digest == first.digest
    assert UnitKey({}, {}, {**settings, "one more": 1}, "a").digest != first.digest
    assert UnitKey({"x": 1}, {}, settings, "a").digest != first.digest


def test_digest_is_sha256_of_canonical_json() -> None:
    # printf '%s' '{"model":{},"settings":{},"task":{}}' | sha256sum
    assert UnitKey({}, {}, {}, "").digest == "1495693ac2265f042fb8d3754ac809f5bd5c32eb3ec20185a1ef53163acaf795"
    assert canonical_json({"task": {}, "model": {}, "settings": {}}) == '{"model":{},"settings":{},"task":{}}'
    assert key(limit=40).digest == key(limit=40.0).digest != key(limit=41).digest


@pytest.mark.parametrize("value", [float("nan"), object(), {1, 2}, b"x"])
def test_key_refuses_what_json_cannot_say(value: object) -> None:
    with pytest.raises(InputError, match="cannot be part of a unit's key"):
        UnitKey({}, {}, {"seed": value}, "a")


@given(st.text(max_size=300))
def test_safe_names(text: str) -> None:
    name = safe_name(text)
    assert 0 < len(name) <= 80
    assert name.isascii()
    assert name == Path(name).name
    assert not name.startswith((".", "-"))
    assert ".." not in name


@pytest.mark.parametrize(
    "label", ["../../../etc/passwd", "/abs", "C:\\x", "a\x00b", "x" * 5000, "名前", "con", "", "."]
)
def test_hostile_labels_stay_inside(tmp_path: Path, label: str) -> None:
    unit = finish(tmp_path / "run", key(label=label))
    assert unit.folder.parent == tmp_path / "run" / "units"
    assert unit.status == "done"
    assert set(RunStore(tmp_path / "run").measurements()["model"]) == {label}
    assert Path(key(task=label).folder).name == key(task=label).folder


def test_names_that_collide_are_kept_apart() -> None:
    names = {key(label=label, seed=i).folder.lower() for i, label in enumerate(["A/b", "a-b", "A-B", "ä/b"])}
    assert len(names) == 4


# ---- one unit ------------------------------------------------------------------------------------------------


def test_files_stay_as_lm_eval_wrote_them(tmp_path: Path) -> None:
    source = write_results(tmp_path / "own", {"toy": samples_of("toy")})
    unit = finish(tmp_path / "run", key())
    assert (unit.folder / source.name).read_bytes() == source.read_bytes()
    assert {p.name for p in unit.folder.iterdir()} == {*unit.manifest["files"], "unit.json", "unit.lock"}
    assert unit.status == "done"
    items = unit.items()
    assert items is not None
    assert items["nll"].tolist() == [5.1875, 6.4375, 7.6875, 8.9375]


def test_second_result_does_not_replace_the_first(tmp_path: Path) -> None:
    first = finish(tmp_path / "run", key())
    before = {p.name: p.read_bytes() for p in first.folder.iterdir() if p.suffix != ".lock"}
    finish(tmp_path / "run", key(), n=3)
    assert before == {p.name: p.read_bytes() for p in first.folder.iterdir() if p.name in before}


def test_opening_has_no_side_effects(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "none")
    assert store.units() == store.partial() == store.all_units() == []
    assert store.measurements().empty
    assert store.unit(key()).status == "absent"
    assert not (tmp_path / "none").exists()


def test_an_overview_counts_units_and_bytes(tmp_path: Path) -> None:
    run = tmp_path / "a"
    finish(run, key("t1"))
    finish(run, key("t2", "models/other"))
    broken = finish(run, key("t3"))
    broken.results_path.write_text("{}")
    store = RunStore(run)
    (begun := store.unit(key("t4"))).folder.mkdir()
    begun.journal_path.write_bytes(b"journal")
    overview = store.overview()
    assert (overview.run, overview.done, overview.partial, overview.damaged) == ("a", 2, 1, 1)
    assert (overview.models, overview.tasks) == (["models/other", "models/tiny"], ["t1", "t2"])
    total = sum(path.stat().st_size for path in run.rglob("*") if path.is_file())
    assert overview.megabytes == round(total / 1e6, 3) and overview.date == ""
    store.record_plan({"models": []})
    assert store.overview("b/a").run == "b/a" and len(store.overview().date) == 10
    (run / "run.json").write_text("{")
    assert store.overview().date == "damaged"


def test_partial_is_not_done(tmp_path: Path) -> None:
    unit = RunStore(tmp_path).unit(key())
    unit.folder.mkdir(parents=True)
    unit.journal_path.write_bytes(b"")
    assert (unit.status, unit.done) == ("partial", False)
    assert [found.folder for found in RunStore(tmp_path).partial()] == [unit.folder]
    assert [note.code for note in read_run(RunStore(tmp_path)).notes] == ["unit-partial"]


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda u: u.results_path.unlink(), "missing"),
        (lambda u: (u.folder / "items.parquet").write_bytes(b"PAR1"), "bytes where the manifest says"),
        (lambda u: _flip(u.folder / "items.parquet"), "content differs"),
        (lambda u: (u.folder / "unit.json").write_text('{"schema": 1, "key": '), "not JSON"),
        (lambda u: (u.folder / "unit.json").write_text('{"schema": 99}'), "schema 99, expected 1"),
        (lambda u: (u.folder / "unit.json").write_text("[]"), "schema 'list'"),
        (lambda u: (u.folder / "unit.json").write_text('{"schema": 1, "key": {}, "files": {}}'), "needs mappings"),
        (lambda u: (u.folder / "unit.json").write_bytes(b"\xff\xfe"), "not UTF-8"),
        (lambda u: _edit(u, "digest", "0" * 64), "does not belong to this key"),
        (lambda u: _edit(u, "files", {"../../run.json": {"bytes": 1}}), "no file of the folder"),
        (lambda u: _edit(u, "files", {"x": 3}), "no file of the folder"),
    ],
)
def test_damage_is_a_status(tmp_path: Path, harm: object, message: str) -> None:
    finish(tmp_path, key("other"))
    unit = finish(tmp_path, key())
    harm(unit)  # type: ignore[operator]
    again = Unit(unit.folder)
    assert again.status == "damaged"
    assert message in again.problems()[0]
    read = read_run(RunStore(tmp_path))
    assert [note.code for note in read.notes if note.severity == "error"] == ["unit-damaged"]
    assert set(read.measurements["task"]) == {"other"}
    # Evaluating it again heals it.
    assert finish(tmp_path, key()).status == "done"
    assert set(RunStore(tmp_path).measurements()["task"]) == {"other", "toy"}


def _edit(unit: Unit, name: str, value: object) -> None:
    path = unit.folder / "unit.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), name: value}))


def test_finish_wants_one_results_file(tmp_path: Path) -> None:
    unit = RunStore(tmp_path).unit(key())
    with unit.stage() as staged, pytest.raises(InputError, match=r"expected one results_\*\.json .* found none"):
        unit.finish(staged, {})
    assert not list(unit.folder.glob(".staging-*"))


def test_samples_that_cannot_be_read_do_not_lose_the_results(tmp_path: Path) -> None:
    unit = RunStore(tmp_path).unit(key())
    with unit.stage() as staged:
        write_results(staged, {"toy": samples_of("toy")})
        next(staged.glob("samples_*")).write_text('{"doc_id": "x"}\n')
        unit.finish(staged, {})
    assert unit.status == "done"
    assert "doc_id is 'x'" in unit.manifest["caveats"][0]
    assert set(RunStore(tmp_path).measurements()["metric"]) == {"acc"}


def test_two_models_of_one_label_are_told_apart(tmp_path: Path) -> None:
    finish(tmp_path, key())
    other = UnitKey({"type": "hf", "revision": "def"}, {"name": "toy"}, {}, "models/tiny")
    finish(tmp_path, other)
    store = RunStore(tmp_path)
    names = set(store.measurements()["model"])
    assert len(names) == 2
    assert all(name.startswith("models/tiny@") for name in names)
    assert names == set(store.models()["model"]) == set(store.items()["model"])


# ---- merging -------------------------------------------------------------------------------------------------


def test_merge_copies_each_unit_once(tmp_path: Path) -> None:
    finish_many(str(tmp_path / "a"), ["t0", "t1"])
    finish_many(str(tmp_path / "b"), ["t1", "t2"])
    RunStore(tmp_path / "a").record_plan({"n": 1})
    RunStore(tmp_path / "b").record_plan({"n": 2})
    (tmp_path / "b" / "units" / "x__y__12345678").mkdir()
    (tmp_path / "b" / "units" / "x__y__12345678" / "journal.sqlite").write_bytes(b"")
    stores = [RunStore(tmp_path / name) for name in "ab"]
    for _ in range(2):
        merged = merge(stores, tmp_path / "ab")
        assert [unit.key.task_name for unit in merged.units() if unit.key] == ["t0", "t1", "t2"]
        assert [entry["plan"]["n"] for entry in merged.run["plans"]] == [1, 2]
    one = stores[0].measurements().drop(columns="file")
    both = merged.measurements().drop(columns="file")
    pd.testing.assert_frame_equal(both[both["task"].isin(["t0", "t1"])].reset_index(drop=True), one)


def test_merge_refuses_a_clash_and_damage(tmp_path: Path) -> None:
    finish(tmp_path / "a", key(), n=4)
    other = finish(tmp_path / "b", key(), n=3)
    with pytest.raises(ArtefactError, match="one key, different results; delete the wrong one"):
        merge([RunStore(tmp_path / "a"), RunStore(tmp_path / "b")], tmp_path / "out")
    other.results_path.unlink()
    with pytest.raises(ArtefactError, match="missing"):
        merge([RunStore(tmp_path / "b")], tmp_path / "out")
    with pytest.raises(InputError, match="no such run"):
        merge([RunStore(tmp_path / "nowhere")], tmp_path / "out")


def test_same_numbers_at_another_time_are_no_clash(tmp_path: Path) -> None:
    finish(tmp_path / "a", key())
    unit = RunStore(tmp_path / "b").unit(key())
    with unit.stage() as staged:
        write_results(staged, {"toy": samples_of("toy")}, stamp="2026-11-22T01-02-03.000004", date=1.0)
        unit.finish(staged, {})
    merged = merge([RunStore(tmp_path / "a"), RunStore(tmp_path / "b")], tmp_path / "out")
    assert len(merged.units()) == 1


def test_damaged_run_file(tmp_path: Path) -> None:
    finish(tmp_path, key())
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(ArtefactError, match=r"run\.json"):
        RunStore(tmp_path).record_plan({})
    assert len(RunStore(tmp_path).units()) == 1
