"""Fit a model of delays to the own step times of ranks: which law, and how long a draw lasts.

A rank's own time is the work w, the same for all, plus its delay d. Four models are compared, and a fifth without
delays:

.. math:: x_{rs} = w + d_{rs} \\quad (\\text{step}), \\qquad x_{rs} = w + d_r + e_{rs},\\ e \\sim N(0, \\sigma^2)
          \\quad (\\text{run}), \\qquad x_{rs} = w + e_{rs} \\quad (\\text{even})

with d exponential of rate mu, or Pareto (Lomax) with scale and shape. Work and least delay cannot be told apart, so the
delay's ``a`` is 0 and w is the location that is fitted.

The location is taken out of the likelihood. Beyond the least value of n the other n - 1 of an exponential are
exponential, and those of a Lomax are Lomax of the same shape, so a new draw a step is fitted to these (the least value
itself would let the likelihood of a Lomax grow without bound). Where ranks keep their draw, their means over S steps
have noise of variance sigma^2/S, sigma from within the ranks, and the likelihood is integrated over the draws and over
w. Intervals: of mu from chi-squared (exact) for a new draw a step, else where twice the logarithm of the likelihood,
the other parameter at its best, falls by 3.84.

Source: A. C. Davison and R. L. Smith, JRSS B 52 (1990), excesses over a threshold; Epstein and Sobel, JASA 48 (1953),
the exact interval (both recalled). Choice: Schwarz's criterion over the same values; the shape of a Pareto that lasts
is told by one draw a rank and weighs the logarithm of ranks, not of values (as in M. Delattre, M. Lavielle and M.-A.
Poursat, EJS 8 (2014), recalled).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from densing.core import InputError, Note, Record, Severity, formatting
from densing.efficiency.simulation.calibration import Estimate
from densing.efficiency.simulation.cluster import Cluster, Figure
from densing.efficiency.simulation.delays import Delay, Floats

LEAST_VALUES = 8
"""Fewest values to fit a delay to."""
LEAST_RANKS = 6
"""With fewer ranks, delays that last a run get no Pareto fit, and a note says that the interval of mu is wide."""
LEAST_SPREAD = 1e-6
"""Relative difference below which values count as equal."""
DECIDED = 2.0
"""Difference in BIC below which the second-best model is not ruled out (Kass and Raftery, 1995)."""
UNLIKELY = 0.01
"""p-value of the goodness-of-fit test below which no model is said to fit."""
HEAVY = 4.0
"""A Pareto with a smaller shape has much longer tails than an exponential; a note says so if it is not ruled out."""
DRAWS = 199
REFERENCE = 20_001
MOST_JUDGED = 2000
"""Most values used to judge the fit; more are thinned at random with a seed."""
MOST_VALUES = 500
"""Most values of an empirical delay; more are written as this many quantiles."""
FALL = 1.920729
"""Half the 95 % point of chi-squared with one degree of freedom."""
STEEPEST = 50.0
"""Shape above which a Pareto equals an exponential."""


class DelayModel(Record, frozen=True):
    """One fitted model.

    Attributes
    ----------
    kind : {"shifted-exp", "pareto", "even"}
        ``even``: no delays, ranks and steps differ by Gaussian noise.
    lasts : {"step", "run"}
        Whether a rank draws anew in every step or keeps its draw for the whole run.
    work : Estimate
        Seconds of a step without delay; for ``even`` the mean.
    mu, scale, shape : Estimate or None
        As in :class:`Delay`; a shape's ``high`` is infinite where an exponential is not ruled out.
    jitter_s : float or None
        Standard deviation within a rank, of models that have one.
    log_likelihood, bic : float
        Of all seconds; Schwarz's criterion with ``parameters``, lower is better (see the module for a Pareto that
        lasts).
    parameters : int
    distance, p : float
        Kolmogorov-Smirnov distance from the model, both sides less their median and in units of their quartiles'
        distance; and how likely the model is to be so far from its own samples. Of the ranks' means for ``run``, and
        of 2000 seconds where there are more.
    """

    kind: str
    lasts: str
    work: Estimate
    mu: Estimate | None
    scale: Estimate | None
    shape: Estimate | None
    jitter_s: float | None
    log_likelihood: float
    bic: float
    parameters: int
    distance: float
    p: float

    @property
    def delay(self) -> Delay:
        """The model's delay, to simulate with.

        Raises
        ------
        InputError
            For ``even``, which has none.
        """
        if self.kind == "even":
            raise InputError("ranks are equal: this model has no delay")
        fields = {name: getattr(self, name) for name in ("mu", "scale", "shape")}
        return Delay(self.kind, lasts=self.lasts, **{name: one and one.value for name, one in fields.items()})

    @property
    def name(self) -> str:
        """The model in words."""
        law = {"shifted-exp": "shifted exponential", "pareto": "Pareto", "even": "even ranks"}[self.kind]
        return law if self.kind == "even" else f"{law}, {'iid' if self.lasts == 'step' else 'persistent'}"


class DelayFit(Record, frozen=True):
    """The model of delays that the step times support.

    Attributes
    ----------
    status : {"ok", "undecided", "no fit", "even", "no spread", "too few"}
        ``undecided``: a second model is about as likely. ``no fit``: the best model fails its goodness-of-fit test;
        ``even``: the seconds differ by symmetric noise, without a tail. In both cases ``delay`` is empirical.
    delay : Delay or None
        Delay to simulate with; None where none could be fitted.
    models : tuple of DelayModel
        The best first, by Schwarz's criterion.
    ranks, steps : int
    between : float or None
        Share of the variance that lies between ranks (intraclass correlation, from 0); None with one rank or one step.
    work_s : float or None
        Work that the delay adds to, seconds.
    notes : tuple of Note

    Examples
    --------
    >>> random = np.random.default_rng(1)
    >>> fit = fit_delays(0.4 + random.exponential(0.1, (8, 50)))
    >>> fit.status, fit.models[0].name, fit.models[0].mu.low < 10 < fit.models[0].mu.high
    ('ok', 'shifted exponential, iid', True)
    """

    status: str
    delay: Delay | None
    models: tuple[DelayModel, ...]
    ranks: int
    steps: int
    between: float | None = None
    work_s: float | None = None
    notes: tuple[Note, ...] = msgspec.field(default_factory=tuple)

    @property
    def best(self) -> DelayModel | None:
        """The most likely model; None where none was fitted."""
        return self.models[0] if self.models else None

    @property
    def heaviest(self) -> float | None:
        """Shape of the heaviest Pareto within 95 % of a best exponential; None where it is hardly heavy."""
        best = self.best
        if best is None or best.kind != "shifted-exp" or self.status not in ("ok", "undecided"):
            return None
        shapes = [one.shape.low for one in self.models if one.lasts == best.lasts and one.shape is not None]
        return shapes[0] if shapes and shapes[0] < HEAVY else None

    @property
    def sentence(self) -> str:
        """The result in one sentence, with its caveats."""
        best, size = self.best, f"{formatting.plural(self.ranks, 'rank')}, {formatting.plural(self.steps, 'step')}"
        if best is None or self.work_s is None or self.delay is None:
            return f"not fitted ({size}): " + "; ".join(note.message for note in self.notes)
        beyond = f"beyond {formatting.duration(self.work_s * 1e9)} of work"
        if self.status == "even":
            return (
                f"indistinguishable from noise of {formatting.duration((best.jitter_s or 0) * 1e9)} on either side "
                f"({size})"
            )
        if self.status == "no fit":
            mean = formatting.duration(self.delay.mean * 1e9)
            return (
                f"no model fits (the best, {best.name}, p = {best.p:.2g}); as seen, mean {mean} {beyond}, "
                f"{'iid' if self.delay.lasts == 'step' else 'persistent'} ({size})"
            )
        text = f"{best.name}, {_of(best)} {beyond} ({size})"
        if self.status == "undecided":
            text += f"; undecided: {self.models[1].name} is about as likely"
        if self.heaviest is not None:
            text += f"; a Pareto of shape {self.heaviest:.2g} or more is not ruled out"
        if self.ranks == 1 or self.steps == 1:
            text += "; whether ranks keep their delays is unknown"
        return text


def _of(model: DelayModel) -> str:
    """Say a model's size with its interval."""

    def between(one: Estimate, write: Callable[[float], str]) -> str:
        return f"95 % {write(one.low)} {'up' if math.isinf(one.high) else f'to {write(one.high)}'}"

    def seconds(value: float) -> str:
        return formatting.duration(value * 1e9)

    if model.mu is not None:
        # With few ranks no rate is too small, and the mean has no upper limit.
        low, mean, high = (1 / rate if rate else math.inf for rate in (model.mu.high, model.mu.value, model.mu.low))
        return f"mean {seconds(mean)} ({between(Estimate(mean, math.nan, low, high), seconds)})"
    assert model.scale is not None and model.shape is not None
    return (
        f"scale {seconds(model.scale.value)} ({between(model.scale, seconds)}), shape {model.shape.value:.3g} "
        f"({between(model.shape, '{:.3g}'.format)}), "
        + ("no finite mean" if math.isinf(model.delay.mean) else f"mean {seconds(model.delay.mean)}")
    )


def fit_delays(own: ArrayLike, *, seed: int = 0) -> DelayFit:
    """Fit delays to the own step times of ranks.

    Parameters
    ----------
    own : array_like (ranks, steps)
        Seconds, without waiting and exposed communication.
    seed : int
        Seeds the samples of the goodness-of-fit test.

    Raises
    ------
    InputError
        When the array is not two-dimensional, or a value is negative or not finite.

    Notes
    -----
    Definitions: see :mod:`densing.efficiency.simulation.delay_fit`.

    Examples
    --------
    >>> fit_delays([[0.5, 0.5]]).status
    'too few'
    """
    own = _checked(own)
    ranks, steps = own.shape
    if own.size < LEAST_VALUES:
        text = f"{own.size} values (ranks times steps) are too few; record {LEAST_VALUES} or more"
        return DelayFit("too few", None, (), ranks, steps, notes=(Note("few-values", "warning", text),))
    if np.ptp(own) <= LEAST_SPREAD * own.max():
        text = "all ranks took the same time for every step, so there is no delay to fit"
        return DelayFit("no spread", None, (), ranks, steps, notes=(Note("no-spread", "info", text),))
    # In units of the mean excess all figures are near 1, whatever the seconds are counted in.
    unit = float(np.mean(own - own.min()))
    scaled = (own - own.min()) / unit
    models = [_iid(scaled, "shifted-exp"), _iid(scaled, "pareto"), _even(scaled)]
    if ranks > 1 and steps > 1:
        models.append(_persistent(scaled, "shifted-exp"))
        if ranks >= LEAST_RANKS:
            models.append(_persistent(scaled, "pareto"))
    judged = [_judged(model, scaled, seed) for model in models]
    in_seconds = [_in_seconds(model, float(own.min()), unit, own.size) for model in judged]
    models = sorted(in_seconds, key=lambda model: model.bic)
    best, second = models[0], models[1]
    if best.p < UNLIKELY:
        status = "no fit"
    elif best.kind == "even":
        status = "even"
    else:
        status = "ok" if second.bic - best.bic >= DECIDED else "undecided"
    work = float(best.work.value)
    if status in ("ok", "undecided"):
        delay = best.delay
    else:
        values = own.ravel() if best.lasts == "step" else own.mean(axis=1)
        work = float(values.min())
        # What was seen holds the noise too, and no location but the least.
        delay = Delay("empirical", values=_quantiles(values - work), lasts=best.lasts)
    between, p_ranks, p_steps = _variances(own)
    fit = DelayFit(status, delay, tuple(models), ranks, steps, between, work)
    return msgspec.structs.replace(fit, notes=_notes(own, fit, p_ranks, p_steps))


def delayed(cluster: Cluster, fit: DelayFit, source: str) -> Cluster:
    """Return the cluster with a fitted delay and its source.

    Parameters
    ----------
    cluster : Cluster
    fit : DelayFit
    source : str
        What was measured, for :attr:`Cluster.sources`.

    Raises
    ------
    InputError
        When no delay was fitted.

    Examples
    --------
    >>> from densing.efficiency.simulation import load_cluster
    >>> fit = fit_delays(0.4 + np.random.default_rng(0).exponential(0.1, (8, 50)))
    >>> cluster = delayed(load_cluster("cpu2"), fit, "an example")
    >>> cluster.delay.kind, sorted(key for key in cluster.sources if "delay" in key)
    ('shifted-exp', ['delay.lasts', 'delay.mu'])
    """
    if fit.delay is None or fit.best is None or fit.work_s is None:
        raise InputError(f"cannot write a delay: {'; '.join(note.message for note in fit.notes)}")
    best, delay = fit.best, fit.delay
    about = f"{source}; {fit.status}: best of {len(fit.models)} models {best.name}"
    about += f", p = {best.p:.2g}; beyond {fit.work_s:.6g} s of work"
    sources = {key: figure for key, figure in cluster.sources.items() if not key.startswith("delay")}
    sources["delay.lasts"] = Figure(about, "measured")
    for name in ("mu", "scale", "shape"):
        estimate: Estimate | None = getattr(best, name)
        if getattr(delay, name) is not None and estimate is not None:
            interval = f"95 % interval {estimate.low:.3g} to {estimate.high:.3g}"
            sources[f"delay.{name}"] = Figure(f"{source}; {interval}", "measured")
    if delay.values:
        seen = fit.ranks * (fit.steps if delay.lasts == "step" else 1)
        thinned = f"{len(delay.values)} quantiles of the {seen} seen" if len(delay.values) < seen else "as seen"
        sources["delay.values"] = Figure(f"{source}; {thinned}", "measured")
    return cluster.change(delay=delay, sources=sources)


def _checked(own: ArrayLike) -> Floats:
    try:
        table = np.asarray(own, float)
    except (TypeError, ValueError) as error:
        raise InputError(f"own: {error}; give a number of seconds for every rank and step") from error
    if table.ndim != 2:
        raise InputError(f"own: {table.ndim} dimensions; give an array of seconds (ranks, steps)")
    bad = ~(np.isfinite(table) & (table >= 0))
    if bad.any():
        rank, step = np.argwhere(bad)[0].tolist()
        raise InputError(
            f"own[{rank}, {step}]: {table[rank, step]} is not a number of seconds; give a finite one of 0 or more"
        )
    return table


def _quantiles(values: Floats) -> tuple[float, ...]:
    values = np.sort(values)
    if len(values) > MOST_VALUES:
        values = np.quantile(values, (np.arange(MOST_VALUES) + 0.5) / MOST_VALUES)
    return tuple(float(value) for value in values)


def _variances(own: Floats) -> tuple[float | None, float, float]:
    """Share of the variance between ranks; how likely ranks, and steps, are to differ as much by chance (F tests)."""
    from scipy.special import fdtrc

    ranks, steps = own.shape
    if ranks < 2 or steps < 2:
        return None, 1.0, 1.0
    centred = own - own.mean()
    by_rank, by_step = centred.mean(axis=1), centred.mean(axis=0)
    rest = centred - by_rank[:, None] - by_step
    free = (ranks - 1) * (steps - 1)
    noise = float((rest**2).sum()) / free
    rank_square, step_square = steps * float((by_rank**2).sum()), ranks * float((by_step**2).sum())
    within = (float((centred**2).sum()) - rank_square) / (ranks * (steps - 1))
    mean_square = rank_square / (ranks - 1)
    spread = max(mean_square - within, 0.0) / steps
    between = spread / (spread + within) if spread + within > 0 else 0.0
    if noise <= LEAST_SPREAD**2 * float((centred**2).mean()):
        # No noise to compare with: what is left is how numbers are rounded.
        return between, 0.0, 1.0
    p_ranks = float(fdtrc(ranks - 1, free, mean_square / noise))
    return between, p_ranks, float(fdtrc(steps - 1, free, step_square / (steps - 1) / noise))


def _notes(own: Floats, fit: DelayFit, p_ranks: float, p_steps: float) -> tuple[Note, ...]:
    """Return the limits of the fit as notes."""
    ranks, steps, status, models, between = fit.ranks, fit.steps, fit.status, fit.models, fit.between
    best = models[0]
    notes: list[Note] = []

    def note(code: str, text: str, severity: Severity = "warning", **details: float) -> None:
        notes.append(Note(code, severity, text, details))

    if ranks == 1 or steps == 1:
        missing = "one rank was" if ranks == 1 else "one step was"
        note(
            "lasts-unknown",
            f"{missing} recorded, so it is unknown whether ranks keep their delays; a new draw per step is assumed",
        )
    elif best.lasts == "step" and status != "even":
        if between is not None and between > 0.1 and p_ranks < 1e-3:
            text = (
                f"{100 * between:.0f} % of the variance lies between ranks, which a new draw "
                "in every step does not explain"
            )
            note("ranks-differ", f"{text}; some ranks are late more often", between=between, p=p_ranks)
        text = "one value per step cannot show whether each task or the whole step is late"
        note("task-or-step", f"{text}; the delay is written for the step", "info")
    if best.lasts == "run" and ranks < LEAST_RANKS:
        text = (
            f"delays that last a run are drawn once per rank, and there are only {ranks} "
            "ranks: the interval is wide and a Pareto is not fitted"
        )
        note("few-ranks", f"{text}; record {LEAST_RANKS} ranks or more", ranks=ranks)
    if best.lasts == "run" and status in ("ok", "undecided") and best.jitter_s:
        text = f"within a rank steps differ by {formatting.duration(best.jitter_s * 1e9)} (standard deviation)"
        note("jitter", f"{text}: the written delay does not include that", "info", jitter_s=best.jitter_s)
    if status == "undecided":
        difference = models[1].bic - best.bic
        text = f"{best.name} and {models[1].name} are about as likely (criterion differs by {difference:.1f})"
        note("undecided", f"{text}; record more steps or ranks", difference=difference)
    if fit.heaviest is not None:
        text = (
            f"a longer tail is not ruled out: a Pareto of shape {fit.heaviest:.2g} or more is within the 95 % interval"
        )
        note("tail-open", f"{text}; record more {'ranks' if best.lasts == 'run' else 'steps'}", shape=fit.heaviest)
    if status == "no fit":
        text = f"no model fits: samples of the best one, {best.name}, deviate as much only with p = {best.p:.2g}"
        note("no-fit", f"{text}; the observed values are used instead", p=best.p, distance=best.distance)
    if status == "even":
        text = "no rank is late beyond symmetric noise around the mean; the observed values are used as delays"
        note("even-ranks", text, "info", jitter_s=best.jitter_s or 0.0)
    if ranks > 1 and steps > 1 and p_steps < 1e-3:
        text = (
            "steps vary on all ranks together, which delays of single ranks do not explain: the "
            "work varies between steps,"
        )
        note("steps-differ", f"{text} and part of the fitted delay is that variation", p=p_steps)
    if steps > 2:
        usual = np.median(own, axis=0)
        median = float(np.median(usual[1:]))
        spread = 1.4826 * float(np.median(np.abs(usual[1:] - median)))
        if usual[0] > median + max(5 * spread, 0.5 * median):
            text = f"the first step took {usual[0]:.3g} s and the others {median:.3g} s; it is included"
            note("slow-first-step", f"{text}: record after warming up", first_s=float(usual[0]), median_s=median)
    return tuple(notes)


def _even(x: Floats) -> DelayModel:
    """Gaussian noise around one mean."""
    mean, spread = float(x.mean()), float(x.std())
    error = spread / math.sqrt(x.size)
    likelihood = -x.size * (math.log(spread) + 0.5 * math.log(2 * math.pi) + 0.5)
    work = Estimate(mean, error, mean - 1.96 * error, mean + 1.96 * error)
    return _model("even", "step", x, work, likelihood, 2, jitter=spread)


def _iid(x: Floats, kind: str) -> DelayModel:
    """A new draw for every rank and step: what lies beyond the least value, without that value."""
    from scipy.special import gammaincinv

    values = np.sort(x, axis=None)
    least, beyond = float(values[0]), values[1:] - values[0]
    n, total = len(beyond), float(beyond.sum())
    if kind == "shifted-exp":
        mu = n / total
        low, high = (float(gammaincinv(n, share)) / total for share in (0.025, 0.975))
        rate = Estimate(mu, mu / math.sqrt(n), low, high)
        # n (least - w) mu is exponential of rate 1 and mu total is Gamma(n).
        reach = total / (n + 1) * (0.05 ** (-1 / n) - 1)
        likelihood = (n + 1) * math.log(mu) - mu * total
        return _model(kind, "step", x, _below(least, reach), likelihood, 2, mu=rate)
    # Sum of log(1 + beyond / scale) on a grid of scales: smooth, so that every other scale is read off a curve.
    from scipy.interpolate import CubicSpline

    centre = math.log(float(np.median(beyond)) or total / n)
    at = np.linspace(centre - 7, centre + 10, 120)
    sums = CubicSpline(at, [float(np.log1p(beyond / math.exp(each)).sum()) for each in at])

    def surface(log_shape: Floats, log_size: Floats) -> Floats:
        shape, size = log_shape[:, None], log_size[None, :]
        return -n * size - (np.exp(shape) + 1) * sums(np.clip(shape + size, at[0], at[-1]))

    scale, shape, peak = _pareto(surface, centre)
    size = scale.value / shape.value
    return _model(
        kind,
        "step",
        x,
        _below(least, size * math.log(20) / (n + 1)),
        peak - math.log(size),
        3,
        scale=scale,
        shape=shape,
    )


def _below(least: float, reach: float) -> Estimate:
    """The work, at most the least value."""
    return Estimate(least, reach / 3, least - reach, least)


def _persistent(x: Floats, kind: str) -> DelayModel:
    """A draw a rank, and Gaussian noise within it."""
    ranks, steps = x.shape
    means = np.sort(x.mean(axis=1))
    inside = float(((x - x.mean(axis=1, keepdims=True)) ** 2).sum())
    free = ranks * (steps - 1)
    # Ranks without any noise would be infinitely likely.
    jitter = max(math.sqrt(inside / free), LEAST_SPREAD)
    noise = jitter / math.sqrt(steps)
    within = -0.5 * (free * math.log(2 * math.pi * jitter**2) + inside / jitter**2 + ranks * math.log(steps))
    centre = math.log(max(float(means.mean() - means[0]), noise))
    if kind == "shifted-exp":
        # In the presence of noise alone the size is anything below it.
        coarse = np.linspace(centre - 3, centre + 2.5, 23)
        curve = np.array([_located(means, noise, size, math.inf).integral for size in coarse])
        low, high = _region(coarse, curve, 6.0)
        fine = np.linspace(low, high, 31)
        located = [_located(means, noise, size, math.inf) for size in fine]
        curve = np.array([one.integral for one in located])
        # Bartlett's correction for Gamma(ranks - 1), of which the integral is one where noise is small.
        size, *ends = _interval(fine, curve, FALL * (1 + 1 / (6 * (ranks - 1))), (coarse[0], coarse[-1]))
        mu = _estimate(-size, -ends[1], -ends[0])
        best = _located(means, noise, size, math.inf)
        weights = np.exp(curve - curve.max())
        work = _work(located, weights, best.mode)
        return _model(kind, "run", x, work, within + best.peak, 3, jitter=jitter, mu=mu)

    located = []

    def surface(log_shape: Floats, log_size: Floats) -> Floats:
        located[:] = [_located(means, noise, size, math.exp(shape)) for shape in log_shape for size in log_size]
        return np.array([one.integral for one in located]).reshape(len(log_shape), len(log_size))

    scale, shape, peak = _pareto(surface, centre)
    best = _located(means, noise, math.log(scale.value / shape.value), shape.value)
    # Over all shapes and sizes that were looked at last, each as likely as it is.
    work = _work(located, np.exp([one.integral - peak for one in located]), best.mode)
    model = _model(kind, "run", x, work, within + best.peak, 4, jitter=jitter, scale=scale, shape=shape)
    return msgspec.structs.replace(model, bic=model.bic - math.log(x.size) + math.log(ranks))


def _model(
    kind: str, lasts: str, x: Floats, work: Estimate, likelihood: float, parameters: int, jitter: float | None = None,
    **fitted: Estimate,
) -> DelayModel:  # fmt: skip
    each = {name: fitted.get(name) for name in ("mu", "scale", "shape")}
    bic = parameters * math.log(x.size) - 2 * likelihood
    return DelayModel(kind, lasts, work, **each, jitter_s=jitter, log_likelihood=likelihood, bic=bic,
                      parameters=parameters, distance=math.nan, p=math.nan)  # fmt: skip


Surface = Callable[[Floats, Floats], Floats]


def _pareto(surface: Surface, centre: float) -> tuple[Estimate, Estimate, float]:
    """Fit scale and shape to a likelihood of log shape and log size, where size = scale / shape; also its peak.

    The size is the inverse of the density where the delay begins: with it the shape is hardly correlated.
    """
    from scipy.interpolate import RectBivariateSpline

    shapes, sizes = np.linspace(math.log(0.2), math.log(STEEPEST), 17), np.linspace(centre - 3, centre + 2.5, 17)
    edges = (shapes[0], shapes[-1])
    coarse = surface(shapes, sizes)
    shapes = np.linspace(*_region(shapes, coarse.max(axis=1), 5.0), 21)
    sizes = np.linspace(*_region(sizes, coarse.max(axis=0), 5.0), 21)
    smooth = RectBivariateSpline(shapes, sizes, surface(shapes, sizes))
    shape_grid, size_grid = np.linspace(shapes[0], shapes[-1], 241), np.linspace(sizes[0], sizes[-1], 241)
    fine = smooth(shape_grid, size_grid)
    shape, shape_low, shape_high = _interval(shape_grid, fine.max(axis=1), FALL, edges)
    scale_grid = np.linspace(shapes[0] + sizes[0], shapes[-1] + sizes[-1], 241)
    size_at = scale_grid[None, :] - shape_grid[:, None]
    outside = (size_at < sizes[0]) | (size_at > sizes[-1])
    of_scale = np.where(outside, -np.inf, smooth.ev(np.broadcast_to(shape_grid[:, None], size_at.shape), size_at))
    open_above = math.isinf(shape_high)
    # Without a largest shape there is no largest scale.
    scale, scale_low, scale_high = _interval(scale_grid, of_scale.max(axis=0), FALL, (-math.inf, math.inf))
    # Both at the one best point.
    shape_at, size_at_best = np.unravel_index(int(fine.argmax()), fine.shape)
    scale, shape = float(shape_grid[shape_at] + size_grid[size_at_best]), float(shape_grid[shape_at])
    scale_high = math.inf if open_above else scale_high
    return _estimate(scale, scale_low, scale_high), _estimate(shape, shape_low, shape_high), float(fine.max())


def _estimate(value: float, low: float, high: float) -> Estimate:
    """From logarithms; the standard error is that of a normal of the same interval."""
    low, value, high = math.exp(low), math.exp(value), math.exp(high) if high < 700 else math.inf
    return Estimate(value, (high - low) / 3.92, min(low, value), max(high, value))


def _region(grid: Floats, curve: Floats, fall: float) -> tuple[float, float]:
    """Where a curve lies within ``fall`` of its maximum, and a node more on both sides."""
    inside = np.flatnonzero(curve > curve.max() - fall)
    return float(grid[max(inside[0] - 1, 0)]), float(grid[min(inside[-1] + 1, len(grid) - 1)])


def _interval(grid: Floats, curve: Floats, fall: float, edges: tuple[float, float]) -> tuple[float, float, float]:
    """Where a log-likelihood is largest, and where it has fallen; infinite where it does not fall before the edge."""
    from scipy.interpolate import CubicSpline

    known = np.isfinite(curve)
    grid, curve = grid[known], curve[known]
    fine = np.linspace(grid[0], grid[-1], 2001)
    smooth = CubicSpline(grid, curve)(fine)
    best = int(smooth.argmax())
    inside = np.flatnonzero(smooth >= smooth[best] - fall)
    low, high = float(fine[inside[0]]), float(fine[inside[-1]])
    if inside[0] == 0 and low <= edges[0]:
        low = -math.inf
    if inside[-1] == len(fine) - 1 and high >= edges[1]:
        high = math.inf
    return float(fine[best]), low, high


class _Located(Record, frozen=True):
    """A likelihood over the location: its logarithm integrated, the largest and where, and the values on a grid."""

    integral: float
    peak: float
    mode: float
    grid: tuple[float, ...]
    shares: tuple[float, ...]


NODES = 64
_ABSCISSAE, _WEIGHTS = np.polynomial.legendre.leggauss(NODES)


def _located(means: Floats, noise: float, log_size: float, shape: float) -> _Located:
    """Integrate the likelihood of ranks' means over the work, for one law of the draws; means ascend."""
    size, ranks = math.exp(log_size), len(means)
    reach = 40 * size / ranks + 8 * noise
    span = float(means[-1] - means[0]) + 2 * reach
    # Fine near 0, where noise blurs the edge, and coarse in the tail.
    beyond = noise * np.sinh(np.linspace(-math.asinh(9), math.asinh(span / noise), 240))
    density = _log_density(beyond, noise, size, shape)
    near = min(noise, size / ranks)

    def likelihoods(nodes: Floats) -> tuple[Floats, Floats]:
        work = means[0] - near * np.sinh(nodes)
        away = means[None, :] - work[:, None]
        # Below the table a Gaussian tail, beyond it nothing.
        value = np.interp(away, beyond, density) - 0.5 * np.minimum(away / noise + 9, 0) ** 2 * 10
        return work, value.sum(axis=1)

    nodes = np.linspace(-math.asinh(8 * noise / near), math.asinh(reach / near), NODES)
    _, coarse = likelihoods(nodes)
    nodes = np.linspace(*_region(nodes, coarse, 14.0), NODES)
    work, fine = likelihoods(nodes)
    peak = float(fine.max())
    # d work = near cosh(node) d node
    mass = np.exp(fine - peak) * near * np.cosh(nodes) * (nodes[1] - nodes[0])
    integral = peak + math.log(float(mass.sum()))
    shares = np.cumsum(mass[::-1]) / mass.sum()
    return _Located(integral, peak, float(work[fine.argmax()]), tuple(work[::-1].tolist()), tuple(shares.tolist()))


def _log_density(y: Floats, noise: float, size: float, shape: float) -> Floats:
    """Logarithm of the density of a delay with Gaussian noise, at y."""
    from scipy.special import log_ndtr

    if math.isinf(shape):
        return -math.log(size) + 0.5 * (noise / size) ** 2 - y / size + log_ndtr(y / noise - noise / size)
    scale = size * shape
    # In t = log(1 + delay / scale) the law is exponential; only draws within nine deviations matter.
    low = np.log1p(np.maximum(y - 9 * noise, 0) / scale)
    high = np.log1p((np.maximum(y, 0) + 9 * noise) / scale)
    half = (high - low)[:, None] / 2
    t = low[:, None] + half * (1 + _ABSCISSAE)
    exponent = -shape * t - 0.5 * ((y[:, None] - scale * np.expm1(t)) / noise) ** 2
    top = exponent.max(axis=1, keepdims=True)
    total = (np.exp(exponent - top) * half * _WEIGHTS).sum(axis=1)
    return top[:, 0] + np.log(total) + math.log(shape / noise) - 0.5 * math.log(2 * math.pi)


def _work(located: Sequence[_Located], weights: Floats, mode: float) -> Estimate:
    """The location's interval, over what else is unknown."""
    grid = np.linspace(min(one.grid[0] for one in located), max(one.grid[-1] for one in located), 2001)
    each = [np.interp(grid, one.grid, one.shares, left=0.0, right=1.0) for one in located]
    share = np.average(each, axis=0, weights=weights)
    low, high = (float(grid[np.searchsorted(share, bound)]) for bound in (0.025, 0.975))
    return Estimate(mode, (high - low) / 3.92, min(low, mode), max(high, mode))


def _judged(model: DelayModel, x: Floats, seed: int) -> DelayModel:
    """Add how far the values are from the model, and how likely its own samples are to be as far."""
    random = np.random.default_rng(seed)
    values = x.ravel() if model.lasts == "step" else x.mean(axis=1)
    if len(values) > MOST_JUDGED:
        values = random.choice(values, MOST_JUDGED, replace=False)
    noise = 0.0 if model.jitter_s is None else model.jitter_s / (math.sqrt(x.shape[1]) if model.lasts == "run" else 1.0)

    def sample(*size: int) -> Floats:
        delays = 0.0 if model.kind == "even" else model.delay.quantile(random.random(size))
        return delays + noise * random.standard_normal(size)

    reference = _standardised(sample(REFERENCE))
    distance = _distances(_standardised(values)[None, :], reference)[0]
    chance = _distances(np.array([_standardised(row) for row in sample(DRAWS, len(values))]), reference)
    p = (1 + int((chance >= distance).sum())) / (1 + DRAWS)
    return msgspec.structs.replace(model, distance=float(distance), p=p)


def _standardised(values: Floats) -> Floats:
    """Sorted, less the median, in units of the distance between the quartiles."""
    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75))
    return (np.sort(values) - middle) / max(high - low, 1e-12)


def _distances(samples: Floats, reference: Floats) -> Floats:
    """Kolmogorov-Smirnov distance of each sorted sample from a sorted reference."""
    n = samples.shape[1]
    share = np.searchsorted(reference, samples) / len(reference)
    steps = np.arange(n + 1) / n
    return np.maximum(np.abs(share - steps[1:]), np.abs(share - steps[:-1])).max(axis=1)


def _in_seconds(model: DelayModel, least: float, unit: float, count: int) -> DelayModel:
    """Return what was fitted to (seconds - least) / unit in seconds."""

    def scaled(one: Estimate | None, by: float, add: float = 0.0) -> Estimate | None:
        if one is None:
            return None
        return Estimate(one.value * by + add, one.standard_error * by, one.low * by + add, one.high * by + add)

    work = scaled(model.work, unit, least)
    assert work is not None
    # The density of each value is as much smaller as its unit is larger.
    likelihood = model.log_likelihood - count * math.log(unit)
    return msgspec.structs.replace(
        model,
        work=Estimate(work.value, work.standard_error, max(work.low, 0.0), work.high),
        mu=scaled(model.mu, 1 / unit),
        scale=scaled(model.scale, unit),
        jitter_s=None if model.jitter_s is None else model.jitter_s * unit,
        log_likelihood=likelihood,
        bic=model.bic + 2 * count * math.log(unit),
    )
