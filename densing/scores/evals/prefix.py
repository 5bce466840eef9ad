"""``hf-prefix``: lm-eval's ``hf`` model with the same log-likelihoods for far less work, by sharing what prompts share.

A benchmark asks for the log-likelihood of a few answers behind one question, and of many questions behind the same
examples. ``hf`` runs every answer with its whole prompt. This model keeps the keys and values of the prompt's
paragraphs (text up to a blank line) as long as the following prompts begin with them, and runs the rest of a document,
question and answers, as one tree: a token attends to the cached paragraphs and to its own ancestors.

A document's numbers depend on its own text alone (with ``batch_size`` 1; it counts documents per pass): paragraphs run
one by one whether or not another document shares them, so a resumed run gives the same bits as an unbroken one.

Only causal transformers whose layers all attend to everything before them can do this. Whether a model can is
measured when it is loaded: a short tree must give what ``hf`` gives. Where it does not, and for prompts longer than the
context, ``hf`` does the work.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby, islice, takewhile
from typing import Any

import numpy as np
import torch
from lm_eval.api.registry import register_model
from lm_eval.models.huggingface import HFLM
from tqdm import tqdm  # type: ignore[import-untyped]

Tokens = tuple[int, ...]
Answer = tuple[float, bool]
Request = tuple[tuple[str, str] | None, list[int], list[int]]
LOG = logging.getLogger(__name__)
# Documents per pass for --batch_size auto: a processor is busy with one, a GPU is not.
AUTO_BATCH = {"cpu": 1}
AUTO_BATCH_GPU = 16
# Tokens: reading the weights takes as long as computing with them for about so many.
SHORT_PIECE = 32
# Largest difference to hf on the trial tree, in nats: rounding of the type, far below the effect of a wrong mask.
TRIAL_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-3}
TRIAL_TOLERANCE_HALF = 0.1
TRIAL_LENGTH = 24


@dataclass(frozen=True)
class Document:
    """All requests with one context: its paragraphs, its end, and the answers with the numbers of their requests."""

    paragraphs: tuple[Tokens, ...]
    end: Tokens
    answers: tuple[tuple[int, Tokens], ...]


@dataclass(frozen=True)
class Tree:
    """Token sequences with their common beginnings merged.

    Parameters
    ----------
    tokens : list of int
        A token per node, parents before children.
    parents : list of int
        The node before each node; -1 for the first of a sequence.
    paths : list of list of int
        The nodes of each sequence.

    Examples
    --------
    >>> tree = Tree.grow([(5, 6, 7), (5, 6, 8)])
    >>> tree.tokens, tree.parents, tree.paths
    ([5, 6, 7, 8], [-1, 0, 1, 1], [[0, 1, 2], [0, 1, 3]])
    """

    tokens: list[int]
    parents: list[int]
    paths: list[list[int]]

    @classmethod
    def grow(cls, sequences: Iterable[Sequence[int]]) -> Tree:
        """Return the tree of the sequences."""
        nodes: dict[tuple[int, int], int] = {}
        paths = []
        for sequence in sequences:
            path: list[int] = []
            for token in sequence:
                path.append(nodes.setdefault((path[-1] if path else -1, token), len(nodes)))
            paths.append(path)
        return cls([token for _, token in nodes], [parent for parent, _ in nodes], paths)

    def attention(self) -> np.ndarray:
        """Return which node sees which: itself and its ancestors, shape (nodes, nodes)."""
        mask = np.eye(len(self.tokens), dtype=bool)
        for node, parent in enumerate(self.parents):
            if parent >= 0:
                # The parent stands before: its row is complete.
                mask[node] |= mask[parent]
        return mask


class PromptCache:
    """Keys and values of the paragraphs that the current prompt begins with."""

    def __init__(self) -> None:
        self._paragraphs: list[Tokens] = []
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        from transformers import DynamicCache

        self.states = DynamicCache()
        self._paragraphs.clear()

    @property
    def length(self) -> int:
        """Number of tokens held."""
        return sum(map(len, self._paragraphs))

    def keep(self, paragraphs: Sequence[Tokens]) -> Sequence[Tokens]:
        """Drop what these paragraphs do not begin with; return those still to be run."""
        pairs = zip(self._paragraphs, paragraphs, strict=False)
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        surplus = sum(map(len, self._paragraphs[shared:]))
        del self._paragraphs[shared:]
        self.crop(surplus)
        return paragraphs[shared:]

    def add(self, paragraph: Tokens) -> None:
        """Note that the paragraph was run."""
        self._paragraphs.append(paragraph)

    def crop(self, surplus: int) -> None:
        """Drop the last states."""
        if not self._paragraphs:
            self.clear()
        elif surplus:
            # Every release of transformers reads a negative number as a number of tokens to drop.
            self.states.crop(-surplus)


@register_model("hf-prefix")
class PrefixHFLM(HFLM):  # type: ignore[misc]
    """lm-eval's Hugging Face model, sharing prompts between requests.

    ``prefix_fallback`` says why this model is run as ``hf`` runs it; it is empty when prompts are shared.

    Examples
    --------
    >>> from lm_eval.api.registry import get_model
    >>> get_model("hf-prefix") is PrefixHFLM
    True
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._pieces: dict[int, str] = {}
        self.prefix_fallback = self._obstacle() or self._trial()
        if self.prefix_fallback:
            LOG.warning("hf-prefix runs this model as hf does: %s", self.prefix_fallback)

    def _loglikelihood_tokens(
        self, requests: list[Request], disable_tqdm: bool = False, override_bs: int | None = None
    ) -> list[Answer]:
        """Return log-likelihood and greediness of each request, in its order."""
        # Windows of a long text (no request string) share nothing.
        if self.prefix_fallback or any(text is None for text, _, _ in requests):
            return super()._loglikelihood_tokens(requests, disable_tqdm, override_bs)
        documents, long = self._documents(requests)
        answers: dict[int, Answer] = {}
        with tqdm(total=len(requests), disable=disable_tqdm or self.rank != 0, desc="Running requests (shared)") as bar:
            for index, answer in self._score(documents):
                answers[index] = answer
                self.cache_hook.add_partial("loglikelihood", requests[index][0], answer)
                bar.update()
        if long:
            own = super()._loglikelihood_tokens([requests[index] for index in long], disable_tqdm, override_bs)
            answers.update(zip(long, own, strict=True))
        return [answers[index] for index in range(len(requests))]

    def _documents(self, requests: list[Request]) -> tuple[list[Document], list[int]]:
        """Group requests by context; return documents sorted by text, and the numbers of requests too long for one."""
        by_context: dict[Tokens, list[tuple[int, Tokens]]] = {}
        for index, (_, prompt, answer) in enumerate(requests):
            by_context.setdefault(tuple(prompt), []).append((index, tuple(answer)))
        documents: list[Document] = []
        long: list[int] = []
        for context, answers in by_context.items():
            if len(context) + max(len(answer) for _, answer in answers) - 1 > self.max_length:
                long += [index for index, _ in answers]
            else:
                *paragraphs, end = self._split(context)
                documents.append(Document(tuple(paragraphs), end, tuple(answers)))
        return sorted(documents, key=lambda document: (document.paragraphs, document.end)), sorted(long)

    def _split(self, context: Tokens) -> list[Tokens]:
        """Cut a context behind blank lines: always behind the last, and so that no piece is needlessly short."""
        cuts, tail = [0], ""
        for position, token in enumerate(context):
            if token not in self._pieces:
                self._pieces[token] = self.tokenizer.decode([token])
            piece = self._pieces[token]
            if tail == "\n\n" and not piece.startswith("\n"):
                if len(cuts) > 1 and cuts[-1] - cuts[-2] < SHORT_PIECE:
                    cuts.pop()
                cuts.append(position)
            tail = (tail + piece)[-2:]
        return [context[start:end] for start, end in zip(cuts, [*cuts[1:], len(context)], strict=True)]

    def _score(self, documents: list[Document]) -> Iterator[tuple[int, Answer]]:
        cache = PromptCache()
        size = self.batch_size
        size = int(size) if str(size).isdigit() else AUTO_BATCH.get(self.device.type, AUTO_BATCH_GPU)
        for paragraphs, same in groupby(documents, key=lambda document: document.paragraphs):
            for paragraph in cache.keep(paragraphs):
                self._run(Tree.grow([paragraph]), cache, [len(paragraph) - 1])
                cache.add(paragraph)
            while pack := list(islice(same, size)):
                yield from self._answers(pack, cache)

    def _answers(self, documents: list[Document], cache: PromptCache) -> Iterator[tuple[int, Answer]]:
        """Run documents behind the same paragraphs in one pass."""
        # Sorted: not even the order in which answers are asked may move a bit.
        branches = sorted((each.end, answer, index) for each in documents for index, answer in each.answers)
        # The last token of an answer predicts nothing that is asked for.
        tree = Tree.grow(end + answer[:-1] for end, answer, _ in branches)
        # From the last token of the question on, each node predicts the next token of its answer.
        predictors = [path[len(end) - 1 :] for path, (end, _, _) in zip(tree.paths, branches, strict=True)]
        needed = sorted({node for nodes in predictors for node in nodes})
        logits = self._run(tree, cache, needed)
        cache.crop(len(tree.tokens))
        chances = torch.nn.functional.log_softmax(logits[0], dim=-1, dtype=self.softmax_dtype)
        best = chances.argmax(dim=-1)
        row = {node: number for number, node in enumerate(needed)}
        for (_, answer, index), nodes in zip(branches, predictors, strict=True):
            rows = torch.tensor([row[node] for node in nodes], device=chances.device)
            target = torch.tensor(answer, device=chances.device)
            yield index, (float(chances[rows, target].sum()), bool((best[rows] == target).all()))

    def _run(self, tree: Tree, cache: PromptCache, needed: list[int]) -> torch.Tensor:
        """Run the nodes behind the cached paragraphs; return the logits of those needed, (1, needed, vocabulary)."""
        past = cache.length
        # Every node sees all of the cache, itself and its ancestors; its position is the number of those less one.
        visible = np.concatenate([np.ones((len(tree.tokens), past), dtype=bool), own := tree.attention()], axis=1)
        dtype = self.mixed_precision_dtype or self.model.dtype
        mask = torch.zeros(visible.shape, dtype=dtype).masked_fill_(torch.from_numpy(~visible), torch.finfo(dtype).min)
        return self._model_call(
            torch.tensor([tree.tokens], device=self.device),
            attention_mask=mask[None, None].to(self.device),
            position_ids=torch.from_numpy(past - 1 + own.sum(axis=1))[None].to(self.device),
            past_key_values=cache.states,
            logits_to_keep=torch.tensor(needed, device=self.device),
        )

    def _model_call(self, inps: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Run the model: as ``hf``, or with the tree's mask, positions and cache."""
        if "past_key_values" not in kwargs:
            return super()._model_call(inps, *args, **kwargs)
        precision = self.mixed_precision_dtype
        with torch.no_grad(), torch.autocast(self.device.type, precision, enabled=precision is not None):
            return self.model(inps, use_cache=True, **kwargs).logits

    def _obstacle(self) -> str:
        """Return why prompts cannot be shared, as far as the configuration says; else nothing."""
        config = self.model.config.get_text_config()
        kinds = set(getattr(config, "layer_types", None) or []) - {"full_attention"}
        window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
        if self.backend != "causal":
            return f"its backend is {self.backend}, not causal"
        if self.max_length < TRIAL_LENGTH:
            return f"its context is only {self.max_length} tokens"
        if kinds:
            return f"it has layers of {', '.join(sorted(kinds))}"
        if window and window < self.max_length:
            return f"its attention ends after {window} tokens"
        if getattr(config, "attention_chunk_size", None):
            return "its attention is cut into chunks"
        return ""

    def _trial(self) -> str:
        """Return why a short tree does not give what ``hf`` gives; else nothing."""
        size = int(self.model.config.get_text_config().vocab_size)
        # Tokens that lie apart in the vocabulary, by a prime.
        ids = [(7919 * (number + 1)) % size for number in range(TRIAL_LENGTH)]
        contexts = ids[:12], [*ids[:4], *ids[12:18]]
        answers = [ids[18:21], [ids[18], *ids[21:23]], ids[22:], [ids[23]]]  # branches at both ends
        requests: list[Request] = [(None, context, answer) for context in contexts for answer in answers]
        documents = [
            Document((tuple(ids[:4]),), tuple(context[4:]), tuple((first + n, tuple(a)) for n, a in enumerate(answers)))
            for first, context in zip((0, len(answers)), contexts, strict=True)
        ]
        tolerance = TRIAL_TOLERANCE.get(self.model.dtype, TRIAL_TOLERANCE_HALF)
        with suppress(Exception):  # whatever a foreign model raises, hf can run it
            shared = dict(self._score(documents))
            expected = super()._loglikelihood_tokens(requests, disable_tqdm=True)
            gap = max(abs(shared[index][0] - value) for index, (value, _) in enumerate(expected))
            return "" if gap <= tolerance else f"a shared prompt changes its answers by {gap:.2g} nats"
        return "it cannot continue from a cache with a custom mask"
