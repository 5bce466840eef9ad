"""A comparison of techniques in words: headline, facts, what to know before quoting, and definitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from densing.efficiency.techniques import DOES_NOT_FIT, VERDICTS, counts_of, untested
from densing.efficiency.techniques import title as compared_title
from densing.plots import Row, contested, duration, known, percent, text
from densing.report.headline import Headline
from densing.report.techniques_tables import miss

if TYPE_CHECKING:
    from densing.core import Note
    from densing.efficiency.timeline import Timeline


@dataclass(frozen=True)
class Contents:
    """What a page is about: each part's rows, empty where it was not asked for."""

    compare: Sequence[Row] = ()
    regime: Sequence[Row] = ()
    claims: Sequence[Row] = ()
    timelines: Sequence[tuple[str, Timeline]] = ()
    tau: Sequence[Row] = ()
    predicted: Sequence[Row] = ()
    notes: Sequence[Note] = field(default_factory=tuple)
    baseline: str = ""


def headline(found: Contents) -> Headline:
    """Put a page in words; every caveat that holds for it comes with it."""
    return Headline(title(found), lead(found), facts(found), caveats(found))


def title(found: Contents) -> str:
    """Return the headline itself.

    Examples
    --------
    >>> rows = [{"technique": "ddp", "speedup": 1.0}, {"technique": "co2", "speedup": 1.4}]
    >>> title(Contents(compare=rows)), title(Contents(compare=rows[:1]))
    ('co2 is 1.40× as fast as ddp per step', 'One technique: ddp')
    """
    if found.compare:
        rows = [{**row, "technique": text.clean(row["technique"], 60), "speedup": known(row["speedup"])}
                for row in found.compare]  # fmt: skip
        return compared_title(rows, text.clean(found.baseline, 60) if found.baseline else "")
    if found.claims:
        counts = Counter(str(row["verdict"]) for row in found.claims)
        answered = counts["reproduced"] + counts["not reproduced"]
        if not answered:
            return f"{text.plural(len(found.claims), 'published figure')}, and no prediction of ours among them"
        return f"{counts['reproduced']} of {text.plural(answered, 'prediction')} reproduced"
    misses = [abs(value) for row in found.predicted if (value := miss(row)) is not None]
    if misses:
        return f"Predictions miss what was measured by {percent(100 * float(np.median(misses)))} in the median"
    return "Techniques that hide communication"


def lead(found: Contents) -> str:
    """Return what the page holds, in a sentence or two."""
    parts = [
        (found.compare, f"{text.plural(len(found.compare), 'technique')} on one workload and one cluster"),
        (found.regime, f"a map of {text.plural(len(found.regime), 'cell')} over bandwidth and batch"),
        (found.timelines, text.plural(len(found.timelines), "timeline")),
        (found.tau, f"exposed communication at {text.plural(_periods(found.tau), 'period')}"),
        (found.predicted, text.plural(len(found.predicted), "prediction") + " beside what was measured"),
        (found.claims, f"{text.plural(len(found.claims), 'published figure')} beside ours"),
    ]
    held = [words for rows, words in parts if rows]
    return f"This page holds {text.clean('; '.join(held), 600)}." if held else "Nothing was handed over to be shown."


def _periods(rows: Sequence[Row]) -> int:
    return len({known(row["tau"]) for row in rows})


def facts(found: Contents) -> tuple[tuple[str, str], ...]:
    """Return the figures to see first."""
    fitting = [row for row in found.compare if row.get("status") != DOES_NOT_FIT]
    steps = [value for row in fitting if (value := known(row["step_s"])) is not None]
    shown: list[tuple[str, str]] = []
    if len(fitting) < len(found.compare):
        shown.append(("Do not fit in memory", f"{len(found.compare) - len(fitting)} of {len(found.compare)}"))
    if steps:
        shown += [("Shortest step", duration(1e9 * min(steps))), ("Longest step", duration(1e9 * max(steps)))]
        bare = [value for row in fitting if (value := known(row["exposed_comm_s"])) is not None]
        shown += [("Least exposed per step", duration(1e9 * min(bare)))] if bare else []
    for grade, count in counts_of(found.claims).items():
        if grade == "predicted":
            shown += [(f"Predicted: {word}", str(count[word])) for word in VERDICTS if count[word]]
        else:
            shown.append((grade.capitalize(), f"{count['agrees']} of {count.total()} agree"))
    cells = Counter(str(row["verdict"]) for row in contested(found.regime))
    shown += [(f"Cells: {name}", str(cells[name])) for name in ("wins", "ties", "loses") if found.regime]
    shown += [("Cells: does not fit", str(cells[DOES_NOT_FIT]))] if cells[DOES_NOT_FIT] else []
    return tuple(shown)


def caveats(found: Contents) -> tuple[str, ...]:
    """Return what to know before quoting the page."""
    words: list[str] = []
    if found.compare or found.regime:
        words.append(
            "Steps are simulated: tasks on streams and links whose times follow from a cluster's figures. "
            "Nothing was timed, and the order of two techniques within a few percent of each other is not settled."
        )
    changing = [text.clean(row["technique"], 60) for row in found.compare if row.get("changes_loss")]
    if changing:
        words.append(
            f"{', '.join(changing)}: a step does not learn what one of plain synchronous training does, so a faster "
            "step need not be a faster training run."
        )
    misfits = [row for row in found.compare if row.get("status") == DOES_NOT_FIT]
    words += [
        f"{text.clean(row['technique'], 60)} does not fit in memory; its times are those of a step that cannot be run: "
        f"{text.clean(row.get('reason') or 'it needs more than a device has', 300)}."
        for row in misfits
    ]
    evidence = Counter(str(row["evidence"]) for row in found.claims)
    if evidence["second-hand"]:
        words.append(
            f"{text.plural(evidence['second-hand'], 'published figure')} {_is(evidence['second-hand'])} second-hand: "
            "read where someone else reports the paper, not in the paper. They are labelled."
        )
    if evidence["recalled"]:
        words.append(
            f"{text.plural(evidence['recalled'], 'figure')} {_is(evidence['recalled'])} recalled and could not be "
            "looked up; labelled, and not to be quoted as the paper's."
        )
    agreeing = {grade: count["agrees"] for grade, count in counts_of(found.claims).items() if count["agrees"]}
    if agreeing:
        number = sum(agreeing.values())
        told = ", ".join(f"{count} {grade}" for grade, count in agreeing.items())
        words.append(
            f"{text.plural(number, 'row')} {'agrees' if number == 1 else 'agree'} without having been predicted "
            f"({told}): what went in, or follows from it, confirms nothing."
        )
    unseen = untested(found.claims)
    if unseen:
        words.append(f"No row that holds notices {', '.join(unseen)}: agreement here does not test it.")
    nulls = [
        (abs(ours), abs(null))
        for row in found.claims
        if (ours := known(row.get("error"))) is not None and (null := known(row.get("null_error"))) is not None
    ]
    if nulls:
        closer = sum(ours < null - 0.001 for ours, null in nulls)
        words.append(
            f"In {closer} of {text.plural(len(nulls), 'calibrated figure')} ours comes closer, by over 0.1 point, than "
            "a null model without a simulator does from the same inputs."
        )
    if any(known(row["exposed_s"]) is not None and bool(row.get("predicted")) for row in found.tau):
        words.append("Dashed lines and open symbols are predictions, solid lines and filled symbols measurements.")
    return tuple(words)


def _is(count: int) -> str:
    return "is" if count == 1 else "are"


DEFINITIONS = (
    ("Step", "From the end of one step's last computation to the end of the next one's, in the steady state."),
    ("Exposed communication", "Time in which a rank communicates (or waits in a communication) and computes nothing."),
    ("Hidden", "Share of the communication's time during which the same rank computes."),
    ("Speed-up", "Step of the baseline over the technique's; the baseline's own is 1."),
    ("Loss", "Whether a step learns what one of plain synchronous training does; the simulator tells times only."),
    ("Does not fit", "What must be kept (parameters, gradients, optimizer, activations) is more than a device has."),
    ("Wins, ties, loses", "Speed-up more than 2 % above 1, within 2 % of it, more than 2 % below."),
    ("Error", "Ours over the published figure, less 1; a direction (one thing faster than another) has none."),
    (
        "Reproduced",
        "A prediction within the tolerance that was said beforehand. What agrees without it was no prediction.",
    ),
    ("Predicted", "Nothing that the same source measured went into ours, and breaking the simulator's laws turns it."),
    ("Calibrated on other rows", "Parameters were fitted to other figures of the same source, or of another one."),
    ("Fitted", "The figure itself went in: that it comes out shows that it is possible."),
    ("Algebraic", "Follows from what went in, whatever the simulator does."),
    ("Counted", "Bytes or messages were counted; nothing was timed."),
    ("Own measurement", "The figure is our own pilot's, not a paper's."),
    ("Null", "Error of a model that has no simulator (a constant share of the communication stays exposed, say)."),
    (
        "Notices",
        "Laws of the simulator that, once broken (ring costs x 3, latency x 10, no contention, no overlap), "
        "turn the row's verdict or, where it has missed anyway, move it by more than its tolerance.",
    ),
    ("First-hand", "Read in the paper, its code or its data."),
    ("Second-hand", "Read where someone else reports it."),
    ("Derived", "Computed from figures that were read."),
    ("Measured", "Measured by us."),
    ("Recalled", "From memory, not looked up; never printed as a paper's figure."),
)
