"""The page on density today, as Markdown: every figure from one value, none by hand."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from densing.core import doubts, formatting, write_text
from densing.report.study import who_counts
from densing.scores.study import Today, precision
from densing.scores.trend import HEADLINE, LINE, TrendResult, doubling_text, measured_coverage

NAMES = {"mean": "all four skills", "multilingual": "other languages"}


def build_today(today: Today, path: Path | str) -> Path:
    """Write the page.

    Parameters
    ----------
    today : Today
        What :func:`densing.scores.study.density_today` found.
    path : path
        Markdown file to write.

    See Also
    --------
    build_replication
    """
    target = Path(path)
    write_text(target, render_today(today))
    return target


def render_today(today: Today) -> str:
    """Return the page as Markdown."""
    headline = today.trends["mean"]
    parts = [
        "# Density today\n",
        "Written by `densing report --page today --out docs/results/density-2026.md`; every number below comes from "
        "that command, and under every heading stands the one that gives it alone. Do not edit by hand.\n",
        f"**{headline.title}. {headline.now}** Both on one scale for {len(today.scale)} models, "
        f"{len(today.scale.benchmarks)} benchmarks "
        f"and {today.cells.table['evaluator'].nunique()} evaluators. Models of the trend: {today.selection}.\n",
        "## Before you quote it\n",
        *_caveats(today),
        "## The pace over time\n",
        _command("densing trend --reference joint --benchmark mean --front"),
        *_pace(headline),
        "## What the headline would have said\n",
        _command("densing trend --vintages"),
        _vintages(today.vintages),
        "## The same under other choices\n",
        _command("densing trend --reference joint --benchmark mean --sensitivity"),
        _sensitivity(today.sensitivity),
        "## How good the intervals are\n",
        _command("make coverage-table"),
        _coverage(),
        "## The questions\n",
        _command("densing trend --by all"),
        *_answers(today),
        "## The trend\n",
        _command("densing trend --reference joint --benchmark mean"),
        _trends(today),
        "## A known doubling time, found again?\n",
        *_recovery(today),
        "## Forecasts that were tested\n",
        _command("densing forecast backtest"),
        *_forecasts(today),
        "## Does the scale predict what it has not seen?\n",
        _command("densing joint validate --seeds 2"),
        *_validation(today),
        "## One scale\n",
        _command("densing joint offsets"),
        *_scale(today),
        "## Who hangs by whom\n",
        _command("densing joint links --refit evaluator"),
        *_links(today),
        "## Facts: IKP again\n",
        _markdown(today.recall.table, "IKP's regressions (Li 2026, arXiv 2604.24827)"),
        "## The catalog\n",
        _command("densing catalog sources"),
        _catalog(today),
        f"Catalog {today.digest[:12]}.\n",
    ]
    return "\n".join(parts)


def _command(text: str) -> str:
    return f"`{text}`\n"


def _caveats(today: Today) -> list[str]:
    headline = today.trends["mean"]
    spoken = (
        *headline.sentences(),
        precision(headline),
        who_counts(today.sensitivity, today.counted),
        today.recovery.sentence,
        *(note.message for note in doubts((*today.scale.notes, *headline.notes))),
    )
    return [*(f"- {formatting.sentence(sentence)}" for sentence in spoken if sentence), ""]


def _sensitivity(table: pd.DataFrame) -> str:
    return _markdown(_both_means(table)[["choice", "window", "last_year", "n", "families", "last"]])


def _both_means(table: pd.DataFrame) -> pd.DataFrame:
    """The table with both means of the pace in words, as ``window`` and ``last_year``."""
    return table.assign(
        window=[doubling_text(row.doubling_months, row.lo, row.hi) for row in table.itertuples()],
        last_year=[doubling_text(row.year_months, row.year_lo, row.year_hi) for row in table.itertuples()],
    )


def _pace(trend: TrendResult) -> list[str]:
    """The pace by quarter, what its prior does, and the front."""
    table = trend.pace().iloc[::3]
    table = table.assign(pace=[doubling_text(row.months, row.lo, row.hi) for row in table.itertuples()])
    priors = trend.priors.assign(
        pace=[doubling_text(row.doubling_months, row.lo, row.hi) for row in trend.priors.itertuples()]
    )
    lines = [_markdown(table[["date", "pace"]]), _markdown(priors[["prior", "part", "pace", "growing", "slower"]])]
    front = trend.front
    if front is None:
        return lines
    columns = ["model", "released", "density", "lo", "hi", "record", "probability"]
    return [*lines, f"{front.sentence}\n", _markdown(front.records[columns])]


def _vintages(table: pd.DataFrame) -> str:
    if table.empty:
        return "Not worked out for this catalog.\n"
    return _markdown(_both_means(table)[["vintage", "window", "last_year", "growing", "n", "families"]])


def _coverage() -> str:
    """How often the intervals of the pace and of one straight line held the truth, by world."""
    table = measured_coverage().set_index(["scenario", "method"])
    worlds = table.index.get_level_values("scenario").unique()
    rows = {
        f"{label}, {part}": [formatting.percentage(table.loc[(world, method), column]) for world in worlds]
        for label, method in (("pace", HEADLINE.name), ("straight line", LINE.name))
        for part, column in (("window", "coverage"), ("last year", "coverage_last"))
    }
    return _markdown(pd.DataFrame({"world": worlds, **rows}))


def _recovery(today: Today) -> list[str]:
    table = today.recovery.table
    shown = table.assign(interval=[formatting.short_interval(row.lo, row.hi) for row in table.itertuples()])
    names = ["world", "link", "group", "months", "known", "estimate", "interval", "held", "models", "densities"]
    return [
        _command("densing joint recover"),
        "Scores simulated on exactly the catalog's cells by a generator that the model is not: another link function "
        "in two worlds of three, errors with three degrees of freedom, evaluators that suit skills differently, "
        "skills of different pace, "
        "families with shocks. `months` is the world's doubling time, `known` what the same estimator gives for the "
        "same models when their densities are known, `estimate` what the scores give; `densities`: share of the 95 % "
        "intervals of densities that hold the truth, limits left out.\n",
        _markdown(shown[names]),
        f"{today.recovery.sentence}\n",
    ]


def _catalog(today: Today) -> str:
    table = today.evaluators
    shown = table[["evaluator", "role", "models", "benchmarks", "scores", "first", "last", "licence", "own", "flagged"]]
    languages = table["languages"].str.split().map(len)
    return _markdown(shown.assign(languages=languages))


def _scale(today: Today) -> list[str]:
    offsets = today.scale.offsets()
    known = offsets[offsets["models"].ge(10)]
    widest = known.reindex(known["offset"].abs().sort_values(ascending=False).index).head(20)
    points = widest.assign(**{name: 100 * widest[name] for name in ("offset", "lo", "hi")})
    left_out = today.cells.dropped["reason"].value_counts()
    return [
        f"{len(today.cells)} cells. Left out: {formatting.listed(f'{n} {why}' for why, n in left_out.items())}. "
        f"{today.scale.agreement}.\n",
        "How far an evaluator's test lies from an average one, in percentage points at the models that it measured, "
        "the twenty widest among tests of ten models or more (`densing joint offsets` has all):\n",
        _markdown(points),
    ]


def _links(today: Today) -> list[str]:
    table = today.links.table
    loose = table[table["status"].ne("linked")]
    return [
        f"{len(table)} evaluators in {table['component'].nunique()} component(s); "
        f"{len(loose)} hang by one model or by none.\n",
        *([_markdown(loose)] if len(loose) else []),
        *(f"- {note.message}" for note in today.links.notes),
        "",
        "The scale without each evaluator that measured ten models or more: how far the abilities of the others move, "
        "in widths of their own 95 % intervals (`common` is a move of all together, in logits, which no density "
        "sees):\n",
        _markdown(today.left_out.table),
    ]


def _validation(today: Today) -> list[str]:
    result = today.validation
    evaluators = result.by("evaluator")
    worst = evaluators[evaluators["split"].eq("pairs") & evaluators["cells"].ge(20)].head(10)
    return [
        "Mean absolute error of scores that were hidden, beside the rivals on the same cells (`below`: how far the "
        "joint scale lies under that rival); coverage of its 95 % intervals, for cells and for means of blocks:\n",
        _markdown(result.table),
        *(f"- {note.message}" for note in result.notes),
        "",
        "Where it misses most (hidden pairs, evaluators with twenty cells or more):\n",
        _markdown(worst),
    ]


def _trends(today: Today) -> str:
    def row(name: str, trend: TrendResult) -> dict[str, Any]:
        head = trend.headline
        return {
            "ability": NAMES.get(name, name),
            "models": len(trend.data),
            "families": int(head["clusters"]),
            "doubling, months (95 %)": doubling_text(
                float(head["doubling_months"]), float(head["lo"]), float(head["hi"])
            ),
        }

    return _markdown(pd.DataFrame([row(name, trend) for name, trend in today.trends.items()]))


def _answers(today: Today) -> list[str]:
    table = today.answers.table
    names = [name for name in ("question", "estimate", "unit", "lo", "hi", "p", "p_holm") if name in table]
    lines = [_markdown(table[names])]
    for answer in today.answers:
        lines += [f"### {answer.question}\n", f"{answer.answer}\n", f"Test: {answer.test}.\n"]
        lines += [_markdown(answer.rows), *(f"- {caveat}" for caveat in answer.caveats), ""]
    return lines


def _forecasts(today: Today) -> list[str]:
    result = today.backtest
    return [
        *(f"- {formatting.day(row.origin)}: {row.sentence}." for row in result.origins.itertuples()),
        "",
        *(f"- `{name}`: {result.labels[name]}" for name in result.forecasters),
        "",
        _markdown(result.table),
        f"{today.outlook.choice.sentence}\n",
        f"**{today.outlook.sentence}**\n",
    ]


def _markdown(table: pd.DataFrame, title: str = "") -> str:
    """Return a table in Markdown, numbers as everywhere else."""
    head = [str(name) for name in table.columns]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(_cells(row)) + " |" for row in table.itertuples(index=False)]
    return "\n".join([*([f"{title}:\n"] if title else []), *lines, ""])


def _cells(row: Iterable[Any]) -> list[str]:
    return [_cell(value).replace("|", "\\|") for value in row]


def _cell(value: Any) -> str:
    if formatting.is_missing(value):
        return formatting.MISSING
    if isinstance(value, pd.Timestamp):
        return formatting.day(value)
    return formatting.digits(value) if isinstance(value, float) else formatting.clean(value)
