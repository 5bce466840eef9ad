"""How a profile is shown: its causes, ranks, communications and names, on a terminal, in a notebook and on a page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from densing.core import Field, Listing, column, formatting, numeric, shares, times
from densing.efficiency.profile.rank import cut_short, per_step

if TYPE_CHECKING:
    from densing.efficiency.profile.run import RunProfile

MOST_ROWS = 40


def causes_listing(run: RunProfile) -> Listing:
    """Return every cause of lost time, that of which most can be won first."""
    fields = (
        Field("Cause", column("message", _long)),
        numeric("Cost per step" if run.figures["steps"] else "Cost", "ms_per_step", formatting.milliseconds),
        shares("Share of the time", "share_pct"),
        numeric(
            "Recoverable",
            "recoverable_ms_per_step",
            formatting.milliseconds,
            hint="What of it lies on the critical path; of waiting, what even ranks would gain. A ceiling",
        ),
        Field(
            "Most on",
            lambda row: formatting.MISSING if formatting.is_missing(row["rank"]) else f"rank {row['rank']}",
            "rank",
        ),
        Field("What usually helps", column("remedy", _long)),
        Field("Code", column("code"), minor=True),
    )
    title = "Every cause that was found; first that of which most can be won."
    return Listing(title, run.causes[:MOST_ROWS], fields)


def _long(value: Any) -> str:
    return formatting.clean(value, 400)


def named(value: Any) -> str:
    """Return a name, or that there is none."""
    return formatting.clean(value, 60) if value else "not named"


def collectives_listing(run: RunProfile) -> Listing:
    """Return the communications by operation and process group, most exposed first."""
    steps = per_step(run.ranks)
    waits = {} if run.together is None else run.together.waits
    rows = [
        {
            **row.to_dict(),
            "hidden_pct": None if run.figures["overlap_pct"] is None else row.hidden_pct,
            "name": row.op or "not named",
            # A group is often called twice by one name.
            "who": formatting.clean(
                " · ".join(dict.fromkeys(filter(None, (row.group, row.group_label)))) or "not named", 60
            ),
            "size": row.group_size if row.group_size > 0 else None,
            "exposed_each": row.exposed_ns / steps,
            "sum_each": row.sum_ns / steps,
            # Calls without a size do not count as empty ones.
            "each": row.bytes / row.count_sized if row.count_sized else None,
            "waiting": None if (row.op, row.group) not in waits else 100 * waits[row.op, row.group],
        }
        for row in run.collectives
    ]
    unit = run.per
    fields = (
        Field("Operation", column("name")),
        Field("Group", column("who")),
        numeric("Ranks", "size", formatting.count, hint="Size of the process group"),
        numeric("Calls", "count", formatting.count),
        times(
            f"Exposed {unit}", "exposed_each", hint="Of the union of the calls: what runs at the same time counts once"
        ),
        times(f"Sum {unit}", "sum_each", hint="Durations of the calls added up, hidden or not", minor=True),
        shares("Hidden", "hidden_pct", hint="Share behind compute"),
        shares("Waiting", "waiting", hint="Share of the time spent waiting for other ranks"),
        numeric("Size, mean", "each", formatting.volume, hint="Output bytes for all-gather, input bytes otherwise"),
        numeric("algbw GB/s", "algbw_gbps", formatting.digits, hint="Bytes over time, waiting included"),
        numeric("busbw GB/s", "busbw_gbps", formatting.digits, hint="algbw × factor of nccl-tests (recalled)"),
    )
    caption = (
        "Over all ranks; most exposed first. Rates are lower bounds, since the time holds the wait for other ranks; "
        "factors of busbw are recalled from nccl-tests. Hidden and exposed are of unions, as in the partition; kinds "
        "of communication at the same time count each, so the rows may add up to more than the run's."
    )
    return Listing(caption, rows[:MOST_ROWS], fields)


def ranks_listing(run: RunProfile, most: int) -> Listing:
    """Return the ranks with their shares; of very many, those with most exposed communication."""
    # Those with most exposed communication are kept, and stand in order of rank.
    chosen = sorted(run.ranks, key=lambda rank: -(rank.partition.exposed_pct or 0))[:most]
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
                "bound": rank.path.bound_by or formatting.MISSING,
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
        numeric("Skipped", "skipped", formatting.count, hint="Damaged events left out", minor=True),
        Field("Host", column("host", named), minor=True),
        Field("Trace", column("source", lambda value: formatting.clean(value, 120)), minor=True),
    )
    left_out = f" {len(run.ranks) - len(rows)} ranks with less exposed communication are left out." * (
        len(run.ranks) > len(rows)
    )
    return Listing(f"Rank by rank.{left_out}", rows, fields)


def names_listing(run: RunProfile, attribute: str, title: str) -> Listing:
    """Return what took longest by name, summed over the ranks.

    Parameters
    ----------
    run : RunProfile
    attribute : {"names", "unrecognised"}
    title : str
    """
    total: dict[tuple[str, str], list[int]] = {}
    for rank in run.ranks:
        for row in getattr(rank, attribute):
            entry = total.setdefault((row.name, row.kind), [0, 0])
            entry[0] += row.count
            entry[1] += row.total_ns
    best = sorted(total.items(), key=lambda item: -item[1][1])[:MOST_ROWS]
    rows = [{"name": name, "kind": kind, "count": count, "ns": ns} for (name, kind), (count, ns) in best]
    fields = (
        Field("Name", column("name", lambda value: formatting.clean(value, 200))),
        Field("Counts as", column("kind")),
        numeric("Times", "count", formatting.count),
        times("Time in all", "ns", hint="Sum of durations over all ranks, not of their union"),
    )
    return Listing(title, rows, fields)
