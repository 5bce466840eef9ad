"""Loss by size at one budget: the figure holds what the plan holds."""

from __future__ import annotations

import numpy as np
import pytest

from densing.plots import plot_isoflop
from densing.scores.fit import published_law
from densing.tradeoff import plan_training
from tests.support.training_plans import CLUSTER, planted


def test_the_figure_holds_the_plan_the_sizes_and_the_laws_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch, power=0.8)
    plan = plan_training(published_law("chinchilla-refit"), CLUSTER, 1e5, overtrain=20)
    figure = plan.plot()
    assert figure == plot_isoflop(plan)
    traces = {trace.name: trace for trace in figure.data}
    assert list(traces) == ["95 % interval", "the same GPU hours", "the same 6 N D", "plan",
                            "20 x tokens per parameter"]  # fmt: skip
    drawn = traces["the same GPU hours"]
    assert list(zip(drawn.x, drawn.y, strict=True)) == [(point.params, point.loss) for point in plan.curve]
    assert (
        (traces["plan"].x[0], traces["plan"].y[0])
        == (plan.params.value, plan.loss.value)
        == min(zip(drawn.x, drawn.y, strict=True), key=lambda point: point[1])
    )
    small = traces["20 x tokens per parameter"]
    assert (small.x[0], small.y[0]) == (plan.overtrained.params.value, plan.loss.value)
    # The law's curve at one compute is lowest where the closed form says.
    law = traces["the same 6 N D"]
    assert law.x[int(np.argmin(law.y))] == pytest.approx(plan.closed_form, rel=0.2)
    low, high = figure.layout.yaxis.range
    assert low < min(min(trace.y) for trace in figure.data if trace is not law)
    assert high > max(drawn.y)
