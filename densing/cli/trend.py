"""``densing trend``: how fast density doubles, by several estimators, with checks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from densing.cli import calls
from densing.cli import options as o
from densing.cli.figures import Pictures
from densing.cli.output import emit_json, emit_table, finish, progress, save, say, show_notes, timed_bar

if TYPE_CHECKING:
    import pandas as pd

    from densing.scores.trend import Answer, Arrival


def trend(
    reference: o.Reference = "qwen1.5",
    benchmark: o.Benchmark = "mean",
    since: o.Since = "2023-02-24",
    until: o.Until = None,
    catalog: o.CatalogFiles = None,
    only: Annotated[
        list[Path] | None,
        typer.Option(
            help=f"Your table ({o.FORMS}); its trend is estimated without the catalog's models. May be repeated.",
        ),
    ] = None,
    include: o.Include = None,
    combine: o.Combine = "mean-score",
    pool: o.Pool = False,
    denominator: o.Denominator = "total",
    tokens: o.Tokens = None,
    guard: o.Guard = 3.0,
    permutations: Annotated[int, typer.Option(min=19, help="Shuffles of the release dates.")] = 999,
    bootstrap: Annotated[int, typer.Option(min=50, help="Resamples of families.")] = 500,
    when: Annotated[
        list[str] | None,
        typer.Option(
            help="SCORE:PARAMS, e.g. 0.75:3e9: date when a model of that size reaches that score. May be repeated.",
        ),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            help="Answer a question on the joint scale instead: pace, language, skill, experts, compute or all "
            "(several separated by commas). Only --catalog, --seed, --out and --json apply then.",
        ),
    ] = None,
    front: Annotated[
        bool,
        typer.Option(
            "--front",
            help="Also report the trend of the densest models, and the record holders with their probabilities.",
        ),
    ] = False,
    vintages: Annotated[
        bool,
        typer.Option(
            "--vintages",
            help="Print instead what the headline on the joint scale would have said at every half-year, scale "
            "included. Only --since, --catalog, --include, --guard, --seed, --out and --json apply then. Takes "
            "minutes the first time.",
        ),
    ] = False,
    sensitivity: Annotated[
        bool, typer.Option("--sensitivity", help="Also the headline of --reference joint under other choices.")
    ] = False,
    seed: o.Seed = 0,
    out: o.Out = None,
    html: o.Html = None,
    png: o.Png = None,
    svg: o.Svg = None,
    json: o.JsonFlag = False,
) -> None:
    """Estimate the doubling time of density side by side, with the checks that belong to it.

    With --verbose also how the estimators did in simulations, and what tests found that have no power on these data.

    Example: densing trend --benchmark mmlu --only leaderboard.csv --html trend.html

    Example: densing trend --reference qwen1.5 --benchmark mmlu --since 2023-02-24 --until 2024-09-30 --json
    """
    import pandas as pd

    from densing.scores.catalog import load_catalog, selection_of
    from densing.scores.trend import PAPERS_OWN, TrendData, estimate_trend
    from densing.scores.trend import when as arrival

    if only and catalog:
        raise typer.BadParameter("give either a table alone, or one joined to the catalog", param_hint="--only")
    if (by is not None or vintages) and any((only, html, png, svg)):
        raise typer.BadParameter("cannot be combined with --by or --vintages",
                                 param_hint="--only, --html, --png, --svg")  # fmt: skip
    if only and reference == "joint":
        raise typer.BadParameter("the joint scale is built from the catalog; name a family (`densing refs list`)",
                                 param_hint="--only")  # fmt: skip
    if by is not None:
        _answer(by, catalog, seed=seed, out=out, json=json)
        return
    o.parse_window(since, until)
    if vintages:
        _vintages(catalog, since=since, include=include, guard=guard, seed=seed, out=out, json=json)
        return
    if sensitivity and reference != "joint":
        message = f"{reference!r} is a single-family reference; other choices exist for --reference joint only"
        raise typer.BadParameter(message, param_hint="--sensitivity")
    questions = [_question(text) for text in when or []]
    merged = load_catalog(*(only or catalog or []), embedded=not only)
    selection = selection_of(include)
    with timed_bar(json, "densities, estimators, tests"):
        ref, densities = o.read_densities(
            merged,
            (reference, benchmark),
            combine=combine,
            tokens=tokens,
            pool=pool,
            selection=selection,
            denominator=denominator,
            guard=guard,
            seed=seed,
        )
        models = TrendData.from_density(densities.headline)
        result = estimate_trend(
            models.window(since, until), seed=seed, permutations=permutations, bootstrap=bootstrap, keep=True
        )
    later = models.window(since=pd.Timestamp(result.data.released.max()) + pd.Timedelta(days=1))
    today = pd.Timestamp.today().normalize()
    answers = [
        (score, params, arrival(result, score, params, ref, later=later, today=today)) for score, params in questions
    ]
    notes = (*densities.notes, *result.notes)
    told = result.front if front else None
    choices = None
    if sensitivity:
        from densing.scores.study import sensitivity as other_choices
        from densing.scores.study import sensitivity_listing

        choices = other_choices(merged, densities, window=(since, until), selection=selection, seed=seed)
    quoted = result.quoted(ref.name, o.curve_name(benchmark, combine))
    payload = {
        "reference": ref.describe(),
        "selection": selection.describe(),
        "window": [since, until],
        "denominator": denominator,
        "combine": combine,
        **result.to_dict(),
        "sentence": quoted,
        "when": [{"score": score, "params": params, **answer.to_dict()} for score, params, answer in answers],
        **({"front": told and told.to_dict()} if front else {}),
        **({} if choices is None else {"sensitivity": choices}),
        "notes": list(notes),
    }
    save(result.estimates, payload, out)
    if pictures := Pictures(html, png, svg):
        from densing.plots import density_points
        from densing.report import build_trend, trend_figure

        pictures.write(
            lambda path: build_trend(result, densities, path, benchmark=o.curve_name(benchmark, combine)),
            lambda: trend_figure(result, densities),
            density_points(densities),
        )
    if json:
        emit_json(payload)
    else:
        title = f"{result.title}; {reference} on {o.curve_name(benchmark, combine)}, months"
        own = result.estimates["method"].isin(PAPERS_OWN)
        emit_table(result.listing, title)
        say(
            "\n".join(
                [
                    "To quote:",
                    quoted,
                    f"Models: {selection.describe()}.",
                    result.why,
                    *result.sentences(),
                    _papers_own(result.estimates[own]),
                ]
            )
        )
        if calls.current().verbose:
            say("\n".join([result.record, *result.details()]))
        if front:
            say("Too few models to estimate the front." if told is None else told.sentence)
            if told is not None:
                emit_table(told.listing)
        if choices is not None:
            emit_table(sensitivity_listing(choices), "The headline under other choices")
        for question in answers:
            say(_sentence(*question))
        show_notes(notes, brief=True)
    finish(notes)


def _papers_own(rows: pd.DataFrame) -> str:
    from densing.scores.trend import doubling_text

    read = ", ".join(f"{row.method} {doubling_text(row.doubling_months, row.lo, row.hi)}" for row in rows.itertuples())
    return f"The paper's own method, which rises without any trend, for comparison only: {read}."


def _vintages(
    catalog: o.CatalogFiles, *, since: str | None, include: o.Include, guard: float, seed: int, out: o.Out, json: bool
) -> None:
    """Print what the headline would have said at earlier dates."""
    from densing.core import plain
    from densing.scores.catalog import load_catalog, selection_of
    from densing.scores.study import vintage_sentence, vintages, vintages_listing

    with progress(quiet=json) as step:
        table = vintages(
            load_catalog(*(catalog or [])),
            since=since,
            selection=selection_of(include),
            guard=guard,
            seed=seed,
            step=step,
        )
    payload = {"sentence": vintage_sentence(table), "vintages": plain(table.to_dict("records"))}
    save(table, payload, out)
    if json:
        emit_json(payload)
        return
    emit_table(vintages_listing(table))
    say(vintage_sentence(table))


def _answer(by: str, catalog: o.CatalogFiles, *, seed: int, out: o.Out, json: bool) -> None:
    """Answer questions of the trend: their sentences, then the groups behind them."""
    from densing.scores.catalog import load_catalog
    from densing.scores.trend import answer_questions

    names = None if by.strip() == "all" else [name.strip() for name in by.split(",")]
    with progress(quiet=json) as step:
        answers = answer_questions(load_catalog(*(catalog or [])), names, seed=seed, keep=True, step=step)
    payload = {"level": answers.level, "answers": [answer.to_dict() for answer in answers]}
    save(answers.table, payload, out, answers.notes)
    if json:
        emit_json(payload, answers.notes)
    else:
        for answer in answers:
            _show(answer)
        show_notes(answers.notes)
    finish(answers.notes)


def _show(answer: Answer) -> None:
    emit_table(answer.listing, f"{answer.question} {answer.answer} (estimates in {answer.unit})")
    say("\n".join([f"Test: {answer.test}.", *answer.caveats]))


def _question(text: str) -> tuple[float, float]:
    try:
        score, params = (float(part) for part in text.split(":"))
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is not SCORE:PARAMS, e.g. 0.75:3e9", param_hint="--when") from error
    return score, params


def _sentence(score: float, params: float, answer: Arrival) -> str:
    import pandas as pd

    note = f"; {answer.note}" if answer.note else ""
    question = f"Score {score:g} in {params:.3g} parameters"
    dates = (answer.date, answer.lo, answer.hi)
    if all(map(pd.isna, dates)):
        return f"{question}: no date{note}"
    date, low, high = ("never" if pd.isna(day) else str(day.date()) for day in dates)
    return f"{question}: {date} ({low} to {high}, 90 %){note}"
