"""A bank's figure: every item and every model is in it, and the error is one over the root of the information."""

from __future__ import annotations

import numpy as np
import pytest

from densing.plots import plot_bank
from densing.scores.items import ItemBank


def test_the_figure_holds_all_items_and_models() -> None:
    bank = ItemBank.load("ikp")
    figure = bank.plot()
    assert figure == plot_bank(bank)
    bars, line, models = figure.data
    assert sum(bars.y) == np.isfinite(bank.difficulty).sum() and len(models.x) == len(bank.models)
    at = int(np.abs(np.asarray(line.x) - 1.0).argmin())
    p = 1 / (1 + np.exp(-(bank.slope * line.x[at] + bank.intercept)))
    assert line.y[at] == pytest.approx((bank.slope**2 * p * (1 - p)).sum() ** -0.5)
