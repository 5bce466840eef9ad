"""Questions on the generated corpus, as lm-eval tasks: four choices of one word each, and nothing but data and YAML.

Sets: ``facts``, ``bigram`` and ``skip`` ask what the corpus asks, as often; ``facts_tail`` and ``bigram_tail`` ask
about rare names and words; ``table`` is learnt all at once or not at all, and stays at chance in small models.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from densing.core import write_text
from densing.scores.ladder import world as w

CHOICES = 4
QUESTION_SEED = 123
PREFIX = "densing_ladder_"
VERSION = 1
# Heads of the tail sets are drawn uniformly from these ranks, counted from 0.
_FACT_TAIL, _WORD_TAIL = (10, 200), (10, 100)

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class QuestionSet:
    """A set of questions.

    Parameters
    ----------
    name : str
        Benchmark id.
    about : str
        One line for people.
    ask : callable
        ``(world, rng, count) -> (heads, answer, distractors)``: words of the prompt (count, k), the right word
        (count,) and the wrong ones (count, 3), all as token ids.
    """

    name: str
    about: str
    ask: Callable[[w.World, np.random.Generator, int], tuple[Ids, Ids, Ids]]

    @property
    def task(self) -> str:
        """Name of the lm-eval task."""
        return PREFIX + self.name


def questions(name: str, count: int, seed: int = w.CORPUS_SEED) -> list[dict[str, Any]]:
    """Return the questions of a set.

    Parameters
    ----------
    name : str
        One of :data:`SETS`.
    count : int
        How many; a longer set does not begin with the shorter one.
    seed : int
        Seed of the corpus they ask about.

    Returns
    -------
    list of dict
        query (beginning with ``<eos>``), choices (each beginning with a space), gold (index).

    Examples
    --------
    >>> one, = questions("facts", 1)
    >>> one["query"].split()[0], len(one["choices"])
    ('<eos>', 4)
    """
    rng = np.random.default_rng([seed, QUESTION_SEED, list(SETS).index(name)])
    heads, answer, wrong = SETS[name].ask(w.build_world(seed), rng, count)
    gold = rng.integers(CHOICES, size=count)
    rows = []
    for number in range(count):
        choices = [w.VOCABULARY[token] for token in wrong[number]]
        choices.insert(int(gold[number]), w.VOCABULARY[answer[number]])
        prompt = " ".join(w.VOCABULARY[token] for token in heads[number])
        rows.append({"query": prompt, "choices": [f" {word}" for word in choices], "gold": int(gold[number])})
    return rows


def write_tasks(folder: Path, count: int, seed: int = w.CORPUS_SEED) -> list[str]:
    """Write every set as JSON lines and YAML, and return the names of the tasks.

    Parameters
    ----------
    folder : Path
        Where; the YAML names its data by absolute path, because lm-eval reads paths from its working directory.
    count : int
        Questions per set.
    seed : int
        Seed of the corpus.
    """
    for name, chosen in SETS.items():
        data = folder.resolve() / f"{name}.jsonl"
        lines = [json.dumps(row, ensure_ascii=False) for row in questions(name, count, seed)]
        write_text(data, "\n".join(lines) + "\n")
        fields: Mapping[str, Any] = {
            "task": chosen.task,
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(data)}},
            "test_split": "test",
            "output_type": "multiple_choice",
            "doc_to_text": "query",
            "doc_to_choice": "choices",
            "doc_to_target": "gold",
            "target_delimiter": "",
            "num_fewshot": 0,
            "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
            "metadata": {"version": VERSION, "benchmark": chosen.name, "about": chosen.about},
        }
        # JSON values are YAML, which spares a writer of YAML.
        yaml = "".join(f"{key}: {json.dumps(value, ensure_ascii=False)}\n" for key, value in fields.items())
        write_text(folder / f"{name}.yaml", yaml)
    return [chosen.task for chosen in SETS.values()]


def _ask_fact(
    world: w.World, rng: np.random.Generator, count: int, *, shares: NDArray[np.float64]
) -> tuple[Ids, Ids, Ids]:
    """Ask for the values of names drawn with these probabilities, shape (8000,)."""
    entity = rng.choice(w.ENTITIES, size=count, p=shares)
    first, last = world.names[entity].T
    answer = world.values[entity]
    wrong = _distractors(rng, answer, np.bincount(world.values, weights=shares, minlength=w.VALUES).astype(float))
    heads = _prompt(w.FIRST["f"] + first, w.FIRST["l"] + last, w.LIKES)
    return heads, w.FIRST["v"] + answer, w.FIRST["v"] + wrong


def _ask_word(
    world: w.World, rng: np.random.Generator, count: int, *, family: str, shares: NDArray[np.float64]
) -> tuple[Ids, Ids, Ids]:
    """Ask for a successor of words drawn with these probabilities, shape (400,); ``skip`` has a filler between."""
    filler = w.FIRST["n"] + rng.integers(w.FILLERS, size=count) if family == "skip" else None
    successors = world.bigram if filler is None else world.skip
    head = rng.choice(w.WORDS, size=count, p=shares)
    rank = rng.choice(w.SUCCESSORS, size=count, p=w.zipf(w.SUCCESSORS, w.SUCCESSOR_ZIPF))
    answer = successors[head, rank]
    wrong = _distractors(rng, answer, marginal(successors, shares))
    start = _prompt(w.SAY, w.FIRST["w"] + head) if filler is None else _prompt(w.SKIP, w.FIRST["w"] + head, filler)
    return start, w.FIRST["w"] + answer, w.FIRST["w"] + wrong


def marginal(successors: Ids, frequencies: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return how frequent each word is as a successor of words of these frequencies, shape (400,)."""
    joint = frequencies[:, None] * w.zipf(w.SUCCESSORS, w.SUCCESSOR_ZIPF)
    return np.bincount(successors.ravel(), weights=joint.ravel(), minlength=w.WORDS).astype(float)


def _uniform(count: int, low: int, high: int) -> NDArray[np.float64]:
    share = np.zeros(count)
    share[low:high] = 1 / (high - low)
    return share


def _ask_table(world: w.World, rng: np.random.Generator, count: int) -> tuple[Ids, Ids, Ids]:
    operator = rng.choice(w.OPERATORS, size=count, p=w.zipf(w.OPERATORS, w.OPERATOR_ZIPF))
    argument = rng.integers(w.SYMBOLS, size=count)
    answer = world.table[operator, argument]
    wrong = _distractors(rng, answer, np.full(w.SYMBOLS, 1 / w.SYMBOLS))
    heads = _prompt(w.FIRST["o"] + operator, w.FIRST["s"] + argument, w.EQUALS)
    return heads, w.FIRST["s"] + answer, w.FIRST["s"] + wrong


def _distractors(rng: np.random.Generator, answer: Ids, share: NDArray[np.float64]) -> Ids:
    """Draw three distinct wrong answers per question without replacement, in proportion to ``share``.

    With the frequencies of right answers, how frequent a word is betrays little.
    """
    # The largest of log p + Gumbel noise are a draw without replacement (Efraimidis and Spirakis, 2006).
    with np.errstate(divide="ignore"):
        key = np.log(share) + rng.gumbel(size=(len(answer), len(share)))
    key[np.arange(len(answer)), answer] = -np.inf
    return np.argsort(-key, axis=1)[:, : CHOICES - 1]


def _prompt(*tokens: Ids | int) -> Ids:
    return np.stack(np.broadcast_arrays(w.EOS, *tokens), axis=1)


SETS = {
    chosen.name: chosen
    for chosen in (
        QuestionSet(
            "facts",
            "the value of a name, names as frequent as in the corpus",
            partial(_ask_fact, shares=w.zipf(w.ENTITIES, w.ENTITY_ZIPF)),
        ),
        QuestionSet(
            "facts_tail",
            "the value of a rarer name (ranks 11 to 200)",
            partial(_ask_fact, shares=_uniform(w.ENTITIES, *_FACT_TAIL)),
        ),
        QuestionSet(
            "bigram",
            "a successor of a word, words as frequent as in the corpus",
            partial(_ask_word, family="bigram", shares=w.zipf(w.WORDS, w.WORD_ZIPF)),
        ),
        QuestionSet(
            "bigram_tail",
            "a successor of a rarer word (ranks 11 to 100)",
            partial(_ask_word, family="bigram", shares=_uniform(w.WORDS, *_WORD_TAIL)),
        ),
        QuestionSet(
            "skip",
            "a successor across a filler word",
            partial(_ask_word, family="skip", shares=w.zipf(w.WORDS, w.SKIP_ZIPF)),
        ),
        QuestionSet("table", "the result of an operator on a symbol", _ask_table),
    )
}
