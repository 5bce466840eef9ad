"""The ruler: score against size for the reference family, with the models read off it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from densing.core import words
from densing.plots import style
from densing.scores.fit import GUARD

if TYPE_CHECKING:
    from densing.scores.density import DensityResult
    from densing.scores.references import Reference


CURVE_POINTS = 120
# So few targets that each can be joined to its own size without clutter.
FEW = 6


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
    >>> ruler = densing.load_reference("qwen1.5", "mmlu")
    >>> len(densing.plot_reference(ruler).data) > 1
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
    _add_curve(fig, reference, np.geomspace(low, high, CURVE_POINTS), level)
    if density is not None:
        _add_targets(fig, density.table)
        if len(density.table) <= FEW:
            _add_sizes(fig, density.table)
    _add_points(fig, points)
    wide = style.log_range([low, high], pad=0.04)
    ticks = style.log_ticks(*wide)
    ticks["ticktext"] = [words.size(value) for value in ticks["tickvals"]]
    x_axis = {"title": "parameters N (log scale)", **style.log_axis(*wide), **ticks}
    several = len(reference.benchmarks) > 1
    benchmark = "" if several else f" on {style.figure_text(reference.benchmark, 60)}"
    quantity = f"{'mean ' if several else ''}{_word(reference)}{benchmark}"
    return style.axes(fig, x_axis, {"title": quantity, "rangemode": "normal" if _of_loss(reference) else "tozero"})


def _word(reference: Reference) -> str:
    return "bits per byte of the answer" if _of_loss(reference) else "score"


def _of_loss(reference: Reference) -> bool:
    return getattr(reference.fit.law, "output", "score") == "loss"


def _add_curve(fig: go.Figure, reference: Reference, grid: Any, level: float) -> None:
    x = {"params": grid, **{name: np.full(grid.shape, value) for name, value in reference.given.items()}}
    band = reference.fit.band(x, level)
    edge = {"width": 0, "color": style.MUTED}
    shared = {"x": grid, "mode": "lines", "line": edge, "hoverinfo": "skip", "legendgroup": "curve"}
    fig.add_scatter(**shared, y=np.asarray(band["hi"]), showlegend=False)
    fig.add_scatter(
        **shared, y=np.asarray(band["lo"]), fill="tonexty", fillcolor=style.BAND,
        name=f"{words.percentage(level)} band of the curve",
    )  # fmt: skip
    curve = np.asarray(reference.fit.predict(x), dtype=float)
    word = _word(reference)
    hover = [f"N = {words.size(n)}: fitted {word} {words.number(s, 3)}" for n, s in zip(grid, curve, strict=True)]
    fig.add_scatter(
        x=grid, y=curve, mode="lines", line={"color": style.INK, "width": 2.5},
        hovertext=hover, hoverinfo="text",
        name=f"fitted {style.figure_text(reference.fit.law.name, 40)} curve", legendgroup="curve",
    )  # fmt: skip


def _add_points(fig: go.Figure, points: pd.DataFrame) -> None:
    if "held_out" in points:
        held = points["held_out"].map(lambda cell: not words.is_missing(cell) and bool(cell))
    else:
        held = pd.Series(False, points.index)
    kinds = (
        (~held, "reference family (fitted)", "circle", style.VERMILLION),
        (held, "held out (not fitted)", "square-open", style.VERMILLION),
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
                f"<b>{style.figure_text(row.get('model'), 60)}</b><br>size: {words.size(row['params'])}<br>"
                f"score: {words.number(row['score'], 3)}"
                for row in rows.to_dict("records")
            ],
        )  # fmt: skip


def _add_targets(fig: go.Figure, table: pd.DataFrame) -> None:
    rows = table.copy()
    for column in ("n_eff", "n_eff_lo", "n_eff_hi", "score"):
        rows[column] = pd.to_numeric(rows[column], errors="coerce") if column in rows else np.nan
    bound = rows["bound"].fillna("").astype(str) if "bound" in rows else pd.Series("", rows.index)
    ends = rows["n_eff"].where(np.isfinite(rows["n_eff"]) & (rows["n_eff"] > 0))
    for name in ("n_eff_hi", "n_eff_lo"):
        ends = ends.fillna(rows[name].where(np.isfinite(rows[name]) & (rows[name] > 0)))
    rows = rows.assign(at=ends, bound=bound).dropna(subset=["at", "score"])
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


def _add_sizes(fig: go.Figure, table: pd.DataFrame) -> None:
    """Join each target's own size to its effective size: the length of the line is its density."""
    for row in table.to_dict("records"):
        ends = [float(row["n_params"]), float(row["n_eff"])]
        if not np.isfinite(ends).all():
            continue
        fig.add_scatter(
            x=ends, y=[row["score"]] * 2, mode="lines+markers", hoverinfo="text",
            name=f"{style.figure_text(row['model'], 40)}: own size",
            line={"color": style.GREEN, "width": 1.5, "dash": "dot"},
            marker={"symbol": ["star", "line-ns-open"], "size": [16, 0], "color": style.GREEN},
            hovertext=[_target_hover(row)] * 2,
        )  # fmt: skip


def _target_hover(row: dict[str, Any]) -> str:
    lines = [
        f"<b>{style.figure_text(row.get('model'), 60)}</b>",
        f"score: {words.number(row['score'], 3)}",
        f"effective size: {words.size(row['n_eff'])}",
        f"95 % interval: {words.size(row['n_eff_lo'])} to {words.size(row['n_eff_hi'])}",
        f"own size: {words.size(row.get('n_params'))}",
        style.figure_text(words.status(row.get("status"), row.get("bound"))),
    ]
    return "<br>".join(lines)
