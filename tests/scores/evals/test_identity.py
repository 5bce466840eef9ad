"""What makes two evaluations the same: keys, digests, names of folders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from densing.core.errors import InputError
from densing.scores.evals.identity import UnitKey, canonical_json, safe_name
from densing.scores.evals.store import RunStore
from tests.support.eval_files import finish, key

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


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
