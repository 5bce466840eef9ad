"""A model in memory answers a few items of a bank: its score on all of them and its density, in a training loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from densing.core import InputError, Note
from densing.scores.density.banks import bank_measurements, choose_items
from densing.scores.density.runs import RunDensities, run_densities
from densing.scores.evals import answer_documents, count_parameters
from densing.scores.items import BankScore, ItemBank, answer_rows


@dataclass(frozen=True)
class BankEvaluation:
    """What a model's answers to a few items say.

    Parameters
    ----------
    bank : str
        Its name.
    score : BankScore
        On all items of the bank.
    densities : RunDensities, optional
        None where the reference does not read the bank's benchmarks.
    notes : tuple of Note
        Why there is no density.
    """

    bank: str
    score: BankScore
    densities: RunDensities | None
    notes: tuple[Note, ...] = ()


def evaluate_bank(
    model: Any,
    tokenizer: Any,
    bank: ItemBank | str,
    *,
    reference: str = "olmo-ladder",
    items: int = 100,
    name: str = "model",
    params: float | None = None,
    non_embedding: float | None = None,
    include_path: Sequence[str] = (),
    batch_size: int = 8,
    seed: int = 0,
) -> BankEvaluation:
    """Let a transformers model answer items of a bank, and return its score and density with intervals.

    The model is asked as it is, on its device, without gradients, and left in the mode it was in (training or not); no
    random number is drawn. Every call asks the same items, so that checkpoints compare in pairs.

    Parameters
    ----------
    model : transformers.PreTrainedModel
    tokenizer : transformers.PreTrainedTokenizerBase
    bank : ItemBank or str
        Of documents of lm-eval's tasks; or its file.
    reference : str
        What density is read on.
    items : int
        As many of each benchmark, stratified by difficulty.
    name : str
        In the result; ``mine@step500`` says which step it is of.
    params, non_embedding : float, optional
        Parameters, counts; by default the model's are counted.
    include_path : sequence of str
        Folders of task files, as ``densing eval --include_path``.
    batch_size : int
    seed : int
        Of the choice of items.

    Raises
    ------
    InputError
        When the bank's items are no documents of tasks, or a task would run code.
    UnavailableError
        When lm-eval is not installed.

    See Also
    --------
    densing.training.DensityCallback, log_to_wandb
    """
    loaded = ItemBank.load(bank) if isinstance(bank, str) else bank
    documents: dict[str, list[int]] = {}
    for item in choose_items(loaded, items, seed=seed):
        task, _, document = item.rpartition("/")
        if not task or not document.isdecimal():
            raise InputError(f"bank {loaded.name}: item {item} is no document of a task of lm-eval")
        documents.setdefault(task, []).append(int(document))
    table = answer_documents(model, tokenizer, documents, include_path=include_path, batch_size=batch_size)
    answers = answer_rows(table.assign(model=name))
    score = loaded.estimate(answers)
    total, embedding = count_parameters(model)
    counted = total - embedding if total and embedding is not None else None
    sizes = {"model": name, "params_total": params or total, "params_non_embedding": non_embedding or counted}
    try:
        measured = bank_measurements(loaded, answers).measurements
        return BankEvaluation(
            loaded.name, score, run_densities(measured, pd.DataFrame([sizes]), reference), score.notes
        )
    except InputError as error:
        note = Note("no-density", "warning", f"{name}: no density: {error}", {"model": name})
        return BankEvaluation(loaded.name, score, None, (*score.notes, note))
