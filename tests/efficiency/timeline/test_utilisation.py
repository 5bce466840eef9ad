"""MFU and HFU: the papers' own figures, to their printed digits; peaks of real device names."""

from __future__ import annotations

import json

import pytest

from densing.core.errors import InputError, UnknownNameError
from densing.efficiency.timeline.utilisation import (
    Utilisation,
    find_peak,
    given_peak,
    hfu,
    known_peaks,
    megatron_flops,
    mfu,
    model_flops,
    mosaicml_flops,
    palm_flops,
)

# Korthikanti et al., arXiv 2205.05198, table 5: batch, layers, hidden, devices, seconds per iteration; then MFU and
# HFU (selective recomputation) in percent as printed there, with s = 2048, V = 51200 and 312 TFLOP/s; model FLOPs
# and the percentages with two digits as recomputed by hand.
MEGATRON = {
    "22B": (4, 48, 6144, 8, 1.10, 41.5, 43.7, 1.1436e15, 41.65, 43.81),
    "175B": (64, 96, 12288, 64, 13.75, 51.4, 52.8, 1.4109e17, 51.39, 52.77),
    "530B": (280, 105, 20480, 280, 37.83, 56.0, 57.0, 1.8522e18, 56.05, 56.96),
    "1T": (512, 128, 25600, 512, 71.49, 56.3, 57.0, 6.4259e18, 56.27, 57.01),
}


@pytest.mark.parametrize("model", MEGATRON)
def test_megatron_table(model):
    batch, layers, hidden, devices, seconds, paper_mfu, paper_hfu, count, exact_mfu, exact_hfu = MEGATRON[model]
    flops = megatron_flops(batch, 2048, layers, hidden, 51200, recompute="selective")
    assert flops.model == pytest.approx(count, rel=5e-5)
    options = {"rate": 1 / seconds, "devices": devices, "peak": given_peak(312)}
    assert round(mfu(flops, **options).percent, 2) == exact_mfu
    assert round(hfu(flops, **options).percent, 2) == exact_hfu
    # The paper prints one digit, from times with two: half a unit of the last digit of 1.10 s is 0.5 %.
    assert mfu(flops, **options).percent == pytest.approx(paper_mfu, abs=0.2)
    assert hfu(flops, **options).percent == pytest.approx(paper_hfu, abs=0.2)


def test_palm_appendix_b():
    # PaLM 540B on 6144 TPU v4: 46.2 % with attention, 45.7 % without.
    peak = find_peak("TPU v4", "bf16").peak
    shape = (540.35e9, 118, 48, 256, 2048)
    options = {"rate": 238_300, "devices": 6144, "peak": peak}
    assert round(mfu(palm_flops(*shape), **options).percent, 2) == 46.23
    assert round(mfu(palm_flops(*shape, attention=False), **options).percent, 2) == 45.73


def test_full_recomputation_counts_the_forward_pass_twice():
    flops = megatron_flops(1, 2048, 96, 12288, 51200, recompute="full")
    # Layers 4/3, the output layer not at all: 96(1 + s/6h) + 6V/hL against 72(1 + s/6h) + 6V/hL.
    layers, head = 1 + 2048 / (6 * 12288), 51200 / (12288 * 96)
    assert flops.hardware / flops.model == pytest.approx((96 * layers + 6 * head) / (72 * layers + 6 * head))
    assert palm_flops(1e9, 1, 1, 1, 1, recompute="full").hardware == pytest.approx(4 / 3 * 6_000_000_012)


def test_mosaicml_multipliers():
    shape = {"parameters": 7e9, "layers": 32, "hidden": 4096, "sequence": 2048}
    dense, attention = 2 * 7e9, 4 * 32 * 4096 * 2048
    assert mosaicml_flops(**shape).model == mosaicml_flops(**shape).hardware == 3 * (dense + attention)
    assert mosaicml_flops(**shape, recompute="full").hardware == 4 * (dense + attention)
    assert mosaicml_flops(**shape, recompute="full", flash=True).hardware == 4 * dense + 5 * attention
    # The same count as PaLM's: 12·L·H·Q·T with H·Q = h.
    assert mosaicml_flops(**shape).model == pytest.approx(palm_flops(7e9, 32, 32, 128, 2048).model)


def test_more_than_all_is_refused():
    with pytest.raises(InputError, match=r"MFU 152.* above 100 %.*the peak$"):
        flops = palm_flops(1e9, 1, 1, 1, 1, attention=False)
        mfu(flops, rate=1.52 * 312e12 / 6e9, devices=1, peak=given_peak(312))


@pytest.mark.parametrize(
    "options",
    [
        {"rate": 0.0, "devices": 1},
        {"rate": float("nan"), "devices": 1},
        {"rate": 1.0, "devices": 0},
        {"rate": 1.0, "devices": 1.5},
    ],
)
def test_rates_and_devices_that_are_none(options):
    with pytest.raises(InputError):
        mfu(palm_flops(1, 1, 1, 1, 1), **options, peak=given_peak(312))


@pytest.mark.parametrize(
    ("name", "inputs", "message"),
    [
        ("palm", {"parameters": -1, "layers": 1, "heads": 1, "head_dim": 1, "sequence": 1}, "parameters: -1"),
        ("palm", {"parameters": 1}, "layers, heads, head_dim, sequence missing; it takes parameters, layers"),
        ("mosaicml", {"heads": 1, "peek": 1}, "formula mosaicml: heads, peek unknown; it takes parameters"),
        ("megatron", {"batch": 1, "sequence": 1, "layers": True, "hidden": 1, "vocabulary": 1}, "layers: True"),
    ],
)
def test_inputs_that_do_not_fit(name, inputs, message):
    with pytest.raises(InputError, match=message):
        model_flops(name, **inputs)


def test_names_that_are_not_known():
    with pytest.raises(UnknownNameError, match="megatron"):
        model_flops("megatrn")
    with pytest.raises(UnknownNameError, match="selective"):
        megatron_flops(1, 1, 1, 1, 1, recompute="some")
    with pytest.raises(InputError, match="selective: formula palm counts only none and full; formula=megatron"):
        palm_flops(1, 1, 1, 1, 1, recompute="selective")
    with pytest.raises(InputError, match="formula mosaicml counts only none and full"):
        mosaicml_flops(1, 1, 1, 1, recompute="selective")
    with pytest.raises(UnknownNameError, match="bf16"):
        find_peak("NVIDIA A100", "fp17")


# Dense TFLOP/s: torchtitan's and lightning's tables; None where one must not guess.
DEVICES = [
    ("NVIDIA A100-PG509-200", "bf16", 312),
    ("NVIDIA A100-SXM4-80GB", "torch.bfloat16", 312),
    ("NVIDIA A100 80GB PCIe", "tf32", 156),
    ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "bf16", None),
    ("NVIDIA A10", "bf16", 125),
    ("NVIDIA A10G", "bf16", None),
    ("NVIDIA A1000", "bf16", None),
    ("NVIDIA H100 80GB HBM3", "bf16", 989.5),
    ("NVIDIA H100 PCIe", "bf16", 756.5),
    ("NVIDIA H100 NVL", "bf16", 835),
    ("NVIDIA H100", "bf16", None),
    ("NVIDIA H200", "bf16", 989.5),
    ("NVIDIA H200 NVL", "bf16", 836),
    ("NVIDIA B200", "bf16", 2250),
    ("NVIDIA GB200", "bf16", 2500),
    ("AMD Instinct MI300X", "bf16", 1307.4),
    ("AMD Instinct MI300X OAM", "bfloat16", 1307.4),
    ("AMD Instinct MI250X", "bf16", 191.5),
    ("AMD Instinct MI250X/MI250", "bf16", None),
    ("Tesla V100-SXM2-32GB", "fp16", 125),
    ("Tesla V100-SXM2-32GB", "bf16", None),
    ("Tesla V100S-PCIE-32GB", "fp16", 130),
    ("NVIDIA GeForce RTX 4090 Laptop GPU", "bf16", None),
    ("NVIDIA GeForce RTX 4090 D", "bf16", None),
    ("NVIDIA L4", "bf16", 121),
    ("NVIDIA L40S", "bf16", 362),
    ("Ascend910B3", "fp16", None),
    ("MTIA", "fp16", None),
    ("", "bf16", None),
]


@pytest.mark.parametrize(("device", "dtype", "tflops"), DEVICES)
def test_real_names_of_devices(device, dtype, tflops):
    found = find_peak(device, dtype)
    if tflops is None:
        assert found.peak is None and found.note.message.endswith("in TFLOP/s as peak")
    else:
        assert found.peak.flops == tflops * 1e12 and found.note is None


def test_each_board_of_the_table_is_found_by_its_own_name():
    for peak in known_peaks():
        found = find_peak(peak.device, peak.dtype)
        assert found.peak == peak or found.note.code == "peak-ambiguous", peak


def test_the_table_is_dense_and_says_its_sources():
    by_key = {(peak.device, peak.dtype): peak for peak in known_peaks()}
    assert len(by_key) == len(known_peaks())
    for (device, dtype), peak in by_key.items():
        assert peak.source and peak.flops > 1e12
        # Half the width is at most twice the rate: a sparse figure in the table would stand out.
        half = {"fp8": "bf16", "tf32": "fp32"}.get(dtype)
        if half == "bf16" and (device, half) in by_key:
            assert peak.flops <= 2.01 * by_key[device, half].flops
        if (device, "bf16") in by_key and (device, "fp16") in by_key and device != "MI100":
            assert by_key[device, "bf16"].flops == by_key[device, "fp16"].flops


def test_a_result_survives_json():
    flops = model_flops("palm", parameters=1e9, layers=10, heads=8, head_dim=64, sequence=1024)
    result = mfu(flops, rate=10_000, devices=1, peak=find_peak("NVIDIA H200", "bf16").peak)
    assert Utilisation.from_dict(json.loads(json.dumps(result.to_dict()))) == result


def test_a_peak_in_flops_is_taken_for_a_slip():
    with pytest.raises(InputError, match="312 TFLOP/s"):
        given_peak(312e12)
