"""Train with a server and its workers: rank 0 holds the optimizer, the others compute pieces of the gradient."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from densing.core import InputError, UnknownNameError
from densing.efficiency.parallel import (
    INJECTED,
    WARMUP_STEPS,
    Checkpoints,
    Clock,
    LostRanksError,
    RunEnv,
    RunRecord,
    folder,
    inverse_sqrt_factor,
    recorded,
    run,
)
from densing.efficiency.simulation import parse_delay
from densing.efficiency.systems.stragglers.messages import GONE, NOTHING, STOP, Mail, Message
from densing.efficiency.systems.stragglers.problems import PROBLEMS, LanguageModel, LeastSquares, Problem, weighted_sum
from densing.efficiency.systems.stragglers.schemes import Scheme

ARRIVALS = "arrivals.json"
"""File in a run's folder that records when each message arrived."""
SERVER = 0


def train_with_server(
    env: RunEnv, scheme_of: Callable[[int], Scheme], *, problem: str = "lm", stand_in: str = ""
) -> RunRecord:
    """Train on this rank: rank 0 is the server, every other one a worker.

    In each step the server sends the weights; workers compute their tasks one after the other and send sums of what
    they have, as the scheme says; once what has come suffices, the server takes a step of the optimizer, and what is
    left of the workers' tasks is given up. A task takes its computation and a delay, slept before it: the one that
    ``env.spec.delay`` draws for worker, step and task, as a plan of the run does.

    A partition is one worker's batch in a data-parallel run of as many workers: exact schemes have that run's
    gradients, up to rounding; uncoded messages, added up in the order of their partitions, those of one process to the
    bit. A worker that dies is one that never sends. Checkpoints hold the server's state; workers have none.

    Parameters
    ----------
    env : RunEnv
    scheme_of : callable
        Gives the scheme of so many workers.
    problem : {"lm", "least-squares"}
        What is trained: see :mod:`densing.efficiency.systems.stragglers.problems`.
    stand_in : str
        What the run is instead of the technique itself.

    Returns
    -------
    RunRecord
        ``extra`` of the server, per step: ``messages`` that came in time, ``late_messages``, ``message_bytes`` and
        ``weight_bytes`` received and sent, ``computed`` tasks; ``condition``, of the decoding; ``died_rank2``: the step
        in which that rank was gone. Of workers ``delay_s``, slept per step. ``OUT/arrivals.json`` has every message.

    Raises
    ------
    InputError
        On all ranks: without a worker, on a device, for a scheme that encodes data and a loss that is not quadratic,
        or where decoding is conditioned too badly.
    LostRanksError
        When those that are left cannot suffice.
    """
    spec = env.spec
    if env.world_size < 2:
        raise InputError("nproc=1: a server needs at least one worker; give 2 or more")
    if spec.device != "cpu":
        raise InputError(f"device {spec.device}: a server and its workers communicate by gloo, on CPUs only")
    if problem not in PROBLEMS:
        raise UnknownNameError("problem", problem, PROBLEMS)
    scheme = scheme_of(env.world_size - 1)
    if scheme.encoding is not None and problem != "least-squares":
        raise InputError(
            f"{scheme.name}: encoded data need a gradient of degree 2, as least squares has; the "
            "language model's loss has none, so choose another technique for it"
        )
    scheme.check_condition(condition := scheme.condition())
    worker = env.rank != SERVER
    task: Problem = LeastSquares(spec, worker, scheme) if problem == "least-squares" else LanguageModel(spec, worker)
    if not worker:
        return run(env, lambda clock: Server(env, clock, scheme, task, condition, stand_in))
    return Worker(env, scheme, task, stand_in).work()


class Server:
    """Weights and optimizer; see :class:`densing.efficiency.parallel.distributed.loop.Trainee`."""

    data_rank = 0
    alone = True

    def __init__(
        self, env: RunEnv, clock: Clock, scheme: Scheme, problem: Problem, condition: float, stand_in: str
    ) -> None:
        self.env, self.scheme, self.problem = env, scheme, problem
        self.clock, self.condition = clock, condition
        self.data_ranks, self.stand_in = scheme.workers, stand_in
        self.optimizer = torch.optim.AdamW(problem.module.parameters(), lr=env.spec.lr)
        self.parameters = sum(weight.numel() for weight in problem.module.parameters())
        self.mail = Mail(range(1, env.world_size), problem.dtype)
        self.taken = self.begun = self.late = self.computed = 0
        self.died: dict[int, int] = {}
        self.arrivals: list[list[tuple[int, float]]] = []

    def step(self, batch: Tensor) -> float:
        """Take one step; the workers have batches of their own. Return the loss, mean over partitions."""
        if self.taken == self.begun:
            # Workers are built at different speeds; the first step must not wait for that.
            with self.clock.paused():
                for _ in range(self.scheme.workers):
                    self._count(self.mail.get())
        weights, began = self.problem.read(), time.perf_counter()
        for rank in range(1, self.env.world_size):
            if rank not in self.died:
                # Weights that a slow link has not begun to carry are old by now.
                self.mail.post(Message(rank, self.taken, tensor=weights), instead=True)
        messages: dict[int, Tensor] = {}
        self.arrivals.append([])
        while not self.scheme.satisfied(messages):
            self._check_living(messages)
            message = self._read()
            if message.step == self.taken and message.tensor is not None:
                messages[message.number] = message.tensor
                self.arrivals[-1].append((message.number, time.perf_counter() - began))
        weights_of = self.scheme.weights(list(messages))
        total = weighted_sum((weight, messages[message]) for message, weight in weights_of.items())
        total /= self.scheme.partitions
        for group in self.optimizer.param_groups:
            group["lr"] = self.env.spec.lr * inverse_sqrt_factor(self.taken, WARMUP_STEPS)
        self.problem.write_gradient(total[:-1])
        self.optimizer.step()
        self.taken += 1
        return float(total[-1])

    def _read(self) -> Message:
        """Wait for a message, and count what it tells."""
        with self.clock.waiting():
            message = self.mail.get()
        self._count(message)
        return message

    def _count(self, message: Message) -> None:
        if message.step == GONE:
            self.died.setdefault(message.peer, self.taken)
        elif message.number == NOTHING:
            self.computed += int(message.value)
        elif message.step != self.taken:
            self.late += 1

    def _check_living(self, messages: Mapping[int, Tensor]) -> None:
        """Refuse to wait for the dead."""
        if not self.died:
            return
        possible = {at for at, (worker, _) in enumerate(self.scheme.messages) if worker + 1 not in self.died}
        if self.scheme.lacking(possible.union(messages)):
            dead = ", ".join(f"rank {rank} (worker {rank - 1})" for rank in sorted(self.died))
            alive = self.scheme.workers - len(self.died)
            raise LostRanksError(
                f"{dead} died or fell silent, and the messages of the other {alive} of {self.scheme.workers} workers "
                f"do not suffice for {self.scheme.name} (step {self.taken})"
            )

    def finish(self) -> None:
        """Send the workers home, and wait until they have gone."""
        for rank in range(1, self.env.world_size):
            if rank not in self.died:
                self.mail.post(Message(rank, STOP), instead=True)
        self.mail.close()
        while (message := self.mail.within(0.0)) is not None:
            self._count(message)
        steps = [[[at, round(seconds, 6)] for at, seconds in each] for each in self.arrivals]
        about = {
            "scheme": self.scheme.name,
            "delay": self.env.spec.delay,
            "messages": [list(message) for message in self.scheme.messages],
            "first_step": self.begun,
            "arrived": steps,
        }
        folder.write_json(Path(self.env.spec.out) / ARRIVALS, about)

    def evaluate(self, batches: Iterable[Tensor]) -> float:
        """Return the mean loss."""
        return self.problem.evaluate(batches)

    def state_dict(self) -> dict[str, Any]:
        """Return weights and optimizer, and the steps taken; messages under way are none of it."""
        return {
            "model": self.problem.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "taken": self.taken,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where :meth:`state_dict` was taken."""
        self.problem.module.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.taken = self.begun = int(state["taken"])

    def figures(self) -> Mapping[str, float]:
        """Return what was sent and computed per step of this process, and who died when."""
        steps = max(self.taken - self.begun, 1)
        return {
            "messages": sum(map(len, self.arrivals)) / steps,
            "late_messages": self.late / steps,
            "message_bytes": self.mail.received_bytes / steps,
            "weight_bytes": self.mail.sent_bytes / steps,
            "computed": self.computed / steps,
            "condition": self.condition,
            **{f"died_rank{rank}": float(step) for rank, step in sorted(self.died.items())},
        }


class Worker:
    """Computes what the server asks for, until it asks for nothing more."""

    def __init__(self, env: RunEnv, scheme: Scheme, problem: Problem, stand_in: str) -> None:
        self.env, self.scheme, self.problem, self.clock = env, scheme, problem, Clock()
        self.stand_in = stand_in
        self.worker = env.rank - 1
        self.delay = parse_delay(env.spec.delay) if env.spec.delay else None
        # Which message is due after so many tasks.
        self.due = {after: at for at, (worker, after) in enumerate(scheme.messages) if worker == self.worker}
        self.mail = Mail([SERVER], problem.dtype)
        self.slept = 0.0

    def work(self) -> RunRecord:
        """Serve all steps of the run; return a record without losses: they are the server's."""
        spec, begun = self.env.spec, max(Checkpoints(self.env, 1).newest(), 0)
        if begun == spec.steps:
            # All is done; only the server's last words are missing.
            self._order()
        else:
            with recorded(self.env, spec.steps - begun) as tick:
                self.mail.post(Message(SERVER, begun))
                self.clock.start()
                order = self._order()
                while order.step != STOP:
                    following = self._serve(order)
                    self.clock.step()
                    with self.clock.paused():
                        # Orders that a slow link did not carry in time were never seen here.
                        for _ in range((spec.steps if following.step == STOP else following.step) - order.step):
                            tick()
                    order = following
        self.mail.post(Message(SERVER, STOP))
        self.mail.close()
        return RunRecord(
            technique=spec.technique,
            rank=self.env.rank,
            world_size=self.env.world_size,
            losses=(),
            step_s=tuple(self.clock.step_s),
            wait_s=tuple(self.clock.wait_s),
            tokens=spec.batch * spec.sequence * self.scheme.workers,
            final_loss=0.0,
            parameters=sum(weight.numel() for weight in self.problem.module.parameters()),
            stand_in=self.stand_in,
            extra={"delay_s": self.slept / max(len(self.clock.step_s), 1)},
        )

    def _serve(self, order: Message) -> Message:
        """Compute the tasks of a step, as many as the next order leaves time for; return that."""
        assert order.tensor is not None
        self.problem.write(order.tensor)
        done: list[Tensor] = []
        following = None
        for turn, task in enumerate(self.scheme.tasks[self.worker]):
            following = self._sleep(order.step, turn)
            if following is None:
                done.append(self.problem.piece(task, order.step))
                # The server may have gone on meanwhile.
                following = self.mail.within(0.0)
            if following is not None:
                self.mail.clear(SERVER)
                break
            if turn + 1 in self.due:
                message = self.due[turn + 1]
                self.mail.post(Message(SERVER, order.step, message, tensor=self._sum(message, done)))
        self.mail.post(Message(SERVER, order.step, value=len(done)))
        return self._order() if following is None else _sound(following)

    def _order(self) -> Message:
        """Wait for what the server wants next."""
        with self.clock.waiting():
            return _sound(self.mail.get())

    def _sleep(self, step: int, turn: int) -> Message | None:
        """Be as late as drawn; return the order that came meanwhile, if one did."""
        if self.delay is None:
            return self.mail.within(0.0)
        began = time.perf_counter()
        with torch.profiler.record_function(INJECTED):
            message = self.mail.within(float(self.delay.draw(self.scheme.workers, step, turn)[self.worker]))
        self.slept += time.perf_counter() - began
        return message

    def _sum(self, message: int, done: Sequence[Tensor]) -> Tensor:
        """Return what a message says: the sum over the tasks that are done."""
        row = self.scheme.coefficients[message]
        tasks = zip(self.scheme.tasks[self.worker], done, strict=False)
        return weighted_sum((float(row[task]), piece) for task, piece in tasks if row[task])


def _sound(message: Message) -> Message:
    """Return a message of a server that is alive."""
    if message.step == GONE:
        raise RuntimeError(message.words)
    return message
