"""The replication page: the paper's figures beside ours, as Markdown, from a study's own numbers."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd

from densing.core import write_text
from densing.report.study import chatgpt_split
from densing.scores.study import PAPER_MONTHS, PAPER_WINDOW, Study
from densing.scores.trend import doubling_text

_PAPER = """\
| quantity | paper | evidence |
|---|---|---|
| doubling time, v2 abstract | about 3.3 months (A about 0.007 per day, R² about 0.93) | arXiv 2412.04315v2 |
| doubling time, v2 section 3.3 | about 95 days (A about 0.0073 per day, R² 0.912) | arXiv 2412.04315v2 |
| doubling time, journal version | about 3.5 months | as reported second-hand; not read by us |
| before / after ChatGPT, MMLU only | A about 0.0048 / about 0.0073 per day | arXiv 2412.04315v2, Fig. 4 |
| any confidence interval | none published | arXiv 2412.04315v2 |
"""

_NOT_PUBLISHED = """\
The parameters a, α, b, β and c, γ, l, d, the trend's intercept, the scores and densities of the 29 models, the
treatment of scores outside the sigmoid and the rule for combining benchmarks are not published. So the *procedure*
is replicated (record-setters on an envelope, ordinary least squares of ln ρ on days, one curve on the mean score),
on published scores and public reference families; the figure's points are not.
"""

SCORES_REASON = (
    "**Scores.** The paper mixes makers' own figures; the references of one family stay within one evaluator and carry "
    "the evaluators' disagreement into each score's error, and the joint scale estimates what every evaluator adds to "
    "each benchmark, makers' tables of their own models left out."
)
SIZES_REASON = (
    "**Sizes.** Total parameters divide here, embeddings included; the paper's own reference models count without them."
)


def build_replication(study: Study, path: Path | str) -> Path:
    """Write the replication page of a study.

    Parameters
    ----------
    study : Study
        What :func:`densing.scores.study.run_study` found.
    path : path
        Markdown file to write.

    Returns
    -------
    pathlib.Path
        The file.

    See Also
    --------
    run_study, build_report

    Examples
    --------
    Of six models of one's own; ``densing report`` writes the embedded catalog's:

    >>> import tempfile
    >>> import densing
    >>> scores = [{"model": f"mine-{n}", "family": f"mine, line {n % 3}", "params": 1e9, "score": 0.3 + 0.02 * n,
    ...            "benchmark": "openbookqa", "released": f"2024-{n:02d}-15"} for n in range(1, 7)]
    >>> catalog = densing.load_catalog(scores, embedded=False)
    >>> study = densing.run_study(catalog, densing.StudyOptions("olmo-ladder", "openbookqa"))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     lines = build_replication(study, Path(folder) / "replication.md").read_text().splitlines()
    >>> lines[0]
    '# Replication of the Densing Law'
    """
    target = Path(path)
    write_text(target, render_replication(study))
    return target


def render_replication(study: Study) -> str:
    """Return the replication page as Markdown."""
    means = study.replication[study.replication["benchmark"] == "mean"]
    singles = study.replication[study.replication["benchmark"] != "mean"]
    trends = {"Headline": study.trend} | (
        {} if study.comparison is None else {study.comparison.name: study.comparison.trend}
    )
    parts = [
        "# Replication of the Densing Law\n",
        "Written by `densing report --out docs/results/replication.md`; every number below comes from that command. "
        "Do not edit by hand.\n",
        "## What the paper says\n",
        _PAPER,
        "## What can be replicated, and what cannot\n",
        _NOT_PUBLISHED,
        f"## The paper's method in its window ({PAPER_WINDOW[0]} to {PAPER_WINDOW[1]})\n",
        f"Models: {study.selection}. Intervals are the classical ones of a regression on record-setters, far too "
        "narrow in simulation (docs/adr/0003). `p` shuffles the release dates of whole families: the share of shuffles "
        "in which all models, not the record-setters alone, rise as steeply. Size and power are how often that test "
        "rejects at 5 % in simulations on the same dates and families, without a trend and with a doubling in "
        f"{PAPER_MONTHS} months.\n",
        "### One curve on the mean score, as the paper\n",
        _estimates(means, "on the mean score"),
        "### One benchmark at a time\n",
        _estimates(singles, "on single benchmarks"),
        "## What our headline says\n",
        f"**{study.trend.title}**: {study.reference.title}, benchmark {study.reference.benchmark}, "
        f"{len(study.density)} models in {int(study.trend.headline['clusters'])} families; "
        "all models, Tobit with a family jackknife.\n",
        *(f"- {sentence}" for sentence in (*study.trend.sentences(), study.precision) if sentence),
        "",
        "## Before and after ChatGPT\n",
        chatgpt_split(study.split) + "\n",
        *_comparison(study),
        "## Where we disagree, and why\n",
        *_reasons(study),
        "## Everything at once\n",
        _spread(study.multiverse),
        "## Details: tests that do not lead\n",
        *(f"- {name}. {sentence}" for name, trend in trends.items() for sentence in trend.details()),
        "",
        f"\nCatalog {study.hashes['catalog'][:12]}, densing {study.versions['densing']}, seed "
        f"{study.options['seed']}.\n",
    ]
    return "\n".join(parts)


def _estimates(table: pd.DataFrame, references: str) -> str:
    if table.empty:
        return f"Too few of these models stand in the paper's window {references}.\n"
    lines = [
        "| reference | benchmark | evaluator | record-setters | doubling, months (95 %) | covers 3.3 "
        "| p (size, power) |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in table.itertuples():
        # A test that was not simulated has no size or power, and its p alone would be quoted.
        shares = (row.permutation_p, row.permutation_size, row.permutation_power)
        known = not any(share is None or math.isnan(share) for share in shares)
        p = f"{shares[0]:.3f} ({100 * shares[1]:.0f} %, {100 * shares[2]:.0f} %)" if known else "–"
        text = doubling_text(row.doubling_months, row.lo, row.hi)
        covers = "yes" if row.covers_paper else "no"
        lines.append(f"| {row.reference} | {row.benchmark} | {row.evaluator} | {row.n} | {text} | {covers} | {p} |")
    # An interval without an upper end covers almost any figure, so it proves little.
    bounded = table[table["hi"].map(math.isfinite)]
    verdict = (
        f"{int(table['covers_paper'].sum())} of {len(table)} intervals {references} cover {PAPER_MONTHS} months; "
        f"{int(bounded['covers_paper'].sum())} of the {len(bounded)} that have two ends do. "
        f"Median doubling time {table['doubling_months'].median():.1f} months.\n"
    )
    return "\n".join([*lines, "", verdict])


def _comparison(study: Study) -> list[str]:
    part = study.comparison
    if part is None:
        return []
    first, last = (f"{part.trend.data.released.min()!s:.10}", f"{part.trend.data.released.max()!s:.10}")
    record = part.trend.estimates.set_index("method").loc["envelope"]
    envelope = doubling_text(float(record["doubling_months"]), float(record["lo"]), float(record["hi"]))
    return [
        f"## {part.name}\n",
        f"{part.reference.title} on {part.reference.benchmark}, {len(part.trend.data)} models from {first} to {last}, "
        f"by the headline's estimator: **{part.trend.title}**; the paper's envelope on the same data: {envelope}.\n",
        *(f"- {sentence}" for sentence in part.trend.sentences()),
        "",
    ]


def _reasons(study: Study) -> list[str]:
    usual = study.multiverse[study.multiverse["denominator"].eq("total") & study.multiverse["dates"].eq("sourced")]
    bias = study.trend.checks.record_setter_bias
    drift = None if bias is None or bias.no_trend is None else bias.no_trend.median_doubling_months
    null = f" On these dates it reads {drift:.1f} months where nothing improves at all." if drift else ""
    estimator = (
        f"**Estimator.** A regression on record-setters drifts upwards by itself.{null} The headline uses every model "
        "and treats scores beyond the reference as bounds."
    )
    reasons = (estimator, _benchmark_reason(usual), _window_reason(usual), SCORES_REASON, SIZES_REASON)
    return [*(f"- {reason}" for reason in reasons if reason), ""]


def _benchmark_reason(table: pd.DataFrame) -> str:
    rows = table[table["method"].eq("envelope") & table["window"].eq("paper")]
    medians = rows.groupby("benchmark")["doubling_months"].median().sort_values()
    if len(medians) < 2:
        return ""
    fast, slow = medians.index[0], medians.index[-1]
    return (
        f"**Benchmark.** Median over references of the envelope's doubling time: from {medians.iloc[0]:.1f} months on "
        f"{fast} to {medians.iloc[-1]:.1f} on {slow}. One number for all of them is an average over very different "
        "paces."
    )


def _window_reason(table: pd.DataFrame) -> str:
    rows = table[table["method"].eq("tobit-crv3") & table["benchmark"].eq("mmlu")]
    pairs = rows.pivot_table(index="reference", columns="window", values="doubling_months").dropna()
    if not {"paper", "long"} <= set(pairs.columns) or pairs.empty:
        return ""
    slower = int((pairs["long"] > pairs["paper"]).sum())
    return (
        "**Window.** On MMLU, the one joined series, the headline's estimator is slower to the end of the data than "
        f"in the paper's window on {slower} of {len(pairs)} references."
    )


def _spread(table: pd.DataFrame) -> str:
    lines = [
        "| method | window | combinations | doubling, months: median (quartiles) | p < 0.05, families shuffled |",
        "|---|---|---|---|---|",
    ]
    for (method, window), group in table.groupby(["method", "window"]):
        # No interpolation: a doubling time may be infinite.
        low, mid, high = group["doubling_months"].quantile([0.25, 0.5, 0.75], interpolation="nearest")
        significant = int((group["permutation_p"].astype(float) < 0.05).sum())
        lines.append(f"| {method} | {window} | {len(group)} | {mid:.1f} ({low:.1f} to {high:.1f}) | {significant} |")
    return "\n".join(lines) + "\n"
