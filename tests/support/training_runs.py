"""Runs small enough for tests, and a process that is killed while it trains them."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
from pathlib import Path
from typing import Any

from densing.scores.ladder.corpus import Generated
from densing.scores.ladder.runs import Run, Shape, get_preset


def micro_run(seed: int = 0, steps: tuple[int, ...] = (20, 40), name: str = "d8") -> Run:
    """Return a run of a second: batches of two blocks of 16 tokens, a checkpoint every 7 steps."""
    preset = dataclasses.replace(get_preset("tiny"), block=16, warmup=5, checkpoint=7, decay=0.5)
    shape = Shape(name, 8, 1, 2, 1, 4, 20, 2, steps)
    return Run(preset, shape, seed, Generated(), steps)


def save_model(folder: Path, tokenizer: Any = None, vocabulary: int = Generated().vocabulary) -> Path:
    """Write an untrained model of two layers, 12 wide, with the generated corpus's tokenizer."""
    from densing.scores.ladder.trainer import build_model

    model = build_model(get_preset("tiny").shapes[1], vocabulary, 16, seed=5)
    model.save_pretrained(folder)
    (tokenizer or Generated().tokenizer()).save_pretrained(folder)
    return folder


def killed_at(moments: list[int], folder: Path) -> int:
    """Train the micro run, killing the process at each moment (steps since its start); return all steps taken."""
    from densing.scores.ladder import trainer, workers

    trainer.REPORT_STEPS = 1
    log = folder / "steps.log"
    for moment in [*moments, None]:
        child = os.fork()
        if child == 0:
            seen = 0

            def report(_: int, limit: int | None = moment) -> None:
                nonlocal seen
                seen += 1
                with log.open("a") as stream:
                    stream.write("x")
                if limit is not None and seen >= limit:
                    os.kill(os.getpid(), signal.SIGKILL)

            workers.train_run(micro_run(), folder, report=report)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if moment is None and status:
            raise SystemExit(f"the last process ended with {status}")
    return len(log.read_text())


if __name__ == "__main__":
    import torch

    from densing.scores.ladder.trainer import build_model

    torch.set_num_threads(1)
    # Imported once, before the forks.
    build_model(micro_run().shape, 11, 16, 0)
    place = Path(sys.argv[1])
    place.mkdir(parents=True)
    sys.stdout.write(str(killed_at([int(moment) for moment in sys.argv[2:]], place)) + "\n")
