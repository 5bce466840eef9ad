"""Density against release date: frontier, headline line, forecast fan and the models shown apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from densing.plots import status, style, text

if TYPE_CHECKING:
    from densing.scores.density import DensityResult
    from densing.scores.trend import TrendResult

_APART_SYMBOLS = (
    "square-open",
    "diamond-open",
    "cross-open",
    "x-open",
    "star-open",
    "hexagon-open",
    "pentagon-open",
)
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
    """
    rows = drawable(density.table)
    if rows.empty:
        return style.empty("No model has both a release date and a density.")
    fig = style.figure(560)
    shown = [rows["at"].to_numpy()]
    _add_unit_line(fig, rows, forecast)
    if forecast is not None and not forecast.empty:
        _add_fan(fig, forecast)
        shown.append(forecast[["lo90", "hi90"]].to_numpy(dtype=float).ravel())
    if trend is not None:
        _add_line(fig, trend)
    _add_models(fig, rows, _window_models(trend))
    if apart is not None:
        _add_apart(fig, drawable(apart.table))
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
    columns = [rows[name].where(np.isfinite(rows[name]) & (rows[name] > 0)) for name in _HEIGHTS]
    rows["at"] = columns[0].fillna(columns[1]).fillna(columns[2])
    return rows.dropna(subset=["released", "at"]).sort_values("released", kind="stable").reset_index(drop=True)


_HEIGHTS = ("density", "density_hi", "density_lo")


def hover(row: Mapping[str, Any]) -> str:
    """Return what a model's marker says: name, date, sizes, score, density, source and status."""
    quoted = text.figure_text
    scored = "score" if text.is_missing(row.get("benchmark")) else f"score ({quoted(row.get('benchmark'), 40)})"
    named = {
        "family": quoted(row.get("family"), 60),
        "kind": quoted(row.get("stratum"), 60),
        "released": text.day(row.get("released")),
        "size": f"{text.size(row.get('n_params'))} ({quoted(row.get('denominator'), 30)})",
        "effective size": _ranged(row, "n_eff", text.size),
        "density": _ranged(row, "density", text.number),
        scored: _scored(row),
        "status": quoted(status.in_words(row.get("status"), row.get("bound"))),
        "source": quoted(row.get("source"), 90),
    }
    kept = [f"{name}: {value}" for name, value in named.items() if value != text.MISSING]
    return "<br>".join([f"<b>{quoted(row.get('model'), 60)}</b>", *kept])


def _ranged(row: Mapping[str, Any], name: str, show: Any) -> str:
    if text.is_missing(row.get(f"{name}_lo")) and text.is_missing(row.get(f"{name}_hi")):
        return str(show(row.get(name)))
    return f"{show(row.get(name))} ({show(row.get(f'{name}_lo'))} to {show(row.get(f'{name}_hi'))})"


def _scored(row: Mapping[str, Any]) -> str:
    error = row.get("score_se")
    return text.number(row.get("score"), 3) + ("" if text.is_missing(error) else f" ± {text.number(error)}")


def _window_models(trend: TrendResult | None) -> set[str] | None:
    return None if trend is None else set(map(str, trend.data.model))


def _add_unit_line(fig: go.Figure, rows: pd.DataFrame, forecast: pd.DataFrame | None) -> None:
    dates = [rows["released"].min(), rows["released"].max()]
    if forecast is not None and not forecast.empty:
        dates[1] = max(dates[1], pd.to_datetime(forecast["date"]).max())
    line = {"color": style.MUTED, "width": 1, "dash": "dot"}
    fig.add_scatter(x=dates, y=[1, 1], mode="lines", line=line, name="density 1 = the ruler itself", hoverinfo="skip")


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
    words = [
        f"forecast frontier {text.day(r.date)}: {text.number(r.mid)}<br>"
        f"50 %: {text.number(r.lo50)} to {text.number(r.hi50)}<br>"
        f"90 %: {text.number(r.lo90)} to {text.number(r.hi90)}"
        for r in forecast.itertuples()
    ]
    line = {"color": style.BLUE, "width": 2, "dash": "dash"}
    fig.add_scatter(
        x=forecast["date"], y=forecast["mid"], mode="lines", line=line, name="forecast frontier",
        hovertext=words, hoverinfo="text",
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
    method, months = text.figure_text(trend.headline.get("method"), 40), trend.headline.get("doubling_months")
    pace = (
        "not rising" if text.is_missing(months) or np.isinf(months) else f"doubled every {text.months(months)} months"
    )
    name = f"headline line: {pace} {window(released)} ({method})"
    fig.add_scatter(
        x=dates, y=line["mid"], mode="lines", legendgroup="line", hoverinfo="skip",
        line={"color": style.INK, "width": 2.5}, name=name,
    )  # fmt: skip


LEVEL = 0.95


def _add_models(fig: go.Figure, rows: pd.DataFrame, window: set[str] | None) -> None:
    seen = rows[rows["bound"] == ""]
    record = seen["at"] > seen["at"].cummax().shift(fill_value=0.0)
    steps = seen[record]
    last = rows["released"].max()
    fig.add_scatter(
        x=[*steps["released"], last], y=[*steps["at"], steps["at"].iloc[-1]] if len(steps) else [None],
        mode="lines", line={"color": style.VERMILLION, "width": 1.5, "shape": "hv"},
        name="frontier (densest so far)", hoverinfo="skip",
    )  # fmt: skip
    inside = seen["model"].astype(str).isin(window) if window is not None else pd.Series(True, seen.index)
    _markers(fig, seen[~record & inside], "models", "circle", style.BLUE, 8, bars=True)
    _markers(fig, seen[~record & ~inside], "models outside the window", "circle-open", style.BLUE, 7)
    _markers(fig, steps, "record when released", "diamond", style.VERMILLION, 11, bars=True)
    for bound, symbol in style.BOUND_SYMBOLS.items():
        words = {"upper": "limit: true value below (▽)", "lower": "limit: true value above (△)"}[bound]
        _markers(fig, rows[rows["bound"] == bound], words, symbol, style.ORANGE, 11)


def _add_apart(fig: go.Figure, rows: pd.DataFrame) -> None:
    strata = rows["stratum"].map(text.clean) if "stratum" in rows else pd.Series("shown apart", rows.index)
    for number, (stratum, group) in enumerate(rows.groupby(strata, sort=True)):
        symbol = _APART_SYMBOLS[number % len(_APART_SYMBOLS)]
        colour = style.CYCLE[(number + 3) % len(style.CYCLE)]
        name = f"apart: {text.figure_text(stratum, 40)}"
        _markers(fig, group, name, symbol, colour, 8, visible="legendonly")


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
