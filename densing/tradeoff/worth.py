r"""Is a technique worth it? Time saved per step, tokens that it costs, and so what a run pays at equal loss.

A technique whose step is s times as fast as plain training's, and whose tokens are worth r of plain ones each, reaches
the same loss in 1 / (s r) of the time: it pays where ln s + ln r > 0. With s from the model of a step and r from a
ladder, both with errors,

.. math:: \ln s + \ln r \sim \mathcal{N}(\mu, \sigma_s^2 + \sigma_r^2).

- :math:`\sigma_s`: the step simulated anew with devices and links faster and slower by the spread of the cost model's
  errors, each by itself.
- :math:`r` at the run's size and tokens: the ladder's ratio moved along its trends with ln D and ln N. A trend b over a
  distance x from the ladder's middle adds b x, its own error times x, and b x² / (2 w): over every further width w of
  the ladder the trend may change by as much as itself.

Where the 95 % interval of r spans more than a factor of :data:`NOTHING`, the ladder says nothing at that distance, and
the answer is one of time alone; so it is where the ladder itself decided nothing: an interval without both ends, or few
pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import msgspec
import numpy as np

from densing.core import (
    ArtefactError,
    Card,
    Field,
    InputError,
    Listing,
    Note,
    Readable,
    Record,
    UnknownNameError,
    column,
    decode,
    formatting,
    numeric,
    printed_data,
    read_json,
    seconds,
)
from densing.efficiency.systems import compare, get_technique, parse_settings
from densing.efficiency.throughput import SHARE, Span, fitted_step
from densing.tradeoff.gain import ratio as ratio_column
from densing.tradeoff.records import PLAIN, ArmFigures, ArmTrend, arm_figures, arm_trends, gain_record, shipped_records

if TYPE_CHECKING:
    import pandas as pd

    from densing.efficiency.simulation import Cluster, Workload
    from densing.tradeoff.gain import GainRecord, Gains

LEVEL = 0.95
NOTHING = 100.0
"""Upper end of a token ratio's interval over its lower one, beyond which it is no figure to act on."""
UNKNOWN_SPREAD = 0.2
"""Spread of ln step where nothing was measured that is like it: about that of generations that were left out."""
FACTORS = tuple(2.0**power for power in range(-4, 5))
"""Bandwidths of the map, over the cluster's own."""
Z, Z_RANGE = (NormalDist().inv_cdf(0.5 + share / 2) for share in (LEVEL, SHARE))
RANKS = 4
"""Virtual ranks of the ladder that a sentence proposes."""
written_ratio = ratio_column("token")
PAYS, PAYS_NOT, OPEN, TIME = "pays", "does not pay", "not decided", "time only"


class Verdict(Record, frozen=True):
    """What one technique buys, and whether it pays.

    Parameters
    ----------
    technique : str
        With its settings, as in ``co2:tau=8``.
    status : {"pays", "does not pay", "not decided", "time only", "does not fit", "does not apply"}
        ``pays``: the whole interval of ``gain`` is above 1.
    reason : str
        Why there is no more than time, or not even that.
    step_s : float or None
    speedup : Span or None
        Plain's step over this one's, with a 95 % interval.
    token_ratio : Span or None
        What a token is worth beside plain training's, at the run's size and tokens.
    ladder_ratio : Span or None
        The same at the ladder's.
    ladder_params, ladder_tokens : float or None
        The ladder's own, in the middle of it: what ``token_ratio`` is carried from.
    gain : Span or None
        Plain's time at equal loss over this one's.
    probability : float or None
        That it pays.
    days, device_hours : Span or None
        To the loss that plain training reaches on its tokens.
    cost : Span or None
        Money for them; None where no price was given.
    saved : Span or None
        Money that it saves beside plain training; below 0, it costs more. Its interval is that of the gain, with plain
        training's own cost as predicted.
    density : Span or None
        Of the same model on the same tokens over plain's, as the ladder measured it.
    break_even_ratio : float or None
        Token ratio from which on it pays.
    break_even_gbps : float or None
        Bandwidth of the slowest link up to which it pays; None outside the map.
    decides : str
        What measurement would decide it.
    trials : int or None
        With which the ladder's arms were tuned, plain training among them; None where they were not, or there is none.
    """

    technique: str
    status: str
    reason: str = ""
    step_s: float | None = None
    speedup: Span | None = None
    token_ratio: Span | None = None
    ladder_ratio: Span | None = None
    ladder_params: float | None = None
    ladder_tokens: float | None = None
    gain: Span | None = None
    probability: float | None = None
    days: Span | None = None
    device_hours: Span | None = None
    cost: Span | None = None
    saved: Span | None = None
    density: Span | None = None
    break_even_ratio: float | None = None
    break_even_gbps: float | None = None
    decides: str = ""
    trials: int | None = None


class Worth(Readable, Record, frozen=True):
    """Verdicts on techniques, beside plain training of the same model on the same cluster.

    Parameters
    ----------
    model, cluster, baseline : str
    devices : int
    params, tokens : float
        Of the run.
    plain_step_s : float
    plain_days, plain_device_hours : Span
        With the range of the step.
    verdicts : tuple of Verdict
    link : str
        That the map varies.
    gbps : float
        Its bandwidth.
    curves : tuple of mapping
        ``technique``, ``gbps`` and ``break_even_ratio``: token ratio from which on it pays.
    price : float or None
        Money per device and hour.
    notes : tuple of Note
    """

    drawn_by: ClassVar[str] = "densing.plots:plot_worth"

    model: str
    cluster: str
    baseline: str
    devices: int
    params: float
    tokens: float
    plain_step_s: float
    plain_days: Span
    plain_device_hours: Span
    verdicts: tuple[Verdict, ...]
    link: str
    gbps: float
    curves: tuple[Mapping[str, Any], ...] = ()
    price: float | None = None
    notes: tuple[Note, ...] = ()

    def frame(self) -> pd.DataFrame:  # type: ignore[override]
        """Return a row per technique; a span in three columns."""
        import pandas as pd

        return pd.DataFrame([_flat(verdict) for verdict in self.verdicts])

    def listing(self) -> Listing:
        """Return a row per technique as people read it; intervals are of 95 %."""

        def words(name: str) -> Callable[[Mapping[str, Any]], str]:
            return lambda row: formatting.MISSING if row[name] is None else row[name].words

        fields = (
            Field("Technique", column("technique")),
            Field("Verdict", column("status")),
            seconds("Step", "step_s"),
            Field("Speed-up", words("speedup")),
            Field(
                "Token ratio", words("token_ratio"), hint="Worth of a token over plain's, at the run's size and tokens"
            ),
            Field("At the ladder", words("ladder_ratio"), minor=True),
            Field("Gain", words("gain"), hint="Plain's time to the same loss over this one's"),
            numeric("Pays with", "probability", formatting.share, hint="Probability that the gain is above 1"),
            Field("Days", words("days")),
            numeric("Pays below Gbit/s", "break_even_gbps", hint="The link at which it takes as long as plain"),
            Field("Density", words("density"), hint="At equal tokens, as the ladder measured it", minor=True),
        )
        rows = [{name: getattr(each, name) for name in each.__struct_fields__} for each in self.verdicts]
        return Listing("Techniques beside plain training; 95 % intervals.", rows, fields)

    def sentences(self) -> tuple[str, ...]:
        """Return each verdict in words."""
        return tuple(_sentence(verdict, self) for verdict in self.verdicts)

    def card(self) -> Card:
        """Return what is shown: a sentence per technique, then the figures."""
        title = f"{self.model} on {self.devices:,} devices of {self.cluster}, {formatting.size(self.tokens)} tokens"
        facts = {verdict.technique: text for verdict, text in zip(self.verdicts, self.sentences(), strict=True)}
        return Card(title, facts, self.listing(), self.notes)


def read_worth(path: Path | str) -> Worth:
    """Read what ``densing worth --json`` printed.

    Parameters
    ----------
    path : path

    Raises
    ------
    InputError
        When it cannot be read.
    ArtefactError
        When it is not such an answer.
    """
    document = read_json(Path(path))
    data = printed_data(document)
    if not isinstance(data, dict) or not isinstance(data.get("verdicts"), list):
        raise ArtefactError(f"{path}: not what `densing worth --json` prints; write it with `... --json > FILE`")
    # An end that is not known has no number in JSON.
    verdicts = [
        {
            name: {end: math.nan if each is None else each for end, each in value.items()}
            if isinstance(value, dict) else value
            for name, value in verdict.items()
        }
        for verdict in data["verdicts"] if isinstance(verdict, dict)
    ]  # fmt: skip
    notes = data.get("notes") or (document.get("notes") if isinstance(document, dict) else None) or ()
    return decode({**data, "verdicts": verdicts, "notes": notes}, Worth, str(path))


class Target(NamedTuple):
    """Where an answer is wanted: ln parameters and ln tokens."""

    params: float
    tokens: float


def worth(
    techniques: Sequence[str],
    workload: Workload,
    cluster: Cluster,
    tokens: float,
    *,
    gains: Sequence[Gains | GainRecord | Path | str] = (),
    baseline: str = "ddp",
    price: float | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Worth:
    """Say whether techniques pay for a training run.

    Parameters
    ----------
    techniques : sequence of str
        With settings, as in ``co2:tau=8``.
    workload : Workload
        A training step, split over the cluster.
    cluster : Cluster
    tokens : float
        Of the plain run.
    gains : sequence of Gains, GainRecord or path
        Records of ladders of one's own, tried before those of this package; their baseline must be plain.
    baseline : str
        The technique that plain training exchanges with.
    price : float, optional
        Money per device and hour.
    progress : callable, optional
        Called with the comparisons done and in all.

    Raises
    ------
    InputError
        For no technique, or the baseline as one, a workload that is not training, tokens that are not above 0, a record
        of another baseline, a baseline that changes what is learned, and where plain training does not fit or does not
        apply.
    UnknownNameError
        For an unknown technique or knob.

    Examples
    --------
    >>> from densing.efficiency.simulation import load_cluster, load_workload
    >>> step = load_workload("llama-8b", mode="train", dp=2, tp=8)
    >>> found = worth(["dct:eta=0.99"], step, load_cluster("a100x8-tcp"), 2e10)
    >>> [(verdict.status, 0.1 < verdict.break_even_ratio < 0.25) for verdict in found.verdicts]
    [('time only', True)]
    """
    specs = [_spec(text) for text in techniques]
    _check(specs, workload, tokens, price, baseline)
    given = _own_rows(gains)
    rows = [*given, *_shipped_rows()]
    names = [spec.label for spec in specs]
    total = 1 + 4 + len(FACTORS)
    compared = _Compared(specs, workload, baseline, progress or (lambda done, total: None), total)
    center = compared.on(cluster)
    plain = _plain_row(center.plain, baseline)
    found = fitted_step(workload, cluster)
    most = math.exp(Z_RANGE * UNKNOWN_SPREAD)
    ends = (found.low, found.high) if found else (1 / most, most)
    spread = math.log(ends[1] / ends[0]) / (2 * Z_RANGE)
    sds = _speed_spreads(compared, cluster, spread)
    link = "wide" if cluster.wide is not None else "inter" if cluster.n > cluster.per_node else "intra"
    beta = getattr(cluster, link).beta_s_per_byte
    if not beta:
        raise InputError(f"cluster {cluster.name}: its link {link} takes no time per byte; give it a bandwidth")
    own = 8e-9 / beta
    map_ = [(own * factor, compared.on(_linked(cluster, link, factor)).speedups) for factor in FACTORS]
    params = _parameters(workload)
    target = Target(math.log(params), math.log(tokens))
    days = Span(plain.step_s, plain.step_s * ends[0], plain.step_s * ends[1]).times(
        tokens / (workload.batch * workload.sequence * workload.split.dp) / 86400
    )
    hours = days.times(24 * workload.split.ranks)
    verdicts = tuple(
        _priced(_verdict(spec, center, sds.get(spec.label, 0.0), rows, target, days, hours, map_), hours, price)
        for spec in specs
    )
    curves = tuple(
        {"technique": name, "gbps": gbps, "break_even_ratio": 1 / speeds[name]}
        for name in names
        for gbps, speeds in map_
        if name in speeds
    )
    notes = [
        *(note for note in center.notes if note.code not in UNSAID),
        *_notes(verdicts, found is None),
        *_unused(given, specs),
    ]
    return Worth(
        workload.model.name, cluster.name, baseline, workload.split.ranks, params, tokens, plain.step_s, days, hours,
        verdicts, link, own, curves, price, tuple(notes),
    )  # fmt: skip


UNSAID = {"other-training", "loss-not-said", "does-not-apply", "memory", "memory-tight"}
"""Notes of a comparison that the verdicts say themselves."""


class Spec(NamedTuple):
    """A technique with the settings that were given."""

    label: str
    name: str
    knobs: Mapping[str, Any]


def read_specs(text: str) -> list[str]:
    """Split a list of techniques with settings.

    Examples
    --------
    >>> read_specs("co2:tau=8,local-sgd,dct:eta=0.99,refresh=10")
    ['co2:tau=8', 'local-sgd', 'dct:eta=0.99,refresh=10']
    """
    found: list[str] = []
    for part in (piece.strip() for piece in text.split(",")):
        if not part:
            continue
        if "=" in part and ":" not in part and found:
            found[-1] += ("," if ":" in found[-1] else ":") + part
        else:
            found.append(part)
    return found


def _spec(text: str) -> Spec:
    text = text.strip()
    name, _, given = text.partition(":")
    get_technique(name)
    pairs = given.split(",") if given else []
    if not all("=" in pair for pair in pairs):
        raise InputError(f"{text}: settings are KNOB=VALUE, as in co2:tau=8")
    return Spec(text, name, parse_settings([f"{name}.{pair}" for pair in pairs], option="").get(name, {}))


def _check(specs: Sequence[Spec], workload: Workload, tokens: float, price: float | None, baseline: str) -> None:
    if not specs:
        raise InputError("no technique named; give one or several, as in co2:tau=8")
    if len({spec.label for spec in specs}) < len(specs):
        raise InputError("a technique is named twice with the same settings; name it once")
    if any(spec.name == baseline for spec in specs):
        raise InputError(f"{baseline} is the baseline, which techniques are held against; leave it out of them")
    if workload.mode != "train":
        raise InputError(f"mode {workload.mode}: tokens and losses are those of training; give a training step")
    if not (math.isfinite(tokens) and tokens > 0):
        raise InputError(f"tokens: {tokens:g} is not above 0; give those of the plain run, as in 1e12")
    if price is not None and not (math.isfinite(price) and price >= 0):
        raise InputError(f"price: {price:g} is not money per device and hour; give a number from 0 up")


PLAIN_ROW = ""


class _On(NamedTuple):
    """What comparisons on one cluster say: plain training, the techniques, and their speed-ups where they apply."""

    plain: Any
    rows: dict[str, Any]
    notes: tuple[Note, ...]
    speedups: dict[str, float]


class _Compared:
    """Compares all techniques with plain training on one cluster after the other."""

    def __init__(
        self, specs: Sequence[Spec], workload: Workload, baseline: str, show: Callable[[int, int], None], total: int
    ) -> None:
        self.specs, self.workload, self.baseline = specs, workload, baseline
        self.show, self.done, self.total = show, 0, total

    def on(self, cluster: Cluster) -> _On:
        """Compare; a technique with several settings takes as many comparisons, as each has it once."""
        rows: dict[str, Any] = {}
        notes: dict[str, Note] = {}
        left = list(self.specs)
        while left:
            once = {spec.name: spec for spec in reversed(left)}
            left = [spec for spec in left if spec is not once[spec.name]]
            found = compare(
                self.workload, cluster, list(dict.fromkeys([self.baseline, *once])),
                knobs={name: spec.knobs for name, spec in once.items() if spec.knobs}, remedies=False,
            )  # fmt: skip
            own = {row.technique: row for row in found.rows}
            rows.setdefault(PLAIN_ROW, own[self.baseline])
            rows |= {spec.label: own[name] for name, spec in once.items()}
            for note in found.notes:
                notes.setdefault(note.code, note)
        self.done += 1
        self.show(self.done, self.total)
        speeds = {spec.label: row.speedup for spec in self.specs if (row := rows[spec.label]).speedup}
        return _On(rows.pop(PLAIN_ROW), rows, tuple(notes.values()), speeds)


def _plain_row(row: Any, baseline: str) -> Any:
    if row.changes_loss:
        raise InputError(
            f"--baseline {baseline}: not plain training ({row.changes_loss}); choose one that does not change the "
            "loss, such as ddp or zero1"
        )
    if row.status != "simulated" or not row.step_s:
        raise InputError(
            f"plain training ({baseline}) {row.status}: {row.reason}; give more devices, another split (--tp, --pp, "
            "--recompute full), or another --baseline"
        )
    return row


def _speed_spreads(compared: _Compared, cluster: Cluster, spread: float) -> dict[str, float]:
    """Standard deviation of ln speed-up by technique: devices and links off by the spread, each by itself."""
    squares: dict[str, float] = {}
    for compute, network in ((1, 0), (0, 1)):
        sides = [
            compared.on(_scaled(cluster, math.exp(sign * compute * spread), math.exp(sign * network * spread))).speedups
            for sign in (1, -1)
        ]
        for name in sides[0].keys() & sides[1].keys():
            squares[name] = squares.get(name, 0.0) + (math.log(sides[0][name] / sides[1][name]) / 2) ** 2
    return {name: math.sqrt(square) for name, square in squares.items()}


def _scaled(cluster: Cluster, compute: float, network: float) -> Cluster:
    device = cluster.device
    measured = tuple((flops, moved, seconds / compute) for flops, moved, seconds in device.measured)
    faster = msgspec.structs.replace(
        device, flops=device.flops * compute, mem_bw=device.mem_bw * compute, measured=measured
    )
    links = {name: getattr(cluster, name) for name in ("intra", "inter", "wide")}
    return cluster.change(device=faster, **{name: link and link.faster(network) for name, link in links.items()})


def _linked(cluster: Cluster, link: str, factor: float) -> Cluster:
    return cluster.change(**{link: getattr(cluster, link).faster(factor)})


def _parameters(workload: Workload) -> float:
    """Parameters outside the embeddings, as a ladder counts them."""
    from densing.efficiency.simulation import parameter_count

    model = workload.model
    return float(parameter_count(model) - model.vocabulary * model.hidden * (1 if model.tied else 2))


class _Row(NamedTuple):
    """An arm of a record, and where it was measured."""

    figures: ArmFigures
    trend: tuple[float, float, float] | None
    size_trend: tuple[float, float, float] | None
    params: tuple[float, ...]
    tokens: tuple[float, ...]
    level: float
    where: str
    trials: int | None

    @property
    def middle(self) -> Target:
        """Of the ladder, in logarithms; it must have sizes and tokens."""
        return Target(float(np.log(self.params).mean()), float(np.log(self.tokens).mean()))


def _own_rows(gains: Sequence[Any]) -> list[_Row]:
    rows = []
    for gain in gains:
        record, where = gain_record(gain)
        rows += _rows(record, where)
        if record.spec.get("baseline") not in PLAIN:
            raise InputError(
                f"{where}: its baseline is {record.spec.get('baseline')}, not plain; measure against plain with "
                "`densing ladder gain DIR --baseline plain`"
            )
    return rows


def _shipped_rows() -> list[_Row]:
    rows = [row for record, _ in shipped_records() for row in _rows(record, SHIPPED)]
    # Of two measurements of a technique one with a ratio, and of these the one whose arms were tuned alike.
    return sorted(rows, key=lambda row: (row.figures.token_ratio is None, row.trials is None))


SHIPPED = "shipped record"


def _rows(record: GainRecord, where: str) -> list[_Row]:
    spec, figures = arm_figures(record, where)
    trends = {each.arm: each for each in arm_trends(record, where) if each.ratio == "token"}
    params, tokens = (tuple(value for value in axis if 0 < value < math.inf) for axis in (spec.params, spec.tokens))
    rows = []
    for figure in figures:
        own = trends.get(figure.arm, ArmTrend(figure.arm, "token"))
        with_tokens = _whole(own.trend, own.trend_lo, own.trend_hi)
        with_size = _whole(own.size_trend, own.size_trend_lo, own.size_trend_hi)
        rows.append(_Row(figure, with_tokens, with_size, params, tokens, spec.level, where, spec.trials))
    return rows


def _whole(value: float | None, low: float | None, high: float | None) -> tuple[float, float, float] | None:
    """Return a trend with its interval; None where a part of it is missing or not finite."""
    if value is None or low is None or high is None or not math.isfinite(value + low + high):
        return None
    return value, low, high


def _arm_row(spec: Spec, rows: Sequence[_Row]) -> _Row | None:
    """The first record of a technique with the same settings; those not given are the knobs' defaults."""
    own = _settings(spec.name, spec.knobs)
    for row in rows:
        if row.figures.arm.partition(":")[0] != spec.name:
            continue
        try:
            arm = _spec(row.figures.arm)
        except (InputError, UnknownNameError):
            # Options of a ladder's arm that are not knobs: another change of training.
            continue
        if _settings(arm.name, arm.knobs) == own:
            return row
    return None


def _settings(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    technique = get_technique(name)
    plan_only = getattr(technique, "plan_only", ())
    return {knob.name: given.get(knob.name, knob.default) for knob in technique.knobs if knob.name not in plan_only}


class _Ratio(NamedTuple):
    """ln of a token ratio where it is wanted, and its standard deviation."""

    mean: float
    sd: float


def _at(row: _Row, target: Target) -> _Ratio:
    """Return the ratio at the run's size and tokens, of a record that is sure of something (:func:`_unsure`)."""
    value, low, high = row.figures.token_ratio, row.figures.token_lo, row.figures.token_hi
    assert value is not None and low is not None and high is not None
    # The farther end says how unsure it is.
    reach = max(abs(math.log(end / value)) for end in (low, high))
    mean, square = math.log(value), (reach / NormalDist().inv_cdf(0.5 + row.level / 2)) ** 2
    # Trends that a record does not hold: up to one, a ratio in proportion to D or N, or as large with N as with D.
    steepest = max(map(abs, row.trend[1:])) if row.trend else 1.0
    for trend, x, ladder in (
        (row.trend, target.tokens - row.middle.tokens, row.tokens),
        (row.size_trend, target.params - row.middle.params, row.params),
    ):
        width = max(float(np.ptp(np.log(ladder))), math.log(2))
        slope, least, most = trend or (0.0, -steepest, steepest)
        own = (most - least) / (2 * NormalDist().inv_cdf(0.5 + row.level / 2))
        bend = max(abs(slope), own) * x**2 / (2 * width)
        mean += slope * x
        square += (own * x) ** 2 + bend**2
    return _Ratio(mean, math.sqrt(square))


def _verdict(
    spec: Spec, center: _On, sd_s: float, rows: Sequence[_Row], target: Target, days: Span, hours: Span,
    map_: Sequence[tuple[float, dict[str, float]]],
) -> Verdict:  # fmt: skip
    row = center.rows[spec.label]
    if row.status != "simulated" or spec.label not in center.speedups:
        return Verdict(spec.label, row.status, row.reason, row.step_s)
    speed = math.log(center.speedups[spec.label])
    timed = Verdict(spec.label, TIME, "", row.step_s, _span(speed, sd_s), break_even_ratio=math.exp(-speed))
    measured = _arm_row(spec, rows)
    if row.changes_loss == "":
        # A step learns what plain training's does: every token is worth one.
        ratio = _Ratio(0.0, 0.0)
        timed = msgspec.structs.replace(timed, density=Span(1.0, 1.0, 1.0))
    elif measured is None:
        known = sorted({each.figures.arm for each in rows if each.figures.arm.partition(":")[0] == spec.name})
        also = f"; there are {', '.join(known)}" if known else ""
        why = f"no ladder measured what its tokens are worth{also}"
        return msgspec.structs.replace(timed, reason=why, decides=_measure(spec))
    else:
        figures = measured.figures
        ladder = _ends(figures.token_ratio, figures.token_lo, figures.token_hi)
        density = _ends(figures.density_ratio, figures.density_lo, figures.density_hi)
        timed = msgspec.structs.replace(timed, ladder_ratio=ladder, density=density, trials=measured.trials)
        if unsure := _unsure(measured):
            return msgspec.structs.replace(timed, reason=f"{measured.where}: {unsure[0]}", decides=unsure[1])
        params, tokens = (math.exp(value) for value in measured.middle)
        timed = msgspec.structs.replace(timed, ladder_params=params, ladder_tokens=tokens)
        ratio = _at(measured, target)
        if _vague(ratio):
            decides = "measure its token ratio on a ladder nearer to the run (--gain)"
            return msgspec.structs.replace(timed, reason=_far(measured, target), decides=decides)
    mean, sd = speed + ratio.mean, math.hypot(sd_s, ratio.sd)
    gain = _span(mean, sd)
    return msgspec.structs.replace(
        timed,
        status=PAYS if gain.low > 1 else PAYS_NOT if gain.high < 1 else OPEN,
        token_ratio=_span(ratio.mean, ratio.sd),
        gain=gain,
        probability=NormalDist().cdf(mean / sd) if sd else float(mean > 0),
        days=_over(days, gain),
        device_hours=_over(hours, gain),
        break_even_gbps=_crossing(spec.label, ratio.mean, map_),
        decides=_decides(mean, sd_s, ratio.sd) if gain.low <= 1 <= gain.high else "",
    )


def _priced(verdict: Verdict, plain_hours: Span, price: float | None) -> Verdict:
    """Return a verdict with its cost, and what it saves beside plain training."""
    if price is None or verdict.device_hours is None or verdict.gain is None:
        return verdict
    plain = price * plain_hours.value
    saved = Span(*(plain * (1 - 1 / gain) for gain in (verdict.gain.value, verdict.gain.low, verdict.gain.high)))
    return msgspec.structs.replace(verdict, cost=verdict.device_hours.times(price), saved=saved)


def _unused(given: Sequence[_Row], specs: Sequence[Spec]) -> list[Note]:
    """Return a note per record of the user's own that says nothing of any technique named."""
    records: dict[str, list[_Row]] = {}
    for row in given:
        records.setdefault(row.where, []).append(row)
    return [
        Note("gain-unused", "warning", f"{where}: holds no arm with these settings; it has "
             f"{', '.join(row.figures.arm for row in own)}")
        for where, own in records.items() if not any(_arm_row(spec, own) for spec in specs)
    ]  # fmt: skip


def _unsure(row: _Row) -> tuple[str, str] | None:
    """Say why a record decides nothing even at its own size, and what would; None where it does."""
    figures = row.figures
    more = "train more sizes and seeds (`densing ladder plan --resolve 0.1` says how many)"
    if figures.status == "no_change":
        return (
            f"all losses of {figures.arm} are plain training's to the last bit",
            "train an arm that changes something",
        )
    if not (row.params and row.tokens):
        return "the record names no sizes or no tokens", "measure again with `densing ladder gain`"
    if None in (figures.token_ratio, figures.token_lo, figures.token_hi):
        return f"the token ratio of {figures.arm} is {written_ratio(figures.to_dict())}, no interval", more
    if figures.status == "few_pairs":
        return f"{figures.arm} has fewer than 6 pairs of size and seed, which decide nothing", more
    return None


def _far(row: _Row, target: Target) -> str:
    """Say at which distance on the way to the run a record says nothing."""
    middle = row.middle
    low, high = 0.0, 1.0
    for _ in range(30):
        share = (low + high) / 2
        there = Target(*(one + share * (other - one) for one, other in zip(middle, target, strict=True)))
        low, high = (low, share) if _vague(_at(row, there)) else (share, high)
    last = (one + low * (other - one) for one, other in zip(middle, target, strict=True))
    return f"its ladder ({_scale(middle)}) says nothing beyond {_scale(last)}"


def _scale(at: Iterable[float]) -> str:
    """Write ln parameters and ln tokens."""
    params, tokens = (formatting.size(float(f"{math.exp(value):.3g}")) for value in at)
    return f"{params} parameters and {tokens} tokens"


def _measure(spec: Spec) -> str:
    """Say how the token ratio of a technique can be measured."""
    from densing.tradeoff.arms import read_arms

    try:
        read_arms([spec.label], RANKS)
    except (InputError, UnknownNameError):
        return "no ladder here can train it: compare losses of your own runs with that ratio"
    return (
        f"measure it: `densing ladder train --arm plain --arm {spec.label} --ranks {RANKS} --tune 8 --out DIR`, then "
        "`densing ladder gain DIR`"
    )


def _vague(ratio: _Ratio) -> bool:
    return 2 * Z * ratio.sd > math.log(NOTHING)


def _span(mean: float, sd: float) -> Span:
    half = Z * sd
    return Span(math.exp(mean), math.exp(mean - half), math.exp(mean + half))


def _ends(value: float | None, low: float | None, high: float | None) -> Span | None:
    return None if value is None else Span(value, math.nan if low is None else low, math.nan if high is None else high)


def _over(span: Span, gain: Span) -> Span:
    """A span of plain training over a gain: both ends at their worst."""
    return Span(span.value / gain.value, span.low / gain.high, span.high / gain.low)


def _crossing(name: str, ratio: float, map_: Sequence[tuple[float, dict[str, float]]]) -> float | None:
    """Bandwidth at which speed-up times ratio is 1, between points of the map in logarithms; None outside."""
    points = [(math.log(gbps), math.log(speeds[name]) + ratio) for gbps, speeds in map_ if name in speeds]
    for (x, y), (later, below) in pairwise(points):
        if y > 0 >= below:
            return math.exp(x + (later - x) * y / (y - below))
    return None


def _decides(mean: float, sd_s: float, sd_r: float) -> str:
    what = (
        "its token ratio (a ladder nearer to the run, more seeds)"
        if sd_r >= sd_s
        else "the links (`densing calibrate`)"
    )
    need, now = (formatting.digits(math.exp(ln)) for ln in (abs(mean), Z * math.hypot(sd_s, sd_r)))
    return f"measure {what}: decided once the gain is known to a factor of {need} (now {now})"


def _sentence(verdict: Verdict, result: Worth) -> str:
    """A verdict in words, with its figures."""
    if verdict.speedup is None:
        return f"{verdict.technique} {verdict.status}: {verdict.reason}"
    faster = f"a step is {verdict.speedup.words} times as fast"
    if verdict.gain is None:
        speed = verdict.speedup
        need = Span(1 / speed.value, 1 / speed.high, 1 / speed.low).words
        return (
            f"{verdict.technique}: {faster}; pays where a token is worth more than {need} of plain's: "
            f"{verdict.reason}; {verdict.decides}"
        )
    ratio = verdict.token_ratio
    assert ratio is not None and verdict.days is not None and verdict.probability is not None
    days, plain = verdict.days.words, formatting.digits(result.plain_days.value)
    chance = formatting.percent(100 * verdict.probability)
    money = carried = ""
    if (ladder := verdict.ladder_ratio) is not None and verdict.ladder_params and verdict.ladder_tokens:
        at = _scale((math.log(verdict.ladder_params), math.log(verdict.ladder_tokens)))
        carried = f", carried from {formatting.digits(ladder.value)} at {at}"
    if (saved := verdict.saved) is not None:
        money = f", which saves {saved.value:,.0f} ({saved.low:,.0f} to {saved.high:,.0f})"
    more = f"; {verdict.decides}" if verdict.decides else ""
    return (
        f"{verdict.technique} {verdict.status} (probability that it pays: {chance}): {faster}, a token is worth "
        f"{ratio.words} of plain's{carried}; {days} days to the loss of {plain} plain ones{money}{more}"
    )


def _notes(verdicts: Sequence[Verdict], assumed: bool) -> list[Note]:
    notes = []
    for verdict in verdicts:
        if verdict.speedup is None:
            notes.append(Note(verdict.status.replace(" ", "-"), "warning", f"{verdict.technique}: {verdict.reason}"))
    measured = [verdict for verdict in verdicts if verdict.ladder_ratio is not None]
    if any(verdict.trials is None for verdict in measured):
        message = (
            "token ratios are those of small models with a ladder's learning rate, batch and ranks; a recipe tuned for "
            "the technique may lose less"
        )
        notes.append(Note("ladders-recipe", "warning", message))
    elif measured:
        message = (
            f"token ratios are those of small models with a ladder's batch and ranks; learning rate and outer step of "
            f"every arm, plain included, were tuned with {measured[0].trials} trials on the smallest"
        )
        notes.append(Note("ladders-tuned", "info", message))
    if assumed:
        message = f"no published run is like this step: ln step is taken to be off by {UNKNOWN_SPREAD:g}, an assumption"
        notes.append(Note("assumed-spread", "warning", message, {"spread": UNKNOWN_SPREAD}))
    return notes


def _flat(verdict: Verdict) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name in Verdict.__struct_fields__:
        value = getattr(verdict, name)
        if isinstance(value, Span):
            flat |= {name: value.value, f"{name}_low": value.low, f"{name}_high": value.high}
        else:
            flat[name] = value
    return flat
