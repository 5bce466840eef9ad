"""A ladder's folder: ``ladder.json`` says what it is, and below ``models/`` lie the exports.

An export is a model and its tokenizer as transformers loads them, and ``densing.json`` saying what they are.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from densing.core import ArtefactError, InputError, read_text, write_text
from densing.scores.ladder.runs import DESCRIPTION, MODELS, Budget, Run

LADDER = "ladder.json"
STORE = "eval"
"""The store of the models' results, below the folder."""


def describe_ladder(folder: Path, about: Mapping[str, Any]) -> None:
    """Write ``ladder.json``; a folder holds one ladder, because its laws are fitted together.

    Parameters
    ----------
    folder : Path
        The ladder's folder.
    about : mapping
        ``preset``, and what the corpus says of itself (``corpus_hash`` among it).

    Raises
    ------
    InputError
        When the folder holds a ladder of another preset, corpus, teacher or number of trials per arm.
    """
    path = folder / LADDER
    if not path.exists():
        write_text(path, json.dumps({"schema": 1, **about}, indent=2) + "\n")
        return
    stored = read_ladder(folder)
    for key in ("preset", "corpus_hash", "teacher", "trials"):
        if stored.get(key) != about.get(key):
            raise InputError(
                f"{path}: holds a ladder of {key} {stored.get(key)!r}, not {about.get(key)!r}; choose another --out"
            )


def read_ladder(folder: Path) -> dict[str, Any]:
    """Return ``ladder.json``.

    Raises
    ------
    InputError
        When the folder holds no ladder.
    ArtefactError
        When the file is damaged.
    """
    path = folder / LADDER
    if not path.is_file():
        raise InputError(f"{folder}: no ladder here ({LADDER} is missing); run `densing ladder train --out {folder}`")
    try:
        about = json.loads(read_text(path, str(path)))
        return {"preset": str(about["preset"]), **about}
    except (ValueError, KeyError, TypeError) as error:
        raise ArtefactError(f"{path}: damaged ({error}); train again into another folder") from error


def export(
    model: Any, run: Run, budget: Budget, folder: Path, losses: Mapping[str, float], about: Mapping[str, Any]
) -> Path:
    """Write a model, its tokenizer and its description; the folder is whole or absent.

    Parameters
    ----------
    model
        A causal language model of transformers.
    run, budget
        What was trained, and up to where.
    folder : Path
        The ladder's folder.
    losses : mapping of str to float
        Final losses in nats per token: ``train`` (moving average) and ``validation``.
    about : mapping
        What else the description says: of an arm, its name and what its training took.
    """
    final = run.export_folder(folder, budget)
    with replacing_folder(final) as staging:
        model.save_pretrained(staging)
        if wiring := about.get("wiring"):
            # Under its own name a plain Llama would be made of these weights, which is another model.
            config = json.loads(read_text(staging / "config.json", "config.json"))
            write_text(
                staging / "config.json", json.dumps({**config, "model_type": f"llama-{wiring}"}, indent=2) + "\n"
            )
        run.corpus.tokenizer().save_pretrained(staging)
        text = json.dumps({**describe(model, run, budget, losses), **about}, indent=2, ensure_ascii=False)
        write_text(staging / DESCRIPTION, text + "\n")
    return final


@contextmanager
def replacing_folder(final: Path) -> Iterator[Path]:
    """Give an empty folder to fill; it becomes ``final`` when the block ends well, and vanishes when it does not."""
    final.parent.mkdir(parents=True, exist_ok=True)
    for leftover in final.parent.glob(f".{final.name}.*"):
        # Of a process that was killed while it wrote.
        shutil.rmtree(leftover, ignore_errors=True)
    staging = Path(tempfile.mkdtemp(dir=final.parent, prefix=f".{final.name}."))
    try:
        yield staging
        staging.chmod(0o755)
        # Only a folder that was damaged or copied in half can be in the way.
        shutil.rmtree(final, ignore_errors=True)
        staging.replace(final)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def describe(model: Any, run: Run, budget: Budget, losses: Mapping[str, float]) -> dict[str, Any]:
    """Return what ``densing.json`` holds."""
    total, bare = count_parameters(model)
    preset = run.preset
    return {
        "schema": 1,
        "name": f"{run.name}-{run.tokens(budget.end)}",
        "run": run.name,
        "preset": preset.name,
        "size": run.shape.name,
        "seed": run.seed,
        "target": run.target,
        "params_total": total,
        "params_non_embedding": bare,
        "tokens": run.budgeted(budget),
        **({} if run.arm is None else {"tokens_trained": run.tokens(budget.end)}),
        **run.corpus.describe(),
        "loss": {f"{part}_nats_per_token": value for part, value in losses.items()},
        "schedule": {
            "kind": "warmup-stable-decay",
            "steps": budget.end,
            "warmup": preset.warmup,
            "decay_from": budget.branch,
            "peak": preset.rate(run.shape),
            "batch": run.shape.batch,
            "block": preset.block,
            "betas": list(preset.betas),
            "weight_decay": preset.weight_decay,
            "clip": 1.0,
            "precision": preset.precision,
        },
        "versions": versions(),
    }


def count_parameters(model: Any) -> tuple[int, int]:
    """Return a model's parameters in all and without embeddings."""
    total = sum(parameter.numel() for parameter in model.parameters())
    return total, total - model.get_input_embeddings().weight.numel()


def versions() -> dict[str, str]:
    """Return the versions that decide a run's bits."""
    import numpy
    import torch
    import transformers

    import densing

    modules = {"densing": densing, "numpy": numpy, "torch": torch, "transformers": transformers}
    return {name: str(module.__version__) for name, module in modules.items()}


def read_exports(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the description of every exported model of a ladder, with its ``path``, in order of name.

    Raises
    ------
    ArtefactError
        When a description is damaged.
    """
    for path in sorted((folder / MODELS).glob(f"*/{DESCRIPTION}")):
        if path.parent.name.startswith("."):
            continue
        try:
            export = json.loads(read_text(path, str(path)))
            yield {**export, "path": path.parent}
        except (ValueError, TypeError) as error:
            raise ArtefactError(f"{path}: not a description of a model ({error}); delete its folder") from error
