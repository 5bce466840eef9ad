"""Densities: every model against its release date, read off its reference, and skill by skill."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from densing.core import Array, formatting
from densing.plots import style
from densing.scores.density import USER
from densing.scores.fit import GUARD

if TYPE_CHECKING:
    from densing.scores.density import BankSteps, Comparison, DensityResult
    from densing.scores.references import Reference
    from densing.scores.trend import TrendResult


APART_SYMBOLS = tuple(
    f"{symbol}-open"
    for symbol in (
        "square",
        "diamond",
        "cross",
        "x",
        "hexagon",
        "pentagon",
        "hourglass",
        "bowtie",
        "hexagram",
        "star-square",
    )
)
YOURS = "your models"
POINTS = ("model", "released", "density", "density_lo", "density_hi", "bound", "group")
"""Columns of the table beside a figure."""
SHOWN_MODELS = 24
ROW_HEIGHT = 26
# Level of the line's band.
LEVEL = 0.95
LINE_POINTS = 60
CURVE_POINTS = 120
# So few targets that each can be joined to its own size without clutter.
FEW = 6
# Labels of record-setters: the plot's extent in pixels on a wide page and on a narrow one, height and width of letters.
WIDE, NARROW = (1050.0, 400.0), (290.0, 350.0)
LABEL_HEIGHT, LETTER_WIDTH = 17.0, 6.8
# Half of what a mark takes.
MARK = 4.0


def plot_density(
    density: DensityResult,
    trend: TrendResult | None = None,
    apart: DensityResult | None = None,
    forecast: pd.DataFrame | None = None,
    placed: DensityResult | None = None,
    *,
    placed_name: str = "measured here",
) -> go.Figure:
    """Draw the density of every model against its release date.

    rho = N_hat / N on a logarithmic axis; a straight line is a constant doubling time. Censored models stand
    at their limit with a triangle that points to where the true value lies. Records are named where labels have room;
    intervals and sources stand in the hover text. Rows of a user's own among the others (evaluator ``user``) are stars
    in front, and named first.

    Source: Xiao et al., arXiv 2412.04315, eq. 1, eq. 5 and Fig. 1.

    Parameters
    ----------
    density : DensityResult
        The headline rows.
    trend : TrendResult, optional
        Headline line and its band over the window.
    apart : DensityResult, optional
        Rows outside the headline, small and grey, a symbol per ``stratum``; one legend entry hides them all.
    placed : DensityResult, optional
        Rows to point out, such as models measured here; a star with a name each.
    placed_name : str
        Their legend entry.
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
    ['density 1', 'frontier (densest so far)', 'models', 'record when released']

    See Also
    --------
    plot_reference, plot_estimates
    """
    rows = drawable(density.table)
    if rows.empty:
        return style.empty("No model has both a release date and a density.")
    fig = style.figure(520)
    heights = [rows["at"].to_numpy()]
    # Density 1 is the reference itself.
    dates = [rows["released"].min(), rows["released"].max()]
    if forecast is not None and not forecast.empty:
        dates[1] = max(dates[1], pd.to_datetime(forecast["date"]).max())
    unit = {"color": style.MUTED, "width": 1, "dash": "dot"}
    fig.add_scatter(x=dates, y=[1, 1], mode="lines", line=unit, name="density 1", hoverinfo="skip")
    if forecast is not None and not forecast.empty:
        _add_fan(fig, forecast)
        heights.append(forecast[["lo90", "hi90"]].to_numpy(dtype=float).ravel())
    if trend is not None and len(trend.data.released):
        released = pd.DatetimeIndex(trend.data.released)
        days = pd.date_range(released.min(), released.max(), periods=LINE_POINTS)
        line = np.exp(trend.predict(days, LEVEL)[["mid", "lo", "hi"]])  # the trend speaks ln ρ
        # A band is two edges without a line, the second filled up to the first.
        edge = {"width": 0, "color": style.MUTED}
        shared = {"x": days, "mode": "lines", "line": edge, "hoverinfo": "skip", "legendgroup": "line"}
        fig.add_scatter(**shared, y=line["hi"], showlegend=False)
        fig.add_scatter(**shared, y=line["lo"], showlegend=False, fill="tonexty", fillcolor=style.BAND)
        fig.add_scatter(
            x=days, y=line["mid"], mode="lines", legendgroup="line", hoverinfo="skip",
            line={"color": style.INK, "width": 2.5}, name="headline curve and band",
        )  # fmt: skip
    theirs = users_own(density, apart)
    if apart is not None:
        others = drawable(apart.table)
        _add_apart(fig, others[~others["model"].isin(theirs["model"])])
    records = _add_models(fig, rows, None if trend is None else set(map(str, trend.data.model)))
    front = {placed_name: placed.table} if placed is not None else {}
    if len(theirs):
        front[YOURS] = pd.concat([front[YOURS], theirs], ignore_index=True) if YOURS in front else theirs
    stars = rows.head(0)
    for name, table in front.items():
        own = drawable(table)
        _markers(fig, own, name, "star", style.GREEN, 16, bars=True)
        stars = own if stars.empty else pd.concat([stars, own], ignore_index=True)
    if len(stars):
        heights.append(stars["at"].to_numpy())
        dates = [min([dates[0], *stars["released"]]), max([dates[1], *stars["released"]])]
    low, high = style.log_range(np.concatenate(heights))
    margin = max((dates[1] - dates[0]) * 0.025, pd.Timedelta(days=5))
    span = (dates[0] - margin, dates[1] + margin)
    _name(fig, records, stars, span, (low, high))
    # Models shown apart do not stretch the axes: what is far older or far less dense than the headline lies outside.
    dated = {"title": "release date", "range": [f"{day:%Y-%m-%d}" for day in span]}
    return style.axes(fig, dated, {"title": "density ρ (log scale)", **style.log_axis(low, high)})


_AXES = {"step": "training step", "tokens": "training tokens", "model": "model"}


def plot_checkpoints(steps: pd.DataFrame, axis: str = "step", height: str = "density ρ") -> go.Figure:
    """Draw density against training step, a line per run and benchmark, with the intervals of the measurement.

    Parameters
    ----------
    steps : pandas.DataFrame
        Of :func:`densing.scores.density.densities_by_step`. A limit stands at its end, with a triangle.
    axis : {"step", "tokens", "model"}
        The column along which they stand.
    height : str
        What the column ``density`` holds.
    """
    fig = style.figure(460)
    rows = _placed(steps, "density").dropna(subset=["at"])
    if rows.empty:
        return style.empty("No checkpoint has a density.")
    several = len(set(rows["benchmark"])) > 1
    for index, ((run, benchmark), part) in enumerate(rows.groupby(["run", "benchmark"], sort=False)):
        colour = style.CYCLE[index % len(style.CYCLE)]
        symbol = style.SYMBOLS[index % len(style.SYMBOLS)]
        symbols = [style.BOUND_SYMBOLS.get(bound, symbol) for bound in part["bound"]]
        up, down = part["density_hi"] - part["at"], part["at"] - part["density_lo"]
        spread = [side.where(np.isfinite(side) & (side > 0), 0.0).tolist() for side in (up, down)]
        hovers = [
            style.hover(style.figure_text(row["model"], 60), "" if axis == "model" else f"{axis} {row[axis]:,.0f}",
                        f"{height}: {_ranged(row, 'density', formatting.number, 'measured ')}")
            for row in part.to_dict("records")
        ]  # fmt: skip
        fig.add_scatter(
            x=part[axis].tolist(), y=part["at"].tolist(), hoverinfo="text", hovertext=hovers,
            mode="markers" if axis == "model" else "lines+markers",
            name=style.figure_text(f"{run}, {benchmark}" if several else run, 60), line={"color": colour, "width": 1.5},
            marker={"symbol": symbols, "size": 9, "color": colour}, showlegend=True,
            error_y={"type": "data", "array": spread[0], "arrayminus": spread[1], "thickness": 1, "color": colour},
        )  # fmt: skip
    ends = np.concatenate([rows[name].where(np.isfinite(rows[name]) & (rows[name] > 0)).dropna().to_numpy(float)
                           for name in ("at", "density_lo", "density_hi")])  # fmt: skip
    low, high = style.log_range(ends)
    return style.axes(fig, {"title": _AXES[axis]}, {"title": f"{height} (log scale)", **style.log_axis(low, high)})


def plot_bank_steps(steps: BankSteps) -> go.Figure:
    """Draw score, effective parameters and density of a run's checkpoints, with intervals, against tokens or steps.

    Parameters
    ----------
    steps : BankSteps
        A limit stands at its end, with a triangle. Without densities the score alone is drawn.
    """
    panels = [("score", "lo", "hi", "score"), ("n_eff", "n_eff_lo", "n_eff_hi", "effective parameters")]
    panels.append(("density", "density_lo", "density_hi", "density ρ"))
    shown = [panel for panel in panels if steps.table[panel[0]].notna().any()]
    fig = make_subplots(rows=len(shown), cols=1, shared_xaxes=True, vertical_spacing=0.05)
    fig.update_layout(style.figure(220 + 180 * len(shown)).layout)
    for place, (name, low, high, title) in enumerate(shown, start=1):
        for index, (run, part) in enumerate(steps.table.groupby("run", sort=False)):
            colour = style.CYCLE[index % len(style.CYCLE)]
            bound = part["bound"].mask(part["bound"].ne("") & (name == "score"), "")
            at = part[name].mask(bound.eq("lower"), part[low]).mask(bound.eq("upper"), part[high])
            spread = [side.where(np.isfinite(side) & (side > 0), 0.0).tolist() for side in
                      (part[high] - at, at - part[low])]  # fmt: skip
            fig.add_scatter(
                x=part[steps.axis].tolist(), y=at.tolist(), row=place, col=1, mode="lines+markers",
                name=style.figure_text(run, 60), legendgroup=str(run), showlegend=place == 1,
                line={"color": colour, "width": 1.5},
                marker={"symbol": [style.BOUND_SYMBOLS.get(each, "circle") for each in bound], "size": 8},
                error_y={"type": "data", "array": spread[0], "arrayminus": spread[1], "thickness": 1},
                hovertemplate=f"{steps.axis} %{{x:,.0f}}: %{{y:.3g}}<extra></extra>",
            )  # fmt: skip
        fig.update_yaxes(title_text=title, type="linear" if name == "score" else "log", row=place, col=1)
    return fig.update_xaxes(title_text=_AXES[steps.axis], row=len(shown), col=1)


def plot_comparison(comparison: Comparison) -> go.Figure:
    """Draw the densities of models over that of their baseline, against tokens, else steps, where these are known.

    Parameters
    ----------
    comparison : Comparison
        Of :func:`densing.compare`.
    """
    rows = comparison.quoted.assign(run=lambda table: table["run"].fillna(""))
    axis = next((name for name in ("tokens", "step") if rows[name].notna().all()), "model")
    # The columns of a ratio stand where those of a density would.
    rows = rows.rename(columns={f"density_ratio{end}": f"density{end}" for end in ("", "_lo", "_hi")})
    baseline = style.figure_text(rows["baseline"].iloc[0], 60)
    fig = plot_checkpoints(rows.sort_values(axis, kind="stable"), axis, f"density over that of {baseline}")
    return fig.add_hline(y=1.0, line={"color": style.MUTED, "dash": "dot", "width": 1})


def users_own(density: DensityResult, apart: DensityResult | None = None) -> pd.DataFrame:
    """Return a user's own rows among those of a figure; none where the figure shows nothing else and they are many."""
    tables = [part.table for part in (density, apart) if part is not None and "evaluator" in part.table]
    own = [table[table["evaluator"].eq(USER)] for table in tables]
    if not own or (sum(map(len, own)) == sum(map(len, tables)) > SHOWN_MODELS):
        return density.table.head(0)
    return pd.concat(own, ignore_index=True)


def density_points(density: DensityResult, apart: DensityResult | None = None) -> pd.DataFrame:
    """Return what :func:`plot_density` shows as a table, a row per mark: model, date, density, interval, limit, group.

    ``group`` is headline, why a model is shown apart, or ``your models``.
    """
    parts = [part.table for part in (density, apart) if part is not None]
    table = pd.concat([part.astype(object) for part in parts], ignore_index=True)
    group = table["stratum"].fillna("headline") if "stratum" in table else pd.Series("headline", table.index)
    if "evaluator" in table:
        group = group.mask(table["evaluator"].eq(USER), YOURS)
    return table.reindex(columns=list(POINTS[:-1])).assign(group=group)


def _add_apart(fig: go.Figure, others: pd.DataFrame) -> None:
    """Draw models outside the headline, small and grey; one entry of the legend stands for all their kinds."""
    if others.empty:
        return
    strata = others["stratum"].map(formatting.clean) if "stratum" in others else pd.Series("shown apart", others.index)
    group: dict[str, Any] = {"legendgroup": "apart", "opacity": 0.55}
    shape = {"symbol": APART_SYMBOLS[0], "color": style.MUTED, "size": 7}
    fig.add_scatter(x=[None], y=[None], mode="markers", name="shown apart", marker=shape, hoverinfo="skip", **group)
    for index, (stratum, rows) in enumerate(others.groupby(strata, sort=True)):
        symbol = APART_SYMBOLS[index % len(APART_SYMBOLS)]
        name = f"apart: {style.figure_text(stratum, 40)}"
        _markers(fig, rows, name, symbol, style.MUTED, 6, showlegend=False, **group)


def _name(
    fig: go.Figure, records: pd.DataFrame, stars: pd.DataFrame, span: tuple[Any, Any], heights: tuple[float, float]
) -> None:
    """Write the names of stars and records beside them, the latest first, as far as they do not cover each other.

    Of the places around a star the one is taken where the name covers fewest marks; a record whose name would cover
    another record or a star has none. A label that has room on a narrow page too is called ``narrow``; the page's
    script leaves the others out there.
    """
    parts = ((stars, True), (records, False))
    named = [part[["model", "released", "at"]][::-1].assign(star=star) for part, star in parts]
    rows = pd.concat(named, ignore_index=True)
    days, decades = (span[1] - span[0]).total_seconds(), np.log(heights[1] / heights[0])

    def shares(released: pd.Series, at: pd.Series) -> Array:
        """Positions on the plot, from its lower left corner."""
        dated = (pd.to_datetime(released) - span[0]).dt.total_seconds() / days
        return np.column_stack([dated, np.log(at.to_numpy(dtype=float) / heights[0]) / decades])

    marks = np.concatenate([
        shares(pd.Series(trace.x), pd.Series(trace.y)) for trace in fig.data
        if trace.mode == "markers" and len(trace.x) and trace.x[0] is not None
    ])  # fmt: skip
    drawn: dict[str, list[tuple[float, float, float, float]]] = {"wide": [], "narrow": []}
    stood = shares(rows["released"], rows["at"])
    for row, share in zip(rows.to_dict("records"), stood, strict=True):
        label = style.figure_text(row["model"], 26)
        width = LETTER_WIDTH * len(formatting.clean(row["model"], 26))
        # To the left of a record and above it nothing was as dense; near the left edge there is no room there, and a
        # star stands anywhere: its name is below it, or wherever else around it there is room, at worst a line away.
        star = bool(row["star"])
        left = share[0] * WIDE[0] > width and (not star or share[0] > 0.7)
        sides = [(side, lines) for lines in (-1, 0, 1, -2) for side in (left, not left)] if star else [(left, 0)]
        places = []
        for order, (left, lines) in enumerate(sides):
            boxes = {}
            for page, (across, up) in (("wide", WIDE), ("narrow", NARROW)):
                x, y = share[0] * across, share[1] * up + LABEL_HEIGHT * lines + (8 if lines >= 0 else -8)
                box = (x - width, x, y, y + LABEL_HEIGHT) if left else (x, x + width, y, y + LABEL_HEIGHT)
                inside = box[0] >= 0 and box[1] <= across and box[3] <= up + LABEL_HEIGHT
                clear = all(
                    box[1] <= other[0] or other[1] <= box[0] or box[3] <= other[2] or other[3] <= box[2]
                    for other in drawn[page]
                )
                if inside and clear:
                    boxes[page] = box
            if "wide" in boxes:
                firm, any_mark = (_covered(boxes["wide"], points * WIDE) for points in (stood, marks))
                if star or not firm:
                    places.append((lines in (1, -2), firm, any_mark, order, left, lines, boxes))
        if not places:
            continue
        *_, left, lines, boxes = min(places, key=lambda place: place[:4])
        for page, box in boxes.items():
            drawn[page].append(box)
        fig.add_annotation(
            x=f"{row['released']:%Y-%m-%d}", y=float(np.log10(row["at"])), text=label, showarrow=False,
            xanchor="right" if left else "left", xshift=4 if left else -4,
            yanchor="bottom", yshift=LABEL_HEIGHT * lines + (6 if lines >= 0 else -8),
            font={"size": 12, "color": style.GREEN if star else style.VERMILLION},
            name="narrow" if "narrow" in boxes else "wide",
        )  # fmt: skip


def _covered(box: tuple[float, float, float, float], points: Array) -> int:
    """Return how many marks at some points a label in a box touches."""
    low, high = np.array(box).reshape(2, 2).T
    return int(((points > low - MARK) & (points < high + MARK)).all(axis=1).sum())


def drawable(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that can be placed, with the height ``at``, ordered by date.

    A row whose density is not finite (a censored one) stands at the finite end of its interval.
    """
    rows = _placed(table, "density")
    rows["status"] = rows["status"].fillna("").astype(str) if "status" in rows else ""
    rows["released"] = pd.to_datetime(rows["released"], errors="coerce")
    return rows.dropna(subset=["released", "at"]).sort_values("released", kind="stable").reset_index(drop=True)


def _placed(table: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return rows with a figure and its interval as numbers, its ``bound`` as text, and where it is drawn as ``at``.

    That is the value, or where it is not finite the end of the interval that is: the limit of a censored row.
    """
    rows = table.copy()
    columns = (name, f"{name}_hi", f"{name}_lo")
    for column in columns:
        rows[column] = pd.to_numeric(rows[column], errors="coerce") if column in rows else np.nan
    rows["bound"] = rows["bound"].fillna("").astype(str) if "bound" in rows else ""
    value, upper, lower = (rows[column].where(np.isfinite(rows[column]) & (rows[column] > 0)) for column in columns)
    rows["at"] = value.fillna(upper).fillna(lower)
    return rows


def hover(row: Mapping[str, Any]) -> str:
    """Return what a model's marker says: name, date, sizes, score, density, source and status."""
    quoted = style.figure_text
    scored = "score" if formatting.is_missing(row.get("benchmark")) else f"score ({quoted(row.get('benchmark'), 40)})"
    lines = {
        "family": quoted(row.get("family"), 60),
        "kind": quoted(row.get("stratum"), 60),
        "released": formatting.day(row.get("released")),
        "size": f"{formatting.size(row.get('n_params'))} ({quoted(row.get('denominator'), 30)})",
        "effective size": _ranged(row, "n_eff", formatting.size),
        "density": _ranged(row, "density", formatting.number, "measured "),
        "its recipe's": _recipe(row),
        scored: formatting.with_error(row.get("score"), row.get("score_se")),
        "status": quoted(formatting.status(row.get("status"), row.get("bound"))),
        "source": quoted(row.get("source"), 90),
    }
    known = [f"{name}: {value}" for name, value in lines.items() if value != formatting.MISSING]
    return style.hover(quoted(row.get("model"), 60), *known)


def _ranged(row: Mapping[str, Any], name: str, show: Any, what: str = "") -> str:
    if formatting.is_missing(row.get(f"{name}_lo")) and formatting.is_missing(row.get(f"{name}_hi")):
        return str(show(row.get(name)))
    return f"{show(row.get(name))} ({what}{show(row.get(f'{name}_lo'))} to {show(row.get(f'{name}_hi'))})"


def _recipe(row: Mapping[str, Any]) -> str:
    """Return where another model of the same recipe may lie."""
    low, high = row.get("density_lo_recipe"), row.get("density_hi_recipe")
    if formatting.is_missing(low) or formatting.is_missing(high):
        return formatting.MISSING
    return f"{formatting.number(low)} to {formatting.number(high)}, with model-to-model scatter"


def _add_fan(fig: go.Figure, forecast: pd.DataFrame) -> None:
    for level, colour in (("90", style.FAN_OUTER), ("50", style.FAN_INNER)):
        edge = {"width": 1, "color": style.BLUE, "dash": "dot" if level == "90" else "dash"}
        shared = {
            "x": forecast["date"],
            "mode": "lines",
            "line": edge,
            "hoverinfo": "skip",
            "legendgroup": "forecast",
        }
        fig.add_scatter(**shared, y=forecast[f"hi{level}"], showlegend=False)
        fig.add_scatter(
            **shared,
            y=forecast[f"lo{level}"],
            fill="tonexty",
            fillcolor=colour,
            showlegend=False,
        )
    hovers = [
        f"forecast frontier {formatting.day(r.date)}: {formatting.number(r.mid)}<br>"
        f"50 %: {formatting.number(r.lo50)} to {formatting.number(r.hi50)}<br>"
        f"90 %: {formatting.number(r.lo90)} to {formatting.number(r.hi90)}"
        for r in forecast.itertuples()
    ]
    line = {"color": style.BLUE, "width": 2, "dash": "dash"}
    fig.add_scatter(
        x=forecast["date"], y=forecast["mid"], mode="lines", line=line, name="forecast frontier",
        hovertext=hovers, hoverinfo="text", legendgroup="forecast",
    )  # fmt: skip


def _add_models(fig: go.Figure, rows: pd.DataFrame, window: set[str] | None) -> pd.DataFrame:
    """Draw the models and the frontier; return the records."""
    values = rows[rows["bound"] == ""]
    # A limit is not a record: the true value may lie anywhere on its side.
    record = values["at"] > values["at"].cummax().shift(fill_value=0.0)
    steps = values[record]
    last = rows["released"].max()
    fig.add_scatter(
        x=[*steps["released"], last], y=[*steps["at"], steps["at"].iloc[-1]] if len(steps) else [None],
        mode="lines", line={"color": style.VERMILLION, "width": 1.5, "shape": "hv"},
        name="frontier (densest so far)", hoverinfo="skip", showlegend=False, legendgroup="records",
    )  # fmt: skip
    inside = values["model"].astype(str).isin(window) if window is not None else pd.Series(True, values.index)
    _markers(fig, values[~record & inside], "models", "circle", style.BLUE, 8)
    _markers(fig, values[~record & ~inside], "outside the window", "circle-open", style.BLUE, 7)
    _markers(fig, steps, "record when released", "diamond", style.VERMILLION, 11, legendgroup="records")
    for bound, symbol in style.BOUND_SYMBOLS.items():
        name = {"upper": "limit ▽", "lower": "limit △"}[bound]
        _markers(fig, rows[rows["bound"] == bound], name, symbol, style.ORANGE, 9)
    return steps


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
    # An open marker has no paper-coloured rim to tell it from its neighbours: its own line is all there is of it.
    line = {
        "width": 1.6 if symbol.endswith("-open") else 0.8,
        "color": colour if symbol.endswith("open") else style.PAPER,
    }
    fig.add_scatter(
        # As lists: the page's script reads them, and arrays would be sent packed.
        x=rows["released"].tolist(), y=rows["at"].tolist(), mode="markers", name=name, hoverinfo="text",
        marker={"symbol": symbol, "color": colour, "size": size, "line": line},
        hovertext=[hover(row) for row in rows.to_dict("records")], customdata=_searched(rows), **error, **more,
    )  # fmt: skip


def _searched(rows: pd.DataFrame) -> list[list[str]]:
    """Return what the page's search looks through, and the name that it writes beside a match, for each row.

    Both are escaped: the second becomes a label.
    """
    columns = [name for name in ("model", "family", "organisation", "stratum", "kind") if name in rows]
    texts = [" ".join(formatting.clean(row[name]) for name in columns).lower() for row in rows.to_dict("records")]
    names = [style.figure_text(name, 40) for name in rows["model"]]
    return [[style.figure_text(text, 400), name] for text, name in zip(texts, names, strict=True)]


def plot_reference(reference: Reference, density: DensityResult | None = None, level: float = 0.95) -> go.Figure:
    """Draw a reference curve, its band, its points, and where the scored models meet it.

    A model's score, read across to the curve and down, gives its effective parameters N_hat; dotted lines mark the
    guard that the densities were read with, around the sizes that were fitted. Held-out points may lie outside.

    Source: Xiao et al., arXiv 2412.04315, eq. 4.

    Parameters
    ----------
    reference : Reference
        Fit, points and the inputs held fixed (D0 of a two-step law).
    density : DensityResult, optional
        Inverted targets.
    level : float
        Level of the curve's band.

    See Also
    --------
    plot_density

    Examples
    --------
    >>> import densing
    >>> reference = densing.load_reference("qwen1.5", "mmlu")
    >>> len(densing.plot_reference(reference).data) > 1
    True
    """
    points = reference.points.copy()
    points["params"] = pd.to_numeric(points["params"], errors="coerce")
    sizes = points["params"][np.isfinite(points["params"]) & (points["params"] > 0)]
    if sizes.empty:
        return style.empty("This reference has no points.")
    # The ends of the guard; the usual one where densities were read without.
    smallest, largest = reference.fit.domain["params"]
    guard = GUARD if density is None else float(density.options.get("guard", GUARD))
    guard = guard if np.isfinite(guard) else GUARD
    edges = smallest / guard, largest * guard
    low, high = min(edges[0], float(sizes.min())), max(edges[1], float(sizes.max()))
    fig = style.figure(480)
    for edge in edges:
        fig.add_vline(x=edge, line={"color": style.MUTED, "width": 1, "dash": "dot"})
    grid = np.geomspace(low, high, CURVE_POINTS)
    x = {"params": grid, **{name: np.full(grid.shape, value) for name, value in reference.given.items()}}
    band = reference.fit.band(x, level)
    bare = {"width": 0, "color": style.MUTED}
    # One entry of the legend for both: plotly puts the entries of a group under each other.
    shared = {"x": grid, "mode": "lines", "line": bare, "hoverinfo": "skip", "legendgroup": "curve"}
    fig.add_scatter(**shared, y=np.asarray(band["hi"]), showlegend=False)
    fig.add_scatter(**shared, y=np.asarray(band["lo"]), showlegend=False, fill="tonexty", fillcolor=style.BAND)
    curve = np.asarray(reference.fit.predict(x), dtype=float)
    of_loss = getattr(reference.fit.law, "output", "score") == "loss"
    quantity = "bits per byte of the answer" if of_loss else "score"
    fig.add_scatter(
        x=grid, y=curve, mode="lines", line={"color": style.INK, "width": 2.5}, hoverinfo="text",
        hovertext=[
            f"N = {formatting.size(n)}: fitted {quantity} {formatting.number(s, 3)}"
            for n, s in zip(grid, curve, strict=True)
        ],
        name=f"{style.figure_text(reference.fit.law.name, 40)} curve and {formatting.percentage(level)} band",
        legendgroup="curve",
    )  # fmt: skip
    if density is not None:
        _add_targets(fig, density.table)
    _add_points(fig, points)
    wide = style.log_range([low, high], pad=0.04)
    ticks = style.log_ticks(*wide)
    ticks["ticktext"] = [formatting.size(value) for value in ticks["tickvals"]]
    x_axis = {"title": "parameters N (log scale)", **style.log_axis(*wide), **ticks}
    several = len(reference.benchmarks) > 1
    benchmark = "" if several else f" on {style.figure_text(reference.benchmark, 60)}"
    title = f"{'mean ' if several else ''}{quantity}{benchmark}"
    # A score has a zero of its own; a loss does not, and from zero on its curve would look flat.
    return style.axes(fig, x_axis, {"title": title, "rangemode": "normal" if of_loss else "tozero"})


def _add_points(fig: go.Figure, points: pd.DataFrame) -> None:
    if "held_out" in points:
        held_out = points["held_out"].map(lambda cell: not formatting.is_missing(cell) and bool(cell))
    else:
        held_out = pd.Series(False, points.index)
    kinds = (
        (~held_out, "reference family (fitted)", "circle", style.VERMILLION),
        (held_out, "held out (not fitted)", "square-open", style.VERMILLION),
    )
    for chosen, name, symbol, colour in kinds:
        rows = points[chosen.to_numpy(dtype=bool)]
        if rows.empty:
            continue
        errors = pd.to_numeric(rows["score_se"], errors="coerce").fillna(0.0) if "score_se" in rows else None
        bar = {"type": "data", "array": errors, "color": colour, "thickness": 1, "width": 3}
        fig.add_scatter(
            x=rows["params"], y=rows["score"], mode="markers", name=name, hoverinfo="text",
            marker={"symbol": symbol, "size": 11, "color": colour, "line": {"width": 2, "color": colour}},
            error_y=bar if errors is not None else None,
            hovertext=[
                style.hover(
                    style.figure_text(row.get("model"), 60),
                    f"size: {formatting.size(row['params'])}",
                    f"score: {formatting.number(row['score'], 3)}",
                )
                for row in rows.to_dict("records")
            ],
        )  # fmt: skip


def _add_targets(fig: go.Figure, table: pd.DataFrame) -> None:
    rows = _placed(table, "n_eff")
    rows["score"] = pd.to_numeric(rows["score"], errors="coerce") if "score" in rows else np.nan
    rows = rows.dropna(subset=["at", "score"])
    inside, outside = rows[rows["bound"] == ""], rows[rows["bound"] != ""]
    kinds = (
        (inside, "models read off the curve", "line-ns-open", style.BLUE),
        (outside, "models at a limit (one-sided)", "triangle-down-open", style.ORANGE),
    )
    for group, name, symbol, colour in kinds:
        if group.empty:
            continue
        sides = {"upper": "triangle-left", "lower": "triangle-right"}
        shapes = [symbol if bound == "" else f"{sides[bound]}-open" for bound in group["bound"]]
        fig.add_scatter(
            x=group["at"], y=group["score"], mode="markers", name=name, hoverinfo="text",
            marker={"symbol": shapes, "size": 11, "color": colour, "line": {"width": 1.6, "color": colour}},
            hovertext=[_target_hover(row) for row in group.to_dict("records")],
        )  # fmt: skip
    if len(table) > FEW:
        return
    # Each target's own size joined to its effective size: the length of the line is its density.
    for row in table.to_dict("records"):
        sizes = [float(row["n_params"]), float(row["n_eff"])]
        if not np.isfinite(sizes).all():
            continue
        fig.add_scatter(
            x=sizes, y=[row["score"]] * 2, mode="lines+markers", hoverinfo="text",
            name=f"{style.figure_text(row['model'], 40)}: own size",
            line={"color": style.GREEN, "width": 1.5, "dash": "dot"},
            marker={"symbol": ["star", "line-ns-open"], "size": [16, 0], "color": style.GREEN},
            hovertext=[_target_hover(row)] * 2,
        )  # fmt: skip


def _target_hover(row: dict[str, Any]) -> str:
    return style.hover(
        style.figure_text(row.get("model"), 60),
        f"score: {formatting.number(row['score'], 3)}",
        f"effective size: {formatting.size(row['n_eff'])}",
        f"95 % interval, measured: {formatting.size(row['n_eff_lo'])} to {formatting.size(row['n_eff_hi'])}",
        f"own size: {formatting.size(row.get('n_params'))}",
        style.figure_text(formatting.status(row.get("status"), row.get("bound"))),
    )


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
            hoverinfo="text", hovertext=[
                style.hover(
                    style.figure_text(row.get("model"), 60),
                    f"{style.figure_text(row.get('skill'), 40)}: density {formatting.number(row.get('density'))} "
                    f"({formatting.number(row.get('density_lo'))} to {formatting.number(row.get('density_hi'))})",
                    f"benchmarks: {style.figure_text(row.get('benchmarks'), 90)}",
                    style.figure_text(formatting.status(row.get("status"))),
                )
                for row in group.to_dict("records")
            ],
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


def densest(rows: pd.DataFrame, count: int) -> list[str]:
    """Return the models with the highest median density over skills, densest first.

    Examples
    --------
    >>> densest(pd.DataFrame({"model": ["a", "b", "b"], "density": [1.0, 3.0, 5.0]}), 1)
    ['b']
    """
    median = rows.groupby("model")["density"].median().sort_values(ascending=False, kind="stable")
    return [str(model) for model in median.index[:count]]
