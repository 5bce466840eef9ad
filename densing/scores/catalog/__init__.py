"""Who the models are and what they scored, with a source for every figure."""

from densing.scores.catalog.agreement import disagreement, fit_disagreement
from densing.scores.catalog.edit import add_model, add_score, validate_catalog
from densing.scores.catalog.load import load_catalog
from densing.scores.catalog.scores import mean_table, score_table, series_list
from densing.scores.catalog.selection import Selection, select, strata
from densing.scores.catalog.store import Catalog

__all__ = [
    "Catalog",
    "Selection",
    "add_model",
    "add_score",
    "disagreement",
    "fit_disagreement",
    "load_catalog",
    "mean_table",
    "score_table",
    "select",
    "series_list",
    "strata",
    "validate_catalog",
]
