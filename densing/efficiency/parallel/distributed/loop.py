"""The loop of every real run: batches, steps, clock, trace, checkpoints and record; what it trains is a Trainee.

Of the checkpoints of several ranks a step counts once every rank's file is there.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist

from densing.core import ArtefactError, InputError, replacing
from densing.efficiency.parallel.distributed import folder
from densing.efficiency.parallel.distributed.lm import Bytes, batches, digest, held_out_batches, load_bytes
from densing.efficiency.parallel.distributed.spec import RunEnv, RunRecord, first_difference, identity
from densing.efficiency.timeline import MARK
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

    It may also have ``parts``: :class:`~densing.efficiency.parallel.distributed.lm.Parts` of the text, of which
    ``data_rank`` reads one; then the loss at the end is on text of these parts, too. And it may be ``alone``: the only
    rank with something to train, which agrees with no other one on where to begin, and on what it lost.
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
        """Wait for pending operations and give all ranks one averaged model; called once, after the last step."""

    def evaluate(self, batches: Iterable[torch.Tensor]) -> float:
        """Return the mean loss, in nats per token, without a gradient; the same batches go to every rank."""

    def state_dict(self) -> dict[str, Any]:
        """Return tensors and plain values (lists, dicts, numbers, texts): model, optimizer, what is under way."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of ``state_dict`` bit for bit."""

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
    training = _Training(env, trainee, clock)
    parts = getattr(trainee, "parts", None)
    if parts is not None:
        parts.check(train, env.spec.sequence)
    training.resume()
    if env.rank == 0:
        about = {
            "corpus": env.spec.corpus or "documentation of the Python installation",
            "sha256": digest(train, held_out),
            "train_bytes": len(train),
            "held_out_bytes": len(held_out),
        }
        folder.write_json(Path(env.spec.out) / "corpus.json", about)
    training.train(train)
    drain_s = training.finish()
    texts = [held_out] if parts is None else [parts.of(train, client)[1] for client in parts.home]
    final = trainee.evaluate(
        torch.from_numpy(rows) for text in texts for rows in held_out_batches(text, env.spec.batch, env.spec.sequence)
    )
    return RunRecord(
        technique=env.spec.technique,
        rank=env.rank,
        world_size=env.world_size,
        losses=tuple(training.losses) if training.alone else _mean_over_ranks(training.losses),
        step_s=tuple(clock.step_s),
        wait_s=tuple(clock.wait_s),
        tokens=env.spec.batch * env.spec.sequence * trainee.data_ranks,
        final_loss=final,
        parameters=trainee.parameters,
        resumed_from=training.resumed_from,
        stand_in=trainee.stand_in,
        extra={"drain_s": drain_s, **trainee.figures()},
    )


class Clock:
    """Seconds of every step of one rank, and the part in which its thread waited for communication.

    On a device ``handle.wait()`` only orders streams, the thread goes on: there the recorded trace tells the exposed
    communication, and ``wait_s`` stays near 0.

    Parameters
    ----------
    now : callable
        Seconds; for tests.

    Attributes
    ----------
    step_s, wait_s : list of float
        Seconds per finished step, and what of them was waiting.

    Examples
    --------
    >>> ticks = iter([0.0, 1.0, 3.0, 4.0, 9.0, 9.5])
    >>> clock = Clock(now=lambda: next(ticks))
    >>> clock.start()
    >>> with clock.waiting():
    ...     pass
    >>> clock.step()
    >>> with clock.paused():
    ...     pass
    >>> clock.step_s, clock.wait_s
    ([4.0], [2.0])
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.step_s: list[float] = []
        self.wait_s: list[float] = []
        self._now, self._began, self._waited, self._depth = now, 0.0, 0.0, 0

    def start(self) -> None:
        """Begin the first step."""
        self._began, self._waited = self._now(), 0.0

    def step(self) -> None:
        """End a step and begin the next one."""
        now = self._now()
        self.step_s.append(now - self._began)
        self.wait_s.append(self._waited)
        self._began, self._waited = now, 0.0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the block as waiting for communication; a wait inside a wait counts once.

        While a profiler records, the block is marked in the trace as ``densing::wait``.
        """
        # Waits on an emulated link are none of gloo's, and nobody else marks them.
        recording = torch.autograd._profiler_enabled()
        self._depth += 1
        began = self._now() if self._depth == 1 else 0.0
        try:
            with torch.profiler.record_function(MARK) if recording else nullcontext():
                yield
        finally:
            self._depth -= 1
            if not self._depth:
                self._waited += self._now() - began

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Exclude the block from the step: checkpoints and traces are not part of training."""
        began = self._now()
        try:
            yield
        finally:
            self._began += self._now() - began

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs."""
        return {"step_s": list(self.step_s), "wait_s": list(self.wait_s)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue after a checkpoint."""
        self.step_s, self.wait_s = list(state["step_s"]), list(state["wait_s"])


class Checkpoints:
    """The checkpoints of one rank, under ``OUT/checkpoints/step00000016/rank00000.pt``; ``OUT`` is shared by all ranks.

    Parameters
    ----------
    env : RunEnv
    ranks : int, optional
        That write any, from 0 on; by default all.
    """

    def __init__(self, env: RunEnv, ranks: int | None = None) -> None:
        self.env, self.out = env, Path(env.spec.out)
        self.ranks = env.world_size if ranks is None else ranks

    def save(self, step: int, state: Mapping[str, Any]) -> None:
        """Write this rank's state after ``step`` steps atomically, and delete its older ones that nobody needs.

        Raises
        ------
        InputError
            When the place cannot be written to, or the disk is full.
        """
        spec, world_size = identity(self.env.spec), self.env.world_size
        checkpoint = {"spec": spec, "world_size": world_size, "step": step, "state": state}
        # Into a file of Python's: torch's own writer does not say why it could not write.
        with replacing(self._file(step)) as temporary, temporary.open("wb") as stream:
            try:
                torch.save(checkpoint, stream)
            except RuntimeError as error:
                # On its way out it fails again, for want of what could not be written.
                if isinstance(error.__context__, OSError):
                    raise error.__context__ from None
                raise
        # Own files before the newest complete step are not needed; a later step is never complete before it.
        newest = self.newest()
        for older in (step for step in folder.checkpoint_steps(self.out) if step < newest):
            self._file(older).unlink(missing_ok=True)
            # Where another rank's file is still there, that rank removes the folder.
            with suppress(OSError):
                self._file(older).parent.rmdir()

    def newest(self) -> int:
        """Return the newest step that each of these ranks has written; -1 if there is none."""
        return folder.newest_checkpoint(self.out, self.ranks)

    def load(self, step: int) -> dict[str, Any]:
        """Return this rank's state after ``step`` steps.

        Raises
        ------
        ArtefactError
            When the file is damaged.
        InputError
            When another run wrote it.
        """
        path = self._file(step)
        try:
            # Tensors and plain values only: a checkpoint is data, never code.
            checkpoint = torch.load(path, map_location="cpu", weights_only=True)
            stored, world_size, state = checkpoint["spec"], checkpoint["world_size"], dict(checkpoint["state"])
        except Exception as error:
            raise ArtefactError(
                f"{path}: damaged checkpoint ({type(error).__name__}); delete {path.parent.name} and start again"
            ) from error
        stored = {**stored, "world_size": world_size}
        own = {**identity(self.env.spec), "world_size": self.env.world_size}
        field = first_difference(stored, own)
        if field is not None:
            raise InputError(
                f"{path}: written with {field}={stored.get(field)!r}, but this run has {own[field]!r}; resume with the "
                "same options, or choose another --out"
            )
        return state

    def _file(self, step: int) -> Path:
        return folder.checkpoint_file(self.out, step, self.env.rank)


class _Training:
    """A run in progress: its losses so far, and the content of its checkpoints."""

    def __init__(self, env: RunEnv, trainee: Trainee, clock: Clock) -> None:
        self.env, self.trainee, self.clock = env, trainee, clock
        self.alone = bool(getattr(trainee, "alone", not _grouped()))
        self.checkpoints = Checkpoints(env, 1 if self.alone else None)
        self.losses: list[float] = []
        self.resumed_from = -1

    def resume(self) -> None:
        """Resume from the newest checkpoint of all ranks."""
        step = self.checkpoints.newest()
        if not self.alone:
            # Rank 0's view: all must go on from the same one.
            view = torch.tensor([step])
            dist.broadcast(view, 0)
            step = int(view)
        if step < 0:
            return
        if step > self.env.spec.steps:
            raise InputError(
                f"{self.checkpoints.out / 'checkpoints'}: is already at step {step}; request more than {step} steps"
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
        parts = getattr(self.trainee, "parts", None)
        with recorded(self.env, spec.steps - begun) as tick:
            if not self.alone:
                # Ranks are built at different speeds; the first step must not wait for that.
                dist.barrier()
            self.clock.start()
            for step in range(begun, spec.steps):
                client = self.trainee.data_rank
                own = text if parts is None else parts.of(text, client)[0]
                rows = batches(own, spec.batch, spec.sequence, spec.seed, client, step)
                loss = self.trainee.step(torch.from_numpy(rows))
                if not math.isfinite(loss):
                    raise InputError(
                        f"step {step}: the loss is {loss}; lower the learning rate (--lr) or the outer learning rate"
                    )
                self.losses.append(loss)
                self.clock.step()
                with self.clock.paused():
                    tick()
                    if spec.checkpoint_every >= 1 and (step + 1) % spec.checkpoint_every == 0:
                        self.checkpoints.save(step + 1, self.state())
                    folder.write_progress(spec.out, self.env.rank, step + 1)

    def state(self) -> dict[str, Any]:
        """Return the state that the next step depends on."""
        return {
            "trainee": self.trainee.state_dict(),
            "clock": self.clock.state_dict(),
            "losses": self.losses,
            "random": torch.get_rng_state(),
        }

    def finish(self) -> float:
        """Complete pending operations; return the seconds this took."""
        began = time.perf_counter()
        self.trainee.finish()
        return time.perf_counter() - began


@contextmanager
def recorded(env: RunEnv, steps_left: int) -> Iterator[Callable[[], None]]:
    """Record the last steps, the one before them as a warm-up; what is given is to be called after every step."""
    active = min(env.spec.trace_steps, max(steps_left - 1, 1))
    if active < 1:
        yield lambda: None
        return
    traces = Path(env.spec.out) / "traces"
    # This run was cut off after it had written its trace: what it repeats now is recorded again.
    (traces / f"rank{env.rank:05d}{SUFFIX}").unlink(missing_ok=True)
    warmup = min(1, steps_left - active)
    # The first profiler of a process takes seconds to start; no step, and nobody who waits for one, is to have them.
    if not torch.autograd._profiler_enabled():
        with torch.profiler.profile():
            pass
    with warnings.catch_warnings():
        # A run of a single step has none to warm up with, and torch would say so.
        warnings.filterwarnings("ignore", "Profiler won't be using warmup")
        recorder = record(traces, wait=steps_left - active - warmup, warmup=warmup, active=active).start()
    with ExitStack() as stack:
        stack.push(recorder)
        yield recorder


def _grouped() -> bool:
    return dist.is_available() and dist.is_initialized()


def _mean_over_ranks(losses: list[float]) -> tuple[float, ...]:
    """Average each step's loss over the ranks; the same on all of them, to the last bit."""
    mine = torch.tensor(losses, dtype=torch.float64)
    every = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(every, mine)
    return tuple(torch.stack(every).mean(0).tolist())
