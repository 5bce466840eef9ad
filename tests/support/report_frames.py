"""The synthetic tables of a study: estimators, multiverse, forecast, checks. Nothing here is measured."""

from __future__ import annotations

import numpy as np
import pandas as pd

from densing.scores.trend import (
    PAPER,
    Backtest,
    BreakTests,
    Checks,
    ClusterCounts,
    Diagnostics,
    EnvelopeOfHeadline,
    EnvelopeWithoutTrend,
    LeaveOneOut,
    LeftOut,
    PermutationTests,
    RecordSetterBias,
    SearchedBreak,
    ShuffleTest,
    StatedBreak,
    VarianceShares,
)

HOSTILE = "<img src=x onerror=alert(1)>"
SLOPE = np.log(2) / (3.4 * 30.44)


def estimates() -> pd.DataFrame:
    """Return the estimators' table: ordinary, unbounded and not estimable rows."""
    rows = [
        (
            "envelope",
            "record-setters OLS (Xiao et al. replication; biased fast)",
            3.0,
            2.4,
            4.2,
            41,
            9,
            "classical",
            3,
        ),
        ("running-max", "running maximum at every release", 4.1, 3.6, 4.9, 41, 9, "classical", 3),
        ("ols-crv3", "all models, OLS", 3.7, 2.6, 6.3, 41, 9, "CRV3", 3),
        ("quantile-0.9", "0.9 quantile", 3.2, 2.0, np.inf, 41, 9, "cluster bootstrap", 3),
        ("tobit-crv3", "Tobit, censored rows kept", 3.5, 2.5, 5.9, 44, 9, "CRV3 jackknife", 0),
        ("theil-sen", "Theil–Sen", np.inf, 4.4, np.inf, 41, 9, "rank", 3),
        ("mixedlm", "mixed model", np.nan, np.nan, np.nan, 41, 9, "not estimable", 3),
    ]
    names = ["method", "label", "doubling_months", "lo", "hi", "n", "clusters", "se_type", "dropped"]
    frame = pd.DataFrame(rows, columns=names)
    for new, old in (("slope_per_day", "doubling_months"), ("slope_lo", "hi"), ("slope_hi", "lo")):
        frame[new] = np.log(2) / (frame[old] * 30.44)
    frame["headline"] = frame["method"] == "tobit-crv3"
    return frame


def multiverse(n: int = 60, seed: int = 1) -> pd.DataFrame:
    """Return ``n`` specifications with unbounded and impossible ones among them."""
    rng = np.random.default_rng(seed)
    value = np.exp(rng.normal(1.4, 0.5, n))
    frame = pd.DataFrame(
        {
            "reference": rng.choice(["qwen2.5", "llama", "pythia", "olmo-ladder"], n),
            "benchmark": rng.choice(["mean", "mmlu", "gsm8k", "bbh"], n),
            "evaluator": rng.choice(["model makers", "open leaderboard"], n),
            "window": rng.choice(["2023-02 to 2024-09", "2023-02 to 2025-11"], n),
            "denominator": rng.choice(["total", "non-embedding"], n),
            "method": rng.choice(["envelope", "tobit-crv3", "ols-crv3"], n),
            "doubling_months": value,
            "lo": value / 1.5,
            "hi": value * 1.8,
            "n": rng.integers(12, 60, n),
            "permutation_p": rng.uniform(0, 0.2, n),
            "headline": np.arange(n) == 7,
        }
    )
    frame.loc[3:8, "hi"] = np.inf
    frame.loc[0, ["doubling_months", "hi"]] = np.inf
    frame.loc[1, ["doubling_months", "lo", "hi"]] = np.nan
    frame["slope_per_day"] = np.log(2) / (frame["doubling_months"] * 30.44)
    return frame


def forecast() -> pd.DataFrame:
    """Return a fan of eighteen months, as density."""
    dates = pd.date_range("2024-09-06", periods=19, freq="30D")
    mid = 8.0 * np.exp(SLOPE * 30 * np.arange(19))
    grow = 1 + 0.06 * np.arange(19)
    inner, outer = 1.3 * grow, 1.9 * grow
    return pd.DataFrame(
        {
            "date": dates,
            "mid": mid,
            "lo50": mid / inner,
            "hi50": mid * inner,
            "lo90": mid / outer,
            "hi90": mid * outer,
        }
    )


def skills(table: pd.DataFrame) -> pd.DataFrame:
    """Return densities per skill for every model."""
    rng = np.random.default_rng(5)
    rows = [
        {
            "model": row.model, "skill": skill, "benchmarks": "mmlu, bbh", "n_eff": row.n_eff,
            "density": row.density * factor, "density_lo": row.density * factor / 1.4,
            "density_hi": row.density * factor * 1.4,
            "status": "ok" if rng.uniform() < 0.85 else "extrapolated",
        }
        for row in table.itertuples()
        for skill, factor in (("knowledge", 0.7), ("reasoning", 1.1), ("mathematics", 1.6), ("code", 1.3))
    ]  # fmt: skip
    return pd.DataFrame(rows)


def sensitivity() -> pd.DataFrame:
    """Return the headline with other models, one choice without an upper end."""
    rows = [
        ("headline", "the headline", 3.5, 2.5, 5.9, 7.0, 3.0, np.inf, 44, 9, pd.Timestamp("2024-08-27"), True),
        ("range", "with unverified dates", 4.4, 2.6, np.inf, np.inf, 5.0, np.inf, 60, 12, pd.Timestamp("2024-08-27"),
         False),
        ("models", "measured on all 4 skills", 3.1, 2.2, 5.0, *[np.nan] * 3, 30, 8, pd.Timestamp("2024-07-01"), False),
    ]  # fmt: skip
    means = ["doubling_months", "lo", "hi", "year_months", "year_lo", "year_hi"]
    return pd.DataFrame(rows, columns=["group", "choice", *means, "n", "families", "last", "headline"])


def replication() -> pd.DataFrame:
    """Return the paper's method by reference."""
    names = ["reference", "benchmark", "window", "n", "doubling_months", "lo", "hi", "covers_paper"]
    rows = [
        ("qwen2.5", "mean", "2023-02 to 2024-09", 41, 3.0, 2.4, 4.2, True),
        ("llama", "mmlu", "2023-02 to 2024-09", 38, 2.2, 1.8, 2.9, False),
        ("pythia", "mean", "2023-02 to 2024-09", 12, 5.0, 2.9, np.inf, True),
    ]
    return pd.DataFrame(rows, columns=names)


def provenance() -> pd.DataFrame:
    """Return sources, with one address that must not become a link."""
    return pd.DataFrame(
        {
            "id": ["obs", "evil"],
            "title": ["A table of scores", HOSTILE],
            "url": ["https://example.org/scores", "javascript:alert(2)"],
            "licence": ["MIT", "CC BY 4.0"],
            "attribution": ["Copyright the authors", "Someone & others"],
            "rows": [120, 3],
        }
    )


def checks() -> Checks:
    """Return the checks of the headline trend."""
    rng = np.random.default_rng(11)
    null = tuple(rng.normal(0, 0.002, 200).tolist())
    rows = [LeftOut(f"family-{i}", 5, 0.0065, 3.5 + float(shift)) for i, shift in enumerate(rng.normal(0, 0.3, 8))]
    return Checks(
        permutation=PermutationTests(
            permutations=999,
            envelope=ShuffleTest(0.031, 0.0076, 0.0042, 5.4, (), size=0.14, power=()),
            headline=ShuffleTest(0.001, 0.0066, 0.0002, None, ()),
            headline_family_blocks=ShuffleTest(0.004, 0.0066, 0.0002, None, null),
        ),
        leave_one_family_out=LeaveOneOut("family", (*rows, LeftOut(HOSTILE, 1, -0.0001, np.inf)), 3.0, np.inf, HOSTILE),
        breakpoint=BreakTests(
            StatedBreak("2022-11-30", 0, 41, None, "no observed model before the date"),
            SearchedBreak("2023-11-02", 0.4, None, 15, 0.008, 0.005),
            PAPER,
            199,
        ),
        families=ClusterCounts(9, 0.3, 2, 1, 41, 2.3, 0.7, reliable=True),
        variance_shares=VarianceShares(score_noise=None, reference_law=0.16, models=0.84),
        record_setter_bias=RecordSetterBias(
            n=41,
            draws=2000,
            no_trend=EnvelopeWithoutTrend(0.005, 4.5, 0.002, 0.04, 0.8, 0.31),
            with_trend=EnvelopeOfHeadline(3.5, 2.9),
        ),
        diagnostics=Diagnostics(41, 0.2, 0.01, None, 1.9),
    )


def corollaries() -> pd.DataFrame:
    """Return consequences of the doubling time, one without an upper end."""
    rows = [
        ("parameters at equal performance shrink by", "times per year", 10.8, 4.1, 27.9, "2^(12 months / T)"),
        ("effective size at a fixed price doubles in", "months", 3.1, 2.3, np.inf, "1/T = 1/T_density + 1/(2.1 years)"),
    ]
    return pd.DataFrame(rows, columns=["quantity", "unit", "value", "lo", "hi", "equation"])


def backtest() -> Backtest:
    """Return how earlier forecasts fared."""
    errors = {"median_error": 0.1, "frontier_error": -0.3, "standstill_error": 0.5, "closer": 0.99}
    return Backtest(n=31, level=0.9, coverage=0.84, **errors)


def measured_run(model: str, loss: float = 1.1, score: float = 0.45) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return measurements and models as a result store gives them: three tasks of the OLMo ladder's suite."""
    rows = [
        {
            "model": model,
            "task": f"olmo_ladder_{benchmark}",
            "benchmark": benchmark,
            "metric": metric,
            "value": value,
            "stderr": 0.02,
            "n_items": 100,
        }
        for benchmark in ("hellaswag", "arc_challenge", "piqa")
        for metric, value in (("bits_per_byte", loss), ("accuracy", score))
    ]
    sizes = {"model": model, "params_total": 134.5e6, "params_non_embedding": 106.2e6, "tokens": 2e12}
    return pd.DataFrame(rows), pd.DataFrame([{**sizes, "caveats": "weights quantised to four bits"}])


def vintages() -> pd.DataFrame:
    """Return what the headline would have said earlier: nothing at first, then a pace without an upper end."""
    rows = [
        (pd.Timestamp("2023-12-31"), pd.NA, pd.NA, *[np.nan] * 7, "too few models"),
        (pd.Timestamp("2024-06-30"), 30, 8, 3.1, 2.2, 6.0, 3.4, 2.0, np.inf, 0.97, ""),
        (pd.Timestamp("2024-12-31"), 44, 9, 3.5, 2.5, 5.9, np.inf, 5.0, np.inf, 0.4, ""),
    ]
    names = ["vintage", "n", "families", "doubling_months", "lo", "hi", "year_months", "year_lo", "year_hi", "growing"]
    return pd.DataFrame(rows, columns=[*names, "reason"])
