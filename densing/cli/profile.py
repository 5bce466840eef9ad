"""``densing profile``: what a training run really spent, from its traces."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from densing.cli.options import JsonFlag

Paths = Annotated[
    list[Path] | None,
    typer.Argument(
        help="Traces (.json, .gz, .zip), folders of ranks, or results stored with --out.", metavar="PATH..."
    ),
]
Window = Annotated[
    str | None,
    typer.Option("--window", "-w", help="steps, all or hta; default: steps where the traces mark steps, else all."),
]
Ranks = Annotated[
    list[str] | None,
    typer.Option("--rank", help="FILE=NUMBER: which rank a file is (by name or path); may be repeated."),
]
Patterns = Annotated[
    list[str] | None,
    typer.Option("--comm-pattern", help="Regular expression: names it matches are communication; may be repeated."),
]
Detail = Annotated[
    str,
    typer.Option("--detail", help="auto, device or host; host reads operators too: slower, names what the host did."),
]
FailIf = Annotated[
    list[str] | None,
    typer.Option(
        "--fail-if",
        help="'METRIC > NUMBER', e.g. 'exposed_pct>10' or 'step_ms>=250 and overlap_pct<50': exit code 4 if it holds "
        "or cannot be decided; may be repeated. METRIC: a key of `figures` in --json (exposed_pct, overlap_pct, "
        "idle_pct, exposed_ms_per_step, step_ms, slowdown, ...), mfu_pct or hfu_pct; its name tells its unit.",
    ),
]
Html = Annotated[Path | None, typer.Option("--html", help="Write the report: one HTML file.", metavar="FILE")]
Compare = Annotated[
    list[Path] | None,
    typer.Option("--compare", help="Traces or stored results of a baseline; says what changed beyond noise."),
]
Perfetto = Annotated[
    Path | None,
    typer.Option("--perfetto", help="Write the trace back with overlay tracks that Perfetto opens.", metavar="FILE"),
]
Explain = Annotated[
    str | None, typer.Option("--explain", help="Say which rule decides on a kernel of this name, and stop.")
]
Out = Annotated[
    Path | None,
    typer.Option("--out", "-o", help="Folder for the ranks' results (Parquet); a killed run goes on from there."),
]
Jobs = Annotated[int | None, typer.Option("--jobs", "-j", help="Processes, or jobs of the executor.")]
ExecutorName = Annotated[
    str | None,
    typer.Option("--executor", help="slurm, local or another executor: spread the ranks over a cluster; needs --out."),
]
ExecutorArgs = Annotated[
    list[str] | None,
    typer.Option(
        "--executor-arg", "--executor_arg",
        help="key=value for the executor, e.g. partition=cpu,account=mine,time=60; may be repeated.",
    ),
]  # fmt: skip
RankFiles = Annotated[Path | None, typer.Option("--rank-files", help="A list of traces.", hidden=True)]
Density = Annotated[
    Path | None,
    typer.Option("--density", help="What `densing density --json` printed for the model: joined with the run."),
]
DensityModel = Annotated[str | None, typer.Option("--density-model", help="Which model of that file.")]
DensityBenchmark = Annotated[str | None, typer.Option("--density-benchmark", help="Which benchmark of that file.")]
Hours = Annotated[
    float | None, typer.Option("--device-hours", help="Device hours of the whole training, for --density.")
]
Utilisation = Annotated[
    str | None,
    typer.Option(
        "--mfu",
        help="'params=7e9,tokens=4.2e6,dtype=bf16': model FLOPs utilisation; tokens are per step over all ranks. "
        "Also layers, heads, head_dim, seq (attention), peak (TFLOP/s), "
        "recompute (none, full; selective with formula=megatron).",
    ),
]
Seed = Annotated[int, typer.Option("--seed", help="Seed of the bootstrap of --compare.")]


def profile(
    paths: Paths = None,
    window: Window = None,
    html: Html = None,
    compare: Compare = None,
    fail_if: FailIf = None,
    perfetto: Perfetto = None,
    comm_pattern: Patterns = None,
    explain: Explain = None,
    rank: Ranks = None,
    detail: Detail = "auto",
    mfu: Utilisation = None,
    density: Density = None,
    density_model: DensityModel = None,
    density_benchmark: DensityBenchmark = None,
    device_hours: Hours = None,
    out: Out = None,
    jobs: Jobs = None,
    executor: ExecutorName = None,
    executor_arg: ExecutorArgs = None,
    rank_files: RankFiles = None,
    seed: Seed = 0,
    json: JsonFlag = False,
) -> None:
    """Say how much communication was hidden, what was exposed, where, why and what it cost.

    Reads traces of torch.profiler (CUDA, ROCm, gloo, ...), one per rank; damaged ones as far as they go.
    Exit codes: 0 done, 1 user error, 2 usage, 3 done but events or traces could not be read, 4 a --fail-if holds or
    cannot be decided.

    Example: densing profile traces/ --html profile.html --fail-if 'exposed_pct>10'
    """
    from densing.cli import profiling

    if explain is not None:
        profiling.explain(explain, comm_pattern or (), json)
        return
    asked = profiling.Asked(
        paths=tuple(paths or ()),
        rank_files=rank_files,
        ranks=tuple(rank or ()),
        window=window,
        detail=detail,
        comm_patterns=tuple(comm_pattern or ()),
        out=out,
        jobs=jobs,
        executor=executor,
        executor_args=tuple(executor_arg or ()),
        quiet=json,
    )
    from densing.cli.output import say
    from densing.cli.profile_checks import check_flags
    from densing.cli.profile_out import Wanted, answer

    wanted = Wanted(
        json=json,
        html=html,
        perfetto=perfetto,
        compare=tuple(compare or ()),
        conditions=tuple(fail_if or ()),
        utilisation=mfu,
        density=density,
        density_model=density_model,
        density_benchmark=density_benchmark,
        device_hours=device_hours,
        seed=seed,
    )
    check_flags(asked, wanted)
    if rank_files is not None:
        profiling.store_ranks(asked)
        return
    try:
        answer(profiling.run_of(asked), asked, wanted)
    except KeyboardInterrupt:
        if out is not None:
            say(f"stopped; the same command goes on from {out}")
        raise typer.Exit(130) from None
