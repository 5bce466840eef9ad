"""The report on techniques: side by side, where each pays off, timelines, periods, and published figures."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from densing.core import Field, Listing, column, formatting, numeric, seconds, shares, times
from densing.efficiency.systems import (
    COMPARED,
    DOES_NOT_FIT,
    FINDINGS,
    MISSED,
    SHARED,
    VERDICTS,
    counts_of,
    grades_listing,
    published_words,
    series_listings,
    untested,
)
from densing.efficiency.systems import title as compared_title
from densing.efficiency.timeline import partition, select
from densing.plots import (
    BINS,
    MOST_RANKS,
    Row,
    chosen_step,
    contested,
    plot_compare,
    plot_exposed,
    plot_gantts,
    plot_regime,
    plot_throughput,
    rows_of,
)
from densing.report.document import (
    Block,
    Figure,
    Fold,
    Heading,
    Headline,
    Page,
    Prose,
    Section,
    Terms,
    notes_section,
    versions_section,
)
from densing.report.page import shown_figure, write
from densing.report.tables import ShownTable, page_table, shown_table

if TYPE_CHECKING:
    from densing.core import Note
    from densing.efficiency.throughput import Throughput
    from densing.efficiency.timeline import RankTimeline, Timeline


known = formatting.known
MOST_ROWS = 2000
MOST_TIMELINES = 400
NEEDED = {
    "compare": ("technique", "step_s", "exposed_comm_s", "speedup"),
    "regime": ("bandwidth_gbps", "batch", "technique", "speedup", "verdict"),
    "tau": ("technique", "tau", "exposed_s"),
    "predicted": ("technique", "quantity", "predicted", "measured"),
    "claims": ("technique", "claim", "published", "evidence", "source", "ours", "error", "grade", "verdict"),
}
"""Columns each table must have."""


@dataclass(frozen=True)
class Contents:
    """What a page is about: each part's rows, empty where it was not asked for."""

    compare: Sequence[Row] = ()
    regime: Sequence[Row] = ()
    claims: Sequence[Row] = ()
    timelines: Sequence[tuple[str, Timeline]] = ()
    tau: Sequence[Row] = ()
    predicted: Sequence[Row] = ()
    throughput: Throughput | None = None
    notes: Sequence[Note] = field(default_factory=tuple)
    baseline: str = ""


def build_techniques(
    out: Path | str,
    compare: Any = None,
    regime: Any = None,
    claims: Any = None,
    timelines: Sequence[tuple[str, Timeline]] = (),
    tau: Any = None,
    predicted: Any = None,
    throughput: Throughput | None = None,
    notes: Sequence[Note] = (),
    baseline: str = "",
) -> Path:
    """Write the report: one HTML file that needs no network. Sections without contents are left out.

    Every table is a DataFrame, or an iterable of mappings or Records.

    Parameters
    ----------
    out : path
        File to write; written whole or not at all.
    compare : table, optional
        technique, step_s, exposed_comm_s, speedup; optionally status, overlap_ratio, bytes, memory_bytes, changes_loss,
        reason.
    regime : table, optional
        bandwidth_gbps, batch, technique, speedup, verdict; optionally step_s.
    claims : table, optional
        technique, claim, published, evidence, source, ours, error, grade, verdict; optionally the other fields of
        :class:`densing.efficiency.systems.validation.Finding`.
    timelines : sequence of (str, Timeline)
        Recorded or simulated, with what each is called.
    tau : table, optional
        technique, tau, exposed_s; optionally link, step_s, predicted.
    predicted : table, optional
        technique, quantity, predicted, measured; optionally unit (``s`` picks its own).
    throughput : Throughput, optional
        Of :func:`densing.efficiency.throughput.check_throughput`.
    notes : sequence of Note
    baseline : str
        What the speed-ups of ``compare`` are relative to; when empty the row whose speed-up is exactly 1.

    Returns
    -------
    pathlib.Path
        The file.

    Raises
    ------
    densing.core.errors.InputError
        When a table lacks a column, or the file cannot be written.
    """
    tables = {"compare": compare, "regime": regime, "claims": claims, "tau": tau, "predicted": predicted}
    rows = {name: [] if table is None else rows_of(table, NEEDED[name], name) for name, table in tables.items()}
    contents = Contents(
        **rows, timelines=tuple(timelines), throughput=throughput, notes=tuple(notes), baseline=baseline
    )
    return write(techniques_page(contents), out)


def techniques_page(contents: Contents) -> Page:
    """Return the page; sections without contents are left out."""
    compare, regime, claims = contents.compare, contents.regime, contents.claims
    names = {str(row["technique"]) for row in (*compare, *regime, *contents.tau, *contents.predicted, *claims)}
    shown = figures(contents)
    first = next(iter(shown), "")
    head = replace(headline(contents), figure=shown.pop(first, None))
    drawn = {name: (figure,) for name, figure in shown.items()}
    sections = (
        *_part("compare", "Side by side", compare and (compare_table(compare),)),
        *_part("regime", "Where it pays", regime and (
            *drawn.get("regime", ()), regime_sums(regime), Fold("Every cell as a table", (regime_table(regime),)),
        )),
        *_part("timelines", "Timelines", contents.timelines and _timelines(contents.timelines, drawn)),
        *_part("tau", "Exposed against the period", contents.tau and (
            *drawn.get("tau", ()), tau_table(contents.tau),
        ), "Period"),
        *_part("predicted", "Predicted and measured", contents.predicted and (
            predicted_table(contents.predicted),
        ), "Predicted"),
        *_part("claims", "Published figures, and ours", claims and _claims(claims), "Published"),
        *_part("throughput", "Measured training speeds, and ours", contents.throughput and (
            *drawn.get("throughput", ()), page_table("throughput-table", contents.throughput.listing()),
        ), "Speeds"),
        notes_section(contents.notes, names),
        Section("definitions", "Definitions", (Terms(DEFINITIONS),), folded=True),
        versions_section(python=platform.python_version(), numpy=np.__version__),
    )  # fmt: skip
    speeds = contents.throughput
    inputs = {"constants": speeds.constants_sha256} if speeds else {}
    return Page("densing techniques", head, sections, inputs=inputs)


def _part(name: str, title: str, blocks: Any, short: str = "") -> tuple[Section, ...]:
    """Return a section, if it has contents."""
    return (Section(name, title, blocks, short),) if blocks else ()


def _timelines(timelines: Sequence[tuple[str, Timeline]], drawn: Mapping[str, tuple[Figure, ...]]) -> tuple[Block, ...]:
    blocks: list[Block] = [Prose(TIMELINE_WORDS)]
    for number, (label, _) in enumerate(timelines):
        for figure in drawn.get(f"gantt-{number}", ()):
            blocks += [Heading(formatting.clean(label, 120)), figure]
    return (*blocks, timeline_table(timelines))


def _claims(claims: Sequence[Row]) -> tuple[Block, ...]:
    decided = assumptions_table(claims)
    more = () if decided is None else (Heading("What decides the verdicts"), decided)
    series = (page_table(f"series-{name.lower()}", listing) for name, listing in series_listings(claims).items())
    return (grades_table(claims), claims_table(claims), *series, *more)


TIMELINE_WORDS = (
    "One whole step of each on axes of equal length: the middle one of a recording, the longest of a simulation's "
    f"steady state; up to {MOST_RANKS} ranks from the first on. Within a rank: compute, and below it communication, "
    "with what no compute covers laid over it. Where there is too much to be drawn one by one, work is put together "
    f"within each 1/{BINS} of the step (idle, compute, exposed communication): shares of time are right, the order in "
    "it not."
)
COMPARE_WORDS = (
    "A step of each technique: exposed communication (crossed), and the rest of the step: compute, with whatever "
    "communication it hides, and idle time. At the end of each bar how many times as fast as the baseline it is; a "
    "pale bar does not fit in memory and cannot be run."
)
REGIME_WORDS = (
    "Speed-up over the baseline at each bandwidth and batch or number of replicas (a row per technique and size): blue "
    "and ▲ faster, orange and ▼ slower, = within 2 %, ✕ does not fit in memory; blank where the technique does not "
    "apply. The baseline itself is left out."
)
TAU_WORDS = (
    "Exposed communication per step against how many steps pass between exchanges; solid and filled measured, dashed "
    "and open predicted."
)

THROUGHPUT_WORDS = (
    "Predicted against measured tokens per second, a point per training run, a colour and symbol per source; on the "
    "line they are equal."
)


def figures(contents: Contents) -> dict[str, Figure]:
    """Return every figure of the page by name."""
    captioned = [
        shown_figure(name, plot(rows), caption)
        for name, rows, plot, caption in (
            ("compare", contents.compare, plot_compare, COMPARE_WORDS),
            ("regime", contents.regime, plot_regime, REGIME_WORDS),
            ("tau", contents.tau, plot_exposed, TAU_WORDS),
        )
        if rows
    ]
    if contents.throughput:
        captioned.append(shown_figure("throughput", plot_throughput(contents.throughput.rows), THROUGHPUT_WORDS))
    gantts = plot_gantts([timeline for _, timeline in contents.timelines])
    for number, ((label, timeline), figure) in enumerate(zip(contents.timelines, gantts, strict=True)):
        captioned.append(shown_figure(f"gantt-{number}", figure, gantt_words(label, timeline)))
    return {figure.name: figure for figure in captioned}


def gantt_words(label: str, timeline: Timeline) -> str:
    """Return what a timeline shows, for readers who cannot see it."""
    simulated = all(rank.origin.simulated for rank in timeline.ranks)
    steps = len(timeline.ranks[0].steps) if timeline.ranks else 0
    contents = f"{formatting.plural(len(timeline.ranks), 'rank')}, {formatting.plural(steps, 'step')}"
    if step := chosen_step(timeline):
        contents += f"; drawn is step {step.number}, {formatting.duration(step.length_ns)}, of steps of "
        contents += f"{formatting.duration(step.mean_ns)} in the mean"
    return f"{formatting.clean(label, 120)}: {'simulated' if simulated else 'recorded'}, {contents}."


def headline(contents: Contents) -> Headline:
    """Put a page in words; every caveat that holds for it comes with it."""
    return Headline(title(contents), lead(contents), facts(contents), caveats(contents))


def title(contents: Contents) -> str:
    """Return the headline itself.

    Examples
    --------
    >>> rows = [{"technique": "ddp", "speedup": 1.0}, {"technique": "co2", "speedup": 1.4}]
    >>> title(Contents(compare=rows)), title(Contents(compare=rows[:1]))
    ('co2 is 1.40× as fast as ddp per step', 'One technique: ddp')
    """
    if contents.compare:
        rows = [{**row, "technique": formatting.clean(row["technique"], 60), "speedup": known(row["speedup"])}
                for row in contents.compare]  # fmt: skip
        return compared_title(rows, formatting.clean(contents.baseline, 60) if contents.baseline else "")
    if contents.claims:
        counts = Counter(str(row["verdict"]) for row in contents.claims)
        answered = counts["reproduced"] + counts["not reproduced"]
        if not answered:
            return (
                f"{formatting.plural(len(contents.claims), 'published figure')}, and no prediction of ours among them"
            )
        return f"{counts['reproduced']} of {formatting.plural(answered, 'prediction')} reproduced"
    if contents.throughput:
        known_sources = [source for source in contents.throughput.sources if source.median_error is not None]
        return (
            f"{formatting.plural(sum(source.n for source in known_sources), 'measured training speed')} of "
            f"{formatting.plural(len(known_sources), 'source')} beside ours"
        )
    misses = [abs(value) for row in contents.predicted if (value := miss(row)) is not None]
    if misses:
        return (
            f"Predictions miss what was measured by {formatting.percent(100 * float(np.median(misses)))} in the median"
        )
    return "Techniques that hide communication"


def lead(contents: Contents) -> str:
    """Return what the page holds, in a sentence or two."""
    periods = {known(row["tau"]) for row in contents.tau}
    parts = [
        (contents.compare, f"{formatting.plural(len(contents.compare), 'technique')} on one workload and one cluster"),
        (
            contents.regime,
            f"a map of {formatting.plural(len(contents.regime), 'cell')} over bandwidth and {_across(contents.regime)}",
        ),
        (contents.timelines, formatting.plural(len(contents.timelines), "timeline")),
        (contents.tau, f"exposed communication at {formatting.plural(len(periods), 'period')}"),
        (contents.predicted, formatting.plural(len(contents.predicted), "prediction") + " beside what was measured"),
        (contents.claims, f"{formatting.plural(len(contents.claims), 'published figure')} beside ours"),
        (contents.throughput, f"{formatting.plural(_measured_runs(contents), 'training run')} beside our cost model"),
    ]
    sentences = [prose for rows, prose in parts if rows]
    return (
        f"This page holds {formatting.clean('; '.join(sentences), 600)}."
        if sentences
        else "Nothing was handed over to be shown."
    )


def facts(contents: Contents) -> tuple[tuple[str, str], ...]:
    """Return the figures to see first."""
    fitting = [row for row in contents.compare if row.get("status") != DOES_NOT_FIT]
    steps = [value for row in fitting if (value := known(row["step_s"])) is not None]
    rows: list[tuple[str, str]] = []
    if len(fitting) < len(contents.compare):
        rows.append(("Do not fit in memory", f"{len(contents.compare) - len(fitting)} of {len(contents.compare)}"))
    if steps:
        rows += [
            ("Shortest step", formatting.duration(1e9 * min(steps))),
            ("Longest step", formatting.duration(1e9 * max(steps))),
        ]
        bare = [value for row in fitting if (value := known(row["exposed_comm_s"])) is not None]
        rows += [("Least exposed per step", formatting.duration(1e9 * min(bare)))] if bare else []
    for grade, count in counts_of(contents.claims).items():
        if grade == "predicted":
            rows += [(f"Predicted: {verdict}", str(count[verdict])) for verdict in VERDICTS if count[verdict]]
        else:
            both = f", {count[SHARED]} as does their null" if count[SHARED] else ""
            rows.append((grade.capitalize(), f"{count['agrees'] + count[SHARED]} of {count.total()} agree{both}"))
    cells = Counter(str(row["verdict"]) for row in contested(contents.regime))
    rows += [(f"Cells: {name}", str(cells[name])) for name in ("wins", "ties", "loses") if contents.regime]
    rows += [("Cells: does not fit", str(cells[DOES_NOT_FIT]))] if cells[DOES_NOT_FIT] else []
    if contents.throughput:
        memory = contents.throughput.memory
        rows += [
            ("Training runs", f"{len(contents.throughput.rows):,}"),
            ("Both predicted and measured", f"{_measured_runs(contents):,}"),
            ("Fits or not: AUC", formatting.number(memory.auc)),
        ]
    return tuple(rows)


def _measured_runs(contents: Contents) -> int:
    return sum(source.n for source in contents.throughput.sources) if contents.throughput else 0


def caveats(contents: Contents) -> tuple[str, ...]:
    """Return what to know before quoting the page."""
    sentences: list[str] = []
    if contents.compare or contents.regime:
        fitted = any(row.get("low_s") for row in contents.compare)
        figures = "what published runs reached on such devices" if fitted else "a cluster's figures"
        sentences.append(
            f"Steps are simulated: tasks on streams and links whose times follow from {figures}. "
            "Nothing was timed, and the order of two techniques within a few percent of each other is not settled."
        )
    changing = [formatting.clean(row["technique"], 60) for row in contents.compare if row.get("changes_loss")]
    if changing:
        sentences.append(
            f"{', '.join(changing)}: a step does not learn what one of plain synchronous training does, so a faster "
            "step need not be a faster training run."
        )
    misfits = [row for row in contents.compare if row.get("status") == DOES_NOT_FIT]
    sentences += [
        f"{formatting.clean(row['technique'], 60)} does not fit in memory; its times are those of a step that cannot "
        f"be run: {formatting.clean(row.get('reason') or 'it needs more than a device has', 300)}."
        for row in misfits
    ]
    evidence = Counter(str(row["evidence"]) for row in contents.claims)
    if second := evidence["second-hand"]:
        sentences.append(
            f"{formatting.plural(second, 'published figure')} {'is' if second == 1 else 'are'} second-hand: "
            "read where someone else reports the paper, not in the paper. They are labelled."
        )
    if recalled := evidence["recalled"]:
        sentences.append(
            f"{formatting.plural(recalled, 'figure')} {'is' if recalled == 1 else 'are'} recalled and could not be "
            "looked up; labelled, and not to be quoted as the paper's."
        )
    counts = counts_of(contents.claims)
    agreeing = {
        grade: sum(count[verdict] for verdict in ("agrees", SHARED))
        for grade, count in counts.items()
        if count["agrees"] or count[SHARED]
    }
    if agreeing:
        number = sum(agreeing.values())
        grades = ", ".join(f"{count} {grade}" for grade, count in agreeing.items())
        sentences.append(
            f"{formatting.plural(number, 'row')} {'agrees' if number == 1 else 'agree'} without having been predicted "
            f"({grades}): what went in, or follows from it, confirms nothing."
        )
    if shared := sum(count[SHARED] for count in counts.values()):
        sentences.append(
            f"In {shared} of the calibrated rows that agree a null model without a simulator agrees too: they say "
            "nothing for the simulator."
        )
    if contents.throughput:
        sentences.append(
            "Errors of sources that constants were fitted to say how well the model describes them; how well it "
            "predicts others stands under Unseen: the same rows with constants that were fitted without their source."
        )
    unseen = untested(contents.claims)
    if unseen:
        sentences.append(f"No row that holds notices {', '.join(unseen)}: agreement here does not test it.")
    nulls = [
        (abs(ours), abs(null))
        for row in contents.claims
        if (ours := known(row.get("error"))) is not None and (null := known(row.get("null_error"))) is not None
    ]
    if nulls:
        closer = sum(ours < null - 0.001 for ours, null in nulls)
        sentences.append(
            f"In {closer} of {formatting.plural(len(nulls), 'calibrated figure')} ours comes closer, by over 0.1 "
            "point, than a null model without a simulator does from the same inputs."
        )
    if any(known(row["exposed_s"]) is not None and bool(row.get("predicted")) for row in contents.tau):
        sentences.append("Dashed lines and open symbols are predictions, solid lines and filled symbols measurements.")
    return tuple(sentences)


DEFINITIONS = (
    ("Step", "From the end of one step's last computation to the end of the next one's, in the steady state."),
    ("Exposed communication", "Time in which a rank communicates (or waits in a communication) and computes nothing."),
    ("Hidden", "Share of the communication's time during which the same rank computes."),
    ("Speed-up", "Step of the baseline over the technique's; the baseline's own is 1."),
    ("Loss", "Whether a step learns what one of plain synchronous training does; the simulator predicts times only."),
    ("Does not fit", "What must be kept (parameters, gradients, optimizer, activations) is more than a device has."),
    ("Wins, ties, loses", "Speed-up more than 2 % above 1, within 2 % of it, more than 2 % below."),
    ("Error", "Ours over the published figure, less 1; a direction (one thing faster than another) has none."),
    (
        "Reproduced",
        "A prediction within the tolerance that was said beforehand. What agrees without it was not a prediction.",
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


def compare_table(rows: Sequence[Row]) -> ShownTable:
    """Return techniques side by side, one that does not apply or does not fit with its reason."""
    caption = "A step of the steady state, mean of the ranks. A dash: unknown, or the technique does not apply."
    return page_table("compare-table", Listing(caption, rows[:MOST_ROWS], COMPARED), sortable=True)


def regime_table(rows: Sequence[Row]) -> ShownTable:
    """Return every cell of the map."""
    across = _across(rows)
    fields = (
        Field("Technique", column("technique")),
        numeric("Gbit/s", "bandwidth_gbps", lambda value: formatting.digits(known(value))),
        numeric(across.capitalize(), across, _count),
        seconds("Step", "step_s"),
        numeric("Speed-up", "speedup", formatting.factor),
        Field("Verdict", column("verdict")),
    )
    filters = ("Technique", "Verdict")
    return shown_table(
        "regime-table",
        "Every cell of the map.",
        rows[:MOST_ROWS],
        fields,
        filters,
        sortable=True,
        called=("cells", "technique, batch …"),
    )


def regime_sums(rows: Sequence[Row]) -> ShownTable:
    """Return how often each technique but the baseline wins, ties and loses, and where it does best and worst."""
    sums = []
    others, across = contested(rows), _across(rows)
    for name in dict.fromkeys(str(row["technique"]) for row in others):
        own = [row for row in others if str(row["technique"]) == name]
        rated = sorted((row for row in own if known(row["speedup"]) is not None), key=lambda row: float(row["speedup"]))
        verdicts = ("wins", "ties", "loses", "does not fit")
        tally = {verdict: sum(row["verdict"] == verdict for row in own) for verdict in verdicts}
        ends = {"best": _place(rated[-1], across), "worst": _place(rated[0], across)} if rated else {}
        sums.append({"technique": name, **tally, **ends})
    fields = (
        Field("Technique", column("technique")),
        numeric("Wins", "wins", formatting.count),
        numeric("Ties", "ties", formatting.count),
        numeric("Loses", "loses", formatting.count),
        numeric("Does not fit", "does not fit", formatting.count),
        Field("Best", column("best")),
        Field("Worst", column("worst")),
    )
    caption = "Cells in which each technique wins, ties and loses, and in which it does not fit in memory."
    return shown_table("regime-sums", caption, sums, fields)


def _place(row: Row, across: str) -> str:
    bandwidth = formatting.digits(known(row["bandwidth_gbps"]))
    return f"{formatting.factor(row['speedup'])} at {bandwidth} Gbit/s, {across} {_count(row[across])}"


def _across(rows: Sequence[Row]) -> str:
    """Return what varies in a map beside the bandwidth."""
    return "replicas" if len({row.get("replicas") for row in rows}) > 1 else "batch"


def tau_table(rows: Sequence[Row]) -> ShownTable:
    """Return what stays exposed at each period."""
    labelled = ({**row, "how": "predicted" if row.get("predicted") else "measured"} for row in rows[:MOST_ROWS])
    fields = (
        Field("Technique", column("technique")),
        Field("Link", column("link")),
        numeric("Period, steps", "tau", _count),
        seconds("Exposed per step", "exposed_s"),
        seconds("Step", "step_s"),
        Field("How", column("how")),
    )
    caption = "Communication that stays exposed, per step, as ranks exchange less often."
    return shown_table("tau-table", caption, labelled, fields, sortable=True)


def predicted_table(rows: Sequence[Row]) -> ShownTable:
    """Return predictions beside what was measured."""
    fields = (
        Field("Technique", column("technique")),
        Field("Figure", column("quantity")),
        Field("Predicted", lambda row: formatting.figure(row.get("predicted"), row.get("unit")), "predicted"),
        Field("Measured", lambda row: formatting.figure(row.get("measured"), row.get("unit")), "measured"),
        numeric("Error", "error", formatting.deviation, hint="Predicted over measured, less 1"),
    )
    caption = "What the simulator said before the run, and what the run then took."
    return shown_table(
        "predicted-table", caption, ({**row, "error": miss(row)} for row in rows[:MOST_ROWS]), fields, sortable=True
    )


def miss(row: Row) -> float | None:
    """Return predicted over measured, less 1; None where either is unknown.

    Examples
    --------
    >>> miss({"predicted": 1.5, "measured": 1.0}), miss({"predicted": 1.5, "measured": 0.0})
    (0.5, None)
    """
    predicted, measured = known(row.get("predicted")), known(row.get("measured"))
    return None if predicted is None or not measured else predicted / measured - 1


def claims_table(rows: Sequence[Row]) -> ShownTable:
    """Return published figures beside ours, with what agreement is worth, misses marked; series have own tables."""
    alone = [row for row in rows if not row.get("series")]
    marked = ({**row, "failed": row["verdict"] in MISSED} for row in alone[:MOST_ROWS])
    caption = (
        "Published figures and what the simulator gives for each; ◆ marks those that do not come out. Only a "
        "prediction can be reproduced; whatever else agrees is counted by its grade."
    )
    filters = ("Technique", "Grade", "Evidence", "Verdict")
    called = ("figures", "claim, source …")
    return page_table("claims-table", Listing(caption, marked, FINDINGS, "failed"), "", filters, True, called)


def assumptions_table(rows: Sequence[Row]) -> ShownTable | None:
    """Return what ours would be under each assumption that was varied, those that turn the verdict marked."""
    tried = [
        {**row, "assumption": name, "changed": value, "turns": name in row["decided_by"]}
        for row in rows
        for name, value in (row.get("assumptions") or {}).items()
    ]
    if not tried:
        return None
    fields = (
        Field("Claim", column("claim")),
        Field("Published", published_words),
        Field("Ours", lambda row: formatting.figure(row.get("ours"), row.get("unit"))),
        Field("With another assumption", column("assumption")),
        Field("Ours then", lambda row: formatting.figure(row["changed"], row.get("unit"))),
    )
    caption = "One assumption changed at a time; ◆ marks those that turn the verdict, and so decide it."
    return shown_table("assumptions-table", caption, tried[:MOST_ROWS], fields, mark="turns")


def grades_table(rows: Sequence[Row]) -> ShownTable:
    """Return how many rows of each grade have each verdict."""
    return page_table("grades-table", grades_listing(rows))


def _count(value: Any) -> str:
    real = known(value)
    return formatting.MISSING if real is None else f"{real:g}"


def timeline_table(timelines: Sequence[tuple[str, Timeline]]) -> ShownTable:
    """Return a row per timeline and rank: time per step, and how it splits."""
    rows = [_row(label, rank) for label, timeline in timelines for rank in timeline.ranks][:MOST_TIMELINES]
    fields = (
        Field("Timeline", column("label")),
        numeric("Rank", "rank", str),
        Field("How", column("how")),
        times("Step", "step"),
        times("Compute", "compute"),
        times("Exposed communication", "exposed"),
        times("Idle", "idle"),
        shares("Hidden", "hidden", hint="|C ∩ K| / |C| of unions, as in densing profile"),
    )
    caption = (
        "Means over the steps of each rank (of a simulation those of its steady state); over the whole timeline "
        "where none is marked."
    )
    return shown_table("timelines-table", caption, rows, fields, sortable=True)


def _row(label: str, rank: RankTimeline) -> dict[str, Any]:
    part = partition(select(rank))
    steps = max(len(rank.steps), 1)
    return {
        "label": formatting.clean(label, 120),
        "rank": rank.rank,
        "how": "simulated" if rank.origin.simulated else "recorded",
        "step": part.window_ns / steps,
        "compute": part.compute_ns / steps,
        "exposed": part.exposed_comm_ns / steps,
        "idle": part.idle_ns / steps,
        "hidden": part.overlap_pct if part.comm_ns else None,
    }
