"""The section on a model that was evaluated here: its table, its figures, and what to know before quoting it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go

from densing.plots import plot_density, plot_reference, status, text
from densing.report.sections import count, sentence
from densing.report.tables import Field, ShownTable, column, ranged, shown

if TYPE_CHECKING:
    from densing.scores.study import Measured

# Said of every ruler when it is made; readers of the section do not need it.
_INTERNAL = ("bootstrap-not-converged",)


def measured_table(measured: Measured) -> ShownTable:
    """Return a row per model, task and quantity with its density."""
    fields = (
        Field("Model", column("model")),
        Field("Task", column("benchmark")),
        Field("Read by", _quantity),
        Field("Value", _value, "score", hint="Loss in bits per byte, or share correct"),
        Field("Density", lambda row: status.bounded(row.get("density"), row.get("bound")), "density"),
        Field("Interval", ranged("density", text.number), "density_lo", hint="95 %: items, ruler, scatter of models"),
        Field("Effective size", column("n_eff", text.size), "n_eff"),
        Field("Items", column("n_items", count), "n_items"),
        Field("Status", lambda row: status.in_short(row.get("status"), row.get("bound"))),
        Field("Size", column("n_params", text.size), "n_params", minor=True),
        Field("Counted", column("denominator"), minor=True),
    )
    table = None if measured.densities is None else measured.densities.table
    caption = (
        "Effective size and density by the loss of the correct answer (bits per byte) and by accuracy, task by task "
        "and on the mean of the tasks. Where a value lies off the ruler, the density is a limit."
    )
    return shown("measured-table", caption, table, fields, sortable=True)


def _quantity(row: Any) -> str:
    return "loss" if row.get("quantity") == "loss" else "accuracy"


def _value(row: Any) -> str:
    error = row.get("score_se")
    return text.number(row.get("score"), 3) + ("" if text.is_missing(error) else f" ± {text.number(error)}")


def measured_words(measured: Measured) -> list[str]:
    """Return what to know about the measurement, a sentence each; why there is none where there is none."""
    if measured.densities is None:
        return [sentence(measured.missing)]
    notes = [note for note in measured.notes if note.code not in _INTERNAL]
    return [sentence(note.message) for note in notes]


def measured_lead(measured: Measured) -> str:
    """Return what was measured and what it says, in a sentence or two; empty where nothing was."""
    if measured.densities is None:
        return ""
    parts = [part for quantity in ("loss", "score") if (part := measured.part(quantity)) is not None]
    rows = [row for part in parts for row in part.table.to_dict("records")]
    return " ".join(
        f"{text.clean(row['model'])}, read by {_quantity(row)} on {_tasks(row)} "
        f"({count(row['n_items'])} items): effective size {text.size(row['n_eff'])}, density "
        f"{status.bounded(row['density'], row['bound'])} ({ranged('density', text.number)(row)}, 95 %)."
        for row in rows
    )


def _tasks(row: Any) -> str:
    return text.plural(len(row["benchmarks"].split("+")), "task")


def measured_figures(measured: Measured | None) -> dict[str, tuple[go.Figure, str]]:
    """Return the figures of the section: on the loss law, on the score curve, and among the catalog's models."""
    if measured is None or measured.densities is None:
        return {}
    drawn = {}
    for quantity, words in (("loss", _LOSS_WORDS), ("score", _SCORE_WORDS)):
        part = measured.part(quantity)
        if part is not None:
            drawn[f"measured-{quantity}"] = (plot_reference(part.reference, part), words)
    if measured.among is not None and measured.placed is not None:
        drawn["measured-among"] = (plot_density(measured.among, placed=measured.placed), _AMONG_WORDS)
    return drawn


_LOSS_WORDS = (
    "Bits per byte of the correct answer against size: the ladder's runs, the fitted law at its reference number of "
    "tokens with its band, and the measured model at its own size (star), joined to the size at which the law has its "
    "loss. The distance is the density."
)
_SCORE_WORDS = "The same by accuracy: the ladder's runs, the chained law from size to accuracy, and the measured model."
_AMONG_WORDS = (
    "The measured model (star) among the catalog's models on the same ladder, by accuracy on the tasks that both "
    "have, every parameter counted on both sides. The catalog's scores were measured with other shots."
)
