"""Ways to serve: what is chosen from, what is on the front, what is written, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pytest

import densing
from densing.core import InputError
from densing.efficiency.simulation import Sides, load_served
from densing.report import build_deployment
from densing.tradeoff import Deployment
from tests.support.report_frames import HOSTILE

TIMES = load_served("serve-smollm2-135m")
ROWS = pd.DataFrame(
    [(12, None, 16, 16, 3.2), (12, 6, 2, 16, 4.2), (24, 6, 8, 16, 1.9), (30, 6, 8, 16, 1.34), (30, None, 16, 16, 1.33),
     (30, None, 16, 4, 1.5)],
    columns=["exit", "cut", "cut_bits", "weight_bits", "bits_per_byte"],
)  # fmt: skip
QUICK: dict[str, Any] = {"deadline_s": 0.43, "policies": ("oracle", "last", "expected", "fixed"), "traces": 4}


@pytest.fixture(scope="module")
def stays() -> Deployment:
    return densing.deploy(ROWS, TIMES, model="small", text_stays=True, **QUICK)


def test_only_what_was_evaluated_is_chosen_from(stays: Deployment) -> None:
    assert len(stays.choices) == 5 and set(stays.choices["exit"]) == {12, 24, 30}
    four = densing.deploy(ROWS, TIMES, weight_bits=4, **QUICK)
    # Without a cut on the device and, as tokens, on the server.
    assert sorted(four.choices["choice"]) == ["exit 30 on the device", "exit 30 on the server"]
    assert "tokens-are-small" in [note.code for note in four.notes]


def test_a_page_says_whether_quality_was_measured_or_given(stays: Deployment, tmp_path: Path) -> None:
    given = build_deployment(stays, tmp_path / "given.md").read_text()
    assert "Quality is given by a table, which densing has not measured; no way" in given
    measured = densing.deploy(ROWS, TIMES, text_stays=True, quality_from="measured by densing eval", **QUICK)
    assert "Quality is measured by densing eval; no way" in build_deployment(measured, tmp_path / "m.md").read_text()
    assert [note.message for note in measured.notes if note.code == "quality-from"] == [
        "quality: measured by densing eval"
    ]


def test_the_front_is_what_nothing_beats(stays: Deployment) -> None:
    rows = stays.choices
    for row in rows.itertuples():
        beaten = any(
            other.bits_per_byte <= row.bits_per_byte and other.p95_ms <= row.p95_ms
            and (other.bits_per_byte, other.p95_ms) != (row.bits_per_byte, row.p95_ms)
            for other in rows.itertuples()
        )  # fmt: skip
        assert row.front != beaten
    assert rows["quality"].max() == 1 and rows["share"].sum() == pytest.approx(1)


def test_quality_is_relative_to_the_whole_model_not_to_the_best_row() -> None:
    better = ROWS.assign(bits_per_byte=[3.2, 4.2, 1.9, 1.30, 1.33, 1.5])
    found = densing.deploy(better, TIMES, text_stays=True, **QUICK).choices.set_index("choice")["quality"]
    assert found["exit 30 on the device"] == 1 and found["exit 30, cut 6, 8 bits"] == pytest.approx(1.33 / 1.30)


def test_an_answer_of_one_token_is_the_request_and_of_many_favours_one_side(stays: Deployment) -> None:
    """The null is today's answer; planted: a latency of a second for each token leaves no cut on the front."""
    part = msgspec.structs.asdict(TIMES)
    sides = Sides(**{name: part[name] for name in Sides.__struct_fields__})
    times = msgspec.structs.replace(TIMES, decode=sides)
    one = densing.deploy(ROWS, times, model="small", text_stays=True, output_tokens=1, **QUICK)
    pd.testing.assert_frame_equal(one.choices, stays.choices)
    slow = QUICK | {"deadline_s": 60.0}
    many = densing.deploy(ROWS, times, text_stays=True, latency_s=1.0, output_tokens=8, **slow).choices
    assert set(many.loc[many["front"], "choice"]) == {"exit 12 on the device", "exit 30 on the device"}
    cut = many.set_index("choice").loc["exit 30, cut 6, 8 bits"]
    assert cut["token_ms"] > 1000 and cut["median_ms"] >= 8000


def test_densities_are_carried_and_divided_by_latency() -> None:
    dense = ROWS.assign(density=[0.4, 0.3, 0.2, 0.5, 0.51, 0.5], bound=["upper", "upper", "", "", "", ""])
    found = densing.deploy(dense, TIMES, text_stays=True, **QUICK)
    np.testing.assert_allclose(found.choices["density_per_ms"], found.choices["density"] / found.choices["p95_ms"])
    assert "densities-are-bounds" in [note.code for note in found.notes]


def test_a_policy_file_says_what_to_take(stays: Deployment, tmp_path: Path) -> None:
    policy = json.loads(stays.write(tmp_path).read_text())
    names = {choice["choice"] for choice in policy["choices"]}
    assert policy["format"] == "densing-policy/1" and policy["policy"] == stays.recommended
    assert policy["table"] and {row["choice"] for row in policy["table"]} <= names
    assert {row["load"] for row in policy["table"]} == {1.0, 2.0}
    assert all(row["from_mbit"] >= 0 for row in policy["table"])
    assert len(pd.read_csv(tmp_path / "choices.csv")) == 5 and (tmp_path / "policies.csv").is_file()


def test_pages_hold_hostile_names(stays: Deployment, tmp_path: Path) -> None:
    hostile = replace(stays, model=HOSTILE)
    page = build_deployment(hostile, tmp_path / "page.html").read_text()
    assert "<script>alert" not in page and "Policies on the same requests" in page
    written = build_deployment(hostile, tmp_path / "page.md").read_text()
    assert "exit 30, cut 6, 8 bits" in written and "<script>" not in written
    assert "take " in repr(stays)


@pytest.mark.parametrize(
    ("rows", "options", "words"),
    [
        (ROWS, {"deadline_s": 0.01}, "is met by nothing; the fastest"),
        (ROWS, {"weight_bits": 8}, "weight_bits=8: nothing is evaluated with them; there are 4, 16"),
        (ROWS.drop(columns="cut"), {}, "no column cut"),
        (pd.concat([ROWS, ROWS]), {}, "occurs twice"),
        (ROWS.assign(bits_per_byte=np.nan), {}, "bits_per_byte: nan is not a number above 0"),
        (ROWS.assign(cut=31), {}, "lies outside 0 to exit"),
        (ROWS.assign(exit=40), {}, "exit=40"),
        (ROWS[:0], {}, "weight_bits=16: nothing"),
    ],
)
def test_what_cannot_be_served_is_refused(rows: pd.DataFrame, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        densing.deploy(rows, TIMES, **{**QUICK, **options})


def test_a_csv_file_is_read_row_by_row(tmp_path: Path) -> None:
    path = tmp_path / "ways.csv"
    path.write_text("exit,cut,cut_bits,bits_per_byte\n30,,16,1.33\n30,6,8,1.34\n")
    assert len(densing.deploy(path, TIMES, text_stays=True, **QUICK).choices) == 2
    path.write_text("exit,cut,cut_bits,bits_per_byte\n30,,16,zero\n")
    with pytest.raises(InputError, match=r"ways\.csv.*bits_per_byte"):
        densing.deploy(path, TIMES, **QUICK)
