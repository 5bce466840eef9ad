"""The memory model against layouts that ran and layouts that did not.

Reads a table of published training runs (``--rows``; it is not shipped) and prints how many layouts that ran are said
to fit and how many that failed are said not to, per source and by how full the device would be, and what the model says
over what runs measured. Nothing is fitted: every option follows from what a row says. ::

    python benchmarks/memory_model.py --rows ../shared/data/throughput/rows.csv

Left out: mixtures of experts, encoders, states kept in host memory, and the "selective" of FSDP (single operations, or
every other layer), which is another than the one modelled here (the scores of attention).
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import pandas as pd

from densing.core.errors import InputError
from densing.efficiency.simulation.workload import Split, Transformer, Workload, memory

# Megatron-LM before FlashAttention: attention wrote its scores, and recipes had dropout.
WRITTEN_SCORES = ("bigscience", "dlperf", "narayanan", "korthikanti", "vtrain")
ZERO = (("zero3", 3), ("grad-op", 2), ("zero2", 2), ("fsdp", 3), ("hsdp", 3), ("zero1", 1), ("distributed", 1))
GIBIBYTE = 2**30


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", required=True, help="rows.csv of published training runs")
    rows = pd.read_csv(parser.parse_args().rows, low_memory=False)
    rows["need"] = [need(row) for row in rows.to_dict("records")]
    rows["source"] = rows.source_file_id.str.partition("/")[0]
    rows["ran"] = np.where(rows.status == "ok", "ran", "failed")
    known = rows[rows.need.notna() & rows.gpu_mem_gb.notna()].copy()
    known["said"] = np.where(known.need <= known.gpu_mem_gb * 1e9, "fits", "does not fit")
    print(f"{len(known)} of {len(rows)} rows say enough\n")
    print(pd.crosstab([known.source, known.ran], known.said, margins=True).to_string(), "\n")
    full = pd.cut(known.need / (known.gpu_mem_gb * 1e9), [0, 0.2, 0.4, 0.6, 0.8, 1, np.inf]).rename("need / memory")
    print(pd.crosstab(full, [known.source == "playbook", known.ran]).to_string(), "\n")
    measured = known[known.mem_gb_said.fillna(0) >= 5].copy()
    measured["ratio"] = measured.need / (measured.mem_gb_said * GIBIBYTE)
    print("need over what was measured, runs of 5 GiB and more:")
    groups = measured.groupby(["source", "model"]).ratio
    print(groups.describe(percentiles=[0.1, 0.5, 0.9]).round(2).to_string())
    print(f"all: median {measured.ratio.median():.2f}")


def need(row: dict[str, Any]) -> float:
    """Return the bytes per device of a row's layout; NaN where it does not say enough or is left out."""
    gradients = 4 if "fp32 gradient" in str(row["precision"]) else None
    said = str(row["dp_shard"]).lower()
    zero = next((stage for name, stage in ZERO if name in said), 0)
    try:
        return sum(memory(workload(row), zero, gradient_bytes=gradients).values())
    except (InputError, ValueError):
        return np.nan


def workload(row: dict[str, Any]) -> Workload:
    """Return a row's step; a context-parallel group divides the sequence and shards as replicas do.

    Raises
    ------
    ValueError
        When a figure is missing, or the row is of a kind that is left out.
    """
    source, recompute = str(row["source_file_id"]), str(row["recompute"])
    if row["moe"] == 1 or "BERT" in row["model"] or "offload" in str(row["dp_shard"]):
        raise ValueError("left out")
    if recompute.startswith("selective") and not source.startswith(WRITTEN_SCORES):
        raise ValueError("another kind of selective recomputation")
    layers, hidden, heads, ffn, vocabulary, sequence, tp, pp, dp, micro = (
        int(row[key]) for key in ("layers", "hidden", "heads", "ffn_hidden", "vocab", "seq", "tp", "pp", "dp", "mbs")
    )
    kv_heads, parts, context = (
        default if pd.isna(row[key]) else int(row[key])
        for key, default in (("kv_heads", heads), ("grad_acc", 1), ("cp", 1))
    )
    model = Transformer(
        str(row["model"]), layers, hidden, heads, kv_heads, hidden // heads, ffn, vocabulary,
        gated=row["mlp"] == "swiglu", tied=row["tied_embeddings"] == 1,
    )  # fmt: skip
    return Workload(
        model,
        "train",
        micro * parts,
        sequence // context,
        Split(dp * context, tp, pp, sequence=row["sequence_parallel"] == 1 or "sequence parallel" in recompute),
        parts,
        recompute=next((name for name in ("full", "selective") if recompute.startswith(name)), "none"),
        fused_attention=not source.startswith(WRITTEN_SCORES),
        dropout=source.startswith(WRITTEN_SCORES),
    )


if __name__ == "__main__":
    main()
