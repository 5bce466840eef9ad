"""Factual recall: how many of IKP's probes each model answers right, by tier of rarity, and facts about the models.

Two tables, ``data/recall_models.csv`` (one row per model) and ``data/recall.csv`` (one row per model, tier and part of
the items), counted from the verdicts of Incompressible Knowledge Probes (Bojie Li, arXiv 2604.24827, CC BY 4.0). The
parts of a tier share no item, so that every subset of items is a sum of rows:

- ``common``: put to every model;
- ``researcher``: "what is this person known for", graded on naming a field, the weakest part;
- ``block``: 119 items (113 of them clean) that are blank for 54 models, the same each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pandas as pd

from densing.core import (
    Card,
    Column,
    Note,
    Readable,
    Table,
    TableError,
    TableLike,
    UnknownNameError,
    as_table,
    listing_of,
    read_sheet,
)
from densing.scores.catalog.catalog import DATA
from densing.scores.catalog.schema import ARCHITECTURES, size_column

TIERS = ("T1", "T2", "T3", "T4", "T5", "T6", "T7")
"""Tiers from facts that nearly every model knows to facts that hardly any knows."""
PARTS = ("common", "researcher", "block")
DATE_DOUBTS = ("doubtful", "conflict", "sibling")
VERDICTS = ("right", "wrong", "refused", "blank")

RECALL_MODELS = Table(
    "recall_models",
    (
        Column("model", "text", "name of the model in IKP", required=True),
        Column("family", "text", "family in IKP; the clusters of standard errors", required=True),
        Column("organisation", "text", "vendor in IKP"),
        Column(
            "released",
            "date",
            "release date in IKP; variants of a model have the date of the first",
            low="2018-01-01",
            remedy="give the day of the release as 2024-02-29, from 2018-01-01 on",
        ),
        Column(
            "date_doubt",
            "text",
            "doubtful: contradicts general knowledge; conflict: the served id belongs to a later "
            "version; sibling: the date belongs to an earlier release of the line",
            choices=DATE_DOUBTS,
        ),
        Column("released_by_id", "date", "first day of the month named by the served id, if it conflicts"),
        size_column("params_total_b", "total parameters, billions"),
        size_column("params_active_b", "active parameters per token, billions"),
        Column("architecture", "text", "as in IKP", choices=ARCHITECTURES),
        Column("open_weights", "flag", "whether IKP counts it as open-weight", default="false"),
        Column("thinking", "flag", "whether it reasoned before answering", default="false"),
        Column("cohort", "flag", "whether IKP fits its curve of effective size to it", default="false"),
        Column("twin_of", "text", "the same weights with reasoning switched on or off"),
        Column("base_model", "text", "model whose weights it started from, or its teacher"),
        Column("source", "text", "source of the date, id#place; sizes and verdicts come from the same source"),
        Column("notes", "text", "anything a reader should know"),
    ),
    key=("model",),
)
RECALL = Table(
    "recall",
    (
        Column("model", "text", "a model of recall_models", required=True),
        Column(
            "tier",
            "text",
            "rarity of the facts, from T1 (well known) to T7 (hardly known)",
            required=True,
            choices=TIERS,
        ),
        Column("part", "text", "part of the tier's items", required=True, choices=PARTS),
        Column("right", "integer", "items answered correctly", required=True, low=0),
        Column("wrong", "integer", "items answered wrongly", required=True, low=0),
        Column("refused", "integer", "items the model declined to answer", required=True, low=0),
        Column("blank", "integer", "items without a recorded answer", default="0", low=0),
    ),
    key=("model", "tier", "part"),
)


@dataclass(frozen=True, eq=False, repr=False)
class FactualRecall(Readable):
    """Models and the counts of their answers to factual probes.

    Parameters
    ----------
    models : pandas.DataFrame
        One row per model, columns of :data:`RECALL_MODELS`; sizes in billions.
    counts : pandas.DataFrame
        One row per model, tier and part: right, wrong, refused, blank.
    notes : tuple of Note
        What was read otherwise than a table has it.

    Examples
    --------
    >>> from densing.scores.catalog import load_recall
    >>> recall = load_recall()
    >>> recall.answers(tiers=("T7",), parts=("common",)).loc[("llama-3.1-70b", "T7")].astype(int).to_dict()
    {'right': 1, 'asked': 22, 'items': 22}

    See Also
    --------
    load_recall
    """

    models: pd.DataFrame
    counts: pd.DataFrame
    notes: tuple[Note, ...] = ()

    def answers(self, tiers: Sequence[str] = TIERS, parts: Sequence[str] = PARTS) -> pd.DataFrame:
        """Return the answers to a subset of the items, its parts added up.

        Parameters
        ----------
        tiers, parts : sequence of str
            Of :data:`TIERS` and :data:`PARTS`.

        Returns
        -------
        pandas.DataFrame
            Indexed by (model, tier); columns right, asked (answered right, wrong or refused) and items (blank ones
            too). A model without a row on one of the tiers is in it with zeros.

        Raises
        ------
        UnknownNameError
            For a tier or part that does not exist.
        """
        for kind, names, known in (("tier", tiers, TIERS), ("part", parts, PARTS)):
            for name in names:
                if name not in known:
                    raise UnknownNameError(kind, name, known)
        if (key := (*tiers, *parts)) not in self._asked:
            self._asked[key] = self._summed(tiers, parts)
        return self._asked[key].copy()

    @cached_property
    def _asked(self) -> dict[tuple[str, ...], pd.DataFrame]:
        """What was asked for: variants of a trend ask for few subsets, many times each."""
        return {}

    def _summed(self, tiers: Sequence[str], parts: Sequence[str]) -> pd.DataFrame:
        rows = self.counts[self.counts["tier"].isin(list(tiers)) & self.counts["part"].isin(list(parts))]
        sums = rows.groupby(["model", "tier"])[list(VERDICTS)].sum()
        grid = pd.MultiIndex.from_product([self.models["model"], list(dict.fromkeys(tiers))], names=["model", "tier"])
        sums = sums.reindex(grid, fill_value=0.0)
        asked = sums["right"] + sums["wrong"] + sums["refused"]
        return pd.DataFrame({"right": sums["right"], "asked": asked, "items": asked + sums["blank"]})

    def card(self) -> Card:
        """Return what is shown: how many models and items, from when to when, and the share right per tier."""
        dates = self.models["released"].dropna()
        sums = self.answers().groupby("tier")[["right", "asked"]].sum()
        sized = self.models["open_weights"].eq(True) & self.models["params_total_b"].notna()
        facts = {
            "open weights, size known": str(int(sized.sum())),
            "verdicts": f"{int(sums['asked'].sum()):,}",
            "released": f"{dates.min().date()} to {dates.max().date()}" if len(dates) else "",
        }
        share = (sums["right"] / sums["asked"].where(sums["asked"] > 0)).rename("share right")
        title = f"Factual recall of {len(self.models)} models"
        return Card(title, facts, listing_of(title, share.reset_index()), self.notes)


def load_recall(models: TableLike | None = None, counts: TableLike | None = None) -> FactualRecall:
    """Return the embedded tables of factual recall, or a user's own in their form.

    Parameters
    ----------
    models, counts : path, DataFrame or records, optional
        Tables as :data:`RECALL_MODELS` and :data:`RECALL` declare them; ours by default.

    Raises
    ------
    InputError, TableError
        When a table cannot be read, a count is of an unknown model, or two models were put different numbers of items
        of one part; the message names table, row, column, value and remedy.

    Source: Bojie Li, Incompressible Knowledge Probes, arXiv 2604.24827, https://github.com/19PINE-AI/ikp, CC BY 4.0.

    Examples
    --------
    >>> load_recall()
    Factual recall of 171 models
      open weights, size known  70
      verdicts                  218,743
      released                  2022-11-30 to 2026-06-30
    <BLANKLINE>
    tier share right
      T1       0.974
      T2       0.945
      T3       0.801
      T4       0.634
      T5       0.406
      T6       0.176
      T7      0.0810

    See Also
    --------
    FactualRecall, densing.scores.trend.recall_trend
    """
    models = DATA / "recall_models.csv" if models is None else models
    counts = DATA / "recall.csv" if counts is None else counts
    facts, notes, _ = _read(models, RECALL_MODELS, "recall_models.csv")
    rows, more, where = _read(counts, RECALL, "recall.csv")
    known = set(facts["model"])
    problems = [
        f"column model: {name!r} has answers, but no row in the table of models; add one"
        for name in dict.fromkeys(rows["model"])
        if name not in known
    ]
    problems += [
        f"model {name}, column twin_of: names the model itself; name the other variant"
        for name in facts.loc[facts["twin_of"] == facts["model"], "model"]
    ]
    # All models were put the same items; a count that does not add up is a slip or another version of the probes.
    items = rows[list(VERDICTS)].sum(axis=1)
    usual = items.groupby([rows["tier"], rows["part"]]).transform(lambda sums: sums.mode().iloc[0])
    problems += [
        f"model {row.model}, tier {row.tier}, part {row.part}: {items[row.Index]:.0f} items, but other models have "
        f"{usual[row.Index]:.0f}; count blank ones as blank"
        for row in rows[items != usual].itertuples()
    ]
    if problems:
        raise TableError(where, problems)
    return FactualRecall(facts, rows, (*notes, *more))


def _read(table: TableLike, declaration: Table, name: str) -> tuple[pd.DataFrame, tuple[Note, ...], str]:
    sheet = read_sheet(table, Path(table).name if isinstance(table, str | Path) else name)
    return (*as_table(sheet, declaration), sheet.name)
