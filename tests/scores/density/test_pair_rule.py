"""Stopping on a ratio: planted ratios, what all items leave, bounds; and what stores do not say."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from densing.core import InputError
from densing.scores.density import PairLook, PairRule, compare_until, rule_for
from densing.scores.density.comparison import pair_ratios, paired_means
from densing.scores.density.pair_rule import recorded_plan
from densing.scores.evals import RunStore

SIZES = {"olmo_ladder_piqa": 6000, "olmo_ladder_csqa": 400}
NAMES = {"olmo_ladder_piqa": "piqa", "olmo_ladder_csqa": "csqa"}


def rule_of(target: float, sizes: dict[str, int] = SIZES) -> PairRule:
    return PairRule(rule_for("olmo-ladder", NAMES, sizes, target=target))


def planted(rule: PairRule, seed: int, size: float, ratio: float) -> dict[str, np.ndarray]:
    """Losses of all items for two models, where the second has ``ratio`` times the effective size of the first."""
    rng, fit = np.random.default_rng(seed), rule.reading.reference.fit
    truth = fit.draws[rng.integers(len(fit.draws))]
    sizes = size * np.array([1.0, ratio])
    given = {name: np.full(2, value) for name, value in rule.reading.reference.given.items()}
    mean = np.asarray(fit.law.predict(truth, {"params": sizes, **given}))
    found = {}
    for task, count in rule.sizes.items():
        item = rng.gamma(4.0, 0.25, (count, 1)) * rng.lognormal(-0.005, 0.1, (count, 2))
        found[task] = mean * item
    return found


def followed(rule: PairRule, values: dict[str, np.ndarray]) -> list[PairLook]:
    looks: list[PairLook] = []
    counts = rule.first
    while not looks or not looks[-1].stop:
        looks.append(rule.update({task: values[task][: counts[task]] for task in rule.sizes}))
        counts = dict(looks[-1].ahead)
    return looks


def interval(
    rule: PairRule, values: dict[str, np.ndarray], look: PairLook, counts: dict[str, int]
) -> tuple[float, float]:
    """The interval of the ratio at a look, as ``compare`` gives it."""
    means = [paired_means(task, *values[task][: counts[task]].T, score=False) for task in rule.sizes]
    assert sum(mean.count for mean in means) == look.items
    names = {"quantity": "loss", "baseline": "", "model": ""}
    row = pair_ratios(rule.reading.reference, means, (1.0, 1.0), 0.0, names, rule.reading.guard, 0.95, 0)
    return row["n_eff_ratio_lo"], row["n_eff_ratio_hi"]


def test_it_stops_once_the_ratio_is_as_narrow_as_asked_and_intervals_hold_a_planted_ratio() -> None:
    rule, held, used = rule_of(0.3), [], []
    for seed in range(60):
        values = planted(rule, seed, 4e8, 1.3)
        looks = followed(rule, values)
        end = looks[-1]
        assert end.reason == "narrow" and end.met and end.half_width <= 0.3
        counts = dict(looks[-2].ahead) if len(looks) > 1 else rule.first
        low, high = interval(rule, values, end, counts)
        assert math.log(high / low) / 2 == pytest.approx(end.half_width, rel=0.05)
        held.append(low <= 1.3 <= high)
        used.append(end.items)
    assert np.mean(held) >= 0.9
    assert max(used) <= 1600 and np.mean(used) < 600


def test_a_width_that_items_cannot_give_stops_within_a_tenth_of_what_all_would() -> None:
    rule = rule_of(1e-3)
    end = followed(rule, planted(rule, 0, 4e8, 1.0))[-1]
    assert end.reason == "settled" and not end.met and "more would hardly help" in end.message
    every = rule.update(planted(rule, 0, 4e8, 1.0))
    assert every.half_width <= end.half_width <= 1.15 * every.half_width
    assert every.half_width == pytest.approx(every.settled, rel=0.05)


def test_a_model_beyond_the_reference_has_no_ratio_and_small_sets_end() -> None:
    rule = rule_of(0.1)
    end = followed(rule, planted(rule, 1, 1e13, 1.0))[-1]
    assert (end.reason, end.items) == ("bound", 100) and "the ratio is a bound" in end.message
    few = rule_of(1e-3, {"olmo_ladder_piqa": 60, "olmo_ladder_csqa": 60})
    look = followed(few, planted(few, 1, 4e8, 1.0))[-1]
    assert look.reason in ("settled", "exhausted") and look.items <= 120


def test_twice_the_noise_takes_four_times_the_items() -> None:
    rule = rule_of(0.3)
    values = planted(rule, 3, 4e8, 1.0)
    plain = rule.update({task: of[:200] for task, of in values.items()})
    noisy = {task: of[:200].mean(0) + 2 * (of[:200] - of[:200].mean(0)) for task, of in values.items()}
    assert rule.update(noisy).half_width == pytest.approx(2 * plain.half_width, rel=0.15)
    assert math.isfinite(plain.settled) and plain.settled < plain.half_width


def test_sources_that_cannot_go_on_say_why(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no run of densing eval"):
        compare_until([tmp_path, tmp_path], 0.1)
    for name in "ab":
        (tmp_path / name / "units").mkdir(parents=True)
    with pytest.raises(InputError, match="for two models; these runs hold 0"):
        compare_until([tmp_path / "a", tmp_path / "b"], 0.1)
    with pytest.raises(InputError, match="no plan of mine is recorded"):
        recorded_plan(RunStore(tmp_path / "a"), "mine")
    tasks = [{"name": "piqa", "samples": {"piqa": [1]}}, {"name": "csqa"}]
    model = {"name": "mine", "model": "hf", "model_args": {"pretrained": "m"}, "limit": 3}
    plan = {"models": [model], "tasks": tasks, "limit": 10, "until": "loss"}
    RunStore(tmp_path / "a").record_plan(plan)
    again = recorded_plan(RunStore(tmp_path / "a"), "mine")
    assert again.settings.limit is None and not any(task.overrides for task in again.tasks)
    RunStore(tmp_path / "b").record_plan({**plan, "models": [{"name": "mine", "model_args": {"api_key": "***"}}]})
    with pytest.raises(InputError, match="loaded with a secret"):
        recorded_plan(RunStore(tmp_path / "b"), "mine")
