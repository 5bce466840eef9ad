r"""From a budget to a model: which size on how many tokens so many GPU hours train best, and what a smaller one costs.

A law says what loss a size N reaches on D tokens, the cost model how fast a cluster trains a model of that size. In T
seconds it gets through D(N) = v(N) T tokens, v(N) the speed of the best layout of a shape of N parameters
(:func:`densing.efficiency.simulation.shape_of`). The best size is that of least loss,

.. math:: \min_N \; L(N, v(N) T),

with v smoothed over neighbouring shapes; the plan is the shape next to it that trains best. Where v falls as 1/N this
is Hoffmann's closed form for a training compute of 6 N D; it seldom does, since a small model on many devices, and a
large one that hardly fits, reach less of the peak. The closed form at the plan's own compute stands beside it.

Uncertainty goes through by draws: with each draw of the law's constants goes one of the cost model's error, which is
common to all sizes. The interval of N is that of the best size, those of tokens and loss are of the planned model.

Source: Hoffmann et al., arXiv 2203.15556, section 3.3, eqs. 2 to 4; 6 N D and 2 N per served token: Kaplan et al.,
arXiv 2001.08361, section 2.1; density: arXiv 2412.04315, eq. 1, the law's own frontier being the reference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import msgspec
import numpy as np

from densing.core import (
    Array,
    Card,
    DomainError,
    Field,
    InputError,
    Listing,
    Note,
    Readable,
    Record,
    column,
    formatting,
    named_stream,
    numeric,
)
from densing.efficiency.simulation import Cluster, Transformer, parameter_count, shape_of
from densing.efficiency.throughput import Layout, LayoutPlan, Span, frozen, plan_layout
from densing.scores.fit import GUARD, LawFit, spread

DRAWS = 2000
USUAL = 0.4
"""Share of the peak by which the first sizes are guessed."""
STEP, AROUND, WITHIN = 1.25, 4.0, 1000.0
"""Sizes that are tried: this many times apart; so many times beyond what the law's closed form says for its draws, and
no more than so many times."""
SMOOTH = 2.0
"""How many times apart sizes are whose speeds are averaged where the best size is looked for: a shape may be a few per
cent faster than its neighbours because its heads or layers divide well, which no range of the cost model bears out."""
NEAR, BESIDE = 1.1, 6
"""The planned shape is the best one so many times from the best size; so many are tried there."""
MOST_EXTENSIONS = 10
HALVED = 40.0
"""ln of how much smaller than the planned model the smaller one may be at most."""
DENSE = 16
"""Sizes between two tried ones, on average, at which draws look for their best."""
SAME = 41
"""Points of the law's curve at one compute."""
FEW_STEPS = 1000
SERVED = 2
"""Operations per parameter and served token."""
LEVELS = (0.5, 0.999)
NO_JOINT = (
    "The joint scale is made of benchmark scores, and of no model on it the loss on this law's text is known: density "
    "is relative to the law's own frontier, on which it is 1."
)


def _loss(value: float) -> str:
    return f"{value:.3f}"


class Point(Record, frozen=True):
    """A size that the budget was priced for.

    Parameters
    ----------
    params, tokens, loss : float
        ``tokens`` are those that the hours allow.
    loss_low, loss_high : float
    mfu : float
        Of its best layout.
    layers, hidden : int
    """

    params: float
    tokens: float
    loss: float
    loss_low: float
    loss_high: float
    mfu: float
    layers: int
    hidden: int


class Overtrained(Record, frozen=True):
    """A smaller model of the same loss, trained on more tokens per parameter.

    Parameters
    ----------
    times : float
        Its tokens per parameter over those of the plan.
    params, tokens : Span
    compute : Span
        Training compute 6 N D over that of the plan.
    gpu_hours : Span or None
        On the same devices, in its own best layout; None where none fits.
    saved : Span
        Share of the 2 N operations per served token that it saves.
    served : Span
        Tokens from which on less serving outweighs more training, in operations.
    density : Span
    shape : Transformer
        The nearest one by the rule; its layout is priced, sizes and tokens are the law's.
    layout : Layout or None
    """

    times: float
    params: Span
    tokens: Span
    compute: Span
    gpu_hours: Span | None
    saved: Span
    served: Span
    density: Span
    shape: Transformer
    layout: Layout | None


class TrainingPlan(Readable, Record, frozen=True):
    """What so many GPU hours train best.

    Parameters
    ----------
    law, source : str
    cluster, device : str
    devices : int
    gpu_hours, goodput, days : float
    sequence, batch : int
        Tokens per sequence, sequences per step.
    level : float
        Of the intervals.
    shape : Transformer
    params : Span
        The planned size, and the interval of the best size.
    tokens, loss : Span
        Of the planned size.
    tokens_per_param, flops, steps : float
        ``flops`` is 6 N D.
    density : Span
        Size on the law's frontier that has this loss, over the planned size.
    density_note : str
    closed_form : float
        Size that Hoffmann's closed form gives for ``flops``.
    layout : Layout
    overtrained : Overtrained
    curve : tuple of Point
        Every size that was priced, by size.
    same_compute : tuple of (float, float)
        Sizes, and the law's loss of each at the plan's ``flops``.
    notes : tuple of Note

    See Also
    --------
    plan_training
    """

    drawn_by: ClassVar[str] = "densing.plots:plot_isoflop"

    law: str
    source: str
    cluster: str
    device: str
    devices: int
    gpu_hours: float
    goodput: float
    days: float
    sequence: int
    batch: int
    level: float
    shape: Transformer
    params: Span
    tokens: Span
    loss: Span
    tokens_per_param: float
    flops: float
    steps: float
    density: Span
    density_note: str
    closed_form: float
    layout: Layout
    overtrained: Overtrained
    curve: tuple[Point, ...]
    same_compute: tuple[tuple[float, float], ...]
    notes: tuple[Note, ...] = ()

    @property
    def sentence(self) -> str:
        """The plan in a sentence."""
        return (
            f"{self.gpu_hours:,.10g} GPU hours on {self.devices:,} devices of {self.cluster} "
            f"({formatting.number(self.days, 3)} days) train {formatting.size(self.params.value)} parameters on "
            f"{formatting.size(self.tokens.value)} tokens, to a loss of {self.loss.value:.3f} ({self.loss.low:.3f} to "
            f"{self.loss.high:.3f})"
        )

    def listing(self) -> Listing:
        """Return the plan and the smaller model side by side."""
        small, layout = self.overtrained, self.layout
        size, digits, share = formatting.size, formatting.digits, formatting.percentage

        def shown(span: Span | None, form: Callable[[float], str]) -> tuple[str, str]:
            return ("–", "") if span is None else (form(span.value), f"{form(span.low)} to {form(span.high)}")

        rows = [
            ("Parameters N", *shown(self.params, size), *shown(small.params, size)),
            ("Tokens D", *shown(self.tokens, size), *shown(small.tokens, size)),
            ("Loss", *shown(self.loss, _loss), _loss(self.loss.value), "the same"),
            ("Density", *shown(self.density, digits), *shown(small.density, digits)),
            ("D / N", digits(self.tokens_per_param), "", digits(small.times * self.tokens_per_param), ""),
            ("6 N D", formatting.power(self.flops, 3), "", formatting.power(small.compute.value * self.flops, 3), ""),
            ("6 N D, over the plan's", "1", "", *shown(small.compute, digits)),
            ("GPU hours", f"{self.gpu_hours:,.10g}", "", *shown(small.gpu_hours, formatting.thousands)),
            ("MFU", share(layout.mfu), "", share(small.layout and small.layout.mfu), ""),
            ("Saved per served token", "", "", *shown(small.saved, share)),
            ("Worth it from, served tokens", "", "", *shown(small.served, size)),
        ]
        names = ("what", "plan", "plan_interval", "small", "small_interval")
        interval = f"{100 * self.level:g} %"
        titles = ("", "Plan", interval, f"{small.times:g} times the tokens per parameter", interval)
        fields = [Field(title, column(name)) for title, name in zip(titles, names, strict=True)]
        table = [dict(zip(names, row, strict=True)) for row in rows]
        return Listing("The plan, and a smaller model of the same loss.", table, fields)

    def sizes_listing(self) -> Listing:
        """Return every size that was priced; the planned one is marked."""
        rows = [{**point.to_dict(), "planned": point.params == self.params.value} for point in self.curve]
        fields = (
            numeric("Parameters", "params", formatting.size),
            Field("Layers x width", lambda row: f"{row['layers']} x {row['hidden']:,}"),
            numeric("Tokens", "tokens", formatting.size),
            numeric("Loss", "loss", _loss),
            Field("Interval", lambda row: f"{_loss(row['loss_low'])} to {_loss(row['loss_high'])}"),
            numeric("MFU", "mfu", formatting.percentage),
        )
        return Listing("Sizes that were priced; the planned one is emphasised.", rows, fields, "planned")

    def card(self) -> Card:
        """Return what is shown: the plan, the smaller model, then the sizes that were priced."""
        small = self.overtrained
        facts = {
            "plan": self.sentence,
            "law": f"{self.law} ({self.source})",
            "density": f"{self.density.value:.2f}, relative to the law's own frontier",
            "smaller": f"{formatting.size(small.params.value)} on {formatting.size(small.tokens.value)} tokens: "
            f"{small.compute.value:.2f} times the training compute, {formatting.percentage(small.saved.value)} less "
            "per served token",
        }
        return Card(f"A model for {self.gpu_hours:,.10g} GPU hours", facts, self.sizes_listing(), self.notes)


def plan_training(
    law: LawFit,
    cluster: Cluster,
    gpu_hours: float,
    *,
    devices: int | None = None,
    sequence: int = 4096,
    batch: int = 1024,
    goodput: float = 1.0,
    overtrain: float = 10.0,
    level: float = 0.95,
    seed: int = 0,
    progress: Callable[[str, float, float | None], None] = lambda _label, _done, _total: None,
    **ways: Any,
) -> TrainingPlan:
    """Find the model that a budget of GPU hours trains to the least loss.

    Parameters
    ----------
    law : LawFit
        Of loss in size and tokens: fitted to runs of your own, or :func:`densing.scores.fit.published_law`.
    cluster : Cluster
    gpu_hours : float
    devices : int, optional
        How many train at once; all of the cluster by default.
    sequence, batch : int
        Tokens per sequence, and sequences per step over all devices.
    goodput : float
        Share of the hours that trains; the rest goes to checkpoints, failures and restarts.
    overtrain : float
        Tokens per parameter of the smaller model of the same loss, over those of the plan.
    level : float
        Of the intervals.
    seed : int
        Of the draws.
    progress : callable
        Told a label, how many sizes are priced, and how many will be.
    **ways
        ``precision``, ``schedule`` and ``framework``, as :func:`densing.efficiency.throughput.plan_layout` takes them.

    Raises
    ------
    DomainError
        For a law without size and tokens.
    InputError
        For figures out of range, and where no size has a layout on the cluster: with the reason.

    Examples
    --------
    >>> from densing.efficiency.simulation import load_cluster
    >>> from densing.scores.fit import published_law
    >>> plan = plan_training(published_law("chinchilla-refit"), load_cluster("h100x8-nvlink", n=64), 2e4, batch=256)
    >>> 1e10 < plan.params.value < 3e10, 10 < plan.tokens_per_param < 40
    (True, True)
    >>> plan.overtrained.params.value < plan.params.value
    True

    See Also
    --------
    densing.scores.fit.LawFit.optimal
    """
    _check(gpu_hours=(gpu_hours, 1e-6, 1e12), goodput=(goodput, 0.01, 1), overtrain=(overtrain, 1.01, 1e4),
           level=(level, *LEVELS))  # fmt: skip
    if getattr(law.law, "least_compute", None) is None or law.law.output != "loss":
        raise DomainError(f"law {law.law.name}: size and tokens cannot be traded; fit a law of both: chinchilla")
    devices = cluster.n if devices is None else devices
    if devices < 1:
        raise InputError(f"gpus: {devices} is out of range; give 1 or more")
    seconds = 3600 * gpu_hours * goodput / devices

    priced = _Priced(
        lambda shape: plan_layout(shape, cluster, devices, sequence=sequence, batch=batch, most=1, **ways),
        law.law, law.theta, _rows(law, seed), seconds, progress,
    )  # fmt: skip
    priced.search(seconds * USUAL * devices * cluster.device.flops)
    best = priced.best()
    plan = priced.plans[best]
    layout, size = plan.layouts[0], np.array([float(best)])
    # Nothing is faster than the peak, whatever a range with long tails holds.
    errors = frozen().ranges[plan.kind].draws(DRAWS, named_stream(seed, "training-plan", "speed"))
    slower = np.maximum(np.exp(errors), layout.mfu)[:, None]
    interval = _Interval(level)
    tokens = layout.tokens_per_s * seconds
    drawn = priced.losses(size, tokens / slower)
    loss = float(law.predict({"params": size, "tokens": np.array([tokens])})[0])
    losses = np.vstack([[[loss]], drawn])
    trained = np.vstack([[[tokens]], tokens / slower])
    thetas = np.vstack([law.theta, priced.theta])
    frontier = priced.law.least_compute(thetas, losses)[0]
    flops = 6 * best * tokens
    points = [(float(params), each) for params, each in sorted(priced.plans.items())]
    curve = np.array([params for params, _ in points])
    speeds = np.array([each.layouts[0].tokens_per_s for _, each in points])
    low, high = spread(priced.losses(curve, speeds * seconds / slower), level)
    middle = law.predict({"params": curve, "tokens": speeds * seconds})
    same = np.geomspace(curve[0], curve[-1], SAME)
    found = TrainingPlan(
        law=str(law.meta.get("name", law.law.name)),
        source=str(law.meta.get("source") or f"fitted to {formatting.plural(len(law.y), 'run')}"),
        cluster=cluster.name,
        device=cluster.device.name,
        devices=devices,
        gpu_hours=gpu_hours,
        goodput=goodput,
        days=gpu_hours / devices / 24,
        sequence=sequence,
        batch=batch,
        level=level,
        shape=priced.shapes[best],
        params=interval(best, priced.best_sizes(priced.theta, slower)),
        tokens=interval(tokens, trained[1:]),
        loss=interval(loss, drawn),
        tokens_per_param=tokens / best,
        flops=flops,
        steps=tokens / (sequence * batch),
        density=interval(frontier[0, 0] / best, frontier[1:] / best),
        density_note=NO_JOINT,
        closed_form=float(law.optimal([flops]).params[0]),
        layout=layout,
        overtrained=_overtrained(priced, plan, thetas, losses, trained, frontier, overtrain, gpu_hours, interval),
        curve=tuple(
            Point(
                params, float(speeds[at] * seconds), float(middle[at]), float(low[at]), float(high[at]),
                each.layouts[0].mfu, priced.shapes[int(params)].layers, priced.shapes[int(params)].hidden,
            )
            for at, (params, each) in enumerate(points)
        ),
        same_compute=tuple(zip(same.tolist(), law.predict({"params": same, "tokens": flops / 6 / same}).tolist(),
                               strict=True)),
    )  # fmt: skip
    return msgspec.structs.replace(found, notes=(*law.notes, *_notes(found, law, priced), *plan.notes))


def _rows(law: LawFit, seed: int) -> Array:
    """Return as many draws of the law's constants as are taken of everything; its best ones where it has none."""
    if not len(law.draws):
        return np.tile(law.theta, (DRAWS, 1))
    return law.draws[named_stream(seed, "training-plan", "law").integers(len(law.draws), size=DRAWS)]


class _Interval:
    """Makes an estimate and its draws a :class:`Span`."""

    def __init__(self, level: float) -> None:
        self.level = level

    def __call__(self, value: float, draws: Array) -> Span:
        low, high = spread(np.ravel(draws), self.level)
        return Span(float(value), float(low), float(high))


class _Priced:
    """Sizes with their best layouts, and what the law says of them for a budget.

    ``plans`` and ``shapes`` are by number of parameters; ``theta`` are draws of the law's constants.
    """

    def __init__(
        self, price: Callable[[Transformer], LayoutPlan], law: Any, best: Array, theta: Array, seconds: float,
        progress: Callable[[str, float, float | None], None],
    ) -> None:  # fmt: skip
        self.price, self.law, self.middle, self.theta, self.seconds, self.progress = (
            price, law, best, theta, seconds, progress
        )  # fmt: skip
        self.plans: dict[int, LayoutPlan] = {}
        self.shapes: dict[int, Transformer] = {}
        self.refused: dict[int, InputError] = {}
        self.total = 0.0

    def add(self, targets: Iterable[float]) -> None:
        """Price the shapes nearest to these sizes; those without a layout are refused."""
        shapes = {parameter_count(shape): shape for shape in map(shape_of, targets)}
        new = {count: shape for count, shape in shapes.items() if count not in self.plans and count not in self.refused}
        self.total = max(self.total, len(self.plans) + len(self.refused) + len(new) + BESIDE)
        for count, shape in sorted(new.items()):
            self.progress("sizes", len(self.plans) + len(self.refused), self.total)
            try:
                self.plans[count] = self.price(shape)
                self.shapes[count] = shape
            except InputError as error:
                self.refused[count] = error

    def search(self, flops: float) -> None:
        """Price sizes around what the closed form says for a compute, until the best of every draw lies within.

        Raises
        ------
        InputError
            Where no size has a layout.
        """
        guess = self.law.optimal(np.vstack([self.middle, self.theta]), [flops])[0][:, 0]
        center = float(guess[0])
        low, high = (float(end) for end in np.quantile(guess, [0.005, 0.995]))
        ends = [max(low / AROUND, center / WITHIN), min(high * AROUND, center * WITHIN)]
        self.add(_between(*ends))
        for _ in range(MOST_EXTENSIONS):
            before = len(self.plans) + len(self.refused)
            sizes = sorted(self.plans)
            # Where nothing fits, smaller ones may.
            down, up = not sizes, False
            if sizes:
                found = np.append(np.quantile(self.best_sizes(self.theta), [0.005, 0.995]), self.target)
                down = found.min() <= sizes[:2][-1] and ends[0] > center / WITHIN
                up = found.max() >= sizes[-2:][0] and ends[1] < center * WITHIN
            if down:
                ends[0] /= AROUND
                self.add(_between(ends[0], ends[0] * AROUND))
            if up:
                ends[1] *= AROUND
                self.add(_between(ends[1] / AROUND, ends[1]))
            if len(self.plans) + len(self.refused) == before:
                break
        if not self.plans:
            raise self.refused[min(self.refused)]
        self.add(self.target * np.geomspace(1 / NEAR, NEAR, BESIDE))

    def losses(self, sizes: Array, tokens: Array, theta: Array | None = None) -> Array:
        """Return the law's losses by draw; ``tokens`` by size, or by draw and size."""
        return np.asarray(self.law.predict(self.theta if theta is None else theta, {"params": sizes, "tokens": tokens}))

    def bought(self, sizes: Sequence[int]) -> Array:
        """Return the tokens that the budget buys each size."""
        return np.array([self.plans[size].layouts[0].tokens_per_s * self.seconds for size in sizes])

    @property
    def target(self) -> float:
        """Size of least loss by the law's best constants, at smoothed speeds."""
        return float(self.best_sizes(self.middle[None])[0])

    def best(self) -> int:
        """Return the priced size of least loss among those next to the target; where there is none, the nearest."""
        away = {size: abs(math.log(size / self.target)) for size in self.plans}
        sizes = [size for size in away if away[size] <= math.log(NEAR)] or [min(away, key=lambda size: away[size])]
        losses = self.losses(np.array(sizes, dtype=float), self.bought(sizes), self.middle)
        return sizes[int(np.argmin(losses))]

    def best_sizes(self, theta: Array, slower: Array | float = 1.0) -> Array:
        """Return the size of least loss by draw, at smoothed speeds; ``slower``: factor on times, by draw."""
        sizes = sorted(self.plans)
        dense = np.exp(np.linspace(math.log(sizes[0]), math.log(sizes[-1]), DENSE * len(sizes)))
        tokens = _smoothed(np.array(sizes, dtype=float), self.bought(sizes), dense)
        losses = self.losses(dense, np.broadcast_to(tokens, (len(theta), len(dense))) / slower, theta)
        return dense[np.argmin(losses, axis=1)]

    @property
    def full(self) -> bool:
        """Whether larger sizes than the largest priced one were refused."""
        return bool(self.refused) and max(self.refused) > max(self.plans)


def _smoothed(sizes: Array, tokens: Array, at: Array) -> Array:
    """Return tokens at other sizes: local lines through their logarithms, weighted by a normal of width SMOOTH."""
    if len(sizes) == 1:
        return np.broadcast_to(tokens, at.shape)
    away = np.log(sizes) - np.log(at)[:, None]
    weights = np.exp(-0.5 * (away / math.log(SMOOTH)) ** 2)
    zero, one, two = (np.sum(weights * away**power, axis=1) for power in range(3))
    level, slope = (weights @ np.log(tokens), (weights * away) @ np.log(tokens))
    return np.exp((two * level - one * slope) / (two * zero - one**2))


def _between(low: float, high: float) -> Array:
    return np.exp(np.arange(math.log(low), math.log(high) + math.log(STEP), math.log(STEP)))


def _overtrained(
    priced: _Priced, plan: LayoutPlan, thetas: Array, losses: Array, tokens: Array, frontier: Array, times: float,
    gpu_hours: float, interval: _Interval,
) -> Overtrained:  # fmt: skip
    """Return the smaller model of the same loss on so many times the tokens per parameter; row 0 is the estimate."""
    size = float(plan.parameters)
    ratio = times * tokens / size
    # Along N, ratio N the loss falls: the size lies between next to nothing and the planned one.
    low, high = np.full(len(thetas), math.log(size) - HALVED), np.full(len(thetas), math.log(size))
    for _ in range(60):
        middle = (low + high) / 2
        params = np.exp(middle)[:, None]
        above = (priced.losses(params, ratio * params, thetas) > losses)[:, 0]
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    params = np.exp((low + high) / 2)[:, None]
    compute = times * (params / size) ** 2
    # Where the smaller one is no dearer to train, it is worth it from the first token on.
    served = np.maximum(6 * (compute - 1) * size * tokens, 0) / (SERVED * (size - params))

    def of(values: Array) -> Span:
        return interval(float(values[0, 0]), values[1:])

    shape = shape_of(float(params[0, 0]))
    try:
        own: LayoutPlan | None = priced.plans.get(parameter_count(shape)) or priced.price(shape)
    except InputError:
        own = None
    hours = None
    if own is not None:
        speeds = [each.parameters * each.layouts[0].tokens_per_s for each in (plan, own)]
        hours = of(gpu_hours * compute * speeds[0] / speeds[1])
    return Overtrained(
        times, of(params), of(ratio * params), of(compute), hours, of(1 - params / size), of(served),
        of(frontier / params), shape, None if own is None else own.layouts[0],
    )  # fmt: skip


def _notes(plan: TrainingPlan, law: LawFit, priced: _Priced) -> list[Note]:
    """Return what to know before the plan is used."""
    notes = []
    if not len(law.draws):
        message = (
            f"{plan.law}: no draws of its constants are known; intervals hold the cost model's range only, which "
            "hardly moves the best size"
        )
        notes.append(Note("no-draws", "info", message))
    ranges = {"N": (plan.params.value, law.domain["params"]), "D": (plan.tokens.value, law.domain["tokens"])}
    if len(law.y):
        runs = 6 * law.x["params"] * law.x["tokens"]
        ranges["6 N D"] = (plan.flops, (float(runs.min()), float(runs.max())))
    beyond = {name: row for name, row in ranges.items() if not row[1][0] <= row[0] <= row[1][1]}
    if beyond:
        far = any(not low / GUARD <= value <= GUARD * high for value, (low, high) in beyond.values())
        told = "; ".join(
            f"{name} {formatting.power(value)} (fitted: {formatting.power(low)} to {formatting.power(high)})"
            for name, (value, (low, high)) in beyond.items()
        )
        message = f"outside the runs that the law was fitted to: {told}"
        notes.append(Note("extrapolated", "warning" if far else "info", message, {"beyond": list(beyond)}))
    if priced.full and plan.params.value == max(priced.plans):
        message = f"larger sizes have no layout: {priced.refused[max(priced.refused)]}"
        notes.append(Note("largest-that-fits", "warning", message))
    smallest = parameter_count(shape_of(1))
    if plan.params.value == smallest:
        message = f"the budget is too small: the plan is the smallest shape, {formatting.size(smallest)}, not the law's"
        notes.append(Note("smallest-shape", "error", message))
    ends = min(priced.plans), max(priced.plans)
    if (plan.params.low <= ends[0] > smallest) or (plan.params.high >= ends[1] and not priced.full):
        message = (
            "the law's draws leave the best size open: it lies beyond the sizes that were priced, "
            f"{formatting.size(ends[0])} to {formatting.size(ends[1])}, in more draws than the interval leaves out"
        )
        notes.append(Note("open-size", "warning", message))
    if plan.steps < FEW_STEPS:
        message = (
            f"the run has {plan.steps:,.3g} steps of {plan.batch * plan.sequence:,} tokens, fewer than {FEW_STEPS:,}: "
            "laws say nothing of so few; give a smaller --batch"
        )
        notes.append(Note("few-steps", "warning", message))
    return notes


def _check(**rows: tuple[float, float, float]) -> None:
    for name, (value, low, high) in rows.items():
        if not low <= value <= high:
            raise InputError(f"{name.replace('_', '-')}: {value:g} is out of range; give {low:g} to {high:g}")
