"""Did the pace change with ChatGPT? The paper's split on MMLU, with models from before it."""

from __future__ import annotations

from typing import Any

import pandas as pd

from densing.core import DensingError
from densing.scores.catalog import Catalog, Selection
from densing.scores.density import catalog_densities
from densing.scores.references import Reference, load_reference
from densing.scores.trend import (
    CHATGPT,
    PAPER,
    Slope,
    TrendData,
    break_power,
    breakpoint_test,
    doubling_months,
    envelope,
    estimate_shocks,
    fit_headline,
)

# Fig. 4 of arXiv 2412.04315v2 runs from GPT-3 (28 May 2020) to September 2024, on MMLU alone.
WINDOW = ("2020-05-28", "2024-09-30")
BENCHMARK = "mmlu"
WORLDS = 100


def chatgpt_split(catalog: Catalog, reference: str, *, seed: int = 0, bootstrap: int = 499) -> dict[str, Any]:
    """Estimate the pace before and after ChatGPT and test the difference.

    Models of 2020 to 2022 were scored by other evaluators than the ruler and their dates are often from general
    knowledge, so this analysis, unlike the headline, pools five-shot MMLU scores of all evaluators and takes
    unverified dates.

    Parameters
    ----------
    catalog : Catalog
        Models and scores.
    reference : str
        A one-step family with an MMLU ruler.
    seed : int
        Seed of bootstrap and intervals.
    bootstrap : int
        Worlds behind the p-value.

    Returns
    -------
    dict
        ``stated`` (with its size, and its power at the paper's rates) and ``searched`` tests, ``sides``
        (before and after, each by the headline estimator and by the paper's envelope), ``paper`` rates and ``window``;
        or ``reason`` when it cannot be done.

    Notes
    -----
    Source: arXiv 2412.04315v2, Fig. 4: A about 0.0048 per day before, about 0.0073 after.
    """
    try:
        ruler = load_reference(reference, BENCHMARK, catalog=catalog)
        if why := unfit(ruler, BENCHMARK):
            return {"reason": why, "paper": dict(PAPER)}
        selection = Selection(verified_only=False)
        densities = catalog_densities(catalog, ruler, selection=selection, pool=True, seed=seed)
        kept = densities.subset((densities.table["stratum"] == "headline").to_numpy())
        data = TrendData.from_density(kept).window(*WINDOW)
        test = breakpoint_test(data, bootstrap=bootstrap, seed=seed)
        shocks = estimate_shocks(data)
        if shocks is not None and test["stated"]["p"] is not None:
            slope = fit_headline(data, seed=seed).slope.slope
            test["stated"] |= break_power(data, shocks, slope, split=CHATGPT, worlds=WORLDS, seed=seed)
    except DensingError as error:
        return {"reason": str(error), "paper": dict(PAPER)}
    eve = str((CHATGPT - pd.Timedelta(days=1)).date())
    sides = {
        "before": _side(data.window(None, eve), seed),
        "after": _side(data.window(str(CHATGPT.date()), None), seed),
    }
    return {**test, "sides": sides, "window": list(WINDOW), "reference": reference, "benchmark": BENCHMARK}


def unfit(ruler: Reference, benchmark: str) -> str:
    """Return why a ruler must not be used to read a benchmark's scores; empty when it may."""
    if ruler.benchmark != benchmark:
        return f"reference {ruler.name} was fitted on {ruler.benchmark}, not on {benchmark}"
    return next((note.message for note in ruler.notes if note.severity == "error"), "")


def _side(data: TrendData, seed: int) -> dict[str, Any]:
    found: dict[str, Any] = {"n": len(data), "observed": int(data.observed.sum())}
    try:
        found["headline"] = _row(fit_headline(data, seed=seed).slope)
        found["envelope"] = _row(envelope(data))
    except DensingError as error:
        found["reason"] = str(error)
    return found


def _row(slope: Slope) -> dict[str, Any]:
    low, high = slope.doubling_interval
    return {
        "slope_per_day": slope.slope,
        "slope_lo": slope.lo,
        "slope_hi": slope.hi,
        "doubling_months": doubling_months(slope.slope),
        "lo": low,
        "hi": high,
        "n": slope.n,
    }
