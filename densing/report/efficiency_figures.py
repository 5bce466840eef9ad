"""The figures of a profile, each with the sentence that says in words what it shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import plotly.graph_objects as go

from densing.efficiency.profile import all_step_times
from densing.plots import (
    BARS,
    PATH_LOOKS,
    Bar,
    Drawing,
    arrange,
    caused,
    drawn_words,
    duration,
    percent,
    plot_idle,
    plot_partition,
    plot_path,
    plot_rank_strip,
    plot_step_times,
    plot_steps,
    plot_timeline,
    plot_waiting,
    ranks_of,
    same_step,
    suffered,
    text,
)
from densing.report.figures import ShownFigure, shown_figure

if TYPE_CHECKING:
    from densing.efficiency.profile import RankProfile, RunPath, RunProfile

DRAWN = 16
Drawn = tuple[go.Figure, str]


def figures(run: RunProfile) -> dict[str, ShownFigure]:
    """Return every figure of a profile by name."""
    drawn: dict[str, Drawn] = {
        **_partition(run),
        "timeline": _timeline(run),
        **_waits(run),
        "idle": _idle(run),
        **_paths(run),
        "steps": _steps(run),
        "step-times": _step_times(run),
    }
    return {name: shown_figure(name, figure, words) for name, (figure, words) in drawn.items()}


def _partition(run: RunProfile) -> dict[str, Drawn]:
    parts = {rank.rank: rank.partition for rank in run.ranks}
    shares = [100 * part.exposed_comm_ns / part.window_ns for part in parts.values() if part.window_ns]
    words = (
        "Each rank's window: compute (hatched where communication runs under it, hidden), exposed communication, "
        "exposed copies and idle time add up to 100 %."
    )
    if len(shares) > 1 and max(shares) > min(shares):
        words += (
            f" Exposed communication is {percent(min(shares))} on the best rank, {percent(max(shares))} on the worst."
        )
    drawn = {"partition": (plot_partition(parts), words)}
    if len(run.ranks) > BARS:
        strip = "The same in order of rank, stronger for more: neighbours often share a machine, so a stripe names one."
        drawn["rank-strip"] = (plot_rank_strip(parts), strip)
    return drawn


def _timeline(run: RunProfile) -> Drawn:
    chosen, words = chosen_pictures(run)
    clocks = None if run.together is None else run.together.clocks
    offsets = clocks.offset_ns if clocks is not None and clocks.comparable else None
    drawing = arrange({rank.rank: rank.picture for rank in chosen}, offsets)
    return plot_timeline(drawing), f"{words} {_rows_words(drawing)}".strip()


def chosen_pictures(run: RunProfile) -> tuple[list[RankProfile], str]:
    """Return the ranks whose step is drawn, and which they are in words.

    Of more than :data:`DRAWN` ranks with a picture, the first half and the half that is waited for most (or, where
    nobody knows, exposes most communication).
    """
    pictures = same_step({rank.rank: rank.picture for rank in run.ranks})
    held = [rank for rank in run.ranks if rank.rank in pictures]
    if not held:
        return [], "No rank's step is there to be drawn."
    chosen = held if len(held) <= DRAWN else _first_and_worst(run, held)
    [step] = {rank.picture.step for rank in chosen}
    what = f"Step {step}" if step >= 0 else "The window (no step is marked)"
    names = ranks_of(rank.rank for rank in chosen)
    if len(chosen) == len(run.ranks):
        return chosen, f"{what} on {'every rank' if len(chosen) > 1 else names}."
    other = [rank.rank for rank in run.ranks if rank.picture.boxes and rank.rank not in pictures]
    why = f" {ranks_of(other).capitalize()} kept another step." if other else ""
    return chosen, f"{what} on {names}, of {text.plural(len(run.ranks), 'rank')}.{why}"


def _first_and_worst(run: RunProfile, held: list[RankProfile]) -> list[RankProfile]:
    waits = () if run.together is None else run.together.stragglers.ranks
    caused_ns = {row.rank: row.caused_ns for row in waits}
    worst = sorted(held, key=lambda rank: (-caused_ns.get(rank.rank, 0), -rank.partition.exposed_comm_ns))
    kept = {rank.rank for rank in (*held[: DRAWN // 2], *worst[: DRAWN // 2])}
    return [rank for rank in held if rank.rank in kept]


def _rows_words(drawing: Drawing) -> str:
    if not drawing.ranks:
        return ""
    words = (
        "Within a rank, top to bottom: compute, communication (what no compute covers laid over it), copies and fills, "
        "all streams together."
    )
    if drawing.pixel_ns:
        words += f" Work closer than {duration(drawing.pixel_ns)} is drawn as one box."
    return words


def _waits(run: RunProfile) -> dict[str, Drawn]:
    if run.together is None or run.together.stragglers.method == "none":
        return {}
    found = run.together.stragglers
    by_rank = caused(found)
    drawn: dict[str, Drawn] = {
        "waits": (
            plot_waiting(by_rank, "waiting caused", "No rank was waited for."),
            f"How long the others waited for each rank, by {by_rank.across.split(',')[0]}: a strong row is a rank "
            f"that is always late, a single strong cell a mishap.{drawn_words(by_rank)}",
        )
    }
    if len(found.steps) > 1 and found.wait_by_step_ns:
        own = suffered(found)
        drawn["suffered"] = (
            plot_waiting(own, "waiting suffered", "No rank waited."),
            "How long each rank itself waited, step by step: a faint row among strong ones is the rank that the "
            f"others wait for.{drawn_words(own)}",
        )
    return drawn


def _idle(run: RunProfile) -> Drawn:
    causes = {rank.rank: rank.idle.causes for rank in run.ranks}
    windows = {rank.rank: rank.partition.window_ns for rank in run.ranks}
    idle, whole = sum(rank.idle.idle_ns for rank in run.ranks), sum(windows.values())
    words = "Idle time of each rank by its cause" + (
        f"; over all ranks {percent(100 * idle / whole)}." if whole else "."
    )
    return plot_idle(causes, windows), words


def _paths(run: RunProfile) -> dict[str, Drawn]:
    own = [Bar(f"rank {rank.rank}", dict(rank.path.totals), sum(rank.path.totals.values())) for rank in run.ranks]
    words = (
        "What each rank's own critical path consists of: shortening work on it shortens the rank's window by at most "
        "as much; shortening other work gains nothing."
    )
    drawn: dict[str, Drawn] = {"paths": (plot_path(own), words)}
    path = None if run.together is None else run.together.path
    if path is None or not path.totals:
        return drawn
    whole = path.end_ns - path.start_ns
    bars = [Bar("the whole path", path.by_kind, whole)]
    best = sorted(path.totals.items(), key=lambda item: -sum(item[1].values()))[: BARS - 1]
    bars += [Bar(f"on rank {rank}", dict(row), whole) for rank, row in best]
    drawn["run-path"] = (plot_path(bars), _run_path_words(path))
    return drawn


_KINDS = {look.key: look.label for look in PATH_LOOKS}


def _run_path_words(path: RunPath) -> str:
    bound = path.bound_by
    words = (
        f"The critical path of the run ({duration(path.end_ns - path.start_ns)}): back from the end of the last rank, "
        "and at each collective that held it to the rank that arrived last."
    )
    return words + (f" It is bound most by rank {bound[0]}: {_KINDS.get(bound[1], bound[1])}." if bound else "")


def _steps(run: RunProfile) -> Drawn:
    words = "What each step consisted of, the mean over the ranks that recorded it."
    return plot_steps({rank.rank: rank.steps for rank in run.ranks}), words


def _step_times(run: RunProfile) -> Drawn:
    times = {rank.rank: [(step.number, step.end_ns - step.start_ns) for step in rank.steps] for rank in run.ranks}
    found = all_step_times(run.ranks)
    words = "Step times."
    if found.count > 1:
        words = (
            f"Step times of all ranks: median {duration(found.median_ns)}, from {duration(found.min_ns)} to "
            f"{duration(found.max_ns)}."
        )
        if found.p95_over_median is not None:
            words += f" The 95 % point is {found.p95_over_median:.2f} times the median."
    return plot_step_times(times), words
