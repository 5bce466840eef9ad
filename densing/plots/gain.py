"""What changes of training bought: the density ratio and the token ratio of every arm, with their intervals."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import plotly.graph_objects as go

from densing.core import formatting
from densing.plots import style
from densing.plots.forest import forest
from densing.scores.ladder import NO_LOSS
from densing.tradeoff import gain_table

if TYPE_CHECKING:
    from densing.tradeoff import GainRecord, Gains

LINES = ((1.0, "solid", "as the baseline"), (NO_LOSS, "dash", f"no loss: interval of tokens from {NO_LOSS:g} on"))
LOOKS = {"density": (style.BLUE, "circle"), "token": (style.VERMILLION, "diamond")}
# The mark of a row of which one end alone is known.
BOUNDS = {"lo": "triangle-right-open", "hi": "triangle-left-open"}


def plot_gain(gains: Gains | GainRecord | Path | str) -> go.Figure:
    """Draw both ratios of every arm to the baseline, a line each with its interval.

    Density ratios are circles, token ratios diamonds; open ones are not decided. An interval without an end runs to the
    axis edge and ends in an arrow; where one end is all that is known, a triangle stands at it and points to the true
    value. The dashed line is the limit that the whole interval of a token ratio must reach for "no loss".

    Parameters
    ----------
    gains : Gains, GainRecord or path
        What :func:`densing.ladder_gain` gives, or the ``gain.json`` that ``densing ladder gain`` leaves.

    Raises
    ------
    densing.core.errors.InputError, densing.core.errors.ArtefactError
        When a file is not what it should be.

    See Also
    --------
    densing.ladder_gain

    Examples
    --------
    >>> from densing.tradeoff import GainRecord
    >>> figures = {"arm": "co2:tau=8", "density_ratio": 0.5, "density_lo": None, "density_hi": 0.8, "token_ratio": 0.6,
    ...            "token_lo": 0.5, "token_hi": 0.7, "bytes": 1e6, "seconds": 5.0, "joules": None, "pairs": 8,
    ...            "status": "flat"}
    >>> spec = {"baseline": "plain", "baseline_cost": {"bytes": 8e6}}
    >>> fig = plot_gain(GainRecord(spec, "0123", {}, [figures]))
    >>> list(fig.data[-1].x), list(fig.data[-1].marker.symbol)
    ([0.5, 0.6], ['circle-open', 'diamond'])
    """
    rows = [_row(arm, kind) for arm in gain_table(gains).to_dict("records") for kind in LOOKS]
    if not rows:
        return style.empty("No arm has a partner in the baseline.")
    frame = pd.DataFrame(rows)
    colours = [LOOKS[kind][0] for kind in frame["kind"]]
    return forest(frame, "ratio", colours, list(frame["symbol"]), "ratio to the baseline (log scale)", LINES, 26)


def _row(arm: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return where a ratio of an arm stands and what it says; an open end is beyond every axis."""
    ratio, lo, hi = (arm[f"{kind}_{part}"] for part in ("ratio", "lo", "hi"))
    ends = [name for name, end in (("lo", lo), ("hi", hi)) if not formatting.is_missing(end)]
    # A record holds the density's status; of the token ratio it says that pairs are few, its ends the rest.
    status = arm["status"] if kind == "density" or arm["status"] == "few_pairs" else "ok"
    decided = status == "ok" and len(ends) == 2
    symbol = LOOKS[kind][1] if decided else f"{LOOKS[kind][1]}-open"
    at = ratio
    if formatting.is_missing(ratio) and len(ends) == 1:
        at, symbol = arm[f"{kind}_{ends[0]}"], BOUNDS[ends[0]]
    known = {
        0: "no end of the interval known",
        1: f"at least {formatting.number(lo)}" if "lo" in ends else f"at most {formatting.number(hi)}",
        2: f"{formatting.number(lo)} to {formatting.number(hi)}",
    }[len(ends)]
    label = "density" if kind == "density" else "tokens"
    return {
        "kind": kind,
        "label": f"{formatting.clean(arm['arm'], 36)}, {label}",
        "ratio": at,
        "lo": 0.0 if ends == ["hi"] else lo,
        "hi": float("inf") if ends == ["lo"] else hi,
        "symbol": symbol,
        "hover": style.hover(
            style.figure_text(arm["arm"], 80),
            f"{label}: {'unknown' if formatting.is_missing(ratio) else formatting.number(ratio)} ({known})",
            f"no loss: {style.figure_text(arm['no_loss'], 40)}" if kind == "token" else "",
            "" if status == "ok" else f"status: {style.figure_text(status.replace('_', ' '), 40)}",
        ),
    }
