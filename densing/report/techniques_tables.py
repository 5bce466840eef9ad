"""The tables of a comparison of techniques."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from densing.efficiency.techniques import MISSED, VERDICTS, counts_of, in_memory
from densing.plots import Row, contested, digits, duration, known, percent, text, times, volume
from densing.report.sections import count
from densing.report.tables import Field, ShownTable, column, shown

MOST_ROWS = 2000
LABELS = {"second-hand": "second-hand", "recalled": "recalled, not the paper's", "derived": "derived",
          "measured": "measured by us"}  # fmt: skip
"""Said beside a published figure wherever it is printed; first-hand ones need no label."""


def seconds(name: str, key: str, hint: str = "") -> Field:
    """Return a column of seconds, shown in the unit that suits each."""
    return Field(name, column(key, lambda value: duration(_scaled(value, 1e9))), key, hint=hint)


def _scaled(value: Any, factor: float) -> float | None:
    real = known(value)
    return None if real is None else factor * real


def _frame(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    return pd.DataFrame([dict(row) for row in rows][:MOST_ROWS], dtype=object)


def compare_table(rows: Sequence[Row]) -> ShownTable:
    """Return techniques side by side, one that does not apply or does not fit with its reason."""
    fields = (
        Field("Technique", column("technique")),
        Field("In memory", lambda row: in_memory(str(row.get("status")), row.get("room_bytes"))),
        seconds("Step", "step_s"),
        seconds("Exposed per step", "exposed_comm_s"),
        Field("Hidden", column("overlap_ratio", lambda value: percent(_scaled(value, 100))), "overlap_ratio"),
        Field("Bytes per step", column("bytes", lambda value: volume(known(value))), "bytes",
              hint="Put into communication per rank"),
        Field("Speed-up", column("speedup", times), "speedup"),
        Field("Loss", loss_words, hint="Whether a step learns what one of plain synchronous training does"),
        Field("Memory", column("memory_bytes", lambda value: volume(known(value))), "memory_bytes", hint="Per rank"),
        *([Field("Remark", lambda row: text.clean(row.get("reason") or "", 300))]
          if any(row.get("reason") for row in rows) else []),
    )  # fmt: skip
    caption = "A step of the steady state, mean of the ranks. A dash: unknown, or the technique does not apply."
    return shown("compare-table", caption, _frame(rows), fields, sortable=True)


def loss_words(row: Mapping[str, Any]) -> str:
    """Return whether a technique changes what a step learns.

    Examples
    --------
    >>> [loss_words(row) for row in ({"changes_loss": "late"}, {"changes_loss": ""}, {"changes_loss": None}, {})]
    ['changes', 'same', 'not said', '–']
    """
    if "changes_loss" not in row:
        return text.MISSING
    said = row["changes_loss"]
    return "not said" if said is None else "changes" if said else "same"


def regime_table(rows: Sequence[Row]) -> ShownTable:
    """Return every cell of the map."""
    fields = (
        Field("Technique", column("technique")),
        Field("Gbit/s", column("bandwidth_gbps", _digits), "bandwidth_gbps"),
        Field("Batch", column("batch", _count), "batch"),
        seconds("Step", "step_s"),
        Field("Speed-up", column("speedup", times), "speedup"),
        Field("Verdict", column("verdict")),
        Field("Null", null_words, hint="Error of a model without a simulator, from the same inputs"),
    )
    filters = ("Technique", "Verdict")
    return shown("regime-table", "Every cell of the map.", _frame(rows), fields, filters, sortable=True)


def regime_sums(rows: Sequence[Row]) -> ShownTable:
    """Return how often each technique but the baseline wins, ties and loses, and where it does best and worst."""
    sums = []
    others = contested(rows)
    for name in dict.fromkeys(str(row["technique"]) for row in others):
        own = [row for row in others if str(row["technique"]) == name]
        rated = sorted((row for row in own if known(row["speedup"]) is not None), key=lambda row: float(row["speedup"]))
        verdicts = ("wins", "ties", "loses", "does not fit")
        tally = {verdict: sum(row["verdict"] == verdict for row in own) for verdict in verdicts}
        ends = {"best": _place(rated[-1]), "worst": _place(rated[0])} if rated else {}
        sums.append({"technique": name, **tally, **ends})
    fields = (
        Field("Technique", column("technique")),
        Field("Wins", column("wins", count), "wins"),
        Field("Ties", column("ties", count), "ties"),
        Field("Loses", column("loses", count), "loses"),
        Field("Does not fit", column("does not fit", count), "does not fit"),
        Field("Best", column("best")),
        Field("Worst", column("worst")),
    )
    caption = "Cells in which each technique wins, ties and loses, and in which it does not fit in memory."
    return shown("regime-sums", caption, _frame(sums), fields)


def _place(row: Row) -> str:
    return f"{times(row['speedup'])} at {_digits(row['bandwidth_gbps'])} Gbit/s, batch {_count(row['batch'])}"


def tau_table(rows: Sequence[Row]) -> ShownTable:
    """Return what stays exposed at each period."""
    named = [{**row, "how": "predicted" if row.get("predicted") else "measured"} for row in rows]
    fields = (
        Field("Technique", column("technique")),
        Field("Link", column("link")),
        Field("Period, steps", column("tau", _count), "tau"),
        seconds("Exposed per step", "exposed_s"),
        seconds("Step", "step_s"),
        Field("How", column("how")),
    )
    caption = "Communication that stays exposed, per step, as ranks exchange less often."
    return shown("tau-table", caption, _frame(named), fields, sortable=True)


def predicted_table(rows: Sequence[Row]) -> ShownTable:
    """Return predictions beside what was measured."""
    fields = (
        Field("Technique", column("technique")),
        Field("Figure", column("quantity")),
        Field("Predicted", lambda row: value_words(row.get("predicted"), row.get("unit")), "predicted"),
        Field("Measured", lambda row: value_words(row.get("measured"), row.get("unit")), "measured"),
        Field("Error", column("error", error_words), "error", hint="Predicted over measured, less 1"),
    )
    caption = "What the simulator said before the run, and what the run then took."
    return shown("predicted-table", caption, _frame({**row, "error": miss(row)} for row in rows), fields, sortable=True)


def miss(row: Row) -> float | None:
    """Return predicted over measured, less 1; None where either is unknown.

    Examples
    --------
    >>> miss({"predicted": 1.5, "measured": 1.0}), miss({"predicted": 1.5, "measured": 0.0})
    (0.5, None)
    """
    said, was = known(row.get("predicted")), known(row.get("measured"))
    return None if said is None or not was else said / was - 1


def claims_table(rows: Sequence[Row]) -> ShownTable:
    """Return published figures beside ours, with what agreement is worth; those that do not come out are marked."""
    # What some row has and another lacks would come out of the frame as not a number.
    lacking: dict[str, Any] = {"null": None, "null_error": None, "turned_by": ()}
    named = [{**lacking, **row, "failed": row["verdict"] in MISSED} for row in rows]
    fields = (
        Field("Claim", column("claim")),
        Field("What", lambda row: ": ".join(text.clean(row[key], 200) for key in ("what", "setup") if row.get(key))),
        Field("Published", published_words),
        Field("Ours", lambda row: value_words(row.get("ours"), row.get("unit"))),
        Field("Error", column("error", error_words), "error", hint="Ours over published, less 1"),
        Field("Grade", column("grade")),
        Field("Verdict", column("verdict")),
        Field("Null", null_words, hint="Error of a model without a simulator, from the same inputs"),
        Field("Notices", lambda row: ", ".join(map(str, row["turned_by"])) or text.MISSING,
              hint="Broken laws of the simulator that turn the row"),
        Field("Technique", column("technique")),
        Field("Evidence", column("evidence")),
        Field("Inputs", lambda row: text.clean(row.get("inputs") or "", 400), hint="Published figures used in ours"),
        Field("Note", lambda row: text.clean(row.get("note") or "", 400)),
        Field("Source", lambda row: text.clean(row["source"], 300), minor=True),
    )  # fmt: skip
    caption = (
        "Published figures and what the simulator gives for each; ◆ marks those that do not come out. Only a "
        "prediction can be reproduced; whatever else agrees is counted by its grade."
    )
    filters = ("Technique", "Grade", "Evidence", "Verdict")
    return shown("claims-table", caption, _frame(named), fields, filters, "failed", sortable=True)


def assumptions_table(rows: Sequence[Row]) -> ShownTable | None:
    """Return what each prediction would be under another assumption, those that turn its verdict marked."""
    tried = [
        {**row, "assumption": name, "changed": value, "turns": name in row["decided_by"]}
        for row in rows
        for name, value in (row.get("assumptions") or {}).items()
    ]
    if not tried:
        return None
    fields = (
        Field("Claim", column("claim")),
        Field("Published", published_words),
        Field("Ours", lambda row: value_words(row.get("ours"), row.get("unit"))),
        Field("With another assumption", column("assumption")),
        Field("Ours then", lambda row: value_words(row["changed"], row.get("unit"))),
    )
    caption = "One assumption changed at a time; ◆ marks those that turn the verdict, and so decide it."
    return shown("assumptions-table", caption, _frame(tried), fields, (), "turns")


def null_words(row: Mapping[str, Any]) -> str:
    """Return the error of a row's null model, or its words, with what it is.

    Examples
    --------
    >>> null_words({"null": 1.0, "null_error": -0.032, "null_model": "all hidden"}), null_words({})
    ('−3.2 % (all hidden)', '–')
    """
    if row.get("null") is None:
        return text.MISSING
    value = row["null"] if isinstance(row["null"], str) else error_words(row.get("null_error"))
    return text.clean(f"{value} ({row['null_model']})", 300)


def grades_table(rows: Sequence[Row]) -> ShownTable:
    """Return how many rows of each grade have each verdict."""
    counts = counts_of(rows)
    seen = [word for word in VERDICTS if any(count[word] for count in counts.values())]
    sums = [{"grade": grade, "rows": count.total(), **count} for grade, count in counts.items()]
    fields = (
        Field("Grade", column("grade")),
        Field("Rows", column("rows", _count), "rows"),
        *(Field(word.capitalize(), column(word, _count), word) for word in seen),
    )
    return shown("grades-table", "Rows by what agreement is worth (see the definitions).", _frame(sums), fields)


def published_words(row: Mapping[str, Any]) -> str:
    """Return a published figure with the label its evidence asks for.

    Examples
    --------
    >>> published_words({"published": 1.3, "unit": "×", "evidence": "second-hand"})
    '1.30 × (second-hand)'
    """
    label = LABELS.get(str(row.get("evidence")), "")
    words = value_words(row.get("published"), row.get("unit"))
    return f"{words} ({label})" if label else words


def value_words(value: Any, unit: Any = "") -> str:
    """Return a number with three digits and its unit, words as they stand.

    Examples
    --------
    >>> value_words(304736.2, "tokens/s"), value_words("4090 > A800", ""), value_words(None), value_words(0.5, "s")
    ('304736 tokens/s', '4090 > A800', '–', '500 ms')
    """
    if isinstance(value, str):
        return text.clean(value, 200)
    real = known(value)
    if real is None:
        return text.MISSING
    if unit == "s":
        return duration(1e9 * real)
    return f"{digits(real)} {'' if text.is_missing(unit) else text.clean(unit, 60)}".strip()


def error_words(value: Any) -> str:
    """Return a relative error with its sign.

    Examples
    --------
    >>> error_words(0.051), error_words(-0.25), error_words(None)
    ('+5.1 %', '−25.0 %', '–')
    """
    real = known(value)
    return text.MISSING if real is None else f"{'+' if real > 0 else ''}{percent(100 * real)}"


def _digits(value: Any) -> str:
    real = known(value)
    return text.MISSING if real is None else digits(real)


def _count(value: Any) -> str:
    real = known(value)
    return text.MISSING if real is None else f"{real:g}"
