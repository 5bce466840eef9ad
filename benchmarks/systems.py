"""docs/results/systems.md: the sixteen systems, what each is here, how its claims came out and what it bought.

    python benchmarks/systems.py --page PAGE [--claims FILE | --rerun]

Claims are those of `densing techniques validate --json` (`--claims` reads its output from a file). `--rerun` does the
experiments again and ships their outcomes (quarter of an hour of processor time; an idle machine is not needed). What a
system bought is read off the tables of the pages in docs/, each of which names the command that wrote it: no figure
stands in this script.
"""

from __future__ import annotations

import argparse
import html
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from overlap import densing

from densing.core import formatting
from densing.efficiency.systems import MISSED, SHARED, VERDICTS, grades_listing, series_listings, validate, why
from densing.efficiency.systems.experiments import ship
from densing.efficiency.systems.registry import get_technique
from densing.report import markdown

RESULTS = Path(__file__).parent.parent / "docs" / "results"
WORDS = (*VERDICTS, "not decided")
MISSES = (*MISSED, "not decided", "not answerable")
NONE = "–"
BOUGHT_TIME = "time alone, simulated or measured: see its page"


@dataclass(frozen=True)
class Cell:
    """A figure of a page: the cell of the row that begins with ``row``, under the head ``column``."""

    page: str
    row: str
    column: str
    says: str = "{}"

    def read(self) -> str:
        """Return the sentence with the figure in it.

        Raises
        ------
        SystemExit
            When no table of the page has it: the page was written anew, and this line was not.
        """
        for row in table_rows(self.page):
            if self.column in row and next(iter(row.values())) == self.row:
                return self.says.format(row[self.column])
        raise SystemExit(f"docs/results/{self.page}: no table has a row {self.row!r} and a column {self.column!r}")


def table_rows(page: str) -> list[dict[str, str]]:
    """Return the rows of all tables of a page, each by the heads of its columns; one without a head has its number."""
    rows = []
    for block in re.findall(r"(?:^\|.*\n)+", (RESULTS / page).read_text("utf-8"), re.MULTILINE):
        head, _, *body = (
            [html.unescape(cell.strip().replace("\\|", "|")) for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            for line in block.splitlines()
        )
        heads = [text or f"column {number}" for number, text in enumerate(head, 1)]
        rows += [dict(zip(heads, cells, strict=True)) for cells in body]
    return rows


@dataclass(frozen=True)
class System:
    """One of the mission's systems.

    Parameters
    ----------
    name, paper, here, command : str
        Whose it is, what it is in this package, and the command that a reader types.
    techniques : tuple of str
        Those whose claims are its claims.
    page : str
        Of docs/.
    bought : tuple of Cell
        What was measured.
    missing : str
        What is not reproduced for another reason than a claim's verdict.
    """

    name: str
    paper: str
    here: str
    command: str
    page: str
    techniques: tuple[str, ...] = ()
    bought: tuple[Cell, ...] = ()
    missing: str = ""


SYSTEMS = (
    System(
        "Densing Law",
        "Xiao et al., arXiv 2412.04315",
        "the first wing: references, effective parameters, density, doubling time",
        "densing run",
        "replication.md",
        bought=(
            Cell(
                "replication.md", "llama", "doubling, months (95 %)", "by the paper's method on the Llama reference: {}"
            ),
        ),
        missing="its scores, parameters and 29 densities are not published: the procedure is replicated",
    ),
    System(
        "CO2",
        "Sun et al., ICLR 2024, arXiv 2401.16265",
        "plan, run, ladder arm",
        "densing train --technique co2 --tau 8",
        "gain.md",
        ("co2",),
        (Cell("gain.md", "co2:tau=8", "Token ratio", "worth {} of the tokens on our ladder, tuned"),),
    ),
    System(
        "Ladder-Residual",
        "Zhang et al., ICML 2025, arXiv 2501.06589",
        "plan, tensor-parallel run, ladder arm",
        "densing train --technique ladder",
        "wiring.md",
        ("ladder",),
        (
            Cell("wiring.md", "plain:wiring=ladder", "density", "a density of {} beside plain wiring in two layers"),
            Cell("wiring-deep.md", "plain:wiring=ladder", "density", "{} in six and eight"),
            Cell("wiring-deep.md", "plain:wiring=ladder", "no loss", "no loss there: {}"),
        ),
    ),
    System(
        "ISO",
        "Xiao and Su 2024, arXiv 2409.11155",
        "plan, tensor-parallel run",
        "densing train --technique iso",
        "../explanation/training.md",
        ("iso",),
    ),
    System(
        "T3",
        "Pati et al., ASPLOS 2024, arXiv 2401.16677",
        "plan; the run is a software stand-in",
        "densing techniques show t3",
        "../explanation/techniques.md",
        ("t3",),
        missing="hardware",
    ),
    System(
        "TACCL",
        "Shah et al., NSDI 2023, arXiv 2111.04867",
        "synthesis of collectives (MILP), run over isend and irecv",
        "densing train --technique taccl",
        "../explanation/techniques.md",
        ("taccl",),
    ),
    System(
        "Talking Models",
        "Zhao et al., arXiv 2310.03188",
        "distillation by exchanged hidden states",
        "densing distil",
        "distil-weights.md",
        bought=(
            Cell("distil.md", "talking:rounds=2", "tokens", "worth {} of the tokens beside training alone"),
            Cell("distil-weights.md", "talking:rounds=2,w1=0.03,w2=0.03,w3=0.03", "Token ratio", "weights of .03: {}"),
            Cell("distil-weights.md", "kd", "Token ratio", "plain distillation: {}"),
        ),
    ),
    System(
        "DCT",
        "Gupta et al., KDD 2021, arXiv 2010.08899",
        "codec, plan, run, ladder arm",
        "densing train --technique dct",
        "less-to-send.md",
        ("dct",),
        (
            Cell("less-to-send.md", "dct:eta=0.99", "tokens", "eta .99: worth {} of the tokens"),
            Cell("less-to-send.md", "dct:eta=0.99", "bytes over plain", "for {} of the bytes"),
        ),
    ),
    System(
        "FedFT",
        "Palihawadana et al., arXiv 2409.05242",
        "codec, clients, plan, run, ladder arm",
        "densing train --technique fedft",
        "less-to-send.md",
        ("fedft",),
        (
            Cell("less-to-send.md", "fedft:keep=0.5,tau=8", "tokens", "worth {} of the tokens"),
            Cell("less-to-send.md", "fedft:keep=0.5,tau=8", "bytes over plain", "for {} of the bytes"),
        ),
    ),
    System(
        "SpaFL",
        "Kim et al., NeurIPS 2024, arXiv 2406.00431",
        "thresholds, clients, plan, run, ladder arm",
        "densing train --technique spafl",
        "less-to-send.md",
        ("spafl",),
        (Cell("less-to-send.md", "spafl:tau=8", "tokens", "worth {} of the tokens"),),
    ),
    System(
        "FusionLLM",
        "Tang et al. 2024, arXiv 2410.12707",
        "cuts and places of stages, codec per edge, run, ladder arm",
        "densing train --technique fusion",
        "less-to-send.md",
        ("fusion",),
        (Cell("less-to-send.md", "fusion:r=10", "tokens", "r = 10: worth {} of the tokens"),),
    ),
    System(
        "Straggler-aware learning",
        "Ozfatura, Ulukus and Gunduz, Entropy 2020",
        "partial messages and codes: plan, server and workers, ladder arms; delays fitted to traces",
        "densing techniques compare --delay ... --techniques uc-mmc,gradient-coding,gc-mmc",
        "arrival.md",
        ("uc-mmc",),
        (Cell("arrival.md", "uc-mmc:r=2", "tokens", "exact: worth {} of the tokens"),),
    ),
    System(
        "proxCSL",
        "Lu et al., KDD 2024, arXiv 2407.06346",
        "which items a model fails on, in words; an estimator",
        "densing results explain STORE --model A --against B",
        "explain.md",
        ("prox-csl",),
        (Cell("explain.md", "AUC there", "column 2", "AUC on held-out items {}"),),
    ),
    System(
        "SAC-d",
        "Niu, Teng, Han and Zou, arXiv 2201.02968",
        "exits, cuts and bits as evaluated models; policies, a queue, real requests",
        "densing deploy STORE --model smollm2-135m",
        "deploy.md",
        ("sac-d",),
        (
            Cell(
                "deploy.md",
                "fixed",
                "sac-d beyond it: the tokens stay on the device",
                "reward beyond the best fixed choice {}",
            ),
        ),
        "AlexNet on a Raspberry Pi",
    ),
    System(
        "LCBM",
        "Khandelwal et al., ICLR 2024, arXiv 2309.00359",
        "tasks of lm-eval on CC0 films, floors, an arm that is told behaviour, its loss as a skill",
        "densing eval --model smollm2-135m --tasks lcbm_films",
        "behaviour.md",
        bought=(Cell("behaviour.md", "LCB-1", "found"),),
        missing="no video, no CBC corpus, no 13 B",
    ),
    System(
        "PyTorch-Direct",
        "Min et al., VLDB 2021, arXiv 2103.03330",
        "tables in the host's memory: request counter, plans, rows gathered ahead on a real graph",
        "densing train -t host-gather --nproc 1",
        "host-tables.md",
        ("zero-copy",),
        (Cell("host-tables.md", "602", "times as fast", "rows gathered ahead: steps {} times as fast as in turn"),),
        "the device's part has not been run",
    ),
)


def findings(system: System, validated: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the claims of a system: of its techniques, else of the tables of its page."""
    if system.techniques:
        return [row for row in validated if row["technique"] in system.techniques]
    rows = ({head.lower(): cell for head, cell in row.items()} for row in table_rows(system.page))
    return [{**row, "grade": "measured"} for row in rows if {"claim", "verdict"} <= set(row)]


def null_of(row: Mapping[str, Any]) -> str:
    """Return what the null model says, and whether it agrees where ours does."""
    if row.get("null") is None:
        return NONE
    also = "; agrees too" if row["verdict"] == SHARED else ""
    return f"{shown(row['null'])} ({row['null_model']}{also})"


def shown(value: Any) -> str:
    """Return a figure or a direction in words."""
    return formatting.number(value) if isinstance(value, int | float) else str(value or NONE)


def counted(claims: Sequence[Mapping[str, Any]]) -> str:
    """Return how often each verdict was given, by the claims' grade."""
    grades: dict[str, Counter[str]] = {}
    for claim in claims:
        grades.setdefault(str(claim["grade"]), Counter())[str(claim["verdict"])] += 1
    return "; ".join(f"{grade}: {_listed(verdicts)}" for grade, verdicts in grades.items()) or NONE


def _listed(verdicts: Counter[str]) -> str:
    return ", ".join(f"{verdicts[verdict]} {verdict}" for verdict in WORDS if verdicts[verdict])


def not_met(system: System, claims: Sequence[Mapping[str, Any]]) -> str:
    """Return which claims do not come out, and what nobody publishes."""
    parts = []
    for verdict in MISSES:
        names: Counter[str] = Counter()
        for claim in claims:
            if claim["verdict"] == verdict:
                names[str(claim.get("series") or claim["claim"])] += 1
        listed = (f"{count} rows of {name}" if count > 1 else name for name, count in names.items())
        parts += [f"{verdict}: {', '.join(listed)}"] if names else []
    unread = [text for name in system.techniques for text in getattr(get_technique(name), "not_available", ())]
    parts += [f"not published: {', '.join(unread)}"] if unread else []
    parts += [system.missing] if system.missing else []
    return "; ".join(parts) or NONE


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", type=Path, required=True)
    parser.add_argument("--claims", type=Path, help="output of `densing techniques validate --json`")
    parser.add_argument("--rerun", action="store_true", help="do experiments again, and ship their outcomes")
    given = parser.parse_args()
    if given.rerun:
        validate(again=True)
        ship()
    validated = (
        json.loads(given.claims.read_text())["data"] if given.claims else densing("techniques", "validate", "--json")
    )
    own = {system.name: findings(system, validated) for system in SYSTEMS}
    overview = (
        (system.name, system.paper, system.here, f"`{system.command}`", f"[{Path(system.page).stem}]({system.page})")
        for system in SYSTEMS
    )
    outcome = (
        (
            system.name,
            counted(own[system.name]),
            "; ".join(cell.read() for cell in system.bought) or BOUGHT_TIME,
            not_met(system, own[system.name]),
        )
        for system in SYSTEMS
    )
    listed = [row for system in SYSTEMS for row in own[system.name] if "what" in row]
    single = [row for row in listed if not row.get("series")]
    reasons = (
        (
            str(row["claim"]),
            str(row["what"]),
            str(row["verdict"]),
            f"{shown(row['published'])} ({row['evidence']})",
            shown(row["ours"]),
            null_of(row),
            why(row) or NONE,
            str(row["note"]),
        )
        for row in single
        if row["verdict"] in MISSES
    )
    shared = (
        (
            str(row["claim"]),
            str(row["what"]),
            str(row["setup"]),
            shown(row["published"]),
            shown(row["ours"]),
            null_of(row),
        )
        for row in single
        if row["grade"] == "calibrated on other rows" and row["verdict"] not in MISSES
    )
    grades = grades_listing(validated)
    tables = [
        markdown.table([field.title for field in listing.fields], listing.cells(every=True))
        for listing in series_listings(listed).values()
    ]
    text = "\n\n".join([
        "# The sixteen systems",
        "Written by `python benchmarks/systems.py --page docs/results/systems.md`. Claims are those of "
        "`densing techniques validate`; what a system bought stands in the page named beside it, "
        "with the command that measured it.",
        "## What each is here",
        markdown.table(("system", "paper", "here", "command", "page"), overview),
        "## What came out",
        "Only a prediction can be reproduced; a claim of any other grade agrees or differs "
        "([techniques](../explanation/techniques.md)). "
        "Ratios of tokens and bytes are beside plain training of our own ladders.",
        markdown.table(("system", "claims by grade", "what it bought", "what is not reproduced"), outcome),
        "All claims of `densing techniques validate`; rows about the same published figure count as one figure.",
        markdown.table([field.title for field in grades.fields], grades.cells()),
        "## Every claim that did not come out, and why",
        "*Turns with*: the assumptions of ours that would turn the verdict, each varied alone over the range in its "
        "name; else all that were varied in vain. *Null*: what a model without a simulator says from the same inputs.",
        markdown.table(("claim", "what", "verdict", "published", "ours", "null", "why", "note"), reasons),
        "## Calibrated claims that agree, beside their nulls",
        markdown.table(("claim", "what", "setup", "published", "ours", "null"), shared),
        "## Claims about the same figures",
        "Errors by the way in which ours was made, and of the null models.",
        *tables,
    ])  # fmt: skip
    given.page.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
