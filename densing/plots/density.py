"""Density of every model against its release date, with frontier, line and forecast fan; and skill by skill."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from densing.core import words
from densing.plots import style

if TYPE_CHECKING:
    from densing.scores.density import DensityResult
    from densing.scores.trend import TrendResult


APART_SYMBOLS = tuple(f"{symbol}-open" for symbol in ("square", "diamond", "cross", "x", "star", "hexagon", "pentagon"))
SHOWN_MODELS = 24
ROW_HEIGHT = 26
# Level of the line's band.
LEVEL = 0.95
LINE_POINTS = 60


def plot_density(
    density: DensityResult,
    trend: TrendResult | None = None,
    apart: DensityResult | None = None,
    forecast: pd.DataFrame | None = None,
    placed: DensityResult | None = None,
) -> go.Figure:
    """Draw the density of every model against its release date.

    rho = N_hat / N on a logarithmic axis; a straight line is a constant doubling time. Censored models stand
    at their limit with a triangle that points to where the true value lies.

    Source: Xiao et al., arXiv 2412.04315, eq. 1, eq. 5 and Fig. 1.

    Parameters
    ----------
    density : DensityResult
        The headline rows.
    trend : TrendResult, optional
        Headline line and its band over the window.
    apart : DensityResult, optional
        Rows outside the headline, one legend entry per ``stratum``; hidden until chosen in the legend.
    placed : DensityResult, optional
        Rows to point out, such as models measured here; a star each.
    forecast : pandas.DataFrame, optional
        Columns date, mid, lo50, hi50, lo90, hi90; density, not its logarithm.

    Returns
    -------
    plotly.graph_objects.Figure

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> table = pd.DataFrame({"model": ["a"], "released": [pd.Timestamp("2024-01-01")], "density": [1.0]})
    >>> [trace.name for trace in plot_density(SimpleNamespace(table=table)).data]
    ['density 1 = the ruler itself', 'frontier (densest so far)', 'models', 'record when released']

    See Also
    --------
    plot_reference, plot_estimates
    """
    rows = drawable(density.table)
    if rows.empty:
        return style.empty("No model has both a release date and a density.")
    fig = style.figure(560)
    shown = [rows["at"].to_numpy()]
    # Density 1 is the ruler itself.
    dates = [rows["released"].min(), rows["released"].max()]
    if forecast is not None and not forecast.empty:
        dates[1] = max(dates[1], pd.to_datetime(forecast["date"]).max())
    unit = {"color": style.MUTED, "width": 1, "dash": "dot"}
    fig.add_scatter(x=dates, y=[1, 1], mode="lines", line=unit, name="density 1 = the ruler itself", hoverinfo="skip")
    if forecast is not None and not forecast.empty:
        _add_fan(fig, forecast)
        shown.append(forecast[["lo90", "hi90"]].to_numpy(dtype=float).ravel())
    if trend is not None:
        _add_line(fig, trend)
    _add_models(fig, rows, None if trend is None else set(map(str, trend.data.model)))
    if apart is not None:
        others = drawable(apart.table)
        strata = others["stratum"].map(words.clean) if "stratum" in others else pd.Series("shown apart", others.index)
        for index, (stratum, group) in enumerate(others.groupby(strata, sort=True)):
            symbol = APART_SYMBOLS[index % len(APART_SYMBOLS)]
            colour = style.CYCLE[(index + 3) % len(style.CYCLE)]
            name = f"apart: {style.figure_text(stratum, 40)}"
            _markers(fig, group, name, symbol, colour, 8, visible="legendonly")
    if placed is not None:
        stars = drawable(placed.table)
        _markers(fig, stars, "measured here", "star", style.GREEN, 16, bars=True)
        shown.append(stars["at"].to_numpy())
    low, high = style.log_range(np.concatenate(shown))
    return style.axes(fig, {"title": "release date"}, {"title": "density ρ (log scale)", **style.log_axis(low, high)})


def drawable(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that can be placed, with the height ``at``, ordered by date.

    A row whose density is not finite (a censored one) stands at the finite end of its interval.
    """
    rows = table.copy()
    for column in ("density", "density_lo", "density_hi"):
        rows[column] = pd.to_numeric(rows[column], errors="coerce") if column in rows else np.nan
    for column in ("status", "bound"):
        rows[column] = rows[column].fillna("").astype(str) if column in rows else ""
    rows["released"] = pd.to_datetime(rows["released"], errors="coerce")
    value, upper, lower = (
        rows[name].where(np.isfinite(rows[name]) & (rows[name] > 0)) for name in ("density", "density_hi", "density_lo")
    )
    rows["at"] = value.fillna(upper).fillna(lower)
    return rows.dropna(subset=["released", "at"]).sort_values("released", kind="stable").reset_index(drop=True)


def hover(row: Mapping[str, Any]) -> str:
    """Return what a model's marker says: name, date, sizes, score, density, source and status."""
    quoted = style.figure_text
    scored = "score" if words.is_missing(row.get("benchmark")) else f"score ({quoted(row.get('benchmark'), 40)})"
    lines = {
        "family": quoted(row.get("family"), 60),
        "kind": quoted(row.get("stratum"), 60),
        "released": words.day(row.get("released")),
        "size": f"{words.size(row.get('n_params'))} ({quoted(row.get('denominator'), 30)})",
        "effective size": _ranged(row, "n_eff", words.size),
        "density": _ranged(row, "density", words.number),
        scored: words.with_error(row.get("score"), row.get("score_se")),
        "status": quoted(words.status(row.get("status"), row.get("bound"))),
        "source": quoted(row.get("source"), 90),
    }
    known = [f"{name}: {value}" for name, value in lines.items() if value != words.MISSING]
    return "<br>".join([f"<b>{quoted(row.get('model'), 60)}</b>", *known])


def _ranged(row: Mapping[str, Any], name: str, show: Any) -> str:
    if words.is_missing(row.get(f"{name}_lo")) and words.is_missing(row.get(f"{name}_hi")):
        return str(show(row.get(name)))
    return f"{show(row.get(name))} ({show(row.get(f'{name}_lo'))} to {show(row.get(f'{name}_hi'))})"


def _add_fan(fig: go.Figure, forecast: pd.DataFrame) -> None:
    for level, colour in (("90", style.FAN_OUTER), ("50", style.FAN_INNER)):
        edge = {"width": 1, "color": style.BLUE, "dash": "dot" if level == "90" else "dash"}
        shared = {
            "x": forecast["date"],
            "mode": "lines",
            "line": edge,
            "hoverinfo": "skip",
            "legendgroup": level,
        }
        fig.add_scatter(**shared, y=forecast[f"hi{level}"], showlegend=False)
        fig.add_scatter(
            **shared,
            y=forecast[f"lo{level}"],
            fill="tonexty",
            fillcolor=colour,
            name=f"forecast, {level} % of draws",
        )
    hovers = [
        f"forecast frontier {words.day(r.date)}: {words.number(r.mid)}<br>"
        f"50 %: {words.number(r.lo50)} to {words.number(r.hi50)}<br>"
        f"90 %: {words.number(r.lo90)} to {words.number(r.hi90)}"
        for r in forecast.itertuples()
    ]
    line = {"color": style.BLUE, "width": 2, "dash": "dash"}
    fig.add_scatter(
        x=forecast["date"], y=forecast["mid"], mode="lines", line=line, name="forecast frontier",
        hovertext=hovers, hoverinfo="text",
    )  # fmt: skip


def _add_line(fig: go.Figure, trend: TrendResult) -> None:
    from densing.scores.trend import window

    released = pd.DatetimeIndex(trend.data.released)
    if not len(released):
        return
    dates = pd.date_range(released.min(), released.max(), periods=LINE_POINTS)
    line = np.exp(trend.predict(dates, LEVEL)[["mid", "lo", "hi"]])  # the trend speaks ln ρ
    edge = {"width": 0, "color": style.MUTED}
    shared = {"x": dates, "mode": "lines", "line": edge, "hoverinfo": "skip", "legendgroup": "line"}
    fig.add_scatter(**shared, y=line["hi"], showlegend=False)
    fig.add_scatter(**shared, y=line["lo"], showlegend=False, fill="tonexty", fillcolor=style.BAND)
    method, months = style.figure_text(trend.headline.get("method"), 40), trend.headline.get("doubling_months")
    pace = (
        "not rising" if words.is_missing(months) or np.isinf(months) else f"doubled every {words.months(months)} months"
    )
    name = f"headline line: {pace} {window(released)} ({method})"
    fig.add_scatter(
        x=dates, y=line["mid"], mode="lines", legendgroup="line", hoverinfo="skip",
        line={"color": style.INK, "width": 2.5}, name=name,
    )  # fmt: skip


def _add_models(fig: go.Figure, rows: pd.DataFrame, window: set[str] | None) -> None:
    values = rows[rows["bound"] == ""]
    record = values["at"] > values["at"].cummax().shift(fill_value=0.0)
    steps = values[record]
    last = rows["released"].max()
    fig.add_scatter(
        x=[*steps["released"], last], y=[*steps["at"], steps["at"].iloc[-1]] if len(steps) else [None],
        mode="lines", line={"color": style.VERMILLION, "width": 1.5, "shape": "hv"},
        name="frontier (densest so far)", hoverinfo="skip",
    )  # fmt: skip
    inside = values["model"].astype(str).isin(window) if window is not None else pd.Series(True, values.index)
    _markers(fig, values[~record & inside], "models", "circle", style.BLUE, 8, bars=True)
    _markers(fig, values[~record & ~inside], "models outside the window", "circle-open", style.BLUE, 7)
    _markers(fig, steps, "record when released", "diamond", style.VERMILLION, 11, bars=True)
    for bound, symbol in style.BOUND_SYMBOLS.items():
        name = {"upper": "limit: true value below (▽)", "lower": "limit: true value above (△)"}[bound]
        _markers(fig, rows[rows["bound"] == bound], name, symbol, style.ORANGE, 11)


def _markers(
    fig: go.Figure,
    rows: pd.DataFrame,
    name: str,
    symbol: str,
    colour: str,
    size: int,
    bars: bool = False,
    **more: Any,
) -> None:
    if rows.empty and name != "models":
        return
    error: dict[str, Any] = {}
    if bars:
        up, down = rows["density_hi"] - rows["at"], rows["at"] - rows["density_lo"]
        spread = [side.where(np.isfinite(side) & (side > 0), 0.0) for side in (up, down)]
        bar = {"type": "data", "array": spread[0], "arrayminus": spread[1], "thickness": 0.8, "width": 0}
        error = {"error_y": {**bar, "color": style.MUTED}}
    line = {
        "width": 1.6 if symbol.endswith("-open") else 0.8,
        "color": colour if symbol.endswith("open") else style.PAPER,
    }
    fig.add_scatter(
        x=rows["released"], y=rows["at"], mode="markers", name=name, hoverinfo="text",
        marker={"symbol": symbol, "color": colour, "size": size, "line": line},
        hovertext=[hover(row) for row in rows.to_dict("records")], **error, **more,
    )  # fmt: skip


def plot_skills(skills: pd.DataFrame, shown: int = SHOWN_MODELS) -> go.Figure:
    """Draw the density of the densest models once per skill, one row per model.

    Filled markers are values, open ones limits; each skill has its own symbol.

    Parameters
    ----------
    skills : pandas.DataFrame
        Columns model, skill, density, density_lo, density_hi, status.
    shown : int
        Number of models, by the median density over their skills.
    """
    rows = skills.copy()
    if not rows.empty:
        rows["density"] = pd.to_numeric(rows["density"], errors="coerce")
        rows = rows[np.isfinite(rows["density"]) & (rows["density"] > 0)]
    if rows.empty:
        return style.empty("No model has scores for a single skill.")
    order = densest(rows, shown)
    rows = rows[rows["model"].isin(order)]
    row_of = {model: index for index, model in enumerate(order)}
    names = sorted(rows["skill"].astype(str).unique())
    fig = style.figure(130 + ROW_HEIGHT * max(len(order), 4))
    fig.add_vline(x=1, line={"color": style.MUTED, "width": 1, "dash": "dot"})
    for number, skill in enumerate(names):
        group = rows[rows["skill"].astype(str) == skill]
        symbol = style.SYMBOLS[number % len(style.SYMBOLS)]
        limits = group["status"].astype(str) != "ok"
        colour = style.CYCLE[number % len(style.CYCLE)]
        fig.add_scatter(
            x=group["density"], y=group["model"].map(row_of), mode="markers", name=style.figure_text(skill, 40),
            hoverinfo="text", hovertext=[_skill_hover(row) for row in group.to_dict("records")],
            marker={
                "symbol": [f"{symbol}-open" if limit else symbol for limit in limits],
                "size": 10, "color": colour, "line": {"width": 1.5, "color": colour},
            },
        )  # fmt: skip
    labels = [style.figure_text(model, 32) for model in order]
    low, high = style.log_range(rows["density"])
    y_axis = {"tickmode": "array", "tickvals": list(range(len(order))), "ticktext": labels}
    y_axis["range"] = [len(order) - 0.4, -0.6]
    return style.axes(fig, {"title": "density ρ by skill (log scale)", **style.log_axis(low, high)}, y_axis)


def densest(rows: pd.DataFrame, shown: int) -> list[str]:
    """Return the models with the highest median density over skills, densest first.

    Examples
    --------
    >>> densest(pd.DataFrame({"model": ["a", "b", "b"], "density": [1.0, 3.0, 5.0]}), 1)
    ['b']
    """
    median = rows.groupby("model")["density"].median().sort_values(ascending=False, kind="stable")
    return [str(model) for model in median.index[:shown]]


def _skill_hover(row: dict[str, object]) -> str:
    ends = f"{words.number(row.get('density_lo'))} to {words.number(row.get('density_hi'))}"
    lines = [
        f"<b>{style.figure_text(row.get('model'), 60)}</b>",
        f"{style.figure_text(row.get('skill'), 40)}: density {words.number(row.get('density'))} ({ends})",
        f"benchmarks: {style.figure_text(row.get('benchmarks'), 90)}",
        style.figure_text(words.status(row.get("status"))),
    ]
    return "<br>".join(lines)
