"""``densing calibrate``: a link's latency, bandwidth and contention, and how late ranks are, from runs or measured."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from msgspec import structs

from densing.cli.grouped import grouped
from densing.cli.options import JsonFlag
from densing.cli.output import emit_plain, finish, say, show_notes, timed_bar
from densing.cli.train import ShapeOptions
from densing.core import InputError, Note, UnknownNameError, aligned, doubts, formatting, write_text

if TYPE_CHECKING:
    from densing.efficiency.parallel import RunSpec
    from densing.efficiency.simulation import Calibration, Cluster, Computation, DelayFit, Device, Estimate

MODES = ("train", "prefill")


@dataclass(frozen=True)
class ProbeOptions:
    """What is measured on this machine, in place of recorded runs."""

    link: Annotated[
        str | None,
        typer.Option(help="Measure this link instead, as in `densing train` (200mbit, emulated:200mbit, none)."),
    ] = None
    nproc: Annotated[int, typer.Option(min=2, help="With --link: number of ranks.")] = 2
    model: Annotated[str, typer.Option(help="With --link: model whose modules are timed (tiny, small or medium).")] = (
        "small"
    )
    batch: Annotated[int, typer.Option(min=1, help="With --link: sequences per rank and step.")] = 4
    sequence: Annotated[int, typer.Option(min=1, help="With --link: tokens per sequence.")] = 128
    mode: Annotated[str, typer.Option(help="With --link: train, or prefill (forward only).")] = "train"
    repeats: Annotated[int, typer.Option(min=4, help="With --link: timed repetitions per module.")] = 12
    timeout: Annotated[float, typer.Option(help="With --link: timeout of a rank, seconds.")] = 120.0

    def spec(self, folder: str, shape: ShapeOptions) -> RunSpec:
        """Return the measurement as a run whose ranks write into a folder."""
        from densing.efficiency.parallel import RunSpec

        assert self.link is not None, "without a link nothing is measured"
        return RunSpec(
            "probe",
            {"mode": self.mode},
            nproc=self.nproc,
            steps=self.repeats,
            model=shape.of(self.model),
            batch=self.batch,
            sequence=self.sequence,
            link=self.link,
            out=str(Path(folder) / "probe"),
            trace_steps=0,
            timeout_s=self.timeout,
        )


@grouped("model layers hidden heads ffn")
def calibrate(
    *,
    paths: Annotated[
        list[Path] | None,
        typer.Argument(help="Recorded runs: folders or zip archives of traces, one file per rank.", metavar="PATH..."),
    ] = None,
    probe: ProbeOptions,
    shape: ShapeOptions,
    base: Annotated[
        str | None,
        typer.Option(help="Cluster that supplies all other figures (preset or TOML); default: cpu2 for runs on CPUs."),
    ] = None,
    level: Annotated[
        str | None,
        typer.Option(help="Link the runs used: intra, inter or wide; default: from the ranks per node."),
    ] = None,
    delays: Annotated[
        bool,
        typer.Option(
            "--delays",
            help="Also fit a delay model of the ranks; needs marked steps and leaves links less well determined.",
        ),
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write the cluster as TOML, usable as --cluster FILE.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Fit latency (alpha), bandwidth (beta) and contention (kappa) by least squares, and say how well they fit.

    From traces of runs, or with --link from a measurement of its own on this machine (about a minute).
    Runs of `densing train` (a folder with their spec.json) also tell the device: its rates are scaled so that a step
    computes for as long as recorded. What the runs cannot tell stays as in the base, and is listed.
    With --delays also how much longer than its work a rank's step takes, by likelihood: shifted exponential or Pareto,
    drawn anew in every step (iid) or kept by a rank (persistent).
    Exit codes: 0 done, 1 user error, 2 usage, 3 no link could be fitted (with --delays: no delay).

    Example: densing calibrate traces/ --base a100x8-rdma --out mine.toml

    Example: densing calibrate traces/ --delays --base a100x8-rdma --out mine.toml

    Example: densing calibrate --link 200mbit --nproc 2 --out link.toml
    """
    if bool(paths) == (probe.link is not None):
        raise typer.BadParameter("give recorded runs, or --link to measure one", param_hint="PATH")
    if out is not None and out.suffix != ".toml":
        raise typer.BadParameter(f"{out}: the name must end in .toml", param_hint="--out")
    if probe.link is None:
        measured = _from_traces(tuple(paths or ()), base, level, delays)
    else:
        if base is not None or level is not None or delays:
            raise typer.BadParameter("--base, --level and --delays apply to recorded runs only", param_hint="--link")
        if probe.mode not in MODES:
            raise UnknownNameError("mode", probe.mode, MODES)
        with tempfile.TemporaryDirectory(prefix="densing-calibrate-") as folder:
            measured = _from_link(probe.spec(folder, shape), quiet=json)
    written = None
    if out is not None:
        if measured.cluster is None:
            reasons = "; ".join(note.message for note in measured.notes)
            raise InputError(f"{out}: not written, because no cluster could be fitted: {reasons}")
        from densing.efficiency.simulation import to_toml

        write_text(out, to_toml(measured.cluster))
        written = str(out)
    if json:
        fit = measured.calibration.to_dict()
        fit.pop("notes")
        cluster = None if measured.cluster is None else measured.cluster.to_dict()
        notes = [note.to_dict() for note in measured.notes]
        more = {} if measured.delays is None else {"delays": measured.delays.to_dict()}
        about = dict(measured.about)
        emit_plain({**fit, "about": about, **more, "cluster": cluster, "written": written, "notes": notes})
    else:
        typer.echo("\n".join(_lines(measured.calibration, measured.about)))
        if measured.delays is not None:
            typer.echo("\n".join(("", *_delay_lines(measured.delays))))
        show_notes(measured.notes)
        if written:
            say(f"wrote {written}")
    finish(measured.notes)


class CalibrationResult(NamedTuple):
    """A fit, the cluster it makes (None where it does not suffice), and what there is to say."""

    calibration: Calibration
    cluster: Cluster | None
    notes: tuple[Note, ...]
    about: Mapping[str, Any]
    delays: DelayFit | None = None


def _from_traces(paths: tuple[Path, ...], base: str | None, level: str | None, delays: bool) -> CalibrationResult:
    """Fit recorded runs.

    Raises
    ------
    InputError
        When nothing can be read, or the base cluster is needed and not given.
    """
    from densing.efficiency.profile import largest_run, recorded
    from densing.efficiency.simulation import Calibration, Figure, calibrate, delayed, load_cluster

    cluster = None if base is None else load_cluster(base)
    recording = recorded(paths)
    notes = [*doubts(recording.notes)]
    fit = largest_run(recording.own).fit() if delays else None
    if fit is not None and not recording.collectives and not recording.computations:
        calibration = Calibration(None, None, None, None, None, None, 0, 0)
    else:
        calibration = calibrate(recording.collectives, recording.computations)
    if fit is None:
        notes += calibration.notes
    else:
        # What was asked for is the delay: it is not an error that the runs do not tell a link.
        notes += [replace(note, severity="warning") for note in calibration.notes]
        notes += fit.notes
        if fit.delay is None:
            notes.append(Note("no-delay", "error", "no delay model could be fitted"))
    about: dict[str, Any] = {"source": [str(path) for path in paths], "ranks": recording.ranks}
    about["link_kind"] = "recorded"
    if cluster is None and recording.on_host:
        cluster = load_cluster("cpu2")
    if cluster is None:
        text = "the traces do not describe devices and other links, so no cluster is written; name one with --base"
        return CalibrationResult(calibration, None, (*notes, Note("no-base", "info", text)), about, fit)
    cluster = cluster.change(name=f"{cluster.name}, calibrated", n=max(cluster.n, recording.ranks))
    level = level or ("intra" if recording.ranks <= cluster.per_node else "inter")
    source = f"densing calibrate: {calibration.observations} communications of {recording.ranks} ranks, recorded"
    measured = _calibrated(cluster, calibration, level, source)
    if fit is not None and fit.delay is not None:
        size = f"{formatting.plural(fit.ranks, 'rank')}, {formatting.plural(fit.steps, 'step')}"
        seen = f"densing calibrate --delays: {size}, recorded"
        measured = delayed(measured or cluster, fit, seen)
    device, told = _device(paths, recording.steps, measured or cluster)
    if device is None:
        notes.append(Note("compute-unknown", "warning", told))
    else:
        about["device"] = {"flops": device.flops, "mem_bw": device.mem_bw, "about": told}
        if measured is not None:
            figure = Figure(f"densing calibrate: {told}; the ratio of both rates is the base's", "measured")
            sources = dict.fromkeys(("device.flops", "device.mem_bw"), figure)
            measured = measured.change(device=device, sources={**measured.sources, **sources})
    if measured is not None:
        kept = sorted({key for key, figure in measured.sources.items() if figure.evidence != "measured"})
        text = f"not told by the runs, and kept from {base or 'cpu2'}: {', '.join(kept)}"
        notes.append(Note("kept-from-base", "info", text, {"fields": kept}))
    return CalibrationResult(calibration, measured, tuple(notes), {**about, "level": level}, fit)


def _device(paths: tuple[Path, ...], steps: Sequence[Computation], cluster: Cluster) -> tuple[Device | None, str]:
    """Scale the cluster's device to the computing of the first run whose specification lies beside its traces.

    Returns
    -------
    Device or None
        None where no run tells the operations of a step.
    str
        What it rests on, or why there is none.
    """
    from densing.efficiency.parallel import RunSpec, folder
    from densing.efficiency.systems import device_of_run

    slower = cluster.kappa / (1 + cluster.kappa)
    for number, path in enumerate(path for path in paths if path.is_dir()):
        file = next((place / folder.SPEC for place in (path, path.parent) if (place / folder.SPEC).is_file()), None)
        # What the cluster says of computing beside communication is taken out: it puts it in again.
        took = [one.seconds * (1 - one.overlapped * slower) for one in steps if one.work == str(number)]
        if file is not None and took:
            spec = RunSpec.from_dict(folder.read_json(file))
            seconds = statistics.median(took)
            device = device_of_run(spec, cluster, seconds)
            told = f"{len(took)} steps of {spec.technique} compute {formatting.milliseconds(1e3 * seconds)} each"
            return structs.replace(device, name=f"{device.name}, calibrated"), told
    text = "the traces do not tell how many operations a step computes" if steps else "no step is marked"
    remedy = f"give a folder of `densing train --out` with its {folder.SPEC}, or measure with --link"
    return None, f"{text}, so the device stays as it was; {remedy}"


def _from_link(spec: RunSpec, quiet: bool) -> CalibrationResult:
    """Measure a link and this machine's processors, and fit both.

    Raises
    ------
    InputError, UnavailableError
        When the link or the model make no sense, or torch is missing.
    """
    from densing.efficiency.parallel import PROBE_FILE, Probed, folder, launch
    from densing.efficiency.simulation import Figure, calibrate, load_cluster

    with timed_bar(quiet) as show:
        show("measuring", 0.0, None)
        link = launch(spec).link
    probed = Probed.from_dict(folder.read_json(Path(spec.out) / PROBE_FILE))
    calibration = calibrate(probed.collectives, probed.computations)
    kind = link.kind if link.kind != "none" else "loopback"
    lm = spec.model
    source = f"densing calibrate --link {spec.link} ({kind}), {spec.nproc} ranks"
    model = f"{lm.layers} layers of {lm.hidden}, batch {spec.batch}, sequence {spec.sequence}, {probed.mode}"
    cluster = load_cluster("cpu2").change(
        name=f"cpu{spec.nproc}-{kind}-{link.rate}",
        n=spec.nproc,
        device=probed.device(),
        pipelined=probed.pipelined,
    )
    figure = Figure(f"{source}; {model}", "measured")
    fields = ("device.flops", "device.mem_bw", "device.measured", "pipelined")
    cluster = cluster.change(sources={**cluster.sources, **dict.fromkeys(fields, figure)})
    notes = list(calibration.notes)
    if link.kind == "emulated":
        text = f"the link is emulated ({link.reason or 'asked for'}): it takes none of the processor's time"
        notes.append(Note("link-emulated", "warning", text))
    about = {
        "source": source, "ranks": spec.nproc, "link_kind": kind, "level": "inter", "model": model,
        "pipelined": probed.pipelined,
    }  # fmt: skip
    return CalibrationResult(calibration, _calibrated(cluster, calibration, "inter", source), tuple(notes), about)


def _calibrated(cluster: Cluster, calibration: Calibration, level: str, source: str) -> Cluster | None:
    """Return the cluster with what was fitted; None where latency or bandwidth are not known."""
    from densing.efficiency.simulation import calibrated

    fitted = calibration.alpha_s is not None and calibration.beta_s_per_byte is not None
    return calibrated(cluster, calibration, level, source) if fitted else None


def _lines(fit: Calibration, about: Mapping[str, Any]) -> list[str]:
    rate = fit.beta_s_per_byte
    rows = [
        ("alpha", *_shown(fit.alpha_s, 1e6), "us per message"),
        ("beta", *_shown(rate, 1e9), "ns per byte"),
        ("kappa", *_shown(fit.kappa, 1.0), "slowdown of compute beside communication"),
        ("kappa_comm", *_shown(fit.kappa_comm, 1.0), "slowdown of communication beside compute"),
    ]
    lines = aligned(("figure", "value", "95 % interval", "unit"), rows)
    residual = "–" if fit.residual is None else f"{100 * fit.residual:.1f} %"
    lines.append("")
    lines.append(
        f"{fit.observations} communications of {about['ranks']} ranks ({about['link_kind']}), "
        f"{fit.computations} computations; relative residual {residual}"
    )
    if "pipelined" in about:
        share = about["pipelined"]
        lines.append(f"of a collective's latency {100 * share:.0f} % pass beside another one of the same group")
    if "device" in about:
        lines.append(f"device {about['device']['flops'] / 1e9:.4g} GFLOP/s: {about['device']['about']}")
    if rate is not None and rate.value > 0:
        lines.append(f"bandwidth {8e-6 / rate.value:.4g} Mbit/s")
    return lines


def _delay_lines(fit: DelayFit) -> list[str]:
    """Return the models that were compared, the best first, and what came out."""
    rows = [
        (
            model.name,
            *(_shown(one, 1.0)[0] for one in (model.work, model.mu, model.scale, model.shape)),
            f"{model.log_likelihood:.1f}",
            f"{model.bic - fit.models[0].bic:.1f}",
            f"{model.distance:.3f}",
            f"{model.p:.3g}",
        )
        for model in fit.models
    ]
    header = ("delays", "work s", "mu /s", "scale s", "shape", "log-likelihood", "criterion +", "KS", "p")
    return [*(aligned(header, rows) if rows else ()), f"delays: {fit.sentence}"]


def _shown(estimate: Estimate | None, scale: float) -> tuple[str, str]:
    if estimate is None:
        return "–", "–"
    return f"{estimate.value * scale:.4g}", f"{estimate.low * scale:.4g} to {estimate.high * scale:.4g}"
