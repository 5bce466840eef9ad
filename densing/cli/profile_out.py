"""What ``densing profile`` does with a run's profile: show it, write it, judge it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import typer
from msgspec.structs import replace

from densing.cli.output import MOST_NOTES, emit_plain, finish, say, show_notes
from densing.cli.profile_checks import OF_MFU
from densing.cli.profiling import Asked, run_of, traces_of
from densing.cli.table import width
from densing.core import doubts, of_part

if TYPE_CHECKING:
    from densing.core import Note
    from densing.efficiency.profile import Comparison, Hit, RunProfile, RunUtilisation
    from densing.tradeoff import DensityCost

CONDITION_HOLDS = 4
"""Exit code when a ``--fail-if`` holds or cannot be decided."""


class Wanted(msgspec.Struct, frozen=True):
    """What is to come out."""

    json: bool = False
    html: Path | None = None
    perfetto: Path | None = None
    compare: tuple[Path, ...] = ()
    conditions: tuple[str, ...] = ()
    utilisation: str | None = None
    density: Path | None = None
    density_model: str | None = None
    density_benchmark: str | None = None
    device_hours: float | None = None
    seed: int = 0


def answer(run: RunProfile, asked: Asked, wanted: Wanted) -> None:
    """Show and write what was asked for, and leave with the exit code it calls for."""
    used = _utilisation(run, wanted.utilisation)
    comparison, of_base = _comparison(run, asked, wanted)
    run = replace(run, notes=(*run.notes, *of_base))
    hits = _conditions(run, used, wanted.conditions)
    joined = density_of(wanted, run)
    if wanted.json:
        parts = {"utilisation": used, "comparison": comparison, "joined": joined}
        more = {name: part and part.to_dict() for name, part in parts.items()}
        emit_plain({**run.to_dict(), **more, "fail_if": [hit.to_dict() for hit in hits]})
    else:
        from densing.cli.profile_text import WIDE, screen

        typer.echo("\n".join(screen(run, used, comparison, joined, width(WIDE))))
        show_notes(run.notes, most=MOST_NOTES)
    if wanted.html is not None:
        from densing.report import build_profile_report

        build_profile_report(run, wanted.html, baseline=comparison, density=joined, utilisation=used)
        say(f"wrote {wanted.html}")
    if wanted.perfetto is not None:
        _write_perfetto(run, asked, wanted.perfetto)
    for hit in hits:
        say(f"--fail-if: {hit.message}", "bold red")
    if hits:
        raise typer.Exit(CONDITION_HOLDS)
    finish(run.notes)


def _utilisation(run: RunProfile, spec: str | None) -> RunUtilisation | None:
    if spec is None:
        return None
    from densing.efficiency.profile import parse_spec, run_utilisation

    return run_utilisation(run, parse_spec(spec))


def _comparison(run: RunProfile, asked: Asked, wanted: Wanted) -> tuple[Comparison | None, list[Note]]:
    """Profile the baseline in the same way, within the same window, and compare; and say what is wrong with it."""
    if not wanted.compare:
        return None, []
    from densing.efficiency.profile import compare, run_steps

    # Its files have their own ranks, and it is read here.
    fresh: dict[str, Any] = {"rank_files": None, "ranks": (), "out": None, "executor": None, "executor_args": ()}
    base = run_of(replace(asked, **fresh, paths=wanted.compare, window=run.window))
    steps = [run_steps({"steps": [step.to_dict() for step in rank.steps]} for rank in one.ranks) for one in (base, run)]
    return compare(*steps, seed=wanted.seed), of_part("baseline", doubts(base.notes))


def _conditions(run: RunProfile, used: RunUtilisation | None, conditions: Sequence[str]) -> Sequence[Hit]:
    """Return the conditions that hold, or that cannot be decided."""
    if not conditions:
        return ()
    from densing.efficiency.profile import check

    told: Mapping[str, object] = run.figures
    if used is not None:
        told = {**told, **{key: used.to_dict()[key] for key in OF_MFU}}
    return check(conditions, told)


def density_of(wanted: Wanted, run: RunProfile | None = None) -> DensityCost | None:
    """Join the density, if one is named, with the run."""
    if wanted.density is None:
        return None
    from densing.tradeoff import join

    assert wanted.device_hours is not None, "checked before anything was read"
    return join(
        wanted.density,
        run,
        device_hours=wanted.device_hours,
        model=wanted.density_model,
        benchmark=wanted.density_benchmark,
    )


def _write_perfetto(run: RunProfile, asked: Asked, out: Path) -> None:
    from densing.efficiency.profile import write_profiled

    together = run.together
    offsets = together.clocks.offset_ns if together else {}
    known = {rank.source for rank in run.ranks}
    traces = [trace for trace in traces_of(asked, []) if trace.label in known]
    count = write_profiled(traces, out, asked.options(), offsets)
    # Several ranks are drawn from what was read, and of accelerators that is no operators unless asked for.
    some = count > 1 and asked.detail != "host" and not all(rank.on_host for rank in run.ranks)
    less = "; operators are left out, --detail host draws them" if some else ""
    say(f"wrote {out}: {count} rank{'s' * (count != 1)} with overlay tracks{less}; open it in ui.perfetto.dev")
