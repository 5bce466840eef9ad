"""Rounds of local steps between exchanges: what is sent, when it arrives, and how the common anchor follows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Literal, get_args

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from densing.core import InputError, UnknownNameError
from densing.efficiency.parallel.codecs import Codec, codec_states, load_codecs
from densing.efficiency.parallel.data_parallel.coded import CodedMean, NotFiniteError
from densing.efficiency.parallel.data_parallel.link import Link, Waiting
from densing.efficiency.parallel.data_parallel.options import number, steps_of_a_turn, whole
from densing.efficiency.parallel.data_parallel.rounds import Rounds
from densing.efficiency.parallel.distributed import Handle

Delay = int | Literal["round"]
GapMode = Literal["aware", "constant"]
Memory = Sequence[torch.Tensor]


@dataclass(frozen=True)
class Momentum:
    r"""An outer step of SGD on the change g of a round: :math:`m \leftarrow \beta m + g,\ x \leftarrow x - \alpha m`.

    Parameters
    ----------
    lr : float
        alpha.
    momentum : float
        beta, from 0 (plain SGD) to below 1.
    clip : float, optional
        Largest absolute value of an element of m.

    Raises
    ------
    InputError
        When one of them is out of range.
    """

    lr: float = 1.0
    momentum: float = 0.5
    clip: float | None = None

    vectors: ClassVar[tuple[str, ...]] = ("momentum",)
    """What it remembers, each as long as the anchor."""
    prefix: ClassVar[str] = "outer"
    by_rate: ClassVar[bool] = False
    """Whether it needs the ranks' learning rate in the round, and so the end of the round."""

    def __post_init__(self) -> None:
        number(f"{self.prefix}_lr", self.lr, 0.0, strict=True)
        number(f"{self.prefix}_momentum", self.momentum, 0.0, 1.0)
        if self.clip is not None:
            number("clip", self.clip, 0.0, strict=True)

    def step(self, anchor: torch.Tensor, change: torch.Tensor, memory: Memory, count: int, rate: float) -> None:
        """Move an anchor against the change of a round, which is overwritten.

        Parameters
        ----------
        anchor, change : Tensor, shape (n,)
        memory : sequence of Tensor, shape (n,)
            Those of :attr:`vectors`.
        count : int
            Steps that this part of the anchor has taken before.
        rate : float
            The ranks' learning rate.
        """
        anchor.sub_(self.remember(change, memory[0]), alpha=self.lr)

    def remember(self, change: torch.Tensor, momentum: torch.Tensor) -> torch.Tensor:
        """Add a change to the momentum, clip it, and return it."""
        momentum.mul_(self.momentum).add_(change)
        return momentum if self.clip is None else momentum.clamp_(-self.clip, self.clip)


@dataclass(frozen=True)
class Nesterov(Momentum):
    r"""DiLoCo's outer step: :math:`m \leftarrow \beta m + g,\ x \leftarrow x - \alpha (g + \beta m)`.

    Source: Douillard et al., arXiv 2311.08105, algorithm 1 (recalled).
    """

    lr: float = 0.7
    momentum: float = 0.9

    def step(self, anchor: torch.Tensor, change: torch.Tensor, memory: Memory, count: int, rate: float) -> None:
        """Move an anchor against the change of a round; see :class:`Momentum`."""
        anchor.sub_(change.add_(self.remember(change, memory[0]), alpha=self.momentum), alpha=self.lr)


@dataclass(frozen=True)
class DelayedNesterov(Nesterov):
    r"""Momentum that takes part in every N-th outer step only, for changes that arrive late.

    .. math:: \Delta \leftarrow \Delta + g,\qquad x \leftarrow x - \alpha (g / N + [\text{N-th}]\, \beta m)

    where in every N-th step :math:`m \leftarrow \beta m + \Delta / N` first and :math:`\Delta \leftarrow 0` after.
    ``every=1`` is :class:`Nesterov`.

    Source: Liu et al., "Asynchronous Local-SGD Training for Language Modeling", arXiv 2401.09135, delayed Nesterov
    momentum with c = 0 (recalled, not compared with the paper).

    Parameters
    ----------
    lr, momentum, clip
        See :class:`Momentum`.
    every : int
        N.
    """

    every: int = 2

    vectors: ClassVar[tuple[str, ...]] = ("momentum", "pending")

    def __post_init__(self) -> None:
        super().__post_init__()
        whole("every", self.every, 1)

    def step(self, anchor: torch.Tensor, change: torch.Tensor, memory: Memory, count: int, rate: float) -> None:
        """Move an anchor against the change of a round; see :class:`Momentum`."""
        momentum, pending = memory
        pending.add_(change.div_(self.every))
        if (count + 1) % self.every == 0:
            change.add_(self.remember(pending, momentum), alpha=self.momentum)
            pending.zero_()
        anchor.sub_(change, alpha=self.lr)


@dataclass(frozen=True)
class SlowMomentum(Momentum):
    r"""SlowMo's outer step: :math:`m \leftarrow \beta m + g / \gamma,\ x \leftarrow x - \alpha \gamma m`.

    gamma is the learning rate of the optimizer's first group at the end of the round (mean of the ranks, by their steps
    in it).

    Source: Wang et al., arXiv 1910.00643, algorithm 1 (recalled).
    """

    prefix: ClassVar[str] = "slow"
    by_rate: ClassVar[bool] = True

    def step(self, anchor: torch.Tensor, change: torch.Tensor, memory: Memory, count: int, rate: float) -> None:
        """Move an anchor against the change of a round; see :class:`Momentum`."""
        if rate <= 0.0:
            raise InputError(
                f"slowmo: the learning rate is {rate} at the end of a round; the outer update divides by it; keep it "
                "above 0"
            )
        anchor.sub_(self.remember(change.div_(rate), memory[0]), alpha=self.lr * rate)


class Gap:
    """How stale a late average is: the anchor's last way, against its ways before.

    The penalty is ``1 + |x_{t,0} - x_{t-1,0}| / C_t``, C_t being the mean of earlier such norms.

    While there is no earlier way (or the anchor has not moved) the penalty is 1. This is a Gap-Aware form, after
    Barkai et al., "Gap-Aware Mitigation of Gradient Staleness", arXiv 1909.10802; Eq. 3 of the CO2 paper is not
    available to us.

    Parameters
    ----------
    mode : {"aware", "constant"}
    constant : float
        The penalty of the mode ``constant``.

    Examples
    --------
    >>> gap = Gap()
    >>> [gap.penalty(norm) for norm in (0.0, 2.0, 2.0, 4.0)]
    [1.0, 1.0, 2.0, 3.0]
    """

    def __init__(self, mode: GapMode = "aware", constant: float = 1.0) -> None:
        if mode not in get_args(GapMode):
            raise UnknownNameError("gap", str(mode), get_args(GapMode))
        self.mode, self.constant = mode, number("gap_penalty", constant, 0.0, strict=True)
        self.total, self.count = 0.0, 0

    def penalty(self, norm: float) -> float:
        """Return the penalty of a norm, and remember the norm."""
        if self.mode == "constant":
            return self.constant
        penalty = 1.0 + norm * self.count / self.total if self.count else 1.0
        if norm > 0.0:
            self.total, self.count = self.total + norm, self.count + 1
        return penalty

    def state_dict(self) -> dict[str, Any]:
        """Return sum and number of the norms."""
        return {"total": self.total, "count": self.count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with these norms."""
        self.total, self.count = float(state["total"]), int(state["count"])


class Outer(Rounds):
    r"""Local steps, an exchange every ``tau`` of them, and an outer step of a common anchor.

    Two choices make a method. *What* ranks exchange: their parameters y, or through a codec their differences to the
    anchor x from which the round began. *When* the mean arrives, and what it does then:

    - ``delay=0``: ranks wait, x takes its step, and all go on from it;
    - ``delay=d``: ranks go on alone for d steps, then from ``mix * y + (1 - mix) * x``;
    - ``delay="round"``: ranks go back to x, which takes its step a round later;
    - ``fragments=F``: each of F equal parts of the model in its turn, every tau/F steps.

    The step is :math:`x \leftarrow \bar y` without an ``outer_optimizer``, and that one's step on
    :math:`g = x - \bar y` with one.

    Codec, optimizer and delay combine freely, but for what is refused below. ``LocalSGD``, ``SlowMo``, ``CO2``,
    ``DiLoCo``, ``Federated`` and ``FedFT`` of :mod:`densing.training` are this class with the defaults of their papers.

    Anchors are the same on all ranks, to the last bit. Beside model and optimizer it holds, in float32 and each as long
    as the parameters: what travels; the anchor, unless means replace parameters as they are; what the outer optimizer
    remembers; with ``delay="round"`` one anchor more; with a codec two vectors, one without error feedback.

    With mixed precision, let the scaler take the step and call :meth:`advance` instead of :meth:`step`.

    Parameters
    ----------
    model, optimizer, group, inner_group, waiting, link
        See :class:`~densing.efficiency.parallel.data_parallel.rounds.Rounds`.
    tau : int
        Steps between two outer steps of a parameter; ``fragments`` divides it.
    codec : Codec, or callable that makes one, optional
        ``Int8()`` or ``TopK(0.01)``, say; None sends parameters, in float32.
    error_feedback : bool
        Whether what a codec leaves out is added to the next difference; otherwise it stays away from the mean.
    outer_optimizer : Momentum, optional
        :class:`Momentum`, :class:`Nesterov`, :class:`DelayedNesterov` or :class:`SlowMomentum`.
    delay : int or "round"
        Steps for which a mean travels beside training, fewer than tau/fragments; or a whole round.
    fragments : int
        F.
    mix : float
        Share of its own parameters that a rank keeps when a mean arrives, from 0 to below 1.
    gap : Gap, optional
        Divides the change of a late round.
    warmup_rounds : int
        First rounds, which end in a plain average that is waited for.
    by_steps : bool
        Whether differences weigh as many steps as a rank took in the round; else all the same.

    Attributes
    ----------
    anchor : Tensor
        Empty where means replace parameters as they are.

    Raises
    ------
    InputError
        When a number is out of range; when fragments do not divide tau, or a mean would travel for longer than that;
        of ``delay="round"`` in fragments, with a mix or without an outer optimizer, to whose step a late change can
        be added; of a delay with ``SlowMomentum`` or ``by_steps``, which need a round that has ended on all ranks, or
        with a codec whose packets may weigh anything, because nobody waits for their lengths; of ``by_steps`` without a
        codec, and of a gap without ``delay="round"``.

    Examples
    --------
    CO2 with DiLoCo's outer step, and differences of a byte an element.

    >>> from densing.efficiency.parallel.codecs import Int8
    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> outer = Outer(model, optimizer, tau=2, codec=Int8(), outer_optimizer=Nesterov(0.5, 0.5), delay="round")
    >>> for _ in range(4):
    ...     model(torch.ones(1, 2)).square().sum().backward()
    ...     outer.step()
    >>> outer.finish()
    >>> outer.round
    2
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        tau: int,
        *,
        codec: Codec | Callable[[], Codec] | None = None,
        error_feedback: bool = True,
        outer_optimizer: Momentum | None = None,
        delay: Delay = 0,
        fragments: int = 1,
        mix: float = 0.0,
        gap: Gap | None = None,
        warmup_rounds: int = 0,
        by_steps: bool = False,
        group: dist.ProcessGroup | DeviceMesh | None = None,
        inner_group: dist.ProcessGroup | None = None,
        waiting: Waiting = nullcontext,
        link: Link | None = None,
    ) -> None:
        turn = steps_of_a_turn(tau, fragments, 0 if delay == "round" else delay)
        self.delay, self.outer_optimizer, self.gap = delay, outer_optimizer, gap
        self.mix = number("mix", mix, 0.0, 1.0)
        self.warmup_rounds = whole("warmup_rounds", warmup_rounds, 0)
        self._late = delay == "round"
        self.shards = codec is None
        self._refuse(fragments, by_steps, codec is not None)
        super().__init__(model, optimizer, turn, group=group, inner_group=inner_group, waiting=waiting, link=link)
        if fragments > self.flat.numel:
            raise InputError(f"fragments={fragments}: the model has {self.flat.numel} parameters; give fewer")
        ends = [self.flat.numel * part // fragments for part in range(fragments + 1)]
        self.fragments = [slice(*pair) for pair in pairwise(ends)]
        # A mean of parameters that only replaces them needs nothing to compare it with.
        self._anchored = codec is not None or outer_optimizer is not None
        self.anchor = self.flat.read() if self._anchored else torch.empty(0, device=self.flat.device)
        self.previous = self.anchor.clone() if self._late else torch.empty(0, device=self.flat.device)
        self._memory = () if outer_optimizer is None else outer_optimizer.vectors
        for name in self._memory:
            setattr(self, name, self.flat.zeros())
        self.coded: CodedMean | None = None
        if codec is not None:
            self.coded = CodedMean(
                self.link, self.flat, codec, self.fragments,
                error_feedback=error_feedback, by_steps=by_steps, overlapped=bool(delay),
            )  # fmt: skip
            odd = next((each for each in self.coded.all_codecs if delay and each.drifts), None)
            if odd is not None:
                raise InputError(
                    f"codec {type(odd).__name__}: its packets may weigh anything, and nobody waits for their lengths "
                    f"where means travel beside training (delay={delay!r}); renew it with every packet, take "
                    "another codec, or delay=0"
                )
        # With a gap one element more: the anchor's last way travels along, so that all divide by the same number.
        longest = max(part.stop - part.start for part in self.fragments) + (gap is not None)
        self._buffer = torch.zeros(0 if self.coded else longest, device=self.flat.device)
        self._handle: Handle | None = None
        self._at = self.updates = 0
        """The fragment under way, and outer steps so far."""
        self._steps = 1.0

    @property
    def under_way(self) -> bool:
        """Whether a mean has been sent off and not yet applied."""
        return self._handle is not None

    def advance(self) -> None:
        """Count a step that the caller has taken; a mean that has travelled as long as it may is waited for first."""
        if self._handle is not None and not isinstance(self.delay, str) and self.count + 1 >= self.delay:
            self._apply()
        super().advance()

    def figures(self) -> Mapping[str, float]:
        """Return rounds, tau and seconds of an averaging; with a codec the bytes of packets, and their dense share."""
        if self.coded is None:
            return super().figures()
        dense = 4 * self.flat.numel * self.round / len(self.fragments)
        share = {"sent_share": self.coded.sent / dense} if dense else {}
        return {**super().figures(), "packet_bytes": float(self.coded.sent), **share}

    def state_dict(self) -> dict[str, Any]:
        """Return what continues bit by bit, in mid-round too.

        A mean under way is waited for, and stored as it will be applied. Every rank saves its own state: ranks differ
        in mid-round.
        """
        if self._handle is not None:
            self._arrive(self._handle)
            self._handle = Handle(None)
        own: dict[str, Any] = {name: getattr(self, name) for name in self._vectors}
        if self.coded is not None:
            residual = {"residual": self.coded.residual} if self.coded.error_feedback else {}
            own |= {**residual, "codecs": codec_states(self.coded.all_codecs), "sent": self.coded.sent}
        if self.gap is not None:
            own["gaps"] = self.gap.state_dict()
        if self.delay:
            own |= {"average": self._buffer, "under_way": self.under_way, "at": self._at}
        return {**super().state_dict(), **own, "updates": self.updates}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where :meth:`state_dict` was taken; load model and optimizer as well.

        Raises
        ------
        InputError
            When the state is another method's or rank's (on all ranks), or of another tau, model, codec or cut.
        """
        super().load_state_dict(state)
        for name in self._vectors:
            self._restore(state, name, getattr(self, name))
        if self.coded is not None:
            if self.coded.error_feedback:
                self._restore(state, "residual", self.coded.residual)
            load_codecs(self.coded.all_codecs, state.get("codecs", {}))
            self.coded.sent = int(state["sent"])
        if self.gap is not None:
            self.gap.load_state_dict(state["gaps"])
        self._handle, self.updates = None, int(state.get("updates", 0))
        if self.delay:
            if self.coded is not None:
                self._buffer = torch.empty_like(state["average"], device=self.flat.device)
            self._restore(state, "average", self._buffer)
            # What was under way had arrived when it was saved: a handle without work is done.
            self._handle, self._at = (Handle(None) if state["under_way"] else None), int(state.get("at", 0))

    def _settings(self) -> dict[str, Any]:
        codec = None
        if self.coded is not None:
            most = sum(map(self.coded.row_bytes, range(len(self.fragments))))
            codec = f"{self.coded.name} of at most {most:,} bytes"
        return {**super()._settings(), "fragments": len(self.fragments), "delay": self.delay, "codec": codec}

    @property
    def _vectors(self) -> tuple[str, ...]:
        return ("anchor",) * self._anchored + ("previous",) * self._late + self._memory

    def _refuse(self, fragments: int, by_steps: bool, coded: bool) -> None:
        """Refuse what does not go together; see the class."""
        step, delay = self.outer_optimizer, f"delay={self.delay!r}"
        troubles = {
            "delay='round' moves the whole anchor a round late: give fragments=1 and mix=0, or a number of steps as "
            f"delay for fragments={fragments} and mix={self.mix:g}": self._late and (fragments > 1 or self.mix > 0),
            "delay='round' adds a late change to the anchor, and needs an outer_optimizer for it; Momentum(1.0, 0.0) "
            "adds it as it is": self._late and step is None,
            f"{type(step).__name__} divides by the learning rate of a round that has ended on all ranks, and so waits "
            f"for means: give delay=0, or Momentum or Nesterov with {delay}": bool(
                self.delay and step and step.by_rate
            ),
            "by_steps weighs with the steps of a round that has ended on all ranks; give delay=0 instead of "
            f"{delay}, or by_steps=False": bool(self.delay and by_steps),
            "by_steps weighs differences, and without a codec parameters travel; Dense sends differences whole": (
                by_steps and not coded
            ),
            f"gap weighs changes that are a round late; give delay='round' instead of {delay}": (
                self.gap is not None and not self._late
            ),
        }
        for trouble, there in troubles.items():
            if there:
                raise InputError(trouble)

    def _end_round(self) -> None:
        if self.round < self.warmup_rounds:
            mean = self._average()
            self.flat.write(self.anchor.copy_(mean) if self._anchored else mean)
            return
        # A round late; or where others' data end first, and a round ends before its mean was due.
        if self._handle is not None:
            self._apply()
        elif self._late:
            self.previous.copy_(self.anchor)
        self._send()
        if self._late:
            self.flat.write(self.anchor)
        elif not self.delay:
            self._apply()

    def _drain(self) -> None:
        if self._handle is not None:
            self._apply()
            if self._late:
                self.flat.write(self.anchor)
        if not self._late and (len(self.fragments) > 1 or self.delay or self.mix):
            # Ranks differ in what took no outer step just now.
            self.flat.write(self._average())

    def _send(self) -> None:
        """Start to exchange this round's fragment."""
        self._at = self.round % len(self.fragments)
        if self.coded is not None:
            if self.coded.by_steps:
                self.link.arrive(self._announced, self._state)
                self._steps = float(self._state[1])
            start = self.previous if self._late else self.anchor
            self._live_parameters(self.coded.work).sub_(start)
            self._buffer = self.coded.encode(self._at, self.count, self._steps)
            op = self.coded.op
            if self.coded.error_feedback:
                part = self.fragments[self._at]
                self.coded.residual[part] = self.coded.work[part]
            self._handle = Handle(None) if op is None else self.link.start(self._buffer, op)
            return
        if len(self.fragments) == 1:
            self._live_parameters(self._mean)
        else:
            self._mean.copy_(self._live_parameters()[self.fragments[self._at]])
        if self.gap is not None:
            self._buffer[-1] = self.flat.norm(self.anchor - self.previous)
        self._handle = self.link.start(self._travels)

    @property
    def _mean(self) -> torch.Tensor:
        part = self.fragments[self._at]
        return self._buffer[: part.stop - part.start]

    @property
    def _travels(self) -> torch.Tensor:
        return self._buffer if self.coded is not None or self.gap is not None else self._mean

    def _arrive(self, handle: Handle) -> None:
        if self.coded is None or self.coded.op is not None:
            self.link.arrive(handle, self._travels)
            self._timed(handle)

    def _decoded(self) -> torch.Tensor:
        """Return the mean of the fragment under way, which has arrived."""
        part = self.fragments[self._at]
        if self.coded is None:
            self._check_finite(self._travels)
            return self._mean
        start = self.previous if self._late else self.anchor
        try:
            self.coded.decode(self._buffer, self._at, self.coded.work, self._steps)
        except NotFiniteError as error:
            raise InputError(
                f"round {self.round}: {self.flat.tensor_name(error.tensor)} of {self._name(error.rank)} holds inf or "
                "NaN; lower the learning rate (or clip gradients), and go on from a checkpoint"
            ) from None
        return self.coded.work[part].add_(start[part])

    def _name(self, rank: int) -> str:
        return f"rank {self.link.everywhere(rank)}"

    def _apply(self) -> None:
        """Take the outer step of the fragment under way; unless it is a round late, live parameters follow."""
        assert self._handle is not None
        handle, self._handle = self._handle, None
        self._arrive(handle)
        mean, part = self._decoded(), self.fragments[self._at]
        anchor = self.anchor[part] if self._anchored else mean
        if self.outer_optimizer is None:
            anchor.copy_(mean)
        else:
            rate = 0.0
            if self.outer_optimizer.by_rate:
                self.link.arrive(self._announced, self._state)
                _, steps, rates = self._state.tolist()
                rate = rates / steps
            # In place of the mean, which is no longer needed: no further copy.
            change = torch.sub(self.previous if self._late else anchor, mean, out=mean)
            if self.gap is not None:
                norm = self._buffer[-1] if self.coded is None else self.flat.norm(anchor - self.previous)
                change.div_(self.gap.penalty(float(norm)))
            if self._late:
                # The next mean began from this anchor: it is what its change is taken against, a round from now.
                self.previous.copy_(anchor)
            count = self.updates // len(self.fragments)
            memory = [getattr(self, name)[part] for name in self._memory]
            self.outer_optimizer.step(anchor, change, memory, count, rate)
        self.updates += 1
        if self._late:
            return
        if len(self.fragments) > 1 or self.mix:
            live = self.flat.read()
            live[part].mul_(self.mix).add_(anchor, alpha=1.0 - self.mix)
            self.flat.write(live)
        else:
            self.flat.write(anchor)
