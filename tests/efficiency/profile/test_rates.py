"""What kernels reach, from traces with a planted product: known TFLOP/s and share of the peak; without shapes none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from densing.cli.profile import screen
from densing.efficiency.profile.run import RunProfile, profile_run
from densing.report.page import render
from densing.report.profile import figures, profile_page
from tests.support.trace_make import LAYOUTS, Event, event, kernel, write

M, K, N, TOOK_US = 1024, 4096, 8192, 200
H100 = [{"name": "NVIDIA H100 80GB HBM3"}]
TFLOPS = 2 * M * K * N / TOOK_US / 1e6
"""343.6 TFLOP/s."""


def planted(
    dtype: str = "c10::BFloat16", on_kernel: bool = True, name: str = "nvjet_gemm", **shapes: Any
) -> list[Event]:
    """Two steps of a product of 200 µs, the sum of its parts (longer) beside it, and a copy of 2 MB in 100 µs."""
    told = shapes or {"Input Dims": [[M, K], [K, N]], "Input type": [dtype] * 2, "Concrete Inputs": ["", ""]}
    rows = []
    for step in (1, 2):
        at, call, number = 1000 * step, {"External id": 10 * step}, 100 * step
        own = call if on_kernel else {}
        rows += [
            event("user_annotation", f"ProfilerStep#{step}", at, 1000),
            event("cpu_op", "aten::matmul", at, 30, **{"External id": 10 * step - 1}, **told),
            event("cpu_op", "aten::mm", at + 1, 20, **call, **told),
            event("cuda_runtime", "cudaLaunchKernel", at + 2, 3, correlation=number, **call),
            event("cuda_runtime", "cudaLaunchKernel", at + 6, 3, correlation=number + 1, **call),
            kernel(name, at + 50, TOOK_US, correlation=number, **own),
            kernel("splitKreduce_kernel", at + 250, 300, correlation=number + 1, **own),
            event("gpu_memcpy", "Memcpy HtoD", at + 600, 100, stream=7, device=0, bytes=2_000_000),
        ]
    return rows


def run_of(path: Path, events: list[Event], devices: list[dict[str, str]] = H100) -> RunProfile:
    return profile_run(write(path / "rank0.json", events, deviceProperties=devices))


def rows_of(run: RunProfile) -> dict[str, Any]:
    return {row["name"]: row for row in (run.names_listing("names", "").rows or ())}


@pytest.mark.parametrize("on_kernel", [True, False])
def test_a_planted_product_reaches_its_rate_and_its_share_of_the_peak(tmp_path: Path, on_kernel: bool) -> None:
    run = run_of(tmp_path, planted(on_kernel=on_kernel))
    rows = rows_of(run)
    assert rows["nvjet_gemm"]["tflops"] == pytest.approx(TFLOPS, rel=1e-12)
    assert rows["nvjet_gemm"]["of_peak"] == pytest.approx(100 * TFLOPS / 989.5, rel=1e-12)
    assert rows["nvjet_gemm"]["intensity"] == pytest.approx(M * K * N / (M * K + K * N + M * N))
    assert rows["Memcpy HtoD"]["gbps"] == pytest.approx(20.0)
    assert rows["splitKreduce_kernel"]["tflops"] is None and rows["Memcpy HtoD"]["tflops"] is None
    assert "peak in bf16 989.5 TFLOP/s" in run.rate_words


def test_operators_read_in_full_give_the_same_rates(tmp_path: Path) -> None:
    path = write(tmp_path / "rank0.json", planted(), deviceProperties=H100)
    assert rows_of(profile_run(path, detail="host")) == rows_of(profile_run(path))


def test_without_shapes_there_is_no_rate_and_the_table_says_why(tmp_path: Path) -> None:
    bare = [one for one in planted() if one["cat"] != "cpu_op"]
    run = run_of(tmp_path, bare)
    assert all(row["tflops"] is None and row["of_peak"] is None for row in rows_of(run).values())
    assert "record_shapes=True" in run.rate_words
    assert "record_shapes=True" in " ".join(screen(run, None, None))
    assert "roofline" not in figures(run)


def test_a_type_or_device_of_unknown_peak_has_a_rate_and_no_share(tmp_path: Path) -> None:
    run = run_of(tmp_path, planted(), [{"name": "ACME 9000"}])
    row = rows_of(run)["nvjet_gemm"]
    assert row["tflops"] == pytest.approx(TFLOPS) and row["of_peak"] is None
    assert "ACME 9000" in run.rate_words
    other = run_of(tmp_path / "b", planted(), [*H100, {"name": "NVIDIA A100-SXM4-40GB"}])
    assert rows_of(other)["nvjet_gemm"]["of_peak"] is None and "devices differ" in other.rate_words


def test_thirty_two_bits_have_the_peak_of_the_arithmetic_that_the_name_tells(tmp_path: Path) -> None:
    tensor = run_of(tmp_path, planted("float", name="sm90_xmma_gemm_f32f32_tf32f32"))
    assert rows_of(tensor)["sm90_xmma_gemm_f32f32_tf32f32"]["of_peak"] == pytest.approx(100 * TFLOPS / 494.5)
    # 344 TFLOP/s is beyond what 32 bits reach: no share, and a sentence.
    above = run_of(tmp_path / "b", planted("float"))
    assert rows_of(above)["nvjet_gemm"]["of_peak"] is None and "nvjet_gemm is above it" in above.rate_words


def test_the_page_has_a_roofline_of_the_product_under_its_roofs(tmp_path: Path) -> None:
    run = run_of(tmp_path, planted())
    roof, marks = json.loads(figures(run)["roofline"].json)["data"]
    assert max(roof["y"]) == pytest.approx(989.5e12, rel=1e-6)
    assert min(roof["y"]) == pytest.approx(3.35e12 * min(roof["x"]), rel=1e-6)
    assert marks["y"][0] == pytest.approx(TFLOPS * 1e12, rel=1e-6)
    page = render(profile_page(run))
    assert "operands&#39; minimum" in page or "operands' minimum" in page


@pytest.mark.parametrize("dims", [[[M, K]], [[M, K], [M, N]], "text", [[-1, 2], [2, 3]], [[10**30, 2], [2, 3]]])
def test_damaged_shapes_are_no_shapes(tmp_path: Path, dims: Any) -> None:
    run = run_of(tmp_path, planted(**{"Input Dims": dims, "Input type": ["float"] * 2}))
    assert rows_of(run)["nvjet_gemm"]["tflops"] is None and run.figures["skipped_events"] == 0


@pytest.mark.parametrize("layout", LAYOUTS)
def test_shapes_are_found_in_every_layout_of_the_text(tmp_path: Path, layout: str) -> None:
    path = write(tmp_path / "rank0.json", planted(), layout, deviceProperties=H100)
    assert rows_of(profile_run(path))["nvjet_gemm"]["tflops"] == pytest.approx(TFLOPS, rel=1e-12)
