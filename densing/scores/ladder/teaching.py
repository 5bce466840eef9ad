r"""Lessons: a small model trained with a teacher beside it, in one of the ways that are compared.

``kd`` follows the teacher's predictions, ``fitnet`` its hidden states, ``talking`` exchanges messages with it:

.. math::
    msg_1 &= Enc_s(s_{lo}), \quad t_n = upper_t(Dec_t(msg_n)), \quad rec_n = Dec_s(Enc_t(t_n)), \quad
    msg_{n+1} = Enc_s(rec_n) \\
    L &= L_{task} + w_1 \tfrac1N \sum_n |s_{hi} - rec_n|^2 + w_2 L_{MC} + w_3 L_{SC} \\
    L_{MC} &= |Enc_s(s) - Enc_t(t)|^2, \quad L_{SC} = |Dec_t(Enc_s(s)) - t|^2 + |Dec_s(Enc_t(t)) - s|^2

with states s, t of the student and the frozen teacher at a lower and the last layer, position by position, and messages
of a common width. States and messages are normalised to mean 0 and variance 1 (no learnt scale), so that no loss falls
by shrinking them.

Source: arXiv 2310.03188 (Talking Models) names the parts and the weights; which formulas it uses is not published, and
these are **reconstructed**. ``kd`` is arXiv 1503.02531, section 2; ``fitnet`` arXiv 1412.6550, eq. 3, with both
stages at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from densing.core import InputError
from densing.scores.ladder.arms import Arm
from densing.scores.ladder.corpus import Corpus
from densing.scores.ladder.lessons import read_knobs
from densing.scores.ladder.runs import DivergedError, Run, Shape
from densing.scores.ladder.teachers import States, Teacher, Translation, get_teacher, hidden, split_layer
from densing.scores.ladder.trainer import Expense, Trainer


def normal(state: torch.Tensor) -> torch.Tensor:
    """Return states with mean 0 and variance 1 along their last axis."""
    # What is normal already must stay as it is: the usual 1e-5 would shrink states of small variance.
    return functional.layer_norm(state, state.shape[-1:], eps=1e-8)


@dataclass
class Lesson:
    """What a teacher adds to the loss of a student.

    Parameters
    ----------
    arm : Arm
    teacher : Teacher
    shape : Shape
        Of the student.
    seed : int
        Of its own parameters.
    translation : Translation, optional
    """

    arm: Arm
    teacher: Teacher
    shape: Shape
    seed: int
    translation: Translation | None = None
    parts: nn.ModuleDict = field(init=False)

    def __post_init__(self) -> None:
        knobs = self.knobs = read_knobs(self.arm)
        self.layer = split_layer(int(knobs.get("layer", 0)), self.shape.layers, f"student {self.shape.name}")
        s, t = self.shape.width, self.teacher.width
        message = int(knobs.get("message", 0)) or s
        widths = {
            "fitnet": {"hint": (s, t)},
            "talking": {
                "student_in": (s, message), "student_out": (message, s),
                "teacher_in": (t, message), "teacher_out": (message, t),
            },
        }.get(self.arm.method, {})  # fmt: skip
        make: Callable[[int, int], nn.Module] = _dense if knobs.get("codec") == "dense" else nn.Linear
        # The seed alone decides them, and the caller's generator stays where it was.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            self.parts = nn.ModuleDict({name: make(*size) for name, size in widths.items()})

    def loss(self, task: torch.Tensor, student: States, tokens: torch.Tensor) -> torch.Tensor:
        """Return the loss to train on; the task's own, unchanged, where all weights are 0."""
        method, knobs = self.arm.method, self.knobs
        if method == "kd":
            share, heat = knobs["weight"], knobs["temperature"]
            if share == 0:
                return task
            target = self.teacher.states(tokens).logits
            assert target is not None and student.logits is not None
            return (1 - share) * task + share * distance(student.logits, target, heat)
        weights = [knobs[name] for name in ("weight", "w1", "w2", "w3") if name in knobs]
        if not any(weights):
            return task
        states = self._teacher_states(tokens)
        t = [normal(state) for state in states]
        s = [normal(student.low), normal(student.high)]
        if method == "fitnet":
            return task + knobs["weight"] * functional.mse_loss(self.parts["hint"](s[0]), t[0])
        return task + sum(weight * part for weight, part in self._talk(s, t, states[0]) if weight)

    def _talk(
        self, s: list[torch.Tensor], t: list[torch.Tensor], raw: torch.Tensor
    ) -> list[tuple[float, torch.Tensor]]:
        """Return the three weighted losses of a talk."""
        knobs, parts, apart = self.knobs, self.parts, functional.mse_loss
        spoken = [normal(parts["student_in"](state)) for state in s]
        answered = [normal(parts["teacher_in"](state)) for state in t]
        losses = [
            (knobs["w2"], sum(apart(one, other) for one, other in zip(spoken, answered, strict=True))),
            (
                knobs["w3"],
                sum(apart(parts["teacher_out"](one), state) for one, state in zip(spoken, t, strict=True))
                + sum(apart(parts["student_out"](one), state) for one, state in zip(answered, s, strict=True)),
            ),
        ]
        if knobs["rounds"] and knobs["w1"]:
            # The teacher's layers expect states of the size that they know.
            centre, scale = raw.mean(-1, keepdim=True), raw.std(-1, keepdim=True)
            said, total = s[0], torch.zeros((), device=raw.device)
            for _ in range(knobs["rounds"]):
                message = normal(parts["teacher_out"](normal(parts["student_in"](normal(said)))))
                heard = self.teacher.upper(centre + scale * message)
                said = parts["student_out"](normal(parts["teacher_in"](normal(heard))))
                total = total + apart(s[1], said) / knobs["rounds"]
            losses.append((knobs["w1"], total))
        return losses

    def _teacher_states(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the teacher's lower and last state at every token of the student."""
        if self.translation is None:
            low, high, _ = self.teacher.states(tokens)
            return low, high
        own = self.translation(tokens)
        low, high, _ = self.teacher.states(own.tokens, None if self.teacher.predicts else own.mask)
        at = own.ends.unsqueeze(-1)
        return tuple(state.gather(1, at.expand(-1, -1, state.shape[-1])) for state in (low, high))


def distance(logits: torch.Tensor, target: torch.Tensor, temperature: float) -> torch.Tensor:
    """Return T^2 KL(teacher || student) of predictions at a temperature, mean over positions, nats.

    Source: arXiv 1503.02531, section 2; the factor keeps gradients as large as those of the task.

    Examples
    --------
    >>> distance(torch.zeros(1, 1, 4), torch.zeros(1, 1, 4), 2.0)
    tensor(0.)
    """
    student = functional.log_softmax(logits.flatten(0, -2) / temperature, dim=-1)
    teacher = functional.log_softmax(target.flatten(0, -2) / temperature, dim=-1)
    return temperature**2 * functional.kl_div(student, teacher, reduction="batchmean", log_target=True)


def _dense(wide: int, narrow: int) -> nn.Module:
    return nn.Sequential(nn.Linear(wide, max(wide, narrow)), nn.ReLU(), nn.Linear(max(wide, narrow), narrow))


def make_lesson(arm: Arm, shape: Shape, corpus: Corpus, seed: int, device: str = "cpu") -> Lesson | None:
    """Return the lesson of an arm, None for ``scratch``; everything that can be wrong with it is found here.

    Raises
    ------
    InputError
        When there is no teacher, it cannot be used, or its vocabulary is another one and its predictions are wanted.
    """
    knobs = read_knobs(arm)
    if arm.method == "scratch":
        return None
    if not arm.teacher:
        raise InputError(f"--method {arm.name}: needs a teacher; give --teacher FOLDER")
    teacher = get_teacher(arm.teacher, int(knobs.get("teacher_layer", 0)), device)
    own, other = corpus.tokenizer(), teacher.tokenizer
    translation = None
    if other is None or own.get_vocab() != other.get_vocab():
        if arm.method == "kd" or other is None:
            raise InputError(
                f"--method {arm.name}: teacher {arm.teacher} has another vocabulary ({teacher.vocabulary} tokens, "
                f"the student {len(own)}), so its predictions cannot be distilled; use fitnet or talking, which read "
                "its states"
            )
        translation = Translation(own, other)
    if arm.method == "kd" and not teacher.predicts:
        raise InputError(
            f"--method {arm.name}: teacher {arm.teacher} is an encoder and does not predict next tokens; use fitnet "
            "or talking, which read its states"
        )
    return Lesson(arm, teacher, shape, seed, translation)


@dataclass
class LessonTrainer(Trainer):
    """A run with a teacher, or from scratch beside such runs: what it takes is counted."""

    def fresh(self) -> None:
        """Begin at step 0."""
        super().fresh()
        run = self.run
        assert run.arm is not None
        self.expense, self.flops = Expense(), 0.0
        self.lesson = make_lesson(run.arm, run.shape, run.corpus, run.seed, self.device)
        if self.lesson is not None and len(self.lesson.parts):
            self.lesson.parts.to(self.device)
            self.optimiser.add_param_group({"params": list(self.lesson.parts.parameters())})

    def state(self) -> dict[str, Any]:
        """Return all that the next step depends on, and what was spent."""
        parts = {} if self.lesson is None else self.lesson.parts.state_dict()
        return {**super().state(), "parts": parts, "expense": self.expense.state(), "flops": self.flops}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where a state was taken."""
        super().restore(state)
        if self.lesson is not None:
            self.lesson.parts.load_state_dict(state["parts"])
        self.expense, self.flops = Expense(**state["expense"]), float(state["flops"])

    def take_step(self, share: float) -> None:
        """Train on the next batch."""
        run, batch = self.run, self.batch()
        for group in self.optimiser.param_groups:
            group["lr"] = share * run.preset.rate(run.shape)
        with self.expense.counted():
            task, total = self._losses(batch)
            if not math.isfinite(float(total.detach())):
                raise DivergedError(
                    f"run {run.name}: the loss is NaN or infinite at step {self.step}; lower the weights of the lesson"
                )
            total.backward()
            # The student's gradients are clipped as they are without a teacher.
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            if self.lesson is not None and len(self.lesson.parts):
                nn.utils.clip_grad_norm_(self.lesson.parts.parameters(), 1.0)
            self.optimiser.step()
            self.optimiser.zero_grad(set_to_none=True)
        if not self.flops:
            # Beside the step: while they are counted, products are computed in another way.
            with FlopCounterMode(display=False) as counter:
                self._losses(batch)[1].backward()
            self.flops = float(counter.get_total_flops())
            self.optimiser.zero_grad(set_to_none=True)
        self.taken(task)

    def _losses(self, batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the loss of the student's task, and what it is trained on."""
        lesson, tokens, targets = self.lesson, batch[:, :-1], batch[:, 1:].flatten()
        half = self.run.preset.precision == "bfloat16"
        with torch.autocast(batch.device.type, dtype=torch.bfloat16, enabled=half):
            student = hidden(self.model, tokens, 1 if lesson is None else lesson.layer)
            assert student.logits is not None
            task = functional.cross_entropy(student.logits.float().flatten(0, 1), targets)
            return task, task if lesson is None else lesson.loss(task, student, tokens)

    def about(self) -> dict[str, Any]:
        """Return the arm, and what the training took."""
        arm = self.run.arm
        assert arm is not None
        return {
            "arm": arm.name,
            "method": arm.method,
            "knobs": read_knobs(arm),
            "teacher": arm.teacher or None,
            "teacher_parameters": None if self.lesson is None else self.lesson.teacher.parameters,
            "cost": {"bytes": 0.0, "flops": self.flops * self.step, **self.expense.cost()},
        }


def step_flops(run: Run, device: str = "cpu") -> float:
    """Return the floating-point operations of a step: matrix products forward and backward, counted by torch.

    The step is taken on a fresh model, and nothing is left of it.

    Parameters
    ----------
    run : Run
        With a lesson's arm.
    device : str
    """
    short = replace(run, steps=(2,))
    trainer = LessonTrainer(short, device)
    trainer.take_step(0.0)
    return trainer.flops
