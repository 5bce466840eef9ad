"""``densing deploy``: which exit, cut and bits to serve a model with, under a deadline and a link that varies."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from densing.cli import options as o
from densing.cli.eval import ModelArgs, ModelOptions
from densing.cli.output import emit_json, emit_table, finish, progress, say, show_notes
from densing.core import InputError

if TYPE_CHECKING:
    import pandas as pd

    from densing.efficiency.simulation import Served
    from densing.tradeoff import Deployment


def deploy(
    store: Annotated[
        Path | None,
        typer.Argument(help="Result store of `densing eval --exit ... --cut ...`.", file_okay=False, exists=True),
    ] = None,
    model: Annotated[str, typer.Option("--model", "-M", help="As in densing eval, such as smollm2-135m.")] = "",
    model_args: ModelArgs = None,
    quality: Annotated[
        Path | None,
        typer.Option(
            help=f"Instead of a store: table ({o.FORMS}) with exit, cut (empty: none), cut_bits, bits_per_byte, "
            "perhaps weight_bits and density.",
            dir_okay=False,
            exists=True,
        ),
    ] = None,
    times: Annotated[
        str | None,
        typer.Option(
            help="Layer times on device and server (TOML file or preset); else measured here (device: one thread, "
            "server: two).",
        ),
    ] = None,
    tokens: Annotated[int, typer.Option(min=1, max=100_000, help="Tokens per request.")] = 128,
    output_tokens: Annotated[
        int, typer.Option(min=1, max=100_000, help="Tokens per answer, decoded one after another.")
    ] = 1,
    edge_threads: Annotated[int, typer.Option(min=1, help="Threads of the measured server.")] = 2,
    deadline: Annotated[
        float, typer.Option(help="Deadline of a whole answer, milliseconds.", callback=o.finite)
    ] = 500.0,
    interval: Annotated[
        float | None, typer.Option(help="Milliseconds between requests; default: the deadline.")
    ] = None,
    latency: Annotated[
        float, typer.Option(min=0.0, help="Round-trip time of the link, milliseconds.", callback=o.finite)
    ] = 10.0,
    trace: Annotated[
        Path | None,
        typer.Option(
            help=f"Recorded link: table ({o.FORMS}) with mbit, optionally load and s: one row per request; or a "
            "trace of packets in Mahimahi's format.",
            dir_okay=False,
            exists=True,
        ),
    ] = None,
    channel: Annotated[
        str,
        typer.Option(
            help="Made-up link: good=40,bad=4,stay=0.9,spread=0.3,busy=2,busy_share=0.3 (10^6 bits per second).",
        ),
    ] = "",
    text_stays: Annotated[
        bool, typer.Option("--text-stays/--text-may-leave", help="Tokens must stay on the device.")
    ] = False,
    weight_bits: Annotated[int, typer.Option(help="Weight bits of the evaluated variants: 4, 8 or 16.")] = 16,
    policy: Annotated[
        str,
        typer.Option(help="Comma-separated: oracle,last,expected,fixed,greedy,device-only,edge-only,random,sac-d."),
    ] = "oracle,last,expected,fixed,greedy,device-only,edge-only,random,sac-d",
    reference: o.Reference = "olmo-ladder",
    updates: Annotated[int, typer.Option(min=1, help="Training updates of sac-d.")] = 3000,
    seeds: Annotated[int, typer.Option(min=1, help="Training runs of sac-d.")] = 5,
    traces: Annotated[int, typer.Option(min=2, help="Test traces of 200 requests each.")] = 40,
    seed: o.Seed = 0,
    attempt: Annotated[
        str | None,
        typer.Option(
            "--try",
            help="Serve over this link, such as 40mbit (shaped) or emulated:40mbit: every option on the Pareto front, "
            "predicted and measured.",
            metavar="LINK",
        ),
    ] = None,
    requests: Annotated[int, typer.Option(min=1, help="With --try: requests per option.")] = 7,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder: policy.json, tables, times.toml, page.", file_okay=False)
    ] = None,
    page: o.Page = None,
    html: o.Html = None,
    json: o.JsonFlag = False,
) -> None:
    """Choose exit, cut and bits to serve a model between a device and a server, under a deadline.

    Quality is that of a store of densing eval --exit --cut, or given by a table; times are measured here or given; the
    link is a trace or made up. The page says which.
    Policies serve the same requests; where enumeration is as good as the trained one, enumeration is recommended.

    Example: densing deploy --quality ways.csv --times serve-smollm2-135m --deadline 400 --text-stays --out served
    """
    from densing.efficiency.systems import offload
    from densing.tradeoff import deploy as deploy_model

    if (store is None) == (quality is None):
        raise InputError("give either a result store of densing eval, or --quality with a table")
    if attempt and not model:
        raise InputError("--try needs the model to serve; give --model")
    rows = _rows(store, quality, model, reference)
    spec = None
    if model and (times is None or attempt):
        spec = ModelOptions(model, model_args).spec("--model: one model is served at a time")
    if trace is not None and channel:
        raise InputError("--trace and --channel: the link is either recorded or made up; leave one out")
    link = offload.read_channel(trace, (interval or deadline) / 1e3) if trace is not None else _made_up(channel)
    with progress(json) as step:
        layers = _times(
            times, spec, (tokens, output_tokens), edge_threads, out, lambda share: step("measuring layers", share)
        )
        result = deploy_model(
            rows, layers, model=model or (quality or Path("model")).stem, deadline_s=deadline / 1e3,
            quality_from=None if store is None else f"measured by densing eval (store {store.name})",
            interval_s=None if interval is None else interval / 1e3, latency_s=latency / 1e3,
            output_tokens=output_tokens, channel=link, text_stays=text_stays, weight_bits=weight_bits,
            policies=tuple(name.strip() for name in policy.split(",") if name.strip()), updates=updates, seeds=seeds,
            traces=traces, seed=seed, progress=step,
        )  # fmt: skip
        if attempt and spec is not None:
            from densing.tradeoff import try_choices

            folder = (out or Path("results/deploy")) / "tried"
            step("serving", 0.5)
            result = try_choices(result, spec.args["pretrained"], spec.args.get("gguf_file", ""), link=attempt,
                                 requests=requests, edge_threads=edge_threads, seed=seed, out=folder)  # fmt: skip
    if out is not None:
        say(f"wrote {result.write(out)}")
    for path in [*filter(None, (page, html)), *([out / "deploy.html"] if out is not None else [])]:
        from densing.report import build_deployment

        say(f"wrote {build_deployment(result, path)}")
    if json:
        emit_json(result.to_dict())
    else:
        _show(result)
    finish(result.notes)


def _show(result: Deployment) -> None:
    emit_table(result.choices_listing(), "Ways to serve, fastest first")
    emit_table(result.policies_listing())
    emit_table(result.decisions_listing())
    if result.tried is not None:
        emit_table(result.tried_listing())
    say(result.sentence)
    show_notes(result.notes)


def _rows(store: Path | None, quality: Path | None, model: str, reference: str) -> pd.DataFrame | Path:
    """Return what was evaluated, with densities where a reference can read it."""
    if quality is not None:
        return quality
    from densing.scores.density import served_densities

    if not model or store is None:
        raise InputError("the store holds several models; name one with --model")
    return served_densities(store, model, reference)


def _times(
    name: str | None, spec: Any, tokens: tuple[int, int], edge_threads: int, out: Path | None, tell: Any
) -> Served:  # fmt: skip
    """Return what layers take: as given, as measured before into this folder, or measured now."""
    from densing.efficiency.simulation import load_served

    kept = None if out is None else out / "times.toml"
    if name is not None:
        return load_served(name)
    if kept is not None and kept.is_file():
        before = load_served(kept)
        if before.tokens == tokens[0] and (tokens[1] == 1 or before.decode is not None):
            return before
    if spec is None:
        raise InputError("layer times are missing; give --times (TOML file or preset), or --model to measure them here")
    from densing.tradeoff import measure_served

    found = measure_served(spec.args["pretrained"], spec.args.get("gguf_file", ""), name=spec.name, tokens=tokens[0],
                           output_tokens=tokens[1], edge_threads=edge_threads, progress=tell)  # fmt: skip
    if kept is not None:
        from densing.core import write_text
        from densing.efficiency.simulation import to_toml

        write_text(kept, to_toml(found))
    return found


def _made_up(text: str) -> Any:
    """Read the made-up link's settings."""
    from densing.core import UnknownNameError
    from densing.efficiency.systems import offload

    names = {"good": "good_mbit", "bad": "bad_mbit", "stay": "stay", "spread": "spread", "busy": "busy",
             "busy_share": "busy_share"}  # fmt: skip
    values = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        name, _, value = part.partition("=")
        if name not in names:
            raise UnknownNameError("setting of --channel", name, names)
        try:
            values[names[name]] = float(value)
        except ValueError:
            raise InputError(f"--channel {part[:40]!r}: {value[:20]!r} is not a number") from None
    return offload.Markov(**values)
