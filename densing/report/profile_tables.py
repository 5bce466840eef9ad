"""The tables of a profile: causes, communications, waiting, ranks, steps, idleness, copies, names, paths."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from densing.core import words
from densing.efficiency.profile import cut_short, per_step
from densing.efficiency.timeline import OPS
from densing.plots import IDLE_LOOKS, mean_steps
from densing.report.parts import Field, ShownTable, column, record, records_frame, shares, shown, times

if TYPE_CHECKING:
    from densing.efficiency.profile import JointProfile, RunProfile


MOST_ROWS, MOST_RANKS, MOST_STEPS = 40, 256, 400
CAUSES = {look.key: look.label for look in IDLE_LOOKS}
LEVELS = {"range": "range or operator", "call": "runtime call"}
Key = tuple[str, str]


def _per(run: RunProfile) -> str:
    """Return what times are given per: a step, or a rank's window where no step is marked."""
    return "per step" if run.figures["steps"] else "per rank"


def causes_table(run: RunProfile) -> ShownTable:
    """Return every cause of lost time, that of which most can be won first."""
    fields = (
        Field("Cause", column("message", _long)),
        Field(
            "Cost per step" if run.figures["steps"] else "Cost",
            column("ms_per_step", words.milliseconds),
            "ms_per_step",
        ),
        shares("Share of the time", "share_pct"),
        Field(
            "Recoverable",
            column("recoverable_ms_per_step", words.milliseconds),
            "recoverable_ms_per_step",
            hint="What of it lies on the critical path; of waiting, what even ranks would gain. A ceiling",
        ),
        Field("Most on", lambda row: words.MISSING if words.is_missing(row["rank"]) else f"rank {row['rank']}", "rank"),
        Field("What usually helps", column("remedy", _long)),
        Field("Code", column("code"), minor=True),
    )
    rows = (record(cause) for cause in run.causes[:MOST_ROWS])
    return shown(
        "causes-table",
        "Every cause that was found; first that of which most can be won.",
        records_frame(rows),
        fields,
        sortable=True,
    )


def _long(value: Any) -> str:
    return words.clean(value, 400)


def collectives_table(run: RunProfile) -> ShownTable:
    """Return the communications by operation and process group, most exposed first."""
    steps = per_step(run.ranks)
    waits = {} if run.together is None else run.together.waits
    rows = [
        {
            **row.to_dict(),
            "hidden_pct": None if run.figures["overlap_pct"] is None else row.hidden_pct,
            "name": row.op or "not named",
            # A group is often called twice by one name.
            "who": words.clean(
                " · ".join(dict.fromkeys(filter(None, (row.group, row.group_label)))) or "not named", 60
            ),
            "size": row.group_size if row.group_size > 0 else None,
            "exposed_each": row.exposed_ns / steps,
            "sum_each": row.sum_ns / steps,
            "each": row.bytes / row.count_sized if row.count_sized else None,
            "waiting": None if (row.op, row.group) not in waits else 100 * waits[row.op, row.group],
        }
        for row in run.collectives
    ]
    unit = _per(run)
    fields = (
        Field("Operation", column("name")),
        Field("Group", column("who")),
        Field("Ranks", column("size", words.count), "size", hint="Size of the process group"),
        Field("Calls", column("count", words.count), "count"),
        times(
            f"Exposed {unit}", "exposed_each", hint="Of the union of the calls: what runs at the same time counts once"
        ),
        times(f"Sum {unit}", "sum_each", hint="Durations of the calls added up, hidden or not", minor=True),
        shares("Hidden", "hidden_pct", hint="Share behind compute"),
        shares("Waiting", "waiting", hint="Share of the time spent waiting for other ranks"),
        Field(
            "Size, mean",
            column("each", words.volume),
            "each",
            hint="Output bytes for all-gather, input bytes otherwise",
        ),
        Field("algbw GB/s", column("algbw_gbps", words.digits), "algbw_gbps", hint="Bytes over time, waiting included"),
        Field(
            "busbw GB/s",
            column("busbw_gbps", words.digits),
            "busbw_gbps",
            hint="algbw × factor of nccl-tests (recalled)",
        ),
    )
    caption = (
        "Over all ranks; most exposed first. Rates are lower bounds, since the time holds the wait for other ranks; "
        "factors of busbw are recalled from nccl-tests. Hidden and exposed are of unions, as in the partition; kinds "
        "of communication at the same time count each, so the rows may add up to more than the run's."
    )
    return shown("collectives-table", caption, records_frame(rows[:MOST_ROWS]), fields, sortable=True)


def waits_table(run: RunProfile) -> ShownTable:
    """Return the ranks that the others wait for, worst first."""
    ranks = () if run.together is None else run.together.stragglers.ranks[:MOST_ROWS]
    rows = [
        {
            **record(row),
            "name": f"rank {row.rank}",
            "own": row.suffered_ns if row.suffered_by_start_ns is None else row.suffered_by_start_ns,
        }
        for row in ranks
    ]
    fields = (
        Field("Rank", column("name")),
        times("Waiting caused", "caused_ns", hint="What the others waited for it in all"),
        times("Of that alone", "alone_ns", hint="Its start after the last but one: what its lateness alone cost"),
        Field("Arrived last", column("times_last", words.count), "times_last"),
        Field("Of", column("matched", words.count), "matched", hint="Matched communications it takes part in"),
        times("Waited itself", "own"),
        Field(
            "Led",
            column("steps_led", words.count),
            "steps_led",
            hint="Steps (or, within one step, communications) in which it caused most",
        ),
    )
    caption = "Who is waited for, and who waits: sums over matched communications."
    if run.together is not None and run.together.stragglers.within_clock_error is not None:
        caption += " Which rank comes first is within clock error."
    return shown("waits-table", caption, records_frame(rows), fields, sortable=True)


def late_table(run: RunProfile, most: int = 12) -> ShownTable:
    """Return the communications in which most waiting was caused."""
    late = () if run.together is None else run.together.stragglers.late
    rows = [
        {**record(row), "name": row.op or "communication", "at": None if row.step < 0 else row.step}
        for row in sorted(late, key=lambda row: -row.waited_ns)[:most]
    ]
    fields = (
        Field("Communication", column("name")),
        Field("Group", column("group", named)),
        Field("Step", column("at", words.count), "at"),
        Field("Number", column("order", lambda value: words.count(int(value) + 1)), "order"),
        Field("Last to arrive", lambda row: f"rank {row['rank']}" if row["clear"] else "within clock error"),
        times("Later than the next", "alone_ns"),
        times("Waited by the others", "waited_ns"),
    )
    caption = "The communications in which ranks waited most."
    return shown("late-table", caption, records_frame(row for row in rows if row["waited_ns"]), fields)


def named(value: Any) -> str:
    """Return a name, or that there is none."""
    return words.clean(value, 60) if value else "not named"


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
        Field("Name", column("name", lambda value: words.clean(value, 200))),
        Field("Counts as", column("kind")),
        Field("Times", column("count", words.count), "count"),
        times("Time in all", "ns", hint="Sum of durations over all ranks, not of their union"),
    )
    return shown(f"{attribute}-table", caption, records_frame(rows), fields, sortable=True)


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
        Field("Name", column("name", lambda value: words.clean(value, 200))),
        Field("Kind", column("kind")),
        times(_per(run).capitalize(), "ns"),
    )
    caption = "What the ranks' own critical paths lead through, the longest first."
    return shown("path-table", caption, records_frame(rows), fields)


def turns_table(run: RunProfile, most: int = 12) -> ShownTable:
    """Return the communications at which the run's critical path goes from one rank to another."""
    turns = () if run.together is None or run.together.path is None else run.together.path.turns
    longest = sorted((turn for turn in turns if turn.waited_ns), key=lambda turn: -turn.waited_ns)[:most]
    rows = [{**record(turn), "name": _operation(run.together, turn.key)} for turn in longest]
    fields = (
        Field("Communication", column("name")),
        Field("Waiting", lambda row: f"rank {row['rank']}"),
        Field("Waited for", lambda row: f"rank {row['last_rank']}"),
        times("Waited", "waited_ns"),
        times("Transfer", "transfer_ns"),
    )
    return shown("turns-table", "Where the path turns to the rank that arrived last.", records_frame(rows), fields)


def _operation(together: JointProfile | None, key: int) -> str:
    if together is None or not 0 <= key < len(together.matched):
        return "communication"
    step = int(together.matched.step[key])
    return f"{OPS[int(together.matched.op[key])] or 'communication'}{f', step {step}' if step >= 0 else ''}"


def idle_table(run: RunProfile) -> ShownTable:
    """Return idle time by cause over all ranks."""
    total: dict[str, int] = {}
    for rank in run.ranks:
        for cause, ns in rank.idle.causes.items():
            total[cause] = total.get(cause, 0) + ns
    idle, steps = sum(total.values()), per_step(run.ranks)
    rows = [
        {"cause": CAUSES.get(cause, cause.replace("_", " ")), "ns": ns / steps, "share": 100 * ns / idle}
        for cause, ns in sorted(total.items(), key=lambda item: -item[1])
        if ns
    ]
    fields = (
        Field("Cause", column("cause")),
        times(_per(run).capitalize(), "ns"),
        shares("Of idle time", "share"),
    )
    return shown("idle-table", "Idle time by cause, over all ranks.", records_frame(rows), fields)


def gaps_table(run: RunProfile, most: int = 12) -> ShownTable:
    """Return the longest idle stretches of all ranks."""
    gaps = [(rank, gap) for rank in run.ranks for gap in rank.idle.longest]
    best = sorted(gaps, key=lambda pair: pair[1].start_ns - pair[1].end_ns)[:most]
    rows = [
        {
            "rank": f"rank {rank.rank}",
            "length": gap.end_ns - gap.start_ns,
            "at": gap.start_ns - rank.start_ns,
            "cause": CAUSES.get(gap.cause, gap.cause),
            "next": gap.next_name or words.MISSING,
        }
        for rank, gap in best
    ]
    fields = (
        Field("Rank", column("rank")),
        times("Length", "length"),
        times("After the window's start", "at"),
        Field("Cause", column("cause")),
        Field("Ended by", column("next", lambda value: words.clean(value, 120))),
    )
    return shown("gaps-table", "The longest stretches in which a device did nothing.", records_frame(rows), fields)


def meanwhile_table(run: RunProfile, most: int = 15) -> ShownTable:
    """Return what the launching threads did while devices waited for them."""
    total: dict[tuple[str, str], int] = {}
    for rank in run.ranks:
        for row in rank.idle.meanwhile:
            total[row.level, row.name] = total.get((row.level, row.name), 0) + row.ns
    steps = per_step(run.ranks)
    best = sorted(total.items(), key=lambda item: -item[1])[:most]
    rows = [
        {"name": name or f"(no {LEVELS.get(level, level)})", "level": LEVELS.get(level, level), "ns": ns / steps}
        for (level, name), ns in best
    ]
    fields = (
        Field("Name", column("name", lambda value: words.clean(value, 160))),
        Field("What it is", column("level")),
        times(_per(run).capitalize(), "ns"),
    )
    caption = (
        "What the launching threads did while devices waited for them. The same time counts once among ranges and "
        "operators and once among runtime calls."
    )
    return shown("meanwhile-table", caption, records_frame(rows), fields)


def launches_table(run: RunProfile, most: int = 64) -> ShownTable:
    """Return how each rank's launches went."""
    rows = [{"name": f"rank {rank.rank}", **rank.idle.launches.to_dict()} for rank in run.ranks[:most]]
    fields = (
        Field("Rank", column("name")),
        Field("Device spans", column("spans", words.count), "spans"),
        Field("Unlinked", column("unlinked", words.count), "unlinked", hint="Without a launch record"),
        times("Delay, median", "delay_p50_ns", hint="From the launch call to the start on the device"),
        times("Delay, 95 %", "delay_p95_ns"),
        Field("Queue, mean", column("queue_mean", words.digits), "queue_mean", hint="Launched but not begun"),
        Field("Kernels < 10 µs", column("short_kernels", words.count), "short_kernels"),
        Field("Calls > 50 µs", column("slow_calls", words.count), "slow_calls", minor=True),
    )
    rest = f" The first {most} of {len(run.ranks)}." if len(run.ranks) > most else ""
    return shown("launches-table", f"Launches, rank by rank.{rest}", records_frame(rows), fields, sortable=True)


def copies_table(run: RunProfile) -> ShownTable:
    """Return copies by direction over all ranks."""
    sums = ("count", "unsized", "bytes", "busy_ns", "hidden_ns", "exposed_ns")
    total: dict[str, dict[str, Any]] = {}
    for rank in run.ranks:
        for copies in rank.transfers.copies:
            row = total.setdefault(copies.direction, dict.fromkeys(sums, 0) | {"pageable": None, "took": 0.0})
            for key in sums:
                row[key] += getattr(copies, key)
            # None as long as no rank tells which memory was pinned.
            row["pageable"] = row["pageable"] if copies.pageable is None else (row["pageable"] or 0) + copies.pageable
            row["took"] += copies.bytes / copies.gb_per_s if copies.gb_per_s else 0.0
    steps = per_step(run.ranks)
    rows = [
        {
            "name": name.replace("_", " "),
            "count": row["count"],
            "moved": row["bytes"] if row["count"] > row["unsized"] else None,
            "rate": row["bytes"] / row["took"] if row["took"] else None,
            "hidden": 100 * row["hidden_ns"] / row["busy_ns"] if row["busy_ns"] else None,
            "exposed": row["exposed_ns"] / steps,
            "pageable_pct": None if row["pageable"] is None else 100 * row["pageable"] / row["count"],
        }
        for name, row in total.items()
    ]
    fields = (
        Field("Direction", column("name")),
        Field("Copies", column("count", words.count), "count"),
        Field("Volume", column("moved", words.volume), "moved"),
        Field("GB/s", column("rate", words.digits), "rate", hint="Bytes over the copies' own durations"),
        shares("Hidden", "hidden", hint="Share behind compute"),
        times(f"Exposed {_per(run)}", "exposed"),
        shares("Pageable", "pageable_pct", hint="Copies from or to memory that is not pinned"),
    )
    rows.sort(key=lambda row: -row["exposed"])
    return shown(
        "copies-table", "Copies and fills by direction, over all ranks.", records_frame(rows), fields, sortable=True
    )


def loading_words(run: RunProfile) -> str:
    """Say how long the hosts fetched data, and how much of that devices stood idle."""
    loading = [rank.transfers.loading for rank in run.ranks if rank.transfers.loading is not None]
    if not loading:
        return (
            "No range in the traces names data loading (enumerate(DataLoader)…__next__), so its cost cannot be told "
            "from other host work."
        )
    steps = per_step(run.ranks)
    total, idle = sum(row.total_ns for row in loading), sum(row.idle_ns for row in loading)
    share = words.percent(100 * idle / total if total else 0.0)
    return (
        f"Hosts spent {words.duration(total / steps)} {_per(run)} fetching the next batch; during "
        f"{words.duration(idle / steps)} of it ({share}) the device stood idle."
    )


def ranks_table(run: RunProfile) -> ShownTable:
    """Return the ranks with their shares; of very many, those with most exposed communication."""
    chosen = sorted(run.ranks, key=lambda rank: -(rank.partition.exposed_pct or 0))[:MOST_RANKS]
    rows = []
    for rank in sorted(chosen, key=lambda rank: rank.rank):
        part = rank.partition
        parts = {
            "compute": part.compute_ns,
            "exposed": part.exposed_comm_ns,
            "copies": part.exposed_memcpy_ns,
            "idle": part.idle_ns,
        }
        rows.append(
            {
                "name": f"rank {rank.rank}",
                **{name: 100 * ns / part.window_ns if part.window_ns else None for name, ns in parts.items()},
                "hidden": None if cut_short([rank]) else part.overlap_pct,
                "window_ns": part.window_ns,
                "bound": rank.path.bound_by or words.MISSING,
                "skipped": rank.skipped,
                "host": rank.host,
                "source": rank.source,
            }
        )
    fields = (
        Field("Rank", column("name")),
        shares("Compute", "compute"),
        shares("Exposed", "exposed", hint="Exposed communication, share of the window"),
        shares("Copies", "copies", hint="Exposed copies"),
        shares("Idle", "idle"),
        shares("Hidden", "hidden", hint="Share of the communication behind compute"),
        times("Window", "window_ns"),
        Field("Bound by", column("bound")),
        Field("Skipped", column("skipped", words.count), "skipped", hint="Damaged events left out", minor=True),
        Field("Host", column("host", named), minor=True),
        Field("Trace", column("source", lambda value: words.clean(value, 120)), minor=True),
    )
    rest = f" {len(run.ranks) - len(rows)} ranks with less exposed communication are left out." * (
        len(run.ranks) > len(rows)
    )
    return shown("ranks-table", f"Rank by rank.{rest}", records_frame(rows), fields, sortable=True)


def steps_table(run: RunProfile) -> ShownTable:
    """Return the steps one by one, each the mean over the ranks that recorded it."""
    table = mean_steps({rank.rank: rank.steps for rank in run.ranks})
    rows = [
        {"name": f"step {number}", "all": sum(parts.values()), "busy": parts["compute"] + parts["hidden"], **parts}
        for number, parts in table[:MOST_STEPS]
    ]
    fields = (
        Field("Step", column("name")),
        times("Length", "all"),
        times("Compute", "busy"),
        times("Hidden", "hidden", hint="Compute that hides communication"),
        times("Exposed", "exposed_comm", hint="Exposed communication"),
        times("Copies", "exposed_memcpy", hint="Exposed copies"),
        times("Idle", "idle"),
    )
    rest = f" The first {MOST_STEPS} of {len(table)}." * (len(table) > MOST_STEPS)
    return shown("steps-table", f"Step by step, the mean over ranks.{rest}", records_frame(rows), fields, sortable=True)


def spread_table(run: RunProfile, most: int = 10) -> ShownTable:
    """Return the steps in which the ranks' times differ most."""
    widest = sorted((row for row in run.spread if row.spread), key=lambda row: -(row.spread or 0))[:most]
    rows = [{**record(row), "over": 100 * (row.spread or 0), "name": f"step {row.number}"} for row in widest]
    fields = (
        Field("Step", column("name")),
        times("Median rank", "median_ns"),
        times("Slowest rank", "max_ns"),
        shares("Slower by", "over"),
        Field("Which", lambda row: f"rank {row['slowest_rank']}"),
        Field("Ranks", column("ranks", words.count), "ranks"),
    )
    caption = (
        "The steps whose times differ most between ranks. A collective at the end of a step makes all ranks equally "
        "slow: a small difference is no proof that none lags."
    )
    return shown("spread-table", caption, records_frame(rows), fields)
