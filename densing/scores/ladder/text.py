"""A user's text as a corpus: read once, turned into tokens, kept beside the ladder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from densing.core import ArtefactError, InputError, read_text, write_text
from densing.scores.ladder.corpus import VALIDATION_TOKENS, Tokens
from densing.scores.ladder.tokenizers import EOS, text_tokenizer

SUFFIXES = (".txt", ".md", ".text")
_BYTES_ONLY = 257


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
        found: Tokens = np.load(self.folder / "train.npy", mmap_mode="r")
        return found[: tokens or None]

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
    texts = [read_text(path, str(path)) for path in _files(source)]
    digest = hashlib.sha256(json.dumps([vocabulary, texts]).encode()).hexdigest()
    place = folder / digest[:12]
    if not (place / "corpus.json").is_file():
        _write(texts, place, vocabulary, digest, str(source))
    return _open(place)


def _files(source: Path) -> list[Path]:
    if not source.exists():
        raise InputError(f"--corpus {source}: no such file or folder")
    if source.is_file():
        return [source]
    found = sorted(path for path in source.rglob("*") if path.suffix in SUFFIXES and path.is_file())
    if not found:
        raise InputError(f"--corpus {source}: holds no {', '.join(SUFFIXES)} file")
    return found


def _write(texts: list[str], place: Path, vocabulary: int, digest: str, source: str) -> None:
    tokenizer = text_tokenizer(iter(texts), max(vocabulary, _BYTES_ONLY))
    end = tokenizer.convert_tokens_to_ids(EOS)
    parts = [np.array([end, *tokenizer(text, verbose=False)["input_ids"]], dtype=np.uint32) for text in texts]
    tokens = np.concatenate(parts)
    held = min(VALIDATION_TOKENS, len(tokens) // 100)
    if held < 100:
        raise InputError(f"--corpus {source}: {len(tokens)} tokens are too few; 10,000 or more are needed")
    place.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(place / "tokenizer")
    np.save(place / "train.npy", tokens[:-held])
    np.save(place / "validation.npy", tokens[-held:])
    about = {"source": source, "digest": digest, "vocabulary": len(tokenizer), "tokens": len(tokens)}
    write_text(place / "corpus.json", json.dumps(about, indent=2) + "\n")


def _open(place: Path) -> TextCorpus:
    path = place / "corpus.json"
    try:
        about = json.loads(read_text(path, str(path)))
        return TextCorpus(place, int(about["vocabulary"]), str(about["digest"]))
    except (ValueError, KeyError, TypeError) as error:
        raise ArtefactError(f"{path}: damaged ({error}); delete its folder") from error
