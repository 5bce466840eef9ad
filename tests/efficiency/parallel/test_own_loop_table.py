"""What goes with what in one's own loop: each cell of the table in the docs, run on two ranks over gloo.

It is its own script: ``python -m tests.efficiency.parallel.test_own_loop_table write`` runs it and rewrites the table.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("this build of torch has no torch.distributed", allow_module_level=True)

from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from densing import training  # noqa: E402
from densing.core import InputError  # noqa: E402
from densing.efficiency.parallel.data_parallel.flat import local  # noqa: E402
from tests.support.folders import ROOT  # noqa: E402
from tests.support.gloo_ranks import fork_ranks, ranks_of  # noqa: E402

pytestmark = pytest.mark.slow

PAGE = ROOT / "docs" / "how-to" / "own-loop.md"
BEGIN, END = "<!-- table: what goes with what -->\n", "<!-- end of the table -->\n"
COLUMNS = ("accumulation", "GradScaler", "bf16 autocast", "torch.compile", "FSDP2")
WIDTH, STEPS, BAD, TAU = 24, 8, 4, 2

ROUNDS: dict[str, Callable[..., Any]] = {
    "`LocalSGD`": lambda model, optimizer, **more: training.LocalSGD(model, optimizer, TAU, **more),
    "`SlowMo`": lambda model, optimizer, **more: training.SlowMo(model, optimizer, TAU, **more),
    "`CO2`": lambda model, optimizer, **more: training.CO2(model, optimizer, TAU, outer_momentum=0.2, **more),
    "`DiLoCo`": lambda model, optimizer, **more: training.DiLoCo(model, optimizer, TAU, outer_momentum=0.2, **more),
    "`DiLoCo(fragments=2, delay=1)`": lambda model, optimizer, **more: training.DiLoCo(
        model, optimizer, 2 * TAU, outer_momentum=0.2, fragments=2, delay=1, mix=0.5, **more
    ),
    "`Outer(codec=Int8)`": lambda model, optimizer, **more: training.Outer(
        model, optimizer, TAU, codec=training.Int8, outer_optimizer=training.Nesterov(momentum=0.2), **more
    ),
    "`Federated`": lambda model, optimizer, **more: training.Federated(model, optimizer, TAU, **more),
    "`Federated(mu=0.1)`": lambda model, optimizer, **more: training.Federated(model, optimizer, TAU, mu=0.1, **more),
    "`FedFT`": lambda model, optimizer, **more: training.FedFT(model, optimizer, TAU, keep=0.7, **more),
    "`SpaFL`": lambda model, optimizer, **more: training.SpaFL(model, optimizer, TAU, lam=1e-3, **more),
}
SYNCHRONOUS: dict[str, Callable[..., Any]] = {
    "`Synchronous(codec=Int8)`": lambda model, optimizer, **more: training.Synchronous(
        model, optimizer, training.Int8, **more
    ),
    "`DCT`": lambda model, optimizer, **more: training.DCT(model, optimizer, eta=0.9, refresh=3, **more),
    "`TopKGradients`": lambda model, optimizer, **more: training.TopKGradients(model, optimizer, share=0.1, **more),
    "`PowerSGD`": lambda model, optimizer, **more: training.PowerSGD(model, optimizer, rank=2, **more),
}
HOOKS: dict[str, tuple[str, dict[str, Any]]] = {
    '`ddp_hook("int8")`': ("int8", {}),
    '`ddp_hook("top-k")`': ("top-k", {"share": 0.1}),
    '`ddp_hook("dct")`': ("dct", {"eta": 0.9, "refresh": 3}),
    '`ddp_hook("powersgd")`': ("powersgd", {"rank": 2}),
}
ROWS = (*ROUNDS, *SYNCHRONOUS, *HOOKS)


class Network(torch.nn.Module):
    """A class of one's own: of torch's own modules inside DDP torch compiles nothing."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = torch.nn.Linear(WIDTH, 32), torch.nn.Linear(32, WIDTH)

    def forward(self, x: Any) -> Any:
        return self.second(torch.tanh(self.first(x)))


def batch(rank: int, step: int) -> Any:
    return torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(100 * rank + step))


class Loop:
    """One's own loop with one row's technique: the lines that a user writes.

    Parameters
    ----------
    row : str
    scaler : GradScaler, optional
    model : Module, optional
    compiled : bool
        Whether the forward pass is compiled, after wrapping.
    bucket_mb : float
        Of DistributedDataParallel.
    **more
        Options of the technique.
    """

    def __init__(
        self,
        row: str,
        *,
        scaler: Any = None,
        model: Any = None,
        compiled: bool = False,
        bucket_mb: float = 0.002,
        **more: Any,
    ) -> None:
        self.row, self.scaler, self.inner = row, scaler, Network() if model is None else model
        self.optimizer = torch.optim.SGD(self.inner.parameters(), lr=0.05, momentum=0.5)
        self.method: Any = None
        if row in HOOKS:
            self.forward = DistributedDataParallel(self.inner, bucket_cap_mb=bucket_mb)
            name, options = HOOKS[row]
            self.hook = training.ddp_hook(name, self.forward, scaler=scaler, **options)
        else:
            self.method = (ROUNDS | SYNCHRONOUS)[row](self.inner, self.optimizer, **more)
            self.forward = self.method.model
        self.no_sync: Callable[[], AbstractContextManager[None]] = getattr(self.forward, "no_sync", nullcontext)
        if compiled:
            self.forward = torch.compile(self.forward, backend="aot_eager")

    def loss(self, samples: Any) -> Any:
        return (self.forward(samples) - samples.flip(1)).square().mean()

    def step(self) -> None:
        if self.scaler is None:
            (self.method or self.optimizer).step()
            return
        if self.row in SYNCHRONOUS:
            self.method.step(self.scaler)
        else:
            self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.row in ROUNDS:
            self.method.advance()

    def finish(self) -> Any:
        """Return the parameters, after the end of all rounds."""
        if self.method is not None:
            self.method.finish()
        return torch.cat([local(p).flatten() for p in self.inner.parameters()])


def plain(row: str, rank: int, **options: Any) -> Any:
    loop = Loop(row, **options)
    for step in range(STEPS):
        loop.optimizer.zero_grad()
        loop.loss(batch(rank, step)).backward()
        loop.step()
    return loop.finish()


def near(one: Any, other: Any) -> None:
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def equal_ranks(row: str, vector: Any) -> None:
    """SpaFL's clients have weights of their own; all others end with the same."""
    others = [torch.empty_like(vector) for _ in range(2)]
    torch.distributed.all_gather(others, vector)
    assert torch.equal(others[0], others[1]) == (row != "`SpaFL`")


def accumulation(row: str, rank: int) -> str:
    """Two backward passes of half a batch are one of the whole."""
    loop = Loop(row)
    for step in range(STEPS):
        loop.optimizer.zero_grad()
        first, second = batch(rank, step).chunk(2)
        with loop.no_sync():
            (loop.loss(first) / 2).backward()
        (loop.loss(second) / 2).backward()
        loop.step()
    near(loop.finish(), plain(row, rank))
    return "works with `no_sync()`" if loop.no_sync is not nullcontext else "works"


def scaled(row: str, rank: int) -> str:
    """A scaled run in which rank 1 overflows once is the unscaled one without that step: of rank 1, or of all ranks."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)
    loop, reference = Loop(row, scaler=scaler), Loop(row)
    scales, skips = [], rank == 1 or row not in ROUNDS
    for step in range(STEPS):
        loop.optimizer.zero_grad()
        loss = scaler.scale(loop.loss(batch(rank, step)))
        (loss * (torch.tensor(3e38) if (step, rank) == (BAD, 1) else 1.0)).backward()
        loop.step()
        scales.append(scaler.get_scale())
        if step == BAD and skips:
            if row in ROUNDS:
                reference.method.advance()
            continue
        reference.optimizer.zero_grad()
        reference.loss(batch(rank, step)).backward()
        reference.step()
    assert (scales[BAD] == scales[BAD - 1] / 2) == skips
    vector = loop.finish()
    near(vector, reference.finish())
    equal_ranks(row, vector)
    if row in ROUNDS:
        return "works with `advance()`"
    return "works with `step(scaler)`" if row in SYNCHRONOUS else "works with `scaler=`"


def trains_alike(row: str, rank: int, one: dict[str, Any], other: dict[str, Any], *, half: bool = False) -> None:
    """The loss on fresh samples falls alike in two ways, to a tenth of the way of the other one."""
    ends = []
    for options in (one, other):
        loop = Loop(row, **options)
        begin = loop.inner(batch(7, 7)).sub(batch(7, 7).flip(1)).square().mean().item()
        for step in range(3 * STEPS):
            loop.optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=half and options is one):
                loss = loop.loss(batch(rank, step))
            loss.backward()
            loop.step()
        equal_ranks(row, loop.finish())
        ends.append(loop.inner(batch(7, 7)).sub(batch(7, 7).flip(1)).square().mean().item())
    assert ends[1] < begin and abs(ends[0] - ends[1]) < 0.1 * (begin - ends[1])


def autocast(row: str, rank: int) -> str:
    """In bfloat16 the loss falls as in float32."""
    trains_alike(row, rank, {}, dict[str, Any](), half=True)
    return "works"


def compiled(row: str, rank: int) -> str:
    """A compiled forward pass trains as an eager one, and is compiled: torch counts its graphs."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    # At buckets torch cuts the graph of a model in DDP; the first one it expects has 1 MiB.
    compiled_too, eager = {"compiled": True, "bucket_mb": 1}, {"bucket_mb": 1}
    if "owersgd" in row.lower():
        # Gradients are ready in another order, in which the first factors are drawn.
        trains_alike(row, rank, compiled_too, eager)
    else:
        near(plain(row, rank, **compiled_too), plain(row, rank, **eager))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0
    return "works"


def fsdp2(row: str, rank: int) -> str:
    """Across the outer dimension of a mesh; the inner one has one rank here, and two in test_sharded.py."""
    from torch.distributed.fsdp import fully_shard

    model, mesh = Network(), torch.distributed.init_device_mesh("cpu", (2, 1), mesh_dim_names=("outer", "inner"))
    fully_shard(model, mesh=mesh["inner"])
    if row in HOOKS:
        with pytest.raises((AssertionError, NotImplementedError), match="does not have a sharding strategy"):
            Loop(row, model=model)
        return "no: nor has DDP"
    near(plain(row, rank, model=model, group=mesh["outer"]), plain(row, rank))
    return "works with `group=`"


CELLS = dict(zip(COLUMNS, (accumulation, scaled, autocast, compiled, fsdp2), strict=True))


def everything(rank: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for row in ROWS:
        for column, cell in CELLS.items():
            try:
                found[f"{row} {column}"] = cell(row, rank)
            except InputError as error:
                found[f"{row} {column}"] = f"refused: {error}"
    return found


def rendered(found: dict[str, str]) -> str:
    """Return the table, and below it the sentences of what is refused."""
    sentences: list[str] = []
    lines = [f"| | {' | '.join(COLUMNS)} |", "|---" * (1 + len(COLUMNS)) + "|"]
    for row in ROWS:
        cells = []
        for column in COLUMNS:
            text = found[f"{row} {column}"]
            if text.startswith("refused: "):
                sentence = text.removeprefix("refused: ").partition(": ")[2]
                if sentence not in sentences:
                    sentences.append(sentence)
                text = f"refused ({sentences.index(sentence) + 1})"
            cells.append(text)
        lines.append(f"| {row} | {' | '.join(cells)} |")
    numbered = [f"{number}. *{sentence}*" for number, sentence in enumerate(sentences, 1)]
    return "\n".join([*lines, "", *numbered, ""])


def parts() -> tuple[str, str, str]:
    head, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    table, _, tail = rest.partition(END)
    return head, table, tail


def test_the_table_says_what_every_cell_did(tmp_path: Path) -> None:
    first, second = ranks_of(__file__, 2, tmp_path)
    assert first == second
    assert parts()[1] == rendered(first), "run python -m tests.efficiency.parallel.test_own_loop_table write"


if __name__ == "__main__":
    if sys.argv[-1] == "write":
        with tempfile.TemporaryDirectory() as folder:
            table = rendered(ranks_of(__file__, 2, Path(folder))[0])
        head, _, tail = parts()
        PAGE.write_text(f"{head}{BEGIN}{table}{END}{tail}", encoding="utf-8")
    else:
        fork_ranks(lambda rank, _: everything(rank))
