"""Stage 6: SmolLM2 over the suite: scores on the device beside a processor's, items a second, and where it may stop."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.gpu.record import Session
from densing.scores.evals import Plan, RunStore, plan_of, run_plan, run_until

MODEL, SUITE = "smollm2-135m", "olmo_ladder"
TOLERANCE = 1e-3
"""Most by which a score may differ between the device and a processor."""
ITEMS, TARGET = 40, 0.2
"""Items a task in the comparison, and the half-width of ln density that ends the last run."""


def run(session: Session) -> None:
    """Evaluate on both, then all of it on the device, then until the interval is narrow enough."""
    device = session.torch_device + session.size("", ":0")
    few = {"limit": session.size(2, ITEMS)}
    both = [
        scores(session, f"{few['limit']} items a task, {where}", each, **few)
        for where, each in (("processor", "cpu"), ("device", device))
    ]
    worst = max(abs(both[0][key] - both[1][key]) for key in both[0])
    session.add("agreement", scores=len(both[0]), worst_difference=worst, tolerance=TOLERANCE)
    if both[0].keys() != both[1].keys() or worst > TOLERANCE:
        raise RuntimeError(f"a score differs by {worst:.2g} between the device and a processor; at most {TOLERANCE:g}")
    if session.dry:
        return
    until(session, device)
    scores(session, "the whole suite", device, batch_size="64")


def plan(session: Session, device: str, **options: Any) -> Plan:
    """Return the model and tasks: in the small size four sums that a task of ours asks a model that guesses."""
    if not session.dry:
        usual = {"models": [MODEL], "tasks": [SUITE], "device": device, "batch_size": "16"}
        return plan_of({**usual, **options}, "stage 6")
    folder = session.work / "sums"
    folder.mkdir(parents=True, exist_ok=True)
    rows = [{"question": f"{n} + 2 =", "choices": [str(n + 2), str(n)], "gold": 0} for n in range(4)]
    (folder / "sums.jsonl").write_text("\n".join(map(json.dumps, rows)))
    task = {
        "task": "sums", "dataset_path": "json", "test_split": "test", "output_type": "multiple_choice",
        "dataset_kwargs": {"data_files": {"test": str((folder / "sums.jsonl").absolute())}},
        "doc_to_text": "{{question}}", "doc_to_choice": "choices", "doc_to_target": "gold",
    }  # fmt: skip
    (folder / "sums.yaml").write_text(json.dumps(task))
    asked = {"models": ["dummy"], "tasks": ["sums"], "include_path": str(folder), "device": device, **options}
    return plan_of(asked, "stage 6")


def scores(session: Session, what: str, device: str, **options: Any) -> dict[tuple[str, str], float]:
    """Evaluate, keep the pace and return every score."""
    folder = session.work / "evaluation" / what.replace(" ", "-").replace(",", "").replace(":", "")
    done = run_plan(plan(session, device, **options), folder)
    session.add("pace", what=what, device=device, requests=done.requests, seconds=done.seconds,
                requests_per_s=done.requests / done.seconds)  # fmt: skip
    if done.failed:
        raise RuntimeError(f"{len(done.failed)} of {len(done.units)} tasks failed: {done.failed[0].error}")
    table = RunStore(Path(folder)).measurements()
    return {(row.task, row.metric): float(row.value) for row in table.itertuples()}


def until(session: Session, device: str) -> None:
    """Evaluate items in random order until ln density is known to the target."""
    from densing.scores.density import rule_for

    [found] = run_until(
        plan(session, device), session.work / "evaluation" / "until",
        lambda benchmarks, sizes: rule_for("olmo-ladder", benchmarks, sizes, target=TARGET),
    )  # fmt: skip
    reached = {name: getattr(found.look, name, None) for name in ("half_width", "met", "reason")}
    session.add(
        "until the interval is narrow", items=found.items, full=found.full, seconds=found.seconds,
        spared_s=found.spared, **reached,
    )  # fmt: skip
