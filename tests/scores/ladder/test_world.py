"""The generated corpus against its own definition, and the questions against the corpus."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from densing.core.errors import UnknownNameError
from densing.scores.ladder import world as w
from densing.scores.ladder.questions import SETS, marginal, questions, write_tasks

TOKENS = 1_200_000


def documents(recipe: str, tokens: int = TOKENS, part: str = "train") -> list[list[str]]:
    stream = w.generate(w.get_recipe(recipe), tokens, part=part)
    words = np.array(w.VOCABULARY)[stream]
    ends = np.flatnonzero(stream == w.STOP) + 1
    return [list(document) for document in np.split(words, ends)[:-1]]


@pytest.fixture(scope="module")
def standard() -> list[list[str]]:
    return documents("standard")


def of_family(corpus: list[list[str]], family: str) -> list[list[str]]:
    marks = {"bigram": "say", "skip": "skip", "noise": "hear"}
    if family in marks:
        return [d for d in corpus if d[1] == marks[family]]
    place, word = {"facts": (3, "likes"), "table": (3, "=")}[family]
    return [d for d in corpus if d[place] == word]


def close(count: int, total: int, p: float) -> bool:
    """Within five standard errors of a binomial share."""
    return abs(count / total - p) < 5 * math.sqrt(p * (1 - p) / total)


def test_successor_entropy_is_the_published_floor() -> None:
    # Computed by hand from p(k) proportional to k^-1.2, k = 1..6.
    weights = [k**-1.2 for k in range(1, 7)]
    p = [x / sum(weights) for x in weights]
    assert -sum(x * math.log(x) for x in p) == pytest.approx(w.SUCCESSOR_ENTROPY)
    assert pytest.approx(1.492, abs=5e-4) == w.SUCCESSOR_ENTROPY


def test_shares_of_tokens(standard: list[list[str]]) -> None:
    total = sum(map(len, standard))
    for family, share in w.get_recipe("standard").shares.items():
        found = of_family(standard, family)
        assert sum(map(len, found)) / total == pytest.approx(share, abs=0.005)
    assert sum(len(of_family(standard, family)) for family in w.get_recipe("standard").shares) == len(standard)


def test_words_and_names_follow_zipf(standard: list[list[str]]) -> None:
    heads = Counter(word for d in of_family(standard, "bigram") for word in d[2:8:2])
    n = sum(heads.values())
    p = w.zipf(w.WORDS, w.WORD_ZIPF)
    assert all(close(heads[f"w{rank:03d}"], n, p[rank]) for rank in (0, 1, 4, 20, 100))
    operators = Counter(d[1] for d in of_family(standard, "table"))
    q = w.zipf(w.OPERATORS, w.OPERATOR_ZIPF)
    assert all(close(operators[f"o{rank:02d}"], sum(operators.values()), q[rank]) for rank in (0, 5, 30, 59))


def test_successors_follow_their_ranks(standard: list[list[str]]) -> None:
    world = w.build_world()
    pairs = [(d[2], d[4]) for d in of_family(standard, "skip")] + [(d[5], d[7]) for d in of_family(standard, "skip")]
    ranks = [list(world.skip[int(head[1:])]).index(int(successor[1:])) for head, successor in pairs]
    p = w.zipf(w.SUCCESSORS, w.SUCCESSOR_ZIPF)
    assert all(close(ranks.count(k), len(ranks), p[k]) for k in range(6))


def test_a_name_has_one_value_and_a_table_is_a_permutation(standard: list[list[str]]) -> None:
    values: dict[tuple[str, str], set[str]] = {}
    for d in of_family(standard, "facts"):
        values.setdefault((d[1], d[2]), set()).add(d[4])
    assert all(len(found) == 1 for found in values.values())
    assert len(values) > 500
    results: dict[tuple[str, str], str] = {}
    for d in of_family(standard, "table"):
        assert results.setdefault((d[1], d[2]), d[4]) == d[4]
    whole = [[results["o00", f"s{s:02d}"] for s in range(16)]]
    assert sorted(whole[0]) == [f"s{s:02d}" for s in range(16)]


def test_longer_corpora_begin_with_shorter_ones_and_validation_is_other_text() -> None:
    recipe = w.get_recipe("standard")
    long = w.generate(recipe, 400_000)
    assert (long[:1000] == w.generate(recipe, 1000)).all()
    assert not (long[:1000] == w.generate(recipe, 1000, part="validation")).all()
    assert not (long[:1000] == w.generate(recipe, 1000, seed=6)).all()
    assert w.corpus_hash(recipe, 5) == w.corpus_hash(recipe, 5) != w.corpus_hash(recipe, 6)


def test_clean_has_no_noise() -> None:
    corpus = documents("clean", 200_000)
    assert not of_family(corpus, "noise")
    assert w.get_recipe("clean").useful == 1
    shares = w.get_recipe("standard").shares
    for family, share in w.get_recipe("clean").shares.items():
        assert share == pytest.approx(shares[family] / w.get_recipe("standard").useful)


def test_shuffled_keeps_frequencies_and_breaks_facts(standard: list[list[str]]) -> None:
    corpus = documents("shuffled")
    facts, true = of_family(corpus, "facts"), of_family(standard, "facts")
    # The same documents with other answers: all frequencies are equal, up to the document that the end cuts.
    assert abs(len(facts) - len(true)) <= 1
    a, b = Counter(d[4] for d in facts), Counter(d[4] for d in true)
    assert all(close(a[value], len(facts), b[value] / len(true)) for value in b)
    first = [d[4] for d in facts if d[1:3] == true[0][1:3]]
    assert len(set(first)) > 1
    # What a value tells of the name: nothing beyond chance (mean agreement with the true value).
    known = {tuple(d[1:3]): d[4] for d in true}
    agree = [d[4] == known[tuple(d[1:3])] for d in facts if tuple(d[1:3]) in known]
    expected = sum((b[value] / len(true)) ** 2 for value in b)
    assert abs(np.mean(agree) - expected) < 5 * math.sqrt(expected / len(agree))


@pytest.mark.parametrize("name", list(SETS))
def test_questions_ask_what_the_corpus_says(name: str) -> None:
    world = w.build_world()
    rows = questions(name, 500)
    assert rows == questions(name, 500)
    assert Counter(len(set(row["choices"])) for row in rows) == {4: 500}
    assert (
        len({len(choice) for row in rows for choice in row["choices"]}) == 1
    )  # bits per byte is nats times a constant
    places = Counter(row["gold"] for row in rows)
    assert all(close(places[place], 500, 0.25) for place in range(4))
    for row in rows:
        words = row["query"].split()
        answer = row["choices"][row["gold"]].strip()
        assert words[0] == "<eos>"
        if name.startswith("facts"):
            entity = np.flatnonzero((world.names == [int(words[1][1:]), int(words[2][1:])]).all(axis=1))[0]
            assert int(answer[1:]) == world.values[entity]
        elif name == "table":
            assert int(answer[1:]) == world.table[int(words[1][1:]), int(words[2][1:])]
        else:
            assert int(answer[1:]) in (world.skip if name == "skip" else world.bigram)[int(words[2][1:])]


def test_wrong_successors_are_as_frequent_as_right_ones(standard: list[list[str]]) -> None:
    share = marginal(w.build_world().bigram, w.zipf(w.WORDS, w.WORD_ZIPF))
    assert share.sum() == pytest.approx(1)
    found = Counter(word for d in of_family(standard, "bigram") for word in d[3:8:2])
    n = sum(found.values())
    assert all(close(found[f"w{k:03d}"], n, share[k]) for k in np.argsort(-share)[:50])


@pytest.mark.parametrize("name", list(SETS))
def test_guessing_the_most_frequent_answer_gains_little(name: str) -> None:
    rows = questions(name, 4000)
    frequency = Counter(row["choices"][row["gold"]] for row in rows)
    # Of the others only: a guess that saw its own question would be better than it should.
    right = [max(row["choices"], key=lambda c: frequency[c] - (c == row["choices"][row["gold"]])) for row in rows]
    share = np.mean([guess == row["choices"][row["gold"]] for guess, row in zip(right, rows, strict=True)])
    # Wrong answers are drawn without replacement, so the most frequent one is more often right than a quarter; with
    # wrong answers drawn uniformly, facts would give it 0.47.
    assert 0.15 < share < 0.35


def test_task_files_are_plain_data(tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    names = write_tasks(tmp_path, 20)
    assert names == [f"densing_ladder_{name}" for name in SETS]
    for name in SETS:
        text = (tmp_path / f"{name}.yaml").read_text()
        assert "!" not in text
        task = yaml.safe_load(text)
        assert task["metadata"]["benchmark"] == name
        lines = Path(task["dataset_kwargs"]["data_files"]["test"]).read_text().splitlines()
        assert [json.loads(line) for line in lines] == questions(name, 20)


def test_unknown_recipe_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="standard"):
        w.get_recipe("standart")
