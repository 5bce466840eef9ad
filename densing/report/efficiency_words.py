"""The first screen of a profile in plain words: what was hidden, what was exposed, and what to hold against it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from densing.efficiency.profile import pooled
from densing.efficiency.timeline import NO_DEVICE_WORK, Partition
from densing.plots import duration, milliseconds, percent, ranks_of, text
from densing.report.headline import Headline
from densing.report.sections import sentence

if TYPE_CHECKING:
    from densing.efficiency.profile import RecordedWhatIf, RunProfile

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
        lost = f"{percent(first.share_pct)} of the time, {milliseconds(first.ms_per_step)} {per(run)}"
        return text.clean(f"{lost}, is lost: {first.title}", 200)
    without = "" if whole.comm_ns else " and no communication was recorded"
    return f"Nothing is lost{without}: the {device(run)} computed {_share(whole.compute_ns, whole)} of the time"


def _communicated(run: RunProfile, whole: Partition) -> str:
    """Return how much of the communication was hidden and what was exposed."""
    if not whole.comm_ns:
        return " No communication was recorded."
    exposed = f"{milliseconds(run.figures['exposed_ms_per_step'])} {per(run)} were exposed."
    if run.figures["overlap_pct"] is None:
        return f" What share of the communication was hidden is not told, most of it lies beyond the window; {exposed}"
    return f" {percent(run.figures['overlap_pct'])} of the communication was hidden; {exposed}"


def _share(part: int, whole: Partition) -> str:
    return percent(100 * part / whole.window_ns) if whole.window_ns else text.MISSING


def lead(run: RunProfile, whole: Partition) -> str:
    """Return the sentences that say what was measured, on what, and how the time splits."""
    if not whole.window_ns:
        return (
            f"No kernel, copy or communication of {_counted(run)} lies in the window {run.window} "
            f"({WINDOWS.get(run.window, 'as named')}). Were the right activities recorded, and is the window right?"
        )
    words = (
        f"Over {_counted(run)} (window {run.window}: {WINDOWS.get(run.window, 'as named')}), the {device(run)} "
        f"computed {_share(whole.compute_ns, whole)} of the time, communicated without computing "
        f"{_share(whole.exposed_comm_ns, whole)}, only copied {_share(whole.exposed_memcpy_ns, whole)} and did nothing "
        f"{_share(whole.idle_ns, whole)}."
    )
    words += _communicated(run, whole)
    ceiling = whole.achievable_pct
    if ceiling is not None and ceiling < 100:
        words += (
            f" There is too little compute to hide all of the communication: at most {percent(ceiling)} of it could be."
        )
    return words


def _counted(run: RunProfile) -> str:
    """Return how many steps of how many ranks were measured."""
    ranks = text.plural(len(run.ranks), "rank")
    each = {len(rank.steps) for rank in run.ranks}
    if each == {0}:
        return ranks
    if len(each) == 1:
        steps = text.plural(each.pop(), "step")
        return f"{steps} on each of {ranks}" if len(run.ranks) > 1 else f"{steps} of one rank"
    return f"{min(each)} to {max(each)} steps on each of {ranks}"


def facts(run: RunProfile) -> tuple[tuple[str, str], ...]:
    """Return the key figures, as term and value."""
    told = run.figures
    if not told["step_ms"]:
        return (("Window", run.window), ("Ranks", _ranks(run)), ("Hardware", _hardware(run)))
    exposed, idle = (f"{milliseconds(told[f'{key}_ms_per_step'])} {per(run)} ({percent(told[f'{key}_pct'])})"
                     for key in ("exposed", "idle"))  # fmt: skip
    rows = [
        ("Window", run.window),
        ("Step time, median" if told["steps"] else "Window, mean", milliseconds(told["step_ms"])),
        ("Exposed communication", exposed),
        ("Idle", idle),
        ("Hidden communication", percent(told["overlap_pct"])),
        ("Slowdown by uneven ranks", _slowdown(told.get("slowdown"))),
        ("Ranks", _ranks(run)),
        ("Hardware", _hardware(run)),
    ]
    return tuple((term, value) for term, value in rows if value != text.MISSING)


def _slowdown(value: object) -> str:
    return text.MISSING if not isinstance(value, int | float) else f"{value:.3f}×"


def _ranks(run: RunProfile) -> str:
    return f"{len(run.ranks)} of {run.world_size}" if run.world_size > len(run.ranks) else str(len(run.ranks))


def _hardware(run: RunProfile) -> str:
    if run.devices:
        return text.clean(", ".join(run.devices), 80)
    backends = dict.fromkeys(rank.backend for rank in run.ranks if rank.backend)
    where = "processors, no accelerator" if all(rank.on_host for rank in run.ranks) else "not named in the traces"
    return text.clean(f"{where} ({', '.join(backends)})" if backends else where, 80)


def caveats(run: RunProfile, whole: Partition) -> tuple[str, ...]:
    """Return what the reader must know before quoting the figures."""
    found = (
        *(note.message for note in run.notes if note.code == NO_DEVICE_WORK),
        _missing(run),
        _damaged(run),
        _unknown(run),
        EXPOSED if whole.exposed_comm_ns else "",
        HOST if device(run) == "processors" else "",
        _window(run),
    )
    return tuple(words for words in found if words)


EXPOSED = (
    "Exposed is not the same as blocking: time in which a device communicates and computes nothing is the most that "
    "better hiding can gain, not what it will gain."
)
HOST = (
    "These runs had no accelerator: compute is what the processor's operators took outside communication calls, and "
    "waiting for communication leaves no event unless it was marked."
)


def _missing(run: RunProfile) -> str:
    if run.world_size <= len(run.ranks):
        return ""
    known = ranks_of(rank.rank for rank in run.ranks)
    return (
        f"Of {run.world_size} ranks {len(run.ranks)} were profiled ({known}): a rank that is missing here may be the "
        "slow one."
    )


def _damaged(run: RunProfile) -> str:
    skipped, repaired = run.figures["skipped_events"], run.figures["repaired_events"]
    if not skipped and not repaired:
        return ""
    return f"The traces are damaged: {skipped} events were left out, {repaired} were kept after repair (see the notes)."


def _unknown(run: RunProfile) -> str:
    left_out = sum(row.total_ns for rank in run.ranks for row in rank.unrecognised if row.kind == "unknown")
    if not left_out:
        return ""
    return f"{duration(left_out)} of device work is of kinds that no rule knows and counts as nothing (see the names)."


def _window(run: RunProfile) -> str:
    if run.window == "steps":
        return ""
    return (
        "Other windows give other shares; where steps are marked, the window from first to last step is to be quoted."
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
    residual = duration(max(clocks.residual_ns.values(), default=0))
    if clocks.verdict == "agree":
        return f"The ranks' clocks agree (to {residual}, by the ends of matched collectives); times stand as recorded."
    offset = duration(max(abs(value) for value in clocks.offset_ns.values()))
    return (
        f"The clocks were aligned on the ends of matched collectives: offsets of up to {offset} were taken out, "
        f"{residual} remain uncertain."
    )


def straggler_words(run: RunProfile) -> list[str]:
    """Say who is waited for, a sentence each; why nothing can be told where nothing can."""
    if run.together is None:
        return ["One rank was profiled, so nothing tells who waits for whom: profile all ranks of the run."]
    found = run.together.stragglers
    if found.method == "none" or found.worst is None:
        notes = [sentence(note.message) for note in found.notes]
        return notes or ["No rank was waited for."]
    worst = next(row for row in found.ranks if row.rank == found.worst)
    how = "arrivals on a common clock" if found.method == "starts" else "durations: the shortest call arrived last"
    words = [
        f"Rank {worst.rank} is waited for most: it arrived last {worst.times_last} times of {worst.matched} and the "
        f"others waited {duration(worst.caused_ns)} in all for it, told by {how}.",
        f"It leads {found.often}{', with the clocks in error against it' * (found.method == 'starts')}"
        f"{_chance(found.chance)}"
        if found.often
        else "In no single step do the others wait for it longest.",
    ]
    return words + _what_if(run.together.what_if)


def _chance(chance: float | None) -> str:
    if chance is None:
        return "."
    return f"; if all ranks were equally likely, some rank would lead as often with {text.p_value(chance)}."


def _what_if(found: RecordedWhatIf) -> list[str]:
    if found.slowdown is None:
        return []
    replayed = "Replayed with every rank's own work at the mean of the ranks, and transfers at their median, the run"
    if found.slowdown <= 1:
        return [f"{replayed} would not be faster: its ranks are even."]
    words = f"{replayed} would be {found.slowdown:.3f} times as fast"
    if found.worst is not None and found.worst_explains is not None:
        words += f"; rank {found.worst} alone explains {percent(100 * found.worst_explains)} of that"
    return [words + "."]
