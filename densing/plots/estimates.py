"""Doubling times with their intervals: estimator by estimator, with rows left out, and over every specification.

One line each; an unbounded end runs to the axis edge and ends in an arrow.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from densing.core import formatting
from densing.plots import style
from densing.plots.forest import REACH, Ends, arrows, cut, forest
from densing.scores.study import PAPER_MONTHS

if TYPE_CHECKING:
    from densing.scores.trend import Checks, TrendResult


CHOICES = ("reference", "benchmark", "evaluator", "window", "denominator", "dates", "method")
# With more specifications than this the marks of the choices would touch.
CROWDED = 120
YEAR = ("year_months", "year_lo", "year_hi")
JOURNAL_MONTHS = 3.5
SECOND_HAND = "as reported second-hand"
REFERENCE_LINES = (
    (PAPER_MONTHS, "dash", f"{PAPER_MONTHS} months (arXiv 2412.04315)"),
    (JOURNAL_MONTHS, "dot", f"{JOURNAL_MONTHS} months (journal, {SECOND_HAND})"),
)


def plot_estimates(trend: TrendResult) -> go.Figure:
    """Draw the doubling time of every estimator with its interval; the headline is the filled diamond.

    The paper's own two are left out: they are not estimators of a pace, and stand beside its replication.

    Source: Xiao et al., arXiv 2412.04315v2, headline (3.3 months); the journal's 3.5 months is printed as
    reported second-hand.

    Parameters
    ----------
    trend : TrendResult
        Its ``estimates`` table is drawn in its own order.

    See Also
    --------
    plot_density, plot_multiverse

    Examples
    --------
    >>> import densing
    >>> densities = densing.catalog_densities(densing.load_catalog(), densing.load_reference("qwen1.5", "mmlu"))
    >>> trend = densing.estimate_trend(densities.headline, permutations=19, bootstrap=50, worlds=0, keep=True)
    >>> densing.plot_estimates(trend).layout.xaxis.title.text is not None
    True
    """
    from densing.scores.trend import window

    rows = trend.estimates[~trend.estimates["method"].map(is_replication)].reset_index(drop=True)
    rows = rows[~(rows["doubling_months"].map(formatting.is_missing) & rows["lo"].map(formatting.is_missing))]
    if rows.empty:
        return style.empty("No estimator could be computed from these rows.")
    records = rows.to_dict("records")
    labels = [f"{row.get('method')}{' ◆ headline' if row.get('headline') else ''}" for row in records]
    hover = []
    for row in records:
        dropped = 0 if formatting.is_missing(row.get("dropped")) else int(row["dropped"])
        hover.append(
            style.hover(
                style.figure_text(row.get("label", row["method"]), 80),
                formatting.doubling(row["doubling_months"], row["lo"], row["hi"]),
                f"{formatting.number(row.get('n'), 4)} rows, {formatting.number(row.get('clusters'), 4)} clusters",
                f"standard error: {style.figure_text(row.get('se_type'))}",
                f"{formatting.plural(dropped, 'censored row')} left out" if dropped else "",
            )
        )
    looks = [(style.VERMILLION, "diamond") if row.get("headline") else (style.BLUE, "circle") for row in records]
    axis = f"doubling time, months (log scale), {window(trend.data.released)}"
    frame = rows.assign(label=labels, hover=hover)
    colours, symbols = ([look[part] for look in looks] for part in (0, 1))
    return forest(frame, "doubling_months", colours, symbols, axis, REFERENCE_LINES)


def is_replication(method: Any) -> bool:
    """Return whether a method replicates the paper's envelope.

    Examples
    --------
    >>> is_replication("envelope"), is_replication("tobit-crv3")
    (True, False)
    """
    from densing.scores.trend import PAPERS_OWN

    return any(name in str(method) for name in PAPERS_OWN)


def plot_permutation(checks: Checks) -> go.Figure:
    """Draw the slope found in the data beside the slopes found after shuffling the dates of whole families.

    Parameters
    ----------
    checks : Checks
        ``TrendResult.checks``; of its tests ``permutation`` the one valid one is drawn.

    Examples
    --------
    >>> from densing.scores.trend import Checks, PermutationTests, ShuffleTest
    >>> test = ShuffleTest(0.03, 0.006, 0.001, None, ())
    >>> [trace.name for trace in plot_permutation(Checks(permutation=PermutationTests(99, test, test, test))).data]
    ['shuffled dates, median', 'the data']
    """
    test = None if checks.permutation is None else checks.permutation.headline_family_blocks
    if test is None or formatting.is_missing(test.slope):
        return style.empty("No slope was estimated, so there is nothing to shuffle.")
    fig = style.figure(196)
    if test.null_slopes:
        ends = np.quantile(test.null_slopes, [0.05, 0.95])
        hover = f"90 % of the shuffles: {formatting.number(ends[0])} to {formatting.number(ends[1])} per day"
        fig.add_scatter(
            x=ends, y=[0, 0], mode="lines+markers", line={"color": style.MUTED, "width": 5}, hovertext=hover,
            marker={"symbol": "line-ns-open", "size": 12, "color": style.MUTED, "line": {"width": 3}},
            hoverinfo="text", name="90 % of the shuffles",
        )  # fmt: skip
    looks = (
        (test.null_median_slope, "shuffled dates, median", "circle-open", style.MUTED),
        (test.slope, "the data", "diamond", style.VERMILLION),
    )
    for value, name, symbol, colour in looks:
        hover = f"{name}: {formatting.number(value)} per day"
        marker = {"symbol": symbol, "size": 13, "color": colour, "line": {"width": 2, "color": colour}}
        fig.add_scatter(x=[value], y=[0], mode="markers", name=name, marker=marker, hovertext=hover, hoverinfo="text")
    size = "" if formatting.is_missing(test.size) else f"<br>size {formatting.percentage(test.size)}"
    label = f"whole families shuffled<br>{formatting.p_value(test.p)}{size}"
    y_axis = {"tickmode": "array", "tickvals": [0], "ticktext": [label], "range": [0.6, -0.6]}
    return style.axes(fig, {"title": "slope of ln ρ per day"}, {**y_axis, "showgrid": False})


def plot_leave_one_out(checks: Checks) -> go.Figure:
    """Draw the headline doubling time without each named group, organisation and family.

    Parameters
    ----------
    checks : Checks
        ``TrendResult.checks``; ``without_groups`` (diamonds, with their interval), ``leave_one_organisation_out``
        (squares, where an organisation has several families) and ``leave_one_family_out`` (circles).
    """
    frame = leave_one_out(checks)
    if frame.empty:
        return style.empty("No family could be left out.")
    hover = [
        f"<b>without {style.figure_text(row['name'], 60)}</b> "
        f"({row['kind']}, {formatting.plural(int(row['n']), 'model')})<br>"
        f"doubling time {formatting.months(row['doubling_months'])} months"
        for row in frame.to_dict("records")
    ]
    frame = frame.assign(label="without " + frame["name"].astype(str), hover=hover)
    colours, symbols = ([look[part] for look in frame["kind"].map(_LOOKS)] for part in (0, 1))
    axis = "doubling time, months (log scale)"
    return forest(frame, "doubling_months", colours, symbols, axis, REFERENCE_LINES, row_height=24)


_LOOKS = {
    "group": (style.VERMILLION, "diamond"),
    "organisation": (style.GREEN, "square"),
    "family": (style.BLUE, "circle"),
}


def leave_one_out(checks: Checks) -> pd.DataFrame:
    """Return what is left out (kind, name, n) and the doubling time without it; groups first, then fastest first.

    A slope that is not positive never doubles. Organisations of a single family repeat it and are left out.

    Examples
    --------
    >>> from densing.scores.trend import Checks, LeaveOneOut, LeftOut
    >>> rows = (LeftOut("a", 3, -0.001, np.inf), LeftOut("b", 2, 0.0076, 3.0))
    >>> leave_one_out(Checks(leave_one_family_out=LeaveOneOut("family", rows)))["doubling_months"].tolist()
    [3.0, inf]
    """
    rows: list[dict[str, Any]] = []
    single: set[tuple[Any, Any]] = set()
    for check in (checks.leave_one_family_out, checks.leave_one_organisation_out):
        table = () if check is None else check.rows
        effects = [(row.n, formatting.number(row.slope_per_day, 6)) for row in table]
        fresh = [row for row, effect in zip(table, effects, strict=True) if effect not in single]
        single = set(effects)
        rows += [{**asdict(row), "kind": check.kind} for row in fresh if check is not None]
    rows += [{**asdict(group), "kind": "group", "name": group.group} for group in checks.without_groups]
    names = ["kind", "name", "n", "slope_per_day", "doubling_months", "lo", "hi"]
    frame = pd.DataFrame(rows, columns=names)
    frame = frame[frame["slope_per_day"].notna()]
    doubling = pd.to_numeric(frame["doubling_months"], errors="coerce").fillna(np.inf)
    ends = {name: pd.to_numeric(frame[name], errors="coerce") for name in ("lo", "hi")}
    ends["hi"] = ends["hi"].where(ends["hi"].notna() | ends["lo"].isna(), np.inf)
    order = frame["kind"].map({kind: index for index, kind in enumerate(_LOOKS)})
    frame = frame.assign(doubling_months=doubling, **ends, order=order)
    return frame.sort_values(["order", "doubling_months"], kind="stable").drop(columns="order").reset_index(drop=True)


def plot_sensitivity(sensitivity: pd.DataFrame) -> go.Figure:
    """Draw the headline's doubling time under other choices, a dot and an interval each; the headline is the diamond.

    Where the pace of the last twelve months is known too, it stands below that of the window, hollow; as an open
    triangle at the edge where it is three times as slow as the slowest mean over a window, or not a doubling at all.

    Parameters
    ----------
    sensitivity : pandas.DataFrame
        Of :func:`densing.scores.study.sensitivity`.

    See Also
    --------
    plot_multiverse, plot_estimates

    Examples
    --------
    >>> table = pd.DataFrame({"choice": ["the headline", "slope since 2024"], "doubling_months": [5.8, 6.3],
    ...                       "lo": [4.3, 4.6], "hi": [8.9, np.inf], "headline": [True, False]})
    >>> list(plot_sensitivity(table).layout.yaxis.ticktext)
    ['the headline', 'slope since 2024']
    """
    if sensitivity.empty:
        return style.empty("Nothing was chosen otherwise.")
    means = (("mean over the window", "doubling_months", "lo", "hi"), ("last twelve months", *YEAR))
    # A pace near zero doubles in a hundred months or a thousand: an axis that reached so far would show nothing else.
    over = sensitivity["doubling_months"].astype(float)
    slowest = REACH * float(over[np.isfinite(over)].max())
    rows = []
    for place, row in enumerate(sensitivity.to_dict("records")):
        colour, symbol = (style.VERMILLION, "diamond") if row["headline"] else (style.BLUE, "circle")
        known = [mean for mean in means if not formatting.is_missing(row.get(mean[1]))]
        for number, (name, *ends) in enumerate(known):
            months, lo, hi = (row[end] for end in ends)
            hover = style.hover(style.figure_text(row["choice"], 80), f"{name}: {formatting.doubling(months, lo, hi)}")
            beside = 0.36 * number - 0.18 * (len(known) - 1)
            mark = symbol if number == 0 else f"{symbol}-open"
            drawn = months if months <= slowest else np.inf
            rows.append((row["choice"], hover, drawn, lo, hi, place + beside, mark, colour))
    frame = pd.DataFrame(rows, columns=["label", "hover", "months", "lo", "hi", "place", "symbol", "colour"])
    usual = sensitivity.loc[sensitivity["headline"].astype(bool), "doubling_months"]
    lines = [(float(months), "dot", "") for months in usual if np.isfinite(months)]
    colours, symbols, places = (frame[name].tolist() for name in ("colour", "symbol", "place"))
    fig = forest(frame, "months", colours, symbols, "months to double (log)", lines, places=places, letters=25)
    for (name, *_), symbol in zip(means, ("circle", "circle-open"), strict=True):
        if len(frame) > len(sensitivity):
            marker = {"symbol": symbol, "size": 10, "color": style.BLUE}
            fig.add_scatter(x=[None], y=[None], mode="markers", marker=marker, name=name, hoverinfo="skip")
    return fig


TOP_HEIGHT = 340
DOT_HEIGHT = 21


def plot_multiverse(multiverse: pd.DataFrame) -> go.Figure:
    """Draw the specification curve of the doubling time.

    Above: estimates in ascending order with their intervals; below: a mark in the row of every choice made.

    Source: Simonsohn, Simmons and Nelson, Nature Human Behaviour 4:1208 (2020), specification curve.

    Parameters
    ----------
    multiverse : pandas.DataFrame
        Columns reference, benchmark, evaluator, window, denominator, method, doubling_months, lo, hi, n,
        permutation_p, headline.

    See Also
    --------
    run_study, plot_estimates

    Examples
    --------
    >>> table = pd.DataFrame({"reference": ["qwen1.5", "llama"], "doubling_months": [3.7, 4.2], "lo": [2.5, 3.0],
    ...                       "hi": [7.1, np.inf], "n": [41, 41], "headline": [True, False]})
    >>> figure = plot_multiverse(table)
    >>> [trace.name for trace in figure.data if trace.name in ("specification", "headline")]
    ['specification', 'headline']
    """
    rows = specifications(multiverse)
    if rows.empty:
        return style.empty("No specification could be estimated.")
    choices: list[tuple[str, str | None]] = []
    # Of every choice that varies a heading (no value), and a line per value.
    for column in CHOICES:
        values = sorted(set(rows[column].map(formatting.clean))) if column in rows else []
        if len(values) > 1:
            choices += [(column, None), *((column, value) for value in values)]
    bottom = DOT_HEIGHT * max(len(choices), 1) + 20
    height = TOP_HEIGHT + bottom
    shares = [TOP_HEIGHT / height, bottom / height]
    fig = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.02, row_heights=shares)
    # The house style is that of a figure of its own; its axes are copied to both panels.
    house = style.figure(height + 90).layout
    fig.update_layout(house.to_plotly_json() | fig.layout.to_plotly_json() | {"template": "none"})
    fig.update_xaxes(**house.xaxis.to_plotly_json())
    fig.update_yaxes(**house.yaxis.to_plotly_json())
    headline = rows["headline"].map(lambda cell: cell is True or cell is np.True_ or cell == 1).to_numpy(bool)
    ends = cut(rows, "doubling_months", tuple(months for months, _, _ in REFERENCE_LINES))
    _add_curve(fig, rows, ends, headline)
    tall = 11 if len(rows) <= CROWDED else 8
    for number, column in enumerate(dict.fromkeys(column for column, _ in choices)):
        position = {value: y for y, (name, value) in enumerate(choices) if name == column}
        # Choices alternate in colour, so that neighbouring blocks are told apart.
        base = style.INK if number % 2 == 0 else style.BLUE
        marker = {
            "opacity": 1,
            "symbol": ["diamond" if chosen else "line-ns-open" for chosen in headline],
            "size": [9 if chosen else tall for chosen in headline],
            "color": [style.VERMILLION if chosen else base for chosen in headline],
            "line": {"width": 2 if len(rows) <= CROWDED else 1},
        }
        fig.add_scatter(
            x=np.arange(len(rows)), y=[position[value] for value in rows[column].map(formatting.clean)], mode="markers",
            marker=marker, hoverinfo="skip", showlegend=False, row=2, col=1,
        )  # fmt: skip
    fig.update_yaxes(title_text="doubling time, months", **style.log_axis(ends.low, ends.high), row=1, col=1)
    fig.update_xaxes(range=[-1, len(rows)], showticklabels=False, ticks="", showgrid=False)
    names = [
        f"<b>{style.figure_text(column)}</b>" if value is None else style.figure_text(value, 26)
        for column, value in choices
    ]
    ticks = {
        "tickmode": "array",
        "tickvals": list(range(len(choices))),
        "ticktext": names,
        "tickfont": {"size": 12},
    }
    fig.update_yaxes(**ticks, range=[len(choices) - 0.4, -0.6], row=2, col=1)
    fig.update_xaxes(title_text=formatting.plural(len(rows), "specification"), row=2, col=1)
    return fig


def specifications(multiverse: pd.DataFrame) -> pd.DataFrame:
    """Return the specifications that have an estimate or an interval, fastest doubling first.

    Examples
    --------
    >>> frame = pd.DataFrame({"doubling_months": [np.inf, 2.0, np.nan], "lo": [5.0, 1.0, np.nan]})
    >>> specifications(frame)["doubling_months"].tolist()
    [2.0, inf]
    """
    if multiverse.empty:
        return multiverse
    value = pd.to_numeric(multiverse["doubling_months"], errors="coerce")
    rows = multiverse.assign(doubling_months=value)[~value.isna()]
    return rows.sort_values(["doubling_months", "lo"], kind="stable").reset_index(drop=True)


def _add_curve(fig: go.Figure, rows: pd.DataFrame, ends: Ends, headline: np.ndarray) -> None:
    """Draw the estimates in the upper panel, with their intervals and the figures of the paper."""
    upper = {"row": 1, "col": 1}
    index = np.arange(len(rows))
    for position, dash, name in REFERENCE_LINES:
        line = {"color": style.MUTED, "width": 1.5, "dash": dash}
        fig.add_scatter(
            x=[-1, len(rows)], y=[position] * 2, mode="lines", line=line, name=name, hoverinfo="skip", **upper
        )
    # One line with gaps instead of a line each: a page of hundreds of them would be slow.
    bars_x = np.column_stack([index, index, np.full(len(rows), np.nan)]).ravel()
    bars_y = np.column_stack([ends.lo, ends.hi, np.full(len(rows), np.nan)]).ravel()
    bar = {"color": style.MUTED, "width": 1}
    fig.add_scatter(
        x=bars_x,
        y=bars_y,
        mode="lines",
        line=bar,
        name="95 % interval",
        hoverinfo="skip",
        connectgaps=False,
        **upper,
    )
    arrows(fig, ends, index, "y", [style.MUTED] * len(rows), **upper)
    hover = [
        style.hover(
            formatting.doubling(row["doubling_months"], row.get("lo"), row.get("hi")),
            *(
                f"{name}: {style.figure_text(row[name], 60)}"
                for name in CHOICES
                if not formatting.is_missing(row.get(name))
            ),
            f"{formatting.number(row.get('n'), 4)} models; families shuffled "
            f"{formatting.p_value(row.get('permutation_p'))}",
        )
        for row in rows.to_dict("records")
    ]
    for mask, name, symbol, size in (
        (~headline, "specification", "circle", 6),
        (headline, "headline", "diamond", 13),
    ):
        if not mask.any():
            continue
        marks = ["triangle-up-open" if off else symbol for off in ends.off[mask]]
        colour = style.VERMILLION if symbol == "diamond" else style.BLUE
        fig.add_scatter(
            x=index[mask], y=ends.value[mask], mode="markers", name=name, hoverinfo="text",
            hovertext=[text for text, chosen in zip(hover, mask, strict=True) if chosen],
            marker={"symbol": marks, "size": size, "color": colour}, cliponaxis=False, **upper,
        )  # fmt: skip
