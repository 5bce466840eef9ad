"""A training run followed by a few items of a bank: score, effective parameters and density of each checkpoint."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pandas as pd

from densing.core import Card, Field, Listing, Note, Readable, column, formatting, numeric, ranged
from densing.scores.density.checkpoints import checkpoint, tokens_of
from densing.scores.density.listing import DENSITY, EFFECTIVE, INTERVAL
from densing.scores.density.sentences import quoted_rows

NOT_RECALIBRATED = Note(
    "bank-not-recalibrated",
    "info",
    "the bank is not recalibrated on these checkpoints: they are one run, not independent models, and stratified ones "
    "answer the same items, which says nothing of the others. Their answers correct the curves as they are",
)
READ = ("n_eff", "n_eff_lo", "n_eff_hi", "density", "density_lo", "density_hi", "bound")


@dataclass(frozen=True, repr=False)
class BankSteps(Readable):
    """What a bank's items say of a run's checkpoints.

    Parameters
    ----------
    bank, reference : str
    table : pandas.DataFrame
        A row per checkpoint, by run and step: ``model``, ``run``, ``step``, ``tokens``, ``items``, ``score`` with its
        interval (``lo``, ``hi``), ``ability``, ``status`` of the score; ``n_eff`` and ``density`` with intervals and
        their ``bound``, NaN where the reference does not read the bank.
    notes : tuple of Note

    Examples
    --------
    >>> score = {"items": 100, "score": 0.4, "lo": 0.35, "hi": 0.45, "ability": 0.1, "status": "ok"}
    >>> steps = BankSteps.of("suite", "olmo-ladder", [{"model": f"mine@step{n}", **score} for n in (1000, 200)])
    >>> steps.table[["run", "step", "score"]].values.tolist()
    [['mine', 200, 0.4], ['mine', 1000, 0.4]]
    """

    drawn_by: ClassVar[str] = "densing.plots:plot_bank_steps"

    bank: str
    reference: str
    table: pd.DataFrame
    notes: tuple[Note, ...] = (NOT_RECALIBRATED,)

    @classmethod
    def of(cls, bank: str, reference: str, found: Sequence[Mapping[str, Any]]) -> BankSteps:
        """Return the checkpoints of scores: ``model``, what a :class:`BankScore` says, and ``densities``, a table."""
        rows = []
        for each in found:
            run, step = checkpoint(str(each["model"])) or (str(each["model"]), 0)
            row = {"model": each["model"], "run": run, "step": step, "tokens": tokens_of(str(each["model"]))}
            row |= {name: each[name] for name in ("items", "score", "lo", "hi", "ability", "status")}
            row |= dict.fromkeys(READ, math.nan) | {"bound": ""}
            densities = each.get("densities")
            if densities is not None and len(quoted := quoted_rows(densities)):
                row |= {name: quoted.iloc[0][name] for name in READ}
            rows.append(row)
        return cls(bank, reference, pd.DataFrame(rows).sort_values(["run", "step"], kind="stable", ignore_index=True))

    @property
    def axis(self) -> str:
        """What they stand against: tokens where all say how many they saw, else steps."""
        return "tokens" if self.table["tokens"].notna().all() else "step"

    def listing(self) -> Listing:
        """Return the checkpoints as people read them."""
        title = f"Checkpoints on the items of {self.bank}; densities against {self.reference}."
        return Listing(title, self.table, FIELDS)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        rows = self.table.to_dict("records")
        return {"bank": self.bank, "reference": self.reference, "checkpoints": rows, "notes": list(self.notes)}

    def card(self) -> Card:
        """Return what is shown of it."""
        return Card("Checkpoints", {"bank": self.bank, "reference": self.reference}, self.listing(), self.notes)


FIELDS = (
    Field("Run", column("run")),
    numeric("Step", "step", formatting.count),
    numeric("Tokens", "tokens", formatting.size, optional=True),
    numeric("Score", "score", formatting.share, "on all items of the bank"),
    Field("Its interval", ranged("", formatting.share)),
    EFFECTIVE,
    DENSITY,
    INTERVAL,
    numeric("Items", "items", formatting.clean),
    Field("Status", column("status"), hint="of the score"),
)
