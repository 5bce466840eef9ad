"""The small language model of real runs: text whose bytes are its tokens, and the Llama-style decoder that reads them.

The decoder is whole, or one tensor-parallel rank's part of it.
"""

from __future__ import annotations

import ast
import hashlib
import math
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from densing.core import DensingError, InputError, UnknownNameError, cache_folder, replacing
from densing.efficiency.parallel.distributed.spec import LmShape

Bytes = NDArray[np.uint8]
SUFFIXES = (".txt", ".md", ".text", ".rst")
MAX_BYTES = 256 * 1024 * 1024
LEAST_BYTES = 10_000
HELD_OUT = 20
"""Inverse of the share of bytes, at the end of the text, that is held out."""

Wiring = Literal["standard", "ladder", "parallel-attention"]
Edge = Callable[[Tensor], Tensor]

ROPE_BASE = 10_000.0
NORM_EPSILON = 1e-6
INIT_STD = 0.02


def load_bytes(corpus: str = "") -> tuple[Bytes, Bytes]:
    """Return the training part and the held-out end of a text, as bytes.

    Parameters
    ----------
    corpus : str
        A file, or a folder whose ``.txt``, ``.text``, ``.md`` and ``.rst`` files are read in order of name. Empty: the
        language reference and the docstrings of Python's standard library, in an order that depends on their content
        only; the text differs between versions of Python, :func:`digest` tells which one it was.

    Returns
    -------
    train, held_out : ndarray of uint8
        The last twentieth is held out.

    Raises
    ------
    InputError
        When there is no text to read, too little of it, or too much.
    """
    data = np.frombuffer(_python_docs() if not corpus else _read(Path(corpus)), dtype=np.uint8)
    if len(data) < LEAST_BYTES:
        raise InputError(f"corpus {corpus!r}: {len(data)} bytes are too few; at least {LEAST_BYTES:,} are needed")
    cut = len(data) - len(data) // HELD_OUT
    return data[:cut], data[cut:]


class Parts(NamedTuple):
    """Clients that each read their own consecutive part of the text.

    Attributes
    ----------
    clients : int
        In all.
    home : tuple of int
        Those whose held-out text this rank answers for.
    """

    clients: int
    home: tuple[int, ...]

    def of(self, text: Bytes, client: int) -> tuple[Bytes, Bytes]:
        """Return a client's own part of the training text, and the end of that part, which it does not train on.

        Examples
        --------
        >>> [len(part) for part in Parts(4, (0,)).of(np.zeros(4000, dtype=np.uint8), 2)]
        [950, 50]
        """
        begin, end = (len(text) * at // self.clients for at in (client, client + 1))
        cut = end - (end - begin) // HELD_OUT
        return text[begin:cut], text[cut:end]

    def check(self, text: Bytes, sequence: int) -> None:
        """Refuse more clients than there is text for.

        Raises
        ------
        InputError
        """
        least = min(len(self.of(text, client)[1]) for client in range(self.clients))
        if least <= sequence:
            raise InputError(
                f"clients={self.clients}: of a text of {len(text):,} bytes, a client's held-out "
                f"part has {least}, but sequence={sequence} needs more; use fewer clients, "
                "shorter sequences or a longer text"
            )


def digest(train: Bytes, held_out: Bytes) -> str:
    """Return the sha256 of the whole text, in hexadecimal."""
    return hashlib.sha256(train.tobytes() + held_out.tobytes()).hexdigest()


def batches(train: Bytes, batch: int, sequence: int, seed: int, rank: int, step: int) -> NDArray[np.int64]:
    """Return the batch of one rank and step: random passages, the same at every call.

    Parameters
    ----------
    train : ndarray of uint8
    batch, sequence : int
        Passages, and tokens that are predicted in each.
    seed, rank, step : int
        They alone decide what is drawn; a resumed run needs no state.

    Returns
    -------
    ndarray of int64, shape (batch, sequence + 1)

    Raises
    ------
    InputError
        When the text is shorter than a passage.

    Examples
    --------
    >>> text = np.arange(100, dtype=np.uint8)
    >>> batches(text, 2, 3, seed=0, rank=1, step=5)
    array([[80, 81, 82, 83],
           [37, 38, 39, 40]])
    """
    starts = len(train) - sequence
    if starts < 1:
        raise InputError(
            f"sequence={sequence}: the text has only {len(train)} bytes to train on; choose shorter sequences"
        )
    begin = np.random.default_rng([seed, rank, step]).integers(0, starts, size=batch)
    return train[begin[:, None] + np.arange(sequence + 1)].astype(np.int64)


def held_out_batches(held_out: Bytes, batch: int, sequence: int, passages: int = 64) -> Iterator[NDArray[np.int64]]:
    """Yield evenly spaced passages of the held-out text, (at most ``batch``, sequence + 1) at a time.

    Raises
    ------
    InputError
        When the text is shorter than a passage.
    """
    starts = len(held_out) - sequence
    if starts < 1:
        raise InputError(
            f"sequence={sequence}: {len(held_out)} bytes are held out, which is too few; choose shorter sequences"
        )
    # Overlapping passages would count the same bytes twice.
    count = max(1, min(passages, len(held_out) // (sequence + 1)))
    begin = np.linspace(0, starts - 1, count).astype(np.int64)
    rows = held_out[begin[:, None] + np.arange(sequence + 1)].astype(np.int64)
    for first in range(0, count, batch):
        yield rows[first : first + batch]


def _read(source: Path) -> bytes:
    try:
        files = [source] if source.is_file() else sorted(f for f in source.rglob("*") if f.suffix in SUFFIXES)
        if not files:
            raise InputError(f"corpus {source}: no such file, or a folder without {', '.join(SUFFIXES)} files")
        size = sum(file.stat().st_size for file in files)
        if size > MAX_BYTES:
            raise InputError(f"corpus {source}: {size} bytes exceed the limit of {MAX_BYTES}; use a part of it")
        return b"\n".join(file.read_bytes() for file in files)
    except (OSError, ValueError) as error:
        raise InputError(f"corpus {source}: cannot read ({error}); check path and permissions") from error


@cache
def _python_docs() -> bytes:
    """Join the documentation in Python's installation, ordered by a hash, so that the end is like the rest.

    Kept in the cache folder: to parse the library takes seconds of every rank.
    """
    files = [file for file in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")) if file.is_file()]
    sizes = [(file.name, file.stat().st_size) for file in files]
    name = hashlib.sha256(f"{sys.version}{sizes}".encode() + Path(__file__).read_bytes()).hexdigest()[:24]
    path = cache_folder() / f"python-docs-{name}.txt"
    with suppress(OSError):
        return path.read_bytes()
    from pydoc_data.topics import topics

    texts = list(topics.values())
    for file in files:
        try:
            tree = ast.parse(file.read_bytes())
        except (OSError, SyntaxError, ValueError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                texts.append(ast.get_docstring(node) or "")
    pieces = {text.strip().encode("utf-8", "replace") for text in texts}
    text = b"\n\n".join(sorted(pieces, key=lambda piece: hashlib.sha256(piece).digest()))
    with suppress(OSError, DensingError), replacing(path) as temporary:
        temporary.write_bytes(text)
    return text


class RMSNorm(nn.Module):  # type: ignore[misc]
    """Divide by the root mean square over the last dimension, then scale per channel.

    Source: Zhang and Sennrich, arXiv 1910.07467.
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x`` normalised; any shape ``(..., hidden)``."""
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + NORM_EPSILON) * self.weight


def rotary_table(width: int, sequence: int) -> tuple[Tensor, Tensor]:
    """Return cosines and sines of the rotary embedding, each ``(sequence, width)``.

    Source: Su et al., arXiv 2104.09864, in Llama's layout: the two halves of a head form the pairs.
    """
    rates = ROPE_BASE ** (-torch.arange(0, width, 2, dtype=torch.float32) / width)
    angles = torch.outer(torch.arange(sequence, dtype=torch.float32), rates).repeat(1, 2)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate queries or keys ``(batch, heads, tokens, width)`` by tables ``(tokens, width)``."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Attention(nn.Module):  # type: ignore[misc]
    """Causal self-attention with rotary positions: column linears q, k, v, then a row linear.

    Parameters
    ----------
    hidden, heads, width : int
        Model width, heads held here, channels per head.
    sequence : int
        Longest sequence.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, hidden: int, heads: int, width: int, sequence: int) -> None:
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(hidden, heads * width, bias=False)
        self.k = nn.Linear(hidden, heads * width, bias=False)
        self.v = nn.Linear(hidden, heads * width, bias=False)
        self.row = nn.Linear(heads * width, hidden, bias=False)
        cos, sin = rotary_table(width, sequence)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    @property
    def columns(self) -> tuple[nn.Linear, ...]:
        """The linears that read the input."""
        return self.q, self.k, self.v

    def split(self, q: Tensor, k: Tensor, v: Tensor, start: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        """Return projections ``(batch, tokens, heads * width)`` as rotated heads; ``start``: first token's position."""
        q, k, v = (x.unflatten(-1, (self.heads, -1)).transpose(1, 2) for x in (q, k, v))
        tokens = slice(start, start + q.shape[2])
        cos, sin = self.cos[tokens], self.sin[tokens]
        return rotate(q, cos, sin), rotate(k, cos, sin), v

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return the attended values ``(batch, queries, heads * width)``; queries are the last of the keys' tokens."""
        queries, keys = q.shape[2], k.shape[2]
        mask = None
        if queries < keys:
            # The causal diagonal, moved right by the tokens that only keys and values are there for.
            mask = torch.ones(queries, keys, dtype=torch.bool, device=q.device).tril(keys - queries)
        out = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        return out.transpose(1, 2).flatten(2)

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return what the row linear reads, from what the column linears gave."""
        return self.attend(*self.split(q, k, v))

    def forward(self, x: Tensor) -> Tensor:
        """Return the output ``(batch, tokens, hidden)``; a part's output is a summand of the whole's."""
        return self.row(self.mix(self.q(x), self.k(x), self.v(x)))


class SwiGLU(nn.Module):  # type: ignore[misc]
    """Gated feed-forward layer: column linears gate and up, then a row linear.

    Source: Shazeer, arXiv 2002.05202, section 2.
    """

    def __init__(self, hidden: int, ffn: int) -> None:
        super().__init__()
        self.gate = nn.Linear(hidden, ffn, bias=False)
        self.up = nn.Linear(hidden, ffn, bias=False)
        self.row = nn.Linear(ffn, hidden, bias=False)

    @property
    def columns(self) -> tuple[nn.Linear, ...]:
        """The linears that read the input."""
        return self.gate, self.up

    def mix(self, gate: Tensor, up: Tensor) -> Tensor:
        """Return what the row linear reads, from what the column linears gave."""
        return functional.silu(gate) * up

    def forward(self, x: Tensor) -> Tensor:
        """Return the output ``(batch, tokens, hidden)``; a part's output is a summand of the whole's."""
        return self.row(self.mix(self.gate(x), self.up(x)))


class Block(nn.Module):  # type: ignore[misc]
    """Attention and feed-forward layer with their norms; in a parallel-attention block both read one norm."""

    def __init__(self, shape: LmShape, sequence: int, parts: int, wiring: Wiring) -> None:
        super().__init__()
        self.wiring = wiring
        self.attention_norm = RMSNorm(shape.hidden)
        self.attention = Attention(shape.hidden, shape.heads // parts, shape.hidden // shape.heads, sequence)
        if wiring != "parallel-attention":
            self.mlp_norm = RMSNorm(shape.hidden)
        self.mlp = SwiGLU(shape.hidden, shape.ffn // parts)

    def both(self, x: Tensor) -> Tensor:
        """Return the sum of both modules' outputs on one input."""
        return self.attention(x) + self.mlp(x)


def _identity(x: Tensor) -> Tensor:
    return x


class Decoder(nn.Module):  # type: ignore[misc]
    """A decoder-only language model, or the part of it that one tensor-parallel rank holds.

    Parameters
    ----------
    shape : LmShape
    sequence : int
        Longest sequence.
    wiring : {'standard', 'ladder', 'parallel-attention'}
        What each module reads: the residual stream; the stream without the output of the module before it
        (Ladder-Residual, arXiv 2501.06589); or, for the feed-forward layer, what attention reads (one norm for both).
    ladder_layers : int, optional
        With ``ladder``: only so many last layers are wired so, the ones before are standard. Default: all.
    tied : bool
        The head shares the embedding's weights.
    parts : int
        Tensor-parallel ranks that share the heads and the feed-forward channels.
    enter, leave : callable
        Applied to what a part's column linears read and to what its row linear gives: a rank of a tensor-parallel
        group sums the latter over the group in forward, and the former's gradient in backward.
    """

    def __init__(
        self,
        shape: LmShape,
        sequence: int,
        wiring: Wiring = "standard",
        ladder_layers: int | None = None,
        *,
        tied: bool = False,
        parts: int = 1,
        enter: Edge = _identity,
        leave: Edge = _identity,
    ) -> None:
        super().__init__()
        check_shape(shape, sequence, parts)
        self.sequence, self.enter, self.leave = sequence, enter, leave
        self.embedding = nn.Embedding(shape.vocabulary, shape.hidden)
        self.blocks = nn.ModuleList(
            Block(shape, sequence, parts, kind) for kind in wirings(shape.layers, wiring, ladder_layers)
        )
        self.norm = RMSNorm(shape.hidden)
        self.head = nn.Linear(shape.hidden, shape.vocabulary, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def embed(self, tokens: Tensor) -> Tensor:
        """Return the residual stream's beginning, ``(batch, tokens, hidden)``.

        Raises
        ------
        InputError
            When the tokens are more than the model's sequence.
        """
        if tokens.shape[1] > self.sequence:
            raise InputError(f"{tokens.shape[1]} tokens, but the model was built for sequence={self.sequence}")
        return self.embedding(tokens)

    def predict(self, residual: Tensor) -> Tensor:
        """Return the logits ``(batch, tokens, vocabulary)`` of the residual stream's end."""
        return self.head(self.norm(residual))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits ``(batch, tokens, vocabulary)`` of int64 tokens ``(batch, tokens)``."""
        residual = self.embed(tokens)
        late: list[Tensor] = []
        for block in self.blocks:
            for norm, module in sublayers(block):
                # A ladder's module reads the stream without the newest output, which is added only after it.
                if len(late) > 1:
                    residual = residual + late.pop(0)
                output = self.leave(module(self.enter(norm(residual))))
                if block.wiring == "ladder":
                    late.append(output)
                else:
                    residual = residual + output
        for output in late:
            residual = residual + output
        return self.predict(residual)


def cross_entropy(logits: Tensor, following: Tensor) -> Tensor:
    """Return the mean cross-entropy of every next token, nats."""
    return functional.cross_entropy(logits.flatten(0, 1), following.flatten())


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread of torch, as ranks of a run do: on models this small others only wait for work.

    Also a decorator. Twenty steps of the smallest stages take .4 seconds of processor time, with two threads 8.6.

    Examples
    --------
    >>> with one_thread():
    ...     torch.get_num_threads()
    1
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def mean_loss(model: Callable[[Tensor], Tensor], batches: Iterable[Tensor], device: torch.device) -> float:
    """Return the mean loss over batches (batch, tokens + 1), nats per token; NaN without any."""
    total, tokens = 0.0, 0
    with torch.no_grad():
        for batch in batches:
            batch = batch.to(device)
            following = batch[:, 1:]
            total += float(cross_entropy(model(batch[:, :-1]), following)) * following.numel()
            tokens += following.numel()
    return total / tokens if tokens else math.nan


def sublayers(block: Block) -> tuple[tuple[nn.Module, Edge], ...]:
    """Return a block's modules in order, each with the norm it reads."""
    if block.wiring == "parallel-attention":
        return ((block.attention_norm, block.both),)
    return ((block.attention_norm, block.attention), (block.mlp_norm, block.mlp))


def wirings(layers: int, wiring: Wiring, ladder_layers: int | None) -> list[Wiring]:
    """Return the wiring of each layer.

    Raises
    ------
    InputError

    Examples
    --------
    >>> wirings(3, "ladder", 2)
    ['standard', 'ladder', 'ladder']
    """
    if wiring not in get_args(Wiring):
        raise UnknownNameError("wiring", wiring, get_args(Wiring))
    if ladder_layers is None or wiring != "ladder":
        return [wiring] * layers
    if not isinstance(ladder_layers, int) or not 0 <= ladder_layers <= layers:
        raise InputError(f"ladder_layers is {ladder_layers!r}; the model has {layers} layers: give 0 to {layers}")
    early: list[Wiring] = ["standard"] * (layers - ladder_layers)
    return [*early, *([wiring] * ladder_layers)]


def check_shape(shape: LmShape, sequence: int, parts: int = 1) -> None:
    """Refuse a shape that no decoder has, or that cannot be shared out.

    Raises
    ------
    InputError
    """
    sizes = {name: getattr(shape, name) for name in ("layers", "hidden", "heads", "ffn", "vocabulary")}
    for name, value in {**sizes, "sequence": sequence, "parts": parts}.items():
        if not isinstance(value, int) or value < 1:
            raise InputError(f"model: {name} is {value!r}; give a whole number of at least 1")
    if shape.hidden % (2 * shape.heads):
        raise InputError(
            f"model: hidden {shape.hidden} over {shape.heads} heads does not give an even head size, as rotary "
            f"embeddings need; choose hidden as a multiple of {2 * shape.heads}"
        )
    for name in ("heads", "ffn"):
        if sizes[name] % parts:
            raise InputError(f"model: {name} {sizes[name]} cannot be shared by {parts} ranks; choose a multiple")


def initialise(model: Decoder, seed: int) -> None:
    """Draw all weights anew: normal with 0.02, the row linears' narrower by the root of twice the layers.

    Source: Radford et al. 2019 (GPT-2), section 2.3.
    """
    generator = torch.Generator().manual_seed(seed)
    narrow = INIT_STD / math.sqrt(2 * len(model.blocks))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1:
                weight.normal_(0.0, narrow if ".row." in name else INIT_STD, generator=generator)


def build_lm(
    shape: LmShape,
    sequence: int,
    seed: int,
    wiring: Wiring = "standard",
    ladder_layers: int | None = None,
    *,
    tied: bool = False,
    **part: Any,
) -> Decoder:
    """Return a freshly initialised decoder; the seed alone decides its weights, whatever the global generator's state.

    Parameters
    ----------
    shape, sequence, wiring, ladder_layers, tied
        See :class:`Decoder`.
    seed : int
        Of the weights.
    **part
        ``parts``, ``enter`` and ``leave`` of :class:`Decoder`.

    Raises
    ------
    InputError
        When the shape is impossible.

    Examples
    --------
    >>> model = build_lm(LmShape(layers=2, hidden=16, heads=2, ffn=24), sequence=8, seed=0)
    >>> model(torch.zeros(1, 8, dtype=torch.int64)).shape
    torch.Size([1, 8, 256])
    """
    # Layers draw weights when they are made, which initialise() replaces: the caller's generator must not notice.
    with torch.random.fork_rng(devices=[]):
        model = Decoder(shape, sequence, wiring, ladder_layers, tied=tied, **part)
    initialise(model, seed)
    return model
