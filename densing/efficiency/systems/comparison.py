"""Comparison of techniques on one workload and cluster; all figures come from the simulated timelines.

Regime maps repeat the comparison over the bandwidth of a link and the size of the batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from densing.core import (
    Card,
    Field,
    InputError,
    Listing,
    Note,
    Readable,
    Record,
    Severity,
    UnknownNameError,
    column,
    formatting,
    numeric,
    seconds,
)
from densing.efficiency.simulation import Convex, Gather, Served, Workload, resized
from densing.efficiency.systems.host_tables import TableTechnique
from densing.efficiency.systems.plan import SteadyStep, measure, steady_timeline
from densing.efficiency.systems.planner import Planned
from densing.efficiency.systems.registry import BUILT_IN, Technique, get_technique
from densing.efficiency.systems.splits import remedy
from densing.efficiency.throughput import FRAMEWORK, device_of, fitted_step

if TYPE_CHECKING:
    import pandas as pd

    from densing.efficiency.simulation import Cluster
    from densing.efficiency.timeline import Timeline


Settings = Mapping[str, Mapping[str, Any]]
"""Knobs by technique."""
Step = Workload | Gather | Convex | Served
"""Kinds of workload that can be planned: a step of a transformer, one that gathers rows, one of a linear problem."""

FITS, DOES_NOT_FIT, DOES_NOT_APPLY = "simulated", "does not fit", "does not apply"
RANKS = (FITS, DOES_NOT_FIT, DOES_NOT_APPLY)
TIGHT = 0.8
"""Share of a device's memory above which little is left for what is not counted (buffers, fragments, the driver)."""


class Row(Record, frozen=True):
    """One technique's step.

    Parameters
    ----------
    technique : str
    status : {"simulated", "does not fit", "does not apply"}
        A technique that does not fit in a device's memory is simulated as if it did.
    step_s : float, optional
        Seconds per step, in the steady state; this and all below None where the technique does not apply.
    exposed_comm_s : float, optional
        Seconds per step in which a rank communicates and does not compute, mean of the ranks.
    overlap_ratio : float, optional
        Share of the communication that is hidden behind compute; None without communication.
    bytes : float, optional
        Bytes communicated per rank and step.
    speedup : float, optional
        Step time of the baseline over this one's.
    memory_bytes : float, optional
        Per rank.
    bytes_per_link : mapping of str to float
        The bytes by the slowest link that the group of the communication spans: intra, inter, wide.
    memory : mapping of str to float
        Bytes per rank by purpose.
    reason : str
        Why the technique does not apply or does not fit, and what would make it fit.
    room_bytes : float, optional
        Memory of a device; None where unknown.
    changes_loss : str, optional
        How the loss per step differs from plain synchronous training; empty where it does not, None where the technique
        does not state it.
    step_se_s : float, optional
        Standard error of ``step_s``, where the cluster's delays are drawn.
    low_s, high_s : float, optional
        80 % prediction interval of a step of plain training; None without comparable measured runs
        (:func:`densing.efficiency.throughput.fitted_step`).
    parameters_on_device, parameters : int, optional
        Of a step that gathers rows: those in the device's memory, and all with the table's. Either may serve as N.
    """

    technique: str
    status: str
    step_s: float | None = None
    exposed_comm_s: float | None = None
    overlap_ratio: float | None = None
    bytes: float | None = None
    speedup: float | None = None
    memory_bytes: float | None = None
    bytes_per_link: Mapping[str, float] = msgspec.field(default_factory=dict)
    memory: Mapping[str, float] = msgspec.field(default_factory=dict)
    reason: str = ""
    room_bytes: float | None = None
    changes_loss: str | None = None
    step_se_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    parameters_on_device: int | None = None
    parameters: int | None = None


def range_words(row: Mapping[str, Any]) -> str:
    """Return between which times a step lies.

    Examples
    --------
    >>> range_words({"low_s": 0.5, "high_s": 0.75}), range_words({"low_s": None})
    ('500 ms to 750 ms', '–')
    """
    low, high = (formatting.known(row.get(name)) for name in ("low_s", "high_s"))
    return (
        formatting.MISSING
        if low is None or high is None
        else f"{formatting.seconds(low)} to {formatting.seconds(high)}"
    )


def loss_words(row: Mapping[str, Any]) -> str:
    """Return whether a technique changes what a step learns.

    Examples
    --------
    >>> [loss_words(row) for row in ({"changes_loss": "late"}, {"changes_loss": ""}, {"changes_loss": None}, {})]
    ['changes', 'same', 'not said', '–']
    """
    if "changes_loss" not in row:
        return formatting.MISSING
    change = row["changes_loss"]
    return "not said" if change is None else "changes" if change else "same"


COMPARED = (
    Field("Technique", column("technique")),
    Field("In memory", lambda row: in_memory(str(row.get("status")), row.get("room_bytes")), short="Fits"),
    seconds("Step", "step_s"),
    Field("4 of 5 in", range_words, hint="Held four of five published runs that the fit had not seen", optional=True),
    numeric("Exposed per step", "exposed_comm_s", formatting.seconds, short="Exposed"),
    numeric("Hidden", "overlap_ratio", formatting.share),
    numeric("Speed-up", "speedup", formatting.factor),
    Field("Loss", loss_words, hint="Whether a step learns what one of plain synchronous training does"),
    numeric("Bytes per step", "bytes", formatting.volume, "Put into communication per rank", short="Bytes"),
    numeric("Memory", "memory_bytes", formatting.volume, hint="Per rank"),
    Field("Remark", lambda row: formatting.clean(row.get("reason") or "", 300), optional=True),
)
"""How a row per technique is shown."""


class Comparison(Readable, Record, frozen=True):
    """Rows, the technique they are measured against, and remarks.

    Rows are in the order asked for, but what does not fit in memory follows what does, and what does not apply is last.
    """

    rows: tuple[Row, ...]
    baseline: str
    notes: tuple[Note, ...] = ()

    def card(self) -> Card:
        """Return what is shown: a row per technique."""
        return Card(f"{len(self.rows)} techniques against {self.baseline}", {}, self.listing(), self.notes)

    def listing(self) -> Listing:
        """Return the rows as people read them."""
        return Listing(self.title, self.rows, COMPARED)

    def table(self) -> pd.DataFrame:
        """Return the rows as a table."""
        return Record.frame(self.rows)

    @property
    def title(self) -> str:
        """The result in a line."""
        return title([row.to_dict() for row in self.rows], self.baseline)


def title(rows: Sequence[Mapping[str, Any]], baseline: str = "") -> str:
    """Return the result in a line: the fastest technique that fits in memory.

    Parameters
    ----------
    rows : sequence of mapping
        technique and speedup; optionally status and changes_loss.
    baseline : str
        The technique that speed-ups are relative to; when empty the row whose speed-up is exactly 1.

    Examples
    --------
    >>> rows = [{"technique": "ddp", "speedup": 1.0}, {"technique": "co2", "speedup": 1.4, "changes_loss": "late"}]
    >>> title(rows)
    'co2 is 1.40× as fast as ddp per step, but may change the loss'
    >>> title([{**row, "status": "does not fit"} for row in rows])
    'None of 2 techniques fits in memory: ddp, co2'
    """

    def beside(names: Sequence[str]) -> str:
        return f"; {', '.join(names)} {'does' if len(names) == 1 else 'do'} not fit in memory" if names else ""

    misfits = [str(row["technique"]) for row in rows if row.get("status") == DOES_NOT_FIT]
    fitting = [row for row in rows if row.get("status", FITS) == FITS]
    if len(rows) == 1:
        return f"One technique: {rows[0]['technique']}" + (", which does not fit in memory" if misfits else "")
    if misfits and not fitting:
        return f"None of {len(rows)} techniques fits in memory: {', '.join(misfits)}"
    left_out = beside(misfits)
    rated = [row for row in fitting if row.get("speedup") is not None and math.isfinite(row["speedup"])]
    base = baseline or next((str(row["technique"]) for row in rows if row.get("speedup") == 1.0), "")
    if not rated or not base:
        return f"{len(rows)} techniques side by side{left_out}"
    best = max(rated, key=lambda row: float(row["speedup"]))
    if str(best["technique"]) == base or best["speedup"] <= 1:
        if [str(row["technique"]) for row in fitting] == [base]:
            return f"Only {base} fits in memory{left_out}"
        none = "No technique that fits" if misfits else f"None of {len(rows)} techniques"
        return f"{none} is faster than {base}{', which does not fit' if base in misfits else left_out}"
    than = f"{base}, which does not fit," if base in misfits else base
    also = beside([name for name in misfits if name != base])
    learns = ", but may change the loss" if best.get("changes_loss") else ""
    factor = f"{best['speedup']:,.0f}×" if best["speedup"] >= 1000 else f"{best['speedup']:#.3g}".rstrip(".") + "×"
    return f"{best['technique']} is {factor} as fast as {than} per step{learns}{also}"


def in_memory(status: str, room_bytes: float | None) -> str:
    """Return whether a row fits, as far as the memory of a device is known; a dash where it does not apply.

    Examples
    --------
    >>> in_memory("simulated", 8e10), in_memory("simulated", None), in_memory("does not fit", 8e10)
    ('fits', 'unknown', 'does not fit')
    """
    if status == FITS:
        return "fits" if room_bytes else "unknown"
    return status if status == DOES_NOT_FIT else "–"


def compare(
    workload: Step,
    cluster: Cluster,
    techniques: Sequence[str],
    *,
    knobs: Settings | None = None,
    baseline: str | None = None,
    remedies: bool = True,
    ideal: bool = False,
    framework: str = FRAMEWORK,
) -> Comparison:
    """Simulate techniques on one workload and one cluster.

    A training step takes the times of its modules, the shares of its links and the framework's defaults from the cost
    model of published runs, where comparable ones exist; the simulator decides what overlaps.

    Parameters
    ----------
    workload : Workload, Gather, Convex or Served
    cluster : Cluster
    techniques : sequence of str
        Names, as :func:`densing.efficiency.systems.registry.technique_names` gives them.
    knobs : mapping of str to mapping, optional
        Settings that differ from the defaults: ``{"co2": {"tau": 48}}``.
    baseline : str, optional
        Whose step the speed-ups are relative to; the first technique when left out.
    remedies : bool
        Also search for a change with which a technique fits that does not fit in a device's memory.
    ideal : bool
        Use the cluster's own figures as they are, from data sheets or measured.
    framework : str
        Whose kernels, bytes per gradient and overlap are assumed, one of
        :func:`densing.efficiency.throughput.framework_names`.

    Returns
    -------
    Comparison
        A technique that does not apply to this workload, or does not fit in memory, has a row with the reason, and
        there is a note of each kind. The note on memory is an error where the fastest of all rows does not fit.

    Raises
    ------
    InputError
        When a name or a knob is unknown, none or one is named twice, or too few published runs are like this step by
        the framework.
    """
    if not techniques:
        raise InputError("no technique to compare; name some, as in ddp,co2,ladder")
    twice = sorted({name for name in techniques if list(techniques).count(name) > 1})
    if twice:
        raise InputError(f"technique {twice[0]!r} is named twice; name it once")
    names = list(dict.fromkeys([*techniques, *([baseline] if baseline else [])]))
    for name in names:
        get_technique(name)
    for name, values in (knobs or {}).items():
        if name not in names:
            raise UnknownNameError("technique among those compared:", name, names)
        for knob in values:
            known = [each.name for each in get_technique(name).knobs]
            if knob not in known:
                raise UnknownNameError(f"knob of {name}:", knob, known)
    reference = baseline or techniques[0]
    workload, cluster, ends, said = _figures(workload, cluster, ideal, framework)
    outcomes = {name: _try(get_technique(name), workload, cluster, (knobs or {}).get(name, {})) for name in names}
    base = outcomes[reference]
    step = base.step_s if isinstance(base, SteadyStep) else None
    rows = [_row(name, outcomes[name], step, workload, cluster) for name in techniques]
    for at, row in enumerate(rows):
        if remedies and row.status == DOES_NOT_FIT and isinstance(workload, Workload):
            change = remedy(get_technique(row.technique), workload, cluster, (knobs or {}).get(row.technique, {}))
            rows[at] = replace(row, reason=f"{row.reason}; {change}") if change else row
        if ends and row.step_s is not None:
            rows[at] = replace(rows[at], low_s=row.step_s * ends[0], high_s=row.step_s * ends[1])
    # A stable sort: within a status the order asked for stays.
    rows.sort(key=lambda row: RANKS.index(row.status))
    notes = [*_notes(rows, workload, cluster), *said]
    for row in rows:
        technique: Any = get_technique(row.technique)
        if isinstance(technique, Planned | TableTechnique) and row.status != DOES_NOT_APPLY:
            notes += technique.remarks(workload, cluster, **(knobs or {}).get(row.technique, {}))  # type: ignore[arg-type]
    if not isinstance(base, SteadyStep):
        message = f"no speed-ups: the baseline {reference} does not apply here ({base}); choose another baseline"
        notes.append(Note("no-baseline", "warning", message, {"baseline": reference}))
    return Comparison(tuple(rows), reference, tuple(notes))


def timelines(
    workload: Step,
    cluster: Cluster,
    comparison: Comparison,
    knobs: Settings | None = None,
    *,
    ideal: bool = False,
    framework: str = FRAMEWORK,
) -> list[tuple[str, Timeline]]:
    """Return the simulated steady steps of each technique of a comparison that applies, to be drawn."""
    workload, cluster, _, _ = _figures(workload, cluster, ideal, framework)
    applied = [row.technique for row in comparison.rows if row.status != DOES_NOT_APPLY]
    step: Any = workload
    plans = {name: get_technique(name).plan(step, cluster, **(knobs or {}).get(name, {})) for name in applied}
    return [(name, steady_timeline(plan, cluster)) for name, plan in plans.items()]


def _figures(
    workload: Step, cluster: Cluster, ideal: bool, framework: str
) -> tuple[Step, Cluster, tuple[float, float] | None, list[Note]]:
    """Return workload and cluster with the cost model's figures, the ends of its range, and the source of times."""
    if ideal or not isinstance(workload, Workload):
        return workload, cluster, None, []
    found = fitted_step(workload, cluster, framework=framework)
    if found is None and framework != FRAMEWORK:
        raise InputError(
            f"framework {framework}: no published runs by several sources are like this step on {cluster.name}; leave "
            "it out for the cluster's own figures"
        )
    if found is None:
        if not device_of(cluster.device.name):
            return workload, cluster, None, []
        message = (
            f"no published run is like this step on {cluster.name}: times follow from the cluster's own figures, "
            "without a range"
        )
        return workload, cluster, None, [Note("own-figures", "info", message, {"cluster": cluster.name})]
    share = formatting.percent(100 * found.workload.exposed_sums)
    sums = f", {share} of tensor-parallel sums exposed" if workload.split.tp > 1 else ""
    message = (
        f"times of modules and shares of links are those of published runs on {cluster.device.name}, with gradients of "
        f"{found.workload.gradient_bytes} bytes{sums}, as in {framework}; data-sheet figures: --ideal"
    )
    said = [Note("fitted-figures", "info", message, {"framework": framework}), *found.notes]
    return found.workload, found.cluster, (found.low, found.high), said


def _try(technique: Technique, workload: Any, cluster: Cluster, knobs: Mapping[str, Any]) -> SteadyStep | InputError:
    try:
        return measure(technique.plan(workload, cluster, **knobs), cluster)
    except InputError as error:
        return error
    except Exception as error:
        if technique.name in BUILT_IN:
            raise
        # Code of another package: its row says so, the others stand.
        return InputError(f"its plan failed ({type(error).__name__}: {error}); report it to its author")


def _row(name: str, outcome: SteadyStep | InputError, base: float | None, workload: Step, cluster: Cluster) -> Row:
    changes_loss = getattr(get_technique(name), "changes_loss", None)
    room = cluster.device.memory or None
    if isinstance(outcome, InputError):
        return Row(name, DOES_NOT_APPLY, reason=str(outcome), room_bytes=room, changes_loss=changes_loss)
    need = sum(outcome.memory.values()) if outcome.memory else None
    misfit = bool(room and need and need > room)
    technique = get_technique(name)
    counts: tuple[int | None, int | None] = (None, None)
    if isinstance(technique, TableTechnique) and isinstance(workload, Gather):
        counts = technique.parameters(workload)
    return Row(
        technique=name,
        status=DOES_NOT_FIT if misfit else FITS,
        step_s=outcome.step_s,
        exposed_comm_s=outcome.exposed_comm_s,
        overlap_ratio=outcome.overlap_ratio,
        bytes=outcome.bytes,
        speedup=base / outcome.step_s if base and outcome.step_s else None,
        memory_bytes=need,
        bytes_per_link=outcome.bytes_per_link,
        memory=outcome.memory,
        reason=f"needs {need / 1e9:,.1f} GB of {room / 1e9:,.0f} GB" if misfit and need and room else "",
        room_bytes=room,
        changes_loss=changes_loss,
        step_se_s=outcome.step_se_s,
        parameters_on_device=counts[0],
        parameters=counts[1],
    )


def _notes(rows: Sequence[Row], workload: Step, cluster: Cluster) -> list[Note]:
    notes = []
    for row in rows:
        if row.status == DOES_NOT_APPLY:
            # Most reasons begin with the technique's name already.
            message = row.reason if row.reason.startswith(row.technique) else f"{row.technique}: {row.reason}"
            notes.append(Note("does-not-apply", "warning", message, {"technique": row.technique}))
    if any(row.status == FITS and row.room_bytes is None for row in rows):
        message = f"{cluster.name} does not state device memory, so whether these runs fit is unknown"
        notes.append(Note("memory-unknown", "warning", message, {"cluster": cluster.name}))
    notes += _too_large(rows, workload, cluster)
    transformer = workload if isinstance(workload, Workload) else None
    if transformer and transformer.mode == "train" and not transformer.fused_attention:
        message = (
            "materialised attention scores change memory only; simulated times do not include writing and reading them"
        )
        notes.append(Note("times-without-scores", "info", message, {"recompute": transformer.recompute}))
    if transformer and transformer.recompute == "selective" and transformer.fused_attention:
        message = "recompute selective: fused attention keeps no scores, so recomputing it saves no memory"
        notes.append(Note("nothing-to-recompute", "info", message, {"recompute": transformer.recompute}))
    if cluster.delay is not None:
        shares = [row.step_se_s / row.step_s for row in rows if row.step_se_s is not None and row.step_s]
        error = (
            f"standard errors of a step are up to {formatting.percent(100 * max(shares))} of it"
            if shares
            else "steps have no standard error: there is one draw for the whole run, or too few steps"
        )
        message = f"delays are drawn from {cluster.delay}, the same for all techniques; {error}"
        notes.append(Note("delays-drawn", "info", message, {"delay": str(cluster.delay)}))
    hiding = [row.technique for row in rows if row.overlap_ratio]
    if hiding and not cluster.kappa and not cluster.kappa_comm:
        message = (
            f"{cluster.name} has no contention (kappa 0), so overlap is free here, unlike on real "
            "devices "
            f"({', '.join(hiding)}); `densing calibrate` measures it, and `densing techniques "
            "validate` shows what published runs imply"
        )
        notes.append(Note("no-contention", "info", message, {"techniques": hiding}))
    applied = [row for row in rows if row.status != DOES_NOT_APPLY]
    other = {row.technique: row.changes_loss for row in applied if row.changes_loss}
    if other:
        changes = "; ".join(f"{name}: {change}" for name, change in other.items())
        message = f"the computation changes, so loss per step may change; the simulator predicts times only ({changes})"
        notes.append(Note("other-training", "info", message, {"techniques": list(other)}))
    for row in applied:
        if reason := str(getattr(get_technique(row.technique), "experimental", "")):
            message = f"{row.technique} is experimental: {reason}"
            notes.append(Note("experimental", "warning", message, {"technique": row.technique}))
    silent = [row.technique for row in applied if row.changes_loss is None]
    if silent:
        message = f"{', '.join(silent)}: effect on loss per step unknown; the simulator predicts times only"
        notes.append(Note("loss-not-said", "info", message, {"techniques": silent}))
    return notes


def _too_large(rows: Sequence[Row], workload: Step, cluster: Cluster) -> list[Note]:
    """One note on the techniques that do not fit, one on those that barely do."""
    size, unit = workload.batch if isinstance(workload, Workload) else 0, "batch"
    if isinstance(workload, Gather):
        size, unit = workload.rows, "rows"
    elif isinstance(workload, Convex):
        size, unit = workload.n, "items"
    elif isinstance(workload, Served):
        size, unit = workload.tokens, "tokens"
    batch = f"batch {size}" if unit == "batch" else f"{size:,} {unit} a step"
    misfits = [row for row in rows if row.status == DOES_NOT_FIT]
    room = f"{cluster.device.name} has {cluster.device.memory / 1e9:,.0f} GB"
    notes = []
    if misfits:
        simulated = [row for row in rows if row.step_s is not None]
        fastest = min(simulated, key=lambda row: (row.step_s or 0.0, RANKS.index(row.status)))
        requirements = ", ".join(f"{row.technique} ({(row.memory_bytes or 0.0) / 1e9:,.1f} GB)" for row in misfits)
        details = {
            "techniques": [row.technique for row in misfits],
            unit: size,
            "need_gb": [(row.memory_bytes or 0.0) / 1e9 for row in misfits],
            "room_gb": cluster.device.memory / 1e9,
        }
        severity: Severity = "error" if fastest.status == DOES_NOT_FIT else "warning"
        also = ", and the fastest is one of them" if severity == "error" and len(misfits) < len(simulated) else ""
        notes.append(
            Note("memory", severity, f"does not fit at {batch}: {requirements}; {room} per device{also}", details)
        )
    tight = [
        row.technique
        for row in rows
        if row.status == FITS and (row.memory_bytes or 0.0) > TIGHT * (row.room_bytes or math.inf)
    ]
    if tight:
        message = (
            f"{', '.join(tight)}: tight at {batch}: more than {TIGHT:.0%} of memory, not counting buffers, "
            f"fragmentation and the driver; {room}"
        )
        notes.append(Note("memory-tight", "info", message, {"techniques": tight, unit: size}))
    return notes


MARGIN = 0.02
"""A speed-up within this of 1 is a tie."""

FACTORS = (1 / 16, 1 / 4, 1.0, 4.0, 16.0)
BATCHES = (1, 4, 16, 64)
LINKS = ("intra", "inter", "wide")


class Cell(Record, frozen=True):
    """One technique at one bandwidth, one batch and one number of replicas.

    Parameters
    ----------
    bandwidth_gbps : float
        Of the link that is varied, 10^9 bits per second.
    batch : int
        Sequences per data-parallel replica.
    technique : str
    step_s, speedup : float, optional
        None where it does not apply.
        None too for the speed-up of what does not fit in memory.
    verdict : {"wins", "ties", "loses", "does not fit", "does not apply"}
        Against the baseline, with a margin of 2 %.
    replicas : int
        Data-parallel.
    """

    bandwidth_gbps: float
    batch: int
    technique: str
    step_s: float | None
    speedup: float | None
    verdict: str
    replicas: int = 1


class RegimeMap(Record, frozen=True):
    """The cells, by bandwidth, batch, replicas and technique; which link was varied; and the baseline."""

    cells: tuple[Cell, ...]
    link: str
    baseline: str
    notes: tuple[Note, ...] = ()

    @property
    def across(self) -> str:
        """What varies beside the bandwidth: ``batch`` or ``replicas``."""
        return "replicas" if len({cell.replicas for cell in self.cells}) > 1 else "batch"

    def table(self) -> pd.DataFrame:
        """Return the cells as a table."""
        return Record.frame(self.cells)


def regime(
    workload: Workload,
    cluster: Cluster,
    techniques: Sequence[str],
    *,
    link: str | None = None,
    bandwidths_gbps: Sequence[float] = (),
    batches: Sequence[int] = BATCHES,
    replicas: Sequence[int] = (),
    knobs: Settings | None = None,
    baseline: str | None = None,
    ideal: bool = False,
    framework: str = FRAMEWORK,
    progress: Callable[[int, int], None] | None = None,
) -> RegimeMap:
    """Compare techniques over a grid of bandwidths and batches, or of bandwidths and numbers of replicas.

    Parameters
    ----------
    workload, cluster, techniques, knobs, baseline, ideal, framework
        As for :func:`densing.efficiency.systems.comparison.compare`.
    link : {"intra", "inter", "wide"}, optional
        Which link is varied; the one between nodes when left out, within the node where there is only one.
    bandwidths_gbps : sequence of float
        10^9 bits per second; when empty 1/16 to 16 times the cluster's own.
    batches : sequence of int
    replicas : sequence of int
        Instead of the batches, each on as many nodes as it needs: gathered bytes grow with the number of replicas,
        those of a ring all-reduce do not.
    progress : callable, optional
        Called with the cells done and the cells in all.

    Raises
    ------
    InputError
        When a bandwidth or a batch is not positive, or the link is not one of this cluster.
    """
    varied = link or ("inter" if cluster.n > cluster.per_node else "intra")
    if replicas and cluster.speed:
        raise InputError(f"cluster {cluster.name} has a speed per device, but a map over replicas needs equal devices")
    grid = _grid(cluster, varied, bandwidths_gbps, replicas or batches)
    cells: list[Cell] = []
    notes: dict[str, Note] = {}
    misfits: dict[str, dict[int, float]] = {}
    for number, (bandwidth, size) in enumerate(grid):
        each = replace(workload, split=replace(workload.split, dp=size)) if replicas else resized(workload, size)
        nodes = -(-each.split.ranks // cluster.per_node)
        # What would make a technique fit is searched for once, in the comparison proper, not in every cell.
        comparison = compare(
            each,
            cluster.change(
                n=nodes * cluster.per_node if replicas else cluster.n,
                **{varied: replace(getattr(cluster, varied), beta_s_per_byte=8e-9 / bandwidth)},
            ),
            techniques,
            knobs=knobs,
            baseline=baseline,
            remedies=False,
            ideal=ideal,
            framework=framework,
        )
        for row in sorted(comparison.rows, key=lambda row: list(techniques).index(row.technique)):
            misfit = row.status == DOES_NOT_FIT
            speedup = None if misfit else row.speedup
            outcome = DOES_NOT_FIT if misfit else verdict(speedup)
            cells.append(Cell(bandwidth, each.batch, row.technique, row.step_s, speedup, outcome, each.split.dp))
            if misfit:
                misfits.setdefault(row.technique, {})[size] = (row.memory_bytes or 0.0) / 1e9
        for note in comparison.notes:
            # A remark that holds of many cells is said once.
            if not note.code.startswith("memory"):
                notes.setdefault(note.code if note.severity == "info" else note.message, note)
        if progress is not None:
            progress(number + 1, len(grid))
    remarks = list(notes.values())
    if misfits:
        # One note on all cells: techniques that do not fit at the same sizes are named together.
        by_sizes: dict[tuple[int, ...], list[str]] = {}
        for name, need_of in misfits.items():
            by_sizes.setdefault(tuple(need_of), []).append(name)
        kind = "replicas" if replicas else "batch"
        cases = "; ".join(
            f"{', '.join(names)} at {kind} {', '.join(map(str, sizes))}" for sizes, names in by_sizes.items()
        )
        room = f"{cluster.device.name} has {cluster.device.memory / 1e9:,.0f} GB"
        need_gb = {name: {str(size): need for size, need in need_of.items()} for name, need_of in misfits.items()}
        remarks.append(Note("map-memory", "warning", f"map: does not fit, {room}: {cases}", {"need_gb": need_gb}))
    return RegimeMap(tuple(cells), varied, baseline or techniques[0], tuple(remarks))


def verdict(speedup: float | None) -> str:
    """Return the verdict on a speed-up.

    Examples
    --------
    >>> [verdict(value) for value in (1.3, 1.01, 0.9, None)]
    ['wins', 'ties', 'loses', 'does not apply']
    """
    if speedup is None:
        return "does not apply"
    if abs(speedup - 1) <= MARGIN:
        return "ties"
    return "wins" if speedup > 1 else "loses"


def _grid(cluster: Cluster, link: str, bandwidths: Sequence[float], batches: Sequence[int]) -> list[tuple[float, int]]:
    if link not in LINKS or getattr(cluster, link) is None:
        known = ", ".join(name for name in LINKS if getattr(cluster, name) is not None)
        raise InputError(f"cluster {cluster.name} has no link {link!r}; it has {known}")
    for value in (*bandwidths, *batches):
        if not 0 < value < float("inf"):
            raise InputError(f"{value} is not a valid bandwidth or batch of a map; give positive numbers")
    if not batches:
        raise InputError("the map has no batches; give some, as in 1,4,16")
    own = getattr(cluster, link).beta_s_per_byte
    if not bandwidths and not own:
        raise InputError(f"cluster {cluster.name}: its link {link} takes no time per byte; give the map's bandwidths")
    chosen = sorted({float(f"{value:.6g}") for value in bandwidths or [factor * 8e-9 / own for factor in FACTORS]})
    return [(bandwidth, batch) for bandwidth in chosen for batch in sorted(set(batches))]
