"""Delays: their distributions against scipy's, draws that depend on place alone, texts and files that are refused."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from densing.core import InputError
from densing.efficiency.simulation import Delay, load_cluster, parse_delay, to_toml
from densing.efficiency.simulation.cluster import cluster_of

SHARES = np.linspace(0, 0.999, 50)


@given(st.floats(0, 10), st.floats(1e-3, 1e3))
def test_the_shifted_exponential_is_scipys(a: float, mu: float) -> None:
    delay, oracle = Delay("shifted-exp", a=a, mu=mu), stats.expon(loc=a, scale=1 / mu)
    np.testing.assert_allclose(delay.quantile(SHARES), oracle.ppf(SHARES), rtol=1e-12)
    assert delay.mean == pytest.approx(oracle.mean())


@given(st.floats(0, 10), st.floats(1e-3, 1e3), st.floats(0.2, 20))
def test_the_pareto_is_scipys_lomax(a: float, scale: float, shape: float) -> None:
    delay, oracle = Delay("pareto", a=a, scale=scale, shape=shape), stats.lomax(shape, loc=a, scale=scale)
    np.testing.assert_allclose(delay.quantile(SHARES), oracle.ppf(SHARES), rtol=1e-9)
    assert delay.mean == pytest.approx(oracle.mean())


def test_draws_follow_the_distribution() -> None:
    delay = Delay("pareto", scale=0.1, shape=3.0, seed=5)
    drawn = np.concatenate([delay.draw(1000, step) for step in range(20)])
    assert stats.kstest(drawn, stats.lomax(3.0, scale=0.1).cdf).pvalue > 0.01


def test_an_empirical_delay_draws_what_was_seen_each_as_often() -> None:
    delay = Delay("empirical", values=(0.3, 0.1, 0.2))
    drawn = np.concatenate([delay.draw(300, step) for step in range(10)])
    values, counts = np.unique(drawn, return_counts=True)
    assert values.tolist() == [0.1, 0.2, 0.3]
    assert stats.chisquare(counts).pvalue > 0.01
    assert delay.mean == pytest.approx(0.2)


@given(st.sampled_from(["task", "step", "run"]), st.integers(0, 2**32), st.integers(1, 40), st.integers(1, 40))
def test_a_draw_depends_on_place_and_seed_alone(lasts: str, seed: int, ranks: int, more: int) -> None:
    delay = Delay("shifted-exp", mu=2.0, lasts=lasts, seed=seed)
    first = delay.draw(ranks, 3, 1)
    # More ranks, another order of asking: each rank's number stays.
    delay.draw(7, 9, 9)
    assert np.array_equal(delay.draw(ranks + more, 3, 1)[:ranks], first)
    assert np.array_equal(delay.draw(ranks, 3, 2), first) == (lasts != "task")
    assert np.array_equal(delay.draw(ranks, 4, 1), first) == (lasts == "run")


def test_texts_are_read(tmp_path: Path) -> None:
    seen = tmp_path / "seen.txt"
    seen.write_text("0.1\n\n0.4\n")
    assert parse_delay("shifted-exp:a=0.01,mu=10") == Delay("shifted-exp", a=0.01, mu=10.0)
    assert parse_delay("pareto:scale=0.1,shape=2,persistent,seed=3").seed == 3
    assert parse_delay("shifted-exp:mu=10,iid").lasts == "task"
    assert parse_delay(f"empirical:{seen},lasts=step") == Delay("empirical", values=(0.1, 0.4), lasts="step")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gauss:mu=1", "kind"),
        ("shifted-exp", "mu: missing"),
        ("shifted-exp:mu=0", "out of range"),
        ("shifted-exp:mu=-1", "out of range"),
        ("shifted-exp:mu=nan", "out of range"),
        ("shifted-exp:mu=ten", "not a number"),
        ("shifted-exp:mu=1,mu=2", "twice"),
        ("shifted-exp:mu=1,iid,persistent", "twice"),
        ("shifted-exp:mu=1,a=-1", "not a delay"),
        ("shifted-exp:mu=1,shape=2", "none of a, mu"),
        ("pareto:scale=1", "shape: missing"),
        ("shifted-exp:mu=1,lasts=week", "lasts"),
        ("shifted-exp:mu=1,seed=-1", "below 0"),
        ("empirical:", "values"),
        ("empirical:no/such/file", "no/such/file"),
    ],
)
def test_what_is_no_delay_is_refused_in_words(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        parse_delay(text)


def test_a_file_of_delays_names_the_line_that_is_none(tmp_path: Path) -> None:
    seen = tmp_path / "seen.txt"
    seen.write_text("0.1\nlate\n")
    with pytest.raises(InputError, match=r"line 2: 'late'"):
        parse_delay(f"empirical:{seen}")


@pytest.mark.parametrize(
    "delay",
    [
        Delay("shifted-exp", a=0.25, mu=3.0, lasts="run", seed=4),
        Delay("pareto", scale=0.5, shape=1.5),
        Delay("empirical", values=(0.0, 1.5)),
    ],
)
def test_a_cluster_keeps_its_delay_through_its_file(delay: Delay) -> None:
    cluster = load_cluster("cpu2").change(delay=delay)
    assert cluster_of(tomllib.loads(to_toml(cluster)), "mine.toml") == cluster


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"kind": "shifted-exp", "mu": -1.0}, r"delay: mu: -1.0 is out of range"),
        ({"kind": "shifted-exp", "rate": 1.0}, r"delay: .*rate"),
        ({"kind": "shifted-exp", "mu": "ten"}, r"delay: "),
        ({"mu": 1.0}, r"delay: .*kind"),
        ("soon", r"delay: 'soon' is not a table"),
    ],
)
def test_a_cluster_file_with_an_impossible_delay_names_the_field(table: object, words: str) -> None:
    plain = tomllib.loads(to_toml(load_cluster("cpu2"))) | {"delay": table}
    with pytest.raises(InputError, match=words):
        cluster_of(plain, "mine.toml")
