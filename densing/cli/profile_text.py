"""What ``densing profile`` shows on a screen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from densing.cli.columns import columns, number, shortened
from densing.cli.table import visible
from densing.profile.causes import SHOWN

if TYPE_CHECKING:
    from densing.profile.compare import Comparison
    from densing.profile.rank import RankProfile
    from densing.profile.run import RunProfile
    from densing.profile.utilisation import RunUtilisation

SHOWN_RANKS = 8
SHOWN_COLLECTIVES = 5
WIDTH = 100


def screen(run: RunProfile, used: RunUtilisation | None, comparison: Comparison | None) -> list[str]:
    """Return the summary, line by line: headline, ranks, communications, causes."""
    parts = [_headline(run), *_ranks(run), "", *_collectives(run), *_waiting(run), *_causes(run)]
    parts += _unrecognised(run)
    if used is not None:
        parts += ["", _used(used)]
    if comparison is not None:
        parts += ["", *comparison_lines(comparison)]
    return parts


def _headline(run: RunProfile) -> str:
    told = run.figures
    steps = f"{told['steps']} steps in all, median {_(told['step_ms'], 2)} ms" if told["steps"] else "no steps marked"
    ranks = f"{len(run.ranks)} rank" + "s" * (len(run.ranks) != 1)
    hidden = told["overlap_pct"]
    if hidden is None:
        found = "no communication"
    else:
        found = f"{_(hidden)} % of communication hidden (at most {_(told['achievable_pct'])} % could be)"
    unit = _unit(run)
    exposed = f"exposed {_(told['exposed_pct'])} % of the time, {_(told['exposed_ms_per_step'], 2)} ms per {unit}"
    return f"{ranks}, window {run.window}, {steps}\n{found}; {exposed}; idle {_(told['idle_pct'])} %\n"


def _unit(run: RunProfile) -> str:
    """What costs are given per: a step, or a rank's window where no step is marked."""
    return "step" if run.figures["steps"] else "window"


def _(value: object, digits: int = 1) -> str:
    return number(value if isinstance(value, int | float) else None, digits)


def _ranks(run: RunProfile) -> list[str]:
    """Return the partition of each rank, the most exposed first where there are many."""
    shown = sorted(run.ranks, key=lambda rank: -rank.partition.exposed_comm_ns) if _many(run) else run.ranks
    header = ("rank", "window ms", "compute %", "exposed comm %", "exposed copies %", "idle %", "hidden comm %")
    lines = columns(header, [_rank(rank) for rank in shown[:SHOWN_RANKS]])
    if _many(run):
        lines.append(f"... the {SHOWN_RANKS} most exposed of {len(run.ranks)} ranks; all of them: --json or --html")
    return lines


def _many(run: RunProfile) -> bool:
    return len(run.ranks) > SHOWN_RANKS


def _rank(rank: RankProfile) -> tuple[str, ...]:
    part = rank.partition
    shares = (part.compute_ns, part.exposed_comm_ns, part.exposed_memcpy_ns, part.idle_ns)
    told = [number(100 * ns / part.window_ns if part.window_ns else None) for ns in shares]
    return (str(rank.rank), number(part.window_ns / 1e6, 2), *told, number(part.overlap_pct))


def _collectives(run: RunProfile) -> Iterator[str]:
    if not run.collectives:
        return
    header = ("communication", "group", "ranks", "calls", "MB each", "bus GB/s", "hidden %", f"exposed ms/{_unit(run)}")
    per_step = sum(len(rank.steps) for rank in run.ranks) or len(run.ranks)
    rows = [
        (
            row.op or "unknown",
            shortened(row.group or row.group_label or "–", 24),
            str(row.group_size) if row.group_size > 0 else "–",
            str(row.count),
            number(row.bytes / row.count_sized / 1e6 if row.count_sized else None, 2),
            number(row.busbw_gbps, 2),
            number(row.hidden_pct),
            number(row.exposed_ns / per_step / 1e6, 2),
        )
        for row in run.collectives[:SHOWN_COLLECTIVES]
    ]
    yield from columns(header, rows, left=2)
    if len(run.collectives) > SHOWN_COLLECTIVES:
        yield f"... and {len(run.collectives) - SHOWN_COLLECTIVES} more kinds"
    yield ""


def _waiting(run: RunProfile) -> Iterator[str]:
    found = run.together and run.together.stragglers
    if not found or found.worst is None:
        return
    slow = run.figures.get("slowdown")
    more = f"; with balanced ranks the run would be {_(slow, 2)} times as fast" if slow else ""
    yield f"Waited for most: rank {found.worst}, in {found.led} of {found.of}{more}"
    yield ""


def _causes(run: RunProfile) -> Iterator[str]:
    unit = _unit(run)
    for place, cause in enumerate(run.causes[:SHOWN], start=1):
        yield f"{place}. {cause.ms_per_step:,.2f} ms per {unit} ({cause.share_pct:.1f} %): {cause.message}"
        yield f"   try: {cause.remedy}"


def _unrecognised(run: RunProfile) -> Iterator[str]:
    """Name the kernels that no rule knows, the longest first."""
    total: dict[str, int] = {}
    for rank in run.ranks:
        for row in rank.unrecognised:
            total[row.name] = total.get(row.name, 0) + row.total_ns
    if total:
        names = sorted(total, key=lambda name: -total[name])
        shown = ", ".join(shortened(visible(name), 40) for name in names[:3])
        yield ""
        yield (
            f"No rule knows {len(names)} kernel{'s' * (len(names) != 1)} ({sum(total.values()) / 1e6:,.2f} ms in all; "
            f"{shown}): counted as compute; if it is communication, say --comm-pattern REGEX"
        )


def _used(used: RunUtilisation) -> str:
    if used.model is None:
        return "MFU unknown: " + "; ".join(note.message for note in used.notes)
    flops, peak = used.model.flops, used.model.peak
    hardware = f", HFU {used.hardware.percent:.2f} %" if used.hardware else ""
    recalled = ", recalled" if peak.recalled else ""
    return (
        f"MFU {used.model.percent:.2f} %{hardware}: formula {flops.formula} ({flops.equation}), "
        f"{used.model.devices} × {peak.flops / 1e12:g} TFLOP/s ({peak.device}, {peak.dtype}{recalled})"
    )


def comparison_lines(comparison: Comparison) -> list[str]:
    """Return what changed per step against the baseline, a line per figure, and the verdict."""
    rows = [
        (
            change.metric.removesuffix("_ns").replace("_", " "),
            number(_ms(change.base), 2),
            number(_ms(change.other), 2),
            number(_ms(change.difference), 2),
            "–" if change.low is None else f"{number(_ms(change.low), 2)} to {number(_ms(change.high), 2)}",
            change.verdict,
        )
        for change in comparison.changes
    ]
    header = ("per step, ms", "baseline", "this run", "change", f"{100 * comparison.level:g} % interval", "verdict")
    return [*columns(header, rows), *(f"{note.severity}: {note.message}" for note in comparison.notes)]


def _ms(ns: float | None) -> float | None:
    return None if ns is None else ns / 1e6
