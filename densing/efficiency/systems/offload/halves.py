"""A language model of transformers in two halves, and the seconds of its layers."""

from __future__ import annotations

import inspect
import io
import statistics
import time
from collections.abc import Callable
from contextlib import redirect_stderr
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn

from densing.core import InputError, UnavailableError, install_command

TOLERANCE = 1e-3
"""Tolerance on the logits of both halves against the whole model, relative to the largest logit."""


class Halves:
    """A model whose layers can be computed from anywhere to anywhere.

    Parameters
    ----------
    pretrained : path
        Folder of a model of transformers.
    gguf_file : str
        The file in it, where it is one of llama.cpp.

    Raises
    ------
    InputError
        When it cannot be read, or its layers are not those of a Llama: a list ``layers`` and a last ``norm``.
    UnavailableError
        Without transformers.
    """

    def __init__(self, pretrained: Path | str, gguf_file: str = "") -> None:
        try:
            from transformers import AutoModelForCausalLM, logging
        except ImportError:
            raise UnavailableError(f"serving a model needs transformers; {install_command('evals')}") from None
        logging.disable_progress_bar()
        options = {"gguf_file": gguf_file} if gguf_file else {}
        try:
            # A bar of its own for a file of llama.cpp, also where nobody looks.
            with redirect_stderr(io.StringIO()):
                self.model = AutoModelForCausalLM.from_pretrained(
                    str(pretrained), dtype=torch.float32, local_files_only=True, trust_remote_code=False, **options
                ).eval()
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            raise InputError(f"{pretrained}: {str(error).splitlines()[0][:200]}; give a folder of a model") from error
        self.base: Any = self.model.base_model
        if not isinstance(getattr(self.base, "layers", None), nn.ModuleList) or not hasattr(self.base, "norm"):
            raise InputError(
                f"{pretrained}: {type(self.base).__name__} lacks the layer list and final norm of "
                "a Llama; only Llama-like models can be cut"
            )
        self.every, self.norm = list(self.base.layers), self.base.norm
        # The older name is deprecated where there is a newer one.
        named = inspect.signature(self.base.forward).parameters
        self._cache_name = "cache" if "cache" in named else "past_key_values"
        self._check()

    @property
    def layers(self) -> int:
        """Layers there are."""
        return len(self.every)

    @property
    def width(self) -> int:
        """Numbers of a token's state."""
        return int(self.model.config.hidden_size)

    @property
    def vocabulary(self) -> int:
        """Tokens there are."""
        return int(self.model.config.vocab_size)

    @property
    def parameters(self) -> int:
        """Of the whole model."""
        return sum(weight.numel() for weight in self.model.parameters())

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def compute(self, given: torch.Tensor, first: int, last: int, *, head: bool, cache: Any = None) -> torch.Tensor:
        """Compute layers of one request, or of the next token of its answer.

        Parameters
        ----------
        given : tensor
            (tokens,) of numbers of tokens, or (tokens, width) of states before layer ``first``.
        first, last : int
        head : bool
            Whether norm and head follow.
        cache : transformers.DynamicCache, optional
            Keys and values of these layers for the tokens before; those of ``given`` are added. Another half needs a
            cache of its own.

        Returns
        -------
        tensor
            (tokens, width) states, or with the head (vocabulary,) logits of what comes after the last token.
        """
        self.base.layers = nn.ModuleList(self.every[first:last])
        self.base.norm = nn.Identity()
        source: dict[str, Any] = {"inputs_embeds" if given.is_floating_point() else "input_ids": given[None]}
        if cache is not None:
            source[self._cache_name] = cache
            # A cache counts the layers from its own first one.
            self._number(first)
        try:
            state = self.base(**source, use_cache=cache is not None).last_hidden_state[0]
        finally:
            self.base.layers, self.base.norm = nn.ModuleList(self.every), self.norm
            if cache is not None:
                self._number(0)
        return self.model.lm_head(self.norm(state[-1:]))[0] if head else state

    def new_cache(self) -> Any:
        """Return an empty cache for :meth:`compute`."""
        from transformers import DynamicCache

        return DynamicCache()

    def _number(self, first: int) -> None:
        """Number the layers for a cache; ``first`` has the number 0."""
        for number, layer in enumerate(self.every):
            layer.self_attn.layer_idx = number - first

    def _check(self) -> None:
        """Refuse a model that is another one when it is cut, such as one that adds positions to its embeddings."""
        tokens = torch.arange(8) % self.vocabulary
        middle = self.layers // 2
        with torch.no_grad():
            whole = self.model(tokens[None], use_cache=False).logits[0, -1]
        both = self.compute(self.compute(tokens, 0, middle, head=False), middle, self.layers, head=True)
        if float((whole - both).abs().max()) > TOLERANCE * float(whole.abs().max()):
            raise InputError(
                f"{type(self.base).__name__}: its logits change when cut in two; only Llama-like models can be cut"
            )


def layer_seconds(
    halves: Halves, tokens: int, *, threads: int, repeats: int = 7, behind: int = 0,
    progress: Callable[[float], None] = lambda _share: None,
) -> tuple[tuple[float, ...], tuple[float, float]]:  # fmt: skip
    """Return the seconds of each layer, and of embedding and head: medians over passes.

    Parameters
    ----------
    halves : Halves
    tokens : int
        Of a request.
    threads : int
        Of torch while it is measured.
    repeats : int
        Passes, after one that does not count.
    behind : int
        Tokens whose keys and values are cached, and grow by those of each pass; 0: nothing is.
    progress : callable
        Told the share that is done.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    given = torch.arange(tokens) % halves.vocabulary
    cache = None
    if behind:
        cache = halves.new_cache()
        halves.compute(torch.arange(behind) % halves.vocabulary, 0, halves.layers, head=False, cache=cache)
    marks: list[float] = []
    hooks = [layer.register_forward_pre_hook(lambda *_: marks.append(time.perf_counter())) for layer in halves.every]
    hooks.append(halves.every[-1].register_forward_hook(lambda *_: marks.append(time.perf_counter())))
    passes: list[list[float]] = []
    try:
        for each in range(repeats + 1):
            marks.clear()
            start = time.perf_counter()
            halves.compute(given, 0, halves.layers, head=True, cache=cache)
            end = time.perf_counter()
            points = [start, *marks, end]
            passes.append([after - before for before, after in pairwise(points)])
            progress((each + 1) / (repeats + 1))
    finally:
        for hook in hooks:
            hook.remove()
        torch.set_num_threads(before)
    embedding, *layers, head = (statistics.median(column) for column in zip(*passes[1:], strict=True))
    return tuple(layers), (embedding, head)
