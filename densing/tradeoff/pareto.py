r"""Density against cost: which catalog models, runs of one's own and arms of ladders no cheaper one reaches.

A row is on the frontier when no other row of its scale has at least its density at no more cost, and more of the one or
less of the other:

.. math:: i \in F \iff \nexists j: \rho_j \ge \rho_i,\ c_j \le c_i,\ (\rho_j, c_j) \ne (\rho_i, c_i)

Densities compare on one scale only. Catalog models stand on their reference, a run of one's own on the reference that
its density was read on. An arm of a ladder has no density but a ratio to plain training at the ladder's sizes, a
millionth of the catalog's: set beside densities it would place the arms of a study of 3,000 parameters among models of
billions. Each ladder's arms are therefore a scale of their own, on which the baseline is 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from densing.core import (
    ArtefactError,
    Card,
    Field,
    InputError,
    Listing,
    Note,
    Readable,
    UnknownNameError,
    column,
    formatting,
    named_stream,
    numeric,
    once,
    ranged,
)
from densing.tradeoff.cost import DensityCost
from densing.tradeoff.gain import GainRecord, Gains
from densing.tradeoff.records import LEVEL, ArmFigures, arm_figures, gain_record, interval_ends

if TYPE_CHECKING:
    from densing.core import Array
    from densing.scores.catalog import Catalog, Selection
    from densing.scores.density import DensityResult
    from densing.scores.study import Study

COLUMNS = ("name", "source", "scale", "density", "density_lo", "density_hi", "flops", "device_hours", "bytes", "joules",
           "evidence", "on_frontier", "share", "status", "bound")  # fmt: skip
DRAWS = 1000
"""Draws of densities that come as intervals, where no others say how many."""


@dataclass(frozen=True)
class Cost:
    """What is paid for a density: its name with the unit, and how a figure of it is written."""

    label: str
    show: Callable[[Any], str]


COSTS: Mapping[str, Cost] = {
    "flops": Cost("training compute, FLOP", formatting.power),
    "device_hours": Cost("device hours", formatting.power),
    "bytes": Cost("bytes that one rank sends", formatting.volume),
    "joules": Cost("energy, J", formatting.power),
}


@dataclass(frozen=True, repr=False)
class Frontier(Readable):
    """Densities beside one cost, and which of them are on the frontier.

    Parameters
    ----------
    table : pandas.DataFrame
        A row per thing, :data:`COLUMNS`: ``name``, ``source`` (catalog, profile or arm), ``scale`` (what its density
        compares with), ``density`` (of an arm the ratio to the baseline) and the ends of its interval; ``flops``,
        ``device_hours``, ``bytes`` and ``joules``, NaN where nothing is known; ``evidence``: what each known cost rests
        on (counted, measured, stated, simulated); ``on_frontier`` by the densities as reported; ``share``: of the
        draws, in how many it is on the frontier of the rows that take part, NaN where no interval is known;
        ``status``: ``ok`` for what takes part in the frontier, otherwise why it does not (``no cost``, ``limit``,
        ``no density``, or an arm's own status); ``bound``: the side of a limit.
    cost : str
        The column of costs that the frontier is of, a key of :data:`COSTS`.
    notes : tuple of Note

    See Also
    --------
    frontier : makes it.
    """

    table: pd.DataFrame
    cost: str
    notes: tuple[Note, ...] = ()

    @property
    def scales(self) -> tuple[str, ...]:
        """The scales on which something takes part, in the order of the table."""
        return tuple(dict.fromkeys(self.table.loc[self.table["status"].eq("ok"), "scale"]))

    def front(self, scale: str) -> pd.DataFrame:
        """Return the frontier on one scale, cheapest first.

        Raises
        ------
        UnknownNameError
            When there is no such scale.
        """
        if scale not in set(self.table["scale"]):
            raise UnknownNameError("scale", scale, dict.fromkeys(self.table["scale"]))
        rows = self.table[self.table["scale"].eq(scale) & self.table["on_frontier"]]
        return rows.sort_values([self.cost, "density"], kind="stable").reset_index(drop=True)

    def sentence(self, scale: str) -> str:
        """Return what the frontier on a scale is, in one sentence."""
        front, placed = self.front(scale), self.table["scale"].eq(scale) & self.table["status"].eq("ok")
        names = formatting.listed(
            (f"{row['name']} ({formatting.number(row['density'])})" for row in front.to_dict("records")), len(front)
        )
        sure = int(front["share"].ge(LEVEL).sum())
        return (
            f"{formatting.plural(int(placed.sum()), 'row')} with density and {COSTS[self.cost].label}; on the "
            f"frontier, cheapest first: {names}; {sure} of them in {formatting.percentage(LEVEL)} of the draws or more."
        )

    def listing(self, rows: pd.DataFrame, title: str) -> Listing:
        """Return rows of the table as people read them; those on the frontier are marked."""
        cost = COSTS[self.cost]
        fields = (
            Field("Name", column("name")),
            numeric("Ratio" if rows["source"].eq("arm").all() else "Density", "density"),
            Field("Interval", ranged("density", formatting.number), "density_lo", hint="95 %, measured"),
            numeric(cost.label[0].upper() + cost.label[1:], self.cost, cost.show),
            Field("On the frontier", lambda row: "yes" if row["on_frontier"] else "", minor=True),
            numeric("In draws", "share", formatting.percentage, hint="Share of joint draws in which it is on it"),
            Field("Cost rests on", column("evidence"), minor=True),
        )
        return Listing(title, rows, fields, "on_frontier")

    def card(self) -> Card:
        """Return what is shown: the frontier of each scale."""
        title = f"Density against {COSTS[self.cost].label}"
        rows = self.table[self.table["on_frontier"]].sort_values(["scale", self.cost], kind="stable")
        facts = {scale: self.sentence(scale) for scale in self.scales}
        return Card(title, facts, self.listing(rows, title), self.notes)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, as ``densing frontier --json`` prints it."""
        fronts = [{"scale": scale, "names": self.front(scale)["name"].tolist()} for scale in self.scales]
        return {"cost": self.cost, "frontiers": fronts, "rows": self.table, "notes": list(self.notes)}


def frontier(
    catalog: Catalog | None = None,
    *,
    cost: str = "flops",
    profiles: Iterable[DensityCost] = (),
    gains: Iterable[Gains | GainRecord | Path | str] = (),
    selection: Selection | None = None,
    reference: str = "joint",
    benchmark: str = "mean",
    seed: int = 0,
    step: Callable[[str, float], None] = lambda label, share: None,
) -> Frontier:
    """Set densities beside one cost, and say which are on the frontier.

    Parameters
    ----------
    catalog : Catalog, optional
        Whose models enter, with the floating-point operations of their training; the embedded one by default. It knows
        no other cost, so with another ``cost`` its models stay out.
    cost : {"flops", "device_hours", "bytes", "joules"}
    profiles : iterable of DensityCost
        Runs of one's own with a density, as :func:`densing.tradeoff.join` gives them. Their cost is the stated device
        hours.
    gains : iterable of Gains, GainRecord or path
        Ladders with arms: what :func:`densing.ladder_gain` gives, or the ``gain.json`` that ``densing ladder gain``
        leaves. Their costs are means over runs. Device hours are those of the one process that trained all ranks here,
        and unknown where seconds were simulated.
    selection : Selection, optional
        Which models of the catalog; the headline's by default.
    reference, benchmark : str
        The reference of the catalog's models.
    seed : int
        Of draws from intervals.
    step : callable
        Called with a label and the share done, for progress bars.

    Returns
    -------
    Frontier

    Raises
    ------
    UnknownNameError
        For an unknown cost, reference or benchmark.
    ArtefactError
        When a file is not what it should be, or of another schema.
    InputError
        When a file cannot be read, or there is nothing to place.

    Notes
    -----
    Draws of catalog models are joint (law and scores, as in their measured intervals); a density that
    comes as an interval is drawn by itself, ln density normal with the interval's ends as quantiles: what a ladder's
    arms share with each other, their baseline, is not in it. Costs are taken as exact. A density known only as a limit
    is in the table and on neither side of the comparison. Compute that went into the data (texts written by other
    models), into teachers, and into runs that failed is in nobody's FLOPs.

    Source: FLOPs are 6 N_active D (Kaplan et al. 2020, arXiv 2001.08361, table 1), see
    :func:`densing.scores.catalog.training_compute`; density: Xiao et al., arXiv 2412.04315, eq. 1.

    See Also
    --------
    densing.tradeoff.join, densing.ladder_gain

    Examples
    --------
    >>> from densing.tradeoff import DensityCost
    >>> runs = [DensityCost(name, density, 0.9 * density, 1.1 * density, "mmlu", None, hours)
    ...         for name, density, hours in (("small", 1.0, 100.0), ("best", 1.5, 200.0), ("slow", 1.2, 300.0))]
    >>> result = frontier(cost="device_hours", profiles=runs)
    >>> result.table[["name", "on_frontier", "share"]]
        name  on_frontier  share
    0  small         True    1.0
    1   best         True    1.0
    2   slow        False    0.0
    """
    if cost not in COSTS:
        raise UnknownNameError("cost", cost, COSTS)
    parts: list[_Part] = []
    notes: list[Note] = []
    if cost == "flops":
        from densing.scores.catalog import load_catalog, training_compute
        from densing.scores.density import catalog_densities
        from densing.scores.joint import catalog_scale
        from densing.scores.references import JOINT, load_reference

        catalog = catalog or load_catalog()
        if reference == JOINT:
            # What is not shipped takes half a minute the first time; what follows reads what this keeps.
            for vendors in dict.fromkeys((selection is not None and selection.vendors, False)):
                catalog_scale(catalog, own="all" if vendors else "none", step=step)
        ref = load_reference(reference, benchmark, catalog=catalog)
        densities = catalog_densities(catalog, ref, selection=selection, seed=seed)
        notes += densities.notes
        parts.append(_models(densities.headline, training_compute(catalog)))
    rows = [_profile(profile) for profile in profiles]
    for gain in gains:
        of_arms, more = _arms(gain)
        rows += of_arms
        notes += more
    rows, more = _distinct(rows)
    if rows:
        parts.append(_drawn(rows, len(parts[0].draws) if parts else DRAWS, seed))
    return _frontier(parts, cost, [*notes, *more])


def study_frontier(study: Study) -> Frontier:
    """Set the densities of a study's headline beside the FLOPs of their training; nothing is computed again.

    See Also
    --------
    frontier, densing.run_study
    """
    return _frontier([_models(study.density, study.compute)], "flops", [])


def non_dominated(density: Array, cost: Array) -> Array:
    """Return which of n things have no other that is as dense at no more cost, and denser or cheaper.

    Equal things do not exclude each other.

    Parameters
    ----------
    density : array, shape (..., n)
        Finite; leading axes are draws.
    cost : array, shape (n,)
        Finite.

    Returns
    -------
    array of bool, shape (..., n)

    Examples
    --------
    >>> import numpy as np
    >>> non_dominated(np.array([1.0, 2.0, 1.5, 2.0]), np.array([1.0, 2.0, 3.0, 2.0]))
    array([ True,  True, False,  True])
    """
    levels, group = np.unique(cost, return_inverse=True)
    if not len(levels):
        return np.zeros(density.shape, dtype=bool)
    order = np.argsort(group, kind="stable")
    starts = np.searchsorted(group[order], np.arange(len(levels)))
    # The densest at each cost, and of all that is cheaper.
    best = np.maximum.reduceat(density[..., order], starts, axis=-1)
    nothing = np.full((*best.shape[:-1], 1), -np.inf)
    cheaper = np.concatenate([nothing, np.maximum.accumulate(best, axis=-1)[..., :-1]], axis=-1)
    return np.asarray((density == best[..., group]) & (density > cheaper[..., group]))


@dataclass(frozen=True)
class _Part:
    """Rows without what the frontier says of them, and their ln densities by draw."""

    rows: pd.DataFrame
    draws: Array


def _models(densities: DensityResult, compute: pd.DataFrame) -> _Part:
    """Return a density's models with their FLOPs."""
    table, reference = densities.table, densities.reference
    facts = compute.set_index("model").reindex(table["model"]).reset_index()
    rows = pd.DataFrame(
        {
            "name": [formatting.clean(name, 120) for name in table["model"]],
            "source": "catalog",
            "scale": _scale(reference.name, reference.benchmark),
            **{name: pd.to_numeric(table[name]).to_numpy() for name in ("density", "density_lo", "density_hi")},
            "flops": facts["flops"].to_numpy(),
            "evidence": [f"flops {text}" if text else "" for text in facts["evidence"].fillna("")],
            "bound": table["bound"].fillna("").to_numpy(),
            "status": "ok",
        }
    )
    if len(densities.draws) and len(rows):
        # What a user's unlinked model has is not a draw of anything.
        rows["interval"] = np.isfinite(densities.draws).all(axis=0)
    return _Part(rows, densities.draws)


def _scale(reference: str, benchmark: str) -> str:
    return ", ".join(
        filter(None, (formatting.clean(reference or "reference not stated", 80), formatting.clean(benchmark, 80)))
    )


def _profile(profile: DensityCost) -> dict[str, Any]:
    """Return the row of a run."""
    lo, hi = interval_ends(profile.density_lo, profile.density_hi, profile.model)
    return {
        "name": formatting.clean(profile.model, 120),
        "source": "profile",
        "scale": _scale(profile.reference, profile.benchmark),
        "density": profile.density,
        "density_lo": lo,
        "density_hi": hi,
        "device_hours": profile.device_hours,
        "evidence": "device_hours stated",
        "bound": profile.bound,
        "status": "ok",
        "level": LEVEL,
    }


def _arms(gain: Gains | GainRecord | Path | str) -> tuple[list[dict[str, Any]], list[Note]]:
    """Return the rows of a ladder's arms, the baseline first, and what to know of them."""
    record, where = gain_record(gain)
    spec, figures = arm_figures(record, where)
    costs = ("bytes", "seconds", "joules")
    kinds = {
        "bytes": "counted",
        "device_hours": "" if spec.link else "measured: one process for all ranks",
        "joules": record.evidence.get("joules", "counted or stated, the record does not say"),
    }
    sent, seconds, joules = (spec.baseline_cost.get(key) for key in costs)
    base = ArmFigures(spec.baseline, 1.0, 1.0, 1.0, sent, seconds, joules, pairs=0, status="ok")
    scale = f"ratio to {formatting.clean(spec.baseline, 60)}, ladder {formatting.clean(record.digest[:8])}"
    rows, partial = [], []
    for figure in (base, *figures):
        name = formatting.clean(figure.arm, 120)
        paid = {key: _cost(getattr(figure, key), f"{where}: {name}: {key}") for key in costs}
        known = {
            "bytes": paid["bytes"],
            "device_hours": math.nan if spec.link else paid["seconds"] / 3600,
            "joules": paid["joules"],
        }
        ratio = math.nan if figure.density_ratio is None else figure.density_ratio
        lo, hi = interval_ends(figure.density_lo, figure.density_hi, f"{where}: {name}")
        evidence = [f"{key} {kinds[key]}" for key, value in known.items() if math.isfinite(value)]
        # An end that is missing is open: the arm's ratio is a bound.
        status = formatting.clean(figure.status, 40)
        rows.append(
            {
                "name": name, "source": "arm", "scale": scale, "density": ratio, "density_lo": lo, "density_hi": hi,
                **known, "evidence": "; ".join(evidence), "bound": "", "status": status, "level": spec.level,
            }
        )  # fmt: skip
        if figure is not base and figure.pairs != len(spec.sizes) * len(spec.tokens) * len(spec.seeds):
            partial.append(name)
    notes = []
    if partial:
        text = (
            f"{scale}: costs of {formatting.listed(partial)} are means over the runs that have a partner, those of "
            f"{spec.baseline} over all of its runs"
        )
        notes.append(Note("unequal-runs", "warning", text, {"arms": partial}))
    return rows, notes


def _cost(value: float | None, where: str) -> float:
    if value is None or not math.isfinite(value):
        return math.nan
    if value < 0:
        raise ArtefactError(f"{where} {value:g} is below 0; measure again")
    return value


def _distinct(rows: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[Note]]:
    """Return rows without repetitions, and a note on what is there twice."""
    first: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        group = first.setdefault((row["source"], row["scale"], row["name"]), [])
        # NaN differs from itself; its text does not.
        if not any(str(row) == str(other) for other in group):
            group.append(row)
    distinct, notes = [row for group in first.values() for row in group], []
    if len(distinct) < len(rows):
        text = f"{formatting.plural(len(rows) - len(distinct), 'row')} given twice: counted once"
        notes.append(Note("repeated", "info", text))
    if several := [name for (_, _, name), group in first.items() if len(group) > 1]:
        text = f"several rows of one name, with other figures: {formatting.listed(several)}; all are kept"
        notes.append(Note("namesakes", "warning", text, {"names": several}))
    return distinct, notes


def _drawn(rows: Sequence[Mapping[str, Any]], count: int, seed: int) -> _Part:
    """Return rows with draws from their intervals; where none is known, the density itself in every draw."""
    table = pd.DataFrame(rows)
    lo, hi = table["density_lo"].to_numpy(float), table["density_hi"].to_numpy(float)
    known = (lo > 0) & np.isfinite(hi)
    with np.errstate(divide="ignore", invalid="ignore"):
        ends = np.log(np.stack([lo, hi, table["density"].to_numpy(float)]))
    draws = np.tile(ends[2], (count, 1))
    for i in np.flatnonzero(known & (lo < hi)):
        row = rows[int(i)]
        # Which other rows there are, and their order, does not matter.
        stream = named_stream(seed, "frontier", *(str(row[key]) for key in ("source", "scale", "name", "density")))
        normal = stream.standard_normal(count)
        width = 2 * NormalDist().inv_cdf((1 + row["level"]) / 2)
        draws[:, i] = (ends[0, i] + ends[1, i]) / 2 + normal * (ends[1, i] - ends[0, i]) / width
    return _Part(table.assign(interval=known), draws)


def _frontier(parts: Sequence[_Part], cost: str, notes: Sequence[Note]) -> Frontier:
    """Say of rows whether they take part, and of those that do whether they are on the frontier of their scale."""
    parts = [part for part in parts if len(part.rows)]
    if not parts:
        other = "" if cost == "flops" else f"; of {cost} the catalog knows nothing: give --density or --gain"
        raise InputError(f"there is nothing to place: no model, run or arm{other}")
    rows = pd.concat([part.rows for part in parts], ignore_index=True).reindex(columns=[*COLUMNS, "interval"])
    draws = np.concatenate([part.draws for part in parts], axis=1)
    for name in ("density", "density_lo", "density_hi", *COSTS):
        rows[name] = rows[name].astype(float)
    density, paid = rows["density"].to_numpy(), rows[cost].to_numpy()
    has = np.isfinite(density) & (density > 0)
    own = rows["status"].astype(str)
    limit = rows["bound"].ne("").to_numpy()
    rows["status"] = np.select(
        [~has, limit, own.ne("ok"), ~np.isfinite(paid)], ["no density", "limit", own, "no cost"], default="ok"
    )
    # An arm without a ratio says itself why.
    rows["status"] = rows["status"].mask(~has & own.ne("ok"), own)
    rows["on_frontier"], rows["share"] = False, np.nan
    for _, group in rows[rows["status"].eq("ok")].groupby("scale", sort=False):
        at = group.index.to_numpy()
        rows.loc[at, "on_frontier"] = non_dominated(density[at], paid[at])
        share = non_dominated(draws[:, at], paid[at]).mean(axis=0)
        rows.loc[at, "share"] = np.where(rows.loc[at, "interval"].eq(True), share, np.nan)
    return Frontier(rows[list(COLUMNS)], cost, tuple(once([*notes, *_remarks(rows, cost)])))


def _remarks(rows: pd.DataFrame, cost: str) -> list[Note]:
    """Return what to keep in mind of a frontier."""
    notes = []
    status = rows["status"]
    if not status.eq("ok").any():
        text = f"no row has a density, no limit, and known {COSTS[cost].label}: there is no frontier"
        if cost != "device_hours" and rows["source"].eq("profile").any():
            text += "; of runs of one's own device hours are known"
        notes.append(Note("no-frontier", "warning", text))
    for code, text in (
        ("no cost", f"no known {COSTS[cost].label}"),
        ("limit", "a density known only as a limit: drawn, not compared"),
    ):
        names = rows.loc[status.eq(code), "name"].tolist()
        if names:
            count = formatting.plural(len(names), "row")
            notes.append(Note(code.replace(" ", "-"), "info", f"{count} with {text} ({formatting.listed(names, 3)})"))
    lone = rows.loc[status.eq("ok") & rows["share"].isna(), "name"].tolist()
    if lone:
        text = (
            f"no whole interval is known of {formatting.listed(lone, 3)}: their densities stand as exact in all draws"
        )
        notes.append(Note("no-interval", "warning", text, {"names": lone}))
    # A limit is not compared; whether it could matter is said.
    limits, doubtful = rows[status.eq("limit") & rows[cost].notna()], []
    for row in rows[rows["on_frontier"]].to_dict("records"):
        cheaper = limits[limits["scale"].eq(row["scale"]) & limits[cost].le(row[cost])]
        if (cheaper["bound"].eq("lower") | cheaper["density_hi"].ge(row["density"])).any():
            doubtful.append(row["name"])
    if doubtful:
        text = (
            f"on the frontier unless a cheaper row, known only as a limit, is as dense: {formatting.listed(doubtful)}"
        )
        notes.append(Note("limits-beside", "warning", text, {"names": doubtful}))
    recalled = rows.loc[rows["on_frontier"] & rows["evidence"].str.contains("recalled#"), "name"].tolist()
    if recalled:
        text = (
            f"on the frontier by tokens that rest on general knowledge, not a document: {formatting.listed(recalled)}"
        )
        notes.append(Note("recalled-tokens", "warning", text, {"names": recalled}))
    return notes
