"""Where the time of a run went: by rank, by cause of idleness, along the critical path, step by step, in waiting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from densing.core import formatting
from densing.efficiency.timeline import occurrences
from densing.plots import style

if TYPE_CHECKING:
    from densing.efficiency.profile import Stragglers
    from densing.efficiency.timeline import Partition, StepPartition

ROW_HEIGHT = 22
# A page draws and reads so many; more are put together.
BARS, COLUMNS, STRIP_COLUMNS, STEP_COLUMNS = 40, 200, 256, 120
WAITING_ROWS, WAITING_COLUMNS, FEW_RANKS = 48, 160, 16
LABELLED = 240
"""Up to so many cells show their figure too."""
FEW_CALLS = 40
"""Up to so many communications are shown one by one where no two steps can be compared."""


class Look(NamedTuple):
    """A kind of time: key of its figures, name in the legend, colour, pattern (empty: plain)."""

    key: str
    label: str
    colour: str
    pattern: str = ""

    def marker(self) -> dict[str, Any]:
        """Return plotly's marker for a bar of this kind."""
        line = {"color": style.MUTED, "width": 0.5}
        if not self.pattern:
            return {"color": self.colour, "line": line}
        pattern = {"shape": self.pattern, "fgcolor": style.PAPER, "bgcolor": self.colour, "size": 7, "solidity": 0.28}
        return {"color": self.colour, "line": line, "pattern": pattern}


COMPUTE = Look("compute", "compute", style.BLUE)
HIDDEN = Look("hidden", "compute that hides communication", style.BLUE, "/")
EXPOSED = Look("exposed_comm", "exposed communication", style.VERMILLION, "x")
COPIES = Look("exposed_memcpy", "exposed copies", style.GREEN, ".")
IDLE = Look("idle", "idle", style.GRID)
PARTS = (COMPUTE, HIDDEN, EXPOSED, COPIES, IDLE)
"""A window from what is wanted to what is not; the parts sum to it."""

IDLE_LOOKS = (
    Look("host_bound", "host launches too late", style.VERMILLION),
    Look("communication", "waits for communication", style.PURPLE, "x"),
    Look("kernel_wait", "launched, not begun", style.ORANGE, "/"),
    Look("no_launch_record", "launch not recorded", style.MUTED, "."),
    Look("before_first", "before the first work", style.BLUE, "\\"),
    Look("after_last", "after the last work", style.GREEN, "-"),
    Look("unknown", "not told by the trace", style.GRID),
)
"""Causes of idle time, the keys of :data:`densing.efficiency.timeline.idle.CAUSES`."""

PATH_LOOKS = (
    COMPUTE,
    EXPOSED._replace(key="communication", label="communication"),
    COPIES._replace(key="memcpy", label="copies"),
    Look("host", "host program", style.PURPLE, "/"),
    Look("launch", "launch latency", style.ORANGE, "\\"),
    IDLE._replace(label="not explained by the trace"),
    IDLE._replace(key="unknown", label="not told by the trace"),
)
"""Kinds of a critical path, the keys of :data:`densing.efficiency.timeline.critical.PATH_KINDS`."""

PATTERNS = ("", "/", "x", ".", "\\", "-", "|", "+")


def looks_of(keys: tuple[str, ...], known: tuple[Look, ...]) -> tuple[Look, ...]:
    """Return a look per key: the known one, or one of the house's colours that tells it from the others.

    Examples
    --------
    >>> [look.label for look in looks_of(("idle", "launch_latency"), PARTS)]
    ['idle', 'launch latency']
    """
    by_key = {look.key: look for look in known}
    looks = []
    for number, key in enumerate(keys):
        colour = style.CYCLE[number % len(style.CYCLE)]
        pattern = PATTERNS[(number + 1) % len(PATTERNS)]
        looks.append(by_key.get(key) or Look(key, key.replace("_", " "), colour, pattern))
    return tuple(looks)


@dataclass(frozen=True)
class Bar:
    """A time split into parts.

    Attributes
    ----------
    label : str
        As it stands; escaped when drawn.
    ns : mapping of str to int
        Nanoseconds by part; parts may be absent.
    whole_ns : int
        What the parts are shares of.
    """

    label: str
    ns: Mapping[str, int]
    whole_ns: int

    def share(self, key: str) -> float:
        """Return a part in percent of the whole; 0 for an empty whole."""
        return 100 * self.ns.get(key, 0) / self.whole_ns if self.whole_ns else 0.0


def plot_shares(
    bars: Sequence[Bar], looks: Sequence[Look], title: str, empty: str, first: Look | None = None
) -> go.Figure:
    """Draw each bar's parts as shares of its whole.

    Up to :data:`BARS` bars lie one under the other, each with its name. More stand side by side, those with
    most of one part first, at most :data:`COLUMNS` wide: then a column is the mean of several.

    Parameters
    ----------
    bars : sequence of Bar
    looks : sequence of Look
        The parts, in the order in which they are stacked.
    title : str
        Title of the axis of shares.
    empty : str
        What to say where there is nothing to draw.
    first : Look, optional
        The part by which many bars are ordered; all parts together when left out.

    Examples
    --------
    >>> figure = plot_shares([Bar("rank 0", {"compute": 3, "idle": 1}, 4)], (COMPUTE, IDLE), "% of the window", "")
    >>> [list(trace.x) for trace in figure.data]
    [[75.0], [25.0]]
    """
    if not any(bar.whole_ns > 0 for bar in bars):
        return style.empty(empty)
    used = [look for look in looks if any(bar.ns.get(look.key) for bar in bars)]
    if len(bars) > BARS:
        return _columns(bars, used, title, first)
    fig = style.figure(96 + 24 * legend_rows(used) + ROW_HEIGHT * max(len(bars), 2), barmode="stack", bargap=0.22)
    fig.update_layout(legend_traceorder="normal", showlegend=True)
    for look in used:
        fig.add_bar(
            y=list(range(len(bars))), x=[bar.share(look.key) for bar in bars], orientation="h", name=look.label,
            marker=look.marker(), hoverinfo="text", textposition="none",
            hovertext=[_share_hover(bar.label, look, bar.share(look.key), bar.ns.get(look.key, 0)) for bar in bars],
        )  # fmt: skip
    labels = [style.figure_text(bar.label, 40) for bar in bars]
    y_axis = {**style.list_ticks(labels), "range": [len(bars) - 0.5, -0.5]}
    return style.axes(fig, {"title": title, **_reach(bars, used)}, y_axis)


def legend_rows(looks: Sequence[Look], width: int = 110) -> int:
    """Return about how many lines the legend of some parts takes on a wide page.

    Examples
    --------
    >>> legend_rows(PARTS), legend_rows(PARTS[:1])
    (1, 1)
    """
    return 1 + sum(len(look.label) + 6 for look in looks) // width


def _share_hover(label: str, look: Look, share: float, ns: float) -> str:
    return style.hover(
        style.figure_text(label, 90), f"{look.label}: {formatting.percent(share)} ({formatting.duration(ns)})"
    )


def _reach(bars: Sequence[Bar], looks: Sequence[Look]) -> dict[str, list[float]]:
    """Show 0 to 100 % where the parts fill their whole, else as far as they go."""
    longest = max(sum(bar.share(look.key) for look in looks) for bar in bars)
    # A little more than 100: on a narrow page the last label needs the room.
    return {"range": [0, 102 if longest > 60 else longest * 1.05 or 1]}


def _columns(bars: Sequence[Bar], looks: Sequence[Look], title: str, first: Look | None) -> go.Figure:
    shares = np.array([[bar.share(look.key) for bar in bars] for look in looks])
    by = shares.sum(axis=0) if first is None else np.array([bar.share(first.key) for bar in bars])
    order = np.argsort(-by, kind="stable")
    groups = np.array_split(order, min(len(bars), COLUMNS))
    fig = style.figure(360, barmode="stack", bargap=0)
    fig.update_layout(legend_traceorder="normal", showlegend=True)
    for look, row in zip(looks, shares, strict=True):
        marker = {**look.marker(), "line": {"width": 0}}
        hover = [
            _share_hover(
                bars[group[0]].label
                if len(group) == 1
                else f"mean of {len(group)}: {formatting.listed((bars[index].label for index in group), most=6)}",
                look,
                float(row[group].mean()),
                float(np.mean([bars[index].ns.get(look.key, 0) for index in group])),
            )
            for group in groups
        ]
        fig.add_bar(
            x=list(range(len(groups))), y=[float(row[group].mean()) for group in groups], name=look.label,
            marker=marker, hovertext=hover, hoverinfo="text", textposition="none",
        )  # fmt: skip
    order_name = f"from most to least {first.label}" if first else "from most to least in all"
    sideways = {"title": f"{len(bars)} ranks, {order_name}", "showticklabels": False, "ticks": ""}
    return style.axes(fig, {**sideways, "showgrid": False}, {"title": title, **_reach(bars, looks)})


def parts_of(partition: Partition) -> dict[str, int]:
    """Return the parts of a window, nanoseconds; they sum to it.

    The keys are those of :data:`PARTS`; compute splits into what hides communication
    and what does not: |K ∩ C| and |K| − |K ∩ C|.

    Examples
    --------
    >>> from densing.efficiency.timeline import Partition
    >>> parts_of(Partition(100, 90, 50, 40, 0, 20, 20, 5, 25))
    {'compute': 30, 'hidden': 20, 'exposed_comm': 20, 'exposed_memcpy': 5, 'idle': 25}
    """
    return {
        "compute": partition.compute_ns - partition.overlap_ns,
        "hidden": partition.overlap_ns,
        "exposed_comm": partition.exposed_comm_ns,
        "exposed_memcpy": partition.exposed_memcpy_ns,
        "idle": partition.idle_ns,
    }


def plot_partition(partitions: Mapping[int, Partition]) -> go.Figure:
    """Draw how each rank's window splits into compute, exposed communication, exposed copies and idle.

    Parameters
    ----------
    partitions : mapping of rank to Partition
        Any number; from :data:`BARS` on, those with most exposed communication first.
    """
    bars = [Bar(f"rank {rank}", parts_of(part), part.window_ns) for rank, part in partitions.items()]
    return plot_shares(bars, PARTS, "% of the rank's window", "The windows of all ranks are empty.", EXPOSED)


def plot_rank_strip(partitions: Mapping[int, Partition]) -> go.Figure:
    """Draw the same in order of rank, as a strip of shades: neighbours often share a machine.

    Parameters
    ----------
    partitions : mapping of rank to Partition

    Examples
    --------
    >>> from densing.efficiency.timeline import Partition
    >>> figure = plot_rank_strip({rank: Partition(100, 90, 50, 40, 0, 20, 20, 5, 25) for rank in range(1000)})
    >>> len(figure.data[0].z), len(figure.data[0].z[0])
    (5, 256)
    """
    if not partitions:
        return style.empty("No rank was profiled.")
    ranks = np.array(sorted(partitions))
    bars = [Bar("", parts_of(partitions[rank]), partitions[rank].window_ns) for rank in ranks.tolist()]
    shares = np.array([[bar.share(look.key) for bar in bars] for look in PARTS])
    groups = np.array_split(np.arange(len(ranks)), min(len(ranks), STRIP_COLUMNS))
    table = [[float(row[group].mean()) for group in groups] for row in shares]
    # The label of the legend would not fit before a strip.
    labels = ["hidden under compute" if look is HIDDEN else look.label for look in PARTS]
    spans = [
        f"rank {group[0]}" if len(group) == 1 else f"ranks {group[0]} to {group[-1]}, mean of {len(group)}"
        for group in (ranks[indices].tolist() for indices in groups)
    ]
    hover = [
        [style.hover(span, f"{label}: {formatting.percent(value)}") for span, value in zip(spans, row, strict=True)]
        for label, row in zip(labels, table, strict=True)
    ]
    fig = style.figure(230)
    fig.add_heatmap(
        z=table, x=[int(ranks[group[0]]) for group in groups], y=labels, hovertext=hover, hoverinfo="text",
        colorscale=style.SHADES, zmin=0, zmax=max(map(max, table)) or 1, ygap=2,
        colorbar=style.bar_of_shades("% of the window"),
    )  # fmt: skip
    y_axis = {"autorange": "reversed", "showgrid": False, "ticks": ""}
    return style.axes(fig, {"title": "rank", "showgrid": False}, y_axis)


def plot_idle(causes: Mapping[int, Mapping[str, int]], windows: Mapping[int, int]) -> go.Figure:
    """Draw each rank's idle time by cause, as shares of its window.

    Parameters
    ----------
    causes : mapping of rank to mapping of str to int
        Nanoseconds by cause (:data:`densing.efficiency.timeline.idle.CAUSES`).
    windows : mapping of rank to int
        Nanoseconds of each rank's window.
    """
    bars = [Bar(f"rank {rank}", dict(row), windows[rank]) for rank, row in causes.items()]
    keys = tuple(dict.fromkeys([*(look.key for look in IDLE_LOOKS), *(key for row in causes.values() for key in row)]))
    if not any(any(row.values()) for row in causes.values()):
        return style.empty("The devices were never idle.")
    return plot_shares(bars, looks_of(keys, IDLE_LOOKS), "% of the rank's window", "The windows are empty.")


def plot_path(bars: Sequence[Bar]) -> go.Figure:
    """Draw what the critical path consists of, one bar per path.

    Parameters
    ----------
    bars : sequence of Bar
        Nanoseconds by kind.
    """
    keys = dict.fromkeys(key for bar in bars for key, ns in bar.ns.items() if ns)
    order = sorted(keys, key=lambda key: -sum(bar.ns.get(key, 0) for bar in bars))
    return plot_shares(bars, looks_of(tuple(order), PATH_LOOKS), "% of the path", "No critical path was found.")


def plot_steps(steps: Mapping[int, Sequence[StepPartition]]) -> go.Figure:
    """Draw each step's time by part: the mean over the ranks that recorded it.

    Parameters
    ----------
    steps : mapping of rank to sequence of StepPartition
        More than :data:`STEP_COLUMNS` steps are drawn as means of neighbours.
    """
    table = mean_steps(steps)
    if not table:
        return style.empty("The traces mark no steps, so there is no step to draw.")
    groups = np.array_split(np.arange(len(table)), min(len(table), STEP_COLUMNS))
    means = {look.key: np.array([row[1][look.key] for row in table]) for look in PARTS}
    total = np.sum(list(means.values()), axis=0)
    scale, unit = formatting.unit_of(float(np.max(total)))
    used = [look for look in PARTS if means[look.key].any()]
    gap = 0.6 if len(groups) < 4 else 0.18 if len(groups) <= BARS else 0
    fig = style.figure(320 + 24 * legend_rows(used), barmode="stack", bargap=gap)
    fig.update_layout(legend_traceorder="normal", showlegend=True)
    numbers = [[table[index][0] for index in group] for group in groups]
    spans = [
        f"step {number[0]}" if len(number) == 1 else f"steps {number[0]} to {number[-1]}, mean" for number in numbers
    ]
    for look in used:
        heights = np.array([means[look.key][group].mean() for group in groups])
        hover = [
            style.hover(
                span, f"{look.label}: {formatting.duration(height)} of {formatting.duration(total[group].mean())}"
            )
            for span, height, group in zip(spans, heights, groups, strict=True)
        ]
        fig.add_bar(
            x=list(range(len(groups))), y=(heights / scale).tolist(), name=look.label, marker=look.marker(),
            hovertext=hover, hoverinfo="text", textposition="none",
        )  # fmt: skip
    return style.axes(
        fig,
        {"title": "step", **style.list_ticks([str(number[0]) for number in numbers], 12)},
        {"title": f"{unit}, mean over ranks"},
    )


def mean_steps(steps: Mapping[int, Sequence[StepPartition]]) -> list[tuple[int, dict[str, float]]]:
    """Return each step's number and its parts in nanoseconds, the mean over the ranks that recorded it, in order.

    A number that a rank marks again is a step of its own.

    Examples
    --------
    >>> from densing.efficiency.timeline import Partition, StepPartition
    >>> def step(number, idle):
    ...     return StepPartition(number, 0, 100, Partition(100, 100, 100 - idle, 0, 0, 0, 0, 0, idle))
    >>> [(number, parts["idle"]) for number, parts in mean_steps({0: [step(7, 10)], 1: [step(7, 30)]})]
    [(7, 20.0)]
    """
    table: dict[tuple[int, int], list[dict[str, int]]] = {}
    for rows in steps.values():
        for (number, occurrence), row in zip(occurrences(row.number for row in rows), rows, strict=True):
            table.setdefault((occurrence, number), []).append(parts_of(row.partition))
    return [
        (number, {look.key: sum(row[look.key] for row in rows) / len(rows) for look in PARTS})
        for (_, number), rows in sorted(table.items())
    ]


def plot_step_times(times: Mapping[int, Sequence[tuple[int, int]]]) -> go.Figure:
    """Draw the step times: every rank's where ranks are few, else their least, median and most per step.

    Parameters
    ----------
    times : mapping of rank to sequence of (step number, nanoseconds)
    """
    rows = {rank: list(steps) for rank, steps in times.items() if steps}
    if sum(len(steps) for steps in rows.values()) == 0:
        return style.empty("The traces mark no steps, so there are no step times.")
    scale, unit = formatting.unit_of(float(np.median([ns for steps in rows.values() for _, ns in steps])))
    fig = style.figure(340, showlegend=True)
    if len(rows) <= len(style.SYMBOLS):
        for index, (rank, steps) in enumerate(rows.items()):
            colour = style.CYCLE[index % len(style.CYCLE)]
            hover = [style.hover(f"rank {rank}, step {number}", formatting.duration(ns)) for number, ns in steps]
            fig.add_scatter(
                x=[number for number, _ in steps], y=[ns / scale for _, ns in steps], mode="lines+markers",
                name=f"rank {rank}", line={"color": colour, "width": 1},
                marker={"symbol": style.SYMBOLS[index], "size": 8, "color": colour},
                hoverinfo="text", hovertext=hover,
            )  # fmt: skip
    else:
        by_step: dict[int, list[tuple[int, int]]] = {}
        for rank, steps in rows.items():
            for number, ns in steps:
                by_step.setdefault(number, []).append((ns, rank))
        numbers = sorted(by_step)
        looks = (
            ("slowest rank", lambda times: max(times), "triangle-up", style.VERMILLION, "dot"),
            ("median rank", lambda times: sorted(times)[len(times) // 2], "circle", style.BLUE, "solid"),
            ("fastest rank", lambda times: min(times), "triangle-down", style.GREEN, "dash"),
        )
        for name, choose, symbol, colour, dash in looks:
            chosen = [choose(by_step[number]) for number in numbers]
            fig.add_scatter(
                x=numbers, y=[ns / scale for ns, _ in chosen], mode="lines+markers", name=style.figure_text(name),
                line={"color": colour, "width": 1.5, "dash": dash},
                marker={"symbol": symbol, "size": 7, "color": colour}, hoverinfo="text",
                hovertext=[
                    style.hover(f"step {number}", f"{name}: {formatting.duration(ns)} (rank {rank})")
                    for number, (ns, rank) in zip(numbers, chosen, strict=True)
                ],
            )  # fmt: skip
    # From zero: a spread of a percent must not look like a doubling.
    numbers = sorted({number for steps in rows.values() for number, _ in steps})
    ticks = numbers[:: -(-len(numbers) // 12)]
    pad = max((numbers[-1] - numbers[0]) * 0.02, 0.2)
    x_axis = {"title": "step", "tickmode": "array", "tickvals": ticks, "ticktext": [str(tick) for tick in ticks]}
    x_axis["range"] = [numbers[0] - pad, numbers[-1] + pad]
    return style.axes(fig, x_axis, {"title": f"step time, {unit}", "rangemode": "tozero"})


@dataclass(frozen=True)
class Waiting:
    """Nanoseconds of waiting by rank and column.

    Attributes
    ----------
    ranks : tuple of int
    columns : tuple of str
        What each column is, as it stands.
    ns : int64 (ranks, columns)
    across : str
        What the columns are, for the axis.
    """

    ranks: tuple[int, ...]
    columns: tuple[str, ...]
    ns: NDArray[np.int64]
    across: str


def caused(stragglers: Stragglers) -> Waiting:
    """Return how long the others waited for each rank, step by step.

    Where there are not two steps, and communications are few, the columns are the communications themselves.

    Examples
    --------
    >>> from densing.efficiency.profile.waiting import Late, RankWaits, Stragglers
    >>> late = (Late(0, "all_reduce", "", -1, 0, 1, 5, 70, True),)
    >>> ranks = tuple(RankWaits(rank, 1, 0, 0, 0, 0, 0, 0) for rank in (0, 1))
    >>> waiting = caused(Stragglers("starts", ranks, late, 1, None, 1, 1, None, (-1,), {}))
    >>> waiting.ns.tolist(), waiting.columns
    ([[0], [70]], ('all_reduce 1',))
    """
    ranks = sorted(row.rank for row in stragglers.ranks)
    row_of = {rank: index for index, rank in enumerate(ranks)}
    one_by_one = len(stragglers.steps) < 2 and len(stragglers.late) <= FEW_CALLS
    if one_by_one:
        columns = [f"{row.op or 'communication'} {number + 1}" for number, row in enumerate(stragglers.late)]
        positions = list(range(len(stragglers.late)))
    else:
        columns = ["not in a step" if step < 0 else str(step) for step in stragglers.steps]
        number = {step: column for column, step in enumerate(stragglers.steps)}
        positions = [number[row.step] for row in stragglers.late]
    table = np.zeros((len(ranks), len(columns)), np.int64)
    for column, late in zip(positions, stragglers.late, strict=True):
        if late.rank in row_of:
            table[row_of[late.rank], column] += late.waited_ns
    return Waiting(tuple(ranks), tuple(columns), table, "communication, in order" if one_by_one else "step")


def suffered(stragglers: Stragglers) -> Waiting:
    """Return how long each rank itself waited, step by step."""
    ranks = sorted(stragglers.wait_by_step_ns)
    table = np.array([stragglers.wait_by_step_ns[rank] for rank in ranks], np.int64)
    columns = ["not in a step" if step < 0 else str(step) for step in stragglers.steps]
    return Waiting(tuple(ranks), tuple(columns), table.reshape(len(ranks), len(columns)), "step")


def plot_waiting(waiting: Waiting, title: str, empty: str) -> go.Figure:
    """Draw waiting by rank and column.

    Of more than :data:`FEW_RANKS` ranks those with any waiting are drawn, at most :data:`WAITING_ROWS`; of more than
    :data:`WAITING_COLUMNS` columns neighbours are added up.

    Parameters
    ----------
    waiting : Waiting
    title : str
        What the shades mean.
    empty : str
        What to say where nothing was waited for.
    """
    if not waiting.ns.size or not waiting.ns.any():
        return style.empty(empty)
    rows = _drawn(waiting)
    groups = np.array_split(np.arange(len(waiting.columns)), min(len(waiting.columns), WAITING_COLUMNS))
    table = np.array([[waiting.ns[row, group].sum() for group in groups] for row in rows])
    scale, unit = formatting.unit_of(float(table.max()))
    ends = [(waiting.columns[group[0]], waiting.columns[group[-1]]) for group in groups]
    names = [first if first == last else f"{first} to {last}" for first, last in ends]
    ranks = [f"rank {waiting.ranks[row]}" for row in rows]
    hover = [
        [
            style.hover(f"{rank}, {style.figure_text(name, 60)}", formatting.duration(ns))
            for name, ns in zip(names, line, strict=True)
        ]
        for rank, line in zip(ranks, table.tolist(), strict=True)
    ]
    fig = style.figure(90 + max(max(18, min(34, 300 // len(rows))) * len(rows), 150))
    labelled = table.size <= LABELLED and len(groups) <= 14
    figures = [[formatting.digits(ns / scale) if ns else "" for ns in line] for line in table.tolist()]
    fig.add_heatmap(
        z=(table / scale).tolist(), x=list(range(len(groups))), y=list(range(len(rows))), hovertext=hover,
        hoverinfo="text", colorscale=style.SHADES, zmin=0, zmax=float(table.max()) / scale, xgap=1, ygap=1,
        colorbar=style.bar_of_shades(f"{title}, {unit}"),
        **({"text": figures, "texttemplate": "%{text}", "textfont": {"size": 12}} if labelled else {}),
    )  # fmt: skip
    x_axis = {"title": waiting.across, **style.list_ticks([style.figure_text(name, 24) for name in names], 14)}
    if len(groups) > 5 and max(map(len, names)) > 8:
        # Leaning to the left: the last label of a narrow page is not cut.
        x_axis["tickangle"] = -30
    return style.axes(fig, x_axis, {**style.list_ticks(ranks, WAITING_ROWS), "autorange": "reversed"})


def _drawn(waiting: Waiting) -> NDArray[np.int64]:
    """Which ranks are drawn: of more than FEW_RANKS only those with any waiting, of those at most WAITING_ROWS."""
    total = waiting.ns.sum(axis=1)
    order = np.argsort(-total, kind="stable")[:WAITING_ROWS]
    return np.sort(order[total[order] > 0] if len(total) > FEW_RANKS else order)


def drawn_words(waiting: Waiting) -> str:
    """Say which ranks are left out of the figure; empty where none is."""
    drawn, all_ranks = len(_drawn(waiting)), len(waiting.ranks)
    waiting_ranks = int((waiting.ns.sum(axis=1) > 0).sum())
    if drawn == all_ranks:
        return ""
    if drawn < waiting_ranks:
        return f" The {drawn} ranks with most of it are drawn, of {waiting_ranks} that have any."
    return f" Only ranks that have any are drawn: {drawn} of {all_ranks}."
