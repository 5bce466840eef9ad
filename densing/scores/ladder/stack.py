"""Several copies of one small model as a single tensor program: what virtual ranks of an arm are trained with.

A model of some thousand parameters costs a processor more to call than to compute. Copies whose weights lie in one
matrix, a row each, are called once: four ranks of two sequences take what one process of eight takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional

from densing.scores.ladder.runs import Shape

_LAYER = "model.layers.{}."
# What is multiplied by the same input lies together, and is one product.
_BLOCK = (
    ("input_layernorm.weight",),
    ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"),
    ("self_attn.o_proj.weight",),
    ("post_attention_layernorm.weight",),
    ("mlp.gate_proj.weight", "mlp.up_proj.weight"),
    ("mlp.down_proj.weight",),
)


class Stack:
    """Copies of a Llama decoder of transformers, with tied embeddings.

    Parameters
    ----------
    model
        The model that all copies begin with; nothing of it is changed.
    shape : Shape
    copies : int
    precision : str
        ``bfloat16`` computes under autocast, ``float32`` does not.
    late : bool
        Modules read the stream as it was one module ago; the first two read the embedding.

        Source: Zhang et al., "Ladder-Residual", arXiv 2501.06589, Eq. 2.

    Attributes
    ----------
    vector : Parameter, shape (copies, parameters)
    """

    def __init__(
        self, model: Any, shape: Shape, copies: int, precision: str = "float32", *, late: bool = False
    ) -> None:
        self.shape, self.precision, self.late = shape, precision, late
        state = model.state_dict()
        names: list[tuple[str, ...]] = [("model.embed_tokens.weight",)]
        for layer in range(shape.layers):
            names += [tuple(_LAYER.format(layer) + name for name in group) for group in _BLOCK]
        self.names = [*names, ("model.norm.weight",)]
        self._parts = [[(name, state[name].shape) for name in group] for group in self.names]
        # Rows of the matrices that lie together are counted together.
        self._shapes = [(sum(s[0] for _, s in group), *group[0][1][1:]) for group in self._parts]
        self._sizes = [math.prod(size) for size in self._shapes]
        row = torch.cat([state[name].reshape(-1) for group in self.names for name in group])
        self.vector = torch.nn.Parameter(row.detach().float().repeat(copies, 1))
        self._epsilon, self._rotary = float(model.config.rms_norm_eps), model.model.rotary_emb

    def rows(self) -> list[Row]:
        """Return every copy as a model of one parameter, which shares the stack's memory."""
        tensors = {name: shape for group in self._parts for name, shape in group}
        return [Row(self.vector.data[number], tensors) for number in range(len(self.vector))]

    def write(self, model: Any, row: int = 0) -> None:
        """Copy the weights of a copy into a model of transformers."""
        state: dict[str, torch.Tensor] = {}
        at = 0
        for group in self._parts:
            for name, size in group:
                count = math.prod(size)
                state[name] = self.vector.detach()[row, at : at + count].view(size)
                at += count
        model.load_state_dict(state, strict=False)

    def losses(
        self,
        batch: torch.Tensor,
        passing: Callable[[torch.Tensor, int], torch.Tensor] | None = None,
        exits: float = 0.0,
    ) -> torch.Tensor:
        """Return each copy's mean cross-entropy of every next token, nats.

        Parameters
        ----------
        batch : Tensor of int64, shape (copies, rows, block + 1)
        passing : callable, optional
            What becomes of activations (copies, tokens, width) between a layer, by its number, and the next.
        exits : float
            Weight of the loss behind each layer but the last, beside 1 of the last's; their weighted mean is returned.

            Source: Teerapittayanon et al., "BranchyNet", arXiv 1709.01686, section III.B.

        Returns
        -------
        Tensor, shape (copies,)
        """
        half = self.precision == "bfloat16"
        with torch.autocast(batch.device.type, dtype=torch.bfloat16, enabled=half):
            every = self._logits(batch[..., :-1], passing, earlier=exits > 0)
        targets = batch[..., 1:].reshape(-1)
        losses = [
            functional.cross_entropy(logits.float().flatten(0, 1), targets, reduction="none")
            .view(len(batch), -1)
            .mean(1)
            for logits in every
        ]
        if len(losses) == 1:
            return losses[0]
        return (losses[-1] + exits * sum(losses[:-1])) / (1 + exits * len(losses[:-1]))

    def _logits(
        self, tokens: torch.Tensor, passing: Callable[[torch.Tensor, int], torch.Tensor] | None, *, earlier: bool
    ) -> list[torch.Tensor]:
        """Return the last layer's logits, behind those of the earlier layers if asked for.

        Each of shape (copies, rows * tokens, vocabulary).
        """
        every = []
        copies, rows, length = tokens.shape
        shape, width = self.shape, self.shape.head_width
        parts = [
            part.reshape(copies, *size)
            for part, size in zip(self.vector.split(self._sizes, dim=1), self._shapes, strict=True)
        ]
        embedding, final = parts[0], parts[-1]
        # As in the model itself, token 0 pads: what is looked up of it gets no gradient, what is predicted does.
        table = torch.cat([embedding[:, :1].detach(), embedding[:, 1:]], dim=1).flatten(0, 1)
        # The copies' vocabularies one behind the other: a single look-up.
        shift = torch.arange(copies, device=tokens.device)[:, None, None] * embedding.shape[1]
        x = functional.embedding((tokens + shift).view(copies, -1), table)
        cos, sin = self._rotary(x, torch.arange(length, device=tokens.device)[None])
        groups = shape.heads + shape.kv_heads
        earlier_x = x
        for layer in range(shape.layers):
            before, qkv, out, after, gate_up, down = parts[1 + 6 * layer : 7 + 6 * layer]
            heads = (
                torch.bmm(self._norm(earlier_x if self.late else x, before), qkv.mT)
                .view(copies * rows, length, -1, width)
                .transpose(1, 2)
            )
            turned, values = heads[:, :groups], heads[:, groups:]
            half = torch.cat([-turned[..., width // 2 :], turned[..., : width // 2]], dim=-1)
            turned = turned * cos[:, None] + half * sin[:, None]
            queries, keys = turned[:, : shape.heads], turned[:, shape.heads :]
            # Scores are never written: at a thousand tokens of 18 layers they would not fit into a device.
            mixed = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True, enable_gqa=True)
            mixed = mixed.transpose(1, 2).reshape(copies, rows * length, -1)
            earlier_x, x = x, x + torch.bmm(mixed, out.mT)
            gate, up = torch.bmm(self._norm(earlier_x if self.late else x, after), gate_up.mT).chunk(2, dim=-1)
            earlier_x, x = x, x + torch.bmm(functional.silu(gate) * up, down.mT)
            if layer + 1 == shape.layers or earlier:
                every.append(torch.bmm(self._norm(x, final), embedding.mT))
            if passing is not None and layer + 1 < shape.layers:
                x = passing(x, layer)
        return every

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self._epsilon) * weight[:, None]


class Row(torch.nn.Module):  # type: ignore[misc]
    """A copy of a stack, as a method sees it: a model of one parameter.

    Attributes
    ----------
    tensor_shapes, tensor_names : list
        Of the model's tensors in it, one behind the other: what works tensor by tensor looks here.
    """

    def __init__(self, vector: torch.Tensor, tensors: Mapping[str, torch.Size]) -> None:
        super().__init__()
        self.vector = torch.nn.Parameter(vector)
        self.tensor_names, self.tensor_shapes = list(tensors), list(tensors.values())


class RowLoss:
    """The loss of a copy: the stack's backward pass has run already, and this hands over the copy's part of it."""

    def __init__(self, row: Row, gradient: torch.Tensor) -> None:
        self.row, self.gradient = row, gradient

    def backward(self) -> None:
        """Let the row's gradient be its part of the stack's."""
        self.row.vector.grad = self.gradient


class RowOptimizer:
    """The optimizer of a copy: the first row that takes a step takes it for the whole stack.

    All gradients are there by then, and rows do not touch each other.
    """

    def __init__(self, row: Row, stack: StackOptimizer) -> None:
        self.param_groups: list[dict[str, Any]] = [{"params": [row.vector], "lr": 0.0}]
        self.stack, self.taken = stack, 0

    def step(self) -> None:
        """Take the stack's step, unless another row has."""
        self.taken += 1
        if self.taken > self.stack.taken:
            self.stack.step()


class StackOptimizer:
    """AdamW on all copies at once, their gradients clipped copy by copy."""

    def __init__(self, stack: Stack, rows: list[Row], **options: Any) -> None:
        self.inner = torch.optim.AdamW([stack.vector], fused=True, **options)
        self.vector, self.taken = stack.vector, 0
        self.rows = [RowOptimizer(row, self) for row in rows]

    def rate(self, lr: float) -> None:
        """Set the learning rate."""
        self.inner.param_groups[0]["lr"] = lr
        for row in self.rows:
            row.param_groups[0]["lr"] = lr

    def clip(self, norm: float) -> None:
        """Clip every copy's gradient at a norm, as :func:`torch.nn.utils.clip_grad_norm_` does for one."""
        gradient = self.vector.grad
        assert gradient is not None
        lengths = torch.linalg.vector_norm(gradient, dim=1, keepdim=True)
        gradient.mul_((norm / (lengths + 1e-6)).clamp_(max=1.0))

    def step(self) -> None:
        """Update all copies."""
        self.inner.step()
        self.taken += 1

    def state_dict(self) -> dict[str, Any]:
        """Return AdamW's moments."""
        return self.inner.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with these moments."""
        self.inner.load_state_dict(dict(state))
