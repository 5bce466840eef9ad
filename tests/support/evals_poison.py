"""Poisoned task folders for tests of safety: whatever in them runs leaves a marker."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

GOOD = """
task: poisoned
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: ["yes", "no"]
doc_to_target: 0
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""


class Poisoned:
    """A task folder with a small data set and a Python file, ``evil.py``, that leaves the marker when it runs."""

    def __init__(self, place: Path) -> None:
        self.folder = place / "tasks"
        self.marker = place / "HACKED"
        self.folder.mkdir()
        code = f"from pathlib import Path\nPath({str(self.marker)!r}).touch()\n"
        (self.folder / "evil.py").write_text(code + "def f(*a, **k):\n    return a[0] if a else None\n")
        (self.folder / "data.jsonl").write_text('{"question": "a"}\n{"question": "b"}\n')


def write(folder: Path, text: str, name: str = "t.yaml") -> Path:
    """Write a task file; DATA stands for the data set's path."""
    file = folder / name
    file.write_text(text.replace("DATA", str(folder / "data.jsonl")))
    return file


def load(folder: Path, task: str = "poisoned") -> Any:
    """Load a task as lm-eval does, its documents from the folder."""
    import datasets
    from lm_eval.tasks import TaskManager

    with patch.object(datasets.config, "HF_DATASETS_CACHE", folder / "cache"):
        return TaskManager(include_path=str(folder), include_defaults=False).load([task])["tasks"][task]


def built_in(name: str) -> Path:
    """A file or folder among lm-eval's own tasks."""
    import lm_eval

    return Path(lm_eval.__file__).parent / "tasks" / name
