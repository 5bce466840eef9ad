"""Density beside the loss of a training run: from the scores of a checkpoint to what an experiment tracker holds.

:func:`checkpoint_densities` reads scores on a reference, :func:`to_log` says what of the result is logged, and the
functions behind it hand that to Weights & Biases, MLflow and TensorBoard. What the Trainer of transformers logs comes
from the same two (:mod:`densing.scores.density.callback`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from densing.core import InputError, UnavailableError, formatting
from densing.scores.catalog import binomial_variance, load_catalog
from densing.scores.density.bank_evaluation import BankEvaluation
from densing.scores.density.inversion import DensityResult
from densing.scores.density.runs import RunDensities, default_denominator, run_densities
from densing.scores.density.sentences import density_sentence, quoted_rows
from densing.scores.evals import count_parameters, read_results

Result = DensityResult | RunDensities | BankEvaluation
_KNOWN_END, _OPEN_END = {"upper": "_hi", "lower": "_lo"}, {"upper": "_lo", "lower": "_hi"}
# MLflow allows no other characters in a name, and the file store makes a path of it.
_UNNAMED = re.compile(r"[^\w.\- ]")


def checkpoint_densities(
    scores: Mapping[str, Any] | Path | str,
    params: Any,
    reference: str,
    *,
    non_embedding: float | None = None,
    model: str = "model",
    benchmark: str | None = None,
    level: float = 0.95,
    seed: int = 0,
) -> RunDensities:
    """Return the densities of a model in training, or of one of its checkpoints.

    Parameters
    ----------
    scores : mapping or path
        The share of right answers by benchmark, ``{"mmlu": 0.41}``, or the share with the number of items,
        ``{"mmlu": (0.41, 14042)}``; without it the benchmark's known number counts. Or what
        ``lm_eval.simple_evaluate`` returned, or the path of results as for :func:`densing.read_results`: these say
        how they were measured, so that the protocol can be compared with the reference's.
    params : number or torch.nn.Module
        All parameters, a count; or the model itself, whose parameters are counted.
    reference : str
        The reference: a family, or the path of a JSON fit.
    non_embedding : float, optional
        Parameters without embeddings, which ladders (``olmo-ladder``) count; of a model itself they are known.
    model : str
        The name in the result; ``mine@step500`` says which step it is of.
    benchmark : str, optional
        Only this benchmark.
    level, seed
        As in :func:`densing.scores.density.estimate_density`.

    Returns
    -------
    RunDensities
        A row per benchmark, and where the reference has one a row for all of them.

    Raises
    ------
    InputError
        When a score is not a share, a count is not a count, or no benchmark is one of the reference's.

    Notes
    -----
    Source: as :func:`densing.run_densities`; the standard error of a share is binomial
    (:func:`densing.scores.catalog.binomial_variance`).

    See Also
    --------
    densing.run_densities, densing.scores.density.densities_by_step

    Examples
    --------
    >>> from densing.training import checkpoint_densities
    >>> densities = checkpoint_densities({"mmlu": (0.41, 14042)}, 1e9, "qwen1.5", model="mine@step500")
    >>> densities.table[["model", "benchmark", "status"]].values.tolist()
    [['mine@step500', 'mmlu', 'ok']]
    >>> print(densities.sentences()[0].split(" on ")[0])
    mine@step500 has density 0.72 (95 % interval of the measurement 0.48 to 1.0)
    """
    if hasattr(params, "parameters"):
        total, embedding = count_parameters(params)
        non_embedding = float(total - embedding) if total and embedding is not None else None
    else:
        total = params
    for name, count in {"params": total, "non_embedding": non_embedding}.items():
        if count is not None and not (_is_number(count) and count > 0):
            raise InputError(f"{name} is {count!r}; give a count above 0, such as 1.2e9, or the model itself as params")
    if non_embedding is None and default_denominator(reference) == "non_embedding":
        raise InputError(
            f"reference {reference} counts parameters without embeddings, and these are not known: give "
            "non_embedding, a count, or the model itself as params"
        )
    if isinstance(scores, Mapping) and "results" not in scores:
        measured = pd.DataFrame([_measurement(str(name), score) for name, score in scores.items()], columns=_COLUMNS)
    else:
        measured = read_results(scores).measurements
        if len(several := list(measured["model"].unique())) > 1:
            raise InputError(f"scores: results of {formatting.listed(several, 5)}; give those of one model")
    sizes = {"model": model, "params_total": total, "params_non_embedding": non_embedding}
    return run_densities(
        measured.assign(model=model), pd.DataFrame([sizes]), reference, benchmark=benchmark, level=level, seed=seed
    )


_COLUMNS = ["task", "benchmark", "metric", "value", "stderr", "n_items"]


def _measurement(benchmark: str, score: Any) -> dict[str, Any]:
    """Return a row of measurements of a score as people write it: a share, or a share and its number of items."""
    value, items = score if isinstance(score, tuple | list) and len(score) == 2 else (score, None)
    if items is None:
        known = load_catalog().benchmarks.set_index("id")["items"]
        items = known.get(benchmark, math.nan)
    elif not (_is_number(items) and items >= 1):
        raise InputError(f"scores: {benchmark} has {items!r} items; give a number from 1, or the share alone")
    if not (_is_number(value) and 0 <= value <= 1):
        raise InputError(
            f"scores: {benchmark} is {value!r}; give a share between 0 and 1, or the share and its number of items: "
            f"{{{benchmark!r}: (0.41, 1000)}}"
        )
    error = float(np.sqrt(binomial_variance(np.array([float(value)]), np.array([float(items)]))[0]))
    return dict(zip(_COLUMNS, (benchmark, benchmark, "score", float(value), error, items), strict=True))


def _is_number(value: Any) -> bool:
    """Whether this is a finite number: Python's, numpy's, or a tensor's that holds one."""
    try:
        return not isinstance(value, str | bool) and math.isfinite(float(value))
    except (TypeError, ValueError):
        return False


def to_log(result: Result) -> tuple[dict[str, float], dict[str, str]]:
    """Return what a tracker is given of the density of one model: numbers for its charts, and sentences.

    Parameters
    ----------
    result : DensityResult, RunDensities or BankEvaluation
        Of one model.

    Returns
    -------
    numbers : dict of str to float
        By ``density/REFERENCE/BENCHMARK/`` and ``density``, ``density_lo``, ``density_hi`` (its interval) or ``n_eff``
        (the effective parameters). Where only a bound is known the density is that bound, as in
        figures, and the end that is not known is left out. A density by loss is under ``BENCHMARK.loss``. Of a bank's
        items also ``score``, ``score_lo`` and ``score_hi`` by ``bank/NAME/``.
    texts : dict of str to str
        By ``density/REFERENCE/BENCHMARK`` the sentence to quote: name, density, interval, reference, and what it must
        not be compared with.

    Raises
    ------
    InputError
        When there are several models.

    Examples
    --------
    >>> numbers, texts = to_log(checkpoint_densities({"mmlu": 0.41}, 1e9, "qwen1.5", model="mine@step500"))
    >>> {name.rpartition("/")[2]: float(f"{value:.2g}") for name, value in numbers.items()}
    {'density': 0.72, 'density_lo': 0.48, 'density_hi': 1.0, 'n_eff': 720000000.0}
    >>> list(to_log(checkpoint_densities({"mmlu": 0.25}, 1e9, "qwen1.5"))[0])
    ['density/qwen1.5/mmlu/density', 'density/qwen1.5/mmlu/density_hi', 'density/qwen1.5/mmlu/n_eff']
    """
    if isinstance(result, BankEvaluation):
        key, score = f"bank/{_UNNAMED.sub('_', result.bank)}", result.score
        numbers, texts = ({}, {}) if result.densities is None else to_log(result.densities)
        ends = {"score": score.score, "score_lo": score.lo, "score_hi": score.hi}
        return {**numbers, **{f"{key}/{name}": value for name, value in ends.items()}}, texts
    if len(models := list(result.table["model"].unique())) != 1:
        raise InputError(f"densities of {formatting.listed(models, 5) or 'no model'}; log those of one model at a step")
    if isinstance(result, RunDensities):
        level = next(float(part.options["level"]) for part in result.results)
    else:
        level = float(result.options["level"])
    numbers, texts = {}, {}
    for row in quoted_rows(result.table).to_dict("records"):
        benchmark = f"{row['benchmark']}.loss" if row.get("quantity") == "loss" else str(row["benchmark"])
        key = "/".join(["density", *(_UNNAMED.sub("_", part) for part in (str(row["reference"]), benchmark))])
        known, unknown = _KNOWN_END.get(row["bound"], ""), _OPEN_END.get(row["bound"])
        ends = {f"density{end}": row[f"density{end}"] for end in ("_lo", "_hi") if end != unknown}
        values = {"density": row[f"density{known}"], **ends, "n_eff": row[f"n_eff{known}"]}
        numbers |= {f"{key}/{name}": float(value) for name, value in values.items() if math.isfinite(value)}
        texts[key] = density_sentence(row, level)
    return numbers, texts


def log_to_wandb(result: Result, step: int, run: Any = None) -> None:
    """Log a model's density to a run of Weights & Biases, beside what else was logged at that step.

    A run goes forward only: a checkpoint that is evaluated late stands behind what was logged since. Charts of density
    have ``density/step`` as their axis, and show it at its own step.

    Parameters
    ----------
    result : DensityResult, RunDensities or BankEvaluation
        Of one model.
    step : int
        Step of the training.
    run : wandb.Run, optional
        The one of ``wandb.init`` by default.

    Raises
    ------
    InputError
        When no run is active.
    """
    if run is None:
        run = _imported("wandb").run
        if run is None:
            raise InputError("no run of Weights & Biases is active; call wandb.init first, or give run")
    numbers, texts = to_log(result)
    for names in ("density/*", "bank/*"):
        run.define_metric(names, step_metric="density/step")
    sentences = {f"{name}/sentence": text for name, text in texts.items()}
    run.log({"density/step": step, **numbers, **sentences}, step=step if step >= run.step else run.step + 1)


def log_to_mlflow(result: Result, step: int, run_id: str | None = None) -> None:
    """Log a model's density to a run of MLflow: numbers as metrics at a step, the latest sentence as a tag.

    Parameters
    ----------
    result : DensityResult, RunDensities or BankEvaluation
        Of one model.
    step : int
        Step of the training.
    run_id : str, optional
        The active run's by default.

    Raises
    ------
    InputError
        When no run is active.
    """
    mlflow = _imported("mlflow")
    if run_id is None:
        active = mlflow.active_run()
        if active is None:
            raise InputError("no run of MLflow is active; call mlflow.start_run first, or give run_id")
        run_id = active.info.run_id
    numbers, texts = to_log(result)
    mlflow.log_metrics(numbers, step=step, run_id=run_id)
    for name, text in texts.items():
        mlflow.MlflowClient().set_tag(run_id, name, text)


def log_to_tensorboard(result: Result, step: int, writer: Any) -> None:
    """Log a model's density to TensorBoard: numbers as scalars, the sentence as text.

    Parameters
    ----------
    result : DensityResult, RunDensities or BankEvaluation
        Of one model.
    step : int
        Step of the training.
    writer : SummaryWriter
        Of ``torch.utils.tensorboard``, or tensorboardX's.
    """
    numbers, texts = to_log(result)
    for name, value in numbers.items():
        writer.add_scalar(name, value, step)
    for name, text in texts.items():
        writer.add_text(name, text, step)


def _imported(name: str) -> Any:
    from importlib import import_module

    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise UnavailableError(f"{name} is not installed: pip install {name}") from error
