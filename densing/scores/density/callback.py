"""The Trainer of transformers logs density beside the loss."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from densing.core import DensingError
from densing.scores.density.bank_evaluation import BankEvaluation, evaluate_bank
from densing.scores.density.runs import RunDensities, reference_benchmarks
from densing.scores.density.tracking import checkpoint_densities, to_log
from densing.scores.items import ItemBank

if TYPE_CHECKING:
    from transformers import Trainer

Scores = Mapping[str, Any] | Path | str | None


class DensityCallback(TrainerCallback):  # type: ignore[misc]
    """Log the density of the model in training at each evaluation, and at each checkpoint that is saved.

    Numbers go where the trainer reports to (W&B, MLflow, TensorBoard, ``state.log_history``), under ``eval_`` and the
    names of :func:`to_log`, and into the metrics of the evaluation: ``metric_for_best_model`` and early stopping can
    read them. Scores that cannot be read are warned of, and training goes on.

    Parameters
    ----------
    trainer : transformers.Trainer
        The one that it is added to.
    reference : str
        The reference, as for :func:`checkpoint_densities`.
    at_evaluation : callable, optional
        Takes the model, returns scores as for :func:`checkpoint_densities`, or None to log nothing this time. By
        default scores are the metrics of the evaluation named as the reference's benchmarks (``eval_mmlu``), as
        ``compute_metrics`` returns them.
    at_save : callable, optional
        The same at each checkpoint, of whose folder it takes the path; on the process that writes logs only.
    bank : ItemBank or str, optional
        In place of both: at each evaluation, and at each checkpoint that was not evaluated, the model answers items of
        this bank (:func:`evaluate_bank`), and its score on all of them is logged too, as ``eval_bank/NAME/score`` with
        ``score_lo`` and ``score_hi``. The tokenizer is the trainer's ``processing_class``.
    items, batch_size, include_path
        As for :func:`evaluate_bank`.
    params, non_embedding, benchmark, level
        As for :func:`checkpoint_densities`; by default the model's parameters are counted. Give counts where each
        process holds a part of the model.
    name : str
        Of the model; the step stands behind it.

    Attributes
    ----------
    densities : dict of int to RunDensities
        What was logged, by step.
    evaluations : dict of int to BankEvaluation
        The same of a bank's items.

    See Also
    --------
    checkpoint_densities, evaluate_bank, log_to_wandb

    Notes
    -----
    .. code-block:: python

        trainer = Trainer(model, args, train_dataset=texts, eval_dataset=held_out)
        trainer.add_callback(DensityCallback(trainer, "qwen1.5", at_evaluation=my_scores))
        trainer.train()
    """

    def __init__(
        self,
        trainer: Trainer,
        reference: str,
        *,
        at_evaluation: Callable[[Any], Scores] | None = None,
        at_save: Callable[[Path], Scores] | None = None,
        bank: ItemBank | str | None = None,
        items: int = 100,
        batch_size: int = 8,
        include_path: Sequence[str] = (),
        params: float | None = None,
        non_embedding: float | None = None,
        benchmark: str | None = None,
        level: float = 0.95,
        name: str = "model",
    ) -> None:
        self.trainer, self.at_evaluation, self.at_save = trainer, at_evaluation, at_save
        self.reference, self.name = reference, name
        self.options: dict[str, Any] = {"benchmark": benchmark, "non_embedding": non_embedding, "level": level}
        self.params = trainer.model if params is None else params
        # A reference that is not there is said before training begins.
        self.benchmarks = reference_benchmarks(reference, benchmark)
        self.bank = ItemBank.load(bank) if isinstance(bank, str) else bank
        self.asked: dict[str, Any] = {"items": items, "batch_size": batch_size, "include_path": tuple(include_path)}
        self.asked |= {"params": params, "non_embedding": non_embedding}
        self.densities: dict[int, RunDensities] = {}
        self.evaluations: dict[int, BankEvaluation] = {}

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: dict[str, float], **kwargs: Any) -> None:
        """Log the density of the model as it is now."""
        if self.bank is not None:
            metrics |= self._ask(self.bank, state.global_step, kwargs.get("model", self.trainer.model))
            return
        if self.at_evaluation is not None:
            scores: Scores = self.at_evaluation(kwargs.get("model", self.trainer.model))
        else:
            scores = {name: metrics[f"eval_{name}"] for name in self.benchmarks if f"eval_{name}" in metrics}
        # Of this evaluation, so that the trainer can choose by it.
        metrics |= self._log(scores, state.global_step)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Log the density of the checkpoint that was written."""
        if self.bank is not None and state.global_step not in self.evaluations:
            self._ask(self.bank, state.global_step, kwargs.get("model", self.trainer.model))
        elif self.at_save is not None and state.is_world_process_zero:
            self._log(self.at_save(Path(args.output_dir) / f"checkpoint-{state.global_step}"), state.global_step)

    def _ask(self, bank: ItemBank, step: int, model: Any) -> dict[str, float]:
        tokenizer = getattr(self.trainer, "processing_class", None)
        options = {"reference": self.reference, **self.asked}
        return self._of(step, lambda name: evaluate_bank(model, tokenizer, bank, name=name, **options))

    def _log(self, scores: Scores, step: int) -> dict[str, float]:
        if not scores:
            return {}
        return self._of(
            step, lambda name: checkpoint_densities(scores, self.params, self.reference, model=name, **self.options)
        )

    def _of(self, step: int, measure: Callable[[str], RunDensities | BankEvaluation]) -> dict[str, float]:
        try:
            result = measure(f"{self.name}@step{step}")
        except DensingError as error:
            warnings.warn(f"no density at step {step}: {error}", stacklevel=2)
            return {}
        if isinstance(result, BankEvaluation):
            self.evaluations[step] = result
        densities = result.densities if isinstance(result, BankEvaluation) else result
        if densities is not None:
            self.densities[step] = densities
        numbers = {f"eval_{name}": value for name, value in to_log(result)[0].items()}
        self.trainer.log(dict(numbers))
        return numbers
