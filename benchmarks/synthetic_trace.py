"""A trace in the shape of a profiled data-parallel step, for benchmarks on machines without a real one."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

LAYERS, STEPS = 120, 3


def write_synthetic(path: Path, rank: int = 0, world: int = 2) -> int:
    """Write a trace of ``STEPS`` steps with about 40 000 events; return their number."""
    events: list[dict[str, Any]] = []
    for step in range(STEPS):
        events += one_step(step, 1_000_000.0 + step * 250_000.0)
    head = {"schemaVersion": 1, "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world}}
    path.write_text(json.dumps({**head, "traceEvents": events}, indent=1))
    return len(events)


def one_step(step: int, start: float) -> list[dict[str, Any]]:
    """Return the events of a step: operators, launches, kernels, an all-reduce for every sixth layer."""
    mark = event("user_annotation", f"ProfilerStep#{step}", start, 240_000.0)
    events, moment = [mark], start + 10.0
    for layer in range(LAYERS):
        for part in range(20):
            number = (step * LAYERS + layer) * 100 + part
            moment += 20.0
            events.append(
                event("cpu_op", "aten::linear", moment, 18.0, {"External id": number, "Sequence number": part})
            )
            events.append(event("cpu_op", "aten::addmm", moment + 1, 15.0, {"External id": number}))
            launch = {"External id": number, "cbid": 211, "correlation": number}
            events.append(event("cuda_runtime", "cudaLaunchKernel", moment + 5, 6.0, launch))
            flow = {"ph": "s", "id": number, "pid": 1, "tid": 1, "ts": moment + 5, "cat": "ac2g", "name": "ac2g"}
            events.append(flow)
            events.append({**flow, "ph": "f", "tid": 7, "pid": 0, "ts": moment + 40, "bp": "e"})
            if part < 8:
                name = f"void at::native::vectorized_elementwise_kernel<4, Functor{part}>"
                if layer % 6 == 0 and part == 7:
                    name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
                stream = 20 if name.startswith("nccl") else 7
                args = {"device": 0, "stream": stream, "correlation": number, "grid": [64, 1, 1], "block": [256, 1, 1]}
                events.append(event("kernel", name, moment + 40, 30.0 if stream == 7 else 90.0, args, 0, stream))
    return events


def event(
    category: str, name: str, ts: float, dur: float, args: dict[str, Any] | None = None, pid: int = 1, tid: int = 1
) -> dict[str, Any]:
    """Return one complete event."""
    return {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": round(ts, 3), "dur": dur} | (
        {"args": args} if args else {}
    )


if __name__ == "__main__":
    print(f"{write_synthetic(Path(sys.argv[1])):,} events")
