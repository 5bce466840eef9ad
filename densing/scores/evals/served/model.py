"""``hf-served``: a model as it is served, evaluated by lm-eval like any other.

Layers behind the exit are taken out, a translator leads from the exit to the model's own norm and head, matrices are
rounded once, and the state at the cut is rounded in every pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from lm_eval.api.registry import register_model
from torch import nn

from densing.core import InputError
from densing.scores.evals.identity import identify_model, stored_dtype
from densing.scores.evals.plan import ModelSpec
from densing.scores.evals.prefix import PrefixHFLM
from densing.scores.evals.served.rounding import matrix_bytes, quantise, round_states, state_bytes
from densing.scores.evals.served.translators import Affine, layers_of, read_translators, stack_of
from densing.scores.evals.served.variant import ARGUMENTS, FULL, UNTRANSLATED, Variant

TRANSLATOR = "translator"
STORED = {"float32": 4, "bfloat16": 2, "float16": 2}


@register_model("hf-served")
class ServedHFLM(PrefixHFLM):
    """A model with an exit, a cut and rounded weights; arguments as in :class:`Variant`, and ``translators``.

    Attributes
    ----------
    served : dict
        The variant, the ``layers`` of the whole model, ``weight_bytes`` and ``bytes_per_token``.

    Examples
    --------
    >>> from lm_eval.api.registry import get_model
    >>> get_model("hf-served") is ServedHFLM
    True
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.variant = Variant.of(kwargs)
        self._translators = kwargs.get("translators")
        self.served: dict[str, Any] = {}
        super().__init__(*args, **{name: value for name, value in kwargs.items() if name not in ARGUMENTS})
        # Only now: noise of the last bit that flips a level would look to the trial like a wrong mask.
        hand_over(self.model, self.variant)

    def _create_model(self, pretrained: Any, **options: Any) -> None:
        """Load the model as ``hf`` does, and make the variant of it."""
        super()._create_model(pretrained, **options)
        args = {"pretrained": pretrained, "gguf_file": options.get("gguf_file"), "revision": options.get("revision"),
                "subfolder": options.get("subfolder") or None}  # fmt: skip
        spec = ModelSpec.of("hf", {name: value for name, value in args.items() if value is not None})
        self.served = serve(self._model, self.variant, spec, self._translators)


def serve(model: Any, variant: Variant, spec: ModelSpec, translators: str | Path | None = None) -> dict[str, Any]:
    """Cut a model off at its exit and round its matrices; return what it is then.

    Parameters
    ----------
    model
        A causal language model of transformers; changed.
    variant : Variant
    spec : ModelSpec
        Where it was loaded from.
    translators : path, optional
        Folder of :func:`fit_translators`; needed for an exit before the last layer. ``none``: the head reads the state
        as it is, for models that were trained with a loss there (or to see what translators are worth).

    Returns
    -------
    dict
        The attribute ``served`` of :class:`ServedHFLM`.

    Raises
    ------
    InputError
        When the model has no such layers, or the translators are none of its own or lack the exit.
    """
    layers = layers_of(model)
    count, width = len(layers), int(model.config.get_text_config().hidden_size)
    last = count if variant.exit is None else variant.exit
    if last > count or (variant.cut or 0) > last:
        name = "exit" if last > count else "cut"
        raise InputError(f"{name}={getattr(variant, name)}: {spec.name} has {count} layers")
    stored = stored_bytes(model, spec, last)
    if last < count:
        _leave_at(model, last, spec, translators)
    if variant.weight_bits < FULL:
        with torch.no_grad():
            for weight in _matrices(model).values():
                weight.copy_(quantise(weight.float(), variant.weight_bits))
    return {
        "exit": last,
        "cut": variant.cut,
        "cut_bits": variant.cut_bits,
        "weight_bits": variant.weight_bits,
        "layers": count,
        "weight_bytes": weight_bytes(model, variant.weight_bits, stored),
        "bytes_per_token": 0 if variant.cut is None else state_bytes(width, variant.cut_bits),
    }


def _leave_at(model: Any, last: int, spec: ModelSpec, translators: str | Path | None) -> None:
    """Take out the layers behind the exit, and let a translator follow the last that is left."""
    if translators is None:
        raise InputError(
            f"exit={last}: {spec.name} needs translators at that exit; run densing exits MODEL --exits {last} --out "
            "FOLDER "
            "and give --translators FOLDER"
        )
    known: Mapping[int, Affine] = {}
    if translators != UNTRANSLATED:
        known = read_translators(Path(translators), str(identify_model(spec).key["revision"])).maps
        if last not in known:
            there = ", ".join(map(str, known))
            raise InputError(f"exit={last}: {translators} has translators for exits {there}; fit this one too")
    kept = layers_of(model)[:last]
    setattr(model.base_model, stack_of(model), kept)
    config = model.config.get_text_config()
    config.num_hidden_layers = last
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:last]
    if last not in known:
        return
    like = next(kept.parameters())
    matrix, bias = known[last]
    translator = nn.Linear(*matrix.shape, device=like.device, dtype=like.dtype)
    with torch.no_grad():
        translator.weight.copy_(matrix)
        translator.bias.copy_(bias)
    # A part of the layer, so that whoever counts or moves the model's parameters finds it.
    kept[-1].add_module(TRANSLATOR, translator)
    kept[-1].register_forward_hook(lambda _module, _inputs, output: _changed(output, translator))


def hand_over(model: Any, variant: Variant) -> None:
    """Let the state at the cut arrive as its bits say, in every pass."""
    if variant.cut is None:
        return

    def arrive(_module: nn.Module, _inputs: Any, output: Any) -> Any:
        return _changed(output, lambda state: round_states(state, variant.cut_bits))

    place = layers_of(model)[variant.cut - 1] if variant.cut else model.get_input_embeddings()
    # Before the translator, where the cut is at the exit: the other side translates.
    place.register_forward_hook(arrive, prepend=True)


def _changed(output: Any, change: Any) -> Any:
    """Return a layer's output with its state changed; some layers return more beside it."""
    return (change(output[0]), *output[1:]) if isinstance(output, tuple) else change(output)


def _matrices(model: Any) -> dict[str, torch.Tensor]:
    """Return the matrices that are rounded: of linear layers and embeddings, each once, translators left out."""
    kinds = (nn.Linear, nn.Embedding)
    parts = [(name, part) for name, part in model.named_modules() if isinstance(part, kinds)]
    matrices = {f"{name}.weight": part.weight for name, part in parts if not name.endswith(TRANSLATOR)}
    unique = {id(weight): name for name, weight in reversed(matrices.items())}
    rest = [n for n, w in model.named_parameters() if w.dim() > 1 and id(w) not in unique and TRANSLATOR not in n]
    if rest:
        raise InputError(
            f"weight_bits: {rest[0]} is not a matrix of a linear layer or an embedding; leave weight_bits out"
        )
    return {name: matrices[name] for name in unique.values()}


def stored_bytes(model: Any, spec: ModelSpec, last: int) -> int:
    """Return the bytes of a model's weights up to a layer as they are stored, in a GGUF file or in the config's type.

    Parameters
    ----------
    model
        The whole model.
    spec : ModelSpec
        Where it was loaded from.
    last : int
        Layers that count.
    """
    folder = Path(str(spec.args["pretrained"])).expanduser()
    if file := spec.args.get("gguf_file"):
        from gguf import GGUFReader

        tensors = [(tensor.name.split("."), int(tensor.n_bytes)) for tensor in GGUFReader(str(folder / file)).tensors]
        return sum(size for name, size in tensors if name[0] != "blk" or int(name[1]) < last)
    left_out = {id(weight) for layer in layers_of(model)[last:] for weight in layer.parameters()}
    kept = [weight for weight in model.parameters() if id(weight) not in left_out]
    size = STORED.get(stored_dtype(folder), kept[0].element_size())
    return size * sum(weight.numel() for weight in kept)


def weight_bytes(model: Any, bits: int, stored: int) -> int:
    """Return what a served model's weights weigh: translators in half precision beside the rest as stored or rounded.

    Rounded matrices weigh their levels and a float32 per row; norms and biases float32.
    """
    translator = sum(weight.numel() for name, weight in model.named_parameters() if TRANSLATOR in name)
    if bits == FULL:
        return stored + 2 * translator
    matrices = _matrices(model)
    levels = sum(matrix_bytes(weight.shape[0], weight.shape[1], bits) for weight in matrices.values())
    rounded = sum(weight.numel() for weight in matrices.values())
    return levels + 2 * translator + 4 * (sum(weight.numel() for weight in model.parameters()) - rounded - translator)
