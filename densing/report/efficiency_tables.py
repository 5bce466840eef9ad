"""The tables of a profile: causes, communications, ranks, steps, names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pandas as pd

from densing.efficiency.profile import per_step
from densing.efficiency.timeline import OPS
from densing.plots import digits, duration, milliseconds, percent, text, volume
from densing.report.sections import count
from densing.report.tables import Field, ShownTable, column, shown

if TYPE_CHECKING:
    from densing.efficiency.profile import JointProfile, RunProfile

MOST_ROWS = 40
Key = tuple[str, str]


def frame(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Return rows as a table of objects: a missing number stays None and an integer stays whole."""
    return pd.DataFrame([dict(row) for row in rows], dtype=object)


def record(row: Any) -> dict[str, Any]:
    """Return a result's fields by name."""
    plain: dict[str, Any] = row.to_dict() if hasattr(row, "to_dict") else asdict(row)
    return plain


def times(name: str, key: str, hint: str = "", minor: bool = False) -> Field:
    """Return a column of nanoseconds, shown in the unit that suits each."""
    return Field(name, column(key, duration), key, hint=hint, minor=minor)


def shares(name: str, key: str, hint: str = "", minor: bool = False) -> Field:
    """Return a column of percentages."""
    return Field(name, column(key, percent), key, hint=hint, minor=minor)


def causes_table(run: RunProfile) -> ShownTable:
    """Return every cause of lost time, that of which most can be won first."""
    fields = (
        Field("Cause", column("message", _long)),
        Field("Cost per step" if run.figures["steps"] else "Cost", column("ms_per_step", milliseconds), "ms_per_step"),
        shares("Share of the time", "share_pct"),
        Field(
            "Recoverable",
            column("recoverable_ms_per_step", milliseconds),
            "recoverable_ms_per_step",
            hint="What of it lies on the critical path; of waiting, what even ranks would gain. A ceiling",
        ),
        Field("Most on", lambda row: text.MISSING if text.is_missing(row["rank"]) else f"rank {row['rank']}", "rank"),
        Field("What usually helps", column("remedy", _long)),
        Field("Code", column("code"), minor=True),
    )
    rows = (record(cause) for cause in run.causes[:MOST_ROWS])
    return shown(
        "causes-table",
        "Every cause that was found; first that of which most can be won.",
        frame(rows),
        fields,
        sortable=True,
    )


def _long(value: Any) -> str:
    return text.clean(value, 400)


def collectives_table(run: RunProfile) -> ShownTable:
    """Return the communications by operation and process group, most exposed first."""
    steps = per_step(run.ranks)
    waits = {} if run.together is None else run.together.waits
    rows = [
        {
            **row.to_dict(),
            "hidden_pct": None if run.figures["overlap_pct"] is None else row.hidden_pct,
            "name": row.op or "not named",
            "who": _group(row.group, row.group_label),
            "size": row.group_size if row.group_size > 0 else None,
            "exposed_each": row.exposed_ns / steps,
            "sum_each": row.sum_ns / steps,
            "each": row.bytes / row.count_sized if row.count_sized else None,
            "waiting": None if (row.op, row.group) not in waits else 100 * waits[row.op, row.group],
        }
        for row in run.collectives
    ]
    unit = "per step" if run.figures["steps"] else "per rank"
    fields = (
        Field("Operation", column("name")),
        Field("Group", column("who")),
        Field("Ranks", column("size", count), "size", hint="Size of the process group"),
        Field("Calls", column("count", count), "count"),
        times(
            f"Exposed {unit}", "exposed_each", hint="Of the union of the calls: what runs at the same time counts once"
        ),
        times(f"Sum {unit}", "sum_each", hint="Durations of the calls added up, hidden or not", minor=True),
        shares("Hidden", "hidden_pct", hint="Share behind compute"),
        shares("Waiting", "waiting", hint="Share of the time spent waiting for other ranks"),
        Field("Size, mean", column("each", volume), "each", hint="Output bytes for all-gather, input bytes otherwise"),
        Field("algbw GB/s", column("algbw_gbps", _rate), "algbw_gbps", hint="Bytes over time, waiting included"),
        Field("busbw GB/s", column("busbw_gbps", _rate), "busbw_gbps", hint="algbw × factor of nccl-tests (recalled)"),
    )
    caption = (
        "Over all ranks; most exposed first. Rates are lower bounds, since the time holds the wait for other ranks; "
        "factors of busbw are recalled from nccl-tests. Hidden and exposed are of unions, as in the partition; kinds "
        "of communication at the same time count each, so the rows may add up to more than the run's."
    )
    return shown("collectives-table", caption, frame(rows[:MOST_ROWS]), fields, sortable=True)


def _group(name: str, label: str) -> str:
    said = [part for part in (name, label) if part]
    return text.clean(" · ".join(dict.fromkeys(said)), 60) if said else "not named"


def _rate(value: Any) -> str:
    return text.MISSING if text.is_missing(value) else digits(float(value))


def waits_table(run: RunProfile) -> ShownTable:
    """Return the ranks that the others wait for, worst first."""
    found = () if run.together is None else run.together.stragglers.ranks[:MOST_ROWS]
    rows = [{**record(row), "name": f"rank {row.rank}", "own": _own(row)} for row in found]
    fields = (
        Field("Rank", column("name")),
        times("Waiting caused", "caused_ns", hint="What the others waited for it in all"),
        times("Of that alone", "alone_ns", hint="Its start after the last but one: what its lateness alone cost"),
        Field("Arrived last", column("times_last", count), "times_last"),
        Field("Of", column("matched", count), "matched", hint="Matched communications it takes part in"),
        times("Waited itself", "own"),
        Field(
            "Led",
            column("steps_led", count),
            "steps_led",
            hint="Steps (or, within one step, communications) in which it caused most",
        ),
    )
    caption = "Who is waited for, and who waits: sums over matched communications."
    if run.together is not None and run.together.stragglers.within_clock_error is not None:
        caption += " Which rank comes first is within clock error."
    return shown("waits-table", caption, frame(rows), fields, sortable=True)


def _own(row: Any) -> int:
    return row.suffered_ns if row.suffered_by_start_ns is None else row.suffered_by_start_ns


def late_table(run: RunProfile, most: int = 12) -> ShownTable:
    """Return the communications in which most waiting was caused."""
    late = () if run.together is None else run.together.stragglers.late
    found = sorted(late, key=lambda row: -row.waited_ns)[:most]
    rows = [
        {**record(row), "name": row.op or "communication", "at": None if row.step < 0 else row.step} for row in found
    ]
    fields = (
        Field("Communication", column("name")),
        Field("Group", column("group", named)),
        Field("Step", column("at", count), "at"),
        Field("Number", column("order", lambda value: count(int(value) + 1)), "order"),
        Field("Last to arrive", lambda row: f"rank {row['rank']}" if row["clear"] else "within clock error"),
        times("Later than the next", "alone_ns"),
        times("Waited by the others", "waited_ns"),
    )
    caption = "The communications in which ranks waited most."
    return shown("late-table", caption, frame(row for row in rows if row["waited_ns"]), fields)


def named(value: Any) -> str:
    return text.clean(value, 60) if value else "not named"


def names_table(run: RunProfile, attribute: str, caption: str) -> ShownTable:
    """Return what took longest by name, summed over the ranks.

    Parameters
    ----------
    run : RunProfile
    attribute : {"names", "unrecognised"}
    caption : str
    """
    total: dict[Key, list[int]] = {}
    for rank in run.ranks:
        for row in getattr(rank, attribute):
            entry = total.setdefault((row.name, row.kind), [0, 0])
            entry[0] += row.count
            entry[1] += row.total_ns
    best = sorted(total.items(), key=lambda item: -item[1][1])[:MOST_ROWS]
    rows = [{"name": name, "kind": kind, "count": many, "ns": ns} for (name, kind), (many, ns) in best]
    fields = (
        Field("Name", column("name", lambda value: text.clean(value, 200))),
        Field("Counts as", column("kind")),
        Field("Times", column("count", count), "count"),
        times("Time in all", "ns", hint="Sum of durations over all ranks, not of their union"),
    )
    return shown(f"{attribute}-table", caption, frame(rows), fields, sortable=True)


def path_table(run: RunProfile) -> ShownTable:
    """Return the names with most time on the ranks' own critical paths."""
    total: dict[Key, int] = {}
    for rank in run.ranks:
        for kind, name, ns in rank.path.top:
            total[kind, name] = total.get((kind, name), 0) + ns
    steps = per_step(run.ranks)
    best = sorted(total.items(), key=lambda item: -item[1])[:15]
    rows = [{"kind": kind, "name": name or "(nothing recorded)", "ns": ns / steps} for (kind, name), ns in best]
    fields = (
        Field("Name", column("name", lambda value: text.clean(value, 200))),
        Field("Kind", column("kind")),
        times("Per step" if run.figures["steps"] else "Per rank", "ns"),
    )
    caption = "What the ranks' own critical paths lead through, the longest first."
    return shown("path-table", caption, frame(rows), fields)


def turns_table(run: RunProfile, most: int = 12) -> ShownTable:
    """Return the communications at which the run's critical path goes from one rank to another."""
    turns = () if run.together is None or run.together.path is None else run.together.path.turns
    found = sorted((turn for turn in turns if turn.waited_ns), key=lambda turn: -turn.waited_ns)[:most]
    rows = [{**record(turn), "name": _operation(run.together, turn.key)} for turn in found]
    fields = (
        Field("Communication", column("name")),
        Field("Waiting", lambda row: f"rank {row['rank']}"),
        Field("Waited for", lambda row: f"rank {row['last_rank']}"),
        times("Waited", "waited_ns"),
        times("Transfer", "transfer_ns"),
    )
    return shown("turns-table", "Where the path turns to the rank that arrived last.", frame(rows), fields)


def _operation(together: JointProfile | None, key: int) -> str:
    if together is None or not 0 <= key < len(together.matched):
        return "communication"
    step = int(together.matched.step[key])
    return f"{OPS[int(together.matched.op[key])] or 'communication'}{f', step {step}' if step >= 0 else ''}"
