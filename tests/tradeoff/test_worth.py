"""Is it worth it: the arithmetic by hand, planted truths held by the interval, and silence where a ladder is far."""

from __future__ import annotations

import html
import json
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from densing.cli import app
from densing.core import ArtefactError, InputError, UnknownNameError
from densing.efficiency.simulation import (
    Cluster,
    Device,
    Link,
    Split,
    Transformer,
    Workload,
)
from densing.efficiency.systems import compare
from densing.tradeoff import GainRecord, read_specs, worth
from densing.tradeoff.worth import NOTHING, Target, _arm_row, _at, _Row, _rows, _spec

TOY = Transformer("toy", layers=4, hidden=256, heads=8, kv_heads=8, head_dim=32, ffn=1024, vocabulary=512)
STEP = Workload(TOY, "train", batch=4, sequence=128, split=Split(dp=4))
PARAMS = 4 * (4 * 256 * 256 + 3 * 256 * 1024 + 2 * 256) + 256
CLUSTER = Cluster(
    "toy", 4, 1, Device("toy", 1e12, 1e12), intra=Link(1e-6, 1e-10), inter=Link(1e-5, 1e-9), host=Link(0.0, 1e-10)
)
TOKENS = 1e6


def record(
    ratio: float = 0.6, sd: float = 0.05, trend: tuple[float, float, float] = (0.0, -0.01, 0.01),
    arm: str = "co2:tau=8",
    params: tuple[float, ...] = (PARAMS / 2, PARAMS * 2), tokens: tuple[float, ...] = (TOKENS / 2, TOKENS * 2),
    **spec: Any,
) -> GainRecord:  # fmt: skip
    """A ladder around the run's own size and tokens."""
    ends = [ratio * math.exp(side * NormalDist().inv_cdf(0.975) * sd) for side in (-1, 1)]
    figures = {
        "arm": arm, "density_ratio": 0.5, "density_lo": 0.4, "density_hi": 0.6, "token_ratio": ratio,
        "token_lo": ends[0], "token_hi": ends[1], "bytes": 1e6, "seconds": 1.0, "joules": 1.0, "pairs": 8,
        "status": "ok",
    }  # fmt: skip
    about = {"baseline": "plain", "baseline_cost": {"bytes": 8e6}, "params": params, "tokens": tokens, **spec}
    trends = [{"arm": arm, "ratio": "token", "trend": trend[0], "trend_lo": trend[1], "trend_hi": trend[2]}]
    return GainRecord(about, "0123", {}, [figures], trends=trends)


def test_a_gain_is_the_step_times_what_a_token_is_worth() -> None:
    found = worth(["co2:tau=8"], STEP, CLUSTER, TOKENS, gains=[record()], price=2.0)
    own = found.verdicts[0]
    rows = {row.technique: row for row in compare(STEP, CLUSTER, ["ddp", "co2"], knobs={"co2": {"tau": 8}}).rows}
    assert own.speedup is not None and own.token_ratio is not None and own.gain is not None and own.days is not None
    assert own.speedup.value == pytest.approx(rows["co2"].speedup)
    assert own.token_ratio.value == pytest.approx(0.6, rel=1e-6)
    assert own.gain.value == pytest.approx(0.6 * own.speedup.value, rel=1e-6)
    assert own.break_even_ratio == pytest.approx(1 / own.speedup.value)
    steps = TOKENS / (4 * 128 * 4)
    assert found.plain_days.value == pytest.approx(steps * (rows["ddp"].step_s or 0.0) / 86400)
    assert own.days.value == pytest.approx(found.plain_days.value / own.gain.value)
    assert found.plain_device_hours.value == pytest.approx(24 * 4 * found.plain_days.value)
    # Half-widths in logarithms add as squares; the probability is that of their normal.
    sds = [math.log(span.high / span.low) / (2 * NormalDist().inv_cdf(0.975))
           for span in (own.speedup, own.token_ratio, own.gain)]  # fmt: skip
    assert sds[2] == pytest.approx(math.hypot(sds[0], sds[1]), rel=1e-9)
    assert own.probability == pytest.approx(NormalDist().cdf(math.log(own.gain.value) / sds[2]))
    assert found.params == PARAMS
    assert "assumed-spread" in {note.code for note in found.notes}


def test_a_link_on_which_it_breaks_even_is_one() -> None:
    found = worth(["co2:tau=8"], STEP, CLUSTER, TOKENS, gains=[record(0.5)])
    gbps = found.verdicts[0].break_even_gbps
    assert gbps is not None
    there = CLUSTER.change(inter=replace(CLUSTER.inter, beta_s_per_byte=8e-9 / gbps))
    again = worth(["co2:tau=8"], STEP, there, TOKENS, gains=[record(0.5)]).verdicts[0]
    assert again.gain is not None and again.gain.value == pytest.approx(1, rel=0.05)


@pytest.mark.parametrize(("ratio", "status"), [(0.95, "pays"), (0.05, "does not pay")])
def test_plain_cases_are_decided(ratio: float, status: str) -> None:
    slow = CLUSTER.change(inter=CLUSTER.inter.faster(0.1))
    own = worth(["co2:tau=8"], STEP, slow, TOKENS, gains=[record(ratio)]).verdicts[0]
    assert own.status == status and own.decides == ""


def test_an_open_case_says_what_would_decide_it_and_where_its_ratio_comes_from() -> None:
    first = worth(["co2:tau=8"], STEP, CLUSTER, TOKENS, gains=[record()]).verdicts[0]
    assert first.break_even_ratio is not None
    even = first.break_even_ratio
    vague = worth(["co2:tau=8"], STEP, CLUSTER, TOKENS, gains=[record(even * 1.02, sd=0.3)]).verdicts[0]
    assert vague.status == "not decided" and "its token ratio" in vague.decides
    assert vague.gain is not None and vague.gain.low < 1 < vague.gain.high
    # Of the gain by 2 % a factor of 1.02 is to be known; the ladder's own interval is one of e^(1.96 x .3).
    assert "to a factor of 1.02 (now 1." in vague.decides
    sharp = worth(["co2:tau=8"], STEP, CLUSTER, TOKENS, gains=[record(even * 1.02, sd=0.001)]).verdicts[0]
    assert sharp.status == "not decided" and "the links" in sharp.decides


def test_what_does_not_change_a_step_is_worth_every_token() -> None:
    own = worth(["zero1"], STEP, CLUSTER, TOKENS).verdicts[0]
    assert own.token_ratio is not None and own.token_ratio.words == "1.00 (1.00 to 1.00)"
    assert own.gain is not None and own.speedup is not None and own.gain.value == pytest.approx(own.speedup.value)


def test_without_a_record_the_answer_is_one_of_time() -> None:
    own = worth(["co2:tau=16"], STEP, CLUSTER, TOKENS, gains=[record()]).verdicts[0]
    assert own.status == "time only" and own.gain is None and own.break_even_ratio
    assert "there are co2:tau=8" in own.reason
    assert "ladder train --arm plain --arm co2:tau=16 --ranks 4 --tune 8 --out DIR" in own.decides
    # Of what no ladder here trains, none is proposed.
    (other,) = worth(["powersgd"], STEP, CLUSTER, TOKENS).verdicts
    assert other.status == "time only" and "no ladder here can train it" in other.decides


@pytest.mark.parametrize(
    ("figures", "spec", "says"),
    [
        ({"token_lo": None, "status": "flat"}, {}, r"is 0.600 \(at most 0.66\), no int"),
        (
            {"token_ratio": None, "token_lo": None, "status": "below_floor"},
            {},
            r"unknown \(at most 0.66\), no interval",
        ),
        ({"token_ratio": None, "token_lo": None, "token_hi": None, "status": "no_change"}, {}, "to the last bit"),
        ({"status": "few_pairs", "pairs": 4}, {}, "fewer than 6 pairs"),
        ({}, {"params": (), "tokens": ()}, "names no sizes or no tokens"),
        ({}, {"params": (0.0, -1.0)}, "names no sizes or no tokens"),
    ],
)
def test_what_a_ladder_did_not_decide_is_no_verdict(figures: dict[str, Any], spec: dict[str, Any], says: str) -> None:
    """Nor does a shipped record stand in for what the user's own says."""
    plain = record(**spec)
    given = replace(plain, figures=[{**plain.figures[0], **figures}])
    own = worth(["co2:tau=8"], STEP, CLUSTER, TOKENS, gains=[given]).verdicts[0]
    assert own.status == "time only" and own.gain is None and own.speedup is not None
    assert re.search(says, own.reason) and own.reason.startswith("gains over plain: ") and own.decides


def test_what_was_tuned_says_so_and_what_was_not_warns() -> None:
    tuned, untuned = (worth(["co2:tau=8"], STEP, CLUSTER, TOKENS, gains=[record(**more)])
                      for more in ({"trials": 8}, {}))  # fmt: skip
    assert tuned.verdicts[0].trials == 8 and untuned.verdicts[0].trials is None
    codes = [{note.code for note in found.notes} & {"ladders-tuned", "ladders-recipe"} for found in (tuned, untuned)]
    assert codes == [{"ladders-tuned"}, {"ladders-recipe"}]
    assert "with 8 trials" in next(note.message for note in tuned.notes if note.code == "ladders-tuned")


def row(**options: Any) -> _Row:
    return _rows(record(**options), "test")[0]


def test_a_ratio_moves_along_its_trend_and_widens_with_the_distance() -> None:
    near = Target(math.log(PARAMS), math.log(TOKENS))
    at = [_at(row(trend=(-0.3, -0.4, -0.2)), near._replace(tokens=near.tokens + x)) for x in (0.0, 1.0, 2.0)]
    means, sds = zip(*at, strict=True)
    assert means[0] == pytest.approx(math.log(0.6)) and sds[0] == pytest.approx(0.05)
    assert means[1] == pytest.approx(means[0] - 0.3) and means[2] == pytest.approx(means[0] - 0.6)
    # The trend's own error, and a bend of its size over every further width of the ladder, here ln 4.
    own = 0.2 / (2 * NormalDist().inv_cdf(0.975))
    assert sds[1] ** 2 == pytest.approx(0.05**2 + own**2 + (0.3 / (2 * math.log(4))) ** 2)
    assert sds[2] ** 2 == pytest.approx(0.05**2 + (2 * own) ** 2 + (4 * 0.3 / (2 * math.log(4))) ** 2)
    larger = _at(row(trend=(-0.3, -0.4, -0.2)), near._replace(params=near.params + 1))
    assert larger.mean == pytest.approx(means[0]) and larger.sd > sds[0]


def test_a_ratio_moves_along_its_trend_with_size_where_the_record_keeps_it() -> None:
    kept = record(trend=(-0.3, -0.4, -0.2))
    trends = [{**kept.trends[0], "size_trend": 0.1, "size_trend_lo": 0.05, "size_trend_hi": 0.15}]
    sized = _rows(replace(kept, trends=trends), "test")[0]
    larger = Target(math.log(PARAMS) + 1, math.log(TOKENS))
    old, new = _at(_rows(kept, "test")[0], larger), _at(sized, larger)
    assert new.mean == pytest.approx(old.mean + 0.1) and new.sd < old.sd


def test_far_from_its_ladder_a_ratio_says_nothing_and_names_the_distance() -> None:
    own = worth(["co2:tau=8"], STEP, CLUSTER, 1e15, gains=[record(trend=(-0.3, -0.4, -0.2))]).verdicts[0]
    assert own.status == "time only" and "says nothing beyond" in own.reason
    assert own.ladder_ratio is not None and own.gain is None
    assert NOTHING > 10


def test_an_arm_is_found_by_its_settings_not_by_its_spelling() -> None:
    rows = [row(arm="dct:refresh=200,eta=0.99"), row(arm="plain:corpus=clean"), row(arm="topk:nonsense=1")]
    assert _arm_row(_spec("dct:eta=0.99"), rows) is rows[0]
    assert _arm_row(_spec("dct:eta=0.9"), rows) is None
    assert read_specs(" co2:tau=8 ,dct:eta=0.9,refresh=10,zero1") == ["co2:tau=8", "dct:eta=0.9,refresh=10", "zero1"]


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: worth([], STEP, CLUSTER, TOKENS), InputError, "no technique named"),
        (lambda: worth(["co2", "co2"], STEP, CLUSTER, TOKENS), InputError, "named twice"),
        (lambda: worth(["co"], STEP, CLUSTER, TOKENS), UnknownNameError, "co"),
        (lambda: worth(["co2:tua=8"], STEP, CLUSTER, TOKENS), UnknownNameError, "tua"),
        (lambda: worth(["co2:tau"], STEP, CLUSTER, TOKENS), InputError, "^co2:tau: settings are KNOB=VALUE"),
        (lambda: worth(["co2:tau=0"], STEP, CLUSTER, TOKENS), InputError, "^co2.tau=0: '0' is out of range"),
        (lambda: worth(["zero1", "ddp"], STEP, CLUSTER, TOKENS), InputError, "ddp is the baseline"),
        (lambda: worth(["zero1"], STEP, CLUSTER, TOKENS, baseline="co2"), InputError, "co2: not plain training"),
        (lambda: worth(["co2"], STEP, CLUSTER, TOKENS, gains=[record(params="x")]), ArtefactError, r"spec\.params"),
        (lambda: worth(["co2"], STEP, CLUSTER, TOKENS, gains=[record(-1)]), ArtefactError,
         "token_ratio -1 is no finite number above 0"),
        (lambda: worth(["co2"], STEP, CLUSTER, math.nan), InputError, "tokens: nan is not above 0"),
        (lambda: worth(["co2"], STEP, CLUSTER, 1e6, price=-1), InputError, "price: -1"),
        (lambda: worth(["co2"], replace(STEP, mode="prefill"), CLUSTER, 1e6), InputError, "mode prefill"),
        (lambda: worth(["co2"], STEP, CLUSTER, 1e6, gains=[record(baseline="slowmo")]), InputError,
         "its baseline is slowmo, not plain"),
        (lambda: worth(["co2"], STEP, CLUSTER.change(device=replace(CLUSTER.device, memory=1e6)), 1e6), InputError,
         r"plain training \(ddp\) does not fit"),
        (lambda: worth(["co2"], replace(STEP, split=Split()), CLUSTER, 1e6), InputError, "does not apply"),
        (lambda: worth(["co2"], STEP, CLUSTER.change(inter=Link(0.0, 0.0)), 1e6), InputError, "no time per byte"),
    ],
)  # fmt: skip
def test_what_cannot_be_weighed_says_why(call: Callable[[], object], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        call()


def test_settings_of_one_technique_stand_beside_each_other() -> None:
    found = worth(["co2:tau=8", "zero1", "co2:tau=16"], STEP, CLUSTER, TOKENS, gains=[record()])
    assert [verdict.technique for verdict in found.verdicts] == ["co2:tau=8", "zero1", "co2:tau=16"]
    alone = [worth([name], STEP, CLUSTER, TOKENS, gains=[record()]).verdicts[0] for name in ("co2:tau=8", "co2:tau=16")]
    assert found.verdicts[::2] == tuple(alone)


def test_a_technique_that_does_not_apply_leaves_the_others() -> None:
    found = worth(["ladder", "co2:tau=8"], STEP, CLUSTER, TOKENS, gains=[record()])
    assert found.verdicts[0].status == "does not apply"
    assert found.verdicts[1].gain is not None and len(found.frame()) == 2
    assert "does-not-apply" in {note.code for note in found.notes}


def test_the_command_prints_a_sentence_and_writes_a_page(tmp_path: Path) -> None:
    page = tmp_path / "worth.html"
    run = ["--model", "llama-8b", "--cluster", "a100x8-tcp", "--tokens", "2e10"]
    words = ["worth", "zero1,co2:tau=8", *run, "--json", "--html"]
    told = json.loads(CliRunner().invoke(app, [*words, str(page)]).stdout)
    statuses = [verdict["status"] for verdict in told["data"]["verdicts"]]
    assert statuses[0] == "pays" and len(told["data"]["sentences"]) == 2
    written = page.read_text(encoding="utf-8")
    assert "Is it worth it?" in written
    # Verdicts stand there whole.
    assert all(
        html.escape(sentence.partition(" pays")[2][-40:]) in written for sentence in told["data"]["sentences"][:1]
    )
    shown = CliRunner().invoke(app, words[:-2])
    assert shown.exit_code == 0 and "zero1 pays" in shown.stdout


def test_no_figure_stands_without_its_range() -> None:
    found = worth(["co2:tau=8", "dct:eta=0.99"], STEP, CLUSTER, TOKENS, gains=[record()], price=2.0)
    own, timed = found.verdicts
    assert own.gain is not None and own.cost is not None and own.saved is not None and own.device_hours is not None
    assert own.cost.value == pytest.approx(2 * own.device_hours.value)
    plain = 2 * found.plain_device_hours.value
    assert own.saved.value == pytest.approx(plain - own.cost.value)
    assert own.saved.low == pytest.approx(plain * (1 - 1 / own.gain.low))
    decided, time_only = found.sentences()
    assert own.days is not None and own.days.words in decided and "which saves" in decided
    assert timed.status == "time only" and timed.speedup is not None
    # Of the ratio at which it pays, the range is the speed-up's.
    low, high = (f"{1 / end:.3g}" for end in (timed.speedup.high, timed.speedup.low))
    assert f"({low} to {high}) of plain's" in time_only
    assert "on a ladder nearer to the run" in time_only


def test_a_record_that_says_nothing_of_what_is_named_is_noted() -> None:
    gains = [record(), record(arm="co2:tau=4")]
    found = worth(["co2:tau=8"], STEP, CLUSTER, TOKENS, gains=gains[:1])
    assert "gain-unused" not in {note.code for note in found.notes}
    other = worth(["co2:tau=8"], STEP, CLUSTER, TOKENS, gains=gains[1:])
    (note,) = [note for note in other.notes if note.code == "gain-unused"]
    assert "it has co2:tau=4" in note.message


@pytest.mark.parametrize(
    ("spec", "options", "says"),
    [
        ({}, ["--techniques", "co3:tau=8"], r"unknown technique 'co3'; did you mean 'co2'\?"),
        ({"baseline": "slowmo"}, [], r"gain.json: its baseline is slowmo, not plain"),
        ({}, ["--gpus", "2", "--tp", "1"], r"plain training \(ddp\) does not fit: needs 226.2 GB of 80 GB"),
        # Near its ladder the ratio is carried to the run, and the interval holds both; far off there is no answer.
        ({}, [], r"co2:tau=8 not decided \(.* carried from 0.130 at 7 B parameters and 20 B tokens"),
        ({}, ["--tokens", "1e15"], r"says nothing beyond [\d.]+ B parameters and [\d.]+ [BT] tokens"),
    ],
)
def test_bad_input_is_a_sentence_of_the_command(
    spec: dict[str, Any], options: list[str], says: str, tmp_path: Path
) -> None:
    # On this cluster a token breaks even at an eighth of plain's.
    kept = record(0.13, trend=(-0.3, -0.4, -0.2), params=(3.5e9, 1.4e10), tokens=(1e10, 4e10), **spec)
    (tmp_path / "gain.json").write_text(json.dumps(kept.to_dict()), encoding="utf-8")
    named = [] if "--techniques" in options else ["co2:tau=8"]
    words = [*named, "--model", "llama-8b", "--cluster", "a100x8-tcp", "--tokens", "4e10", *options]
    said = CliRunner().invoke(app, ["worth", *words, "--gain", str(tmp_path / "gain.json")])
    assert re.search(says, f"{said.output}{said.exception}")


def test_techniques_and_devices_are_named_as_options_too() -> None:
    run = ["--model", "llama-8b", "--cluster", "a100x8-tcp", "--tokens", "1e12", "--json"]
    several = ["--techniques", "co2:tau=8,diloco,dct:eta=.99", "--gpus", "64"]
    told = json.loads(CliRunner().invoke(app, ["worth", *several, *run]).stdout)["data"]
    assert [verdict["technique"] for verdict in told["verdicts"]] == ["co2:tau=8", "diloco", "dct:eta=.99"]
    assert told["devices"] == 64
    # What no ladder measured with these settings names those that one did, and how to measure it.
    assert "there are diloco:" in told["sentences"][1] and "densing ladder train" in told["sentences"][1]
    for extra, says in (
        (["co2", "--techniques", "co2"], "in one place"), ([], "no technique named"),
        (["co2", "--gpus", "64", "--nodes", "8"], "--nodes and --gpus"),
    ):  # fmt: skip
        said = CliRunner().invoke(app, ["worth", *extra, *run[:-1]])
        assert said.exit_code == 1 and says in str(said.exception or said.output)


@pytest.mark.slow
def test_planted_gains_are_held_and_losses_seldom_called_gains(monkeypatch: pytest.MonkeyPatch) -> None:
    """Worlds whose devices, links, ratio and trends are off, and bend, by what the answer believes."""
    # Every answer compares on the same fourteen clusters: once each is enough.
    known: dict[str, Any] = {}

    def compared(workload: Workload, cluster: Cluster, *more: Any, **options: Any) -> Any:
        if repr(cluster) not in known:
            known[repr(cluster)] = compare(workload, cluster, *more, **options)
        return known[repr(cluster)]

    monkeypatch.setattr(sys.modules[Target.__module__], "compare", compared)
    rng, worlds = np.random.default_rng(0), 400
    spread, sd, slope_sd, far = 0.2, 0.1, 0.05, 1.0
    held, lost, called, won, seen_to_pay = 0, 0, 0, 0, 0
    speeds: dict[tuple[float, float], Any] = {}
    for _ in range(worlds):
        off = (round(float(np.exp(rng.normal(0, spread))), 1), round(float(np.exp(rng.normal(0, spread))), 1))
        if off not in speeds:
            network, compute = off
            there = CLUSTER.change(
                inter=CLUSTER.inter.faster(network), intra=CLUSTER.intra.faster(network),
                device=Device("toy", 1e12 * compute, 1e12 * compute),
            )  # fmt: skip
            speeds[off] = compare(STEP, there, ["ddp", "co2"], knobs={"co2": {"tau": 8}}).rows[1].speedup
        true_ratio = float(np.exp(rng.normal(math.log(0.6), 0.5)))
        slope = float(rng.normal(-0.2, 0.1))
        # Over every further width of the ladder (here ln 4) a trend may change by as much as itself.
        moved = slope * far + float(rng.normal(0, 1)) * slope * far**2 / (2 * math.log(4))
        seen = true_ratio * math.exp(rng.normal(0, sd))
        told = float(rng.normal(slope, slope_sd))
        half = NormalDist().inv_cdf(0.975) * slope_sd
        at = TOKENS * math.exp(far)
        found = worth(["co2:tau=8"], STEP, CLUSTER, at, gains=[record(seen, sd, (told, told - half, told + half))])
        truth = speeds[off] * true_ratio * math.exp(moved)
        own = found.verdicts[0]
        assert own.gain is not None
        held += own.gain.low <= truth <= own.gain.high
        lost += truth <= 1
        called += truth <= 1 and own.status == "pays"
        won += truth > 2
        seen_to_pay += truth > 2 and own.status == "pays"
    assert 0.93 <= held / worlds <= 0.97
    assert lost > 50 and called / lost <= 0.05
    # Silence everywhere would hold as much: where it plainly pays, that is mostly said.
    assert won > 10 and seen_to_pay / won > 0.5
