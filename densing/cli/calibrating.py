"""Parts of ``densing calibrate``: where observations come from, and what is printed of the fit."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from densing.core import InputError, Note, UnknownNameError, doubts

if TYPE_CHECKING:
    from densing.efficiency.simulation import Calibration, Cluster, Estimate

MODES = ("train", "prefill")


class Asked(NamedTuple):
    """What is to be measured."""

    link: str
    nproc: int
    model: str
    changes: Mapping[str, int | None]
    batch: int
    sequence: int
    mode: str
    repeats: int
    timeout_s: float


class Measured(NamedTuple):
    """A fit, the cluster it makes (None where it does not suffice), and what there is to say."""

    found: Calibration
    cluster: Cluster | None
    notes: tuple[Note, ...]
    about: Mapping[str, Any]


def check_out(out: Path | None) -> None:
    """Refuse a name that could not be used as a cluster's."""
    if out is not None and out.suffix != ".toml":
        raise typer.BadParameter(f"{out}: the name must end in .toml", param_hint="--out")


def from_traces(paths: Sequence[Path], base: str | None, level: str | None) -> Measured:
    """Fit recorded runs.

    Raises
    ------
    InputError
        When nothing can be read, or the base cluster is needed and not given.
    """
    from densing.efficiency.profile import recorded
    from densing.efficiency.simulation import calibrate, load_cluster

    cluster = None if base is None else load_cluster(base)
    seen = recorded(paths)
    found = calibrate(seen.collectives, seen.computations)
    about = {"source": [str(path) for path in paths], "ranks": seen.ranks, "link_kind": "recorded"}
    notes = (*doubts(seen.notes), *found.notes)
    if cluster is None and seen.on_host:
        cluster = load_cluster("cpu2")
    if cluster is None:
        text = "the traces do not say what devices and other links there are: no cluster is made; name one with --base"
        return Measured(found, None, (*notes, Note("no-base", "info", text)), about)
    cluster = cluster.change(name=f"{cluster.name}, calibrated", n=max(cluster.n, seen.ranks))
    chosen = level or ("intra" if seen.ranks <= cluster.per_node else "inter")
    told = f"densing calibrate: {found.observations} communications of {seen.ranks} ranks, recorded"
    return Measured(found, _with(cluster, found, chosen, told), notes, {**about, "level": chosen})


def _with(cluster: Cluster, found: Calibration, level: str, told: str) -> Cluster | None:
    from densing.efficiency.simulation import calibrated

    fitted = found.alpha_s is not None and found.beta_s_per_byte is not None
    return calibrated(cluster, found, level, told) if fitted else None


def from_link(asked: Asked, quiet: bool) -> Measured:
    """Measure a link and this machine's processors, and fit both.

    Raises
    ------
    InputError, UnavailableError
        When the link or the model make no sense, or torch is missing.
    """
    from densing.cli.output import timed_bar
    from densing.cli.training_specs import shape
    from densing.efficiency.parallel import RunSpec, launch

    if asked.mode not in MODES:
        raise UnknownNameError("mode", asked.mode, MODES)
    with tempfile.TemporaryDirectory(prefix="densing-calibrate-") as folder, timed_bar(quiet) as show:
        show("measuring", 0.0, None)
        spec = RunSpec(
            "probe",
            {"mode": asked.mode},
            nproc=asked.nproc,
            steps=asked.repeats,
            model=shape(asked.model, **asked.changes),
            batch=asked.batch,
            sequence=asked.sequence,
            link=asked.link,
            out=str(Path(folder) / "probe"),
            trace_steps=0,
            timeout_s=asked.timeout_s,
        )
        run = launch(spec)
        return _of_probe(spec, run.link, Path(spec.out))


def _of_probe(spec: Any, link: Any, out: Path) -> Measured:
    from densing.efficiency.parallel import FILE, Probed, folder
    from densing.efficiency.simulation import Figure, calibrate, load_cluster

    probed = Probed.from_dict(folder.read_json(out / FILE))
    found = calibrate(probed.collectives, probed.computations)
    kind = link.kind if link.kind != "none" else "loopback"
    lm = spec.model
    told = f"densing calibrate --link {spec.link} ({kind}), {spec.nproc} ranks"
    model = f"{lm.layers} layers of {lm.hidden}, batch {spec.batch}, sequence {spec.sequence}, {probed.mode}"
    cluster = load_cluster("cpu2").change(
        name=f"cpu{spec.nproc}-{kind}-{link.rate}",
        n=spec.nproc,
        device=probed.device(),
        pipelined=probed.pipelined,
    )
    figure = Figure(f"{told}; {model}", "measured")
    fields = ("device.flops", "device.mem_bw", "device.measured", "pipelined")
    cluster = cluster.change(sources={**cluster.sources, **dict.fromkeys(fields, figure)})
    notes = list(found.notes)
    if link.kind == "emulated":
        text = f"the link is emulated ({link.reason or 'asked for'}): it takes none of the processor's time"
        notes.append(Note("link-emulated", "warning", text))
    about = {
        "source": told, "ranks": spec.nproc, "link_kind": kind, "level": "inter", "model": model,
        "pipelined": probed.pipelined,
    }  # fmt: skip
    return Measured(found, _with(cluster, found, "inter", told), tuple(notes), about)


def answer(measured: Measured, out: Path | None, json: bool) -> None:
    """Write the cluster, print the fit, and leave with exit code 3 if there is none."""
    from densing.cli.output import emit_plain, finish, say, show_notes

    found, written = measured.found, None
    if out is not None:
        if measured.cluster is None:
            told = "; ".join(note.message for note in measured.notes)
            raise InputError(f"{out}: not written, no cluster came out: {told}")
        from densing.core import write_text
        from densing.efficiency.simulation import to_toml

        write_text(out, to_toml(measured.cluster))
        written = str(out)
    if json:
        emit_plain(_document(measured, written))
    else:
        typer.echo("\n".join(_lines(found, measured.about)))
        show_notes(measured.notes)
        if written:
            say(f"wrote {written}")
    finish(measured.notes)


def _document(measured: Measured, written: str | None) -> dict[str, Any]:
    found = measured.found.to_dict()
    found.pop("notes")
    cluster = None if measured.cluster is None else measured.cluster.to_dict()
    notes = [note.to_dict() for note in measured.notes]
    return {**found, "about": dict(measured.about), "cluster": cluster, "written": written, "notes": notes}


def _lines(found: Calibration, about: Mapping[str, Any]) -> list[str]:
    from densing.cli.table import columns

    rate = found.beta_s_per_byte
    rows = [
        ("alpha", *_shown(found.alpha_s, 1e6), "us per message"),
        ("beta", *_shown(rate, 1e9), "ns per byte"),
        ("kappa", *_shown(found.kappa, 1.0), "slowdown of compute beside communication"),
        ("kappa_comm", *_shown(found.kappa_comm, 1.0), "slowdown of communication beside compute"),
    ]
    lines = columns(("figure", "value", "95 % interval", "unit"), rows)
    residual = "–" if found.residual is None else f"{100 * found.residual:.1f} %"
    lines.append("")
    lines.append(
        f"{found.observations} communications of {about['ranks']} ranks ({about['link_kind']}), "
        f"{found.computations} computations; relative residual {residual}"
    )
    if "pipelined" in about:
        share = about["pipelined"]
        lines.append(f"of a collective's latency {100 * share:.0f} % pass beside another one of the same group")
    if rate is not None and rate.value > 0:
        lines.append(f"bandwidth {8e-6 / rate.value:.4g} Mbit/s")
    return lines


def _shown(one: Estimate | None, scale: float) -> tuple[str, str]:
    if one is None:
        return "–", "–"
    return f"{one.value * scale:.4g}", f"{one.low * scale:.4g} to {one.high * scale:.4g}"
