"""One model of a plan in a process: ``python -m densing.scores.evals.worker RUN_FOLDER --plan FILE --model INDEX``.

It evaluates the units that have no result yet, writes what became of them beside the plan and ends; started again
after a crash, it goes on where it was. Exit code 0: all done; 64: a unit failed and would fail again.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from densing.core import DensingError
from densing.scores.evals.plan import Plan

SECRETS = "DENSING_SECRET_MODEL_ARGS"
"""Environment variable with the credentials among a model's arguments, as JSON; a plan file never holds them."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one model of a plan and return the exit code."""
    parser = argparse.ArgumentParser(prog="densing.scores.evals.worker", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--model", type=int, required=True)
    parser.add_argument("--device")
    for flag in ("--trust_remote_code", "--confirm_run_unsafe_code"):
        parser.add_argument(flag, action="store_true")
    asked = parser.parse_args(argv)
    try:
        return _run(asked)
    except DensingError as error:
        sys.stderr.write(f"error: {error}\n")
        return _no_retry()


def _run(asked: argparse.Namespace) -> int:
    from densing.scores.evals.planfile import plan_of, read_plan
    from densing.scores.evals.runner import run_model

    flags = {name: getattr(asked, name) for name in ("trust_remote_code", "confirm_run_unsafe_code")}
    plan = with_secrets(plan_of(read_plan(asked.plan), str(asked.plan), **flags), asked.model)
    summary = run_model(plan, asked.model, asked.folder, device=asked.device)
    outcome_file(asked.plan, asked.model).write_text(json.dumps(summary.to_dict()), encoding="utf-8")
    for unit in summary.failed:
        sys.stderr.write(f"error: {unit.model}, {unit.task}: {unit.error}\n")
    return _no_retry() if summary.failed else 0


def _no_retry() -> int:
    from densing.jobs import NO_RETRY

    return NO_RETRY


def outcome_file(plan: Path, index: int) -> Path:
    """Return where a worker says what became of its units."""
    return plan.with_name(f"{plan.stem}-{index}.outcome.json")


def with_secrets(plan: Plan, index: int) -> Plan:
    """Return the plan with the credentials that the environment holds for one model."""
    given = os.environ.get(SECRETS)
    if not given:
        return plan
    models = list(plan.models)
    models[index] = dataclasses.replace(models[index], args={**models[index].args, **json.loads(given)})
    return dataclasses.replace(plan, models=tuple(models))


if __name__ == "__main__":
    raise SystemExit(main())
