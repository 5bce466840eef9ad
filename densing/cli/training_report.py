"""The report of ``densing train``: timelines recorded and simulated, waiting against tau, predicted and measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from densing.cli.output import say
from densing.core import DensingError, Note

if TYPE_CHECKING:
    from densing.cli.training_runs import Row
    from densing.efficiency.parallel import Run, RunSpec
    from densing.efficiency.timeline import Timeline


def write_report(
    path: Path,
    specs: Sequence[RunSpec],
    runs: Sequence[Run],
    rows: Sequence[Row],
    cluster: str | None,
    notes: Sequence[Note],
) -> None:
    """Write one HTML file; a timeline that cannot be had becomes a note in it."""
    from densing.report import build_techniques

    told = list(notes)
    timelines: list[tuple[str, Timeline]] = []
    for spec, run in _firsts(specs, runs):
        for what, make in (("recorded", _recorded), ("simulated", lambda s, r: _simulated(s, cluster))):
            try:
                found = make(spec, run)
            except DensingError as error:
                told.append(Note("no-timeline", "warning", f"{run.technique}, {what}: {error}"))
                continue
            if found is not None:
                timelines.append((f"{run.technique}, {what}", found))
    build_techniques(path, timelines=timelines, tau=_tau(runs) or None, predicted=_both(rows) or None, notes=told)
    say(f"wrote {path}")


def _firsts(specs: Sequence[RunSpec], runs: Sequence[Run]) -> list[tuple[RunSpec, Run]]:
    """Return the first run of each technique."""
    found: dict[str, tuple[RunSpec, Run]] = {}
    for spec, run in zip(specs, runs, strict=True):
        found.setdefault(run.technique, (spec, run))
    return list(found.values())


def _recorded(spec: RunSpec, run: Run) -> Timeline | None:
    from densing.efficiency.traces import read_timeline

    return None if run.traces is None else read_timeline([Path(spec.out) / run.traces])


def _simulated(spec: RunSpec, cluster: str | None) -> Timeline | None:
    if cluster is None:
        return None
    from densing.efficiency.simulation import load_cluster
    from densing.efficiency.techniques import get_technique, timeline_of, workload_of_run

    known = load_cluster(cluster)
    plan = get_technique(spec.technique).plan(workload_of_run(spec), known, **spec.knobs)
    return timeline_of(plan, known)


def _tau(runs: Sequence[Run]) -> list[dict[str, Any]]:
    return [
        {
            "technique": run.technique,
            "tau": run.knobs["tau"],
            "link": run.link.rate,
            "exposed_s": run.wait_s,
            "step_s": run.step_s,
            "predicted": False,
        }
        for run in runs
        if "tau" in run.knobs
    ]


def _both(rows: Sequence[Row]) -> list[dict[str, Any]]:
    return [
        {"technique": row.technique, "quantity": what, "predicted": said, "measured": seen, "unit": "s"}
        for row in rows
        for what, said, seen in (
            ("step", row.predicted_step_s, row.step_s),
            ("waiting per step", row.predicted_wait_s, row.wait_s),
        )
        if said is not None
    ]
