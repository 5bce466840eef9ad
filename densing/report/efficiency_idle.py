"""The tables on time without compute: idleness, what the host did meanwhile, launches, copies, data loading."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from densing.efficiency.profile import per_step
from densing.plots import IDLE_LOOKS, digits, duration, percent, text, volume
from densing.report.efficiency_tables import frame, shares, times
from densing.report.sections import count
from densing.report.tables import Field, ShownTable, column, shown

if TYPE_CHECKING:
    from densing.efficiency.profile import RunProfile

_WORDS = {look.key: look.label for look in IDLE_LOOKS}


def idle_table(run: RunProfile) -> ShownTable:
    """Return idle time by cause over all ranks."""
    total: dict[str, int] = {}
    for rank in run.ranks:
        for cause, ns in rank.idle.causes.items():
            total[cause] = total.get(cause, 0) + ns
    idle, steps = sum(total.values()), per_step(run.ranks)
    rows = [
        {"cause": _WORDS.get(cause, cause.replace("_", " ")), "ns": ns / steps, "share": 100 * ns / idle}
        for cause, ns in sorted(total.items(), key=lambda item: -item[1])
        if ns
    ]
    fields = (
        Field("Cause", column("cause")),
        times("Per step" if run.figures["steps"] else "Per rank", "ns"),
        shares("Of idle time", "share"),
    )
    return shown("idle-table", "Idle time by cause, over all ranks.", frame(rows), fields)


def gaps_table(run: RunProfile, most: int = 12) -> ShownTable:
    """Return the longest idle stretches of all ranks."""
    gaps = [(rank, gap) for rank in run.ranks for gap in rank.idle.longest]
    best = sorted(gaps, key=lambda pair: pair[1].start_ns - pair[1].end_ns)[:most]
    rows = [
        {
            "rank": f"rank {rank.rank}",
            "length": gap.end_ns - gap.start_ns,
            "at": gap.start_ns - rank.start_ns,
            "cause": _WORDS.get(gap.cause, gap.cause),
            "next": gap.next_name or text.MISSING,
        }
        for rank, gap in best
    ]
    fields = (
        Field("Rank", column("rank")),
        times("Length", "length"),
        times("After the window's start", "at"),
        Field("Cause", column("cause")),
        Field("Ended by", column("next", lambda value: text.clean(value, 120))),
    )
    return shown("gaps-table", "The longest stretches in which a device did nothing.", frame(rows), fields)


def meanwhile_table(run: RunProfile, most: int = 15) -> ShownTable:
    """Return what the launching threads did while devices waited for them."""
    total: dict[tuple[str, str], int] = {}
    for rank in run.ranks:
        for row in rank.idle.meanwhile:
            total[row.level, row.name] = total.get((row.level, row.name), 0) + row.ns
    steps = per_step(run.ranks)
    best = sorted(total.items(), key=lambda item: -item[1])[:most]
    rows = [{"name": name or f"(no {_LEVELS.get(level, level)})", "level": _LEVELS.get(level, level), "ns": ns / steps}
            for (level, name), ns in best]  # fmt: skip
    fields = (
        Field("Name", column("name", lambda value: text.clean(value, 160))),
        Field("What it is", column("level")),
        times("Per step" if run.figures["steps"] else "Per rank", "ns"),
    )
    caption = (
        "What the launching threads did while devices waited for them. The same time counts once among ranges and "
        "operators and once among runtime calls."
    )
    return shown("meanwhile-table", caption, frame(rows), fields)


_LEVELS = {"range": "range or operator", "call": "runtime call"}


def launches_table(run: RunProfile, most: int = 64) -> ShownTable:
    """Return how each rank's launches went."""
    rows = [{"name": f"rank {rank.rank}", **rank.idle.launches.to_dict()} for rank in run.ranks[:most]]
    fields = (
        Field("Rank", column("name")),
        Field("Device spans", column("spans", count), "spans"),
        Field("Unlinked", column("unlinked", count), "unlinked", hint="Without a launch record"),
        times("Delay, median", "delay_p50_ns", hint="From the launch call to the start on the device"),
        times("Delay, 95 %", "delay_p95_ns"),
        Field("Queue, mean", column("queue_mean", _mean), "queue_mean", hint="Launched but not begun"),
        Field("Kernels < 10 µs", column("short_kernels", count), "short_kernels"),
        Field("Calls > 50 µs", column("slow_calls", count), "slow_calls", minor=True),
    )
    rest = f" The first {most} of {len(run.ranks)}." if len(run.ranks) > most else ""
    return shown("launches-table", f"Launches, rank by rank.{rest}", frame(rows), fields, sortable=True)


def _mean(value: Any) -> str:
    return text.MISSING if text.is_missing(value) else digits(float(value))


def copies_table(run: RunProfile) -> ShownTable:
    """Return copies by direction over all ranks."""
    total: dict[str, dict[str, Any]] = {}
    for rank in run.ranks:
        for row in rank.transfers.copies:
            into = total.setdefault(row.direction, dict.fromkeys(_SUMS, 0) | {"pageable": None, "took": 0.0})
            for key in _SUMS:
                into[key] += getattr(row, key)
            into["pageable"] = _add(into["pageable"], row.pageable)
            into["took"] += row.bytes / row.gb_per_s if row.gb_per_s else 0.0
    steps = per_step(run.ranks)
    rows = [{"name": name.replace("_", " "), **_copies(row, steps)} for name, row in total.items()]
    fields = (
        Field("Direction", column("name")),
        Field("Copies", column("count", count), "count"),
        Field("Volume", column("moved", volume), "moved"),
        Field("GB/s", column("rate", _mean), "rate", hint="Bytes over the copies' own durations"),
        shares("Hidden", "hidden", hint="Share behind compute"),
        times("Exposed per step" if run.figures["steps"] else "Exposed per rank", "exposed"),
        shares("Pageable", "pageable_pct", hint="Copies from or to memory that is not pinned"),
    )
    rows.sort(key=lambda row: -row["exposed"])
    return shown("copies-table", "Copies and fills by direction, over all ranks.", frame(rows), fields, sortable=True)


_SUMS = ("count", "unsized", "bytes", "busy_ns", "hidden_ns", "exposed_ns")


def _add(one: int | None, other: int | None) -> int | None:
    return one if other is None else (one or 0) + other


def _copies(row: dict[str, Any], steps: int) -> dict[str, Any]:
    sized = row["count"] > row["unsized"]
    return {
        "count": row["count"],
        "moved": row["bytes"] if sized else None,
        "rate": row["bytes"] / row["took"] if row["took"] else None,
        "hidden": 100 * row["hidden_ns"] / row["busy_ns"] if row["busy_ns"] else None,
        "exposed": row["exposed_ns"] / steps,
        "pageable_pct": None if row["pageable"] is None else 100 * row["pageable"] / row["count"],
    }


def loading_words(run: RunProfile) -> str:
    """Say how long the hosts fetched data, and how much of that devices stood idle."""
    found = [rank.transfers.loading for rank in run.ranks if rank.transfers.loading is not None]
    if not found:
        return (
            "No range in the traces names data loading (enumerate(DataLoader)…__next__), so its cost cannot be told "
            "from other host work."
        )
    steps = per_step(run.ranks)
    total, idle = sum(row.total_ns for row in found), sum(row.idle_ns for row in found)
    share = percent(100 * idle / total) if total else percent(0.0)
    unit = "per step" if run.figures["steps"] else "per rank"
    return (
        f"Hosts spent {duration(total / steps)} {unit} fetching the next batch; during {duration(idle / steps)} of it "
        f"({share}) the device stood idle."
    )
