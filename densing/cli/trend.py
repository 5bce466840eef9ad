"""``densing trend``: how fast density doubles, by several estimators, with checks."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from densing.cli import options as o

SHOWN = ["method", "doubling_months", "lo", "hi", "n", "clusters", "dropped", "se_type"]


def trend(
    reference: o.Reference = "qwen1.5",
    benchmark: o.Benchmark = "mean",
    since: o.Since = "2023-02-24",
    until: o.Until = None,
    catalog: o.CatalogFiles = None,
    include: o.Include = None,
    combine: o.Combine = "mean-score",
    pool: o.Pool = False,
    denominator: o.Denominator = "total",
    tokens: o.Tokens = None,
    guard: o.Guard = 3.0,
    permutations: Annotated[int, typer.Option("--permutations", min=19, help="Shuffles of the release dates.")] = 999,
    bootstrap: Annotated[int, typer.Option("--bootstrap", min=50, help="Resamples of families.")] = 500,
    when: Annotated[
        list[str] | None,
        typer.Option(
            "--when", help="SCORE:PARAMS, e.g. 0.75:3e9: when does that score fit in that size? May be repeated."
        ),
    ] = None,
    seed: o.Seed = 0,
    out: o.Out = None,
    json: o.JsonFlag = False,
) -> None:
    """Estimate the doubling time of density side by side, with the checks that belong to it.

    Example: densing trend --reference qwen1.5 --benchmark mmlu --since 2023-02-24 --until 2024-09-30 --json
    """
    from densing.cli.output import emit_json, finish, save, show_notes
    from densing.cli.reading import read_densities
    from densing.scores.catalog import load_catalog, selection_of
    from densing.scores.trend import TrendData, estimate_trend

    o.parse_window(since, until)
    questions = [_question(text) for text in when or []]
    merged = load_catalog(*(catalog or []))
    chosen = selection_of(include)
    ruler, densities = read_densities(
        merged,
        (reference, benchmark),
        combine=combine,
        tokens=tokens,
        pool=pool,
        selection=chosen,
        denominator=denominator,
        guard=guard,
        seed=seed,
    )
    headline = densities.subset((densities.table["stratum"] == "headline").to_numpy())
    data = TrendData.from_density(headline).window(since, until)
    result = estimate_trend(data, seed=seed, permutations=permutations, bootstrap=bootstrap)
    notes = (*densities.notes, *result.notes)
    payload = {
        "reference": ruler.describe(),
        "selection": chosen.describe(),
        "window": [since, until],
        "denominator": denominator,
        "combine": combine,
        **result.to_dict(),
        "when": [_answer(result, ruler, TrendData.from_density(headline), *question) for question in questions],
        "notes": list(notes),
    }
    save(result.estimates, payload, out)
    if json:
        emit_json(payload)
    else:
        how = ", per benchmark" if combine == "per-benchmark" else ""
        _show(result, payload, f"{reference} on {benchmark}{how}")
        show_notes(notes)
    finish(notes)


def _show(result: Any, payload: dict[str, Any], what: str) -> None:
    from densing.cli.output import emit_table, say

    emit_table(result.estimates[SHOWN], f"{result.title}; {what}, months")
    say("\n".join([f"Models: {payload['selection']}.", result.why, *result.sentences()]))
    for answer in payload["when"]:
        say(_sentence(answer))


def _question(text: str) -> tuple[float, float]:
    try:
        score, params = (float(part) for part in text.split(":"))
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is not SCORE:PARAMS, e.g. 0.75:3e9", param_hint="--when") from error
    return score, params


def _answer(result: Any, ruler: Any, everyone: Any, score: float, params: float) -> dict[str, Any]:
    import pandas as pd

    from densing.scores.trend import when as arrival

    later = everyone.window(since=pd.Timestamp(result.data.released.max()) + pd.Timedelta(days=1))
    today = pd.Timestamp.today().normalize()
    answer = arrival(result, score, params, ruler, later=later, today=today)
    return {"score": score, "params": params, **answer.to_dict()}


def _sentence(answer: dict[str, Any]) -> str:
    note = f"; {answer['note']}" if answer["note"] else ""
    asked = f"Score {answer['score']:g} in {answer['params']:.3g} parameters"
    if not any(answer[key] for key in ("date", "date_lo", "date_hi")):
        return f"{asked}: no date{note}"
    date, low, high = (answer[key] or "never" for key in ("date", "date_lo", "date_hi"))
    return f"{asked}: {date} ({low} to {high}, 90 %){note}"
