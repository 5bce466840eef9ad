"""An edge between two stages, both ends in one process: what is sent, what arrives, and what it weighs."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from densing.core import InputError, UnknownNameError  # noqa: E402
from densing.efficiency.parallel.distributed.lm import build_lm  # noqa: E402
from densing.efficiency.parallel.distributed.spec import LmShape, RunEnv, RunSpec  # noqa: E402
from densing.efficiency.parallel.pipeline import edges  # noqa: E402
from densing.efficiency.parallel.pipeline.coding import CODECS, Coding, codings  # noqa: E402
from densing.efficiency.parallel.pipeline.edges import Edge  # noqa: E402
from densing.efficiency.parallel.pipeline.stage import Stage  # noqa: E402
from densing.efficiency.parallel.pipeline.train import train_pipeline  # noqa: E402
from densing.efficiency.parallel.pipeline.turns import Turn, one_forward_one_backward  # noqa: E402
from densing.efficiency.simulation import sizes  # noqa: E402

ROWS, WIDTH = 6, 40
CODINGS = [*(Coding(codec, 0.2) for codec in CODECS), Coding("threshold", 0.2, 3), Coding("topk", 1.0)]


class Pipe:
    """Messages between two ranks of one process; the n-th receive that is posted gets the n-th message."""

    def __init__(self) -> None:
        self.messages: dict[int, list[Any]] = {0: [], 1: []}
        self.posted = {0: 0, 1: 0}
        self.sent = 0

    def isend(self, tensor: Any, dst: int) -> Any:
        self.messages[dst].append(tensor.clone())
        self.sent += tensor.numel() * tensor.element_size()
        return Transfer([None], 0)

    def irecv(self, tensor: Any, src: int) -> Any:
        self.posted[1 - src] += 1
        return Transfer(self.messages[1 - src], self.posted[1 - src] - 1, tensor)


class Transfer:
    """A send that is over, or a receive whose message is copied when it is waited for."""

    def __init__(self, messages: list[Any], place: int, into: Any = None) -> None:
        self.messages, self.place, self.into = messages, place, into

    def done(self) -> bool:
        return self.place < len(self.messages)

    def wait(self) -> None:
        message = self.messages[self.place]
        if message is not None:
            assert (message.dtype, message.shape) == (self.into.dtype, self.into.shape)
            self.into.copy_(message)


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Pipe:
    pipe = Pipe()
    monkeypatch.setattr(edges, "comm", pipe)
    return pipe


def both(coding: Coding) -> tuple[Edge, Edge]:
    like = torch.empty(ROWS, WIDTH)
    return Edge(coding, 1, True, like, nullcontext), Edge(coding, 0, False, like, nullcontext)


def drawn(seed: int) -> Any:
    return torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("coding", CODINGS)
def test_packets_weigh_what_plans_say(pipe: Pipe, coding: Coding) -> None:
    first, second = both(coding)
    second.expect(0)
    assert first.send(0, drawn(0))
    there = pipe.sent
    forward, back = coding.bytes(ROWS, WIDTH)
    assert there == forward + (sizes.LENGTH_BYTES if coding.drifts else 0)
    arrived = second.take(0)
    first.expect(0)
    assert second.send(0, drawn(1))
    assert pipe.sent - there == back
    returned = first.take(0)
    assert (first.sent, second.sent) == (there, back)
    if coding.codec == "threshold":
        # The gradient of what arrived, and of nothing else.
        assert torch.equal(arrived != 0, returned != 0)
        assert torch.equal(returned, drawn(1) * (arrived != 0))
    if not coding.sparse and coding.codec not in ("half", "int8"):
        assert torch.equal(arrived, drawn(0)) and torch.equal(returned, drawn(1))


@pytest.mark.parametrize("coding", CODINGS)
def test_several_micro_batches_are_told_apart(pipe: Pipe, coding: Coding) -> None:
    first, second = both(coding)
    for micro in range(3):
        second.expect(micro)
        first.send(micro, drawn(micro))
    found = []
    for micro in range(3):
        if micro < 2:
            second.expect(micro + 1)
        found.append(second.take(micro))
    alone, other = both(coding)
    for micro in range(3):
        alone.send(micro, drawn(micro))
        assert torch.equal(other.take(micro), found[micro])
    for micro in range(3):
        second.send(micro, drawn(10 + micro))
    for micro in range(3):
        returned = first.take(micro)
        if coding.codec == "threshold":
            assert torch.equal(returned, drawn(10 + micro) * (found[micro] != 0))


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_arrives_as_nan_and_is_told(pipe: Pipe, coding: Coding, value: float) -> None:
    first, second = both(coding)
    bad = drawn(0)
    bad[2, 3] = value
    assert not first.send(0, bad)
    assert bool(second.take(0).isnan().all()) and not second.sound
    assert not second.send(0, bad)
    assert bool(first.take(0).isnan().all()) and not first.sound
    # The next one is sound again.
    assert first.send(1, drawn(1))
    assert bool(second.take(1).isfinite().all()) and second.sound


@given(st.sampled_from(CODECS), st.floats(0.001, 1.0), st.integers(1, 5))
def test_passes_are_no_less_for_sparse_codecs(codec: str, share: float, refresh: int) -> None:
    coding = Coding(codec, share, refresh)
    assert all(each > 0 for way in coding.passes() for each in way)
    assert coding.passes()[0][0] >= Coding().passes()[0][0]
    assert min(coding.bytes(64, 64)) > 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((2, "topk", (0.1, 0.2, 0.3)), "3 shares for 2 edges"),
        ((2, "topk", (0.0,)), "share 0.0"),
        ((2, "topk", (float("nan"),)), "share nan"),
        ((2, "threshold", (0.1,), 0), "refresh=0"),
    ],
)
def test_codings_that_make_no_sense_are_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        codings(*arguments)


def test_an_unknown_codec_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="codec"):
        codings(1, "zip")


def test_stages_make_what_the_whole_makes() -> None:
    shape = LmShape(layers=5, hidden=32, heads=2, ffn=48)
    tokens = torch.randint(256, (2, 9), generator=torch.Generator().manual_seed(0))
    whole = build_lm(shape, 9, 0)
    between = tokens
    for layers in (range(1), range(1, 4), range(4, 5)):
        stage = Stage(build_lm(shape, 9, 0), layers, layers.start == 0, layers.stop == 5)
        between = stage(between)
        assert set(stage.state_dict()) <= set(whole.state_dict())
    assert torch.equal(between, whole(tokens))


@given(st.integers(1, 6), st.integers(1, 9))
def test_every_stage_takes_every_micro_batch_once_in_each_direction(stages: int, micro_batches: int) -> None:
    for stage in range(stages):
        turns = one_forward_one_backward(stage, stages, micro_batches)
        assert len(turns) == len(set(turns)) == 2 * micro_batches
        assert all(turns.index(Turn("forward", m)) < turns.index(Turn("backward", m)) for m in range(micro_batches))


def test_a_device_without_gloo_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("Stages communicate by gloo, on CPUs. " * 400)
    spec = RunSpec("pipeline", corpus=str(tmp_path / "text.txt"), out=str(tmp_path), device="cuda")
    with pytest.raises(InputError, match="on CPUs only"):
        train_pipeline(RunEnv(spec, 0, 1))
