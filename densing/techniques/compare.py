"""Techniques side by side: the same workload on the same cluster, figures from the simulated timelines alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from densing.errors import InputError, UnknownNameError
from densing.notes import Note
from densing.records import Record
from densing.techniques.measure import Measured, measure, timeline_of
from densing.techniques.protocol import Technique
from densing.techniques.registry import BUILT_IN, get_technique

if TYPE_CHECKING:
    import pandas as pd

    from densing.cluster.cluster import Cluster
    from densing.timeline.timeline import Timeline
    from densing.workload.workload import Workload

Settings = Mapping[str, Mapping[str, Any]]
"""Knobs by technique."""

OTHER_TRAINING = frozenset({"local-sgd", "slowmo", "co2", "ladder", "parallel-attention"})
"""Those that compute something else than plain training does."""


class Row(Record, frozen=True):
    """What one technique does to a step.

    Parameters
    ----------
    technique : str
    status : {"simulated", "does not apply"}
    step_s : float, optional
        Seconds per step, in the steady state; this and all below None where the technique does not apply.
    exposed_comm_s : float, optional
        Seconds per step in which a rank communicates and does not compute, mean of the ranks.
    overlap_ratio : float, optional
        Share of the communication that is hidden behind compute; None without communication.
    bytes : float, optional
        Put into communication per rank and step.
    speedup : float, optional
        Step of the baseline over this one's.
    memory_bytes : float, optional
        Per rank.
    bytes_per_link : mapping of str to float
        The bytes by the slowest link that the group of the communication spans: intra, inter, wide.
    memory : mapping of str to float
        Bytes per rank by purpose.
    reason : str
        Why the technique does not apply.
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


class Comparison(Record, frozen=True):
    """Rows in the order asked for, the technique they are measured against, and remarks."""

    rows: tuple[Row, ...]
    baseline: str
    notes: tuple[Note, ...] = ()

    def table(self) -> pd.DataFrame:
        """Return the rows as a table."""
        return Record.frame(self.rows)


def compare(
    workload: Workload,
    cluster: Cluster,
    techniques: Sequence[str],
    *,
    knobs: Settings | None = None,
    baseline: str | None = None,
) -> Comparison:
    """Simulate techniques on one workload and one cluster.

    Parameters
    ----------
    workload : Workload
    cluster : Cluster
    techniques : sequence of str
        Names, as :func:`densing.techniques.registry.technique_names` gives them.
    knobs : mapping of str to mapping, optional
        Settings that differ from the defaults: ``{"co2": {"tau": 48}}``.
    baseline : str, optional
        Whose step the speed-ups are relative to; the first technique when left out.

    Returns
    -------
    Comparison
        A technique that cannot work on this workload has a row that says so, and a note.

    Raises
    ------
    InputError
        When a name or a knob is unknown, none or one is named twice.
    """
    named = _checked(techniques, knobs or {}, baseline)
    reference = baseline or techniques[0]
    found = {name: _try(get_technique(name), workload, cluster, (knobs or {}).get(name, {})) for name in named}
    base = found[reference]
    step = base.step_s if isinstance(base, Measured) else None
    rows = tuple(_row(name, found[name], step) for name in techniques)
    return Comparison(rows, reference, (*_notes(rows, cluster), *_no_baseline(reference, base)))


def timelines(
    workload: Workload, cluster: Cluster, found: Comparison, knobs: Settings | None = None
) -> list[tuple[str, Timeline]]:
    """Return the simulated timeline of each technique of a comparison that applies, to be drawn."""
    named = [row.technique for row in found.rows if row.status == "simulated"]
    plans = {name: get_technique(name).plan(workload, cluster, **(knobs or {}).get(name, {})) for name in named}
    return [(name, timeline_of(plan, cluster)) for name, plan in plans.items()]


def _checked(techniques: Sequence[str], knobs: Settings, baseline: str | None) -> list[str]:
    if not techniques:
        raise InputError("no technique to compare; name some, as in ddp,co2,ladder")
    twice = sorted({name for name in techniques if list(techniques).count(name) > 1})
    if twice:
        raise InputError(f"technique {twice[0]!r} is named twice; name it once")
    named = list(dict.fromkeys([*techniques, *([baseline] if baseline else [])]))
    for name in named:
        get_technique(name)
    for name, values in knobs.items():
        if name not in named:
            raise UnknownNameError("technique among those compared:", name, named)
        for knob in values:
            known = [each.name for each in get_technique(name).knobs]
            if knob not in known:
                raise UnknownNameError(f"knob of {name}:", knob, known)
    return named


def _try(technique: Technique, workload: Workload, cluster: Cluster, knobs: Mapping[str, Any]) -> Measured | InputError:
    try:
        return measure(technique.plan(workload, cluster, **knobs), cluster)
    except InputError as error:
        return error
    except Exception as error:
        if technique.name in BUILT_IN:
            raise
        # Code of another package: its row says so, the others stand.
        return InputError(f"its plan broke ({type(error).__name__}: {error}); report it to whoever wrote it")


def _row(name: str, found: Measured | InputError, base: float | None) -> Row:
    if isinstance(found, InputError):
        return Row(name, "does not apply", reason=str(found))
    return Row(
        technique=name,
        status="simulated",
        step_s=found.step_s,
        exposed_comm_s=found.exposed_comm_s,
        overlap_ratio=found.overlap_ratio,
        bytes=found.bytes,
        speedup=base / found.step_s if base and found.step_s else None,
        memory_bytes=sum(found.memory.values()) if found.memory else None,
        bytes_per_link=found.bytes_per_link,
        memory=found.memory,
    )


def _notes(rows: Sequence[Row], cluster: Cluster) -> list[Note]:
    found = [_cannot(row) for row in rows if row.status != "simulated"]
    room = cluster.device.memory
    found += [_too_large(row, cluster) for row in rows if room and row.memory_bytes and row.memory_bytes > room]
    hiding = [row.technique for row in rows if row.overlap_ratio]
    if hiding and not cluster.kappa and not cluster.kappa_comm:
        message = (
            f"{cluster.name} knows no contention (kappa 0): hiding costs nothing here, on devices it does "
            f"({', '.join(hiding)}); `densing calibrate` measures it, `densing techniques validate` says what "
            "published runs imply"
        )
        found.append(Note("no-contention", "info", message, {"techniques": hiding}))
    other = [row.technique for row in rows if row.technique in OTHER_TRAINING and row.status == "simulated"]
    if other:
        message = f"{', '.join(other)}: what is computed changes, so loss per step may; the simulator tells times only"
        found.append(Note("other-training", "info", message, {"techniques": other}))
    return found


def _cannot(row: Row) -> Note:
    own = row.reason.startswith(row.technique)
    message = row.reason if own else f"{row.technique}: {row.reason}"
    return Note("does-not-apply", "warning", message, {"technique": row.technique})


def _too_large(row: Row, cluster: Cluster) -> Note:
    need, room = (row.memory_bytes or 0.0) / 1e9, cluster.device.memory / 1e9
    message = (
        f"{row.technique}: needs {need:,.1f} GB per device and {cluster.device.name} has {room:,.0f} GB; split more"
    )
    return Note("memory", "warning", message, {"technique": row.technique, "need_gb": need, "room_gb": room})


def _no_baseline(name: str, base: Measured | InputError) -> list[Note]:
    if isinstance(base, Measured):
        return []
    message = f"no speed-ups: the baseline {name} does not apply here ({base}); choose another baseline"
    return [Note("no-baseline", "warning", message, {"baseline": name})]
