"""The report of a profiled run: headline, causes, figures, what changed and what the training bought."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go

from densing import __version__
from densing.core import words, write_text
from densing.efficiency.profile import SHOWN, all_step_times, pooled
from densing.efficiency.timeline import NO_DEVICE_WORK, Partition
from densing.plots import (
    BARS,
    PATH_LOOKS,
    Bar,
    arrange,
    caused,
    drawn_words,
    plot_idle,
    plot_partition,
    plot_path,
    plot_rank_strip,
    plot_step_times,
    plot_steps,
    plot_timeline,
    plot_waiting,
    same_step,
    suffered,
)
from densing.report import page
from densing.report import profile_tables as tables
from densing.report.parts import (
    Field,
    Headline,
    ShownFigure,
    ShownTable,
    column,
    first_notes,
    pairs,
    record,
    records_frame,
    shown,
    shown_figure,
    times,
)

if TYPE_CHECKING:
    from densing.efficiency.profile import (
        Change,
        Comparison,
        RankProfile,
        RunProfile,
        RunUtilisation,
    )
    from densing.tradeoff import DensityCost


SECTIONS = (
    ("headline", "Headline"),
    ("causes", "Causes"),
    ("partition", "Ranks"),
    ("timeline", "Timeline"),
    ("collectives", "Collectives"),
    ("stragglers", "Stragglers"),
    ("idle", "Idle"),
    ("path", "Critical path"),
    ("steps", "Steps"),
    ("copies", "Copies"),
    ("changes", "Changes"),
    ("density", "Density"),
    ("notes", "Notes"),
    ("definitions", "Definitions"),
    ("versions", "Versions"),
)
MOST_SOURCES = 200
DRAWN = 16
"""Ranks in the figure of one step."""
Captioned = tuple[go.Figure, str]


def build_profile_report(
    run: RunProfile,
    path: Path | str,
    *,
    baseline: Comparison | None = None,
    density: DensityCost | None = None,
    utilisation: RunUtilisation | None = None,
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
    density : DensityCost, optional
        Density of the model that the run trains, with the device hours of its training.
    utilisation : RunUtilisation, optional
        Model and hardware FLOPs utilisation.

    Returns
    -------
    pathlib.Path
        The file.

    Raises
    ------
    densing.core.errors.InputError
        When the file cannot be written.
    """
    target = Path(path)
    write_text(target, render(run, baseline=baseline, density=density, utilisation=utilisation))
    return target


def render(
    run: RunProfile,
    *,
    baseline: Comparison | None = None,
    density: DensityCost | None = None,
    utilisation: RunUtilisation | None = None,
) -> str:
    """Return the page as text."""
    optional = {"changes": baseline, "density": density}
    if density is not None and density.partition is None:
        density = replace(density, partition=pooled([rank.partition for rank in run.ranks]))
    context = {
        "headline": headline(run),
        "sections": [entry for entry in SECTIONS if optional.get(entry[0], entry) is not None],
        "worst": worst(run),
        "utilisation": [] if utilisation is None else utilisation_words(utilisation),
        "figures": figures(run),
        "causes": tables.causes_table(run),
        "ranks": tables.ranks_table(run),
        "names": tables.names_table(run, "names", "What took longest, by name, over all ranks."),
        "clock_sentence": clock_words(run),
        "collectives": tables.collectives_table(run),
        "straggler_sentences": straggler_words(run),
        "waits": tables.waits_table(run),
        "late": tables.late_table(run),
        "idle": tables.idle_table(run),
        "meanwhile": tables.meanwhile_table(run),
        "gaps": tables.gaps_table(run),
        "launches": tables.launches_table(run),
        "turns": tables.turns_table(run),
        "path": tables.path_table(run),
        "has_steps": len({step.number for rank in run.ranks for step in rank.steps}),
        "step_rows": tables.steps_table(run),
        "spread": tables.spread_table(run),
        "copies": tables.copies_table(run),
        "loading_sentence": tables.loading_words(run),
        "comparison": None if baseline is None else changes(baseline),
        "density_sentences": [] if density is None else density.sentences(),
        **first_notes(run.notes),
        "unrecognised": tables.names_table(run, "unrecognised", UNRECOGNISED),
        "definitions": DEFINITIONS,
        "versions": pairs({"densing": __version__, "python": platform.python_version(), "numpy": np.__version__}),
        "options": pairs(run.options),
        "sources": sources(run),
    }
    # Bytes in a file's name that are no text are written out.
    return page.fill("profile.html", context, "profile.css").encode("utf-8", "backslashreplace").decode()


UNRECOGNISED = (
    "Kernels among them count as compute by default, other device work counts as nothing. If some of it is "
    "communication, name it with --comm-pattern; densing profile --explain NAME says which rule a name meets."
)


def worst(run: RunProfile) -> list[tuple[str, str, str]]:
    """Return the worst causes: cost, what it is, what usually helps."""
    return [
        (
            f"{words.milliseconds(cause.ms_per_step)} {per(run)} ({words.percent(cause.share_pct)})",
            words.clean(cause.message, 600),
            words.clean(cause.remedy, 600),
        )
        for cause in run.causes[:SHOWN]
    ]


def sources(run: RunProfile) -> list[tuple[str, str]]:
    """Return which file each rank was read from, and how its rank was known."""
    rows = [
        (f"rank {rank.rank}", f"{words.clean(rank.source, 300)} (rank from {rank.rank_from}; {rank.events} events)")
        for rank in run.ranks[:MOST_SOURCES]
    ]
    rest = len(run.ranks) - MOST_SOURCES
    return [*rows, ("…", f"{rest} more")] if rest > 0 else rows


WINDOWS = {
    "steps": "from the start of the first to the end of the last marked step",
    "all": "from the first to the last recorded work",
    "hta": "work launched before the last step began, as Holistic Trace Analysis counts",
}


def headline(run: RunProfile) -> Headline:
    """Put a run's profile in words; every caveat that holds for it comes with it."""
    whole = pooled([rank.partition for rank in run.ranks])
    return Headline(title(run, whole), lead(run, whole), facts(run), caveats(run, whole))


def per(run: RunProfile) -> str:
    """Return what times are given per: a step, or a rank's window where no step is marked."""
    return "per step" if run.figures["steps"] else "per rank"


def device(run: RunProfile) -> str:
    """Return what did the work."""
    return "processors" if all(rank.on_host for rank in run.ranks) else "devices"


def title(run: RunProfile, whole: Partition) -> str:
    """Return the headline itself: the largest cost, of which most can be won.

    Examples
    --------
    >>> from types import SimpleNamespace as Space
    >>> cause = Space(share_pct=91.2, ms_per_step=45.1, title="devices wait for the host")
    >>> run = Space(figures={"steps": 4}, ranks=(), causes=(cause,))
    >>> title(run, Partition(100, 90, 50, 40, 0, 20, 20, 5, 25))
    '91.2 % of the time, 45.1 ms per step, is lost: devices wait for the host'
    """
    if not whole.window_ns:
        if any(note.code == NO_DEVICE_WORK for note in run.notes):
            return "Nothing can be said of the time: the work of the devices was not recorded"
        return "There is no work in these traces"
    if run.causes:
        first = run.causes[0]
        lost = f"{words.percent(first.share_pct)} of the time, {words.milliseconds(first.ms_per_step)} {per(run)}"
        return words.clean(f"{lost}, is lost: {first.title}", 200)
    without = "" if whole.comm_ns else " and no communication was recorded"
    return f"Nothing is lost{without}: the {device(run)} computed {_share(whole.compute_ns, whole)} of the time"


def _share(part: int, whole: Partition) -> str:
    return words.percent(100 * part / whole.window_ns) if whole.window_ns else words.MISSING


def lead(run: RunProfile, whole: Partition) -> str:
    """Return the sentences that say what was measured, on what, and how the time splits."""
    if not whole.window_ns:
        return (
            f"No kernel, copy or communication of {_counted(run)} lies in the window {run.window} "
            f"({WINDOWS.get(run.window, 'as named')}). Were the right activities recorded, and is the window right?"
        )
    prose = (
        f"Over {_counted(run)} (window {run.window}: {WINDOWS.get(run.window, 'as named')}), the {device(run)} "
        f"computed {_share(whole.compute_ns, whole)} of the time, communicated without computing "
        f"{_share(whole.exposed_comm_ns, whole)}, only copied {_share(whole.exposed_memcpy_ns, whole)} and did nothing "
        f"{_share(whole.idle_ns, whole)}."
    )
    if not whole.comm_ns:
        prose += " No communication was recorded."
    else:
        hidden = run.figures["overlap_pct"]
        if hidden is None:
            prose += " What share of the communication was hidden is not told, most of it lies beyond the window;"
        else:
            prose += f" {words.percent(hidden)} of the communication was hidden;"
        prose += f" {words.milliseconds(run.figures['exposed_ms_per_step'])} {per(run)} were exposed."
    ceiling = whole.achievable_pct
    if ceiling is not None and ceiling < 100:
        prose += " There is too little compute to hide all of the communication: "
        prose += f"at most {words.percent(ceiling)} of it could be."
    return prose


def _counted(run: RunProfile) -> str:
    """Return how many steps of how many ranks were measured."""
    ranks = words.plural(len(run.ranks), "rank")
    each = {len(rank.steps) for rank in run.ranks}
    if each == {0}:
        return ranks
    if len(each) == 1:
        steps = words.plural(each.pop(), "step")
        return f"{steps} on each of {ranks}" if len(run.ranks) > 1 else f"{steps} of one rank"
    return f"{min(each)} to {max(each)} steps on each of {ranks}"


def facts(run: RunProfile) -> tuple[tuple[str, str], ...]:
    """Return the key figures, as term and value."""
    figures = run.figures
    if not figures["step_ms"]:
        return (("Window", run.window), ("Ranks", _ranks(run)), ("Hardware", _hardware(run)))
    exposed, idle = (
        f"{words.milliseconds(figures[f'{key}_ms_per_step'])} {per(run)} ({words.percent(figures[f'{key}_pct'])})"
        for key in ("exposed", "idle")
    )
    slowdown = figures.get("slowdown")
    rows = [
        ("Window", run.window),
        ("Step time, median" if figures["steps"] else "Window, mean", words.milliseconds(figures["step_ms"])),
        ("Exposed communication", exposed),
        ("Idle", idle),
        ("Hidden communication", words.percent(figures["overlap_pct"])),
        ("Slowdown by uneven ranks", f"{slowdown:.3f}×" if isinstance(slowdown, int | float) else words.MISSING),
        ("Ranks", _ranks(run)),
        ("Hardware", _hardware(run)),
    ]
    return tuple((term, value) for term, value in rows if value != words.MISSING)


def _ranks(run: RunProfile) -> str:
    return f"{len(run.ranks)} of {run.world_size}" if run.world_size > len(run.ranks) else str(len(run.ranks))


def _hardware(run: RunProfile) -> str:
    if run.devices:
        return words.clean(", ".join(run.devices), 80)
    backends = dict.fromkeys(rank.backend for rank in run.ranks if rank.backend)
    where = "processors, no accelerator" if all(rank.on_host for rank in run.ranks) else "not named in the traces"
    return words.clean(f"{where} ({', '.join(backends)})" if backends else where, 80)


def caveats(run: RunProfile, whole: Partition) -> tuple[str, ...]:
    """Return what the reader must know before quoting the figures."""
    sentences = [note.message for note in run.notes if note.code == NO_DEVICE_WORK]
    if run.world_size > len(run.ranks):
        known = words.ranks_of(rank.rank for rank in run.ranks)
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
    ignored = sum(row.total_ns for rank in run.ranks for row in rank.unrecognised if row.kind == "unknown")
    if ignored:
        sentences.append(
            f"{words.duration(ignored)} of device work is of kinds that no rule knows and counts as nothing (see the "
            "names)."
        )
    if whole.exposed_comm_ns:
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
    residual = words.duration(max(clocks.residual_ns.values(), default=0))
    if clocks.verdict == "agree":
        return f"The ranks' clocks agree (to {residual}, by the ends of matched collectives); times stand as recorded."
    offset = words.duration(max(abs(value) for value in clocks.offset_ns.values()))
    return (
        f"The clocks were aligned on the ends of matched collectives: offsets of up to {offset} were taken out, "
        f"{residual} remain uncertain."
    )


def straggler_words(run: RunProfile) -> list[str]:
    """Say who is waited for, a sentence each; why nothing can be told where nothing can."""
    if run.together is None:
        return ["One rank was profiled, so nothing tells who waits for whom: profile all ranks of the run."]
    stragglers = run.together.stragglers
    if stragglers.method == "none" or stragglers.worst is None:
        notes = [words.sentence(note.message) for note in stragglers.notes]
        return notes or ["No rank was waited for."]
    by_start = stragglers.method == "starts"
    worst = next(row for row in stragglers.ranks if row.rank == stragglers.worst)
    how = "arrivals on a common clock" if by_start else "durations: the shortest call arrived last"
    sentences = [
        f"Rank {worst.rank} is waited for most: it arrived last {worst.times_last} times of {worst.matched} and the "
        f"others waited {words.duration(worst.caused_ns)} in all for it, told by {how}."
    ]
    if stragglers.often:
        chance = (
            ""
            if stragglers.chance is None
            else "; if all ranks were equally likely, some rank would lead as often with "
            + words.p_value(stragglers.chance)
        )
        against = ", with the clocks in error against it" if by_start else ""
        sentences.append(f"It leads {stragglers.often}{against}{chance}.")
    else:
        sentences.append("In no single step do the others wait for it longest.")
    even = run.together.what_if
    if even.slowdown is not None:
        replay = "Replayed with every rank's own work at the mean of the ranks, and transfers at their median, the run"
        if even.slowdown <= 1:
            sentences.append(f"{replay} would not be faster: its ranks are even.")
        else:
            share = ""
            if even.worst is not None and even.worst_explains is not None:
                share = f"; rank {even.worst} alone explains {words.percent(100 * even.worst_explains)} of that"
            sentences.append(f"{replay} would be {even.slowdown:.3f} times as fast{share}.")
    return sentences


def figures(run: RunProfile) -> dict[str, ShownFigure]:
    """Return every figure of a profile by name."""
    parts = {rank.rank: rank.partition for rank in run.ranks}
    windows = {rank: part.window_ns for rank, part in parts.items()}
    idle, whole = sum(rank.idle.idle_ns for rank in run.ranks), sum(windows.values())
    share = f"; over all ranks {words.percent(100 * idle / whole)}" if whole else ""
    captioned: dict[str, Captioned] = {
        "partition": (plot_partition(parts), _partition_words(parts)),
        "timeline": _timeline(run),
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
            _step_times_words(run),
        ),
    }
    if len(run.ranks) > BARS:
        captioned["rank-strip"] = (
            plot_rank_strip(parts),
            "The same in order of rank, stronger for more: neighbours often share a machine, so a stripe names one.",
        )
    return {name: shown_figure(name, figure, caption) for name, (figure, caption) in captioned.items()}


def _partition_words(parts: Mapping[int, Partition]) -> str:
    shares = [100 * part.exposed_comm_ns / part.window_ns for part in parts.values() if part.window_ns]
    caption = (
        "Each rank's window: compute (hatched where communication runs under it, hidden), exposed communication, "
        "exposed copies and idle time add up to 100 %."
    )
    if len(shares) > 1 and max(shares) > min(shares):
        best, worst = words.percent(min(shares)), words.percent(max(shares))
        caption += f" Exposed communication is {best} on the best rank, {worst} on the worst."
    return caption


def _timeline(run: RunProfile) -> Captioned:
    ranks, caption = chosen_pictures(run)
    clocks = None if run.together is None else run.together.clocks
    offsets = clocks.offset_ns if clocks is not None and clocks.comparable else None
    drawing = arrange({rank.rank: rank.picture for rank in ranks}, offsets)
    if drawing.ranks:
        caption += (
            " Within a rank, top to bottom: compute, communication (what no compute covers laid over it), copies and "
            "fills, all streams together."
        )
    if drawing.pixel_ns:
        caption += f" Work closer than {words.duration(drawing.pixel_ns)} is drawn as one box."
    return plot_timeline(drawing), caption


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
        worst = sorted(chosen, key=lambda rank: (-caused_ns.get(rank.rank, 0), -rank.partition.exposed_comm_ns))
        numbers = {rank.rank for rank in (*chosen[: DRAWN // 2], *worst[: DRAWN // 2])}
        chosen = [rank for rank in chosen if rank.rank in numbers]
    [step] = {rank.picture.step for rank in chosen}
    subject = f"Step {step}" if step >= 0 else "The window (no step is marked)"
    names = words.ranks_of(rank.rank for rank in chosen)
    if len(chosen) == len(run.ranks):
        return chosen, f"{subject} on {'every rank' if len(chosen) > 1 else names}."
    other = [rank.rank for rank in run.ranks if rank.picture.boxes and rank.rank not in pictures]
    rest = f" {words.ranks_of(other).capitalize()} kept another step." if other else ""
    return chosen, f"{subject} on {names}, of {words.plural(len(run.ranks), 'rank')}.{rest}"


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
    whole = path.end_ns - path.start_ns
    bars = [Bar("the whole path", path.by_kind, whole)]
    best = sorted(path.totals.items(), key=lambda item: -sum(item[1].values()))[: BARS - 1]
    bars += [Bar(f"on rank {rank}", dict(row), whole) for rank, row in best]
    caption = (
        f"The critical path of the run ({words.duration(whole)}): back from the end of the last rank, and at each "
        "collective that held it to the rank that arrived last."
    )
    if path.bound_by:
        rank, kind = path.bound_by
        labels = {look.key: look.label for look in PATH_LOOKS}
        caption += f" It is bound most by rank {rank}: {labels.get(kind, kind)}."
    captioned["run-path"] = (plot_path(bars), caption)
    return captioned


def _step_times_words(run: RunProfile) -> str:
    spread = all_step_times(run.ranks)
    if spread.count <= 1:
        return "Step times."
    caption = (
        f"Step times of all ranks: median {words.duration(spread.median_ns)}, from {words.duration(spread.min_ns)} "
        f"to {words.duration(spread.max_ns)}."
    )
    if spread.p95_over_median is not None:
        caption += f" The 95 % point is {spread.p95_over_median:.2f} times the median."
    return caption


_NAMES = {
    "step_ns": "step time",
    "compute_ns": "compute",
    "comm_ns": "communication",
    "overlap_ns": "hidden communication",
    "exposed_comm_ns": "exposed communication",
    "memcpy_ns": "copies",
    "exposed_memcpy_ns": "exposed copies",
    "idle_ns": "idle",
}


@dataclass(frozen=True)
class Changes:
    """The section on what changed: sentences, and the table."""

    sentences: tuple[str, ...]
    table: ShownTable


def changes(baseline: Comparison) -> Changes:
    """Put a comparison in words."""
    notes = tuple(words.sentence(note.message) for note in baseline.notes)
    return Changes((verdict(baseline), *notes), _table(baseline))


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
    step = next(change for change in baseline.changes if change.metric == "step_ns")
    counted = f"{baseline.steps[1]} steps against {baseline.steps[0]}"
    if step.verdict == "too few steps":
        return f"Too few steps to tell a change from noise ({counted})."
    difference = (
        f"{_signed(step.difference)} ({_interval(step)}, {words.percentage(baseline.level)} interval; {counted})."
    )
    if step.verdict == "no change beyond noise":
        return f"The step time has not changed beyond noise: {difference}"
    return f"A step is {step.verdict} than in the baseline: {difference}"


def _table(baseline: Comparison) -> ShownTable:
    rows = [
        {**record(change), "name": _NAMES.get(change.metric, change.metric), "interval": _interval(change)}
        for change in baseline.changes
    ]
    fields = (
        Field("Per step", column("name")),
        times("Baseline", "base"),
        times("This run", "other"),
        Field("Change", column("difference", _signed), "difference"),
        Field("Interval", column("interval")),
        Field(
            "Ratio",
            column("ratio", lambda value: words.MISSING if words.is_missing(value) else f"{value:.3f}"),
            "ratio",
        ),
        Field("Verdict", column("verdict")),
    )
    caption = (
        "Means over steps, each first averaged over the ranks, with bootstrap intervals over steps. How much a second "
        "start of the same job differs is not in the noise."
    )
    return shown("changes-table", caption, records_frame(rows), fields)


def _signed(value: Any) -> str:
    if words.is_missing(value):
        return words.MISSING
    sign = "+" if value > 0 else "−" if value < 0 else ""
    return f"{sign}{words.duration(abs(value))}"


def _interval(change: Change) -> str:
    return words.MISSING if change.low is None else f"{_signed(change.low)} to {_signed(change.high)}"


def utilisation_words(utilisation: RunUtilisation) -> list[str]:
    """Return what to say of a run's utilisation, a sentence each; why there is none where the peak is unknown."""
    if utilisation.model is None:
        return [words.sentence(f"model FLOPs utilisation is unknown: {note.message}") for note in utilisation.notes]
    flops, peak = utilisation.model.flops, utilisation.model.peak
    figure = f"Model FLOPs utilisation is {utilisation.model.percent:.2f} %"
    if utilisation.hardware is not None:
        figure += f", hardware FLOPs utilisation {utilisation.hardware.percent:.2f} %"
    recalled = ", recalled" if peak.recalled else ""
    return [
        f"{figure}.",
        f"Formula {flops.formula} ({flops.equation}; {flops.source}), {utilisation.model.devices} devices of "
        f"{peak.flops / 1e12:g} TFLOP/s dense ({peak.device}, {peak.dtype}; {peak.source}{recalled}).",
        *(words.sentence(note.message) for note in utilisation.notes),
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
    ("Slowdown by uneven ranks", "Length of the run replayed as recorded over its length with every rank's local work "
     "at the mean over ranks and transfers at their median (after OSDI'25)."),
)  # fmt: skip
