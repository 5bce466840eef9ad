r"""Exits for a model that has none: affine maps from the state behind a layer to the state behind the last.

The model's own norm and head read what comes out. A map is a ridge regression in closed form, from moments that are
added up while the model reads a text: d² numbers per exit, however long the text is.

.. math:: \min_{W, b} \sum_i w_i \|h_L^i - W h_e^i - b\|^2 + \alpha \|W\|^2, \qquad w_i = 1 / \|h_L^i\|^2

The weights make every token count the same however long its state is: the final norm divides by that length anyway. The
first token of a block is left out: nothing is to be predicted from it, and its state, to which attention turns when it
has nowhere else to turn, is a hundred times longer than all others (arXiv 2402.17762).

Source: the linear short-cut of Din et al., "Jump to Conclusions", arXiv 2303.09435; the translators of Belrose et al.,
"Eliciting Latent Predictions from Transformers with the Tuned Lens", arXiv 2303.08112, are the same maps, trained by
gradient on the output's divergence. The weights w are ours.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from densing.core import Array, ArtefactError, InputError, parse_json, read_text, replacing, write_text
from densing.scores.evals.identity import file_digest, identify_model
from densing.scores.evals.models import load_model
from densing.scores.evals.plan import Loading, ModelSpec
from densing.scores.evals.served.variant import ARGUMENTS

WEIGHTS, MANIFEST = "translators.safetensors", "densing.json"
SCHEMA = 1
RATIOS = (1e-6, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""Penalties that are tried, as multiples of the mean variance of a state's numbers; held-out blocks choose."""
HELD_OUT = 10
"""Every tenth block is held out."""
PASS = 1024
"""Tokens that the model reads at once, in blocks that do not see each other."""
# Where the layers of usual models lie, in the model below its head.
_LAYERS = ("layers", "h", "blocks")


class Moments:
    """Weighted moments of pairs of rows (x, y), added up in float64: all that a ridge regression needs.

    Parameters
    ----------
    inputs, outputs : int
        Widths of x and y.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        self.rows, self.weight = 0, 0.0
        self.x, self.y = np.zeros(inputs), np.zeros(outputs)
        self.xx, self.xy = np.zeros((inputs, inputs)), np.zeros((inputs, outputs))
        self.yy = 0.0

    def add(self, x: Array, y: Array, weights: Array) -> None:
        """Count rows.

        Parameters
        ----------
        x, y : ndarray, shape (rows, inputs) and (rows, outputs)
        weights : ndarray, shape (rows,)
        """
        x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
        weighted = x * weights[:, None]
        self.rows += len(weights)
        self.weight += float(weights.sum())
        self.x += weighted.sum(0)
        self.y += weights @ y
        self.xx += weighted.T @ x
        self.xy += weighted.T @ y
        self.yy += float(weights @ np.square(y).sum(1))

    @property
    def variance(self) -> float:
        """Mean variance of x's columns, weighted."""
        return float((np.diag(self.xx) / self.weight - np.square(self.x / self.weight)).mean())

    def ridge(self, alpha: float) -> tuple[Array, Array]:
        """Return the map that minimises squared error plus ``alpha`` times the squared entries of its matrix.

        Returns
        -------
        matrix : ndarray, shape (outputs, inputs)
        bias : ndarray, shape (outputs,)
            Not penalised.

        Raises
        ------
        InputError
            When no rows were counted, or the equations have no solution.

        Examples
        --------
        >>> x = np.arange(5.0)[:, None]
        >>> moments = Moments(1, 1)
        >>> moments.add(x, 3 * x + 1, np.ones(5))
        >>> [part.round(9).tolist() for part in moments.ridge(0.0)]
        [[[3.0]], [1.0]]
        """
        if not self.weight > 0:
            raise InputError("a translator needs states to be fitted to; give more text")
        mean_x, mean_y = self.x / self.weight, self.y / self.weight
        left = self.xx - np.outer(mean_x, self.x)
        left[np.diag_indices_from(left)] += alpha
        try:
            matrix = np.linalg.solve(left, self.xy - np.outer(mean_x, self.y)).T
        except np.linalg.LinAlgError as error:
            raise InputError("states lie in fewer dimensions than they have; give more text") from error
        return matrix, mean_y - matrix @ mean_x

    def error(self, matrix: Array, bias: Array) -> float:
        """Return the mean over rows of the weighted squared length of what a map leaves of y."""
        total = (
            self.yy
            + float(np.einsum("oi,ij,oj->", matrix, self.xx, matrix, optimize=True))
            + self.weight * float(bias @ bias)
            - 2 * float(np.einsum("oi,io->", matrix, self.xy))
            - 2 * float(bias @ self.y)
            + 2 * float(bias @ matrix @ self.x)
        )
        return total / self.rows


class Affine(NamedTuple):
    """A translator: ``matrix`` (width, width) and ``bias`` (width,), float16."""

    matrix: torch.Tensor
    bias: torch.Tensor


@dataclass(frozen=True)
class Translators:
    """The exits of one model.

    Parameters
    ----------
    folder : Path
        Where they are stored.
    maps : mapping of int to Affine
        By exit layer.
    manifest : mapping
        ``model`` and its ``revision``, ``layers``, ``width``, ``exits`` (per exit the penalty and, on held-out
        blocks, the mean squared error as a share of the state's own square, ``error``, and that of the state as it
        is), ``text``, ``seed``, and the file's sha256.
    """

    folder: Path
    maps: Mapping[int, Affine]
    manifest: Mapping[str, Any]


def layers_of(model: Any) -> nn.ModuleList:
    """Return the layers of a causal language model of transformers.

    Raises
    ------
    InputError
        When it has no known stack of layers.
    """
    return getattr(model.base_model, stack_of(model))


def stack_of(model: Any) -> str:
    """Return the name of the stack of layers in a model's body; raises as :func:`layers_of`."""
    body = model.base_model
    name = next((name for name in _LAYERS if isinstance(getattr(body, name, None), nn.ModuleList)), None)
    if name is None:
        raise InputError(f"{type(body).__name__} has no known stack of layers ({', '.join(_LAYERS)})")
    return name


def fit_translators(
    spec: ModelSpec,
    exits: Sequence[int],
    texts: Sequence[str],
    out: Path,
    *,
    source: str = "texts",
    tokens: int = 50_000,
    block: int = 256,
    seed: int = 0,
    device: str = "cpu",
    progress: Callable[[str, float, float | None], object] = lambda label, done, total: None,
) -> Translators:
    """Fit a translator for each exit of a model, and store them with where they come from.

    Parameters
    ----------
    spec : ModelSpec
        A whole causal model (``hf`` or ``hf-prefix``).
    exits : sequence of int
        After how many layers; 1 to one less than the model has.
    texts : sequence of str
        What the model reads, in an order drawn from the seed, until ``tokens`` are read.
    out : Path
        Folder for ``translators.safetensors`` and its manifest.
    source : str
        What the texts are, for the manifest.
    tokens, block : int
        Tokens read, in blocks that do not see each other; every tenth block is held out and chooses the penalty.
    seed : int
        Seed of the order of texts.
    device : str
        Where the model runs.
    progress : callable
        Called with a label, blocks done and their number.

    Raises
    ------
    InputError
        When the model has no such exits, the texts are too short, or a state is not a number.
    """
    if asked := [name for name in ARGUMENTS if name in spec.args]:
        raise InputError(f"model {spec.name}: translators are fitted to the full model; drop {', '.join(asked)}")
    identity = identify_model(spec)
    # transformers draws bars of its own.
    with redirect_stderr(io.StringIO()):
        lm = load_model(spec, Loading(device=device), identity).lm
    if getattr(lm, "model", None) is None or lm.backend != "causal":
        raise InputError(f"model {spec.name} ({spec.type}): no causal model of transformers, whose layers can be read")
    layers = layers_of(lm.model)
    wrong = [each for each in exits if type(each) is not int or not 1 <= each < len(layers)]
    if wrong or not exits:
        raise InputError(
            f"exits {', '.join(map(str, exits))}: the model has {len(layers)} layers; give layers from 1 to "
            f"{len(layers) - 1} (after the last it needs no translator)"
        )
    rows = _blocks(lm, texts, tokens, block, seed, source)
    width = int(lm.model.config.get_text_config().hidden_size)
    sums = {each: (Moments(width, width), Moments(width, width)) for each in sorted(set(exits))}
    held = np.arange(len(rows)) % HELD_OUT == 0
    step = max(1, PASS // rows.shape[1])
    with torch.inference_mode(), _states(layers, [*sums, len(layers)]) as states:
        for start in range(0, len(rows), step):
            part = slice(start, start + step)
            lm.model.base_model(torch.tensor(rows[part], device=lm.device), use_cache=False)
            for out_of_fit in (False, True):
                chosen = held[part] == out_of_fit
                target = states[len(layers)][chosen].reshape(-1, width)
                weights = 1 / np.square(target).sum(1).clip(1e-12)
                for each, moments in sums.items():
                    moments[out_of_fit].add(states[each][chosen].reshape(-1, width), target, weights)
            progress(f"reading {source}", min(start + step, len(rows)), len(rows))
    tensors: dict[str, torch.Tensor] = {}
    about = {}
    for each, (train, held_out) in sums.items():
        fits = [(ratio, *train.ridge(ratio * train.variance * train.weight)) for ratio in RATIOS]
        errors = [held_out.error(matrix, bias) for _, matrix, bias in fits]
        best = int(np.argmin(errors))
        ratio, matrix, bias = fits[best]
        plain = held_out.error(np.eye(width), np.zeros(width))
        about[str(each)] = {"ridge": ratio, "error": errors[best], "untranslated_error": plain}
        tensors |= {f"{each}.matrix": torch.from_numpy(matrix).half(), f"{each}.bias": torch.from_numpy(bias).half()}
    if not all(bool(tensor.isfinite().all()) for tensor in tensors.values()):
        raise InputError(f"model {spec.name}: a translator holds values beyond half precision; give more text")
    with replacing(out / WEIGHTS) as temporary:
        from safetensors.torch import save_file

        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, str(temporary))
    manifest = {
        "schema": SCHEMA,
        "kind": "translators",
        "model": spec.name,
        "revision": identity.key["revision"],
        "layers": len(layers),
        "width": width,
        "exits": about,
        "text": {
            "source": source,
            "sha256": hashlib.sha256(json.dumps(list(texts)).encode()).hexdigest(),
            "tokens": int(rows.size),
            "held_out": int(rows[::HELD_OUT].size),
            "block": block,
        },
        "seed": seed,
        "files": {WEIGHTS: file_digest(out / WEIGHTS)},
    }
    write_text(out / MANIFEST, json.dumps(manifest, indent=1) + "\n")
    return read_translators(out, str(identity.key["revision"]))


def read_translators(folder: Path, revision: str) -> Translators:
    """Return the stored translators of a model.

    Parameters
    ----------
    folder : Path
        As :func:`fit_translators` wrote it.
    revision : str
        The model's, as :func:`densing.scores.evals.identity.identify_model` says.

    Raises
    ------
    InputError
        When nothing is stored there, it belongs to another model, or holds what is not a number.
    ArtefactError
        When a file is damaged.
    """
    path = folder / MANIFEST
    if not (path.is_file() and (folder / WEIGHTS).is_file()):
        raise InputError(
            f"{folder}: no translators in it ({MANIFEST}, {WEIGHTS}); run densing exits MODEL --out {folder}"
        )
    manifest = parse_json(read_text(path, str(path)), str(path))
    try:
        sound = manifest["kind"] == "translators" and manifest["schema"] == SCHEMA
        exits, model, fitted = list(map(int, manifest["exits"])), manifest["model"], manifest["revision"]
        digest = manifest["files"][WEIGHTS]
    except (KeyError, TypeError, ValueError, AttributeError):
        sound = False
    if not sound:
        raise ArtefactError(f"{path}: not the manifest of translators; fit them again")
    if fitted != revision:
        raise InputError(
            f"{folder}: translators of {model} ({fitted[:19]}), but this model is {revision[:19]}; fit its "
            "own with densing exits"
        )
    if file_digest(folder / WEIGHTS) != digest:
        raise ArtefactError(f"{folder / WEIGHTS}: content does not match {MANIFEST}; fit them again")
    from safetensors.torch import load_file

    tensors = load_file(str(folder / WEIGHTS))
    try:
        maps = {each: Affine(tensors[f"{each}.matrix"], tensors[f"{each}.bias"]) for each in exits}
    except KeyError as error:
        raise ArtefactError(f"{folder / WEIGHTS}: {error} is missing; fit them again") from error
    if not all(bool(tensor.isfinite().all()) for each in maps.values() for tensor in each):
        raise InputError(f"{folder / WEIGHTS}: contains NaN or infinity; fit the translators again")
    return Translators(folder, maps, manifest)


def _blocks(lm: Any, texts: Sequence[str], tokens: int, block: int, seed: int, source: str) -> Array:
    """Return the first tokens of the texts, shuffled, as blocks, shape (n, block)."""
    end = [int(lm.eot_token_id)]
    stream: list[int] = []
    for at in np.random.default_rng(seed).permutation(len(texts)):
        stream += end + lm.tok_encode(texts[at], add_special_tokens=False)
        if len(stream) >= tokens:
            break
    size = min(block, lm.max_length)
    count = min(len(stream), tokens) // size
    if count < HELD_OUT:
        raise InputError(
            f"{source}: {len(stream)} tokens are too few; at least {HELD_OUT} blocks of {size} are needed, and tens "
            "of thousands are recommended"
        )
    return np.array(stream[: count * size], dtype=np.int64).reshape(count, size)


@contextmanager
def _states(layers: nn.ModuleList, wanted: Sequence[int]) -> Iterator[dict[int, Array]]:
    """Yield a place where the states behind some layers lie after each pass, shape (rows, tokens - 1, width)."""
    states: dict[int, Array] = {}

    def keep(layer: int) -> Callable[..., None]:
        def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
            state = output[0] if isinstance(output, tuple) else output
            if not bool(state.isfinite().all()):
                raise InputError(f"the state behind layer {layer} contains NaN or infinity")
            states[layer] = state[:, 1:].double().cpu().numpy()

        return hook

    handles = [layers[layer - 1].register_forward_hook(keep(layer)) for layer in wanted]
    try:
        yield states
    finally:
        for handle in handles:
            handle.remove()
