"""What ``densing techniques compare`` reads and prints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import typer

from densing.cli.output import emit_plain, finish, say, show_notes, timed_bar, visible
from densing.cli.table import columns
from densing.core import InputError, Record, UnknownNameError, words

if TYPE_CHECKING:
    from densing.core import Note
    from densing.efficiency.simulation import Cluster, Workload
    from densing.efficiency.techniques import Comparison, RegimeMap
    from densing.efficiency.timeline import Timeline

Number = TypeVar("Number", int, float)


class Asked(Record, frozen=True):
    """The command line; see ``densing techniques compare --help``."""

    model: str
    cluster: str
    techniques: str
    baseline: str | None = None
    overrides: Mapping[str, Any] = msgspec.field(default_factory=dict)
    split: Mapping[str, int | None] = msgspec.field(default_factory=dict)
    nodes: int | None = None
    settings: tuple[str, ...] = ()
    map: bool = False
    link: str | None = None
    bandwidths: str | None = None
    batches: str | None = None
    html: Path | None = None
    json: bool = False


def answer(asked: Asked) -> None:
    """Compare, and print or write the result.

    Raises
    ------
    InputError
        When a name, a number or the split is wrong, or no technique works on this workload.
    """
    from densing.efficiency.techniques import compare, timelines

    _spare(asked)
    names = [name.strip() for name in asked.techniques.split(",") if name.strip()]
    knobs = settings(asked.settings)
    workload, cluster = set_up(asked)
    found = compare(workload, cluster, names, knobs=knobs, baseline=asked.baseline)
    if all(row.status == "does not apply" for row in found.rows):
        raise InputError(
            "no technique works here: " + "; ".join(f"{row.technique}: {row.reason}" for row in found.rows)
        )
    mapped = asked.map or asked.bandwidths or asked.batches or asked.link
    where = _map(asked, workload, cluster, names, knobs) if mapped else None
    if asked.html is not None:
        drawn = timelines(workload, cluster, found, knobs)
        _report(asked.html, found, where, drawn)
    if asked.json:
        emit_plain(payload(workload, cluster, found, where))
    else:
        typer.echo("\n".join(lines(workload, cluster, found, where)))
    notes = _all_notes(found, where)
    show_notes(notes)
    finish(notes)


def _spare(asked: Asked) -> None:
    """Refuse to write the report over what was read.

    Raises
    ------
    InputError
        When ``--html`` names the file of the model or the cluster.
    """
    for option, given in (("--model", asked.model), ("--cluster", asked.cluster)):
        read = Path(given)
        if asked.html is not None and read.is_file() and asked.html.resolve() == read.resolve():
            raise InputError(f"--html {asked.html}: is the file of {option}; choose another name")


def set_up(asked: Asked) -> tuple[Workload, Cluster]:
    """Return the workload, split over the cluster, and the cluster.

    Raises
    ------
    InputError
        When a name, a number or the split is wrong.
    """
    from densing.efficiency.simulation import load_cluster, load_workload
    from densing.efficiency.techniques import split_over

    cluster = load_cluster(asked.cluster)
    if asked.nodes is not None:
        cluster = load_cluster(asked.cluster, n=asked.nodes * cluster.per_node)
    given = {key: value for key, value in asked.overrides.items() if value is not None}
    return split_over(load_workload(asked.model, **given), cluster, **asked.split), cluster


def settings(texts: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """Parse ``TECHNIQUE.KNOB=VALUE``, each value as its knob says.

    Raises
    ------
    InputError
        When one has another form, is given twice, or its value is no value of the knob.
    UnknownNameError
        When there is no such technique or knob.

    Examples
    --------
    >>> settings(("co2.tau=12",))
    {'co2': {'tau': 12}}
    """
    from densing.efficiency.techniques import get_technique

    found: dict[str, dict[str, Any]] = {}
    for text in texts:
        place, equals, value = text.partition("=")
        name, dot, knob = place.rpartition(".")
        if not (equals and dot):
            raise InputError(f"--set {text}: write TECHNIQUE.KNOB=VALUE, as in co2.tau=48")
        kinds = {each.name: each.kind for each in get_technique(name).knobs}
        if knob not in kinds:
            raise UnknownNameError(f"knob of {name}:", knob, kinds)
        if knob in found.setdefault(name, {}):
            raise InputError(f"--set {text}: {place} is set twice; set it once")
        found[name][knob] = _value(text, value, kinds[knob])
    return found


def _value(text: str, value: str, kind: Callable[[str], Any]) -> Any:
    try:
        parsed = kind(value.strip())
    except InputError as error:
        raise InputError(f"--set {text}: {value!r} {error}") from error
    except (ValueError, TypeError) as error:
        raise InputError(f"--set {text}: {value!r} is no value of this knob ({error})") from error
    if isinstance(parsed, float) and not abs(parsed) < float("inf"):
        raise InputError(f"--set {text}: {value!r} is not a finite number")
    return parsed


def _map(
    asked: Asked, workload: Workload, cluster: Cluster, names: list[str], knobs: dict[str, dict[str, Any]]
) -> RegimeMap:
    from densing.efficiency.techniques import BATCHES, regime

    with timed_bar(quiet=asked.json, label="map") as show:
        return regime(
            workload,
            cluster,
            names,
            link=asked.link,
            bandwidths_gbps=numbers("--bandwidths", asked.bandwidths, float),
            batches=numbers("--batches", asked.batches, int) or BATCHES,
            knobs=knobs,
            baseline=asked.baseline,
            progress=lambda done, total: show("map", float(done), float(total)),
        )


def numbers(option: str, text: str | None, kind: Callable[[str], Number]) -> list[Number]:
    """Parse numbers with commas between; none of None.

    Raises
    ------
    InputError
        When one is no number.

    Examples
    --------
    >>> numbers("--batches", "1, 4", int)
    [1, 4]
    """
    try:
        return [kind(part) for part in (text or "").split(",") if part.strip()]
    except ValueError as error:
        raise InputError(f"{option} {text}: {error}; give numbers with commas between, as in 1,4,16") from error


def _all_notes(found: Comparison, where: RegimeMap | None) -> list[Note]:
    """Those of the comparison, and of the map what is not said already."""
    told = {note.code for note in found.notes if note.severity == "info"}
    return [*found.notes, *(note for note in (where.notes if where else ()) if note.code not in told)]


def _report(out: Path, found: Comparison, where: RegimeMap | None, drawn: list[tuple[str, Timeline]]) -> None:
    from densing.report import build_techniques

    notes = _all_notes(found, where)
    cells = where.cells if where else None
    build_techniques(out, compare=found.rows, regime=cells, timelines=drawn, notes=notes, baseline=found.baseline)
    say(f"wrote {out}")


def payload(workload: Workload, cluster: Cluster, found: Comparison, where: RegimeMap | None) -> dict[str, Any]:
    """Return what ``--json`` prints."""
    told = {
        "model": workload.model.name,
        "mode": workload.mode,
        "batch": workload.batch,
        "sequence": workload.sequence,
        "micro_batches": workload.micro_batches,
        "recompute": workload.recompute,
        "fused_attention": workload.fused_attention,
        "split": workload.split.to_dict(),
        "cluster": cluster.name,
        "devices": cluster.n,
        "title": found.title,
        **found.to_dict(),
    }
    return told if where is None else {**told, "map": where.to_dict()}


def lines(workload: Workload, cluster: Cluster, found: Comparison, where: RegimeMap | None) -> list[str]:
    """Return what is shown on a screen, line by line."""
    from densing.cli.techniques_map import map_lines
    from densing.efficiency.techniques import in_memory

    split = workload.split
    model, machine = visible(workload.model.name), visible(cluster.name)
    parts = f" in {workload.micro_batches} micro-batches" if workload.micro_batches > 1 else ""
    saving = [f"recompute {workload.recompute}"] if workload.recompute != "none" else []
    saving += ["sequence-parallel"] if split.sequence else []
    head = (
        f"{model}, {workload.mode}, batch {workload.batch} per replica{parts}, sequence {workload.sequence}; "
        f"{machine}: {cluster.n} devices, {split.ranks} used "
        f"({', '.join([f'dp {split.dp}', f'tp {split.tp}', f'pp {split.pp}', *saving])})"
    )
    title = ("technique", "memory", "step ms", "exposed ms", "hidden %", "MB sent", "GB memory", "speed-up", "loss")
    rows = [
        (
            row.technique,
            in_memory(row.status, row.room_bytes),
            _scaled(row.step_s, 1e3, 2),
            _scaled(row.exposed_comm_s, 1e3, 2),
            _scaled(row.overlap_ratio, 100, 1),
            _scaled(row.bytes, 1e-6, 1),
            _scaled(row.memory_bytes, 1e-9, 2),
            _scaled(row.speedup, 1, 3),
            "not said" if row.changes_loss is None else "changes" if row.changes_loss else "same",
        )
        for row in found.rows
    ]
    told = [
        f"simulated; per rank and step; speed-up over {found.baseline}",
        "loss: whether a step learns what one of plain synchronous training does",
        *(f"does not fit: {row.technique} {row.reason}" for row in found.rows if row.status == "does not fit"),
    ]
    return [
        visible(found.title),
        head,
        "",
        *columns(title, rows, left=2),
        "",
        *told,
        *(map_lines(where) if where else []),
    ]


def _scaled(value: float | None, factor: float, digits: int) -> str:
    return words.fixed(None if value is None else value * factor, digits)
