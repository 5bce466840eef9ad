"""Stage 3: what the cost model assumes of a device, measured: products, attention, memory, launches, data sheet."""

from __future__ import annotations

from typing import Any

import pandas as pd
import torch
from torch.nn import functional

from benchmarks.gpu.record import Session
from benchmarks.gpu.timing import seconds
from densing.efficiency.throughput import (
    Constants,
    device_of,
    device_sheet,
    frozen,
    layer_seconds,
    product_seconds,
    read_runs,
)
from densing.scores.ladder.runs import Shape
from densing.scores.ladder.trainer import build_model

ASSUMED = "H200"
"""Whose data sheet the small size predicts with, and a device that has none."""
TOKENS, WIDTHS = (2048, 8192, 16384), (1024, 2048, 4096, 8192)
SEQUENCES, HEADS, HEAD_WIDTH = (1024, 2048, 8192), 32, 128
BYTES = (1 << 26, 1 << 28, 1 << 30)
LAUNCHES = 64


def run(session: Session) -> None:
    """Measure, each beside what the cost model says."""
    name = session.record.device.get("name", "")
    device = name if device_of(name) else ASSUMED
    constants, _ = frozen().of([device_of(device)])
    session.add("predicted for", device=device, generation=device_of(device), **{
        field: float(constants[field][0]) for field in Constants.__struct_fields__
    })  # fmt: skip
    sheet(session, device)
    best = products(session, device, constants)
    scores = attention(session, device, constants)
    moved = memory(session, device, constants)
    launch = launches(session)
    figures = device_sheet(device)
    measured = {
        "products": best / figures["flops16"], "memory": moved / figures["mem_bw"],
        "attention": scores / figures["flops16"], "launch_s": launch,
    }  # fmt: skip
    for constant, value in measured.items():
        session.add("constants", constant=constant, measured=value, fitted=float(constants[constant][0]))


def sheet(session: Session, device: str) -> None:
    """Set what the driver says of the device beside the data sheet's row."""
    found, known = session.record.device, device_sheet(device)
    for figure, column in (("memory_gb", "memory_gb"), ("units", "units"), ("watts", "power")):
        session.add("data sheet", figure=column, row=known[column], driver=found.get(figure))


def device_row(device: str, **changes: Any) -> Any:
    """Return one device with one layer of a model, as the cost model's table has it."""
    row = {
        "row_id": "stage", "layers": 1, "hidden": HEADS * HEAD_WIDTH, "heads": HEADS, "seq": 2048, "gpu": device,
        "gpus": 1, "gbs": 1, "mbs": 1, "precision": "bf16", "recompute": "none",
    }  # fmt: skip
    return read_runs(pd.DataFrame([row | changes])).runs


def products(session: Session, device: str, constants: dict[str, Any]) -> float:
    """Measure matrix products in 16 bits; return the most operations a second."""
    best, runs = 0.0, device_row(device)
    for tokens in session.size((64,), TOKENS):
        for width in session.size((64, 128), WIDTHS):
            # Queries, keys and values; first and second of an MLP.
            for inner, columns in ((width, 3 * width), (width, 4 * width), (4 * width, width)):
                left = torch.randn(tokens, inner, device=session.torch_device, dtype=torch.bfloat16)
                right = torch.randn(inner, columns, device=session.torch_device, dtype=torch.bfloat16)
                taken = seconds(lambda a=left, b=right: a @ b, session.torch_device, session.size(2, 20))
                predicted = float(product_seconds(runs, constants, (tokens, inner, columns))[0])
                rate = 2 * tokens * inner * columns / taken
                best = max(best, rate)
                session.add(
                    "products", rows=tokens, inner=inner, columns=columns, us=1e6 * taken, predicted_us=1e6 * predicted,
                    ratio=taken / predicted, tflops=rate / 1e12,
                )  # fmt: skip
    return best


def attention(session: Session, device: str, constants: dict[str, Any]) -> float:
    """Measure fused causal attention forward and backward; return the most operations a second, both together."""
    best = 0.0
    for length in session.size((64,), SEQUENCES):
        heads, width = session.size((2, 16), (HEADS, HEAD_WIDTH))
        batch = max(1, session.size(64, 16384) // length)
        parts = [
            torch.randn(
                batch, heads, length, width, device=session.torch_device, dtype=torch.bfloat16, requires_grad=True
            )
            for _ in range(3)
        ]
        upstream = torch.randn_like(parts[0])
        layer, _ = layer_seconds(device_row(device, seq=length, mbs=batch, gbs=batch, hidden=heads * width), constants)
        forward = seconds(
            lambda p=parts: functional.scaled_dot_product_attention(*p, is_causal=True), session.torch_device,
            session.size(2, 20),
        )  # fmt: skip
        both = seconds(
            lambda p=parts, up=upstream: torch.autograd.grad(
                functional.scaled_dot_product_attention(*p, is_causal=True), p, up
            ),
            session.torch_device, session.size(2, 20),
        )  # fmt: skip
        predicted = float(layer.core[0])
        # Half of 4 T s d under a causal mask forward, two and a half times that backward.
        rate = 3.5 * 2 * batch * heads * length**2 * width / both
        best = max(best, rate)
        session.add(
            "attention", sequence=length, batch=batch, forward_us=1e6 * forward, predicted_us=1e6 * predicted,
            ratio=forward / predicted, forward_backward_us=1e6 * both, tflops=rate / 1e12,
        )  # fmt: skip
    return best


def memory(session: Session, device: str, constants: dict[str, Any]) -> float:
    """Measure element-wise work; return the most bytes a second."""
    best, bandwidth = 0.0, device_sheet(device)["mem_bw"] * float(constants["memory"][0])
    for size in session.size((1 << 16,), BYTES):
        x = torch.randn(size // 2, device=session.torch_device).to(torch.bfloat16)
        y = torch.empty_like(x)
        taken = seconds(lambda a=x, b=y: torch.add(a, 1, out=b), session.torch_device, session.size(2, 20))
        best = max(best, 2 * size / taken)
        session.add(
            "memory", bytes=2 * size, us=1e6 * taken, predicted_us=2e6 * size / bandwidth, gb_s=2 * size / taken / 1e9
        )
    return best


def launches(session: Session) -> float:
    """Measure kernels that do nothing, one after another; return the seconds of a layer's, forward."""
    x = torch.zeros(1, device=session.torch_device)

    def many() -> None:
        for _ in range(LAUNCHES):
            x.add_(1)

    each = seconds(many, session.torch_device, session.size(2, 50)) / LAUNCHES
    session.add("launches", kernels=LAUNCHES, us_each=1e6 * each)
    width = session.size(16, HEAD_WIDTH)
    # The smallest layer there is takes its launches and nothing else.
    model = build_model(Shape("empty", 2 * width, 1, 2, 1, width, 64, 1, ()), 8, 8, 0, session.torch_device)
    tokens = torch.zeros(1, 8, dtype=torch.int64, device=session.torch_device)
    states = model.model.embed_tokens(tokens)
    turns = model.model.rotary_emb(states, torch.arange(8, device=session.torch_device)[None])

    def layer() -> None:
        with torch.no_grad():
            model.model.layers[0](states, position_embeddings=turns, attention_mask=None)

    taken = seconds(layer, session.torch_device, session.size(2, 50))
    session.add("launches", kernels="one layer forward", us_each=1e6 * taken)
    return taken
