"""All estimators of the doubling time side by side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go

from densing.plots import style, text
from densing.plots.forest import forest

if TYPE_CHECKING:
    from densing.scores.trend import TrendResult


def plot_estimates(trend: TrendResult) -> go.Figure:
    """Draw the doubling time of every estimator with its interval; the headline is the filled diamond.

    Estimators that replicate the paper's envelope (biased fast) are open squares, the others circles.

    Source: Xiao et al., arXiv 2412.04315v2, headline (3.3 months); the journal's 3.5 months is printed as
    reported second-hand.

    Parameters
    ----------
    trend : TrendResult
        Its ``estimates`` table is drawn in its own order.
    """
    from densing.scores.trend import window

    rows = trend.estimates.reset_index(drop=True)
    rows = rows[~(rows["doubling_months"].map(text.is_missing) & rows["lo"].map(text.is_missing))]
    if rows.empty:
        return style.empty("No estimator could be computed from these rows.")
    records = rows.to_dict("records")
    frame = rows.assign(label=[_label(row) for row in records], words=[_words(row) for row in records])
    looks = [_look(row) for row in records]
    axis = f"doubling time, months (log scale), {window(trend.data.released)}"
    return forest(frame, [look[0] for look in looks], [look[1] for look in looks], axis)


def is_replication(method: Any) -> bool:
    """Return whether a method replicates the paper's envelope.

    Examples
    --------
    >>> is_replication("envelope"), is_replication("tobit-crv3")
    (True, False)
    """
    return any(word in str(method) for word in ("envelope", "running-max"))


def _look(row: Mapping[str, Any]) -> tuple[str, str]:
    if row.get("headline"):
        return style.VERMILLION, "diamond"
    return (style.MUTED, "square-open") if is_replication(row["method"]) else (style.BLUE, "circle")


def _label(row: Mapping[str, Any]) -> str:
    words = str(row.get("method"))
    return f"{words} ◆ headline" if row.get("headline") else words


def _words(row: Mapping[str, Any]) -> str:
    level = text.doubling(row["doubling_months"], row["lo"], row["hi"])
    dropped = 0 if text.is_missing(row.get("dropped")) else int(row["dropped"])
    lines = [
        f"<b>{text.figure_text(row.get('label', row['method']), 80)}</b>",
        level,
        f"{text.number(row.get('n'), 4)} rows, {text.number(row.get('clusters'), 4)} clusters",
        f"standard error: {text.figure_text(row.get('se_type'))}",
    ]
    if dropped:
        lines.append(f"{text.plural(dropped, 'censored row')} left out")
    return "<br>".join(lines)
