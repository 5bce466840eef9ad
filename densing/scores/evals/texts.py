"""What the items of an evaluation say: the text of each document, and the short fields beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from densing.core import InputError, Note
from densing.scores.evals.items import Sample, parse_sample, read_samples, task_and_stamp

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ["task", "doc_id", "doc_hash", "text", "fields", "bytes"]
LONGEST_FIELD = 40
"""Characters of a text that may name a kind of items (a subject, a level); a longer one is a text only."""
DEEPEST = 4


def read_texts(path: Path | str) -> tuple[pd.DataFrame, list[Note]]:
    """Return the documents of stored evaluations, each once.

    Parameters
    ----------
    path : path
        A run of ours, or a folder of lm-eval's ``samples_*.jsonl``.

    Returns
    -------
    texts : pandas.DataFrame
        Columns :data:`COLUMNS`: ``text`` holds every text of the document one below the other (of a document without
        any, its prompt and its choices; of a prompt, what follows its last blank line: examples are not words of the
        item), ``fields`` its short texts and small whole numbers by name,
        ``bytes`` how long it is as text.
    notes : list of Note
        Files that could not be read.

    Raises
    ------
    InputError
        When no samples are stored there.
    """
    import pandas as pd

    folder = Path(path)
    files = sorted(folder.rglob("samples_*.jsonl")) if folder.is_dir() else []
    if not files:
        raise InputError(
            f"{folder}: no documents stored there (samples_*.jsonl); give runs of densing eval, or of lm-eval with "
            "--log_samples"
        )
    rows: dict[tuple[str, int, str], dict[str, Any]] = {}
    notes = []
    for file in files:
        stamped = task_and_stamp(file.name)
        task = stamped[0] if stamped else file.stem
        try:
            for raw in read_samples(file):
                sample = parse_sample(raw, task)
                key = (task, sample.doc_id, sample.doc_hash)
                if key not in rows:
                    text, fields = "\n".join(_texts(sample)), dict(_fields(sample.doc))
                    size = len(text.encode("utf-8", "backslashreplace"))
                    rows[key] = dict(zip(COLUMNS, (*key, text, fields, size), strict=True))
        except InputError as error:
            notes.append(Note("texts-left-out", "warning", f"{file}: {error}; its documents are left out"))
    return pd.DataFrame(list(rows.values()), columns=COLUMNS), notes


def _texts(sample: Sample) -> list[str]:
    request = sample.requests[0] if sample.requests else ()
    prompt = str(request[0]) if request else ""
    # A document may hold the whole prompt: its examples are those of every other item, and no words of this one.
    found = [_question(text) if text == prompt else text for text in _strings(sample.doc) if text.strip()]
    if found:
        return found
    choices = [str(request[1]) for request in sample.requests if len(request) > 1 and isinstance(request[1], str)]
    return [_question(prompt), *choices]


def _question(prompt: str) -> str:
    """Return what follows the last blank line: examples come before it."""
    return prompt.rpartition("\n\n")[2]


def _strings(value: Any, depth: int = 0) -> Iterator[str]:
    """Yield the texts of a document, of lists and objects inside it too."""
    if isinstance(value, str):
        yield value
    elif depth < DEEPEST and isinstance(value, Mapping | list | tuple):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _strings(part, depth + 1)


def _fields(doc: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in doc.items():
        short = isinstance(value, str) and 0 < len(value.strip()) <= LONGEST_FIELD
        if short or (isinstance(value, int) and abs(value) < 1000):
            yield str(name), str(value).strip()
