"""The table of variants: means and differences by hand, and what cannot be compared."""

from __future__ import annotations

import math
import statistics
from pathlib import Path

import pytest

from densing.core import InputError
from densing.scores.evals import Variant, measured_variants
from tests.support.served_runs import LOSSES, write_variant


def test_a_variant_is_compared_with_the_whole_model_item_by_item(tmp_path: Path) -> None:
    more = (0.5, 1.0, 3.0)
    write_variant(tmp_path, Variant(), (0, 0, 0), tasks=("hellaswag", "piqa"))
    write_variant(tmp_path, Variant(exit=2, cut=1, cut_bits=4), more, tasks=("hellaswag", "piqa"))
    # What only some variants were asked is left out.
    write_variant(tmp_path, Variant(exit=2, cut=1, cut_bits=4), (9, 9, 9), tasks=("arc_easy",))
    early, whole = measured_variants(tmp_path, "m").to_dict("records")
    assert (early["model"], early["exit"], early["layers"], early["kept_params"]) == (
        "m@exit=2,cut=1,cut_bits=4", 2, 4, 2000,
    )  # fmt: skip
    assert (early["kept_non_embedding"], early["weight_bytes"], early["bytes_per_token"]) == (1800, 400, 7)
    assert (early["n_items"], early["n_tasks"]) == (6, 2)
    bits = [nats / 9 / math.log(2) for nats in more]
    assert early["extra_bits_per_byte"] == pytest.approx(statistics.mean(bits))
    # Two tasks of the same numbers: the error of their mean is that of one over the root of two.
    assert early["extra_bits_per_byte_se"] == pytest.approx(statistics.stdev(bits) / math.sqrt(3) / math.sqrt(2))
    assert whole["extra_bits_per_byte"] == whole["extra_bits_per_byte_se"] == 0
    expected = statistics.mean(-right / 9 / math.log(2) for right, _ in LOSSES)
    assert whole["bits_per_byte"] == pytest.approx(expected)
    assert early["bits_per_byte"] - whole["bits_per_byte"] == pytest.approx(early["extra_bits_per_byte"])
    assert (early["accuracy"], whole["accuracy"]) == pytest.approx((1 / 3, 2 / 3))


def test_without_the_whole_model_there_is_no_difference(tmp_path: Path) -> None:
    write_variant(tmp_path, Variant(weight_bits=8), (0, 0, 0))
    (row,) = measured_variants(tmp_path, "m").to_dict("records")
    assert math.isnan(row["extra_bits_per_byte"]) and row["weight_bits"] == 8


def test_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no variant of m has been evaluated; run densing eval"):
        measured_variants(tmp_path, "m")
    write_variant(tmp_path, Variant(weight_bits=8), (0, 0, 0), settings={"limit": 2})
    with pytest.raises(InputError, match="no variant of other"):
        measured_variants(tmp_path, "other")
    write_variant(tmp_path, Variant(weight_bits=4), (0, 0, 0), settings={"limit": 3})
    with pytest.raises(InputError, match="the 2 variants of m share no task with the same settings"):
        measured_variants(tmp_path, "m")
    write_variant(tmp_path, Variant(weight_bits=4), (0, 0, 0), settings={"limit": 2}, weights="def")
    with pytest.raises(InputError, match="2 different models share the name m"):
        measured_variants(tmp_path, "m")
