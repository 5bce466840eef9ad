"""MMLU from its 57 subjects, where a harness stored each on its own and no mean of them.

lm-eval before 0.4 (``hendrycksTest-anatomy``), OpenCompass (``lukaemon_mmlu_anatomy``), HELM
(``mmlu:subject=anatomy``), lighteval and lm-eval on a choice of subjects write a result per subject.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from densing.core import Note

if TYPE_CHECKING:
    import pandas as pd

BENCHMARK = "mmlu"
# Source: D. Hendrycks et al., Measuring Massive Multitask Language Understanding, arXiv 2009.03300, appendix B.
_SUBJECTS = (
    "abstract_algebra anatomy astronomy business_ethics clinical_knowledge college_biology college_chemistry "
    "college_computer_science college_mathematics college_medicine college_physics computer_security "
    "conceptual_physics econometrics electrical_engineering elementary_mathematics formal_logic global_facts "
    "high_school_biology high_school_chemistry high_school_computer_science high_school_european_history "
    "high_school_geography high_school_government_and_politics high_school_macroeconomics high_school_mathematics "
    "high_school_microeconomics high_school_physics high_school_psychology high_school_statistics "
    "high_school_us_history high_school_world_history human_aging human_sexuality international_law jurisprudence "
    "logical_fallacies machine_learning management marketing medical_genetics miscellaneous moral_disputes "
    "moral_scenarios nutrition philosophy prehistory professional_accounting professional_law professional_medicine "
    "professional_psychology public_relations security_studies sociology us_foreign_policy virology world_religions"
)
SUBJECTS = tuple(_SUBJECTS.split())
_TASK = re.compile(rf"^(hendrycksTest-|lukaemon_mmlu_|mmlu:subject=|mmlu:|mmlu_)({'|'.join(SUBJECTS)})$")
# The group in which a harness itself stores the mean.
_OWN_MEANS = {"lukaemon_mmlu_": "mmlu", "mmlu:": "mmlu:_average", "mmlu_": "mmlu"}
# What makes one measurement of the subjects, and what a mean keeps where they agree.
_SAME = ["model", "metric", "filter"]
_KEPT = ["n_shot", "form", "cot", "limit", "task_version", "harness_version", "date", "digest"]


def with_means(table: pd.DataFrame) -> tuple[pd.DataFrame, list[Note]]:
    """Return a measurement table with MMLU's mean beside its subjects, where all 57 were measured in one way.

    Subjects weigh as they have questions where every one states their number, and else alike, as the Open LLM
    Leaderboard and HELM do. Shots, form, metric and versions are kept where the subjects agree.

    Parameters
    ----------
    table : pandas.DataFrame
        Columns of :func:`densing.scores.evals.measurement_frame`.

    Returns
    -------
    table : pandas.DataFrame
        With a group row ``hendrycksTest-*`` (or the like), benchmark ``mmlu``, unless its model has a row of mmlu.
    notes : list of Note
        How subjects were weighed, and where some are missing.

    Examples
    --------
    >>> from densing.scores.evals.measurements import measurement_frame, metric_row, task_cells
    >>> rows = [metric_row(task_cells(model="m", task=f"hendrycksTest-{name}", n_shot=5.0), "acc", number / 100)
    ...         for number, name in enumerate(SUBJECTS)]
    >>> means, notes = with_means(measurement_frame(rows))
    >>> means.loc[means["is_group"], ["task", "benchmark", "value", "n_shot"]].round(6).values.tolist()
    [['hendrycksTest-*', 'mmlu', 0.28, 5.0]]
    >>> notes[0].message
    'm: mmlu is the mean of its 57 subjects hendrycksTest-*, which weigh alike (numbers of questions are not stated)'
    """
    import pandas as pd

    matches = table["task"].astype(str).str.extract(_TASK)
    subjects = table.assign(prefix=matches[0], subject=matches[1])[matches[1].notna()]
    whole = set(table.loc[(table["benchmark"] == BENCHMARK) | (table["task"] == BENCHMARK), "model"])
    rows: list[dict[str, Any]] = []
    notes: dict[tuple[str, str], Note] = {}
    for (model, metric, *_, prefix), part in subjects.groupby([*_SAME, "prefix"], sort=False):
        if model in whole:
            continue
        name = f"{prefix}*"
        part = part.drop_duplicates("subject")
        missing = len(SUBJECTS) - len(part)
        about: dict[str, Any] = {"model": model, "task": name, "subjects": len(part)}
        if missing:
            message = f"{model}: mmlu has no mean, because {missing} of its {len(SUBJECTS)} subjects {name} are missing"
            notes.setdefault((str(model), name), Note("subjects-missing", "warning", message, about))
            continue
        if part["value"].isna().any():
            continue
        row = _mean(part)
        rows.append({**row, "task": name, "benchmark": BENCHMARK, "is_group": True})
        counted = "as they have questions" if row["n_items"] > 0 else "alike (numbers of questions are not stated)"
        message = f"{model}: mmlu is the mean of its {len(SUBJECTS)} subjects {name}, which weigh {counted}"
        notes[str(model), name] = Note("mean-of-subjects", "info", message, {**about, "metric": metric})
    if not rows:
        return table, list(notes.values())
    means = pd.DataFrame(rows, columns=table.columns).astype(table.dtypes.to_dict())
    return pd.concat([table, means], ignore_index=True), list(notes.values())


def _mean(part: pd.DataFrame) -> dict[str, Any]:
    """Return the row of a mean: Σw·x and √(Σw²·se²), w = n/Σn or 1/57."""
    counts = part["n_items"].to_numpy(dtype=float)
    counted = bool((counts > 0).all())
    weights = counts / counts.sum() if counted else np.full(len(part), 1.0 / len(part))
    first = part.iloc[0].to_dict()
    differ = [name for name in _KEPT if len(part[name].drop_duplicates()) > 1]
    return {
        **first,
        **{name: math.nan if part[name].dtype.kind == "f" else "" for name in differ},
        "value": float(weights @ part["value"].to_numpy(dtype=float)),
        "stderr": float(np.sqrt(np.sum((weights * part["stderr"].to_numpy(dtype=float)) ** 2))),
        "n_items": float(counts.sum()) if counted else math.nan,
        "definition": f"mean over {len(part)} subjects: {first['definition']}",
        "task_hash": "",
    }


def in_means(table: pd.DataFrame) -> set[str]:
    """Return the tasks that are subjects of a mean in the table, ours or their harness's: they count there.

    Examples
    --------
    >>> import pandas as pd
    >>> in_means(pd.DataFrame({"model": "m", "task": ["mmlu", "mmlu_anatomy", "hendrycksTest-anatomy"]}))
    {'mmlu_anatomy'}
    """
    there = set(zip(table["model"], table["task"].astype(str), strict=True))
    found = set()
    for model, task in there:
        if match := _TASK.match(task):
            names = (f"{match[1]}*", _OWN_MEANS.get(match[1], ""))
            if any((model, name) in there for name in names):
                found.add(task)
    return found
