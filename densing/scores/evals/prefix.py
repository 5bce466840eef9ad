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
    """All requests with one context: its paragraphs, the rest, and the answers with their places."""

    paragraphs: tuple[Tokens, ...]
    rest: Tokens
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
        seen = np.eye(len(self.tokens), dtype=bool)
        for node, parent in enumerate(self.parents):
            if parent >= 0:
                seen[node] |= seen[parent]
        return seen


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
        documents, leftover = self._documents(requests)
        found: dict[int, Answer] = {}
        with tqdm(total=len(requests), disable=disable_tqdm or self.rank != 0, desc="Running requests (shared)") as bar:
            for place, answer in self._score(documents):
                found[place] = answer
                self.cache_hook.add_partial("loglikelihood", requests[place][0], answer)
                bar.update()
        if leftover:
            rest = [requests[place] for place in leftover]
            found.update(zip(leftover, super()._loglikelihood_tokens(rest, disable_tqdm, override_bs), strict=True))
        return [found[place] for place in range(len(requests))]

    def _documents(self, requests: list[Request]) -> tuple[list[Document], list[int]]:
        """Group requests by context; return documents sorted by text, and the places of those that are too long."""
        by_context: dict[Tokens, list[tuple[int, Tokens]]] = {}
        for place, (_, prompt, answer) in enumerate(requests):
            by_context.setdefault(tuple(prompt), []).append((place, tuple(answer)))
        documents: list[Document] = []
        leftover: list[int] = []
        for context, answers in by_context.items():
            if len(context) + max(len(answer) for _, answer in answers) - 1 > self.max_length:
                leftover += [place for place, _ in answers]
            else:
                *paragraphs, rest = self._split(context)
                documents.append(Document(tuple(paragraphs), rest, tuple(answers)))
        return sorted(documents, key=lambda document: (document.paragraphs, document.rest)), sorted(leftover)

    def _split(self, context: Tokens) -> list[Tokens]:
        """Cut a context behind blank lines: always behind the last, and so that no piece is needlessly short."""
        cuts, tail = [0], ""
        for place, token in enumerate(context):
            piece = self._piece(token)
            if tail == "\n\n" and not piece.startswith("\n"):
                if len(cuts) > 1 and cuts[-1] - cuts[-2] < SHORT_PIECE:
                    cuts.pop()
                cuts.append(place)
            tail = (tail + piece)[-2:]
        return [context[start:end] for start, end in zip(cuts, [*cuts[1:], len(context)], strict=True)]

    def _piece(self, token: int) -> str:
        if token not in self._pieces:
            self._pieces[token] = self.tokenizer.decode([token])
        return self._pieces[token]

    def _score(self, documents: list[Document]) -> Iterator[tuple[int, Answer]]:
        cache = PromptCache()
        for paragraphs, same in groupby(documents, key=lambda document: document.paragraphs):
            for paragraph in cache.keep(paragraphs):
                self._run(Tree.grow([paragraph]), cache, [len(paragraph) - 1])
                cache.add(paragraph)
            while pack := list(islice(same, self._documents_per_pass())):
                yield from self._answers(pack, cache)

    def _documents_per_pass(self) -> int:
        size = self.batch_size
        return int(size) if str(size).isdigit() else AUTO_BATCH.get(self.device.type, AUTO_BATCH_GPU)

    def _answers(self, documents: list[Document], cache: PromptCache) -> Iterator[tuple[int, Answer]]:
        """Run documents behind the same paragraphs in one pass."""
        # Sorted: not even the order in which answers are asked may move a bit.
        wanted = sorted((each.rest, answer, place) for each in documents for place, answer in each.answers)
        tree = Tree.grow(rest + answer[:-1] for rest, answer, _ in wanted)
        ends = [path[len(rest) - 1 :] for path, (rest, _, _) in zip(tree.paths, wanted, strict=True)]
        needed = sorted({node for end in ends for node in end})
        logits = self._run(tree, cache, needed)
        cache.crop(len(tree.tokens))
        chances = torch.nn.functional.log_softmax(logits[0], dim=-1, dtype=self.softmax_dtype)
        best = chances.argmax(dim=-1)
        row = {node: number for number, node in enumerate(needed)}
        for (_, answer, place), end in zip(wanted, ends, strict=True):
            rows = torch.tensor([row[node] for node in end], device=chances.device)
            target = torch.tensor(answer, device=chances.device)
            yield place, (float(chances[rows, target].sum()), bool((best[rows] == target).all()))

    def _run(self, tree: Tree, cache: PromptCache, needed: list[int]) -> torch.Tensor:
        """Run the nodes behind the cached paragraphs; return the logits of those needed, (1, needed, vocabulary)."""
        past = cache.length
        seen = np.concatenate([np.ones((len(tree.tokens), past), dtype=bool), own := tree.attention()], axis=1)
        dtype = self.mixed_precision_dtype or self.model.dtype
        hidden = torch.zeros(seen.shape, dtype=dtype).masked_fill_(torch.from_numpy(~seen), torch.finfo(dtype).min)
        return self._model_call(
            torch.tensor([tree.tokens], device=self.device),
            attention_mask=hidden[None, None].to(self.device),
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
            return f"its context holds {self.max_length} tokens only"
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
        word = [(7919 * (number + 1)) % size for number in range(TRIAL_LENGTH)]
        context, other = word[:12], [*word[:4], *word[12:18]]
        answers = [word[18:21], [word[18], *word[21:23]], word[22:], [word[23]]]  # branches at both ends
        requests: list[Request] = [(None, text, answer) for text in (context, other) for answer in answers]
        documents = [
            Document((tuple(word[:4]),), tuple(text[4:]), tuple((first + n, tuple(a)) for n, a in enumerate(answers)))
            for first, text in ((0, context), (len(answers), other))
        ]
        tolerance = TRIAL_TOLERANCE.get(self.model.dtype, TRIAL_TOLERANCE_HALF)
        with suppress(Exception):  # whatever a foreign model raises, hf can run it
            found = dict(self._score(documents))
            expected = super()._loglikelihood_tokens(requests, disable_tqdm=True)
            gap = max(abs(found[place][0] - value) for place, (value, _) in enumerate(expected))
            return "" if gap <= tolerance else f"a shared prompt changes its answers by {gap:.2g} nats"
        return "it cannot continue from a cache with a mask of ours"
