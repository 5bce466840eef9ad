"""One row of a table of training runs, to be changed cell by cell."""

from __future__ import annotations

from typing import Any

ROW: dict[str, Any] = {
    "row_id": "a", "framework": "Megatron-LM", "layers": 24, "hidden": 2048, "heads": 16, "seq": 2048, "vocab": 51200,
    "gpu": "A100-80GB", "gpus": 64, "tp": 4, "pp": 2, "dp": 8, "mbs": 2, "gbs": 128, "recompute": "full",
    "tokens_per_s": 1e5,
}  # fmt: skip
