"""The laws of a ladder: loss in size and tokens, score in loss, how well each holds, and what they say of targets.

From the table of what was measured (a row per exported model and task) to the fits of each task, and from these to
references and to targets whose density the law says beforehand: does the measured one agree?
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from densing.core import Array, Column, FitError, InputError, Note, Table, validate, write_csv, write_text
from densing.scores.catalog import known_protocol
from densing.scores.evals import RunStore
from densing.scores.fit import LawFit, fit_law, spread
from densing.scores.ladder.arms import PLAIN
from densing.scores.ladder.behaviour import LOSS, behaviour_table, density_table, told
from densing.scores.ladder.corpus import FILMS
from densing.scores.ladder.folder import STORE, read_exports, read_ladder
from densing.scores.ladder.questions import CHOICES, PREFIX, SETS
from densing.scores.references import LADDER, fit_ladder, ladder_data

SOURCE = "densing-cpu"
MEASURED = Table(
    "measured ladder",
    (
        *LADDER.columns,
        Column("size", "text", "name of the size", required=True),
        Column("seed", "integer", "seed of the run", required=True, low=0),
        Column("target", "text", "empty, or the kind of target with a known answer", default=""),
        Column("arm", "text", "what was changed of the training; empty for a ladder without arms", default=""),
        Column("useful", "number", "share of the training tokens that is not noise", default="1", low=0, high=1),
        Column("n_items", "integer", "questions behind the row", default="0", low=0),
    ),
    key=LADDER.key,
)
# What our tasks store: lm-eval's accuracy, and the loss that densing computes from the samples.
_LOSS, _SCORE = ("bits_per_byte", "gold_bits_per_byte"), ("accuracy", "acc_norm", "acc")
# Chinchilla, and the paper's eq. 2, which has no irreducible term.
LOSS_LAWS = ("chinchilla", "densing-loss")
MEAN = "mean"
VALIDATION = "validation"
# Learnt all at once or not at all: a mean over sets should not jump with it.
EMERGENT = ("table",)
POOR_R2, POOR_ROLLOUT = 0.9, 0.1
LEAST_R2 = 0.05
"""A law of behaviour that explains less of its losses gives no density."""
# The kind of target that should have learnt nothing.
FLOOR = "shuffled"


def measured_table(exports: Iterable[Mapping[str, Any]], measurements: pd.DataFrame) -> pd.DataFrame:
    """Join what was trained with what was measured.

    Parameters
    ----------
    exports : iterable of mapping
        Descriptions, see :func:`densing.scores.ladder.read_exports`.
    measurements : pandas.DataFrame
        ``model, task, benchmark, metric, value, n_items, task_hash, file``; models are named as their exports. Where a
        task was asked with several sets of questions, the last set counts, for every model.

    Returns
    -------
    pandas.DataFrame
        Columns of :data:`MEASURED`: those of :data:`densing.scores.references.LADDER` and what tells targets apart.
        Targets are held out.

    Raises
    ------
    InputError
        When nothing that was trained has been measured.
    """
    described = {str(export["name"]): export for export in exports}
    # lm-eval's results files are named after the time of writing; ``date`` is only a day.
    dated = measurements.assign(name=[str(file).replace("\\", "/").split("/")[-1] for file in measurements["file"]])
    last = dated.sort_values("name", kind="stable").groupby("task")["task_hash"].last()
    # Other questions are another measurement.
    measurements = measurements[measurements["task_hash"].eq(measurements["task"].map(last))]
    rows = []
    for (model, task), group in measurements.groupby(["model", "task"], sort=True):
        loss, score = _value(group, _LOSS), _value(group, _SCORE)
        if str(model) not in described or loss is None or score is None:
            continue
        export = described[str(model)]
        benchmark = next((str(name) for name in group["benchmark"] if isinstance(name, str) and name), "")
        rows.append(
            {
                **{name: export[name] for name in ("run", "params_non_embedding", "tokens")},
                "task": benchmark or str(task).removeprefix(PREFIX),
                "bits_per_byte": loss,
                "accuracy": score,
                "stage": "final",
                "held_out": not own_run(export),
                "source": SOURCE,
                **{name: export[name] for name in ("size", "seed", "target")},
                "arm": export.get("arm", ""),
                "useful": export.get("useful", 1.0),
                "n_items": int(group["n_items"].max()),
            }
        )
    if not rows:
        raise InputError("no exported model has been evaluated; run `densing ladder eval` on this folder")
    return validate(pd.DataFrame(rows), MEASURED, "ladder")


def _value(group: pd.DataFrame, names: tuple[str, ...]) -> float | None:
    for name in names:
        values = pd.to_numeric(group.loc[group["metric"].eq(name), "value"], errors="coerce").dropna()
        if len(values):
            return float(values.iloc[0])
    return None


def validation_table(exports: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Return the validation losses of the ladder's own runs: ``run, size, seed, params_non_embedding, tokens, loss``.

    Losses are nats per token. Targets are left out, and of arms all but the plain one.
    """
    columns = ["run", "size", "seed", "params_non_embedding", "tokens"]
    rows = [
        {**{name: export[name] for name in columns}, "loss": export["loss"]["validation_nats_per_token"]}
        for export in exports
        if own_run(export)
    ]
    return pd.DataFrame(rows, columns=[*columns, "loss"])


def own_run(export: Mapping[str, Any]) -> bool:
    """Whether an export is the ladder's own: no target, and of no arm or the plain one."""
    return not export["target"] and (export.get("arm") or PLAIN) == PLAIN


@dataclass(frozen=True)
class TaskFit:
    """The laws of one task.

    Parameters
    ----------
    task : str
        Benchmark id, ``mean`` or ``validation``.
    tasks : tuple of str
        What a mean is taken over.
    losses : dict of str to LawFit
        Loss in (N, D) by name of the law; bits per byte, nats per token for ``validation``.
    two_step : LawFit or None
        Score in (N, D) by way of the loss; None where nothing was scored.
    points : pandas.DataFrame
        What a reference shows: ``model, params, tokens, bits_per_byte, score, score_se, held_out``.
    quality : pandas.DataFrame
        A row per law: ``law, r2, rollout_mean, rollout_worst``.
    notes : tuple of Note
        Where the task is not a power law, or at chance.
    """

    task: str
    tasks: tuple[str, ...]
    losses: dict[str, LawFit]
    two_step: LawFit | None
    points: pd.DataFrame
    quality: pd.DataFrame
    notes: tuple[Note, ...]

    @property
    def unit(self) -> str:
        """Of the losses."""
        if self.two_step is not None:
            return "bits/byte"
        return "nats/token" if self.task == VALIDATION else "bits/answer"

    def rows(self, level: float) -> list[dict[str, Any]]:
        """Return plain data per law: parameters with their intervals at a level, R2 and, of loss laws, the rollout."""
        rows = []
        for (law, fit), quality in zip(self.losses.items(), self.quality.to_dict("records"), strict=True):
            rows.append(
                {
                    "task": self.task,
                    "quantity": "loss",
                    "unit": self.unit,
                    "law": law,
                    "equation": fit.law.equation,
                    "status": fit.status,
                    "n": len(fit.y),
                    "runs": len(set(fit.options["clusters"])),
                    "r2": quality["r2"],
                    "rollout_mean": quality["rollout_mean"],
                    "rollout_worst": quality["rollout_worst"],
                    "params": fit.params,
                    "intervals": fit.intervals(level),
                }
            )
        if self.two_step is not None:
            fit = self.two_step
            rows.append(
                {
                    "task": self.task,
                    "quantity": "score",
                    "unit": "share",
                    "law": fit.law.name,
                    "equation": fit.law.equation,
                    "status": fit.status,
                    "n": len(fit.y),
                    "runs": len(set(fit.options["steps"][1]["options"]["clusters"])),
                    "r2": score_r2(fit),
                    "params": fit.params,
                    "intervals": fit.intervals(level),
                }
            )
        return rows


def score_r2(fit: LawFit) -> float:
    """Return R2 of the scores; NaN where they are all the same. The objective is half the sum of squared residuals."""
    total = float(((fit.y - fit.y.mean()) ** 2).sum())
    return 1 - 2 * fit.objective / total if total else float("nan")


def fit_tasks(measured: pd.DataFrame, *, draws: int = 1000, seed: int = 0) -> list[TaskFit]:
    """Fit every task of a measured ladder, and the mean over those that are not emergent.

    Loss: Chinchilla and the paper's eq. 2, summed Huber on log loss, bootstrap over whole runs, because the budgets of
    one run share a stable stage. Score: sigmoid in loss, as :func:`densing.scores.references.fit_ladder`.

    Source: arXiv 2412.04315, eqs. 2 and 3.

    Parameters
    ----------
    measured : pandas.DataFrame
        See :func:`densing.scores.ladder.measured_table`; held-out rows do not enter.
    draws : int
        Bootstrap draws.
    seed : int
        Seed of the draws.

    Raises
    ------
    FitError
        When there are too few runs for the laws.
    """
    own = measured[~measured["held_out"].astype(bool)]
    names = list(dict.fromkeys(own["task"]))
    groups: list[tuple[str, tuple[str, ...]]] = [(name, (name,)) for name in names]
    steady = tuple(name for name in names if name not in EMERGENT)
    if len(steady) > 1:
        groups.insert(0, (MEAN, steady))
    fits = []
    for name, tasks in groups:
        data = ladder_data(own, tasks)
        try:
            two_step, points = fit_ladder(data, draws, seed, "cluster")
        except FitError as error:
            raise FitError(f"task {name}: {error}") from error
        final = data.final.rename(columns={"bits_per_byte": "loss"})
        fit = _fit_losses(name, tasks, final, two_step, points, draws, seed)
        items = int(own.loc[own["task"].isin(tasks), "n_items"].min())
        fits.append(dataclasses.replace(fit, notes=(*fit.notes, *_chance_notes(name, final["accuracy"], items))))
    return fits


def fit_validation(losses: pd.DataFrame, *, draws: int = 1000, seed: int = 0) -> TaskFit:
    """Fit the validation loss, nats per token; there is no score to it.

    Parameters
    ----------
    losses : pandas.DataFrame
        See :func:`densing.scores.ladder.validation_table`.
    draws, seed
        As in :func:`fit_tasks`.
    """
    return _fit_losses(VALIDATION, (VALIDATION,), losses, None, pd.DataFrame(), draws, seed)


def fit_behaviour(behaviour: pd.DataFrame, *, draws: int = 1000, seed: int = 0) -> list[TaskFit]:
    """Fit the loss of behaviour, bits per answer, of the arms that were told it: a law for each task that has one.

    Parameters
    ----------
    behaviour : pandas.DataFrame
        See :func:`densing.scores.ladder.behaviour_table`.
    draws, seed
        As in :func:`fit_tasks`.

    Raises
    ------
    FitError
        When there are too few runs for the laws.
    """
    own = behaviour[behaviour["arm"].map(told).astype(bool)]
    return [
        _fit_losses(str(task), (str(task),), rows.rename(columns={LOSS: "loss"}), None, pd.DataFrame(), draws, seed)
        for task, rows in own.groupby("task", sort=True)
    ]


def density_laws(skills: Sequence[TaskFit]) -> dict[str, LawFit]:
    """Return the laws of behaviour that give densities, by task: those that explain some of their losses."""
    return {
        task.task: task.losses["chinchilla"]
        for task in skills
        if task.quality.set_index("law")["r2"]["chinchilla"] >= LEAST_R2
    }


def _fit_losses(
    name: str,
    tasks: tuple[str, ...],
    final: pd.DataFrame,
    two_step: LawFit | None,
    points: pd.DataFrame,
    draws: int,
    seed: int,
) -> TaskFit:
    losses = {law: fit_loss(final, law, draws=draws, seed=seed) for law in LOSS_LAWS}
    rows = []
    for law, fit in losses.items():
        # R2 of the log loss, and how the law fitted without the largest size misses it.
        log = np.log(fit.y)
        r2 = float(1 - np.sum(fit.residuals**2) / np.sum((log - log.mean()) ** 2))
        rows.append({"law": law, "r2": r2, **rollout_misses(law, final)})
    quality = pd.DataFrame(rows)
    best = quality.loc[quality["r2"].idxmax()]
    facts = {key: float(best[key]) for key in ("r2", "rollout_mean", "rollout_worst") if np.isfinite(best[key])}
    miss = facts.get("rollout_mean", 0.0)
    notes: tuple[Note, ...] = ()
    if not (best["r2"] >= POOR_R2 and abs(miss) <= POOR_ROLLOUT):
        text = (
            f"task {name}: no law of size and tokens fits well (R2 {best['r2']:.3f}, largest size missed by "
            f"{miss:+.1%}); its sizes are rough"
        )
        notes = (Note("no-power-law", "warning", text, facts),)
    return TaskFit(name, tasks, losses, two_step, points, quality, notes)


def fit_loss(final: pd.DataFrame, law: str = "chinchilla", *, draws: int = 0, seed: int = 0) -> LawFit:
    """Fit one law to losses in (N, D), with draws over whole runs.

    Parameters
    ----------
    final : pandas.DataFrame
        ``run, params_non_embedding, tokens, loss``.
    law : str
    draws, seed : int
    """
    return fit_law(
        law,
        {"params": final["params_non_embedding"], "tokens": final["tokens"]},
        final["loss"],
        bootstrap=draws,
        scheme="cluster",
        clusters=final["run"].to_numpy(),
        seed=seed,
    )


def rollout_misses(law: str, final: pd.DataFrame) -> dict[str, float]:
    """Fit the smaller sizes, predict the largest, and return the mean and the worst relative miss.

    Parameters
    ----------
    law : str
        Name of a loss law.
    final : pandas.DataFrame
        ``run, params_non_embedding, tokens, loss``.

    Returns
    -------
    dict
        ``rollout_mean`` and ``rollout_worst`` of (predicted - measured) / measured, the worst with its sign; NaN where
        the smaller sizes are too few.
    """
    largest = final["params_non_embedding"].eq(final["params_non_embedding"].max())
    held_out = final[largest]
    try:
        fit = fit_loss(final[~largest], law)
    except (FitError, InputError):
        return {"rollout_mean": float("nan"), "rollout_worst": float("nan")}
    x = {"params": held_out["params_non_embedding"].to_numpy(float), "tokens": held_out["tokens"].to_numpy(float)}
    miss = fit.predict(x) / held_out["loss"].to_numpy(float) - 1
    return {"rollout_mean": float(miss.mean()), "rollout_worst": float(miss[np.argmax(np.abs(miss))])}


def _chance_notes(task: str, accuracy: Sequence[float] | pd.Series, items: int) -> list[Note]:
    """Say when most models answer no better than by guessing."""
    chance = 1 / CHOICES
    limit = chance + 3 * (chance * (1 - chance) / max(items, 1)) ** 0.5
    share = float(np.mean(np.asarray(accuracy, dtype=float) <= limit))
    if share <= 0.5:
        return []
    text = f"task {task}: {share:.0%} of the models are at chance; its reference is not informative about them"
    return [Note("at-chance", "warning", text, {"share": share, "chance": chance, "items": items})]


def task_reference(fitted: TaskFit, tokens: float, title: str) -> LawFit:
    """Return the two-step fit with the description that makes its JSON a reference for ``--reference``.

    Parameters
    ----------
    fitted : TaskFit
        A task with scores.
    tokens : float
        D0: the training tokens at which the reference is read.
    title : str
        One line for people.

    Raises
    ------
    InputError
        When the task has no scores.
    """
    if fitted.two_step is None:
        raise InputError(f"task {fitted.task}: has losses only; a reference needs scores")
    about = {
        "name": "ladder",
        "title": title,
        "benchmark": fitted.task,
        "benchmarks": list(fitted.tasks),
        "evaluator": "lm-eval",
        # What our own questions ask is known; of other tasks the table of measurements does not say.
        "protocols": {name: known_protocol("densing-cpu", name).to_dict() for name in fitted.tasks if name in SETS},
        "points": fitted.points.to_dict("records"),
        "given": {"tokens": float(tokens)},
        "notes": [note.to_dict() for note in fitted.notes],
    }
    return dataclasses.replace(fitted.two_step, meta={"reference": about, "licence": "", "sources": []})


@dataclass(frozen=True)
class LadderFit:
    """Everything that a ladder's folder says.

    Parameters
    ----------
    preset : str
    exports : list of dict
        Descriptions of the exported models.
    tasks : tuple of TaskFit
        The validation loss first.
    measured : pandas.DataFrame or None
        See :func:`densing.scores.ladder.measured_table`; None where no questions were asked.
    targets : pandas.DataFrame
        See :func:`densing.scores.ladder.check_targets`, with the task before; empty where there is none.
    notes : tuple of Note
    behaviour : pandas.DataFrame, optional
        Of a ladder of films: see :func:`densing.scores.ladder.behaviour.density_table`.
    """

    preset: str
    exports: list[dict[str, Any]]
    tasks: tuple[TaskFit, ...]
    measured: pd.DataFrame | None
    targets: pd.DataFrame
    notes: tuple[Note, ...]
    behaviour: pd.DataFrame | None = None

    @property
    def tokens(self) -> float:
        """D0: the largest budget of the ladder's own runs."""
        return float(max(export["tokens"] for export in self.exports if own_run(export)))

    def write(self, out: Path) -> list[str]:
        """Write a JSON file per task (a reference if it has scores) and ``measured.csv``; return the JSON files."""
        if self.measured is not None:
            write_csv(self.measured, out / "measured.csv")
        if self.behaviour is not None:
            write_csv(self.behaviour, out / "behaviour.csv")
        own = [export for export in self.exports if own_run(export)]
        sizes = sorted({int(export["params_non_embedding"]) for export in own})
        title = f"ladder of preset {self.preset} ({sizes[0]:,} to {sizes[-1]:,} parameters, {len(own)} models)"
        files = []
        for task in self.tasks:
            fit = task.losses["chinchilla"] if task.two_step is None else task_reference(task, self.tokens, title)
            path = out / f"{task.task}.json"
            write_text(path, fit.to_json() + "\n")
            files.append(str(path))
        return files


def fit_folder(folder: Path, *, draws: int = 1000, seed: int = 0, level: float = 0.95) -> LadderFit:
    """Fit everything that a ladder's folder holds, and compare its targets with what the loss law says of them.

    Parameters
    ----------
    folder : Path
        The ladder.
    draws, seed
        As in :func:`fit_tasks`.
    level : float
        Level of the targets' intervals.

    Raises
    ------
    InputError
        When the folder holds no ladder, or questions were asked and none of its models.
    FitError
        When there are too few runs for the laws.
    """
    about, exports = read_ladder(folder), list(read_exports(folder))
    tasks = [fit_validation(validation_table(exports), draws=draws, seed=seed)]
    notes: list[Note] = []
    measured, targets, behaviour = None, pd.DataFrame(), None
    stored = RunStore(folder / STORE).measurements() if (folder / STORE).is_dir() else None
    if stored is not None and about.get("corpus") == FILMS:
        known = behaviour_table(exports, stored)
        skills = fit_behaviour(known, draws=draws, seed=seed)
        behaviour = density_table(known, density_laws(skills), float(known["tokens"].max()), level)
        tasks += skills
    elif stored is not None:
        measured = measured_table(exports, stored)
        tasks += fit_tasks(measured, draws=draws, seed=seed)
        targets = _target_table(tasks, measured, level, seed)
    else:
        notes.append(
            Note("not-evaluated", "warning", f"{folder}: no benchmark results yet; run `densing ladder eval {folder}`")
        )
    notes += [note for task in tasks for note in task.notes]
    return LadderFit(about["preset"], exports, tuple(tasks), measured, targets, tuple(notes), behaviour)


def _target_table(tasks: Sequence[TaskFit], measured: pd.DataFrame, level: float, seed: int) -> pd.DataFrame:
    """Check the targets of every task that has scores."""
    targets = measured[measured["target"].fillna("").ne("")]
    own = measured[~measured["held_out"].astype(bool)]
    if targets.empty:
        return pd.DataFrame()
    about = targets.drop_duplicates("run").set_index("run")[["target", "size", "useful"]]
    tables = []
    for task in tasks:
        if task.two_step is None:
            continue
        points = (
            ladder_data(targets, task.tasks).held_out.rename(columns={"bits_per_byte": "loss"}).join(about, on="run")
        )
        points["useful_ladder"] = float(own["useful"].iloc[0])
        table = check_targets(task.losses["chinchilla"], points, float(own["tokens"].max()), level=level, seed=seed)
        table.insert(0, "task", task.task)
        tables.append(table)
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()


def check_targets(
    fit: LawFit, targets: pd.DataFrame, tokens: float, *, level: float = 0.95, seed: int = 0
) -> pd.DataFrame:
    """Compare the loss and the density measured for each kind of target with what the loss law says.

    A target of N parameters trained on D tokens, a share u of them useful against u0 in the ladder, should have the
    loss L(N, D u / u0), and so the effective parameters that L(., D0) needs for it. A shuffled target should be at the
    floor: its effective parameters below the smallest size of the ladder.

    Parameters
    ----------
    fit : LawFit
        Loss in (N, D) of the ladder.
    targets : pandas.DataFrame
        Rows of one task: ``target, size, run, params_non_embedding, tokens, useful, useful_ladder, loss, accuracy``.
    tokens : float
        D0.
    level : float
        Confidence level of the intervals.
    seed : int
        Seed of the noise.

    Returns
    -------
    pandas.DataFrame
        A row per kind of target, size and budget: ``target, size, tokens, runs, accuracy, loss, loss_law, loss_law_lo,
        loss_law_hi, density, density_lo, density_hi, density_law, density_law_lo, density_law_hi, agrees``. The
        interval of the law's loss is one for new runs: it holds the law's draws, its misfit and the noise of as many
        runs as were trained. Densities divide by N and are infinite where no size reaches the loss at D0.
    """
    rows = []
    for (kind, size, trained), group in targets.groupby(["target", "size", "tokens"], sort=True):
        first = group.iloc[0]
        params = float(first["params_non_embedding"])
        useful_tokens = float(first["tokens"]) * float(first["useful"]) / float(first["useful_ladder"])
        x = {"params": np.array([params]), "tokens": np.array([useful_tokens])}
        measured = float(np.exp(np.log(group["loss"].to_numpy(float)).mean()))
        noise = np.exp(_run_noise(fit, len(group), seed))
        predicted, draws = float(fit.law.predict(fit.theta, x)[0]), fit.law.predict(fit.draws, x)[:, 0]
        low, high = (float(end) for end in spread(draws * noise, level))
        row: dict[str, Any] = {
            "accuracy": float(group["accuracy"].mean()),
            "loss": measured,
            "loss_law": predicted,
            "loss_law_lo": low,
            "loss_law_hi": high,
            **_density("density", fit, measured, measured * noise, tokens, params, level),
            **_density("density_law", fit, predicted, draws, tokens, params, level),
            "agrees": low <= measured <= high,
        }
        if kind == FLOOR:
            lowest = fit.domain["params"][0] / params
            row |= {name: 0.0 for name in row if name.startswith("density_law")}
            row |= {name: float("nan") for name in row if name.startswith("loss_law")}
            row["agrees"] = row["density_hi"] < lowest
        rows.append({"target": kind, "size": size, "tokens": trained, "runs": len(group), **row})
    return pd.DataFrame(rows)


def _density(
    name: str, fit: LawFit, loss: float, draws: Array, tokens: float, size: float, level: float
) -> dict[str, float]:
    """Return a density with its ends: the size that the law needs for the loss at D0, over the size there is."""
    point = float(fit.law.invert(fit.theta, loss, tokens=tokens)[0])
    low, high = spread(fit.law.invert(fit.draws, draws, tokens=tokens)[0], level)
    return {name: point / size, f"{name}_lo": float(low) / size, f"{name}_hi": float(high) / size}


def _run_noise(fit: LawFit, runs: int, seed: int) -> Array:
    """Return draws of the log error of the law for the mean of some new runs, with the width of Student's t.

    What the law gets wrong about a size and a budget is shared by all runs there and does not average out; what runs
    differ by does. Both are estimated from the residuals, by analysis of variance over sizes and budgets.
    """
    cells = pd.Series(fit.residuals).groupby([fit.x["params"], fit.x["tokens"]])
    counts = cells.size()
    spare = len(fit.residuals) - len(counts)
    within = float(((fit.residuals - cells.transform("mean")) ** 2).sum() / spare) if spare else 0.0
    freedom = max(len(counts) - len(fit.theta), 1)
    between = max(float((cells.mean() ** 2).sum() / freedom) - within / float(counts.mean()), 0.0)
    rng = np.random.default_rng([seed, 7])
    scale = np.sqrt((between + within / runs) * freedom / rng.chisquare(freedom, size=len(fit.draws)))
    return np.asarray(scale * rng.standard_normal(len(fit.draws)))
