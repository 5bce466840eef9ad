"""The page of teaching: what each way of learning from a teacher bought, as Markdown, from a study's own runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from densing.core import formatting, write_text
from densing.report import markdown
from densing.report.gain import parts_table, ratio, table
from densing.report.markdown import literal

if TYPE_CHECKING:
    from densing.tradeoff import Distilled

_HOW = """\
Every way of learning shares initialisation, order of blocks and token budgets with a run from scratch of its size and
seed; all pairs have one density ratio and one token ratio in common, read off a law of losses in size and tokens.
FLOPs are matrix products of a step, forward and backward, counted by torch, the teacher's included; a step is taken
anew by every run, though a teacher's answers could be kept. A way of learning that takes phi times the FLOPs of scratch
is *better* than more tokens for the same FLOPs where the whole interval of its token ratio lies above phi, *worse*
where it lies below. `scratch:flops` is that rival, trained: from scratch on so many more tokens that it takes what the
cheapest lesson takes.
"""


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
    spec = result.gains.spec
    budgets = ", ".join(f"{tokens:,.0f}" for tokens in spec["tokens"])
    parts = [
        "# What a teacher buys a small model",
        f"Written by `densing distil --teacher MODEL --out DIR --page FILE`; record {result.gains.digest[:12]}.",
        f"Students of preset {spec['preset']}: sizes {', '.join(spec['sizes'])}; {budgets} tokens; "
        f"{len(spec['seeds'])} seeds. Teacher: {literal(formatting.clean(result.teacher, 400))}. "
        f"Law of losses: {literal(formatting.clean(spec['law_of'] or 'the runs from scratch', 400))}.",
        _HOW,
        "## What each way of learning bought",
        table(
            result.frame(),
            {
                "arm": "arm", "density": ratio("density"), "tokens": ratio("token"),
                "FLOPs of a run": lambda row: formatting.number(row["flops"], 3),
                "of these the teacher's": lambda row: formatting.number(row["teacher_flops"], 3),
                "phi": lambda row: formatting.number(row["flops_ratio"], 3),
                "beside more tokens": "verdict", "status": "status", "pairs": "pairs",
            },
        ),
        "## Talking Models",
        table(
            result.claims,
            {"claim": "claim", "says": "says", "evidence": "evidence", "found here": "found", "verdict": "verdict"},
        ),
        "## By budget and size",
        parts_table(result.gains),
        "## Resolution",
        table(
            result.gains.resolution(),
            {
                "arm": "arm",
                "core seconds spent": lambda row: f"{row['core_seconds']:,.0f}",
                "ln density": lambda row: formatting.number(row["half_width"], 2),
                "ln tokens": lambda row: formatting.number(row["token_half_width"], 2),
            },
        ),
    ]  # fmt: skip
    if len(result.notes):
        parts += ["## Notes", markdown.notes(result.notes)]
    write_text(Path(path), "\n\n".join(part.strip() for part in parts) + "\n")
    return Path(path)
