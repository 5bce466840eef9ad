"""Sizes of models by name: which row of the catalog a model of somebody else's results is, and how it was matched."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pandas as pd

from densing.core import InputError, Note, nearest, once
from densing.scores.catalog.catalog import Catalog
from densing.scores.catalog.tables import load_catalog

# Names on the hub (and in harnesses' tables) that spell a model of the catalog otherwise, normalised.
_ALIASES = {
    "amber": "Amber-7B",
    "bloom": "BLOOM-176B",
    "bloom-1b1": "BLOOM-1.1B",
    "bloom-1b7": "BLOOM-1.7B",
    "bloom-3b": "BLOOM-3B",
    "bloom-7b1": "BLOOM-7.1B",
    "deepseek-llm-7b-base": "DeepSeek-LLM-7B",
    "deepseek-llm-67b-base": "DeepSeek-LLM-67B",
    "gemma-3-1b-pt": "Gemma-3-1B",
    "gemma-3-4b-pt": "Gemma-3-4B",
    "gemma-3-12b-pt": "Gemma-3-12B",
    "gemma-3-27b-pt": "Gemma-3-27B",
    "gpt2": "GPT-2-124M",
    "gpt2-medium": "GPT-2-355M",
    "gpt2-large": "GPT-2-774M",
    "gpt2-xl": "GPT-2-1.5B",
    "llama-7b": "Llama-1-7B",
    "llama-13b": "Llama-1-13B",
    "llama-30b": "Llama-1-33B",
    "llama-65b": "Llama-1-65B",
    "mixtral-8x7b-v0.1": "Mixtral-8x7B",
    "mixtral-8x22b-v0.1": "Mixtral-8x22B",
    "open-llama-3b": "OpenLLaMA-3B",
    "open-llama-3b-v2": "OpenLLaMA-3B-v2",
    "open-llama-7b": "OpenLLaMA-7B",
    "open-llama-7b-v2": "OpenLLaMA-7B-v2",
    "open-llama-13b": "OpenLLaMA-13B",
    "phi-1-5": "Phi-1.5",
    "stablelm-2-1-6b": "StableLM-2-1.6B",
}
# What converters and harnesses add to a name: the weights are the same.
_ADDED = re.compile(r"^meta-|-(?:hf|turbomind|vllm)$|(?<=^pythia)-v1\.1")
_SIZES = ("params_total", "params_active", "params_non_embedding")
# A file's own count may leave out a part; beyond this it is another model of the same name.
AGREEMENT = 0.1


def find_model(catalog: Catalog, name: str) -> tuple[str, str] | None:
    """Return the model of the catalog that a name means, and how it was matched; None where none does.

    Nothing is guessed: ``exact`` is the catalog's own name; ``normalised`` differs in case, separators, the
    organisation before it or the revision behind it; ``alias`` is a spelling known from the hub, or what a converter
    adds (``-hf``).

    Parameters
    ----------
    catalog : Catalog
        Where the models are.
    name : str
        Name in the results: a path, a hub id, or a label.

    Examples
    --------
    >>> from densing.scores.catalog import load_catalog
    >>> catalog = load_catalog()
    >>> find_model(catalog, "Qwen2.5-7B"), find_model(catalog, "Qwen/qwen2.5_7b@main")
    (('Qwen2.5-7B', 'exact'), ('Qwen2.5-7B', 'normalised'))
    >>> find_model(catalog, "meta-llama/Llama-2-13b-hf"), find_model(catalog, "Qwen/Qwen2.5-7B-Instruct")
    (('Llama-2-13B', 'alias'), None)
    """
    models = catalog.models["model"].astype(str)
    if name in set(models):
        return name, "exact"
    rows: dict[str, list[str]] = {}
    for model in models:
        rows.setdefault(_normalised(model), []).append(model)
    short = _normalised(name)
    stripped = _ADDED.sub("", short)
    for key, spelling in ((short, "normalised"), (stripped, "alias")):
        if len(rows.get(key, ())) == 1:
            return rows[key][0], spelling
        if _ALIASES.get(key) in set(models):
            return _ALIASES[key], "alias"
    return None


def _normalised(name: str) -> str:
    last = name.rstrip("/").rpartition("/")[2].partition("@")[0]
    return re.sub(r"[^a-z0-9.]+", "-", last.lower()).strip("-")


def with_sizes(
    models: pd.DataFrame, params: Mapping[str, float] | None = None, *, catalog: Catalog | None = None
) -> tuple[pd.DataFrame, list[Note]]:
    """Return a table of measured models with their sizes filled in: as given, else as stored, else from the catalog.

    Parameters
    ----------
    models : pandas.DataFrame
        ``model`` and ``params_total``, ``params_non_embedding`` as counts; NaN where unknown.
    params : mapping, optional
        Size by name, all parameters, a count. The last part of a path is enough where only one model has it.
    catalog : Catalog, optional
        Where names are looked up; the embedded one by default.

    Returns
    -------
    models : pandas.DataFrame
        With ``params_active`` and ``size_from`` (``--params``, ``results``, ``catalog: ROW (how)`` or empty).
    notes : list of Note
        Which row was taken for which model, and which models have no size.

    Raises
    ------
    InputError
        For a size of a model that was not measured.
    """
    known = catalog if catalog is not None else load_catalog()
    measured = list(dict.fromkeys(models["model"].astype(str)))
    stated = {}
    for name, size in (params or {}).items():
        matches = [name] if name in measured else [model for model in measured if model.rpartition("/")[2] == name]
        if len(matches) != 1:
            problem = f"{len(matches)} models of that name" if matches else "no such model"
            raise InputError(
                f"--params {name}={size:g}: {problem} in the results; they hold {', '.join(measured[:20])}"
            )
        stated[matches[0]] = float(size)
    sizes = known.models.set_index("model")
    rows, notes = [], []
    for row in models.to_dict("records"):
        name = str(row["model"])
        stored = {column: _count(row.get(column)) for column in _SIZES}
        origin = "results" if stored["params_total"] else ""
        if name in stated:
            stored["params_total"], origin = stated[name], "--params"
        match = find_model(known, name)
        if match is not None:
            listed = {column: _count(sizes.loc[match[0], f"{column}_b"], 1e9) for column in _SIZES}
            total = stored["params_total"]
            agrees = not total or abs(total / (listed["params_total"] or total) - 1) <= AGREEMENT
            missing = [column for column in _SIZES if not stored[column] and listed[column]] if agrees else []
            stored |= {column: listed[column] for column in missing}
            if "params_total" in missing:
                origin = f"catalog: {match[0]} ({match[1]})"
                message = (
                    f"model {name}: its size, {stored['params_total']:.4g}, is that of {match[0]} in the catalog "
                    f"({match[1]} name); --params '{name}=COUNT' gives another"
                )
                notes.append(Note("size-by-name", "info", message, {"model": name, "row": match[0], "how": match[1]}))
        if not any(stored.values()):
            notes.append(_unsized(name, sizes.index))
        rows.append({**row, **stored, "size_from": origin})
    table = pd.DataFrame(rows, columns=[*dict.fromkeys([*models.columns, *_SIZES, "size_from"])])
    return table.astype(dict.fromkeys(_SIZES, "float64")), once(notes)


def _count(value: object, unit: float = 1.0) -> float | None:
    number = float(value) * unit if isinstance(value, int | float) else 0.0
    return number if number > 0 else None


def _unsized(name: str, rows: pd.Index) -> Note:
    near = nearest(_normalised(name), map(str, rows))
    hint = f" (its names near this one: {', '.join(near)})" if near else ""
    message = (
        f"model {name}: the results state no size and no name in the catalog is this one{hint}; "
        f"give it: --params '{name}=13e9' for 13 billion"
    )
    return Note("size-unknown", "warning", message, {"model": name, "near": near})
