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
from densing.scores.evals.plan import CODE_FLAGS, Plan, plan_of, read_plan
from densing.scores.evals.runner import SECRETS, WORKER, outcome_file, run_model


def main(argv: Sequence[str] | None = None) -> int:
    """Run one model of a plan and return the exit code."""
    from densing.jobs import NO_RETRY

    parser = argparse.ArgumentParser(prog=WORKER, description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--model", type=int, required=True)
    parser.add_argument("--device")
    for flag in CODE_FLAGS:
        parser.add_argument(f"--{flag}", action="store_true")
    options = parser.parse_args(argv)
    try:
        flags = {name: getattr(options, name) for name in CODE_FLAGS}
        plan = with_secrets(plan_of(read_plan(options.plan), str(options.plan), **flags), options.model)
        summary = run_model(plan, options.model, options.folder, device=options.device)
    except DensingError as error:
        sys.stderr.write(f"error: {error}\n")
        return NO_RETRY
    outcome_file(options.plan, options.model).write_text(json.dumps(summary.to_dict()), encoding="utf-8")
    for unit in summary.failed:
        sys.stderr.write(f"error: {unit.model}, {unit.task}: {unit.error}\n")
    return NO_RETRY if summary.failed else 0


def with_secrets(plan: Plan, index: int) -> Plan:
    """Return the plan with the credentials that the environment holds for one model."""
    secrets = os.environ.get(SECRETS)
    if not secrets:
        return plan
    models = list(plan.models)
    models[index] = dataclasses.replace(models[index], args={**models[index].args, **json.loads(secrets)})
    return dataclasses.replace(plan, models=tuple(models))


if __name__ == "__main__":
    raise SystemExit(main())
