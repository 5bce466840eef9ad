"""Published speeds of large runs against the cost model: steps of GPT-3 and Llama 3, none of them in its fit.

They are simulated as `densing techniques compare` and `plan` simulate theirs, with constants that never saw the source.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import pandas as pd

from densing.core import formatting
from densing.efficiency.systems.claims import Answer, Claim, Physics
from densing.efficiency.systems.layouts import measured_run
from densing.efficiency.throughput import frozen, read_runs

GPT3: Mapping[str, Any] = {
    "row_id": "gpt-3", "source_file_id": "korthikanti2022",
    "framework": "Megatron-LM", "layers": 96, "hidden": 12288, "heads": 96, "vocab": 51200,
    "tied_embeddings": 1, "seq": 2048, "gpu": "A100-80GB", "gpus": 64, "tp": 8, "pp": 8, "vpp": 3, "mbs": 1, "gbs": 64,
    "recompute": "selective + sequence parallel",
}  # fmt: skip
LLAMA: Mapping[str, Any] = {
    "row_id": "llama-3-405b", "framework": "Megatron-Core", "layers": 126, "hidden": 16384, "heads": 128, "kv_heads": 8,
    "ffn_hidden": 53248, "mlp": "swiglu", "vocab": 128256, "tied_embeddings": 0, "seq": 8192, "gpu": "H100", "tp": 8,
    "pp": 16, "sequence_parallel": 1, "dp_shard": "zero2", "mbs": 1,
    "recompute": "none", "gbs": 2048,
}  # fmt: skip


def step_of(row: Mapping[str, Any], physics: Physics) -> tuple[float, float]:
    """Return seconds of a row's simulated step, and its share of the peak by PaLM's count, under some laws."""
    table = read_runs(pd.DataFrame([row]))
    runs = table.runs
    constants, _ = frozen().of(table.constants, table.about.source[0])
    technique, workload, cluster, settings = measured_run(runs, constants)
    seconds = physics.measure(technique, workload, cluster, **settings).step_s
    speed = runs.tokens[0] / seconds
    return seconds, float(speed * runs.flops_per_token[0] / (runs.devices[0] * runs.flops[0]))


def _step_seconds(row: Mapping[str, Any], physics: Physics) -> Answer:
    seconds, mfu = step_of(row, physics)
    return Answer(seconds, f"MFU {formatting.percent(100 * mfu)}; constants {frozen().sha256[:12]}")


def _share_of_peak(row: Mapping[str, Any], physics: Physics) -> Answer:
    """The range over the stages that a device may interleave, which is not published."""
    shares = [100 * step_of({**row, "vpp": virtual}, physics)[1] for virtual in STAGES]
    each = ", ".join(f"{share:.1f} with {virtual}" for virtual, share in zip(STAGES, shares, strict=True))
    note = f"depends on the stages per device, which are not published: {each}; constants {frozen().sha256[:12]}"
    low, high = min(shares), max(shares)
    return Answer(f"{low:.0f} to {high:.0f}", note, (low, high))


def _llama(**changes: Any) -> Mapping[str, Any]:
    return {**LLAMA, **changes}


SLIDE = (
    "Balaji, SC 2024, as quoted by glennklockwood.com (430, 400 and 380 TFLOP/s of 989); vocabulary, width and depth "
    "of arXiv 2407.21783"
)
INPUTS = "model, layout, data sheets; the source does not say how operations are counted (here: full attention)"
STAGES = (1, 2, 4, 7)
"""Stages per device that 126 layers allow in 16 stages, evenly or nearly so."""

CLAIMS: tuple[Claim, ...] = (
    Claim("MEG-1", "seconds per iteration", "GPT-3 175B, 64 A100, tp 8, pp 8, selective recomputation", 13.75, "s",
          "second-hand", "Korthikanti et al., arXiv 2205.05198, table 5, as quoted in our notes",
          partial(_step_seconds, GPT3), 0.1,
          inputs="model, layout, data sheets; constants fitted without this paper's other rows",
          assumptions={"no interleaved stages": lambda: _step_seconds({**GPT3, "vpp": 1}, Physics())}),
    *(
        Claim(f"L3-{number}", "share of the peak", f"Llama 3 405B, {row['gpus']:,} H100, {row['seq']:,} tokens",
              published, "%", "second-hand", SLIDE, partial(_share_of_peak, row), 0.1, inputs=INPUTS)
        for number, (published, row) in enumerate((
            (43.5, _llama(gpus=8192)), (40.4, _llama(gpus=16384)),
            (38.4, _llama(gpus=16384, seq=131072, cp=16, gbs=128)),
        ), 1)
    ),
)  # fmt: skip
