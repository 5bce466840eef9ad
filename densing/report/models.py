"""The table of every model, headline rows and those shown apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd

from densing.plots import status, text
from densing.report.tables import Field, ShownTable, column, ranged, shown

if TYPE_CHECKING:
    from densing.scores.study import Study

HEADLINE = "headline"


def _density(row: Mapping[str, Any]) -> str:
    return status.bounded(row.get("density"), row.get("bound"))


FIELDS = (
    Field("Model", column("model"), hint="Name in the catalog"),
    Field("Density", _density, "density", hint="Effective over actual parameters"),
    Field("Interval", ranged("density", text.number), "density_lo", hint="95 %: ruler, score, scatter of models"),
    Field("Released", column("released", text.day), "released"),
    Field("Group", column("stratum"), hint="Headline, or why the model is shown apart"),
    Field("Status", lambda row: status.in_short(row.get("status"), row.get("bound"))),
    Field("Size", column("n_params", text.size), "n_params", hint="Parameters that divide"),
    Field("Counted", column("denominator"), hint="Which parameters count", minor=True),
    Field("Effective size", column("n_eff", text.size), "n_eff"),
    Field("Its interval", ranged("n_eff", text.size), "n_eff_lo", minor=True),
    Field("Score", column("score", lambda value: text.number(value, 3)), "score"),
    Field("± s.e.", column("score_se", text.number), "score_se", hint="Standard error of the score", minor=True),
    Field("Benchmark", column("benchmark"), minor=True),
    Field("Family", column("family")),
    Field("Organisation", column("organisation"), minor=True),
    Field("Source", column("source"), link="source"),
)


def models_table(study: Study) -> ShownTable:
    """Return every row of the study, densest first, limits of unknown height last."""
    frame = gathered(study)
    caption = (
        "Every model measured. Group says whether it is in the headline figures or why it is shown apart. "
        "Where a score cannot be read off the ruler, the density is a limit: ≤ true value at or below, ≥ at "
        "or above."
    )
    return shown("models-table", caption, frame, FIELDS, filters=("Group", "Status", "Family"), sortable=True)


def gathered(study: Study) -> pd.DataFrame:
    """Return the headline rows and those apart in one table with the column ``stratum``, densest first."""
    main = study.density.table.assign(stratum=HEADLINE)
    parts = [main] if study.apart is None else [main, study.apart.table]
    frame = pd.concat([part.astype(object) for part in parts], ignore_index=True)
    height = pd.to_numeric(frame["density"], errors="coerce")
    return frame.loc[height.sort_values(ascending=False, kind="stable", na_position="last").index]
