"""What a run trains on: the generated corpus, or a user's text once it is tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from densing.scores.ladder.world import CORPUS_SEED, VOCABULARY, corpus_hash, generate, get_recipe

Tokens = NDArray[np.integer[Any]]
VALIDATION_TOKENS = 65_536


class Corpus(Protocol):
    """A stream of tokens, its held-out part and its tokenizer; picklable, so that workers can have it."""

    @property
    def vocabulary(self) -> int:
        """Number of tokens that exist."""

    def stream(self, tokens: int) -> Tokens:
        """Return the training stream, at least ``tokens`` long where the source is endless."""

    def validation(self) -> Tokens:
        """Return the held-out stream."""

    def tokenizer(self) -> Any:
        """Return a tokenizer that transformers saves beside a model."""

    def describe(self) -> Mapping[str, Any]:
        """Return name, hash and what else identifies the corpus."""


@dataclass(frozen=True)
class Generated:
    """The generated corpus of :mod:`densing.scores.ladder.world`.

    Parameters
    ----------
    recipe : str
        One of ``standard``, ``clean``, ``shuffled``.
    seed : int
        Seed of its world and documents; not that of a run.
    """

    recipe: str = "standard"
    seed: int = CORPUS_SEED

    @property
    def vocabulary(self) -> int:
        """Number of words."""
        return len(VOCABULARY)

    def stream(self, tokens: int) -> Tokens:
        """Return exactly ``tokens`` tokens."""
        return generate(get_recipe(self.recipe), tokens, self.seed)

    def validation(self) -> Tokens:
        """Return held-out documents, always of the standard recipe: losses of all runs then compare."""
        return generate(get_recipe("standard"), VALIDATION_TOKENS, self.seed, "validation")

    def tokenizer(self) -> Any:
        """Return a tokenizer of whole words."""
        from densing.scores.ladder.tokenizers import word_tokenizer

        return word_tokenizer(VOCABULARY)

    def describe(self) -> Mapping[str, Any]:
        """Return recipe, seed, hash and the share of tokens that is not noise."""
        recipe = get_recipe(self.recipe)
        return {
            "corpus": f"generated/{self.recipe}",
            "corpus_seed": self.seed,
            "corpus_hash": corpus_hash(recipe, self.seed),
            "useful": recipe.useful,
        }


def blocks(stream: Tokens, block: int) -> Tokens:
    """Cut a stream into rows of ``block`` tokens and their successor, shape (n, block + 1), without copying.

    Examples
    --------
    >>> blocks(np.arange(7), 3).tolist()
    [[0, 1, 2, 3], [3, 4, 5, 6]]
    """
    windows = np.lib.stride_tricks.sliding_window_view(stream, block + 1)
    return windows[::block]


@dataclass(frozen=True)
class Order:
    """The order in which a run sees the blocks: a permutation per pass, from the run's seed.

    Parameters
    ----------
    count : int
        Number of blocks.
    batch : int
        Blocks per step.
    seed : int
        Seed of the run.
    """

    count: int
    batch: int
    seed: int

    def rows(self, step: int, passes: dict[int, Tokens]) -> Tokens:
        """Return the blocks of a step, shape (batch,); ``passes`` keeps permutations between calls.

        Examples
        --------
        >>> order, kept = Order(6, 4, 0), {}
        >>> sorted([*order.rows(0, kept), *order.rows(1, kept)[:2]])
        [np.int64(0), np.int64(1), np.int64(2), np.int64(3), np.int64(4), np.int64(5)]
        """
        positions = np.arange(step * self.batch, (step + 1) * self.batch)
        return np.array([self._pass(int(p) // self.count, passes)[p % self.count] for p in positions])

    def _pass(self, number: int, passes: dict[int, Tokens]) -> Tokens:
        if number not in passes:
            passes[number] = np.random.default_rng([self.seed, 3, number]).permutation(self.count)
        return passes[number]
