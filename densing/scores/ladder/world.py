"""The generated corpus: small facts and habits of words with heavy tails; models of any size learn a share of it.

Families of documents, each from ``<eos>`` to ``.``:

facts   ``f03 l17 likes v09``            8000 entities of two-part names, each with one of 16 values
bigram  ``say`` 3 x (word, successor)    each of 400 words has 6 successors
skip    ``skip`` 2 x (word, filler, successor), with successors of its own
table   ``o05 s01 = s09``                60 permutations of 16 symbols
noise   ``hear`` 6 words                 uniform: nothing to learn but its marker

What is rare follows Zipf's law, so losses fall as power laws in size and tokens; their floors are known
(:data:`SUCCESSOR_ENTROPY` for successors, 0 for facts and tables).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from densing.core import UnknownNameError

Ids = NDArray[np.int64]
ENTITIES, VALUES, NAME_PARTS = 8000, 16, 96
WORDS, SUCCESSORS = 400, 6
OPERATORS, SYMBOLS, FILLERS = 60, 16, 12
# Above 1, what is left beyond the first n items falls as a power of n, so losses are near power laws; at 1 it falls as
# a logarithm and ends at once when all is learnt.
ENTITY_ZIPF, WORD_ZIPF, SKIP_ZIPF, OPERATOR_ZIPF, SUCCESSOR_ZIPF = 1.25, 1.3, 1.3, 0.8, 1.2
CORPUS_SEED = 5
_CHUNK = 16384
_MARKERS = ("<eos>", ".", "likes", "=", "say", "skip", "hear")
EOS, STOP, LIKES, EQUALS, SAY, SKIP, HEAR = range(7)
# Names of one kind have one length: bits per byte of an answer is then its nats times a constant.
_KINDS = (
    ("f", NAME_PARTS, 2),
    ("l", NAME_PARTS, 2),
    ("v", VALUES, 2),
    ("o", OPERATORS, 2),
    ("s", SYMBOLS, 2),
    ("n", FILLERS, 2),
    ("w", WORDS, 3),
)
FIRST: dict[str, int] = {}
VOCABULARY: list[str] = list(_MARKERS)
for _letter, _count, _digits in _KINDS:
    FIRST[_letter] = len(VOCABULARY)
    VOCABULARY += [f"{_letter}{number:0{_digits}d}" for number in range(_count)]


def zipf(count: int, exponent: float) -> NDArray[np.float64]:
    """Return the probabilities p(k) proportional to k^-exponent of ranks 1 to count.

    Examples
    --------
    >>> zipf(3, 1.0).round(4)
    array([0.5455, 0.2727, 0.1818])
    """
    weight = np.arange(1, count + 1, dtype=float) ** -exponent
    return np.asarray(weight / weight.sum())


SUCCESSOR_ENTROPY = float(-np.sum(zipf(SUCCESSORS, SUCCESSOR_ZIPF) * np.log(zipf(SUCCESSORS, SUCCESSOR_ZIPF))))


@dataclass(frozen=True)
class World:
    """What is true in the corpus: names (8000, 2), their values (8000,), successors (400, 6) twice, tables (60, 16)."""

    names: Ids
    values: Ids
    bigram: Ids
    skip: Ids
    table: Ids

    def write_facts(self, rng: np.random.Generator, count: int) -> Ids:
        """Return documents like ``f03 l17 likes v09``, shape (count, 6)."""
        entity = rng.choice(ENTITIES, size=count, p=zipf(ENTITIES, ENTITY_ZIPF))
        first, last = self.names[entity].T
        value = FIRST["v"] + self.values[entity]
        return _columns(count, EOS, FIRST["f"] + first, FIRST["l"] + last, LIKES, value, STOP)

    def write_bigram(self, rng: np.random.Generator, count: int) -> Ids:
        """Return documents of ``say`` and three words, each with its successor, shape (count, 9)."""
        head, successor = _pairs(self.bigram, WORD_ZIPF, rng, (count, 3))
        body = np.stack([FIRST["w"] + head, FIRST["w"] + successor], axis=2).reshape(count, 6)
        return _columns(count, EOS, SAY, *body.T, STOP)

    def write_skip(self, rng: np.random.Generator, count: int) -> Ids:
        """Return documents of ``skip`` and two words, each with a filler and then its successor, shape (count, 9)."""
        head, successor = _pairs(self.skip, SKIP_ZIPF, rng, (count, 2))
        filler = rng.integers(FILLERS, size=(count, 2))
        body = np.stack([FIRST["w"] + head, FIRST["n"] + filler, FIRST["w"] + successor], axis=2).reshape(count, 6)
        return _columns(count, EOS, SKIP, *body.T, STOP)

    def write_table(self, rng: np.random.Generator, count: int) -> Ids:
        """Return documents like ``o05 s01 = s09``, shape (count, 6)."""
        operator = rng.choice(OPERATORS, size=count, p=zipf(OPERATORS, OPERATOR_ZIPF))
        argument = rng.integers(SYMBOLS, size=count)
        result = FIRST["s"] + self.table[operator, argument]
        return _columns(count, EOS, FIRST["o"] + operator, FIRST["s"] + argument, EQUALS, result, STOP)

    def write_noise(self, rng: np.random.Generator, count: int) -> Ids:
        """Return documents of ``hear`` and six words of no connection, shape (count, 9)."""
        return _columns(count, EOS, HEAR, *(FIRST["w"] + rng.integers(WORDS, size=(6, count))), STOP)


@dataclass(frozen=True)
class Family:
    """How documents of a family are written: their length, which columns are answers, and the writer itself."""

    length: int
    answers: tuple[int, ...]
    write: Callable[[World, np.random.Generator, int], Ids]


_FAMILIES = {
    "facts": Family(6, (4,), World.write_facts),
    "bigram": Family(9, (3, 5, 7), World.write_bigram),
    "skip": Family(9, (4, 7), World.write_skip),
    "table": Family(6, (4,), World.write_table),
    "noise": Family(9, (), World.write_noise),
}


@lru_cache(maxsize=4)
def build_world(seed: int = CORPUS_SEED) -> World:
    """Return the facts, successors and tables of a corpus seed, as numbers within their kind."""
    rng = np.random.default_rng([seed, 0])
    pairs = rng.permutation(NAME_PARTS * NAME_PARTS)[:ENTITIES]
    return World(
        names=np.stack(np.divmod(pairs, NAME_PARTS), axis=1),
        values=rng.integers(VALUES, size=ENTITIES),
        bigram=rng.permuted(np.tile(np.arange(WORDS), (WORDS, 1)), axis=1)[:, :SUCCESSORS],
        skip=rng.permuted(np.tile(np.arange(WORDS), (WORDS, 1)), axis=1)[:, :SUCCESSORS],
        table=rng.permuted(np.tile(np.arange(SYMBOLS), (OPERATORS, 1)), axis=1),
    )


@dataclass(frozen=True)
class Recipe:
    """A mixture of families.

    Parameters
    ----------
    name : str
        Its name.
    shares : mapping of str to float
        Share of the tokens of each family; they add to 1.
    shuffled : bool
        Whether the answers are permuted among the documents of a family, which keeps every frequency and leaves nothing
        to be learnt of the questions.
    """

    name: str
    shares: Mapping[str, float]
    shuffled: bool = False

    @property
    def useful(self) -> float:
        """Share of the tokens that are not noise."""
        return 1.0 - self.shares.get("noise", 0.0)


_STANDARD = {"facts": 0.24, "bigram": 0.20, "skip": 0.20, "table": 0.16, "noise": 0.20}
_NOISY = {"facts": 0.18, "bigram": 0.15, "skip": 0.15, "table": 0.12, "noise": 0.40}
_CLEAN = {"facts": 0.30, "bigram": 0.25, "skip": 0.25, "table": 0.20}
RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe("standard", _STANDARD),
        Recipe("clean", _CLEAN),
        Recipe("noisy", _NOISY),
        Recipe("shuffled", _STANDARD, shuffled=True),
    )
}


def get_recipe(name: str) -> Recipe:
    """Return a recipe by name.

    Raises
    ------
    UnknownNameError
        When there is no such recipe.

    Examples
    --------
    >>> get_recipe("standard").useful
    0.8
    """
    if name not in RECIPES:
        raise UnknownNameError("recipe", name, RECIPES)
    return RECIPES[name]


def generate(
    recipe: Recipe, tokens: int, seed: int = CORPUS_SEED, part: str = "train", client: int | None = None
) -> NDArray[np.uint16]:
    """Return the first tokens of a corpus; a longer corpus begins with the shorter one.

    Parameters
    ----------
    recipe : Recipe
        The mixture.
    tokens : int
        Length of the stream.
    seed : int
        Seed of the corpus (its world and its documents).
    part : {"train", "validation"}
        Two streams over one world.
    client : int, optional
        A stream of its own for each client, over the same world.

    Returns
    -------
    ndarray of uint16, shape (tokens,)
        Token ids, documents packed end to end.

    Examples
    --------
    >>> stream = generate(get_recipe("standard"), 12)
    >>> VOCABULARY[stream[0]], len(stream)
    ('<eos>', 12)
    """
    world = build_world(seed)
    chunks: list[NDArray[np.uint16]] = []
    length = 0
    while not chunks or length < tokens:
        # Every chunk has a generator of its own: a longer stream draws nothing before its new chunks.
        key = [seed, {"train": 1, "validation": 2}[part], len(chunks), *(() if client is None else (1 + client,))]
        chunks.append(_documents(recipe, world, np.random.default_rng(key)))
        length += len(chunks[-1])
    return np.concatenate(chunks)[:tokens]


def corpus_hash(recipe: Recipe, seed: int, block: int = _CHUNK) -> str:
    """Return the sha256 of the first tokens of both parts: it changes when the generator does."""
    parts = [generate(recipe, block, seed, part).tobytes() for part in ("train", "validation")]
    return hashlib.sha256(b"".join(parts)).hexdigest()


def _documents(recipe: Recipe, world: World, rng: np.random.Generator) -> NDArray[np.uint16]:
    """Return ``_CHUNK`` documents end to end; a family's documents are as frequent as share / length."""
    names = list(recipe.shares)
    length = np.array([_FAMILIES[name].length for name in names])
    weight = np.array([recipe.shares[name] for name in names]) / length
    family = rng.choice(len(names), size=_CHUNK, p=weight / weight.sum())
    start = np.concatenate([[0], np.cumsum(length[family])])
    stream = np.empty(start[-1], dtype=np.uint16)
    for number, name in enumerate(names):
        rows = np.flatnonzero(family == number)
        documents = _FAMILIES[name].write(world, rng, len(rows))
        answers = _FAMILIES[name].answers
        if recipe.shuffled and answers:
            cells = documents[:, answers]
            documents[:, answers] = rng.permutation(cells.ravel()).reshape(cells.shape)
        stream[start[rows][:, None] + np.arange(length[number])] = documents
    return stream


def _pairs(successors: Ids, exponent: float, rng: np.random.Generator, size: tuple[int, int]) -> tuple[Ids, Ids]:
    head = rng.choice(WORDS, size=size, p=zipf(WORDS, exponent))
    return head, successors[head, rng.choice(SUCCESSORS, size=size, p=zipf(SUCCESSORS, SUCCESSOR_ZIPF))]


def _columns(count: int, *columns: Ids | int) -> Ids:
    return np.stack([np.broadcast_to(column, (count,)) for column in columns], axis=1)
