"""The page of teaching: what each way of learning from a teacher bought, as Markdown, from a study's own runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from densing.core import formatting
from densing.report.document import Headline, Page, Section, doubtful, notes_section, versions_section
from densing.report.page import write
from densing.report.tables import page_table

if TYPE_CHECKING:
    from densing.tradeoff import Distilled

HOW = """\
Every way of learning shares initialisation, order of blocks and token budgets with a run from scratch of its size and
seed; all pairs have one density ratio and one token ratio in common, read off a law of losses in size and tokens.
FLOPs are matrix products of a step, forward and backward, counted by torch, the teacher's included; a step is taken
anew by every run, though a teacher's answers could be kept. A way of learning that takes phi times the FLOPs of scratch
is *better* than more tokens for the same FLOPs where the whole interval of its token ratio lies above phi, *worse*
where it lies below. `scratch:flops` is that rival, trained: from scratch on so many more tokens that it takes what the
cheapest lesson takes.
""".replace("\n", " ").strip()


def build_distil(result: Distilled, path: Path | str) -> Path:
    """Write the page of a study of teaching.

    Parameters
    ----------
    result : Distilled
        What :func:`densing.tradeoff.distil_gain` says.
    path : path
        Markdown file to write.

    Returns
    -------
    pathlib.Path
        The file.

    See Also
    --------
    densing.tradeoff.distil_gain
    """
    return write(distil_page(result), path)


def distil_page(result: Distilled) -> Page:
    """Return the page."""
    spec = result.gains.spec
    facts = (
        ("Students", f"preset {spec['preset']}: sizes {', '.join(spec['sizes'])}; "
                     f"{', '.join(map(formatting.whole, spec['tokens']))} tokens; "
                     f"{formatting.plural(len(spec['seeds']), 'seed')}"),
        ("Teacher", formatting.clean(result.teacher, 400)),
        ("Law of losses", formatting.clean(spec["law_of"] or "the runs from scratch", 400)),
        ("Record", result.gains.digest[:12]),
    )  # fmt: skip
    sections = (
        Section(
            "bought", "What each way of learning bought", (page_table("arms-table", result.listing()),), short="Bought"
        ),
        Section("claims", "Talking Models", (page_table("claims-table", result.claims_listing()),)),
        *(
            [Section("weights", "Weights of talking", (page_table("weights-table", result.weights_listing()),))]
            if len(result.weights)
            else []
        ),
        Section("parts", "By budget and size", (page_table("parts-table", result.gains.parts_listing()),)),
        Section("resolution", "Resolution", (page_table("resolution-table", result.gains.resolution_listing()),)),
        notes_section(result.notes),
        versions_section(),
    )
    head = Headline("What a teacher buys a small model", HOW, facts, doubtful(result.notes))
    return Page("densing distil", head, sections, "--teacher MODEL --out DIR --page FILE")
