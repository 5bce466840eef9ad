"""Operations and least bytes of an operator from its recorded shapes, against figures worked out by hand."""

from __future__ import annotations

import pytest

from densing.efficiency.timeline.products import PRODUCTS, product_of
from densing.efficiency.timeline.timeline import Kind, NameTotal, Product, Spans, longest, totals

NONE = ["", "", ""]


@pytest.mark.parametrize(
    ("name", "dims", "values", "flops", "elements"),
    [
        ("mm", [[3, 5], [5, 7]], [], 2 * 3 * 5 * 7, 15 + 35 + 21),
        ("addmm", [[7], [3, 5], [5, 7], [], []], [], 2 * 3 * 5 * 7, 7 + 15 + 35 + 21),
        ("bmm", [[2, 3, 5], [2, 5, 7]], [], 2 * 2 * 3 * 5 * 7, 2 * (15 + 35 + 21)),
        ("baddbmm", [[2, 3, 7], [2, 3, 5], [2, 5, 7]], [], 2 * 2 * 3 * 5 * 7, 2 * (21 + 15 + 35 + 21)),
        # torch's FlopCounterMode counts 28800 for this convolution: 2 × 4 × 5 × 8 outputs of 3 × 3 × 5 products.
        (
            "mkldnn_convolution",
            [[2, 6, 9, 8], [4, 3, 3, 5], [4], [], [], [], []],
            [*NONE, "[1, 2]", "[2, 1]", "[1, 1]", "2"],
            28800,
            864 + 180 + 320,
        ),
        ("cudnn_convolution", [[1, 1, 4], [1, 1, 3]], ["", "", "[0]", "[1]", "[1]"], 2 * 2 * 3, 4 + 3 + 2),
        # The next two as torch.utils.flop_counter's sdpa_flop_count and sdpa_backward_flop_count have them.
        (
            "_scaled_dot_product_cudnn_attention",
            [[2, 3, 7, 8], [2, 3, 11, 8], [2, 3, 11, 16], [], [], [], []],
            [*NONE, "", "", "", "False"],
            22176,
            6 * (56 + 88 + 176 + 112),
        ),
        (
            "_flash_attention_backward",
            [[2, 7, 3, 16], [2, 7, 3, 8], [2, 11, 3, 8], [2, 11, 3, 16], [], [], [], []],
            [""] * 12,
            51744,
            12 * (56 + 88 + 176 + 112),
        ),
        # A causal mask leaves half.
        (
            "_flash_attention_forward",
            [[1, 4, 2, 8]] * 3 + [[], []],
            [""] * 8 + ["True"],
            2 * 2 * 4 * 4 * 16 // 2,
            4 * 64,
        ),
        ("_efficient_attention_forward", [[1, 4, 2, 8]] * 3 + [[], []], [""] * 9 + ["1"], 512, 4 * 64),
        ("_efficient_attention_forward", [[1, 4, 2, 8]] * 3 + [[], []], [""] * 9 + ["0"], 1024, 4 * 64),
    ],
)
def test_operations_are_those_of_the_shapes(
    name: str, dims: list[list[int]], values: list[str], flops: int, elements: int
) -> None:
    types = ["c10::BFloat16"] * len(dims)
    assert product_of(f"aten::{name}", dims, types, values) == Product(flops, 2 * elements, "c10::BFloat16")


HOSTILE = [
    [],
    None,
    "rows",
    [[3, 5]],
    [[3, 5], [6, 7]],
    [[-3, 5], [5, 7]],
    [[3.0, 5], [5, 7]],
    [["a", "b"], ["b", "c"]],
    [[[1], [2]], [[3]]],
    [[3], [3]],
    [[2**60, 5], [5, 7]],
    {"0": 1},
    7,
]


@pytest.mark.parametrize("dims", HOSTILE)
def test_shapes_that_tell_no_product_are_unknown(dims: object) -> None:
    for name in PRODUCTS:
        assert product_of(name, dims, ["float"] * 5, ["x"] * 3) is None
        assert product_of(name, [[3, 5], [5, 7]], None, None) is None


def test_sequences_of_various_lengths_and_odd_types_are_unknown() -> None:
    packed = [[1, 9, 2, 8]] * 3 + [[], [4], [4]]
    assert product_of("aten::_efficient_attention_forward", packed, ["float"] * 9, [""] * 10) is None
    assert product_of("aten::mm", [[3, 5], [5, 7]], ["blob", "blob"]) is None


def test_sums_of_a_name_hold_what_was_computed_and_moved_and_no_cut_span_counts_in_a_rate() -> None:
    product = Product(1000, 10, "float")
    rows = [
        {"start": at, "end": at + 5, "kind": Kind.COMPUTE, "name": "gemm", "product": product} for at in (0, 10, 95)
    ] + [{"start": 20, "end": 24, "kind": Kind.MEMCPY, "name": "copy", "bytes": 8},
         {"start": 30, "end": 34, "kind": Kind.MEMCPY, "name": "copy", "bytes": -1},
         {"start": 40, "end": 44, "kind": Kind.COMPUTE, "name": "gemm"}]  # fmt: skip
    gemm, copy = totals(Spans.build(rows), (0, 100))
    assert (gemm.count, gemm.total_ns) == (4, 19)
    assert (gemm.flops, gemm.least_bytes, gemm.flop_ns, gemm.dtype) == (1000.0, 10.0, 5, "float")
    assert (copy.moved_bytes, copy.moved_ns, copy.flop_ns, copy.dtype) == (8, 4, 0, "")
    assert totals(Spans.build(rows))[0].flops == 3000.0
    rest = longest([gemm, *totals(Spans.build(rows))], 1)[1]
    assert (rest.names, rest.count, rest.flops, rest.flop_ns) == (1, 4, 3000.0, 15)


def test_a_rank_of_no_products_has_no_rates() -> None:
    [row] = totals(Spans.build([{"start": 0, "end": 5, "kind": Kind.COMPUTE, "name": "gemm"}]))
    assert row == NameTotal("gemm", "compute", 1, 5)
