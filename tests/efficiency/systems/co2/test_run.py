"""CO2 in one process: against a second implementation of its published pseudo-code, and what it refuses."""

from __future__ import annotations

import copy
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from densing.core.errors import DensingError

torch = pytest.importorskip("torch")

from densing.efficiency.parallel.data_parallel.train import inverse_sqrt  # noqa: E402
from densing.training import CO2, LocalSGD, SlowMo  # noqa: E402
from tests.support.co2_by_hand import Bowl, bowl, co2_by_hand, slope, steps_of  # noqa: E402


@settings(max_examples=40)
@given(
    seed=st.integers(0, 99),
    tau=st.integers(1, 5),
    steps=st.integers(1, 23),
    alpha=st.sampled_from([0.5, 1.0]),
    beta=st.sampled_from([0.0, 0.3, 0.6]),
    phi=st.sampled_from([None, 0.01, 0.2]),
    gap=st.sampled_from(["constant", "aware"]),
    penalty=st.sampled_from([1.0, 2.5]),
)
def test_the_pseudo_code(
    seed: int, tau: int, steps: int, alpha: float, beta: float, phi: float | None, gap: Any, penalty: float
) -> None:
    a, b = bowl(seed)
    start = np.ones(3)
    model = Bowl(a, b, start)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    co2 = CO2(model, optimizer, tau, outer_lr=alpha, outer_momentum=beta, clip=phi, gap=gap, gap_penalty=penalty)
    steps_of(co2, model, steps)
    x, anchors = co2_by_hand(start, [slope(a, b)], steps, 0.02, tau, alpha, beta, phi, gap, penalty)
    assert np.allclose(model.x.detach().numpy(), x[0], rtol=2e-4, atol=2e-4)
    assert np.allclose(co2.anchor.numpy(), anchors[-1], rtol=2e-4, atol=2e-4)


def test_the_clip_is_applied() -> None:
    a, b = bowl(0)
    model = Bowl(a, b, np.full(3, 50.0))
    co2 = CO2(model, torch.optim.SGD(model.parameters(), lr=0.02), 2, clip=0.125)
    steps_of(co2, model, 2)
    before = co2.anchor.clone()
    steps_of(co2, model, 2)
    assert co2.momentum.abs().max() == 0.125
    assert torch.equal((before - co2.anchor).abs(), torch.full((3,), 0.125))


def test_the_second_round_begins_where_the_first_did() -> None:
    a, b = bowl(1)
    model = Bowl(a, b, np.ones(3))
    co2 = CO2(model, torch.optim.SGD(model.parameters(), lr=0.02), 3)
    steps_of(co2, model, 2)
    assert not torch.equal(model.x.detach(), torch.ones(3))
    steps_of(co2, model, 1)
    assert torch.equal(model.x.detach(), torch.ones(3))
    assert co2.under_way


@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_the_recorded_first_round_rule_never_forgets_the_ranks_differences(beta: float) -> None:
    """A caution: anchors set to each rank's own first result stay apart, or explode."""
    rng = np.random.default_rng(0)
    offsets = rng.normal(size=(4, 8))
    offsets -= offsets.mean(0)
    offsets *= 0.3 / np.abs(offsets).max()
    # Four workers whose local steps are zero: all that is left of the rule is what it does to the offsets.
    anchors, m = [np.zeros((4, 8)), offsets], np.zeros((4, 8))
    for _ in range(40):
        m = beta * m + (anchors[-2] - anchors[-2].mean(0))
        anchors.append(anchors[-1] - m)
    spread = max(np.abs(anchor - anchor.mean(0)).max() for anchor in anchors[-6:])
    # By hand: 0.3 stays without momentum, and becomes 667 with 0.5.
    assert spread == pytest.approx(0.3) if not beta else 300 < spread < 3000


def test_resuming_in_mid_round_is_exact() -> None:
    a, b = bowl(3)

    def fresh() -> tuple[Any, Any, Any]:
        model = Bowl(a, b, np.ones(3))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        return model, optimizer, CO2(model, optimizer, 4, clip=0.5)

    model, optimizer, co2 = fresh()
    steps_of(co2, model, 14)
    saved = copy.deepcopy([model.state_dict(), optimizer.state_dict(), co2.state_dict()])
    assert saved[2]["under_way"] and saved[2]["count"] == 2
    steps_of(co2, model, 13)
    co2.finish()
    other, other_optimizer, again = fresh()
    for part, state in zip((other, other_optimizer, again), saved, strict=True):
        part.load_state_dict(state)
    steps_of(again, other, 13)
    again.finish()
    assert torch.equal(other.x, model.x)
    assert torch.equal(again.momentum, co2.momentum)


def test_the_state_holds_plain_values_and_tensors_only(tmp_path: Any) -> None:
    model = torch.nn.Linear(3, 1)
    co2 = CO2(model, torch.optim.SGD(model.parameters(), lr=0.1), 1)
    for _ in range(3):
        model(torch.ones(1, 3)).sum().backward()
        co2.step()
    torch.save(co2.state_dict(), tmp_path / "state.pt")
    read = torch.load(tmp_path / "state.pt", weights_only=True)
    assert set(read) == set(co2.state_dict())
    co2.load_state_dict(read)


def test_finish_applies_every_round_and_is_done_once() -> None:
    """tau=1, no momentum, no penalty: all steps but the late ones' delay; finishing applies the last of them."""
    a, b = bowl(4)
    model = Bowl(a, b, np.ones(3))
    options = {"outer_momentum": 0.0, "gap": "constant"}
    co2 = CO2(model, torch.optim.SGD(model.parameters(), lr=0.01), 1, **options)
    steps_of(co2, model, 1)
    co2.finish()
    assert np.allclose(model.x.detach().numpy(), 1 - 0.01 * slope(a, b)(np.ones(3)), atol=1e-6)
    before = model.x.detach().clone()
    co2.finish()
    assert torch.equal(model.x.detach(), before)


@pytest.mark.parametrize("wrapper", [LocalSGD, SlowMo])
def test_alone_local_sgd_and_plain_slowmo_change_nothing(wrapper: Any) -> None:
    a, b = bowl(5)
    options = {"slow_momentum": 0.0} if wrapper is SlowMo else {}
    one, two = Bowl(a, b, np.ones(3)), Bowl(a, b, np.ones(3))
    steps_of(wrapper(one, torch.optim.SGD(one.parameters(), lr=0.02), 3, **options), one, 10)
    plain = torch.optim.SGD(two.parameters(), lr=0.02)
    for _ in range(10):
        two.zero_grad()
        two().backward()
        plain.step()
    assert torch.allclose(one.x, two.x, atol=1e-6)


@pytest.mark.parametrize(("beta", "share", "settles"), [(0.5, 0.4, True), (0.5, 0.6, False), (0.0, 0.9, True)])
def test_a_late_update_settles_only_where_momentum_and_share_stay_below_one(
    beta: float, share: float, settles: bool
) -> None:
    """Derived: a round that closes the share c of the distance gives z^2 - (1 + beta) z + beta + alpha c."""
    model = Bowl(np.eye(1), np.zeros(1), np.ones(1))
    lr = 1 - (1 - share) ** 0.25
    co2 = CO2(model, torch.optim.SGD(model.parameters(), lr=lr), 4, gap="constant", outer_momentum=beta)
    steps_of(co2, model, 4 * 100)
    latest = []
    for _ in range(10):
        steps_of(co2, model, 4)
        latest.append(abs(float(co2.anchor)))
    assert max(latest) < 0.1 if settles else max(latest) > 10


def test_slowmo_with_tau_1_is_momentum_sgd() -> None:
    a, b = bowl(6)
    one, two = Bowl(a, b, np.ones(3)), Bowl(a, b, np.ones(3))
    steps_of(SlowMo(one, torch.optim.SGD(one.parameters(), lr=0.02), 1, slow_momentum=0.7), one, 12)
    known = torch.optim.SGD(two.parameters(), lr=0.02, momentum=0.7)
    for _ in range(12):
        two.zero_grad()
        two().backward()
        known.step()
    assert torch.allclose(one.x, two.x, rtol=1e-4, atol=1e-5)


def test_half_precision_keeps_a_float32_anchor() -> None:
    model = torch.nn.Linear(4, 2).to(torch.bfloat16)
    co2 = CO2(model, torch.optim.SGD(model.parameters(), lr=0.1), 1)
    for _ in range(3):
        model(torch.ones(1, 4, dtype=torch.bfloat16)).sum().backward()
        co2.step()
    assert {t.dtype for t in (co2.anchor, co2.momentum, co2.previous)} == {torch.float32}
    assert model.weight.dtype == torch.bfloat16


def test_batch_normalisation_and_frozen_and_shared_parameters() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 3))
    model[2].weight = model[0].weight
    model[2].bias.requires_grad_(False)
    frozen = model[2].bias.detach().clone()
    co2 = CO2(model, torch.optim.SGD(model.parameters(), lr=0.1), 2)
    assert co2.flat.numel == 9 + 3 + 3 + 3
    for _ in range(5):
        model(torch.randn(4, 3)).square().sum().backward()
        co2.step()
    co2.finish()
    assert torch.equal(model[2].bias, frozen)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"tau": 0}, "tau=0: must be a whole number from 1 up"),
        ({"tau": True}, "tau=True"),
        ({"tau": 2.0}, "tau=2.0"),
        ({"outer_lr": 0.0}, "outer_lr=0.0: must be a number above 0"),
        ({"outer_lr": float("nan")}, "outer_lr=nan"),
        ({"outer_momentum": 1.0}, "from 0 and below 1"),
        ({"outer_momentum": -0.1}, "outer_momentum=-0.1"),
        ({"clip": 0.0}, "clip=0.0"),
        ({"clip": float("inf")}, "clip=inf"),
        ({"gap_penalty": -1.0}, "gap_penalty=-1.0"),
        ({"warmup_rounds": -1}, "warmup_rounds=-1"),
        ({"gap": "awar"}, "did you mean 'aware'"),
        ({"group": object()}, "not initialised"),
        ({"inner_group": object()}, "inner_group also needs group"),
    ],
)
def test_refused_options(options: dict[str, Any], says: str) -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(DensingError, match=says):
        CO2(model, optimizer, **{"tau": 4, **options})


def test_refused_models() -> None:
    model = torch.nn.Linear(2, 2)
    other = torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1)
    with pytest.raises(DensingError, match="2 parameter\\(s\\) that are not the model's"):
        CO2(model, other, tau=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.requires_grad_(False)
    with pytest.raises(DensingError, match="no parameters with requires_grad"):
        CO2(model, optimizer, tau=2)


def _grow(model: Any) -> None:
    model.more = torch.nn.Linear(2, 2)


def _freeze(model: Any) -> None:
    model.bias.requires_grad_(False)


def _replace(model: Any) -> None:
    model.weight = torch.nn.Parameter(torch.zeros(2, 2))


def _cast(model: Any) -> None:
    model.weight.data = model.weight.data.double()


@pytest.mark.parametrize("change", [_grow, _freeze, _replace, _cast])
def test_a_model_changed_since_is_refused_at_the_end_of_the_round(change: Any) -> None:
    model = torch.nn.Linear(2, 2)
    co2 = CO2(model, torch.optim.SGD(model.parameters(), lr=0.1), 2)
    change(model)
    co2.advance()
    with pytest.raises(DensingError, match="have changed since the start"):
        co2.advance()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_parameters_that_are_not_finite_are_named(value: float) -> None:
    model = torch.nn.Linear(2, 2)
    co2 = CO2(model, torch.optim.SGD(model.parameters(), lr=0.1), 1)
    with torch.no_grad():
        model.bias[1] = value
    co2.advance()
    with pytest.raises(DensingError, match=r"round 1: parameter bias of this rank holds inf or NaN"):
        co2.advance()


def test_states_of_other_runs_are_refused() -> None:
    model, other = torch.nn.Linear(2, 2), torch.nn.Linear(3, 2)
    co2 = CO2(model, torch.optim.SGD(model.parameters(), lr=0.1), 2)
    with pytest.raises(DensingError, match="saved with tau=3"):
        co2.load_state_dict(CO2(model, co2.optimizer, 3).state_dict())
    wrong = CO2(other, torch.optim.SGD(other.parameters(), lr=0.1), 2).state_dict()
    with pytest.raises(DensingError, match="anchor of the state has shape"):
        co2.load_state_dict(wrong)
    with pytest.raises(DensingError, match="saved by LocalSGD; load one of CO2"):
        co2.load_state_dict(LocalSGD(model, co2.optimizer, 2).state_dict())


def test_slowmo_refuses_a_learning_rate_of_zero() -> None:
    model = torch.nn.Linear(2, 2)
    slow = SlowMo(model, torch.optim.SGD(model.parameters(), lr=0.0), 1)
    with pytest.raises(DensingError, match="learning rate is 0"):
        slow.advance()


def test_the_learning_rate_warms_up_and_falls_as_the_inverse_root() -> None:
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.4)
    schedule = inverse_sqrt(optimizer, warmup=4)
    seen = []
    for _ in range(16):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert seen[:4] == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert seen[15] == pytest.approx(0.2)


@pytest.mark.slow
def test_importing_training_stays_light() -> None:
    code = "import sys, densing.training; print('torch' in sys.modules, densing.training.CO2.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "CO2"]
