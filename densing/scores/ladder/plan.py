"""Which runs a ladder has: sizes times seeds, and targets whose density is known beforehand."""

from __future__ import annotations

from collections.abc import Sequence

from densing.core import InputError, UnknownNameError
from densing.scores.ladder.corpus import Corpus, Generated
from densing.scores.ladder.presets import Preset, Shape
from densing.scores.ladder.run import Run

TARGETS = ("longer", "clean", "shuffled")
# Targets are other models than the ladder's: their seeds begin where no ladder's end.
TARGET_SEED = 1000


def ladder_runs(
    preset: Preset, corpus: Corpus, *, sizes: Sequence[str] = (), seeds: int = 3, seed: int = 0
) -> list[Run]:
    """Return the runs of a ladder: every size with every seed.

    Parameters
    ----------
    preset : Preset
        Sizes and budgets.
    corpus : Corpus
        What they are trained on.
    sizes : sequence of str
        Names of sizes; all when empty.
    seeds, seed : int
        How many seeds, and the first one.

    Examples
    --------
    >>> from densing.scores.ladder.presets import get_preset
    >>> [run.name for run in ladder_runs(get_preset("cpu"), Generated(), sizes=["d8"], seeds=2)]
    ['d8-s0', 'd8-s1']
    """
    return [
        Run(preset, shape, number, corpus, shape.steps)
        for shape in choose(preset, sizes)
        for number in range(seed, seed + seeds)
    ]


def target_runs(
    preset: Preset,
    corpus: Corpus,
    target: str,
    *,
    sizes: Sequence[str] = (),
    seeds: int = 3,
    seed: int = 0,
    factor: int = 2,
) -> list[Run]:
    """Return runs whose density the ladder's own law says beforehand.

    ``longer``: the same sizes trained on ``factor`` times the tokens. ``clean``: on the corpus without its noise
    documents, so the same tokens hold 1 / useful times as much to learn. ``shuffled``: on the corpus with the answers
    of every family permuted among its documents, so nothing of the questions can be learnt.

    Parameters
    ----------
    preset, corpus, seeds, seed
        As in :func:`ladder_runs`; seeds are shifted by :data:`TARGET_SEED`.
    target : {"longer", "clean", "shuffled"}
        What differs from the ladder.
    sizes : sequence of str
        Names of sizes; the second smallest when empty, because what more tokens gain there is less than what a larger
        size could gain, so the ladder can say how large.
    factor : int
        Of ``longer``; what lies far beyond the ladder's budgets tests the law's reach rather than the tool.

    Raises
    ------
    InputError, UnknownNameError
        When there is no such target, or the corpus has no such variant.

    Examples
    --------
    >>> from densing.scores.ladder.presets import get_preset
    >>> run, = target_runs(get_preset("cpu"), Generated(), "longer", seeds=1)
    >>> run.name, run.steps
    ('longer-2x-d12-s1000', (6400,))
    """
    if target not in TARGETS:
        raise UnknownNameError("target", target, TARGETS)
    if factor < 2:
        raise InputError(f"--tokens-factor {factor}: 2 or more is needed for a longer run")
    if target != "longer":
        if not isinstance(corpus, Generated):
            raise InputError(
                f"--target {target}: a text of yours has no {target} variant; train it on the generated corpus"
            )
        corpus = Generated(target, corpus.seed)
    shapes = choose(preset, sizes or [preset.shapes[1].name])
    first = TARGET_SEED + seed
    return [
        Run(preset, shape, number, corpus, (shape.steps[-1] * (factor if target == "longer" else 1),), target)
        for shape in shapes
        for number in range(first, first + seeds)
    ]


def choose(preset: Preset, sizes: Sequence[str]) -> list[Shape]:
    """Return the shapes of a preset by name, all when none is named.

    Raises
    ------
    UnknownNameError
        When there is no such size.
    """
    known = {shape.name: shape for shape in preset.shapes}
    for name in sizes:
        if name not in known:
            raise UnknownNameError(f"size of preset {preset.name}", name, known)
    return [shape for name, shape in known.items() if not sizes or name in sizes]
