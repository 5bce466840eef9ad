"""Stage 2: what a device does, as `densing profile` reads it in a trace and as the device's own events say."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.record import Session
from benchmarks.gpu.timing import Marks, on, stream, synchronize
from densing import profile_run
from densing.efficiency.timeline import union
from densing.scores.ladder.runs import Shape
from densing.scores.ladder.trainer import batch_loss, build_model
from densing.timeline import record

STEPS = 3
SMALL = Shape("small", 512, 12, 8, 2, 64, 1280, 16, ())
LARGE = Shape("1B", 2048, 22, 32, 4, 64, 5632, 4, ())
MICRO = Shape("micro", 16, 2, 2, 1, 8, 40, 2, ())

Step = Callable[[Marks], None]


def run(session: Session) -> None:
    """Record every scene."""
    planted(session, "copies beside products", stall_s=0.0)
    planted(session, "a planted stall", stall_s=0.02)
    small, large = session.size(MICRO, SMALL), session.size(MICRO, LARGE)
    for compiled in (False, True):
        for shape in (small, large):
            training(session, f"a training step of {shape.name}{', compiled' * compiled}", shape, compiled)
            if session.dry:
                break
    generation(session)


def profiled(session: Session, scene: str, step: Step, **about: Any) -> None:
    """Record steps of a scene, and keep what its profile and its events say."""
    device, folder = session.torch_device, session.work / "traces" / f"{scene}-{time.time_ns()}".replace(" ", "-")
    # The recorder discards its first step; these marks are of the others.
    step(Marks(device))
    with record(folder, wait=0, warmup=1, active=STEPS) as tick:
        step(Marks(device))
        synchronize(device)
        tick()
        marks = Marks(device)
        for _ in range(STEPS):
            step(marks)
            synchronize(device)
            tick()
    pieces = marks.intervals()
    part = profile_run(folder).ranks[0].partition
    session.read_from(scene, next(folder.glob("rank*")))
    busy = part.span_ns - (part.idle_ns - (part.window_ns - part.span_ns))
    found = {"busy": busy, "idle": part.span_ns - busy, "hidden": part.memcpy_ns - part.exposed_memcpy_ns}
    truth = by_events(pieces)
    for name in found:
        session.add(
            "pieces", scene=scene, what=name, profile_us=found[name] / 1e3 / STEPS, events_us=truth[name] / 1e3 / STEPS,
            error_us=(found[name] - truth[name]) / 1e3 / STEPS, **about,
        )  # fmt: skip


def by_events(pieces: list[tuple[str, int, int]]) -> dict[str, int]:
    """Return the nanoseconds that pieces of work keep a device busy, leave it idle, and hide copies.

    Examples
    --------
    >>> by_events([("compute", 0, 10), ("copy", 5, 20), ("compute", 30, 40)])
    {'busy': 30, 'idle': 10, 'hidden': 5}
    """

    def spans(*kinds: str) -> Any:
        ends = np.array([(start, end) for kind, start, end in pieces if kind in kinds], dtype=np.int64).reshape(-1, 2)
        return union(ends[:, 0], ends[:, 1])

    def length(which: Any) -> int:
        return int((which[1] - which[0]).sum())

    every = spans("compute", "copy")
    busy, copies, compute = length(every), spans("copy"), spans("compute")
    hidden = length(copies) + length(compute) - busy
    return {"busy": busy, "idle": int(every[1][-1] - every[0][0]) - busy, "hidden": hidden}


def planted(session: Session, scene: str, stall_s: float) -> None:
    """Products on one stream and copies to the host on another, and in between nothing, where a stall is planted."""
    device, n = session.torch_device, session.size(192, 8192)
    left = torch.randn(n, n, device=device, dtype=session.size(torch.float32, torch.bfloat16))
    host = torch.empty(left.shape, dtype=left.dtype, pin_memory=device != "cpu")
    products, copies = stream(device), stream(device)

    def step(marks: Marks) -> None:
        with on(products), marks.piece("compute", products):
            for _ in range(4):
                left @ left
        with on(copies), marks.piece("copy", copies):
            host.copy_(left, non_blocking=True)
        if stall_s:
            synchronize(device)
            time.sleep(stall_s)
            with on(products), marks.piece("compute", products):
                left @ left

    profiled(session, scene, step, planted_us=1e6 * stall_s)


def training(session: Session, scene: str, shape: Shape, compiled: bool) -> None:
    """Forward, backward and update, one piece: gaps between its kernels are idle to a profile alone."""
    device, block, words = session.torch_device, session.size(32, 1024), session.size(64, 32768)
    model: Any = build_model(shape, words, block, 0, device)
    # The compiler proper takes minutes of a processor; that graphs are captured is what the small size can show.
    called = torch.compile(model, backend=session.size("eager", "inductor")) if compiled else model
    optimiser = torch.optim.AdamW(model.parameters(), fused=True)
    batch = torch.randint(words, (shape.batch, block + 1), device=device)

    def step(marks: Marks) -> None:
        with marks.piece("compute"):
            batch_loss(called, batch, "bfloat16").backward()
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)

    profiled(session, scene, step, parameters=shape.total(words), tokens=shape.batch * block)


def generation(session: Session) -> None:
    """Sixteen tokens, one after the other."""
    device = session.torch_device
    if session.dry:
        model = build_model(MICRO, 64, 32, 0)
    else:
        from densing.scores.evals import Loading, identify_model, load_model, plan_of

        [spec] = plan_of({"models": ["smollm2-135m"], "tasks": ["olmo_ladder"]}, "stage traces").models
        model = load_model(spec, Loading(device="cuda:0"), identify_model(spec)).lm.model
    prompt = torch.randint(3, 60, (1, 16), device=device)

    def step(marks: Marks) -> None:
        with marks.piece("compute"), torch.no_grad():
            model.generate(prompt, max_new_tokens=session.size(2, 16), min_new_tokens=2, do_sample=False)

    profiled(session, "generation of tokens, one by one", step)
