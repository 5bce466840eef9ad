"""``densing forecast``: forecast future models, and back-test such forecasts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from densing.cli import options as o
from densing.cli.output import emit_json, emit_table, finish, progress, save, say, show_notes

if TYPE_CHECKING:
    from densing.scores.catalog import Selection

app = typer.Typer(
    help="Forecast the density of models to come, by the forecaster that won its back-test.\n\n"
    "Example: densing forecast show --months 6",
)

Months = Annotated[float, typer.Option("--months", min=0.5, max=120, help="Forecast horizon.")]
Moe = Annotated[bool, typer.Option("--moe", help="Mixtures of experts (by total size) instead of dense models.")]


Basket = Annotated[
    str,
    typer.Option("--benchmark", "-b", help="Ability that is forecast: general, a skill, multilingual or a language."),
]


def _selection(moe: bool) -> Selection | None:
    from densing.scores.catalog import Selection

    return Selection(architectures=("moe",)) if moe else None


@app.callback(invoke_without_command=True)
def forecast(context: typer.Context) -> None:
    """Forecast the density of models to come, by the forecaster that won its back-test.

    Example: densing forecast
    """
    if context.invoked_subcommand is None:
        show()


@app.command("show")
def show(
    benchmark: Basket = "general",
    months: Months = 12.0,
    catalog: o.CatalogFiles = None,
    moe: Moe = False,
    seed: o.Seed = 0,
    out: o.Out = None,
    json: o.JsonFlag = False,
) -> None:
    """Show the density of the models of the next months, by the forecaster that won the back-test.

    Example: densing forecast show --months 6
    """
    from densing.scores.catalog import load_catalog
    from densing.scores.study import shipped_backtest
    from densing.scores.trend import forecast_now

    merged = load_catalog(*(catalog or []))
    asked: dict[str, Any] = {"selection": _selection(moe), "basket": benchmark, "seed": seed}
    with progress(json) as step:
        outlook = forecast_now(merged, months, result=shipped_backtest(merged, **asked), **asked, step=step)
    payload = outlook.to_dict()
    save(outlook.table, payload, out)
    if json:
        emit_json(payload)
    else:
        emit_table(outlook.listing)
        say(f"{outlook.sentence}.\n{outlook.choice.sentence}")
        show_notes(outlook.notes)
    finish(outlook.notes)


@app.command("backtest")
def backtest(
    freeze: Annotated[str | None, typer.Option(help="Date to freeze the catalog at, ISO.", metavar="DATE")] = None,
    origins: Annotated[
        str | None,
        typer.Option(help="Several dates, comma-separated; default: the ends of past years and 2025-11-14."),
    ] = None,
    benchmark: Basket = "general",
    months: Months = 12.0,
    catalog: o.CatalogFiles = None,
    moe: Moe = False,
    cases: Annotated[
        bool,
        typer.Option(
            "--cases", help="Also print every later model, as for a single date; --out FILE.csv contains them."
        ),
    ] = False,
    seed: o.Seed = 0,
    out: o.Out = None,
    json: o.JsonFlag = False,
) -> None:
    """Freeze the catalog at past dates, forecast the models that came after, and score the forecasts.

    CRPS is in the unit of what is forecast, 0 at best; vs_still and vs_nearest are skill against those two, 1 at best
    and below 0 where worse, with 90 % intervals from resampled families.

    Example: densing forecast backtest --freeze 2025-11-14 --json
    """
    from densing.scores.catalog import load_catalog
    from densing.scores.trend import ORIGINS, TARGETS, backtest_forecasts, best_forecaster, scores_listing

    if freeze and origins:
        raise typer.BadParameter("give --freeze or --origins, not both", param_hint="--freeze")
    texts = [freeze] if freeze else [part.strip() for part in origins.split(",")] if origins else list(ORIGINS)
    dates = [o.parse_date(text, "--freeze" if freeze else "--origins") for text in texts]
    merged = load_catalog(*(catalog or []))
    with progress(json) as step:
        result = backtest_forecasts(
            merged, dates, months=months, basket=benchmark, selection=_selection(moe), seed=seed, step=step
        )
    choices = {target: best_forecaster(result, target) for target in TARGETS}
    payload = {**result.to_dict(), "best": choices}
    save(result.cases if cases else result.table, payload, out)
    if json:
        emit_json(payload)
    else:
        for origin in dict.fromkeys(result.table["origin"]):
            rows = result.table[result.table["origin"].eq(origin)]
            where = "All dates" if origin == "all" else f"Frozen at {origin}"
            title = f"{where}: forecasts of {months:g} months and outcomes"
            emit_table(scores_listing(rows, title).without("Frozen at"))
        if len(result.cases) and (cases or len(dates) == 1):
            emit_table(result.models_listing(choices["density"].forecaster))
        for row in result.origins.itertuples():
            say(f"{row.origin.date()}: {row.status}; {row.sentence}.")
        say("\n".join(result.sentences()))
        show_notes(result.notes)
    finish(result.notes)
