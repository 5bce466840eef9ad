"""A reader of another harness to copy: a file in ``densing/scores/evals/readers/``, named in ``READERS`` there."""

import pandas as pd

from densing.scores.evals.measurements import (
    Measurements,
    checked_rows,
    measurement_frame,
    metric_row,
    model_frame,
    task_cells,
)


def accepts(content):
    """Return whether content is of this form: ``{"harness": "toy", "model": NAME, "tasks": {TASK: SHARE}}``."""
    return isinstance(content, dict) and content.get("harness") == "toy"


def read(content, path):
    """Return what the file measures."""
    about = task_cells(model=content["model"], harness="toy", file=str(path))
    rows, notes = checked_rows(
        metric_row({**about, "task": task}, "acc", value) for task, value in content["tasks"].items()
    )
    models = model_frame([{"model": content["model"]}])
    return Measurements(measurement_frame(rows), pd.DataFrame(), models, tuple(notes))
