"""``densing ladder fit``: the laws of a ladder's folder, and the targets whose answer they say."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from densing.cli.laddering import read_description
from densing.cli.laddering_eval import STORE
from densing.core import Note, write_csv, write_text

if TYPE_CHECKING:
    import pandas as pd

    from densing.scores.ladder import TaskFit


def fit_ladder_folder(folder: Path, out: Path, how: tuple[int, int, float]) -> dict[str, Any]:
    """Fit everything that a ladder's folder holds, write it below ``out``, and return what to show.

    Parameters
    ----------
    folder : Path
        The ladder.
    out : Path
        Where the fits go: one JSON file per task, ``measured.csv`` and ``targets.csv``.
    how : (int, int, float)
        Bootstrap draws, seed, level.
    """
    from densing.scores.ladder import fit_tasks, fit_validation, read_exports, validation_table

    draws, seed, level = how
    about = read_description(folder)
    exports = list(read_exports(folder))
    fitted = [fit_validation(validation_table(exports), draws=draws, seed=seed)]
    notes = []
    measured = _measured(folder, exports)
    targets: list[dict[str, Any]] = []
    if measured is None:
        notes.append(
            Note("not-evaluated", "warning", f"{folder}: no questions asked yet; run `densing ladder eval {folder}`")
        )
    else:
        fitted += fit_tasks(measured, draws=draws, seed=seed)
        targets = _targets(fitted, measured, level, seed)
        write_csv(measured, out / "measured.csv")
    files = _write(fitted, out, _title(about, exports), _largest(exports))
    notes += [note for task in fitted for note in task.notes]
    return {
        "folder": str(folder),
        "preset": about["preset"],
        "models": len(exports),
        "tokens": _largest(exports),
        "fits": [row for task in fitted for row in _rows(task, level)],
        "targets": targets,
        "files": files,
        "notes": notes,
    }


def _measured(folder: Path, exports: list[dict[str, Any]]) -> pd.DataFrame | None:
    from densing.scores.evals import RunStore
    from densing.scores.ladder import measured_table

    if not (folder / STORE).is_dir():
        return None
    return measured_table(exports, RunStore(folder / STORE).measurements())


def _largest(exports: list[dict[str, Any]]) -> float:
    """Return D0: the largest budget of the ladder's own runs."""
    return float(max(export["tokens"] for export in exports if not export["target"]))


def _title(about: dict[str, Any], exports: list[dict[str, Any]]) -> str:
    own = [export for export in exports if not export["target"]]
    sizes = sorted({int(export["params_non_embedding"]) for export in own})
    return f"ladder of preset {about['preset']} ({sizes[0]:,} to {sizes[-1]:,} parameters, {len(own)} models)"


def _targets(fitted: list[TaskFit], measured: pd.DataFrame, level: float, seed: int) -> list[dict[str, Any]]:
    from densing.scores.ladder import check_targets
    from densing.scores.references import ladder_data

    held = measured[measured["held_out"].astype(bool)]
    own = measured[~measured["held_out"].astype(bool)]
    rows: list[dict[str, Any]] = []
    for task in fitted:
        if task.two_step is None or held.empty:
            continue
        about = held.drop_duplicates("run").set_index("run")[["target", "size", "useful"]]
        points = ladder_data(held, task.tasks).held_out.rename(columns={"bits_per_byte": "loss"}).join(about, on="run")
        points["useful_ladder"] = float(own["useful"].iloc[0])
        table = check_targets(task.losses["chinchilla"], points, float(own["tokens"].max()), level=level, seed=seed)
        table.insert(0, "task", task.task)
        rows += table.to_dict("records")
    return rows


def _write(fitted: list[TaskFit], out: Path, title: str, tokens: float) -> list[str]:
    from densing.scores.ladder import ruler

    files = []
    for task in fitted:
        fit = task.losses["chinchilla"] if task.two_step is None else ruler(task, tokens, title)
        path = out / f"{task.task}.json"
        write_text(path, fit.to_json() + "\n")
        files.append(str(path))
    return files


def _rows(task: TaskFit, level: float) -> list[dict[str, Any]]:
    """Return a row per law of a task, for JSON: parameters, intervals, R2 and rollout."""
    rows = []
    for (law, fit), quality in zip(task.losses.items(), task.quality.to_dict("records"), strict=True):
        rows.append(
            {
                "task": task.task,
                "quantity": "loss",
                "unit": "nats/token" if task.two_step is None else "bits/byte",
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
    if task.two_step is not None:
        rows.append(_score_row(task, level))
    return rows


def _score_row(task: TaskFit, level: float) -> dict[str, Any]:
    fit = task.two_step
    assert fit is not None
    spread = float(((fit.y - fit.y.mean()) ** 2).sum())
    return {
        "task": task.task,
        "quantity": "score",
        "unit": "share",
        "law": fit.law.name,
        "equation": fit.law.equation,
        "status": fit.status,
        "n": len(fit.y),
        "runs": len(set(fit.options["steps"][1]["options"]["clusters"])),
        "r2": 1 - 2 * fit.objective / spread if spread else float("nan"),
        "params": fit.params,
        "intervals": fit.intervals(level),
    }


def show_fits(result: dict[str, Any]) -> None:
    """Print the fits and the targets as tables, notes below."""
    import pandas as pd

    from densing.cli.output import emit_table, say, show_notes

    laws = pd.DataFrame(result["fits"])
    shown = ["task", "quantity", "law", "unit", "n", "runs", "r2", "rollout_mean", "rollout_worst", "status"]
    emit_table(laws[shown], f"Laws of {result['folder']}")
    if result["targets"]:
        columns = ["task", "target", "size", "tokens", "runs", "loss", "loss_law_lo", "loss_law_hi", "density",
                   "density_lo", "density_hi", "density_law", "agrees"]  # fmt: skip
        emit_table(pd.DataFrame(result["targets"])[columns], "Targets: measured, and what the loss law says")
    show_notes(result["notes"])
    say(f"wrote {len(result['files'])} fits below {Path(result['files'][0]).parent}")
