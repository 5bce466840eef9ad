"""Tokenizers of the ladder, as transformers saves and lm-eval loads them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

EOS = "<eos>"


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
        vocab_size=max(vocabulary, 257),
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
