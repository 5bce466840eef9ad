"""Training one run: a Llama decoder of transformers through stable stage, decays, checkpoints and exports."""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from densing.core import ArtefactError, InputError, Meter
from densing.scores.evals import quantise
from densing.scores.ladder.arms import LADDER, Arm, Maker, client_recipes
from densing.scores.ladder.corpus import Generated, Order, Tokens, blocks
from densing.scores.ladder.folder import count_parameters, export
from densing.scores.ladder.runs import Budget, DivergedError, Run, Shape, factor
from densing.scores.ladder.stack import RowLoss, Stack, StackOptimizer
from densing.scores.ladder.world import generate, get_recipe

AVERAGE = 0.98
REPORT_STEPS = 50
VALIDATION_BATCH = 32


def build_model(shape: Shape, vocabulary: int, block: int, seed: int, device: str = "cpu") -> Any:
    """Return a freshly initialised model.

    Parameters
    ----------
    shape : Shape
        Its proportions.
    vocabulary : int
        Number of tokens; token 0 is beginning, end and padding.
    block : int
        Tokens per training sequence; positions go to four times as many.
    seed : int
        Seed of the initialisation, which is drawn on the CPU whatever the device.
    device : str
        Where it goes.

    Returns
    -------
    transformers.LlamaForCausalLM
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=shape.width,
        intermediate_size=shape.ffn,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_width,
        max_position_embeddings=4 * block,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
    )
    # The seed alone decides the weights, and the caller's generator stays where it was.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    return model.to(device)


@dataclass
class Trainer:
    """A run under way: model, optimiser, step and the moving average of the training loss.

    Parameters
    ----------
    run : Run
        What is trained.
    device : str
        Where.
    report : callable
        Called every :data:`REPORT_STEPS` steps with the steps done.
    """

    run: Run
    device: str = "cpu"
    report: Callable[[int], object] = lambda done: None
    step: int = 0
    before: int = 0
    _passes: dict[int, Tokens] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.read()
        self.fresh()

    def read(self) -> None:
        """Get what is trained on, and its order."""
        run = self.run
        stream = run.corpus.stream(run.tokens(run.steps[-1]) + 1)
        self._blocks = blocks(stream, run.preset.block)
        self._order = Order(len(self._blocks), run.shape.batch, run.order_seed)

    def fresh(self) -> None:
        """Begin at step 0."""
        run = self.run
        self.step = 0
        self.model = build_model(run.shape, run.corpus.vocabulary, run.preset.block, run.seed, self.device)
        self.optimiser = torch.optim.AdamW(
            self.model.parameters(),
            lr=run.preset.rate(run.shape),
            betas=run.preset.betas,
            weight_decay=run.preset.weight_decay,
            fused=True,
        )
        self.loss = torch.full((), math.log(run.corpus.vocabulary), device=self.device)

    def state(self) -> dict[str, Any]:
        """Return all that the next step depends on; the order of blocks follows from the seed."""
        return {
            "step": self.step,
            "model": self.model.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "loss": self.loss,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where a state was taken."""
        self.step = int(state["step"])
        self.model.load_state_dict(state["model"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.loss = state["loss"].clone()

    def train_budget(self, budget: Budget, folder: Path) -> None:
        """Train the stable stage up to a budget's branch, then its decay, and export the model."""
        run = self.run
        stable, decay = run.checkpoint(folder, "stable"), run.checkpoint(folder, f"decay-{budget.end}")
        state = load_checkpoint(stable, self.device)
        if state is None or state["step"] > budget.branch:
            self.fresh()
        else:
            self.restore(state)
        # What earlier budgets' decays took counts as done.
        self.before = sum(b.end - b.branch for b in run.budgets if b.end < budget.end)
        self.advance(budget.branch, None, stable)
        state = load_checkpoint(decay, self.device)
        if state is not None:
            self.restore(state)
        self.advance(budget.end, budget, decay)
        self.settle()
        export(self.model, run, budget, folder, self.losses(), self.about())
        decay.unlink(missing_ok=True)

    def advance(self, until: int, budget: Budget | None, path: Path) -> None:
        """Train up to a step, leaving checkpoints at ``path``."""
        every = self.run.preset.checkpoint
        while self.step < until:
            self.take_step(factor(self.step, self.run.preset.warmup, budget))
            if self.step % every == 0 or self.step == until:
                if not math.isfinite(float(self.loss)):
                    raise DivergedError(
                        f"run {self.run.name}: the loss is NaN or infinite at step {self.step}; "
                        "lower the learning rate or "
                        f"drop the size"
                    )
                save_checkpoint(self.state(), path)
            if self.step % REPORT_STEPS == 0 or self.step == until:
                self.report(self.before + self.step)

    def settle(self) -> None:
        """Do what ends a training, before the model is exported."""

    def losses(self) -> dict[str, float]:
        """Return the losses that an export says, nats per token."""
        return {"train": float(self.loss), "validation": self.validate()}

    def about(self) -> dict[str, Any]:
        """Return what else an export says of its training."""
        return {}

    def take_step(self, share: float) -> None:
        """Train on the next batch at a share of the peak learning rate."""
        batch = self.batch()
        self.optimiser.param_groups[0]["lr"] = share * self.run.preset.rate(self.run.shape)
        loss = batch_loss(self.model, batch, self.run.preset.precision)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        self.taken(loss)

    def batch(self) -> torch.Tensor:
        """Return the next step's blocks."""
        rows = self._blocks[self._order.rows(self.step, self._passes)]
        return torch.from_numpy(rows.astype(np.int64)).to(self.device)

    def taken(self, loss: torch.Tensor) -> None:
        """Note that a step was taken, and its loss."""
        self.loss = AVERAGE * self.loss + (1 - AVERAGE) * loss.detach()
        self.step += 1

    def validate(self) -> float:
        """Return the mean loss on held-out blocks, nats per token."""
        preset = self.run.preset
        rows = blocks(self.run.corpus.validation()[: preset.validation], preset.block)
        total = 0.0
        with torch.no_grad():
            for start in range(0, len(rows), VALIDATION_BATCH):
                part = rows[start : start + VALIDATION_BATCH].astype(np.int64)
                batch = torch.from_numpy(part).to(self.device)
                total += len(part) * float(batch_loss(self.model, batch, self.run.preset.precision))
        return total / len(rows)


@dataclass
class Expense:
    """What training has taken: seconds, seconds of all processors, and energy where it can be read.

    Examples
    --------
    >>> expense = Expense()
    >>> with expense.counted():
    ...     total = sum(range(1000))
    >>> expense.seconds > 0
    True
    """

    seconds: float = 0.0
    processor: float = 0.0
    joules: float = 0.0

    def __post_init__(self) -> None:
        self._meter = Meter()
        self._steps = 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count what goes on meanwhile."""
        if not self._steps % REPORT_STEPS:
            # What was used since the last reading was not for steps.
            self._meter.joules()
        began, busy = time.perf_counter(), time.process_time()
        yield
        self.seconds += time.perf_counter() - began
        self.processor += time.process_time() - busy
        self._steps += 1
        if not self._steps % REPORT_STEPS:
            self._read()

    def cost(self) -> dict[str, float | None]:
        """Return it as an export says it; the energy is None where it cannot be read."""
        state = self.state()
        return {
            "seconds": state["seconds"],
            "processor_seconds": state["processor"],
            "joules": state["joules"] if Meter.readable() else None,
        }

    def state(self) -> dict[str, float]:
        """Return what another of these can go on with."""
        self._read()
        return {"seconds": self.seconds, "processor": self.processor, "joules": self.joules}

    def _read(self) -> None:
        self.joules += self._meter.joules()


@dataclass
class ArmTrainer(Trainer):
    """A run of an arm: copies of the model, one per virtual rank, and what joins them.

    Parameters
    ----------
    maker : callable
        Makes the ranks; see :data:`densing.scores.ladder.arms.Maker`.
    """

    maker: Maker | None = None

    @property
    def arm(self) -> Arm:
        """What is changed of the training."""
        assert self.run.arm is not None
        return self.run.arm

    def read(self) -> None:
        """Get what every rank is trained on: its share of the one order, or its own mixture of families."""
        run, arm, ranks = self.run, self.arm, self.arm.ranks
        if arm.clients is None:
            super().read()
            return
        assert isinstance(run.corpus, Generated)
        recipes = client_recipes(get_recipe(run.corpus.recipe), ranks, arm.clients, run.seed)
        # A client's own mixture once more, which it does not train on; all clients' are as long as the common one.
        held = run.preset.validation // ranks
        self._held_out = [
            blocks(generate(recipe, held, run.corpus.seed, "validation", client=number), run.preset.block)
            for number, recipe in enumerate(recipes)
        ]
        tokens = run.tokens(run.steps[-1]) // ranks + 1
        self._clients = [
            blocks(generate(recipe, tokens, run.corpus.seed, client=number), run.preset.block)
            for number, recipe in enumerate(recipes)
        ]
        self._order = Order(len(self._clients[0]), run.shape.batch // ranks, run.order_seed)

    def fresh(self) -> None:
        """Begin at step 0."""
        run, preset = self.run, self.run.preset
        assert self.maker is not None, f"run {run.name}: an arm needs what makes its ranks"
        self.step, self.expense = 0, Expense()
        self.model = build_model(run.shape, run.corpus.vocabulary, preset.block, run.seed, self.device)
        self.stack = Stack(self.model, run.shape, self.arm.ranks, preset.precision, late=self.arm.wiring == LADDER)
        self.rows = self.stack.rows()
        self.optimiser: Any = StackOptimizer(
            self.stack, self.rows, lr=preset.rate(run.shape), betas=preset.betas, weight_decay=preset.weight_decay
        )
        self.ranks = self.maker(self.arm, self.rows, self.optimiser.rows)
        self.loss = torch.full((), math.log(run.corpus.vocabulary), device=self.device)

    def state(self) -> dict[str, Any]:
        """Return all that the next step depends on, and what was spent."""
        return {
            "step": self.step,
            "model": self.stack.vector.detach(),
            "optimiser": self.optimiser.state_dict(),
            "ranks": self.ranks.state_dict(),
            "loss": self.loss,
            "expense": self.expense.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where a state was taken."""
        self.step = int(state["step"])
        with torch.no_grad():
            self.stack.vector.copy_(state["model"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.ranks.load_state_dict(state["ranks"])
        self.loss = state["loss"].clone()
        self.expense = Expense(**state["expense"])

    def take_step(self, share: float) -> None:
        """Train every rank on its part of the next batch."""
        with self.expense.counted():
            self._take_step(share)
            if self.stack.vector.is_cuda:
                # Otherwise the seconds would be those of launching it.
                torch.cuda.synchronize()

    def _take_step(self, share: float) -> None:
        run, batch = self.run, self.batch()
        self.optimiser.rate(share * run.preset.rate(run.shape))
        parts = batch.view(self.arm.ranks, -1, batch.shape[1])
        losses = self.stack.losses(parts, self.ranks.passing, self.arm.exits)
        self.stack.vector.grad = None
        losses.sum().backward()
        gradient = self.stack.vector.grad
        assert gradient is not None
        try:
            self.ranks.backward([RowLoss(row, gradient[number]) for number, row in enumerate(self.rows)])
            self.optimiser.clip(1.0)
            self.ranks.step()
        except InputError as error:
            raise DivergedError(f"run {run.name}: step {self.step}: {error}") from error
        self.taken(losses.mean())

    def batch(self) -> torch.Tensor:
        """Return the next step's blocks, one rank's behind the other's."""
        if self.arm.clients is None:
            return super().batch()
        numbers = self._order.rows(self.step, self._passes)
        rows = np.concatenate([client[numbers] for client in self._clients])
        return torch.from_numpy(rows.astype(np.int64)).to(self.device)

    def settle(self) -> None:
        """End what is under way among the ranks, and put their common weights, rounded if the arm says so, together."""
        self.ranks.finish()
        self.stack.write(self.model)
        if self.arm.bits is not None:
            with torch.no_grad():
                for parameter in self.model.parameters():
                    if parameter.dim() > 1:
                        parameter.copy_(quantise(parameter, self.arm.bits))

    def losses(self) -> dict[str, float]:
        """Return the losses: of clients with mixtures of their own also the mean of each on its own.

        Where every client keeps its own weights, both are means over the clients; where the architecture is
        not that of transformers' model, the copies are asked themselves.
        """
        losses = {"train": float(self.loss)}
        if not self.ranks.personal and not self.stack.late:
            losses["validation"] = self.validate()
        else:
            common = blocks(self.run.corpus.validation()[: self.run.preset.validation], self.run.preset.block)
            losses["validation"] = self._mean_loss([common] * self.arm.ranks)
        if self.arm.clients is not None:
            losses["clients"] = self._mean_loss(self._held_out)
        return losses

    def _mean_loss(self, texts: Sequence[Any]) -> float:
        """Return the mean loss of every copy on blocks of its own, equally many."""
        rows, total = np.stack(texts), 0.0
        with torch.no_grad():
            for start in range(0, rows.shape[1], VALIDATION_BATCH):
                part = rows[:, start : start + VALIDATION_BATCH].astype(np.int64)
                total += part.shape[1] * float(self.stack.losses(torch.from_numpy(part).to(self.device)).mean())
        return total / rows.shape[1]

    def about(self) -> dict[str, Any]:
        """Return the arm, and what the training took."""
        arm = self.arm
        figures = self.ranks.figures()
        kept: dict[str, Any] = {}
        if "kept_parameters" in figures:
            total, bare = count_parameters(self.model)
            # Embeddings are never masked.
            kept = {"params_kept": figures["kept_parameters"] - (total - bare)}
        if self.ranks.personal:
            kept["personal"] = f"losses are means over {arm.ranks} clients, the weights are client 0's"
        return {
            **kept,
            "arm": arm.name,
            "ranks": arm.ranks,
            "method": arm.method,
            "knobs": dict(arm.knobs),
            "weight_bits": 32 if arm.bits is None else arm.bits,
            **({"exits": arm.exits} if arm.exits else {}),
            **({"wiring": arm.wiring} if self.stack.late else {}),
            # The counters of energy are the processor's, which on a device is the least of it.
            "cost": {
                "bytes": self.ranks.sent,
                **self.expense.cost(),
                **({"joules": None} if self.stack.vector.is_cuda else {}),
            },
        }


def batch_loss(model: Any, batch: torch.Tensor, precision: str) -> torch.Tensor:
    """Return the mean cross-entropy of every next token, nats.

    Parameters
    ----------
    model
        A causal language model of transformers.
    batch : Tensor of int64, shape (rows, block + 1)
        Tokens and their successors.
    precision : str
        ``bfloat16`` computes under autocast, ``float32`` does not.
    """
    half = precision == "bfloat16"
    with torch.autocast(batch.device.type, dtype=torch.bfloat16, enabled=half):
        logits = model(input_ids=batch[:, :-1], use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())


def save_checkpoint(state: dict[str, Any], path: Path) -> None:
    """Write a state: the file is whole, old or absent, after a loss of power too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            torch.save(state, stream)
            stream.flush()
            os.fsync(stream.fileno())
        Path(temporary).replace(path)
    finally:
        Path(temporary).unlink(missing_ok=True)


def load_checkpoint(path: Path, device: str) -> dict[str, Any] | None:
    """Return the state at ``path``, or None when there is none.

    Raises
    ------
    ArtefactError
        When the file is damaged.
    """
    if not path.exists():
        return None
    try:
        # Tensors and plain values only: a checkpoint is data, never code.
        state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    except Exception as error:
        raise ArtefactError(f"{path}: damaged checkpoint ({type(error).__name__}); delete it to train again") from error
    return state
