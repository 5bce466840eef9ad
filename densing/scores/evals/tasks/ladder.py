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

Source: Bhagia et al., arXiv 2412.04403, section 2; allenai/OLMo-ladder, ``src/scaling/utils.py``.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

from densing.scores.evals.tasks.wheel import Doc, mmlu_docs, ready_docs

Answer = tuple[float, bool]


def load_ready(requests: str, **_metadata: Any) -> dict[str, Any]:
    """Return the documents of a task that the wheel carries ready-made (``requests``: task and variant)."""
    task, _, variant = requests.partition("/")
    return _dataset(ready_docs(task, variant), task)


def load_mmlu(**_metadata: Any) -> dict[str, Any]:
    """Return the documents of MMLU's test split."""
    return _dataset(mmlu_docs("test"), "mmlu")


def _dataset(docs: Sequence[Doc], task: str) -> dict[str, Any]:
    import datasets

    return {"test": datasets.Dataset.from_list(sorted(docs, key=lambda doc: _rank(task, doc["id"])))}


def _rank(task: str, identity: str) -> bytes:
    # A hash, not a generator: the order must not depend on a library's release.
    return hashlib.sha256(f"{task}/{identity}".encode()).digest()


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
