"""``densing eval --until_ci``: what the rule is, and what it spared."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from densing.scores.evals import Plan, Stopped


UntilCi = Annotated[
    float | None,
    typer.Option(
        "--until_ci",
        "--until-ci",
        help="Draw items at random, in a few planned looks, until ln density is known to ± this: 0.2 is about 20 %. "
        "Where the full sets would not give that, the interval they do give is reported.",
    ),
]
CiOf = Annotated[
    str,
    typer.Option("--ci_of", "--ci-of", help="--until_ci for all items there could be (population) or for these (set)."),
]
CiFrom = Annotated[str, typer.Option("--ci_from", "--ci-from", help="--until_ci by loss or by score.")]


@dataclass(frozen=True)
class Asked:
    """What ``--until_ci`` and the flags beside it say.

    Parameters
    ----------
    half_width : float
        Of the interval of ln density.
    reference : str
        Family whose ruler reads the items.
    covers : {"population", "set"}
        What the interval is for, see :class:`densing.scores.density.StoppingRule`.
    quantity : {"loss", "score"}
        What is read.
    """

    half_width: float
    reference: str
    covers: str
    quantity: str


def evaluate_until(plan: Plan, out: Path, asked: Asked, executor: str | None, json: bool) -> None:
    """Evaluate until the interval is narrow enough, and say what that took."""
    from densing.cli.eval import bar
    from densing.cli.output import emit_json, say, show_notes
    from densing.core import InputError
    from densing.scores.density import StoppingRule, rule_for
    from densing.scores.evals import run_until

    if executor is not None:
        raise InputError("--until_ci decides as it goes, in this process; drop --executor")
    if asked.quantity not in ("loss", "score"):
        raise InputError(f"--ci_from {asked.quantity}: choose loss or score")

    def make(benchmarks: Any, sizes: Any) -> StoppingRule:
        options: dict[str, Any] = {"target": asked.half_width, "covers": asked.covers}
        return rule_for(asked.reference, benchmarks, sizes, quantity=asked.quantity, **options)

    try:
        with bar(json) as progress:
            stopped = run_until(plan, out, make, quantity=asked.quantity, progress=progress)
    except KeyboardInterrupt:
        say(f"stopped; the same command goes on from {out}")
        raise typer.Exit(130) from None
    if json:
        emit_json({"run": str(out), "models": [one.to_dict() for one in stopped]})
    else:
        say("\n".join(sentences(stopped, out)))
        show_notes(note for one in stopped for note in one.notes)


def sentences(stopped: Sequence[Stopped], out: Path) -> Iterator[str]:
    """Yield what became of each model: the interval reached, the items, and the time they took of what all would have.

    Examples
    --------
    >>> from densing.scores.evals.stopping import Stopped
    >>> list(sentences([Stopped("tiny", (), None, 120, 4000, 0.0, float("nan"))], Path("results/a")))
    ['tiny: nothing to do, 120 of 4000 items are in results/a']
    """
    for one in stopped:
        if math.isnan(one.spared):
            known = "" if one.look is None else f": {one.look.message}"
            yield f"{one.model}: nothing to do, {one.items} of {one.full} items are in {out}{known}"
            continue
        assert one.look is not None
        whole = one.seconds + one.spared
        yield (
            f"{one.model}: {one.look.message}; {one.items / one.full:.0%} of {one.full} items, "
            f"{one.seconds:.0f} s where all would take about {whole:.0f} s; stored in {out}"
        )
