"""A process that imports lm-eval once and forks the runs a test wants to kill: ``python evals_drill.py FOLDER``.

Commands are lines of JSON on standard input: ``{"store", "how": "runner" | "worker-0" | ..., "kill_at": rows or null,
"wait": seconds, "processes": n}``. The process is killed so many seconds after so many rows have gone through a model
of this store. Each answer is one line: exit codes, seconds, and those rows.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

FOLDER = Path(sys.argv[1])
BATCH = 4
PAUSE = 0.02
# Everything a run would import, so that forks only work.
IMPORTS = (
    "lm_eval.evaluator",
    "lm_eval.loggers",
    "lm_eval.models.huggingface",
    "transformers.core_model_loading",
    "transformers.models.llama.modeling_llama",
    "transformers.models.gpt_neox.modeling_gpt_neox",
    "transformers.models.auto.tokenization_auto",
    "datasets.packaged_modules.json.json",
    "pyarrow.parquet",
    "densing.scores.evals.runner",
    "densing.scores.evals.harness",
    "densing.scores.evals.items",
    "densing.scores.evals.plan",
)


def plan() -> Any:
    from densing.scores.evals.plan import Loading, ModelSpec, Plan, TaskSpec
    from tests.support.evals_toys import TASKS

    models = tuple(ModelSpec.of("hf", {"pretrained": str(FOLDER / name)}) for name in ("toy-llama", "toy-neox"))
    tasks = tuple(
        TaskSpec(name, {"gen_kwargs": {"do_sample": True, "temperature": 0.8}} if name == "toy_text" else {})
        for name in TASKS
    )
    return Plan(models, tasks, loading=Loading(str(BATCH), device="cpu"), include_path=(str(FOLDER / "tasks"),))


def count_rows(store: Path) -> None:
    """Write one byte per row that a model is about to compute, and take a little longer over it."""
    from lm_eval.models.huggingface import HFLM

    handle = os.open(store.with_suffix(".rows"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    call, generate = HFLM._model_call, HFLM._model_generate

    def counted_call(self: Any, inps: Any, **kwargs: Any) -> Any:
        os.write(handle, b"." * len(inps))
        time.sleep(PAUSE)
        return call(self, inps, **kwargs)

    def counted_generate(self: Any, context: Any, **kwargs: Any) -> Any:
        os.write(handle, b"." * len(context))
        time.sleep(PAUSE)
        return generate(self, context, **kwargs)

    HFLM._model_call, HFLM._model_generate = counted_call, counted_generate


def run(store: Path, how: str) -> int:
    count_rows(store)
    if how == "runner":
        from densing.scores.evals.runner import run_plan

        return len(run_plan(plan(), store).failed)
    from densing.scores.evals.runner import main

    place = FOLDER / "plan.json"
    return main([str(store), "--plan", str(place), "--model", how.partition("-")[2]])


def fork(store: Path, how: str) -> int:
    child = os.fork()
    if child:
        return child
    code = 99
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = run(store, how)
    finally:
        os._exit(code)


def rows_of(store: Path) -> int:
    counter = store.with_suffix(".rows")
    return counter.stat().st_size if counter.exists() else 0


def do(store: Path, how: str, kill_at: int | None, wait: float, processes: int) -> dict[str, Any]:
    started = time.monotonic()
    children = [fork(store, how) for _ in range(processes)]
    codes = []
    for child in children:
        ended, status = 0, 0
        while not ended and (kill_at is None or rows_of(store) < kill_at):
            ended, status = os.waitpid(child, os.WNOHANG)
            time.sleep(0.001)
        if not ended:
            time.sleep(wait)
            os.kill(child, signal.SIGKILL)
            ended, status = os.waitpid(child, 0)
        codes.append(os.waitstatus_to_exitcode(status))
    return {"codes": codes, "seconds": time.monotonic() - started, "rows": rows_of(store)}


def main() -> None:
    for name in IMPORTS:
        importlib.import_module(name)
    import torch
    from torch.utils import collect_env

    torch.set_num_threads(1)
    # What the machine is like takes seconds to find out, and is not what is drilled.
    collect_env.get_pretty_env_info = lambda: "a drill"
    (FOLDER / "plan.json").write_text(json.dumps(plan().to_dict()), encoding="utf-8")
    print("ready", flush=True)  # noqa: T201
    for line in sys.stdin:
        asked = json.loads(line)
        done = do(Path(asked["store"]), asked["how"], asked["kill_at"], asked["wait"], asked["processes"])
        print(json.dumps(done), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
