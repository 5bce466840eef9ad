"""A reference: one family of models, one benchmark (or the mean of several), one fitted law.

What a fit says of itself as a reference stands in its ``meta["reference"]``, described by :class:`Description`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

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
    column,
    decode,
    formatting,
    numeric,
)
from densing.scores.catalog import Protocol, known_protocol
from densing.scores.fit import LawFit
from densing.scores.laws import D0_PAPER, TwoStep

_POINT = {"model", "params", "score", "score_se", "held_out"}


@dataclass(frozen=True, repr=False)
class Reference(Readable):
    """A fitted reference: what turns a score into effective parameters.

    Parameters
    ----------
    name, title : str
        The family.
    benchmark : str
        Benchmark id, ``mean``, or a skill.
    benchmarks : tuple of str
        What enters (one id, or the members of the mean).
    evaluator : str
        Who measured the family; targets must come from the same comparability series.
    fit : LawFit
        Score in ln N, or a two-step law.
    points : pandas.DataFrame
        ``model, params, score, score_se, held_out`` of the family.
    given : mapping
        Inputs other than size at which the law is read (``{"tokens": 1e12}`` for two-step laws).
    notes : tuple of Note
        What to keep in mind.
    protocols : mapping of str to Protocol
        How each of ``benchmarks`` was measured on the family; unknown parts are empty.

    See Also
    --------
    load_reference, build_reference, plot_reference

    Examples
    --------
    >>> import densing
    >>> reference = densing.load_reference("qwen1.5", "mmlu")
    >>> reference.evaluator, len(reference.points), reference.fit.status
    ('obsscaling', 8, 'converged')
    """

    name: str
    title: str
    benchmark: str
    benchmarks: tuple[str, ...]
    evaluator: str
    fit: LawFit
    points: pd.DataFrame
    given: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()
    protocols: Mapping[str, Protocol] = field(default_factory=dict)

    def protocol(self, benchmark: str) -> Protocol:
        """Return how a benchmark was measured on the family; all parts unknown where nothing is stored."""
        return self.protocols.get(benchmark, Protocol())

    def without_protocol_notes(self) -> Reference:
        """Return the reference without what its notes say of the catalog's protocol: for scores compared one by one."""
        return replace(self, notes=tuple(note for note in self.notes if note.code != "protocol-differs"))

    def at_tokens(self, tokens: float | None) -> Reference:
        """Return the reference read at another D0; itself for None.

        Raises
        ------
        InputError
            When it is one-step, or the count is none.
        """
        if tokens is None:
            return self
        if "tokens" not in self.given:
            raise InputError(f"--tokens: reference {self.name!r} is one-step; only two-step references take a D0")
        if not 1e3 <= tokens <= 1e16:
            raise InputError(f"--tokens {tokens:g} is not a token count; write 1e12 for one trillion")
        return replace(self, given={**self.given, "tokens": float(tokens)})

    def describe(self) -> dict[str, Any]:
        """Return the reference's identity as plain data."""
        low, high = self.fit.domain["params"]
        return {
            "reference": self.name,
            "title": self.title,
            "benchmark": self.benchmark,
            "benchmarks": list(self.benchmarks),
            "evaluator": self.evaluator,
            "protocols": {name: self.protocol(name).to_dict() for name in self.benchmarks},
            "law": self.fit.law.name,
            "equation": self.fit.law.equation,
            "params": {name: float(value) for name, value in self.fit.params.items()},
            "sizes": [float(low), float(high)],
            "n_points": int((~self.points["held_out"].astype(bool)).sum()),
            "given": dict(self.given),
            "data_hash": self.fit.data_hash,
        }

    def card(self) -> Card:
        """Return what is shown: the curve, the sizes it spans, who measured its points."""
        low, high = self.fit.domain["params"]
        facts = {
            "curve": self.fit.law.equation,
            "sizes": f"{formatting.size(low)} to {formatting.size(high)}, {len(self.points)} points",
            "measured by": self.evaluator,
            "fit": self.fit.status,
        }
        return Card(f"Reference {self.name}, {self.benchmark}: {self.title}", facts, points_listing(self), self.notes)


@dataclass(frozen=True, kw_only=True)
class Description:
    """What a reference's fit carries of it in ``meta["reference"]``, key by key in this order.

    Parameters
    ----------
    name, title, benchmark, benchmarks, evaluator, given
        As in :class:`Reference`.
    protocols : mapping of str to mapping
        Parts of each benchmark's :class:`~densing.scores.catalog.Protocol`.
    points : list of mapping
        Rows of the table of that name.
    notes : list of Note
        Those that do not come from the fit.
    """

    name: str
    title: str
    benchmark: str
    benchmarks: list[str]
    evaluator: str
    protocols: dict[str, dict[str, Any]] = field(default_factory=dict)
    points: list[dict[str, Any]]
    given: dict[str, float]
    notes: list[Note] = field(default_factory=list)


def from_fit(fit: LawFit) -> Reference:
    """Rebuild a reference from a fit that carries its description in ``meta["reference"]``.

    Raises
    ------
    ArtefactError
        When a part of the description is missing, of another kind, or does not belong to the fit's law.
    """
    about = decode(fit.meta["reference"], Description, "$.meta.reference")
    if not (
        all(set(point) >= _POINT for point in about.points)
        and all(value > 0 for value in about.given.values())
        and set(about.given) == set(fit.law.inputs) - {"params"}
    ):
        raise ArtefactError(f"$.meta.reference: points or given do not belong to law {fit.law.name}")
    if not about.benchmarks:
        raise ArtefactError("$.meta.reference.benchmarks names no benchmark")
    # Where several references speak, a note on a curve says which.
    own = (replace(note, message=f"{about.name}, {about.benchmark}: {note.message}") for note in fit.notes)
    return Reference(
        name=about.name,
        title=about.title,
        benchmark=about.benchmark,
        benchmarks=tuple(about.benchmarks),
        evaluator=about.evaluator,
        fit=fit,
        points=pd.DataFrame(about.points),
        given=about.given,
        notes=(*own, *about.notes),
        protocols={name: Protocol.from_dict(parts) for name, parts in about.protocols.items()},
    )


def from_table_fit(fit: LawFit, name: str, benchmark: str) -> Reference:
    """Make a reference of a fit to a user's own table.

    Parameters
    ----------
    fit : LawFit
        Score in parameters (and tokens).
    name : str
        Name of the reference in results.
    benchmark : str
        The benchmark that the scores belong to.
    """
    points = pd.DataFrame(
        {
            "model": [f"point {number + 1}" for number in range(len(fit.y))],
            "params": fit.x["params"],
            "score": fit.y,
            "score_se": 0.0,
            "held_out": False,
        }
    )
    given = {"tokens": D0_PAPER} if "tokens" in fit.law.inputs else {}
    protocol = fit.meta.get("protocol", {})
    if not isinstance(protocol, dict):
        raise ArtefactError(f"reference {name}: $.meta.protocol is not an object; fit again")
    return Reference(
        name,
        f"the user's fit {name}",
        benchmark,
        (benchmark,),
        "user",
        fit,
        points,
        given,
        fit.notes,
        {benchmark: Protocol.from_dict(protocol)},
    )


def loss_reference(reference: Reference) -> Reference:
    """Return the first step of a two-step reference: what reads effective parameters off a loss instead of a score.

    Parameters
    ----------
    reference : Reference
        A reference whose law is :class:`densing.scores.laws.TwoStep`.

    Returns
    -------
    Reference
        The same runs and draws, law L(N, D); its points' ``score`` is the loss in bits per byte (NaN where the
        reference's points do not tell it). Protocols are those of the loss, known for the ladders that the package
        ships.

    Raises
    ------
    InputError
        When the reference has no loss step.

    Examples
    --------
    >>> from densing.scores.references import load_reference
    >>> loss_reference(load_reference("olmo-ladder", "piqa")).fit.law.output
    'loss'
    """
    fit, law = reference.fit, reference.fit.law
    if not isinstance(law, TwoStep):
        raise InputError(
            f"reference {reference.name!r} relates scores to sizes; only a two-step reference reads losses"
        )
    count = len(law.loss_law.space)
    points = reference.points
    losses = points.get("bits_per_byte", pd.Series(np.nan, index=points.index)).astype(float)
    fitted = losses[~points["held_out"].astype(bool)].to_numpy()
    theta = fit.theta[:count]
    first = replace(
        fit,
        law=law.loss_law,
        theta=theta,
        draws=fit.draws[:, :count],
        y=fitted,
        residuals=np.log(fitted) - np.log(law.loss_law.predict(theta, fit.x)),
        domain={name: ends for name, ends in fit.domain.items() if name != "loss"},
        options=dict(fit.options["steps"][0]["options"]),
        objective=float(fit.options["steps"][0]["objective"]),
    )
    # A user's own table says nothing of its losses, whatever its file is called.
    shipped = () if reference.evaluator == "user" else reference.benchmarks
    protocols = {name: known_protocol(reference.name, f"loss:{name}") for name in shipped}
    return replace(reference, fit=first, points=points.assign(score=losses), protocols=protocols)


def points_listing(reference: Reference) -> Listing:
    """Return the points of a reference's family, and by how much the curve misses each."""
    points = reference.points.copy()
    x = {"params": points["params"].to_numpy(float)}
    x |= {name: np.full(len(points), value) for name, value in reference.given.items()}
    points["fitted"] = np.asarray(reference.fit.predict(x), dtype=float) if len(points) else np.nan
    points["miss"] = points["score"] - points["fitted"]
    fields = (
        Field("Model", column("model")),
        numeric("Size", "params", formatting.size),
        numeric("Score", "score", formatting.three_digits),
        numeric("Curve", "fitted", formatting.three_digits),
        numeric("Miss", "miss", formatting.signed, hint="Score less curve"),
        Field("Used", lambda row: "held out" if row.get("held_out") is True else "fitted"),
    )
    return Listing("Points of the reference, and by how much the curve misses each.", points, fields)
