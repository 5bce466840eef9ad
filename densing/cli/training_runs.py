"""Run what was asked for, one after the other, and show what came out."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from densing.cli.output import emit_plain, finish, say, show_notes, timed_bar
from densing.cli.table import columns
from densing.core import Note, Record

if TYPE_CHECKING:
    from densing.efficiency.parallel import Run, RunSpec

SUMMARY = "summary.json"


class Row(Record, frozen=True):
    """A technique over its seeds; seconds are per step, ``predicted_*`` simulated beforehand or None."""

    technique: str
    seeds: tuple[int, ...]
    link: str
    link_kind: str
    stand_in: str
    step_s: float
    wait_s: float
    exposed: float
    final_loss: float
    final_loss_sd: float | None
    predicted_step_s: float | None = None
    predicted_wait_s: float | None = None
    predicted_tau_min: float | None = None


def answer(
    specs: Sequence[RunSpec], out: Path, *, resume: bool, predict: str | None, html: Path | None, json: bool
) -> None:
    """Run all, write a summary of several, print."""
    runnable(specs)
    predictions = [_predicted(spec, predict) for spec in specs]
    runs = [_run(spec, resume, quiet=json) for spec in specs]
    rows = table(specs, runs, predictions)
    notes = _notes(runs)
    several = len(runs) > 1
    found = _document(specs, runs, rows, notes, predictions) if several else _single(specs[0], runs[0], rows[0], notes)
    if several:
        _write(out / SUMMARY, found)
    if html is not None:
        from densing.cli.training_report import write_report

        write_report(html, specs, runs, rows, predict, notes)
    if json:
        emit_plain(found)
    else:
        typer.echo("\n".join(lines(runs, rows)))
        show_notes(notes)
        say(f"wrote {out}")
    finish(notes)


def runnable(specs: Sequence[RunSpec]) -> None:
    """Refuse at once what cannot be run, before the first of several runs has taken its time.

    Raises
    ------
    InputError, UnavailableError
        When a technique has a plan only, torch is missing, or a number makes no sense.
    """
    from densing.efficiency.parallel import check
    from densing.efficiency.techniques import find

    for spec in specs:
        find(spec)
        check(spec)


def _run(spec: RunSpec, resume: bool, quiet: bool) -> Run:
    from densing.efficiency.parallel import launch

    with timed_bar(quiet, spec.technique) as show:
        label = f"{spec.technique}, seed {spec.seed}"
        return launch(spec, resume=resume, on_step=lambda step: show(label, step, spec.steps))


def _predicted(spec: RunSpec, cluster: str | None) -> dict[str, Any] | None:
    """Return what the simulator says of a run, before it is made."""
    if cluster is None:
        return None
    from densing.efficiency.simulation import load_cluster
    from densing.efficiency.techniques import predict

    return dict(predict(spec, load_cluster(cluster)).to_dict())


def table(specs: Sequence[RunSpec], runs: Sequence[Run], predictions: Sequence[dict[str, Any] | None]) -> list[Row]:
    """Average over seeds: one row per technique, in the order of the runs."""
    rows = []
    for name in dict.fromkeys(run.technique for run in runs):
        own = [run for run in runs if run.technique == name]
        said = next(each for spec, each in zip(specs, predictions, strict=True) if spec.technique == name) or {}
        losses = [run.final_loss for run in own]
        rows.append(
            Row(
                technique=name,
                seeds=tuple(run.seed for run in own),
                link=own[0].link.rate,
                link_kind=own[0].link.kind,
                stand_in=own[0].stand_in,
                step_s=statistics.fmean(run.step_s for run in own),
                wait_s=statistics.fmean(run.wait_s for run in own),
                exposed=statistics.fmean(run.exposed for run in own),
                final_loss=statistics.fmean(losses),
                final_loss_sd=statistics.stdev(losses) if len(losses) > 1 else None,
                predicted_step_s=said.get("step_s"),
                predicted_wait_s=said.get("exposed_s"),
                predicted_tau_min=said.get("tau_min"),
            )
        )
    return rows


def _notes(runs: Sequence[Run]) -> list[Note]:
    notes = []
    for run in runs:
        if run.link.kind == "emulated":
            why = f" ({run.link.reason})" if run.link.reason else ""
            message = f"the link is emulated{why}: waiting was added to loopback; no real network carried these bytes"
            notes.append(Note("emulated-link", "warning", message))
        if run.stand_in:
            notes.append(Note("stand-in", "warning", f"{run.technique}: {run.stand_in}"))
    return list({note.message: note for note in notes}.values())


def _single(spec: RunSpec, run: Run, row: Row, notes: Sequence[Note]) -> dict[str, Any]:
    predicted = {name: value for name, value in row.to_dict().items() if name.startswith("predicted_")}
    return {**run.to_dict(), **predicted, "out": spec.out, "notes": [note.to_dict() for note in notes]}


def _document(
    specs: Sequence[RunSpec],
    runs: Sequence[Run],
    rows: Sequence[Row],
    notes: Sequence[Note],
    predictions: Sequence[dict[str, Any] | None],
) -> dict[str, Any]:
    each = [
        {**run.to_dict(), "out": spec.out, "predicted": said}
        for spec, run, said in zip(specs, runs, predictions, strict=True)
    ]
    return {"rows": [row.to_dict() for row in rows], "runs": each, "notes": [note.to_dict() for note in notes]}


def _write(path: Path, found: dict[str, Any]) -> None:
    from densing.efficiency.parallel import write_json

    write_json(path, found)


def lines(runs: Sequence[Run], rows: Sequence[Row]) -> list[str]:
    """Return what is shown on a screen, line by line."""
    first = runs[0]
    link = first.link.rate if first.link.kind == "none" else f"{first.link.rate}, {first.link.kind}"
    head = (
        f"{first.nproc} ranks, {first.steps} steps, {first.parameters:,} parameters, {first.tokens} tokens per step; "
        f"link: {link}"
    )
    title = ("technique", "seeds", "step ms", "waiting ms", "waiting %", "loss", "predicted ms", "predicted waiting ms")
    cells = [
        (
            row.technique + (" (stand-in)" if row.stand_in else ""),
            ",".join(map(str, row.seeds)),
            _ms(row.step_s),
            _ms(row.wait_s),
            f"{100 * row.exposed:.1f}",
            _loss(row),
            _ms(row.predicted_step_s),
            _ms(row.predicted_wait_s),
        )
        for row in rows
    ]
    return [
        head,
        "",
        *columns(title, cells),
        "",
        "measured; waiting: the training thread stood still for communication",
    ]


def _ms(seconds: float | None) -> str:
    return "–" if seconds is None else f"{1e3 * seconds:.1f}"


def _loss(row: Row) -> str:
    return f"{row.final_loss:.4f}" + ("" if row.final_loss_sd is None else f" ± {row.final_loss_sd:.4f}")
