"""Training plan of a ladder: presets of sizes, token budgets, runs, and targets of known density.

Sizes and budgets are the paper's six, and the same proportions scaled down for a CPU. A run is one stable stage of
training that serves every token budget, each with a short decay of its own (warm-up, stable, decay).

Source of the sizes: arXiv 2412.04315, Table 1: width about 32 to 43 times the layers, feed-forward 2.5 times the
width, grouped-query attention, batch growing with size, tokens of 10 to 60 per non-embedding parameter. Vocabulary,
block length, learning rate and decay share are not published; ours are stated here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from densing.core import DensingError, DomainError, InputError, UnknownNameError
from densing.scores.ladder.arms import RESEED, Arm, arm_corpus
from densing.scores.ladder.corpus import VALIDATION_TOKENS, Corpus, Generated

TARGETS = ("longer", "clean", "shuffled")
MODELS, DESCRIPTION = "models", "densing.json"
"""Where exports lie below a ladder's folder, and the file in each that says what it is."""
# Targets are other models than the ladder's: their seeds begin where no ladder's end.
TARGET_SEED = 1000
# Seeds of other orders of blocks begin where no run's end.
OTHER_ORDER = 1_000_000
# A step of the smallest model costs about as much as this many parameters times sequences do.
STEP_OVERHEAD = 1_200_000


class DivergedError(DensingError):
    """A run's loss is no longer a number."""


@dataclass(frozen=True)
class Shape:
    """One size of a ladder: a Llama-style decoder with tied embeddings.

    Parameters
    ----------
    name : str
        What ``--sizes`` takes.
    width, layers, heads, kv_heads, head_width, ffn : int
        Hidden size, decoder layers, query heads, key-value heads, size of a head, feed-forward size.
    batch : int
        Sequences per step.
    steps : tuple of int
        Training steps of each token budget, ascending.

    Examples
    --------
    >>> shape = get_preset("paper").shapes[0]
    >>> shape.name, shape.non_embedding
    ('0.005B', 5247232)
    """

    name: str
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_width: int
    ffn: int
    batch: int
    steps: tuple[int, ...]

    @property
    def non_embedding(self) -> int:
        """Parameters without embeddings: layers (2 d h e + 2 d kv e + 3 d f + 2 d) + d, with e the size of a head."""
        d, e = self.width, self.head_width
        layer = 2 * d * self.heads * e + 2 * d * self.kv_heads * e + 3 * d * self.ffn + 2 * d
        return self.layers * layer + d

    def total(self, vocabulary: int) -> int:
        """Return all parameters; input and output embeddings are one matrix."""
        return self.non_embedding + vocabulary * self.width


@dataclass(frozen=True)
class Preset:
    """A ladder: its sizes and how each is trained.

    Parameters
    ----------
    name : str
        What ``--preset`` takes.
    shapes : tuple of Shape
        Ascending sizes.
    block : int
        Tokens per sequence.
    peak, peak_width : float, int
        Learning rate ``peak * sqrt(peak_width / width)`` of the stable stage.
    warmup : int
        Steps of linear warm-up.
    decay : float
        Share of each budget's steps that is its decay.
    betas, weight_decay
        Of AdamW; gradients are clipped at norm 1.
    checkpoint : int
        Steps between checkpoints: what a killed run loses at most.
    precision : str
        Of the forward pass: ``float32`` or ``bfloat16`` (autocast).
    questions : int
        Questions per set that ``densing ladder eval`` asks.
    vocabulary : int
        Tokens of the vocabulary trained on a user's text.
    validation : int
        Held-out tokens on which the validation loss is taken, at most what the corpus has.
    """

    name: str
    shapes: tuple[Shape, ...]
    block: int
    peak: float
    peak_width: int
    warmup: int
    decay: float = 0.2
    betas: tuple[float, float] = (0.9, 0.98)
    weight_decay: float = 0.01
    checkpoint: int = 400
    precision: str = "float32"
    questions: int = 250
    vocabulary: int = 512
    validation: int = VALIDATION_TOKENS

    def rate(self, shape: Shape) -> float:
        """Return the learning rate of the stable stage."""
        return float(self.peak * (self.peak_width / shape.width) ** 0.5)

    def shorter(self, budgets: int) -> Preset:
        """Return the preset with its smallest token budgets alone.

        Raises
        ------
        InputError
            When it has fewer.

        Examples
        --------
        >>> get_preset("cpu").shorter(2).shapes[0].steps
        (600, 1050)
        """
        most = min(len(shape.steps) for shape in self.shapes)
        if not 1 <= budgets <= most:
            raise InputError(f"--budgets {budgets}: preset {self.name} has {most}; give a number from 1 to {most}")
        shapes = tuple(dataclasses.replace(shape, steps=shape.steps[:budgets]) for shape in self.shapes)
        return dataclasses.replace(self, shapes=shapes)

    def tokens(self, shape: Shape, steps: int) -> int:
        """Return the tokens that a number of steps trains on."""
        return steps * shape.batch * self.block


def _small(widths: tuple[tuple[int, int, int], ...], steps: tuple[int, ...]) -> tuple[Shape, ...]:
    """Return two-layer shapes of (width, heads, key-value heads) in Table 1's proportions."""
    return tuple(Shape(f"d{d}", d, 2, h, kv, d // h, d * 5 // 2, 8, steps) for d, h, kv in widths)


_CPU_WIDTHS = ((8, 2, 1), (12, 2, 1), (16, 2, 1), (24, 2, 1), (32, 4, 2), (48, 4, 2), (72, 4, 2))
# name, batch, layers, d, d_ffn, heads, kv: arXiv 2412.04315, Table 1.
_TABLE_1 = (
    ("0.005B", 32, 8, 256, 640, 4, 1),
    ("0.03B", 32, 12, 512, 1280, 8, 2),
    ("0.1B", 64, 18, 768, 1920, 12, 3),
    ("0.2B", 128, 24, 1024, 2560, 16, 2),
    ("0.4B", 256, 30, 1280, 3200, 20, 2),
    ("0.8B", 512, 36, 1536, 3840, 24, 3),
)
_BETWEEN = ("0.01B", 32, 10, 384, 960, 6, 2)
"""In Table 1's proportions, between its first two."""
_TOKENS_PER_PARAMETER = (10, 15, 20, 30, 40, 60)
_PAPER_BLOCK = 1024


def _published(name: str, batch: int, layers: int, d: int, ffn: int, heads: int, kv: int) -> Shape:
    bare = Shape(name, d, layers, heads, kv, 64, ffn, batch, ())
    steps = tuple(-(-ratio * bare.non_embedding // (batch * _PAPER_BLOCK)) for ratio in _TOKENS_PER_PARAMETER)
    return Shape(name, d, layers, heads, kv, 64, ffn, batch, steps)


def _on_device(name: str, shapes: tuple[Shape, ...], block: int, **options: Any) -> Preset:
    """Return a preset of models that take a device: 16 bits, and AdamW as large models have it."""
    usual: dict[str, Any] = {"warmup": 200, "checkpoint": 200, "betas": (0.9, 0.95), "weight_decay": 0.1}
    return Preset(name, shapes, block, 3e-3, 256, precision="bfloat16", **usual | options)


PRESETS = {
    preset.name: preset
    for preset in (
        Preset(
            "tiny",
            _small(_CPU_WIDTHS[:4], (60, 120)),
            64,
            1.2e-2,
            32,
            20,
            checkpoint=25,
            questions=60,
            validation=16_384,
        ),
        Preset("cpu", _small(_CPU_WIDTHS, (600, 1050, 1850, 3200)), 64, 6e-3, 32, 100),
        # Layers enough to leave early; as much text as the sizes of cpu, whose width they have.
        Preset(
            "deep",
            tuple(
                Shape(f"d{d}x{n}", d, n, 2, 1, d // 2, d * 5 // 2, 8, (600, 1850))
                for d, n in ((16, 6), (24, 6), (32, 8))
            ),
            64,
            6e-3,
            32,
            100,
        ),
        # Films are packed: a block holds several, each with its reception.
        Preset("films", _small(_CPU_WIDTHS, (400, 800, 1600)), 128, 6e-3, 32, 100, questions=500, vocabulary=1024),
        _on_device(
            "paper", tuple(_published(*row) for row in _TABLE_1), _PAPER_BLOCK, vocabulary=32768, questions=1000
        ),
        # One device for less than an hour: all sizes have the same tokens, a few passes over a text of Python's.
        _on_device(
            "gpu",
            tuple(
                Shape(name, d, layers, heads, kv, 64, ffn, 64, (96, 192, 384))
                for name, _, layers, d, ffn, heads, kv in (_TABLE_1[0], _BETWEEN, *_TABLE_1[1:3])
            ),
            512,
            vocabulary=8192,
            warmup=50,
            checkpoint=100,
        ),
    )
}


def get_preset(name: str) -> Preset:
    """Return a preset by name.

    Raises
    ------
    UnknownNameError
        When there is no such preset.

    Examples
    --------
    >>> [shape.non_embedding for shape in get_preset("cpu").shapes][:2]
    [1384, 3084]
    """
    if name not in PRESETS:
        raise UnknownNameError("preset", name, PRESETS)
    return PRESETS[name]


@dataclass(frozen=True)
class Budget:
    """One token budget of a run.

    Parameters
    ----------
    branch : int
        Step at which its decay leaves the stable stage.
    end : int
        Step at which it is exported.
    """

    branch: int
    end: int


def budgets(steps: tuple[int, ...], decay: float) -> tuple[Budget, ...]:
    """Return the budgets of a run; the decay is the last ``decay`` share of each.

    Parameters
    ----------
    steps : tuple of int
        Training steps of each budget, ascending.
    decay : float
        Share of a budget's steps, between 0 and 1.

    Raises
    ------
    DomainError
        When the steps are not ascending, or a decay would begin before the previous budget's.

    Examples
    --------
    >>> budgets((100, 200), 0.2)
    (Budget(branch=80, end=100), Budget(branch=160, end=200))
    """
    if not steps or steps[0] < 1 or any(b <= a for a, b in pairwise(steps)):
        raise DomainError(f"budgets {steps}: steps must be positive and ascending")
    if not 0 < decay < 1:
        raise DomainError(f"decay {decay}: a share between 0 and 1 is needed")
    return tuple(Budget(end - max(1, round(end * decay)), end) for end in steps)


def factor(step: int, warmup: int, budget: Budget | None) -> float:
    """Return the share of the peak learning rate at a step.

    min(1, (s + 1) / warmup) while stable; from the branch on 1 - sqrt((s - branch) / (end - branch)).

    Source: WSD schedule, arXiv 2404.06395, section 4; the square-root form of the decay, arXiv 2405.18392, eq. 1.

    Parameters
    ----------
    step : int
        The step about to be taken, from 0.
    warmup : int
        Steps of linear warm-up.
    budget : Budget or None
        The budget whose decay is under way; None in the stable stage.

    Examples
    --------
    >>> [factor(s, 4, None) for s in (0, 3, 50)]
    [0.25, 1.0, 1.0]
    >>> [factor(s, 4, Budget(80, 100)) for s in (80, 85, 99)]
    [1.0, 0.5, 0.02532056...]
    """
    rise = min(1.0, (step + 1) / warmup)
    if budget is None or step < budget.branch:
        return rise
    return float(rise * (1.0 - ((step - budget.branch) / (budget.end - budget.branch)) ** 0.5))


@dataclass(frozen=True)
class Run:
    """A model to train: one stable stage, exported at every token budget.

    Parameters
    ----------
    preset : Preset
        Where its hyper-parameters come from.
    shape : Shape
        Its size.
    seed : int
        Seed of initialisation and of the order of blocks.
    corpus : Corpus
        What it is trained on.
    steps : tuple of int
        Training steps of each budget.
    target : str
        Empty for a run of the ladder; ``longer``, ``clean`` or ``shuffled`` for a target whose answer is known.
    arm : Arm, optional
        What is changed of the training, beside other arms of the same ladder; None for the ladder alone.
    """

    preset: Preset
    shape: Shape
    seed: int
    corpus: Corpus
    steps: tuple[int, ...]
    target: str = ""
    arm: Arm | None = None

    @property
    def name(self) -> str:
        """Size and seed, its arm or what kind of target it is, and how many times the tokens it has."""
        # Targets of other lengths lie beside the ladder's runs, and must not share their folders.
        factor = self.steps[-1] // (self.shape.steps or self.steps)[-1]
        kind = self.target if self.arm is None else self.arm.slug
        return "-".join(filter(None, (kind, f"{factor}x" if factor > 1 else "", self.shape.name, f"s{self.seed}")))

    @property
    def budgets(self) -> tuple[Budget, ...]:
        """Branch and end of every budget."""
        return budgets(self.steps, self.preset.decay)

    def tokens(self, steps: int) -> int:
        """Return the tokens that a number of steps trains on."""
        return self.preset.tokens(self.shape, steps)

    def budgeted(self, budget: Budget) -> int:
        """Return the tokens of a budget's name: not those trained on where an arm trains longer."""
        if self.arm is None or self.arm.tokens == 1.0:
            return self.tokens(budget.end)
        shape = next(one for one in get_preset(self.preset.name).shapes if one.name == self.shape.name)
        return self.preset.tokens(shape, shape.steps[self.steps.index(budget.end)])

    @property
    def order_seed(self) -> int:
        """Seed of the order of blocks: the run's own, another one where the arm says so."""
        return self.seed + (OTHER_ORDER if self.arm is not None and self.arm.order == RESEED else 0)

    @property
    def step_cost(self) -> int:
        """What a step costs beside other sizes' (for a bar): parameters times sequences, and what all steps share."""
        return self.shape.batch * self.shape.total(self.corpus.vocabulary) + STEP_OVERHEAD

    @property
    def work(self) -> int:
        """Steps to take in all: the stable stage to the last branch, and every decay."""
        plan = self.budgets
        return plan[-1].branch + sum(budget.end - budget.branch for budget in plan)

    def export_folder(self, folder: Path, budget: Budget) -> Path:
        """Return where the model of a budget goes."""
        return folder / MODELS / f"{self.name}-{self.tokens(budget.end)}"

    def checkpoint(self, folder: Path, stage: str) -> Path:
        """Return where the state of a stage (``stable`` or ``decay``) is kept."""
        return folder / "runs" / self.name / f"{stage}.pt"

    def exported(self, folder: Path, budget: Budget) -> bool:
        """Whether a budget is done: its description is written last."""
        return (self.export_folder(folder, budget) / DESCRIPTION).is_file()


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
    >>> from densing.scores.ladder import get_preset
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
    >>> from densing.scores.ladder import get_preset
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
            raise InputError(f"--target {target}: your own text has no {target} variant; use the generated corpus")
        corpus = Generated(target, corpus.seed)
    shapes = choose(preset, sizes or [preset.shapes[1].name])
    first = TARGET_SEED + seed
    return [
        Run(preset, shape, number, corpus, (shape.steps[-1] * (factor if target == "longer" else 1),), target)
        for shape in shapes
        for number in range(first, first + seeds)
    ]


def parse_seeds(text: str, first: int = 0) -> range:
    """Read seeds: how many (``3``), or the first and the last (``0..5``).

    Raises
    ------
    InputError

    Examples
    --------
    >>> parse_seeds("0..5"), parse_seeds("3", first=10)
    (range(0, 6), range(10, 13))
    """
    low, dots, high = text.partition("..")
    try:
        begin, end = (int(low), int(high) + 1) if dots else (first, first + int(low))
    except ValueError as error:
        raise InputError(f"--seeds {text}: write a number of runs, or FIRST..LAST as in 0..5") from error
    if begin < 0 or end <= begin:
        raise InputError(f"--seeds {text}: seeds begin at 0, and at least one is needed")
    return range(begin, end)


def arm_runs(
    preset: Preset, corpus: Corpus, arms: Sequence[Arm], *, sizes: Sequence[str] = (), seeds: Sequence[int] = range(3)
) -> list[Run]:
    """Return the runs of several arms: every size with every seed, the same seeds and token budgets in all of them.

    Parameters
    ----------
    preset, corpus, sizes
        As in :func:`densing.scores.ladder.ladder_runs`.
    arms : sequence of Arm
    seeds : sequence of int

    Raises
    ------
    InputError
        When an arm comes twice, or batch, ranks and budgets do not divide.

    Examples
    --------
    >>> from densing.scores.ladder import get_preset, parse_arm
    >>> arms = [parse_arm("plain"), parse_arm("plain:batch=16")]
    >>> runs = arm_runs(get_preset("cpu"), Generated(), arms, sizes=["d8"], seeds=[0])
    >>> [(run.name, run.steps[0], run.tokens(run.steps[0])) for run in runs]
    [('plain-d8-s0', 600, 307200), ('plain-batch-16-d8-s0', 300, 307200)]
    """
    runs = []
    twice = next((arm.name for number, arm in enumerate(arms) if arm.slug in {a.slug for a in arms[:number]}), None)
    if twice is not None:
        raise InputError(f"--arm {twice}: occurs twice (its runs would share folders); remove one")
    for arm in arms:
        for shape in choose(preset, sizes):
            changed, options = _changed(preset, shape, arm)
            recipe = arm_corpus(arm, corpus)
            runs += [Run(options, changed, seed, recipe, changed.steps, arm=arm) for seed in seeds]
    return runs


def _changed(preset: Preset, shape: Shape, arm: Arm) -> tuple[Shape, Preset]:
    """Return shape and preset with the arm's batch, learning rate and length; else the token budgets stay."""
    batch = arm.batch or shape.batch
    if any(steps * shape.batch % batch for steps in shape.steps):
        tokens = " or ".join(f"{steps * shape.batch:,}" for steps in shape.steps)
        raise InputError(
            f"--arm {arm.name}: batches of {batch} do not divide the {tokens} sequences of {shape.name}'s budgets; "
            f"choose {shape.batch // 2}, {shape.batch * 2} or another that does"
        )
    if batch % arm.ranks:
        raise InputError(
            f"--arm {arm.name}: the {batch} sequences of a step cannot be split over {arm.ranks} ranks; choose "
            "--ranks that divides them"
        )
    steps = tuple(round(count * shape.batch // batch * arm.tokens) for count in shape.steps)
    warmup = max(1, round(preset.warmup * shape.batch / batch))
    return (
        dataclasses.replace(shape, batch=batch, steps=steps),
        dataclasses.replace(preset, warmup=warmup, peak=preset.peak * arm.lr),
    )


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
