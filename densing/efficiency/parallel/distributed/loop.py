"""The loop of every real run: batches, steps, clock, trace, checkpoints and record; what it trains is a Trainee."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist

from densing.core import InputError
from densing.efficiency.parallel.distributed.checkpoint import Checkpoints
from densing.efficiency.parallel.distributed.clock import Clock
from densing.efficiency.parallel.distributed.folder import write_json
from densing.efficiency.parallel.distributed.progress import tell
from densing.efficiency.parallel.distributed.spec import RunEnv, RunRecord, RunSpec
from densing.efficiency.parallel.distributed.text import Bytes, batches, digest, held_out_batches, load_bytes
from densing.efficiency.traces import SUFFIX, record


class Trainee(Protocol):
    """A model under training on one rank, with its optimizer and its way of communicating.

    Attributes
    ----------
    data_rank : int
        Which stream of batches this rank reads, from 0; equal on all ranks of a tensor-parallel group.
    data_ranks : int
        How many different streams there are.
    parameters : int
        Of the whole model, not of a shard.
    stand_in : str
        Empty, or what the run is instead of the technique itself.
    """

    data_rank: int
    data_ranks: int
    parameters: int
    stand_in: str

    def step(self, batch: torch.Tensor) -> float:
        """Forward, backward, communication and update on int64 tokens (batch, sequence + 1); return the loss.

        The loss is this rank's own, nats per token; the loop averages over ranks at the end. ``batch[:, :-1]`` goes
        in, ``batch[:, 1:]`` is predicted.
        """

    def finish(self) -> None:
        """Wait for all that is under way and put all ranks on one averaged model; called once, after the last step."""

    def evaluate(self, batches: Iterable[torch.Tensor]) -> float:
        """Return the mean loss, in nats per token, without a gradient; the same batches go to every rank."""

    def state_dict(self) -> dict[str, Any]:
        """Return tensors and plain values (lists, dicts, numbers, texts): model, optimizer, what is under way."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue bit by bit where ``state_dict`` was taken."""

    def figures(self) -> Mapping[str, float]:
        """Return figures of the technique, for ``RunRecord.extra``."""


def run(env: RunEnv, build: Callable[[Clock], Trainee]) -> RunRecord:
    """Train ``env.spec.steps`` steps on this rank, from the newest checkpoint of all ranks if there is one.

    ``OUT/corpus.json`` says by its hash which text was read. Checkpoints and traces are written outside the clock.

    Parameters
    ----------
    env : RunEnv
    build : callable
        Makes what is trained. It gets the clock, to mark its waits: ``with clock.waiting(): handle.wait()``.

    Returns
    -------
    RunRecord

    Raises
    ------
    InputError
        When text, sequence or checkpoint do not fit, or the loss is no longer finite.
    """
    train, held_out = load_bytes(env.spec.corpus)
    clock = Clock()
    trainee = build(clock)
    journey = _Journey(env, trainee, clock)
    journey.resume()
    if env.rank == 0:
        _note_corpus(env.spec, digest(train, held_out), len(train), len(held_out))
    journey.train(train)
    drain_s = journey.finish()
    final = trainee.evaluate(
        torch.from_numpy(rows) for rows in held_out_batches(held_out, env.spec.batch, env.spec.sequence)
    )
    return RunRecord(
        technique=env.spec.technique,
        rank=env.rank,
        world_size=env.world_size,
        losses=_mean_over_ranks(journey.losses),
        step_s=tuple(clock.step_s),
        wait_s=tuple(clock.wait_s),
        tokens=env.spec.batch * env.spec.sequence * trainee.data_ranks,
        final_loss=final,
        parameters=trainee.parameters,
        resumed_from=journey.resumed_from,
        stand_in=trainee.stand_in,
        extra={"drain_s": drain_s, **trainee.figures()},
    )


class _Journey:
    """A run on its way: what has been lost so far, and what a checkpoint of it holds."""

    def __init__(self, env: RunEnv, trainee: Trainee, clock: Clock) -> None:
        self.env, self.trainee, self.clock = env, trainee, clock
        self.checkpoints = Checkpoints(env)
        self.losses: list[float] = []
        self.resumed_from = -1

    def resume(self) -> None:
        """Go back to where all ranks have been."""
        step = _agreed(self.checkpoints.newest())
        if step < 0:
            return
        if step > self.env.spec.steps:
            raise InputError(
                f"{self.checkpoints.out / 'checkpoints'}: is at step {step} already; ask for more than {step} steps"
            )
        state = self.checkpoints.load(step)
        self.trainee.load_state_dict(state["trainee"])
        self.clock.load_state_dict(state["clock"])
        self.losses, self.resumed_from = list(state["losses"]), step
        torch.set_rng_state(state["random"])

    def train(self, text: Bytes) -> None:
        """Take the steps that are left."""
        spec, begun = self.env.spec, len(self.losses)
        if begun == spec.steps:
            return
        with _recorder(self.env, spec.steps - begun) as recorded:
            if _grouped():
                # Ranks are built at different speeds; the first step must not wait for that.
                dist.barrier()
            self.clock.start()
            for step in range(begun, spec.steps):
                rows = batches(text, spec.batch, spec.sequence, spec.seed, self.trainee.data_rank, step)
                loss = self.trainee.step(torch.from_numpy(rows))
                self.losses.append(_finite(loss, step))
                self.clock.step()
                with self.clock.paused():
                    recorded()
                    self._save(step + 1)
                    tell(spec.out, self.env.rank, step + 1)

    def _save(self, done: int) -> None:
        every = self.env.spec.checkpoint_every
        if every < 1 or done % every:
            return
        state = {"trainee": self.trainee.state_dict(), "clock": self.clock.state_dict(), "losses": self.losses}
        self.checkpoints.save(done, {**state, "random": torch.get_rng_state()})

    def finish(self) -> float:
        """End what is under way; return the seconds it took."""
        began = time.perf_counter()
        self.trainee.finish()
        return time.perf_counter() - began


@contextmanager
def _recorder(env: RunEnv, left: int) -> Iterator[Callable[[], None]]:
    """Record the last steps, the one before them as a warm-up."""
    active = min(env.spec.trace_steps, max(left - 1, 1))
    if active < 1:
        yield lambda: None
        return
    folder = Path(env.spec.out) / "traces"
    # This run was cut off after it had written its trace: what it repeats now is recorded again.
    (folder / f"rank{env.rank:05d}{SUFFIX}").unlink(missing_ok=True)
    warmup = min(1, left - active)
    with warnings.catch_warnings():
        # A run of a single step has none to warm up with, and torch would say so.
        warnings.filterwarnings("ignore", "Profiler won't be using warmup")
        recorder = record(folder, wait=left - active - warmup, warmup=warmup, active=active).start()
    with ExitStack() as stack:
        stack.push(recorder)
        yield recorder


def _finite(loss: float, step: int) -> float:
    if not math.isfinite(loss):
        raise InputError(f"step {step}: the loss is {loss}; lower the learning rate (--lr) or the outer one")
    return loss


def _grouped() -> bool:
    return dist.is_available() and dist.is_initialized()


def _agreed(step: int) -> int:
    """Return rank 0's view of the newest checkpoint: all must go on from the same one."""
    if not _grouped():
        return step
    view = torch.tensor([step])
    dist.broadcast(view, 0)
    return int(view)


def _mean_over_ranks(losses: list[float]) -> tuple[float, ...]:
    """Average each step's loss over the ranks; the same on all of them, to the last bit."""
    if not _grouped():
        return tuple(losses)
    mine = torch.tensor(losses, dtype=torch.float64)
    every = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(every, mine)
    return tuple(torch.stack(every).mean(0).tolist())


def _note_corpus(spec: RunSpec, sha256: str, train: int, held_out: int) -> None:
    source = spec.corpus or "documentation of the Python installation"
    about = {"corpus": source, "sha256": sha256, "train_bytes": train, "held_out_bytes": held_out}
    write_json(Path(spec.out) / "corpus.json", about)
