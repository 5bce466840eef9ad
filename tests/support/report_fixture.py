"""A small synthetic study, hostile names included: what the plots and the report are tested with.

Nothing here is measured. The objects have the fields of the real dataclasses and nothing else.
"""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from densing.core.notes import Note
from densing.report.study import figures
from densing.scores.catalog import load_catalog
from densing.scores.study import Placed, Split, place_measured
from densing.scores.trend import Checks
from tests.support.report_frames import (
    HOSTILE,
    SLOPE,
    backtest,
    checks,
    corollaries,
    estimates,
    forecast,
    measured_run,
    multiverse,
    provenance,
    replication,
    sensitivity,
    skills,
    vintages,
)

BREAKOUT = "</script><script>window.hacked=1</script>"
LINKED = '<a href="javascript:alert(1)">name</a>'
TEMPLATED = "%{x} {{ 7 * 7 }} $\\alpha$"
MODELS = 44


def split() -> Split:
    """Return the tests of a break as a split that could not be tested."""
    tests = checks().breakpoint
    assert tests is not None
    return Split(stated=tests.stated, searched=tests.searched)


class FakeFit:
    """A logistic curve in ln N with a band, in the shape of a LawFit."""

    law = SimpleNamespace(name="logistic", equation="S = f + c / (1 + exp(-g (ln N - x0)))", source="fixture")
    status = "converged"
    domain: ClassVar[dict[str, tuple[float, float]]] = {"params": (0.5e9, 14e9)}

    def predict(self, x: Any) -> Any:
        """Return the curve."""
        return 0.25 + 0.6 / (1 + np.exp(-0.7 * (np.log(x["params"]) - np.log(9e9))))

    def band(self, x: Any, level: float = 0.95) -> pd.DataFrame:
        """Return a band around it."""
        mid = self.predict(x)
        return pd.DataFrame({"lo": mid - 0.02, "mid": mid, "hi": mid + 0.02})


class FakeTrend:
    """A straight line in ln density, in the shape of a TrendResult."""

    def __init__(self, table: pd.DataFrame, estimates: pd.DataFrame, checks: Checks, slope: float) -> None:
        released = table["released"].to_numpy().astype("datetime64[ns]")
        days = (table["released"] - pd.Timestamp("2023-02-24")) / pd.Timedelta(days=1)
        self.data = SimpleNamespace(
            model=table["model"].to_numpy(dtype=str),
            family=table["family"].to_numpy(dtype=str),
            released=released,
            days=days.to_numpy(),
        )
        self.estimates, self.checks, self.slope = estimates, checks, slope
        self.headline = estimates[estimates["headline"]].iloc[0]
        self.line = estimates[estimates["method"].eq("tobit-crv3")].iloc[0]
        # Too few models for a pace that may change, as in a small study of one's own.
        self.varying, self.now, self.front = None, "", None
        self.why, self.record = "", ""
        self.options = {"level": 0.95, "seed": 0}
        self.notes = (Note("few-families", "warning", "9 families; CRV3 wants more", {"families": 9}),)

    def pace(self) -> pd.DataFrame:
        """Return no pace."""
        return pd.DataFrame(columns=["date", "months", "lo", "hi", "per_year", "per_year_lo", "per_year_hi"])

    def predict(self, dates: Any, level: float = 0.95) -> pd.DataFrame:
        """Return the line and its band, as ln density like the real one."""
        dates = pd.DatetimeIndex(dates)
        days = np.asarray((dates - pd.Timestamp("2023-02-24")) / pd.Timedelta(days=1), dtype=float)
        mid = -1.6 + self.slope * days
        width = 0.15 + 0.0006 * np.abs(days - 250)
        return pd.DataFrame({"date": dates, "mid": mid, "lo": mid - width, "hi": mid + width})


def density(seed: int = 0, n: int = MODELS, since: str = "2023-02-24", names: tuple[str, ...] = ()) -> Any:
    """Return a density result of ``n`` models, some of them censored."""
    rng = np.random.default_rng(seed)
    days = np.sort(rng.integers(0, 560, n)).astype(float)
    log_density = -1.6 + SLOPE * days + rng.normal(0, 0.7, n)
    params = 10 ** rng.uniform(9, 11, n)
    rho = np.exp(log_density)
    bound = np.array([""] * n, dtype=object)
    status = np.array(["ok"] * n, dtype=object)
    for place, (state, side) in {
        2: ("below_floor", "upper"),
        n - 3: ("above_ceiling", "lower"),
        n // 2: ("extrapolated", "lower"),
    }.items():
        status[place], bound[place] = state, side
    model = [f"model-{seed}-{i:02d}" for i in range(n)]
    model[: len(names)] = names
    se = rng.uniform(0.005, 0.02, n)
    width = np.exp(rng.uniform(0.15, 0.5, n))
    table = pd.DataFrame(
        {
            "model": model,
            "family": [f"family-{i % 9}" for i in range(n)],
            "organisation": ["Organisation & Söhne" for _ in range(n)],
            "released": pd.Timestamp(since) + pd.to_timedelta(days, unit="D"),
            "kind": "base",
            "architecture": "dense",
            "verified": True,
            "n_params": params,
            "denominator": "total",
            "benchmark": "mean",
            "evaluator": "model makers",
            "score": FakeFit().predict({"params": rho * params}),
            "score_se": se,
            "n_sources": 2,
            "n_eff": rho * params,
            "n_eff_lo": rho * params / width,
            "n_eff_hi": rho * params * width,
            "density": rho,
            "density_lo": rho / width,
            "density_hi": rho * width,
            "status": status,
            "bound": bound,
            "source": ["https://example.org/report?a=1&b=2" if i % 2 else "javascript:alert(1)" for i in range(n)],
        }
    )
    draws = np.log(rho) + rng.normal(0, 0.3, (40, n))
    return SimpleNamespace(table=table, options={}, notes=(), draws=draws, reference=reference())


def compute(table: pd.DataFrame) -> pd.DataFrame:
    """Return training FLOPs of the models of a table, every third unknown."""
    tokens = np.where(np.arange(len(table)) % 3 == 1, np.nan, 2e12)
    return pd.DataFrame(
        {"model": table["model"], "n_active": table["n_params"], "tokens": tokens,
         "flops": 6 * table["n_params"] * tokens, "evidence": f"counted: 6 N D, tokens from {HOSTILE}", "missing": ""}
    )  # fmt: skip


def reference() -> Any:
    """Return a reference of six sizes, one of them held out."""
    sizes = np.array([0.5e9, 1.8e9, 4e9, 7e9, 14e9, 72e9])
    score = FakeFit().predict({"params": sizes}) + np.array([0.01, -0.01, 0.005, 0.0, -0.004, 0.006])
    points = pd.DataFrame(
        {
            "model": [f"reference-{s / 1e9:g}B" for s in sizes],
            "params": sizes,
            "score": score,
            "score_se": 0.006,
            "held_out": [False] * 5 + [True],
        }
    )
    return SimpleNamespace(
        name="qwen2.5", title="Qwen2.5 base models", benchmark="mean", benchmarks=("mmlu", "bbh", "gsm8k"),
        evaluator="model makers", fit=FakeFit(), points=points, given={}, notes=(),
    )  # fmt: skip


def measured() -> Any:
    """Return a made-up run of a hostile model, read on the real ladder."""
    dates = {HOSTILE: "2024-11-01"}
    return place_measured(*measured_run(HOSTILE), load_catalog(), released=dates)


def placed() -> Any:
    """Return two models of a user's own, one of them with a hostile name, without a date."""
    rows = density(seed=5, n=8, names=(f"mine {HOSTILE}", "mine-7B"))
    table = rows.table.head(2).assign(stratum="yours")
    table.loc[0, "released"] = pd.NaT
    ranks = table.assign(
        rank=[3, 12], of=45, size_rank=[1, 4], size_of=[9, 11], year_rank=[0, 5], year_of=[0, 20],
        neighbours=[f"{LINKED}, model-0-07", "model-0-12, model-0-13"],
    )  # fmt: skip
    densities = SimpleNamespace(table=table, options={}, notes=())
    return Placed(densities, ranks, (Note("few-cells", "info", "mine-7B: fewer than 3 scores", {}),))


@cache
def drawn() -> dict[str, Any]:
    """Return the figures of the whole synthetic study."""
    return figures(study())


@cache
def study() -> Any:
    """Return the whole synthetic study."""
    main = density(names=(HOSTILE, BREAKOUT, LINKED, TEMPLATED, "ünïcode 模型 🚀"))
    apart = density(seed=3, n=30)
    strata = ["continued", "compressed", "mixture of experts", "instruct", "unverified date"]
    apart.table["stratum"] = [strata[i % 5] for i in range(30)]
    later = density(seed=7, n=70)
    later.table["released"] = later.table["released"] + pd.Timedelta(days=430)
    further = reference()
    slower = estimates().assign(doubling_months=6.4, lo=4.9, hi=9.0)
    return SimpleNamespace(
        options={"reference": "qwen2.5", "benchmark": "mean", "level": 0.95},
        selection="dense, general, from-scratch or distilled base models with a sourced release date",
        reference=reference(), density=main, apart=apart, skills=skills(main.table),
        trend=FakeTrend(main.table, estimates(), checks(), SLOPE),
        comparison=SimpleNamespace(
            name="The long window", reference=further, density=later,
            trend=FakeTrend(later.table, slower, Checks(), SLOPE / 2),
        ),
        long_forecast=forecast(), split=split(), sensitivity=sensitivity(),
        placed=placed(), answers=None, tested=None, recall="", precision="The interval is wide: its ends differ.",
        multiverse=multiverse(), replication=replication(), forecast=forecast(),
        past_forecast=None, backtest=backtest(), corollaries=corollaries(),
        provenance=provenance(), compute=compute(main.table), versions={"densing": "0.1.0", "python": "3.11"},
        hashes={"catalog": "ab" * 32}, vintages=vintages(), measured=measured(),
        notes=(
            Note("clock", "error", f"A note with {HOSTILE} in it.", {}),
            Note("fyi", "info", "Nothing else.", {}),
        ),
    )  # fmt: skip
