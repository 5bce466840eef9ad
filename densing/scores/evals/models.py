"""A model loaded once through lm-eval, and what can be said of it: parameters counted, format, context."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from densing.core import InputError, UnavailableError, UnknownNameError, read_text, strip_secrets
from densing.scores.evals.adapters import Adapter, need_peft, read_adapter
from densing.scores.evals.endpoints import guard_answers
from densing.scores.evals.identity import ModelIdentity
from densing.scores.evals.plan import MODELS, SEEDS, Loading, ModelSpec

SLOW_ON_CPU = ("bfloat16", "float16")
OWN_TYPES = {
    "hf-prefix": "densing.scores.evals.prefix",
    "hf-served": "densing.scores.evals.served.model",
    "hf-tuned": "densing.scores.evals.tuned",
}
FACTS = "densing.json"


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to answer.

    Parameters
    ----------
    lm : lm_eval.api.model.LM
        The model.
    spec, loading : ModelSpec, Loading
        As asked for, with the device that was chosen.
    facts : mapping
        Row of the models table, JSON-ready.
    """

    lm: Any
    spec: ModelSpec
    loading: Loading
    facts: Mapping[str, Any]

    @property
    def warnings(self) -> list[str]:
        """Caveats that the way of loading adds."""
        return loading_caveats(str(self.facts["dtype"]), self.spec, self.loading)


def model_class(spec: ModelSpec) -> Any:
    """Return lm-eval's class for a model type.

    Raises
    ------
    InputError
        When lm-eval knows no such type; a path or a hub name given as one says where it belongs.
    """
    if spec.type in OWN_TYPES:
        import_module(OWN_TYPES[spec.type])
    from lm_eval.api.registry import get_model, model_registry

    try:
        return get_model(spec.type)
    except (ValueError, KeyError) as error:
        known = (*model_registry, *MODELS)
        where = f"--model hf --model_args pretrained={spec.type}, for a model of that name" if "/" in spec.type else ""
        raise UnknownNameError("model type", spec.type, known, where) from error


def load_model(
    spec: ModelSpec, loading: Loading, identity: ModelIdentity, seeds: Sequence[int | None] = SEEDS
) -> LoadedModel:
    """Load a model as lm-eval's command line would.

    Raises
    ------
    InputError
        When lm-eval knows no such model type, or refuses the arguments.
    UnavailableError
        When the model type needs a package that is not installed.
    """
    adapter = adapter_of(spec, identity)
    device = loading.device or default_device()
    options = {"batch_size": loading.batch_size, "max_batch_size": loading.max_batch_size, "device": device}
    # Weights that a checkpoint lacks are drawn.
    seed_all(seeds)
    with gguf_read_once():
        try:
            lm = model_class(spec).create_from_arg_obj(dict(spec.args), options)
        except (ModuleNotFoundError, ImportError) as error:
            raise UnavailableError(f"model {spec.name} ({spec.type}): {error}; install the missing package") from error
        except (ValueError, TypeError, OSError, KeyError) as error:
            reason = str(strip_secrets(str(error))).strip() or type(error).__name__
            message = f"model {spec.name} ({spec.type}): {reason[:600]}; check --model and --model_args"
            raise InputError(message) from error
        guard_answers(lm, spec)
        used = Loading(loading.batch_size, loading.max_batch_size, device)
        if hasattr(lm, "get_model_info"):
            # lm-eval asks the hub for the commit after every evaluation; once per model is enough.
            info = functools.cache(lm.get_model_info)
            lm.get_model_info = lambda: dict(info())
        return LoadedModel(lm, spec, used, describe(lm, spec, used, identity, adapter))


def adapter_of(spec: ModelSpec, identity: ModelIdentity) -> Adapter | None:
    """Return the adapter that a model's arguments name, None where they name none.

    Raises
    ------
    InputError, ArtefactError
        When it cannot be used with this model, see :func:`read_adapter`.
    UnavailableError
        When peft is not installed.
    """
    if "adapter" not in spec.args:
        return None
    need_peft()
    return read_adapter(Path(str(spec.args["adapter"])).expanduser(), str(identity.key["revision"]))


@contextmanager
def gguf_read_once() -> Iterator[None]:
    """Let transformers parse a GGUF file once: settings (twice), tokenizer and weights would each take seconds.

    The names of tensors, too, it asks for anew for every module of the network.
    """
    try:
        import gguf
    except ImportError:
        yield
        return
    known = {name: getattr(gguf, name) for name in ("GGUFReader", "get_tensor_name_map")}
    for name, function in known.items():
        setattr(gguf, name, functools.cache(function))
    try:
        yield
    finally:
        for name, function in known.items():
            setattr(gguf, name, function)


def default_device() -> str:
    """Return the device lm-eval's command line would end on: the first GPU, else the processor."""
    try:
        import torch
    except ImportError:
        return "cpu"
    return "cuda:0" if torch.cuda.is_available() else "cpu"


def describe(
    lm: Any, spec: ModelSpec, loading: Loading, identity: ModelIdentity, adapter: Adapter | None = None
) -> dict[str, Any]:
    """Return what is known of a model: a row of the models table; unknown numbers are None."""
    model = getattr(lm, "model", None)
    total, embedding = count_parameters(model)
    own = model_facts(spec)
    dtype = str(getattr(model, "dtype", identity.key["dtype"]) or "").removeprefix("torch.")
    caveats = [*spec.caveats, *loading_caveats(dtype, spec, loading)]
    if not identity.pinned:
        caveats.append(f"revision {identity.key['revision']!r} is a branch or tag whose commit is unknown")
    if adapter is not None:
        caveats.append(adapter.caveat)
    tokenizer = getattr(lm, "tokenizer", None) if model is not None else None
    return {
        "model": spec.name,
        "type": spec.type,
        "args": strip_secrets(dict(spec.args)),
        "revision": identity.key["revision"],
        "dtype": dtype,
        "params_total": total,
        "params_embedding": embedding,
        "params_non_embedding": None if total is None or embedding is None else total - embedding,
        "vocab": _count(getattr(tokenizer, "vocab_size", None)),
        "context": _count(getattr(lm, "max_length", None)) if model is not None else None,
        "quantisation": quantisation(spec, model),
        "tokens": own.get("tokens", spec.tokens),
        "device": loading.device,
        "batch_size": loading.batch_size,
        "caveats": [*caveats, *map(str, own.get("caveats", ()))],
        **({"served": lm.served} if spec.type == "hf-served" else {}),
        **({} if adapter is None else {"adapter": adapter.provenance}),
    }


def loading_caveats(dtype: str, spec: ModelSpec, loading: Loading) -> list[str]:
    """Return what the way of loading means for speed and for the last digits."""
    caveats = []
    if dtype in SLOW_ON_CPU and loading.device == "cpu" and "pretrained" in spec.args:
        caveats.append(f"{dtype} on the processor is about 50 times slower than float32; pass dtype=float32")
    if loading.batch_size.startswith("auto"):
        caveats.append("batch_size auto: results are equal up to floating-point noise, not bitwise")
    return caveats


def count_parameters(model: Any) -> tuple[int | None, int | None]:
    """Return the parameters of a torch model, and those of its embeddings; shared weights count once.

    Embeddings are tables of tokens and positions, and the output table when it is not the input's.
    """
    if not hasattr(model, "parameters"):
        return None, None
    total = sum(weight.numel() for weight in model.parameters())
    parts = (part for part in model.modules() if type(part).__name__.endswith("Embedding"))
    tables = [part.weight for part in parts if hasattr(part, "weight")]
    head: Any = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if hasattr(head, "weight"):
        tables.append(head.weight)
    unique = {id(table): table.numel() for table in tables}
    return int(total), int(sum(unique.values()))


def quantisation(spec: ModelSpec, model: Any) -> str:
    """Return how the weights were quantised, empty when they were not as far as is known."""
    if gguf := spec.args.get("gguf_file"):
        with suppress(Exception):  # the reader fails in many ways on a damaged file; the name still says something
            from gguf import GGUFReader, LlamaFileType

            path = Path(str(spec.args.get("pretrained", ""))) / str(gguf)
            field = GGUFReader(str(path)).get_field("general.file_type")
            if field is not None:
                return f"GGUF {LlamaFileType(int(field.contents())).name.removeprefix('MOSTLY_')}"
        return "GGUF"
    config = getattr(getattr(model, "config", None), "quantization_config", None)
    if config is None:
        return ""
    method = config.get("quant_method") if isinstance(config, Mapping) else getattr(config, "quant_method", None)
    return str(getattr(method, "value", method) or "quantised")


def model_facts(spec: ModelSpec) -> dict[str, Any]:
    """Return what ``densing.json`` in a model's folder says: ``tokens`` seen in training, ``caveats``.

    Raises
    ------
    InputError
        When the file is there but is not an object, or its tokens are not a number.
    """
    path = Path(str(spec.args.get("pretrained", ""))).expanduser() / FACTS
    if not spec.args.get("pretrained") or not path.is_file():
        return {}
    try:
        facts = json.loads(read_text(path, str(path)))
    except ValueError as error:
        raise InputError(f"{path}: not JSON ({error}); correct or delete it") from error
    tokens = facts.get("tokens") if isinstance(facts, dict) else ""
    if not isinstance(facts, dict) or not (tokens is None or isinstance(tokens, int | float)):
        raise InputError(f"{path}: expected an object with tokens (a number); correct or delete it")
    return facts


def _count(value: Any) -> int | None:
    return int(value) if isinstance(value, int) else None


def seed_all(seeds: Sequence[int | None]) -> None:
    """Seed Python, NumPy and torch as lm-eval does before it loads models and tasks; None leaves one as it is."""
    import numpy as np

    if seeds[0] is not None:
        random.seed(seeds[0])
    if seeds[1] is not None:
        np.random.seed(seeds[1])  # noqa: NPY002  (the generator that lm-eval and its tasks use)
    if seeds[2] is not None:
        with suppress(ImportError):
            import torch

            torch.manual_seed(seeds[2])
