"""Arms as they are written, what they change of a run, and clients' mixtures."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from densing.core import DensingError, InputError, UnknownNameError
from densing.scores.ladder import Generated, arm_runs, get_preset, parse_arm, parse_seeds
from densing.scores.ladder.arms import client_recipes
from densing.scores.ladder.corpus import TextCorpus
from densing.scores.ladder.world import FIRST, generate, get_recipe
from tests.support import folders

CPU, CORPUS = get_preset("cpu"), Generated()


def test_an_arm_is_the_same_however_its_options_are_ordered() -> None:
    one, other = parse_arm("co2:tau=8,lr=2,gap=constant", 4), parse_arm(" co2:gap=constant, lr=2,tau=8", 4)
    assert one == other
    assert (one.name, one.slug) == ("co2:gap=constant,lr=2,tau=8", "co2-gap-constant-lr-2-tau-8")


@pytest.mark.parametrize(
    ("text", "part"),
    [("", "METHOD"), (":tau=8", "METHOD"), ("../x", "METHOD"), ("co2:tau", "option=value"), ("co2:tau=8,tau=9", "once"),
     ("plain:lr=0", "factor"), ("plain:lr=nan", "factor"), ("plain:bits=1", "2 to 16"), ("plain:ranks=65", "1 to 64"),
     ("plain:batch=x", "whole number"), ("plain:exits=-1", "a weight from 0"), ("plain:clients=0", "concentration")],
)  # fmt: skip
def test_what_is_no_arm_is_refused(text: str, part: str) -> None:
    with pytest.raises(InputError, match=part):
        parse_arm(text)


@pytest.mark.parametrize("text", ["plain:tau=8", "plain:corpus=dirty", "plain:order=random"])
def test_unknown_names_are_refused(text: str) -> None:
    with pytest.raises(UnknownNameError):
        parse_arm(text)


@settings(max_examples=40)
@given(st.text(max_size=30) | st.text("co2plainr:=,.58 kscgbit", max_size=30))
def test_no_text_breaks_the_reader(text: str) -> None:
    try:
        arm = parse_arm(text)
    except DensingError:
        return
    assert parse_arm(arm.name) == arm
    assert "/" not in arm.slug


@pytest.mark.parametrize(("text", "seeds"), [("3", [0, 1, 2]), ("0..5", [0, 1, 2, 3, 4, 5]), ("7..7", [7])])
def test_seeds_are_a_number_or_a_range(text: str, seeds: list[int]) -> None:
    assert list(parse_seeds(text)) == seeds


@pytest.mark.parametrize("text", ["", "0", "x", "5..0", "-1..3", "1..", "1.5"])
def test_what_are_no_seeds_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="--seeds"):
        parse_seeds(text)


def test_arms_share_sizes_seeds_and_tokens() -> None:
    arms = [parse_arm(text) for text in ("plain", "plain:batch=16,lr=2", "plain:corpus=clean")]
    runs = arm_runs(CPU, CORPUS, arms, sizes=["d8", "d12"], seeds=[4, 5])
    cells = [{(r.shape.name, r.seed, r.tokens(s)) for r in runs if r.arm == arm for s in r.steps} for arm in arms]
    assert cells[0] == cells[1] == cells[2]
    plain, large, clean = (next(run for run in runs if run.arm == arm) for arm in arms)
    assert large.preset.rate(large.shape) == 2 * plain.preset.rate(plain.shape)
    assert large.preset.warmup * 2 == plain.preset.warmup
    assert (plain.corpus, clean.corpus) == (CORPUS, Generated("clean"))
    assert len({run.name for run in runs}) == len(runs)


def test_longer_training_stands_under_the_budgets_names() -> None:
    plain, longer = arm_runs(
        get_preset("cpu"), Generated(), [parse_arm("plain"), parse_arm("plain:tokens=1.37")], sizes=["d12"], seeds=[0]
    )
    for short, long in zip(plain.budgets, longer.budgets, strict=True):
        assert longer.budgeted(long) == plain.budgeted(short) == plain.tokens(short.end)
        assert longer.tokens(long.end) / plain.tokens(short.end) == pytest.approx(1.37, abs=0.001)
    assert longer.export_folder(folders.ROOT, longer.budgets[0]) != plain.export_folder(folders.ROOT, plain.budgets[0])


def test_arms_that_do_not_divide_or_come_twice_are_refused(tmp_path: object) -> None:
    with pytest.raises(InputError, match="do not divide"):
        arm_runs(CPU, CORPUS, [parse_arm("plain:batch=7")])
    with pytest.raises(InputError, match="split over 3 ranks"):
        arm_runs(CPU, CORPUS, [parse_arm("plain", 3)])
    with pytest.raises(InputError, match="occurs twice"):
        arm_runs(CPU, CORPUS, [parse_arm("plain"), parse_arm("plain")])
    text = TextCorpus(folders.ROOT, 257, "0")
    with pytest.raises(InputError, match="your own text"):
        arm_runs(CPU, text, [parse_arm("plain:clients=1")])  # type: ignore[list-item]


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 16), st.floats(0.1, 100), st.integers(0, 50), st.sampled_from(["standard", "clean"]))
def test_clients_have_equal_tokens_and_together_the_recipes_mixture(
    ranks: int, concentration: float, seed: int, name: str
) -> None:
    recipe = get_recipe(name)
    shares = np.array([list(part.shares.values()) for part in client_recipes(recipe, ranks, concentration, seed)])
    assert shares.sum(axis=1) == pytest.approx(1)
    assert shares.mean(axis=0) == pytest.approx(list(recipe.shares.values()), abs=0.02)


def test_clients_read_what_their_mixture_says() -> None:
    parts = client_recipes(get_recipe("standard"), 2, 0.2, 1)
    streams = [generate(part, 40_000, client=number) for number, part in enumerate(parts)]
    # Documents of tables hold an operator each, and six tokens.
    operators = range(FIRST["o"], FIRST["s"])
    shares = [6 * np.isin(stream, operators).mean() for stream in streams]
    assert shares == pytest.approx([part.shares["table"] for part in parts], abs=0.02)
    assert abs(shares[0] - shares[1]) > 0.05
