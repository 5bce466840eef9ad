"""Records of gains as ``densing ladder gain`` leaves them, made by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def arm(name: str, ratio: float | None, cost: float | None, **more: Any) -> dict[str, Any]:
    """Return an arm's figures: bytes ``cost``, seconds a thousandth of it, joules twice that."""
    low, high = (None, None) if ratio is None else (0.9 * ratio, 1.1 * ratio)
    paid = {
        "bytes": cost,
        "seconds": None if cost is None else cost / 1000,
        "joules": None if cost is None else 2 * cost,
    }
    return {"arm": name, "density_ratio": ratio, "density_lo": low, "density_hi": high, "token_ratio": 1.0,
            "token_lo": 0.9, "token_hi": 1.1, **paid, "kept_parameters": 5000.0, "pairs": 8, "status": "ok",
            "no_loss": "not decided", **more}  # fmt: skip


def record(*figures: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return a record of two sizes, two budgets and two seeds; plain sends 1,000 bytes."""
    spec = {
        "preset": "cpu", "baseline": "plain", "sizes": ["d8", "d12"], "tokens": [1e5, 2e5], "seeds": [0, 1],
        "link": None, "level": 0.95, "baseline_cost": {"bytes": 1000.0, "seconds": 36.0, "joules": 50.0},
    }  # fmt: skip
    return {"kind": "gain", "schema": 1, "digest": "ab12cd34" * 8, "versions": {}, "figures": list(figures),
            "spec": spec, "evidence": {"joules": "stated: 15 W per busy core"}, **more}  # fmt: skip


def written(folder: Path, content: Any, name: str = "gain.json") -> Path:
    """Write a document; text as it is."""
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path
