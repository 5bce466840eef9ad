"""What ``densing profile`` shows on a screen."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from densing.cli.table import columns, visible
from densing.core import severest_first, words
from densing.efficiency.profile import SHOWN, cut_short, per_step

if TYPE_CHECKING:
    from densing.efficiency.profile import Clocks, Comparison, RankProfile, RunProfile, RunUtilisation
    from densing.tradeoff import DensityCost

SHOWN_RANKS = 8
SHOWN_COLLECTIVES = 5
WIDE = 100
"""Columns to which sentences are folded on a wide terminal."""
LONGEST_TOLD = 300
AT_ONCE = 0.005
"""Share by which the kinds of communication must exceed their union before it is said that they overlap."""


def screen(
    run: RunProfile,
    used: RunUtilisation | None,
    comparison: Comparison | None,
    joined: DensityCost | None,
    width: int | None = None,
) -> list[str]:
    """Return the summary, line by line: headline, ranks, communications, causes.

    Parameters
    ----------
    run : RunProfile
    used : RunUtilisation or None
    comparison : Comparison or None
    joined : DensityCost or None
    width : int, optional
        Sentences are folded to it; tables never are. None leaves them whole.
    """
    lines = [*_folded(_headline(run), width), "", *_ranks(run), "", *_collectives(run, width)]
    lines += _folded([*_across(run), *_causes(run), *_unrecognised(run)], width)
    if used is not None:
        lines += ["", *_folded([_used(used)], width)]
    if joined is not None:
        lines += ["", *_folded(joined.bought, width)]
    if comparison is not None:
        lines += ["", *comparison_lines(comparison, width)]
    return lines


def _folded(sentences: Iterable[str], width: int | None) -> list[str]:
    """Return sentences as a terminal may show them: names in them stay text and leave room for the rest.

    Examples
    --------
    >>> _folded(["1. the host launches too late"], 20)
    ['1. the host launches', '   too late']
    """
    lines = [visible(words.middle_cut(sentence, LONGEST_TOLD)) for sentence in sentences]
    if width is None:
        return lines
    fold = textwrap.TextWrapper(width, subsequent_indent="   ", break_on_hyphens=False)
    return [part for line in lines for part in fold.wrap(line) or [""]]


def _headline(run: RunProfile) -> list[str]:
    told = run.figures
    steps = f"{told['steps']} steps in all, median {_ms(told['step_ms'])} ms" if told["steps"] else "no steps marked"
    ranks = f"{len(run.ranks)} rank" + "s" * (len(run.ranks) != 1)
    if told["compute_pct"] is None:
        return [
            f"{ranks}, window {run.window}: no work was recorded, so nothing can be said of the time (see the notes)"
        ]
    hidden = told["overlap_pct"]
    if hidden is None and told["comm_pct"]:
        found = "share of communication hidden not told (most of it lies beyond the window)"
    elif hidden is None:
        found = "no communication"
    else:
        found = f"{_(hidden)} % of communication hidden (at most {_(told['achievable_pct'])} % could be)"
    unit = _unit(run)
    exposed = f"exposed {_(told['exposed_pct'])} % of the time, {_ms(told['exposed_ms_per_step'])} ms per {unit}"
    return [f"{ranks}, window {run.window}, {steps}", f"{found}; {exposed}; idle {_(told['idle_pct'])} %"]


def _unit(run: RunProfile) -> str:
    """What costs are given per: a step, or a rank's window where no step is marked."""
    return "step" if run.figures["steps"] else "window"


def _(value: object, digits: int = 1) -> str:
    return words.fixed(value if isinstance(value, int | float) else None, digits)


def _ms(value: object) -> str:
    return words.milliseconds_of(value if isinstance(value, int | float) else None)


def _ranks(run: RunProfile) -> list[str]:
    """Return the partition of each rank, the most exposed first where there are many."""
    shown = sorted(run.ranks, key=lambda rank: -rank.partition.exposed_comm_ns) if _many(run) else run.ranks
    header = ("rank", "window ms", "compute %", "exposed comm %", "copy only %", "idle %", "hidden comm %")
    lines = columns(header, [_rank(rank) for rank in shown[:SHOWN_RANKS]])
    if _many(run):
        lines.append(f"... the {SHOWN_RANKS} most exposed of {len(run.ranks)} ranks; all of them: --json or --html")
    return lines


def _many(run: RunProfile) -> bool:
    return len(run.ranks) > SHOWN_RANKS


def _rank(rank: RankProfile) -> tuple[str, ...]:
    part = rank.partition
    shares = (part.compute_ns, part.exposed_comm_ns, part.exposed_memcpy_ns, part.idle_ns)
    told = [words.fixed(100 * ns / part.window_ns if part.window_ns else None) for ns in shares]
    return (
        str(rank.rank),
        words.milliseconds_of(part.window_ns / 1e6),
        *told,
        words.fixed(None if cut_short([rank]) else part.overlap_pct),
    )


def _collectives(run: RunProfile, width: int | None) -> Iterator[str]:
    if not run.collectives:
        return
    header = ("operation", "group", "ranks", "calls", "MB each", "bus GB/s", "hidden %", f"exposed ms/{_unit(run)}")
    steps = per_step(run.ranks)
    # What the figures leave of a line goes to the group's name.
    room = min(max((width or WIDE) - 72, 8), 24)
    rows = [
        (
            row.op or "unknown",
            words.cut(visible(row.group or row.group_label or "–"), room),
            str(row.group_size) if row.group_size > 0 else "–",
            str(row.count),
            words.fixed(row.bytes / row.count_sized / 1e6 if row.count_sized else None, 2),
            words.fixed(row.busbw_gbps, 2),
            words.fixed(None if run.figures["overlap_pct"] is None else row.hidden_pct),
            words.milliseconds_of(row.exposed_ns / steps / 1e6),
        )
        for row in run.collectives[:SHOWN_COLLECTIVES]
    ]
    yield from columns(header, rows, left=2)
    if len(run.collectives) > SHOWN_COLLECTIVES:
        yield f"... and {len(run.collectives) - SHOWN_COLLECTIVES} more kinds"
    for row in run.collectives[:SHOWN_COLLECTIVES]:
        if row.sum_ns > row.total_ns * (1 + AT_ONCE):
            took, added = (_ms(ns / steps / 1e6) for ns in (row.total_ns, row.sum_ns))
            yield f"{row.op or 'unknown'}: {took} ms per {_unit(run)}; calls run at the same time, their sum is {added}"
    claimed = sum(row.exposed_ns for row in run.collectives) / steps / 1e6
    exposed = run.figures["exposed_ms_per_step"]
    if isinstance(exposed, float) and claimed > exposed * (1 + AT_ONCE):
        yield f"Some run at the same time: all kinds together expose {_ms(exposed)} ms, not their sum"
    yield ""


def _across(run: RunProfile) -> Iterator[str]:
    """What several ranks tell of each other: how their clocks compare, and who is waited for."""
    if run.together is None:
        return
    if clocks := _clocks(run.together.clocks):
        yield clocks
    found = run.together.stragglers
    if found.worst is not None:
        slow = run.figures.get("slowdown")
        more = _gain(slow) if isinstance(slow, float) else ""
        yield f"Waited for most: rank {found.worst}{f', {found.often}' * bool(found.often)}{more}"
    elif found.within_clock_error is not None:
        yield f"Waited for most: within clock error (rank {found.within_clock_error} as recorded; see the notes)"
    if clocks or found.worst is not None:
        yield ""


def _gain(slowdown: float) -> str:
    if slowdown <= 1:
        return "; balancing the ranks would gain nothing"
    return f"; with balanced ranks the run would be {_(slowdown, 2)} times as fast"


def _clocks(clocks: Clocks) -> str:
    """Say how moments on different ranks compare."""
    if clocks.verdict == "one rank":
        return ""
    if not clocks.comparable:
        return "Clocks: not comparable between ranks; who arrived last is told by durations"
    residual = _ms(max(clocks.residual_ns.values(), default=0) / 1e6)
    if clocks.verdict == "agree":
        return f"Clocks: the ranks' agree to {residual} ms (ends of matched collectives); times as recorded"
    offset = _ms(max(map(abs, clocks.offset_ns.values())) / 1e6)
    return f"Clocks: aligned on ends of collectives, up to {offset} ms taken out; {residual} ms remain uncertain"


def _causes(run: RunProfile) -> Iterator[str]:
    unit = _unit(run)
    for place, cause in enumerate(run.causes[:SHOWN], start=1):
        won = cause.recoverable_ms_per_step
        more = f", at most {_ms(won)} recoverable" if won < (1 - AT_ONCE) * cause.ms_per_step else ""
        yield f"{place}. {_ms(cause.ms_per_step)} ms per {unit} ({cause.share_pct:.1f} %{more}): {cause.message}"
        yield f"   try: {cause.remedy}"


def _unrecognised(run: RunProfile) -> Iterator[str]:
    """Name the work that no rule knows, the longest first: what counts as compute, and what counts as nothing."""
    for by_default, what, consequence in (
        (True, "kernel", "counted as compute; if it is communication, say --comm-pattern REGEX"),
        (False, "other name", "of a category without rule, counted as nothing"),
    ):
        total: dict[str, int] = {}
        for rank in run.ranks:
            for row in rank.unrecognised:
                if (row.kind != "unknown") == by_default:
                    total[row.name] = total.get(row.name, 0) + row.total_ns
        if total:
            names = sorted(total, key=lambda name: -total[name])
            shown = ", ".join(words.cut(name, 40) for name in names[:3])
            yield ""
            yield (
                f"No rule knows {len(names)} {what}{'s' * (len(names) != 1)} ({_ms(sum(total.values()) / 1e6)} ms in "
                f"all; {shown}): {consequence}"
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
        + "".join(f"; {note.message}" for note in used.notes)
    )


def comparison_lines(comparison: Comparison, width: int | None = None) -> list[str]:
    """Return what changed per step against the baseline, a line per figure, and the verdict."""
    rows = [
        (
            change.metric.removesuffix("_ns").replace("_", " "),
            *(_ns(value) for value in (change.base, change.other, change.difference)),
            "–" if change.low is None else f"{_ns(change.low)} to {_ns(change.high)}",
            change.verdict,
        )
        for change in comparison.changes
    ]
    header = ("per step, ms", "baseline", "this run", "change", f"{100 * comparison.level:g} % interval", "verdict")
    notes = [f"{note.severity}: {note.message}" for note in severest_first(comparison.notes)]
    return [*columns(header, rows), *_folded(notes, width)]


def _ns(ns: float | None) -> str:
    return words.milliseconds_of(None if ns is None else ns / 1e6)
