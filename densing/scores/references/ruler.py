"""A ruler: one reference family, one benchmark (or the mean of several), one fitted law."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd

from densing.core import InputError, Note
from densing.scores.catalog import Protocol
from densing.scores.fit import LawFit


@dataclass(frozen=True)
class Reference:
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

    def beside(self) -> Reference:
        """Return the ruler without what its notes say of the catalog's protocol: for scores compared one by one."""
        return replace(self, notes=tuple(note for note in self.notes if note.code != "protocol-differs"))

    def at_tokens(self, tokens: float | None) -> Reference:
        """Return the ruler read at another D0; itself for None.

        Raises
        ------
        InputError
            When it is one-step, or the count is none.
        """
        if tokens is None:
            return self
        if "tokens" not in self.given:
            raise InputError(
                f"--tokens: reference {self.name!r} is one-step; only a two-step reference is read at a D0"
            )
        if not 1e3 <= tokens <= 1e16:
            raise InputError(f"--tokens {tokens:g} is not a token count; write 1e12 for one trillion")
        return replace(self, given={**self.given, "tokens": float(tokens)})

    def describe(self) -> dict[str, Any]:
        """Return the ruler's identity as plain data."""
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

    def _repr_html_(self) -> str:
        return self.points.to_html(index=False)
