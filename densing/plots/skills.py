"""Densities per skill: what the mean over benchmarks hides."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from densing.plots import status, style, text

SHOWN_MODELS = 24
ROW_HEIGHT = 26


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
    place = {model: position for position, model in enumerate(order)}
    names = sorted(rows["skill"].astype(str).unique())
    fig = style.figure(130 + ROW_HEIGHT * max(len(order), 4))
    fig.add_vline(x=1, line={"color": style.MUTED, "width": 1, "dash": "dot"})
    for number, skill in enumerate(names):
        group = rows[rows["skill"].astype(str) == skill]
        symbol = style.SYMBOLS[number % len(style.SYMBOLS)]
        limits = group["status"].astype(str) != "ok"
        colour = style.CYCLE[number % len(style.CYCLE)]
        fig.add_scatter(
            x=group["density"], y=group["model"].map(place), mode="markers", name=text.figure_text(skill, 40),
            hoverinfo="text", hovertext=[_words(row) for row in group.to_dict("records")],
            marker={
                "symbol": [f"{symbol}-open" if limit else symbol for limit in limits],
                "size": 10, "color": colour, "line": {"width": 1.5, "color": colour},
            },
        )  # fmt: skip
    labels = [text.figure_text(model, 32) for model in order]
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


def _words(row: dict[str, object]) -> str:
    ends = f"{text.number(row.get('density_lo'))} to {text.number(row.get('density_hi'))}"
    lines = [
        f"<b>{text.figure_text(row.get('model'), 60)}</b>",
        f"{text.figure_text(row.get('skill'), 40)}: density {text.number(row.get('density'))} ({ends})",
        f"benchmarks: {text.figure_text(row.get('benchmarks'), 90)}",
        text.figure_text(status.in_words(row.get("status"))),
    ]
    return "<br>".join(lines)
