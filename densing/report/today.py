"""The page on density today, as Markdown: every figure from one value, none by hand."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from densing.core import words, write_text
from densing.scores.study import Today
from densing.scores.trend import TrendResult, doubling_text

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
        "Written by `densing report --page today --out docs/density-2026.md`; every number below comes from that "
        "command. Do not edit by hand.\n",
        f"**{headline.title}**, on one scale for {len(today.scale)} models, {len(today.scale.benchmarks)} benchmarks "
        f"and {today.cells.table['evaluator'].nunique()} evaluators. Models of the trend: {today.selection}.\n",
        "## The catalog\n",
        _catalog(today),
        "## One scale\n",
        *_scale(today),
        "## Who hangs by whom\n",
        *_links(today),
        "## Does it predict what it has not seen?\n",
        *_validation(today),
        "## The trend\n",
        _trends(today),
        *(f"- {sentence}" for sentence in headline.sentences()),
        "",
        "## Questions\n",
        *_answers(today),
        "## Facts: IKP again\n",
        _markdown(today.recall.table, "IKP's regressions"),
        "## Forecasts that were tested\n",
        *_forecasts(today),
        f"Catalog {today.digest[:12]}.\n",
    ]
    return "\n".join(parts)


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
        f"{len(today.cells)} cells. Left out: {words.listed(f'{n} {why}' for why, n in left_out.items())}. Split R-hat "
        f"of the general ability, 95th percentile over models: {today.scale.mixing:.2f}.\n",
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
    lines = []
    for answer in today.answers:
        lines += [f"### {answer.question}\n", f"{answer.answer}\n", f"Test: {answer.test}.\n"]
        lines += [_markdown(answer.rows), *(f"- {caveat}" for caveat in answer.caveats), ""]
    return lines


def _forecasts(today: Today) -> list[str]:
    result = today.rehearsal
    return [
        *(f"- {row.sentence}" for row in result.origins.itertuples()),
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
    if words.is_missing(value):
        return words.MISSING
    if isinstance(value, pd.Timestamp):
        return words.day(value)
    return words.digits(value) if isinstance(value, float) else words.clean(value)
