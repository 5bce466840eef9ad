"""The family of rounds beside its equations written by hand; what is sent, kept back and refused."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from itertools import product
from typing import Any

import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("this build of torch has no torch.distributed", allow_module_level=True)

from densing.core import InputError  # noqa: E402
from densing.efficiency.parallel import Replica, VirtualMethods, VirtualRanks  # noqa: E402
from densing.efficiency.parallel.data_parallel.coded import CodedMean, NotFiniteError  # noqa: E402
from densing.efficiency.parallel.data_parallel.flat import Flat  # noqa: E402
from densing.training import (  # noqa: E402
    CO2,
    DelayedNesterov,
    Dense,
    DiLoCo,
    Frequencies,
    Gap,
    Half,
    Int8,
    LocalSGD,
    LowRank,
    Momentum,
    Nesterov,
    Outer,
    SlowMo,
    SlowMomentum,
    Synchronous,
    Threshold,
    TopK,
)

N, RANKS, STEPS, LR = 600, 3, 26, 0.1
START = torch.linspace(-1, 1, N)
SHARE = 0.2


def target(rank: int) -> Any:
    return torch.randn(N, generator=torch.Generator().manual_seed(rank))


TARGETS = [target(rank) for rank in range(RANKS)]


def team_of(kind: Any, rate: float = LR, **knobs: Any) -> VirtualMethods:
    def replica() -> Replica:
        model = torch.nn.Linear(N, 1, bias=False)
        with torch.no_grad():
            model.weight.copy_(START)
        return Replica(model, partial(torch.optim.SGD, lr=rate), nullcontext, lambda trial: trial.weight.sum())

    return VirtualMethods([replica() for _ in range(RANKS)], lambda own: own.wrap(kind, **knobs))


def trained(kind: Any, steps: int = STEPS, **knobs: Any) -> tuple[list[Any], VirtualMethods]:
    """Pull a vector towards each rank's own target; return every rank's before the end, and the team."""
    team = team_of(kind, **knobs)
    for _ in range(steps):
        for method in team.methods:
            method.optimizer.zero_grad()
        team.backward(
            [0.5 * (method.model.weight - TARGETS[rank]).square().sum() for rank, method in enumerate(team.methods)]
        )
        team.step()
    return [method.model.weight.detach().flatten().clone() for method in team.methods], team


CODECS = {"none": None, "half": Half, "int8": Int8, "topk": TopK(SHARE)}
OUTERS = {
    "average": None,
    "momentum": Momentum(0.8, 0.4),
    "nesterov": Nesterov(0.5, 0.6),
    "delayed": DelayedNesterov(0.9, 0.5, every=2),
    "slow": SlowMomentum(0.9, 0.4),
}
WHENS: dict[str, dict[str, Any]] = {
    "waits": {},
    "late": {"delay": 2, "mix": 0.25},
    "fragments": {"fragments": 2, "delay": 1},
    "a round": {"delay": "round"},
}


def sent(name: str, vector: Any) -> Any:
    """What arrives of a vector."""
    if name == "topk":
        kept = torch.zeros_like(vector)
        largest = vector.abs().argsort(descending=True)[: round(SHARE * len(vector))]
        kept[largest] = vector[largest]
        return kept
    if name == "int8":
        spacing = vector.abs().max() / 127
        return torch.round(vector / spacing) * spacing
    return vector.half().float() if name == "half" else vector.clone()


class StepByHand:
    """An outer optimizer, from its equations."""

    def __init__(self, name: str, size: int) -> None:
        self.name, self.m, self.sum, self.count = name, torch.zeros(size), torch.zeros(size), 0

    def __call__(self, x: Any, start: Any, mean: Any) -> Any:
        g, self.count = start - mean, self.count + 1
        if self.name == "average":
            return mean
        if self.name == "momentum":
            self.m = 0.4 * self.m + g
            return x - 0.8 * self.m
        if self.name == "nesterov":
            self.m = 0.6 * self.m + g
            return x - 0.5 * (g + 0.6 * self.m)
        if self.name == "slow":
            self.m = 0.4 * self.m + g / LR
            return x - 0.9 * LR * self.m
        self.sum = self.sum + g
        if self.count % 2:
            return x - 0.9 * g / 2
        self.m, self.sum = 0.5 * self.m + self.sum / 2, torch.zeros_like(g)
        return x - 0.9 * (g / 2 + 0.5 * self.m)


def by_hand(codec: str, outer: str, when: str, tau: int = 4) -> list[Any]:
    fragments, delay, mix = (WHENS[when].get(key, default) for key, default in
                             (("fragments", 1), ("delay", 0), ("mix", 0.0)))  # fmt: skip
    turn, size = tau // fragments, N // fragments
    parts = [slice(at * size, (at + 1) * size) for at in range(fragments)]
    live, x = [START.clone() for _ in range(RANKS)], START.clone()
    left = [torch.zeros(N) for _ in range(RANKS)]
    steps, flying = [StepByHand(outer, size) for _ in parts], None
    begun = START.clone()
    for step in range(1, STEPS + 1):
        live = [w - LR * (w - t) for w, t in zip(live, TARGETS, strict=True)]
        ends, k = step % turn == 0, (step // turn - 1) % fragments
        if flying and delay != "round" and step % turn == delay:
            at, start, mean = flying
            x[parts[at]] = steps[at](x[parts[at]], start, mean)
            for w in live:
                w[parts[at]] = mix * w[parts[at]] + (1 - mix) * x[parts[at]]
            flying = None
        if not ends:
            continue
        part, before = parts[k], flying
        start = begun[part] if delay == "round" else x[part].clone()
        if codec == "none":
            mean = torch.stack([w[part] for w in live]).mean(0)
        else:
            differences = [w[part] - start + e[part] for w, e in zip(live, left, strict=True)]
            arrived = [sent(codec, d) for d in differences]
            for e, d, a in zip(left, differences, arrived, strict=True):
                e[part] = d - a
            mean = start + torch.stack(arrived).mean(0)
        flying = (k, start.clone(), mean)
        if delay == 0:
            x[part] = steps[k](x[part], start, mean)
            for w in live:
                w[part] = mix * w[part] + (1 - mix) * x[part]
            flying = None
        if delay == "round":
            begun = x.clone()
            if before:
                x = steps[0](x, *before[1:])
                begun = x.clone()
            live = [x.clone() for _ in range(RANKS)]
    return live


ALLOWED = [
    (codec, outer, when)
    for codec, outer, when in product(CODECS, OUTERS, WHENS)
    if not (outer == "slow" and when != "waits") and not (outer == "average" and when == "a round")
]


@pytest.mark.parametrize(("codec", "outer", "when"), ALLOWED)
def test_every_member_of_the_family_is_what_its_equations_say(codec: str, outer: str, when: str) -> None:
    ends, team = trained(Outer, tau=4, codec=CODECS[codec], outer_optimizer=OUTERS[outer], **WHENS[when])
    for ours, theirs in zip(ends, by_hand(codec, outer, when), strict=True):
        # The last bit of a number decides now and then to which of two halves it is rounded; no more than that.
        odd = (ours - theirs).abs() > 2e-5 + 1e-4 * theirs.abs()
        assert float(odd.float().mean()) <= (0.02 if codec == "half" else 0.0)
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)
    team.finish()
    assert len({tuple(method.model.weight.detach().flatten().tolist()) for method in team.methods}) == 1


OLD: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "local-sgd": (LocalSGD, {}, {}),
    "slowmo": (SlowMo, {}, {"outer_optimizer": SlowMomentum(1.0, 0.5)}),
    "co2": (CO2, {}, {"outer_optimizer": Momentum(1.0, 0.5), "delay": "round", "gap": Gap()}),
    "diloco": (DiLoCo, {}, {"outer_optimizer": Nesterov(0.7, 0.9)}),
    "streaming": (
        DiLoCo,
        {"fragments": 2, "delay": 1, "mix": 0.5},
        {"outer_optimizer": Nesterov(0.7, 0.9), "fragments": 2, "delay": 1, "mix": 0.5},
    ),
}


@pytest.mark.parametrize("name", OLD)
def test_the_methods_of_papers_are_members_with_their_defaults_bit_for_bit(name: str) -> None:
    kind, knobs, choices = OLD[name]

    def member(*given: Any, **more: Any) -> Any:
        # Each rank has a Gap of its own, which remembers norms.
        own = {"gap": Gap()} if "gap" in choices else {}
        return Outer(*given, tau=4, **{**choices, **own}, **more)

    one, other = trained(kind, tau=4, **knobs)[0], trained(member)[0]
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(one, other, strict=True))


def test_momentum_that_joins_every_step_is_nesterovs() -> None:
    steps = DelayedNesterov(0.5, 0.6, every=1), Nesterov(0.5, 0.6)
    one, other = (trained(Outer, tau=3, outer_optimizer=step)[0] for step in steps)
    torch.testing.assert_close(one[0], other[0])


@pytest.mark.parametrize("when", [name for name in WHENS if name != "a round"])
def test_dense_differences_are_averages_of_parameters(when: str) -> None:
    one, other = (trained(Outer, tau=4, codec=codec, **WHENS[when])[0] for codec in (None, Dense))
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_ranks_that_run_out_of_data_stay_where_they_are_and_count() -> None:
    def ends(codec: Any) -> list[float]:
        ranks = VirtualRanks(3)

        def work(rank: int) -> float:
            model = torch.nn.Linear(1, 1, bias=False)
            torch.nn.init.ones_(model.weight)
            optimizer = torch.optim.SGD(model.parameters(), lr=LR)
            method = Outer(model, optimizer, 3, codec=codec, outer_optimizer=Nesterov(), link=ranks.links[rank])
            for _ in range((7, 4, 0)[rank]):
                optimizer.zero_grad()
                (0.5 * (model.weight - 10.0 * (rank + 1)).square()).sum().backward()
                method.step()
            method.finish()
            return float(model.weight.detach())

        return ranks.run(work)

    assert ends(Dense) == pytest.approx(ends(None), rel=1e-5)
    assert len(set(ends(Dense))) == 1


# What a codec leaves out.
LOSSY = {
    "topk": (partial(TopK, 0.1), 0.0),
    "threshold": (partial(Threshold, 0.9, 3), 0.0),
    "int8": (Int8, 1e-2),
    "int8 in blocks": (partial(Int8, block=64), 1e-2),
    "half": (Half, 1e-2),
    "prefix": (partial(Frequencies, 0.5), 1e-2),
    "low rank": (partial(LowRank, 2), 1e-2),
}


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("fragments", [1, 3])
@pytest.mark.parametrize("name", LOSSY)
def test_what_was_sent_and_what_is_kept_back_are_all_of_it(name: str, fragments: int, late: bool) -> None:
    codec, close = LOSSY[name]
    if name == "threshold" and late:
        pytest.skip("refused: its packets may weigh anything")
    # Of matrices that a fragment cuts every element is sent; so here the second of three stays whole.
    shapes = [(40, 30)] * 3 if name == "low rank" else [(N, 2)]
    model, ranks = torch.nn.Sequential(*(torch.nn.Linear(*shape, bias=True) for shape in shapes)), VirtualRanks(2)
    flat, generator = Flat(model), torch.Generator().manual_seed(3)
    cuts = [slice(flat.numel * at // fragments, flat.numel * (at + 1) // fragments) for at in range(fragments)]
    # Whole numbers, so that sums of them are exact.
    rows = torch.randint(-99, 99, (9, 2, flat.numel), generator=generator).float() / (3 if close else 1)

    def work(rank: int) -> tuple[Any, Any]:
        link = ranks.links[rank]
        mean = CodedMean(link, flat, codec, cuts, error_feedback=True, overlapped=late)
        total = flat.zeros()
        for turn in range(9):
            at = turn % fragments
            mean.work.copy_(rows[turn, rank])
            data = mean.encode(at)
            mean.residual[cuts[at]] = mean.work[cuts[at]]
            if mean.op is not None:
                link.arrive(link.start(data, mean.op), data)
            total[cuts[at]] += mean.decode(data, at, mean.work)[cuts[at]]
        return total, mean.residual

    (total, one), (same, other) = ranks.run(work)
    given = flat.zeros()
    for turn in range(9):
        given[cuts[turn % fragments]] += rows[turn, :, cuts[turn % fragments]].sum(0)
    assert torch.equal(total, same)
    assert bool((one != 0).any())
    torch.testing.assert_close(2 * total + one + other, given, rtol=0, atol=close)


@pytest.mark.parametrize(
    ("codec", "when", "bytes_"),
    [
        # A ring's sum of every rank's row, beside three float64 of the announcement.
        ("none", "waits", 2 * (4 * N)),
        ("half", "a round", 4 + 2 * N),
        ("int8", "late", 4 + 4 + N),
        ("topk", "a round", 4 + 4 + N // 8 + 4 * N // 5),
        # Where ranks wait, lengths of packets go before.
        ("int8", "waits", 8 + 4 + 4 + N),
    ],
)
def test_bytes_of_a_round_are_counted(codec: str, when: str, bytes_: int) -> None:
    _, team = trained(Outer, tau=4, steps=8, codec=CODECS[codec], outer_optimizer=Momentum(), **WHENS[when])
    ring = (RANKS - 1) / RANKS
    each = bytes_ if codec == "none" else RANKS * bytes_
    assert team.sent == pytest.approx(2 * ring * (2 * 24 + each))


def distance(**knobs: Any) -> float:
    """How far from the best for all ranks a run ends, over how far it began."""
    best = torch.stack(TARGETS).mean(0)
    _, team = trained(Outer, 240, rate=0.03, tau=2, **knobs)
    team.finish()
    return float((team.methods[0].model.weight.detach().flatten() - best).norm() / (START - best).norm())


SLOWLY = Nesterov(0.7, 0.4)


@pytest.mark.parametrize("when", [{}, {"delay": 1, "mix": 0.25}, {"fragments": 2}, {"delay": "round"}])
def test_on_a_bowl_coded_differences_end_where_whole_ones_do(when: dict[str, Any]) -> None:
    ends = {name: distance(outer_optimizer=SLOWLY, codec=codec, **when) for name, codec in CODECS.items()}
    assert ends["none"] < 0.01 and ends["half"] < 0.01 and ends["int8"] < 0.01
    assert ends["topk"] < 0.05


def test_without_error_feedback_the_largest_entries_end_far_off() -> None:
    ends = [distance(outer_optimizer=SLOWLY, codec=CODECS["topk"], error_feedback=keeps) for keeps in (True, False)]
    assert ends[0] < 0.2 * ends[1]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"delay": "round"}, "delay='round' adds a late change to the anchor, and needs an outer_optimizer"),
    ({"delay": "round", "fragments": 2, "outer_optimizer": Momentum()}, "moves the whole anchor a round late"),
    ({"delay": "round", "mix": 0.5, "outer_optimizer": Momentum()}, "give fragments=1 and mix=0"),
    ({"delay": 1, "outer_optimizer": SlowMomentum()}, "SlowMomentum divides by the learning rate of a round"),
    ({"delay": 1, "codec": partial(Threshold, 0.9, 100)}, "codec Threshold: its packets may weigh anything"),
    ({"delay": 1, "codec": Dense, "by_steps": True}, "by_steps weighs with the steps of a round that has ended"),
    ({"codec": "int8"}, "codec='int8': is none; give one of densing.training"),
    ({"by_steps": True}, "by_steps weighs differences, and without a codec parameters travel"),
    ({"gap": Gap()}, "gap weighs changes that are a round late"),
    ({"delay": 4}, "delay=4: must be below the 4 steps"),
    ({"delay": "late"}, "delay='late': must be a whole number from 0 up"),
    ({"warmup_rounds": -1}, "warmup_rounds=-1"),
]


@pytest.mark.parametrize(("knobs", "says"), REFUSED)
def test_what_does_not_go_together_is_refused_on_every_rank(knobs: dict[str, Any], says: str) -> None:
    told: list[str] = []

    def wrap(replica: Replica) -> Any:
        try:
            return replica.wrap(Outer, tau=4, **knobs)
        except InputError as error:
            told.append(str(error))
            raise

    with pytest.raises(InputError, match=says):
        VirtualMethods([Replica(torch.nn.Linear(N, 1), partial(torch.optim.SGD, lr=LR), nullcontext, torch.sum)
                        for _ in range(2)], wrap)  # fmt: skip
    assert len(told) == 2 and all(says in text for text in told)


@pytest.mark.parametrize(
    ("kind", "knobs", "says"),
    [
        (Momentum, {"lr": 0.0}, "outer_lr=0"),
        (Nesterov, {"momentum": 1.0}, "outer_momentum=1"),
        (Momentum, {"clip": 0.0}, "clip=0"),
        (DelayedNesterov, {"every": 0}, "every=0"),
        (SlowMomentum, {"lr": -1.0}, "slow_lr=-1"),
        (Int8, {"block": 0}, "block=0"),
    ],
)
def test_numbers_out_of_range_are_refused(kind: Any, knobs: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        kind(**knobs)


@pytest.mark.parametrize("knobs", [{}, {"delay": 2}, {"delay": "round", "outer_optimizer": Momentum()}])
@pytest.mark.parametrize("codec", [Dense, Int8])
def test_a_rank_that_spoils_the_mean_is_named(codec: Any, knobs: dict[str, Any]) -> None:
    team = team_of(Outer, tau=4, codec=codec, **knobs)
    with torch.no_grad():
        team.methods[1].model.weight[0, 5] = float("nan")
    with pytest.raises(InputError, match=r"weight of rank 1 holds inf or NaN"):
        for _ in range(9):
            for method in team.methods:
                method.optimizer.zero_grad()
            team.backward([method.model.weight.sum() for method in team.methods])
            team.step()


def test_a_state_of_another_codec_or_delay_is_refused() -> None:
    def one(**knobs: Any) -> Any:
        model = torch.nn.Linear(N, 1)
        return Outer(model, torch.optim.SGD(model.parameters(), lr=LR), 4, **knobs)

    state = one(codec=Int8, delay=1).state_dict()
    # Of the same kind too: what is under way could not be read.
    for codec, says in ((TopK(0.1), "TopK of at most"), (Int8(block=64), "Int8 of at most 648 bytes")):
        with pytest.raises(
            InputError, match=f"saved with codec='Int8 of at most 612 bytes', but this run has codec='{says}"
        ):
            one(codec=codec, delay=1).load_state_dict(state)
    with pytest.raises(InputError, match="saved with delay=1, but this run has delay=2"):
        one(codec=Int8, delay=2).load_state_dict(state)


@pytest.mark.parametrize("codec", [Dense, Half, Int8, partial(Frequencies, 0.8, "magnitude")])
def test_gradients_through_any_codec_train_as_whole_ones(codec: Any) -> None:
    best = torch.stack(TARGETS).mean(0)
    ends, team = trained(Synchronous, 80, codec=codec)
    assert all(torch.equal(ends[0], end) for end in ends)
    assert float((ends[0] - best).norm()) < 0.02 * float((START - best).norm())
    # Packets that add up are summed on the way: twice a ring; others are gathered.
    method: Any = team.methods[0]
    assert method.coded.op == ("sum" if codec is Dense else None)


def test_a_mean_that_is_not_finite_leaves_what_it_would_overwrite() -> None:
    model = torch.nn.Linear(N, 1)
    flat = Flat(model)
    mean = CodedMean(VirtualRanks(1).links[0], flat, Int8, [slice(0, flat.numel)], error_feedback=True)
    mean.work[7] = float("inf")
    out = torch.ones(flat.numel)
    with pytest.raises(NotFiniteError) as caught:
        mean.decode(mean.encode(), 0, out)
    assert (caught.value.rank, caught.value.tensor) == (0, 0) and torch.equal(out, torch.ones(flat.numel))
