"""The report of a profiled run: headline, causes, figures and what changed."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import plotly.graph_objects as go

from densing.core import Field, Note, as_row, column, formatting, numeric, shares, times
from densing.efficiency.profile import (
    SHOWN,
    all_step_times,
    per_step,
    pooled,
)
from densing.efficiency.throughput import device_sheet
from densing.efficiency.timeline import NO_DEVICE_WORK, OPS, Partition, picture, select
from densing.plots import (
    BARS,
    IDLE_LOOKS,
    PATH_LOOKS,
    Bar,
    Rate,
    arrange,
    caused,
    drawn_words,
    mean_steps,
    plot_idle,
    plot_modules,
    plot_partition,
    plot_path,
    plot_rank_strip,
    plot_roofline,
    plot_step_times,
    plot_steps,
    plot_timeline,
    plot_waiting,
    same_step,
    suffered,
)
from densing.report.document import (
    Block,
    Figure,
    Fold,
    Heading,
    Headline,
    Page,
    Pairs,
    Point,
    Points,
    Prose,
    Section,
    Terms,
    notes_section,
    present,
    prose,
    versions_section,
)
from densing.report.page import shown_figure, write
from densing.report.tables import ShownTable, page_table, pairs, shown_table

if TYPE_CHECKING:
    from densing.efficiency.profile import (
        Comparison,
        Planned,
        RankProfile,
        RunProfile,
        RunUtilisation,
    )


MOST_SOURCES = 200
MOST_ROWS, MOST_STEPS = 40, 400
DRAWN = 16
"""Ranks in the figure of one step."""
Captioned = tuple[go.Figure, str]


def build_profile_report(
    run: RunProfile,
    path: Path | str,
    *,
    baseline: Comparison | None = None,
    utilisation: RunUtilisation | None = None,
    changes: Sequence[Planned] = (),
) -> Path:
    """Write the report of a profiled run: one HTML file that needs no network.

    Everything that comes from the traces is escaped; the page's own policy forbids every request and every script but
    the two that are inlined.

    Parameters
    ----------
    run : RunProfile
        What ``densing profile`` computes.
    path : path
        File to write; written whole or not at all.
    baseline : Comparison, optional
        What changed against another run.
    utilisation : RunUtilisation, optional
        Model and hardware FLOPs utilisation.
    changes : sequence of Planned
        What-ifs of the run, as :meth:`RunProfile.what_if` gives them: the middle step with each is drawn.

    Returns
    -------
    pathlib.Path
        The file.

    Raises
    ------
    densing.core.errors.InputError
        When the file cannot be written.
    """
    return write(profile_page(run, baseline=baseline, utilisation=utilisation, changes=changes), path)


def profile_page(
    run: RunProfile,
    *,
    baseline: Comparison | None = None,
    utilisation: RunUtilisation | None = None,
    changes: Sequence[Planned] = (),
) -> Page:
    """Return the page: what cost the most first, then rank by rank and cause by cause."""
    shown = figures(run)
    told = [] if utilisation is None else utilisation_words(utilisation)
    head = replace(headline(run), figure=shown["partition"], opening=prose(*told))
    collectives = (
        *present(page_table("layout-table", run.layout_listing())),
        *present(page_table("collectives-table", run.collectives_listing(), sortable=True)),
    )
    copies = present(copies_table(run)) or prose("No copies were recorded in the window.")
    unknown = present(page_table("unrecognised-table", run.names_listing("unrecognised", UNRECOGNISED), sortable=True))
    names, clocks = run.names_listing("names", "What took longest, by name, over all ranks."), clock_words(run)
    roofline = (shown["roofline"],) if "roofline" in shown else ()
    rank_strip = (Heading("In order of rank"), shown["rank-strip"]) if "rank-strip" in shown else ()
    sections = (
        _causes(run),
        Section("partition", "Rank by rank", (
            *rank_strip, page_table("ranks-table", run.ranks_listing(), sortable=True),
        ), short="Ranks", folded=True),
        Section("kernels", "What took longest, by name", (
            *roofline, page_table("names-table", names, sortable=True), Prose(f"{run.rate_words}.", "small"),
        ), short="Kernels", folded=True),
        *_modules(run, shown),
        Section("timeline", "One step on one axis", (shown["timeline"], *prose(clocks)),
                short="Timeline"),
        *(_changed(run, planned, number) for number, planned in enumerate(changes, 1)),
        Section("collectives", "Collectives", collectives or prose(NO_COLLECTIVES)),
        _stragglers(run, shown),
        Section("idle", "Idle time", (
            shown["idle"], *present(idle_table(run), meanwhile_table(run)),
            Fold("The longest gaps, and launches rank by rank",
                 (page_table("gaps-table", run.gaps_listing()), launches_table(run))),
        ), short="Idle", folded=True),
        _path(run, shown),
        _steps(run, shown),
        Section("copies", "Copies and data loading", (*copies, Prose(loading_words(run))), short="Copies", folded=True),
        *([] if baseline is None else [changes_section(baseline)]),
        notes_section(
            run.notes, nothing="There is nothing to remark: no event was skipped or repaired.",
            below=(Heading("Names that no rule knows"), *unknown) if unknown else (),
        ),
        Section("definitions", "Definitions", (Terms(DEFINITIONS),), folded=True),
        versions_section(
            Pairs("Options", pairs(run.options)),
            Fold("Where each rank was read from", (Pairs("Traces", sources(run)),)),
            title="Versions and options", python=platform.python_version(), numpy=np.__version__,
        ),
    )  # fmt: skip
    return Page("densing profile", head, sections)


NO_COLLECTIVES = (
    "No communication was recognised in the window. If some work is communication under another name, say so with "
    "--comm-pattern; names that no rule knows are listed under Notes."
)
CEILINGS = (
    "Costs are ceilings: exposed time need not lie on the critical path, and removing one cause may expose the next."
)


def _causes(run: RunProfile) -> Section:
    table, points = page_table("causes-table", run.causes_listing(), sortable=True), worst(run)
    blocks: tuple[Block, ...] = (
        Prose("No cause of lost time can be named: nothing that was recorded was exposed, copied or idle."),
    )
    if points:
        every = (Fold("Every cause", (table,)),) if len(table.rows) > len(points) else ()
        blocks = (Points(points, ordered=True), Prose(CEILINGS, "small"), *every)
    return Section("causes", "What cost the most", blocks, short="Causes")


def _modules(run: RunProfile, shown: Mapping[str, Figure]) -> list[Section]:
    if "modules" not in shown:
        return []
    table = page_table("modules-table", run.modules_listing(), sortable=True)
    return [Section("modules", "Time by module", (shown["modules"], table), short="Modules", folded=True)]


def _stragglers(run: RunProfile, shown: Mapping[str, Figure]) -> Section:
    blocks = prose(*straggler_words(run))
    if "waits" in shown:
        own = (shown["suffered"],) if "suffered" in shown else ()
        more = Fold("The longest waits, and how long each rank waited itself", (late_table(run), *own))
        blocks = (*blocks, shown["waits"], waits_table(run), more)
    return Section("stragglers", "Who waits for whom", blocks, short="Stragglers")


def _path(run: RunProfile, shown: Mapping[str, Figure]) -> Section:
    blocks: tuple[Block, ...] = (shown["paths"], *present(path_table(run)))
    if "run-path" in shown:
        blocks = (shown["run-path"], *present(turns_table(run)), Heading("Within each rank"), *blocks)
    return Section("path", "Critical path", blocks, folded=True)


def _steps(run: RunProfile, shown: Mapping[str, Figure]) -> Section:
    count = len({step.number for rank in run.ranks for step in rank.steps})
    if not count:
        text = "The traces mark no steps. With profiler.step() at the end of each, times are told step by step."
        return Section("steps", "Steps", prose(text), folded=True)
    first: tuple[Block, ...] = (
        Prose("One step is marked, so nothing tells how steps differ from one another; record several (active=10)."),
    )
    if count > 1:
        first = (shown["steps"], Fold("Every step as a table", (steps_table(run),)))
    spread = (Heading("How step times spread"), shown["step-times"], *present(spread_table(run)))
    return Section("steps", "Steps", (*first, *spread), folded=True)


def _changed(run: RunProfile, planned: Planned, number: int) -> Section:
    """The middle step of the run with something changed, drawn like the recorded one above it."""
    ranks = run.what_if_timeline(planned.change).ranks[:DRAWN]
    pictures = {rank.rank: picture(rank, select(rank)) for rank in ranks}
    words = "The middle step of the replay with this change, drawn like the recorded one above."
    drawn = shown_figure(f"what-if-{number}", plot_timeline(arrange(same_step(pictures), {})), words)
    return Section(f"what-if-{number}", f"What if {planned.change}", (drawn, *prose(planned.sentence, planned.model)))


UNRECOGNISED = (
    "Kernels among them count as compute by default, other device work counts as nothing. If some of it is "
    "communication, name it with --comm-pattern; densing profile --explain NAME says which rule a name meets."
)


def worst(run: RunProfile) -> tuple[Point, ...]:
    """Return the worst causes: cost, what it is, what usually helps."""
    return tuple(
        Point(
            f"– {formatting.clean(cause.message, 600)}.",
            f"{formatting.milliseconds(cause.gain_ms_per_step)} {run.per} ({formatting.percent(cause.gain_pct)})",
            f"What usually helps: {formatting.clean(cause.remedy, 600)}.",
        )
        for cause in run.causes[:SHOWN]
    )


def sources(run: RunProfile) -> list[tuple[str, str]]:
    """Return which file each rank was read from, and how its rank was known."""
    rows = [
        (
            f"rank {rank.rank}",
            f"{formatting.clean(rank.source, 300)} (rank from {rank.rank_from}; {rank.events} events)",
        )
        for rank in run.ranks[:MOST_SOURCES]
    ]
    more = len(run.ranks) - MOST_SOURCES
    return [*rows, ("…", f"{more} more")] if more > 0 else rows


WINDOWS = {
    "steps": "from the start of the first to the end of the last marked step",
    "all": "from the first to the last recorded work",
    "hta": "work launched before the last step began, as Holistic Trace Analysis counts",
}


def headline(run: RunProfile) -> Headline:
    """Put a run's profile in words; every caveat that holds for it comes with it."""
    total = pooled([rank.partition for rank in run.ranks])
    return Headline(title(run, total), lead(run, total), facts(run), caveats(run, total))


def device(run: RunProfile) -> str:
    """Return what did the work."""
    return "processors" if all(rank.on_host for rank in run.ranks) else "devices"


def title(run: RunProfile, total: Partition) -> str:
    """Return the headline itself: the cause without which the replay gains most.

    Examples
    --------
    >>> from types import SimpleNamespace as Space
    >>> cause = Space(gain_pct=91.2, gain_ms_per_step=45.1, title="devices wait for the host")
    >>> run = Space(per="per step", ranks=(), causes=(cause,))
    >>> title(run, Partition(100, 90, 50, 40, 0, 20, 20, 5, 25))
    '91.2 % of the time, 45.1 ms per step, is lost: devices wait for the host'
    """
    if not total.window_ns:
        if any(note.code == NO_DEVICE_WORK for note in run.notes):
            return "Nothing can be said of the time: the work of the devices was not recorded"
        return "There is no work in these traces"
    if run.causes:
        first = run.causes[0]
        gain = formatting.milliseconds(first.gain_ms_per_step)
        cost = f"{formatting.percent(first.gain_pct)} of the time, {gain} {run.per}"
        return formatting.clean(f"{cost}, is lost: {first.title}", 200)
    without = "" if total.comm_ns else " and no communication was recorded"
    return f"Nothing is lost{without}: the {device(run)} computed {_share(total.compute_ns, total)} of the time"


def _share(part: int, total: Partition) -> str:
    return formatting.percent(100 * part / total.window_ns) if total.window_ns else formatting.MISSING


def lead(run: RunProfile, total: Partition) -> str:
    """Return the sentences that say what was measured, on what, and how the time splits."""
    if not total.window_ns:
        return (
            f"No kernel, copy or communication of {run.counted} lies in the window {run.window} "
            f"({WINDOWS.get(run.window, 'as named')}). Were the right activities recorded, and is the window right?"
        )
    prose = (
        f"Over {run.counted} (window {run.window}: {WINDOWS.get(run.window, 'as named')}), the {device(run)} "
        f"computed {_share(total.compute_ns, total)} of the time, communicated without computing "
        f"{_share(total.exposed_comm_ns, total)}, only copied {_share(total.exposed_memcpy_ns, total)} and did nothing "
        f"{_share(total.idle_ns, total)}."
    )
    if not total.comm_ns:
        prose += " No communication was recorded."
    else:
        hidden = run.figures["overlap_pct"]
        if hidden is None:
            prose += " What share of the communication was hidden is not told, most of it lies beyond the window;"
        else:
            prose += f" {formatting.percent(hidden)} of the communication was hidden;"
        prose += f" {formatting.milliseconds(run.figures['exposed_ms_per_step'])} {run.per} were exposed."
    ceiling = total.achievable_pct
    if ceiling is not None and ceiling < 100:
        prose += " There is too little compute to hide all of the communication: "
        prose += f"at most {formatting.percent(ceiling)} of it could be."
    return prose


def facts(run: RunProfile) -> tuple[tuple[str, str], ...]:
    """Return the key figures, as term and value."""
    figures = run.figures
    ranks = f"{len(run.ranks)} of {run.world_size}" if run.world_size > len(run.ranks) else str(len(run.ranks))
    if not figures["step_ms"]:
        return (("Window", run.window), ("Ranks", ranks), ("Hardware", _hardware(run)))
    exposed, idle = (
        f"{formatting.milliseconds(figures[f'{key}_ms_per_step'])} {run.per} "
        f"({formatting.percent(figures[f'{key}_pct'])})"
        for key in ("exposed", "idle")
    )
    slowdown = figures.get("slowdown")
    rows = [
        ("Window", run.window),
        ("Step time, median" if figures["steps"] else "Window, mean", formatting.milliseconds(figures["step_ms"])),
        ("Exposed communication", exposed),
        ("Idle", idle),
        ("Hidden communication", formatting.percent(figures["overlap_pct"])),
        ("Slowdown by uneven ranks", f"{slowdown:.3f}×" if isinstance(slowdown, int | float) else formatting.MISSING),
        ("Ranks", ranks),
        ("Hardware", _hardware(run)),
    ]
    return tuple((term, value) for term, value in rows if value != formatting.MISSING)


def _hardware(run: RunProfile) -> str:
    if run.devices:
        return formatting.clean(", ".join(run.devices), 80)
    backends = dict.fromkeys(rank.backend for rank in run.ranks if rank.backend)
    kind = "processors, no accelerator" if all(rank.on_host for rank in run.ranks) else "not named in the traces"
    return formatting.clean(f"{kind} ({', '.join(backends)})" if backends else kind, 80)


def caveats(run: RunProfile, total: Partition) -> tuple[str, ...]:
    """Return what the reader must know before quoting the figures."""
    sentences = [note.message for note in run.notes if note.code == NO_DEVICE_WORK]
    if run.world_size > len(run.ranks):
        known = formatting.ranks_of(rank.rank for rank in run.ranks)
        sentences.append(
            f"Of {run.world_size} ranks {len(run.ranks)} were profiled ({known}): a rank that is missing here may be "
            "the slow one."
        )
    skipped, repaired = run.figures["skipped_events"], run.figures["repaired_events"]
    if skipped or repaired:
        sentences.append(
            f"The traces are damaged: {skipped} events were left out, {repaired} were kept after repair (see the "
            "notes)."
        )
    # Names counted as compute by default are in the table too; here only what counts as nothing.
    ignored = sum(row.total_ns for rank in run.ranks for row in rank.unrecognised if row.kind == "unknown")
    if ignored:
        sentences.append(
            f"{formatting.duration(ignored)} of device work is of kinds that no rule knows and counts as nothing (see "
            "the names)."
        )
    if total.exposed_comm_ns:
        sentences.append(EXPOSED)
    if device(run) == "processors":
        sentences.append(HOST)
    if run.window != "steps":
        sentences.append(
            "Other windows give other shares; where steps are marked, the window from first to last step is to be "
            "quoted."
        )
    return tuple(sentences)


EXPOSED = (
    "Exposed is not the same as blocking: time in which a device communicates and computes nothing is the most that "
    "better hiding can gain, not what it will gain."
)
HOST = (
    "These runs had no accelerator: compute is what the processor's operators took outside communication calls, and "
    "waiting for communication leaves no event unless it was marked."
)


def clock_words(run: RunProfile) -> str:
    """Say how the ranks' clocks compare, and so what may be read across ranks; empty for one rank."""
    if run.together is None or run.together.clocks.verdict == "one rank":
        return ""
    clocks = run.together.clocks
    if clocks.verdict == "not aligned":
        return (
            "The clocks of the ranks could not be aligned, so each rank begins at its own zero: lengths compare across "
            "ranks, moments do not."
        )
    error = formatting.duration(clocks.error_ns)
    if clocks.verdict == "agree":
        return f"The ranks' clocks agree (to {error}, by the ends of matched collectives); times stand as recorded."
    offset = formatting.duration(max(abs(value) for value in clocks.offset_ns.values()))
    return (
        f"The clocks were aligned on the ends of matched collectives: offsets of up to {offset} were taken out, "
        f"{error} remain uncertain."
    )


def straggler_words(run: RunProfile) -> list[str]:
    """Say who is waited for, a sentence each; why nothing can be told where nothing can."""
    if run.together is None:
        return ["One rank was profiled, so nothing tells who waits for whom: profile all ranks of the run."]
    stragglers = run.together.stragglers
    if stragglers.method == "none" or stragglers.worst is None:
        return [formatting.sentence(note.message) for note in stragglers.notes] or ["No rank was waited for."]
    # Only on a common clock do starts tell who came last; without one the shortest call is taken to have.
    by_start = stragglers.method == "starts"
    worst = next(row for row in stragglers.ranks if row.rank == stragglers.worst)
    method = "arrivals on a common clock" if by_start else "durations: the shortest call arrived last"
    sentences = [
        f"Rank {worst.rank} is waited for most: it arrived last {worst.times_last} times of {worst.matched} and the "
        f"others waited {formatting.duration(worst.caused_ns)} in all for it, told by {method}."
    ]
    if stragglers.often:
        chance = (
            ""
            if stragglers.chance is None
            else "; if all ranks were equally likely, some rank would lead as often with "
            + formatting.p_value(stragglers.chance)
        )
        against = ", with the clocks in error against it" if by_start else ""
        sentences.append(f"It leads {stragglers.often}{against}{chance}.")
    else:
        sentences.append("In no single step do the others wait for it longest.")
    even = run.together.what_if
    if even.slowdown is not None:
        replay = "Replayed with every rank's own time at the median of the ranks, the run"
        if even.slowdown <= 1:
            sentences.append(f"{replay} would not be faster: its ranks are even.")
        else:
            share = ""
            if even.worst is not None and even.worst_explains is not None:
                share = f"; rank {even.worst} alone explains {formatting.percent(100 * even.worst_explains)} of that"
            sentences.append(f"{replay} would be {even.slowdown:.3f} times as fast{share}.")
    return sentences


def figures(run: RunProfile) -> dict[str, Figure]:
    """Return every figure of a profile by name."""
    parts = {rank.rank: rank.partition for rank in run.ranks}
    windows = {rank: part.window_ns for rank, part in parts.items()}
    idle, total = sum(rank.idle.idle_ns for rank in run.ranks), sum(windows.values())
    share = f"; over all ranks {formatting.percent(100 * idle / total)}" if total else ""
    partition_words = (
        "Each rank's window: compute (hatched where communication runs under it, hidden), exposed communication, "
        "exposed copies and idle time add up to 100 %."
    )
    exposed = [100 * part.exposed_comm_ns / part.window_ns for part in parts.values() if part.window_ns]
    if len(exposed) > 1 and max(exposed) > min(exposed):
        best, worst = formatting.percent(min(exposed)), formatting.percent(max(exposed))
        partition_words += f" Exposed communication is {best} on the best rank, {worst} on the worst."
    spread = all_step_times(run.ranks)
    step_words = "Step times."
    if spread.count > 1:
        step_words = (
            f"Step times of all ranks: median {formatting.duration(spread.median_ns)}, from "
            f"{formatting.duration(spread.min_ns)} to {formatting.duration(spread.max_ns)}."
        )
        if spread.p95_over_median is not None:
            step_words += f" The 95 % point is {spread.p95_over_median:.2f} times the median."
    pictured, timeline_words = chosen_pictures(run)
    clocks = None if run.together is None else run.together.clocks
    # Clocks that cannot be compared let each rank's step begin at its own zero.
    offsets = clocks.offset_ns if clocks is not None and clocks.comparable else None
    drawing = arrange({rank.rank: rank.picture for rank in pictured}, offsets)
    if drawing.ranks:
        timeline_words += (
            " Within a rank, top to bottom: compute, communication (what no compute covers laid over it), copies and "
            "fills, all streams together."
        )
    if drawing.pixel_ns:
        timeline_words += f" Work closer than {formatting.duration(drawing.pixel_ns)} is drawn as one box."
    captioned: dict[str, Captioned] = {
        "partition": (plot_partition(parts), partition_words),
        "timeline": (plot_timeline(drawing), timeline_words),
        **_waits(run),
        "idle": (
            plot_idle({rank.rank: rank.idle.causes for rank in run.ranks}, windows),
            f"Idle time of each rank by its cause{share}.",
        ),
        **_paths(run),
        "steps": (
            plot_steps({rank.rank: rank.steps for rank in run.ranks}),
            "What each step consisted of, the mean over the ranks that recorded it.",
        ),
        "step-times": (
            plot_step_times(
                {rank.rank: [(step.number, step.end_ns - step.start_ns) for step in rank.steps] for rank in run.ranks}
            ),
            step_words,
        ),
    }
    if modules := run.modules:
        captioned["modules"] = (
            plot_modules(modules),
            "Work by the module or named range in which it was launched, outermost on top; a click opens one.",
        )
    if (rates := _rates(run)).rates:
        captioned["roofline"] = (plot_roofline(*rates[:3]), rates.words)
    if len(run.ranks) > BARS:
        captioned["rank-strip"] = (
            plot_rank_strip(parts),
            "The same in order of rank, stronger for more: neighbours often share a machine, so a stripe names one.",
        )
    return {name: shown_figure(name, figure, caption) for name, (figure, caption) in captioned.items()}


class _Rates(NamedTuple):
    rates: list[Rate]
    peaks: dict[str, float]
    bandwidth: float | None
    words: str


def _rates(run: RunProfile) -> _Rates:
    """What is known of products and attention, and of the device that ran them."""
    rates, peaks = [], dict[str, float]()
    for row in run.names:
        if row.name and row.flop_ns and row.least_bytes:
            peak = run.peak_of(row).peak
            if peak:
                peaks[peak.dtype] = peak.flops
            speed = 1e9 * row.flops / row.flop_ns
            dtype = peak.dtype if peak else row.dtype
            rates.append(Rate(row.name, row.flops / row.least_bytes, speed, row.flop_ns, dtype))
    bandwidth = device_sheet(run.devices[0]).get("mem_bw") if peaks else None
    words = (
        "Products and attention by recorded shapes; larger marks took more time. Bytes are the operands' minimum, each "
        "moved once, so a kernel that moves more stands too far to the right."
    )
    if bandwidth:
        words += f" Memory of the device table: {bandwidth / 1e12:g} TB/s, of its data sheet."
    return _Rates(rates, peaks, bandwidth, words)


def chosen_pictures(run: RunProfile) -> tuple[list[RankProfile], str]:
    """Return the ranks whose step is drawn, and which they are in words.

    Of more than :data:`DRAWN` ranks with a picture, the first half and the half that is waited for most (or, where
    nobody knows, exposes most communication).
    """
    pictures = same_step({rank.rank: rank.picture for rank in run.ranks})
    chosen = [rank for rank in run.ranks if rank.rank in pictures]
    if not chosen:
        return [], "No rank's step is there to be drawn."
    if len(chosen) > DRAWN:
        waits = () if run.together is None else run.together.stragglers.ranks
        caused_ns = {row.rank: row.caused_ns for row in waits}
        # Sorting is stable: where nobody waits, the order is that of exposed communication, then of rank.
        worst = sorted(chosen, key=lambda rank: (-caused_ns.get(rank.rank, 0), -rank.partition.exposed_comm_ns))
        numbers = {rank.rank for rank in (*chosen[: DRAWN // 2], *worst[: DRAWN // 2])}
        chosen = [rank for rank in chosen if rank.rank in numbers]
    [step] = {rank.picture.step for rank in chosen}
    subject = f"Step {step}" if step >= 0 else "The window (no step is marked)"
    names = formatting.ranks_of(rank.rank for rank in chosen)
    if len(chosen) == len(run.ranks):
        return chosen, f"{subject} on {'every rank' if len(chosen) > 1 else names}."
    other = [rank.rank for rank in run.ranks if rank.picture.boxes and rank.rank not in pictures]
    others = f" {formatting.ranks_of(other).capitalize()} kept another step." if other else ""
    return chosen, f"{subject} on {names}, of {formatting.plural(len(run.ranks), 'rank')}.{others}"


def _waits(run: RunProfile) -> dict[str, Captioned]:
    if run.together is None or run.together.stragglers.method == "none":
        return {}
    stragglers = run.together.stragglers
    by_rank = caused(stragglers)
    captioned: dict[str, Captioned] = {
        "waits": (
            plot_waiting(by_rank, "waiting caused", "No rank was waited for."),
            f"How long the others waited for each rank, by {by_rank.across.split(',')[0]}: a strong row is a rank "
            f"that is always late, a single strong cell a mishap.{drawn_words(by_rank)}",
        )
    }
    # Of a single step there is no course from step to step to be seen.
    if len(stragglers.steps) > 1 and stragglers.wait_by_step_ns:
        own = suffered(stragglers)
        captioned["suffered"] = (
            plot_waiting(own, "waiting suffered", "No rank waited."),
            "How long each rank itself waited, step by step: a faint row among strong ones is the rank that the "
            f"others wait for.{drawn_words(own)}",
        )
    return captioned


def _paths(run: RunProfile) -> dict[str, Captioned]:
    own = [Bar(f"rank {rank.rank}", dict(rank.path.totals), sum(rank.path.totals.values())) for rank in run.ranks]
    caption = (
        "What each rank's own critical path consists of: shortening work on it shortens the rank's window by at most "
        "as much; shortening other work gains nothing."
    )
    captioned: dict[str, Captioned] = {"paths": (plot_path(own), caption)}
    path = None if run.together is None else run.together.path
    if path is None or not path.totals:
        return captioned
    length = path.end_ns - path.start_ns
    bars = [Bar("the whole path", path.by_kind, length)]
    # One bar less than fit under each other: the first is the whole path's.
    best = sorted(path.totals.items(), key=lambda item: -sum(item[1].values()))[: BARS - 1]
    bars += [Bar(f"on rank {rank}", dict(row), length) for rank, row in best]
    caption = (
        f"The critical path of the run ({formatting.duration(length)}): back from the end of the last rank, and at "
        "each collective that held it to the rank that arrived last."
    )
    if path.bound_by:
        rank, kind = path.bound_by
        labels = {look.key: look.label for look in PATH_LOOKS}
        caption += f" It is bound most by rank {rank}: {labels.get(kind, kind)}."
    captioned["run-path"] = (plot_path(bars), caption)
    return captioned


CAUSES = {look.key: look.label for look in IDLE_LOOKS}
LEVELS = {"range": "range or operator", "call": "runtime call"}


def waits_table(run: RunProfile) -> ShownTable:
    """Return the ranks that the others wait for, worst first."""
    ranks = () if run.together is None else run.together.stragglers.ranks[:MOST_ROWS]
    rows = [
        {
            **as_row(row),
            "name": f"rank {row.rank}",
            "own": row.suffered_ns if row.suffered_by_start_ns is None else row.suffered_by_start_ns,
        }
        for row in ranks
    ]
    fields = (
        Field("Rank", column("name")),
        times("Waiting caused", "caused_ns", hint="What the others waited for it in all"),
        times("Of that alone", "alone_ns", hint="Its start after the last but one: what its lateness alone cost"),
        numeric("Arrived last", "times_last", formatting.count),
        numeric("Of", "matched", formatting.count, hint="Matched communications it takes part in"),
        times("Waited itself", "own"),
        numeric(
            "Led",
            "steps_led",
            formatting.count,
            hint="Steps (or, within one step, communications) in which it caused most",
        ),
    )
    caption = "Who is waited for, and who waits: sums over matched communications."
    if run.together is not None and run.together.stragglers.within_clock_error is not None:
        caption += " Which rank comes first is within clock error."
    return shown_table("waits-table", caption, rows, fields, sortable=True)


def late_table(run: RunProfile, count: int = 12) -> ShownTable:
    """Return the communications in which most waiting was caused."""
    late = () if run.together is None else run.together.stragglers.late
    rows = [
        {**as_row(row), "name": row.op or "communication", "at": None if row.step < 0 else row.step}
        for row in sorted(late, key=lambda row: -row.waited_ns)[:count]
    ]
    fields = (
        Field("Communication", column("name")),
        Field("Group", column("group", lambda value: formatting.clean(value, 60) if value else "not named")),
        numeric("Step", "at", formatting.count),
        numeric("Number", "order", lambda value: formatting.count(int(value) + 1)),
        Field("Last to arrive", lambda row: f"rank {row['rank']}" if row["clear"] else "within clock error"),
        times("Later than the next", "alone_ns"),
        times("Waited by the others", "waited_ns"),
    )
    caption = "The communications in which ranks waited most."
    return shown_table("late-table", caption, (row for row in rows if row["waited_ns"]), fields)


def path_table(run: RunProfile) -> ShownTable:
    """Return the names with most time on the ranks' own critical paths."""
    total: dict[tuple[str, str], int] = {}
    for rank in run.ranks:
        for kind, name, ns in rank.path.top:
            total[kind, name] = total.get((kind, name), 0) + ns
    steps = per_step(run.ranks)
    best = sorted(total.items(), key=lambda item: -item[1])[:15]
    rows = [{"kind": kind, "name": name or "(nothing recorded)", "ns": ns / steps} for (kind, name), ns in best]
    fields = (
        Field("Name", column("name", lambda value: formatting.clean(value, 200))),
        Field("Kind", column("kind")),
        times(run.per.capitalize(), "ns"),
    )
    caption = "What the ranks' own critical paths lead through, the longest first."
    return shown_table("path-table", caption, rows, fields)


def turns_table(run: RunProfile, count: int = 12) -> ShownTable:
    """Return the communications at which the run's critical path goes from one rank to another."""
    turns = () if run.together is None or run.together.path is None else run.together.path.turns
    longest = sorted((turn for turn in turns if turn.waited_ns), key=lambda turn: -turn.waited_ns)[:count]
    matched = None if run.together is None else run.together.matched
    rows = []
    for turn in longest:
        name = "communication"
        if matched is not None and 0 <= turn.key < len(matched):
            step = int(matched.step[turn.key])
            name = f"{OPS[int(matched.op[turn.key])] or name}{f', step {step}' if step >= 0 else ''}"
        rows.append({**as_row(turn), "name": name})
    fields = (
        Field("Communication", column("name")),
        Field("Waiting", lambda row: f"rank {row['rank']}"),
        Field("Waited for", lambda row: f"rank {row['last_rank']}"),
        times("Waited", "waited_ns"),
        times("Transfer", "transfer_ns"),
    )
    return shown_table("turns-table", "Where the path turns to the rank that arrived last.", rows, fields)


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
        times(run.per.capitalize(), "ns"),
        shares("Of idle time", "share"),
    )
    return shown_table("idle-table", "Idle time by cause, over all ranks.", rows, fields)


def meanwhile_table(run: RunProfile, count: int = 15) -> ShownTable:
    """Return what the launching threads did while devices waited for them."""
    total: dict[tuple[str, str], int] = {}
    for rank in run.ranks:
        for row in rank.idle.meanwhile:
            total[row.level, row.name] = total.get((row.level, row.name), 0) + row.ns
    steps = per_step(run.ranks)
    best = sorted(total.items(), key=lambda item: -item[1])[:count]
    rows = [
        {"name": name or f"(no {LEVELS.get(level, level)})", "level": LEVELS.get(level, level), "ns": ns / steps}
        for (level, name), ns in best
    ]
    fields = (
        Field("Name", column("name", lambda value: formatting.clean(value, 160))),
        Field("What it is", column("level")),
        times(run.per.capitalize(), "ns"),
    )
    caption = (
        "What the launching threads did while devices waited for them. The same time counts once among ranges and "
        "operators and once among runtime calls."
    )
    return shown_table("meanwhile-table", caption, rows, fields)


def launches_table(run: RunProfile, count: int = 64) -> ShownTable:
    """Return how each rank's launches went."""
    rows = [{"name": f"rank {rank.rank}", **rank.idle.launches.to_dict()} for rank in run.ranks[:count]]
    fields = (
        Field("Rank", column("name")),
        numeric("Device spans", "spans", formatting.count),
        numeric("Unlinked", "unlinked", formatting.count, hint="Without a launch record"),
        times("Delay, median", "delay_p50_ns", hint="From the launch call to the start on the device"),
        times("Delay, 95 %", "delay_p95_ns"),
        numeric("Queue, mean", "queue_mean", formatting.digits, hint="Launched but not begun"),
        numeric("Kernels < 10 µs", "short_kernels", formatting.count),
        numeric("Calls > 50 µs", "slow_calls", formatting.count, minor=True),
    )
    more = f" The first {count} of {len(run.ranks)}." if len(run.ranks) > count else ""
    return shown_table("launches-table", f"Launches, rank by rank.{more}", rows, fields, sortable=True)


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
            # The rate is of all bytes over all time, so the times that the ranks' rates stand for are added.
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
        numeric("Copies", "count", formatting.count),
        numeric("Volume", "moved", formatting.volume),
        numeric("GB/s", "rate", formatting.digits, hint="Bytes over the copies' own durations"),
        shares("Hidden", "hidden", hint="Share behind compute"),
        times(f"Exposed {run.per}", "exposed"),
        shares("Pageable", "pageable_pct", hint="Copies from or to memory that is not pinned"),
    )
    rows.sort(key=lambda row: -row["exposed"])
    return shown_table("copies-table", "Copies and fills by direction, over all ranks.", rows, fields, sortable=True)


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
    share = formatting.percent(100 * idle / total if total else 0.0)
    return (
        f"Hosts spent {formatting.duration(total / steps)} {run.per} fetching the next batch; during "
        f"{formatting.duration(idle / steps)} of it ({share}) the device stood idle."
    )


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
    more = f" The first {MOST_STEPS} of {len(table)}." * (len(table) > MOST_STEPS)
    return shown_table("steps-table", f"Step by step, the mean over ranks.{more}", rows, fields, sortable=True)


def spread_table(run: RunProfile, count: int = 10) -> ShownTable:
    """Return the steps in which the ranks' times differ most."""
    widest = sorted((row for row in run.spread if row.spread), key=lambda row: -(row.spread or 0))[:count]
    rows = [{**as_row(row), "over": 100 * (row.spread or 0), "name": f"step {row.number}"} for row in widest]
    fields = (
        Field("Step", column("name")),
        times("Median rank", "median_ns"),
        times("Slowest rank", "max_ns"),
        shares("Slower by", "over"),
        Field("Which", lambda row: f"rank {row['slowest_rank']}"),
        numeric("Ranks", "ranks", formatting.count),
    )
    caption = (
        "The steps whose times differ most between ranks. A collective at the end of a step makes all ranks equally "
        "slow: a small difference is not proof that none lags."
    )
    return shown_table("spread-table", caption, rows, fields)


def changes_section(baseline: Comparison) -> Section:
    """Return what changed: sentences, and the table."""
    # What the runs differ in besides stands before the verdict.
    first = [note for note in baseline.notes if note.code.startswith("other-")]
    rest = [note for note in baseline.notes if note not in first]

    def said(notes: list[Note]) -> list[str]:
        return [formatting.sentence(note.message) for note in notes]

    tables = [page_table("changes-table", baseline.listing)]
    if baseline.items:
        tables.append(page_table("changed-items-table", baseline.items_listing))
    return Section(
        "changes", "What changed", (*prose(*said(first), verdict(baseline), *said(rest)), *tables), short="Changes"
    )


def verdict(baseline: Comparison) -> str:
    """Return whether a step takes longer than in the baseline, in one sentence.

    Examples
    --------
    >>> from densing.efficiency.profile.comparison import RunSteps, compare
    >>> runs = [RunSteps(tuple(range(8)), {"step_ns": tuple(mean + d for d in (0, 2, 1, 3, 2, 0, 1, 3))})
    ...         for mean in (100.0, 150.0)]
    >>> verdict(compare(*runs)).split(":")[0]
    'A step is slower than in the baseline'
    """
    # The step time leads: the other figures may shift between themselves while a step takes as long.
    step = next(change for change in baseline.changes if change.metric == "step_ns")
    counted = f"{baseline.steps[1]} steps against {baseline.steps[0]}"
    if step.verdict == "too few steps":
        return f"Too few steps to tell a change from noise ({counted})."
    level, change = formatting.percentage(baseline.level), formatting.signed_duration(step.difference)
    ratio = "" if step.ratio is None else f", {step.ratio:.3f} of the baseline"
    difference = f"{change}{ratio} ({step.interval}, {level} interval; p = {step.p:.2g}; {counted})."
    if step.verdict == "no change beyond noise":
        seen = (
            ""
            if step.detectable is None
            else (f" A factor of {step.detectable:.3g} or more, either way, would be seen in 8 of 10 such comparisons.")
        )
        return f"The step time has not changed beyond noise: {difference}{seen}"
    return f"A step is {step.verdict} than in the baseline: {difference}"


def utilisation_words(utilisation: RunUtilisation) -> list[str]:
    """Return what to say of a run's utilisation, a sentence each; why there is none where the peak is unknown."""
    if utilisation.model is None:
        return [
            formatting.sentence(f"model FLOPs utilisation is unknown: {note.message}") for note in utilisation.notes
        ]
    flops, peak = utilisation.model.flops, utilisation.model.peak
    figure = f"Model FLOPs utilisation is {utilisation.model.percent:.2f} %"
    if utilisation.hardware is not None:
        figure += f", hardware FLOPs utilisation {utilisation.hardware.percent:.2f} %"
    recalled = ", recalled" if peak.recalled else ""
    return [
        f"{figure}.",
        f"Formula {flops.formula} ({flops.equation}; {flops.source}), {utilisation.model.devices} devices of "
        f"{peak.flops / 1e12:g} TFLOP/s dense ({peak.device}, {peak.dtype}; {peak.source}{recalled}).",
        *(formatting.sentence(note.message) for note in utilisation.notes),
    ]


DEFINITIONS = (
    ("Window", "What is counted: steps, from the start of the first to the end of the last step that the host marked "
     "(ProfilerStep); all, from the first to the last work; hta, work launched before the last step began."),
    ("Partition", "With K, C and M the unions of compute, communication and memory work, the window W splits into "
     "|K| + |C \\ K| + |M \\ (K ∪ C)| + idle = |W|: compute, exposed communication, exposed copies, idle. Lengths are "
     "of unions, never sums of durations. (As in AMD TraceLens.)"),
    ("Hidden communication", "Overlap ratio |C ∩ K| / |C| (as in Holistic Trace Analysis and torch_tb_profiler); its "
     "ceiling is min(|C|, |K|) / |C|. Over ranks and steps, lengths add up before they are divided. The one definition "
     "of hidden on this page, of kinds of communication too; not told where most of it lies beyond the window."),
    ("Recoverable", "The part of a cost that lies on the critical path; for waiting, what the run would gain if every "
     "rank's own work were at the mean. A ceiling: removing one cause may expose the next. Causes come in its order."),
    ("Per step", "Sums over all ranks divided by the number of all ranks' steps; per window where no step is marked."),
    ("Waiting and transfer", "Of one collective, transfer is the shortest duration over its ranks and a rank's wait is "
     "its own duration less that (torch_tb_profiler, TraceLens); on comparable clocks, a rank waits from its own start "
     "to the latest start (OSDI'25, arXiv 2505.05713)."),
    ("Bandwidth", "algbw = S / t and busbw = algbw × f, f = 2(n−1)/n for all-reduce, (n−1)/n for all-gather, "
     "reduce-scatter and all-to-all, 1 for broadcast and reduce; factors recalled from nccl-tests, not re-read. "
     "t holds the wait for other ranks, so these are lower bounds. 1 GB is 10⁹ bytes."),
    ("Clocks", "A rank's offset is the median difference of the ends of matched collectives; the residual is the "
     "median distance of single collectives from it. A constant error repeats in every step, so a rank is named as the "
     "one waited for only where it stays that with every clock off, against it, by the upper confidence limit of the "
     "residual; else who it is lies within clock error, and no probability is given."),
    ("Idle", "Nothing runs on the device. The cause is told by the work that ends the gap and the call that launched "
     "it: launched too late, launched but not begun, waiting for communication."),
    ("Critical path", "The chain of work and waits that ends with the window, followed back along launches, streams, "
     "synchronisations and, between ranks, collectives. What is not on it costs nothing."),
    ("Delays of the ranks", "What a rank takes for a step, less communication that nothing hides and marked waits, is "
     "its work and a delay beyond it. Shifted exponential and Pareto delays, drawn anew in every step (iid) or kept "
     "for the run (persistent), are fitted by likelihood and compared by Schwarz's criterion."),
    ("Slowdown by uneven ranks", "Length of the run replayed as recorded over its length with every rank's local work "
     "at the mean over ranks and transfers at their median (after OSDI'25)."),
)  # fmt: skip
