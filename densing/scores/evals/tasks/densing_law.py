r"""What the task files of the suite densing-law call: the loss data of the densing law's authors.

A document is an instruction and an answer: of multiple choice the question with all options, answered by a written
analysis and the label; of other problems the question, answered by its steps and the result. The loss is conditional,
:math:`-\log p(\text{answer} \mid \text{instruction})`: of the answer's tokens only. Bits per byte are compared across
tokenizers; nats per token, which the authors fit with one tokenizer for all models, are ``gold_nats_per_token`` of the
results. Whether they pool tokens over a benchmark or average documents first, they do not say.

**Where from.** ``openbmb/DensingLaw-ScalingBench`` on the hub (Apache-2.0), or a copy of it: ``--metadata
densing_law=FOLDER``. The files are recognised by the benchmark in their names, texts by the columns ``input`` and
``output``, which are the words of the data card. The files themselves were not at hand when this was written: where
columns have other names, the error lists them, and ``--metadata densing_law_input=...,densing_law_output=...`` says
which they are.

Source: Xiao et al., arXiv 2412.04315, section 2; the data card of openbmb/DensingLaw-ScalingBench.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from densing.core import InputError, UnavailableError, read_json
from densing.scores.evals.items import read_samples
from densing.scores.evals.tasks.ladder import Answer, Doc, fixed_order

# As in ladder.py: what stands for this file in the keys of stored results.
REVISION = "densing-law-1"
REPOSITORY = "openbmb/DensingLaw-ScalingBench"
# How each benchmark may be written in the name of a file or folder, without signs.
NAMES = {
    "mmlu": ("mmlu",),
    "bbh": ("bbh", "bigbenchhard"),
    "math": ("math",),
    "mbpp": ("mbpp",),
    "humaneval": ("humaneval",),
}
_SUFFIXES = (".jsonl", ".json", ".parquet")


def load(
    source: str,
    densing_law: str | None = None,
    densing_law_input: str = "input",
    densing_law_output: str = "output",
    **_metadata: Any,
) -> dict[str, Any]:
    """Return the documents of one benchmark: ``id``, ``context`` and ``answer``.

    Parameters
    ----------
    source : str
        A key of :data:`NAMES`.
    densing_law : str, optional
        A copy of the data set; downloaded when left out.
    densing_law_input, densing_law_output : str
        Columns of the instruction and of the answer.

    Raises
    ------
    InputError
        When no file is of that benchmark, or a row lacks its texts; file, row and columns are named.
    UnavailableError
        When there is no copy, and the hub cannot be reached.
    """
    folder = Path(densing_law).expanduser() if densing_law else _download()
    if not folder.is_dir():
        raise InputError(f"densing_law={densing_law}: no such folder; give a copy of {REPOSITORY}")
    files = [path for path in sorted(folder.rglob("*")) if path.suffix in _SUFFIXES]
    own = [path for path in files if benchmark_of(path.relative_to(folder)) == source]
    if not own:
        there = ", ".join(str(path.relative_to(folder)) for path in files[:8]) or "no .jsonl, .json or .parquet"
        raise InputError(f"{folder}: no file named after {source}; there are {there}")
    columns = (densing_law_input, densing_law_output)
    docs = [
        _document(row, f"{path}, row {number}", f"{path.relative_to(folder)}/{number}", columns)
        for path in own
        for number, row in enumerate(_rows(path), start=1)
    ]
    if not docs:
        raise InputError(f"{', '.join(map(str, own))}: no documents")
    return fixed_order(docs, f"densing_law/{source}")


def benchmark_of(path: Path) -> str:
    """Return which benchmark a file belongs to, by the first part of its path that begins with one; else empty.

    Examples
    --------
    >>> benchmark_of(Path("data/MMLU/high_school_mathematics.jsonl")), benchmark_of(Path("human-eval_cot.json"))
    ('mmlu', 'humaneval')
    >>> benchmark_of(Path("high_school_mathematics.jsonl"))
    ''
    """
    for part in path.parts:
        plain = re.sub(r"[^a-z0-9]", "", part.lower())
        for name, spellings in NAMES.items():
            if plain.startswith(spellings):
                return name
    return ""


def _download() -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(REPOSITORY, repo_type="dataset"))
    except Exception as error:  # the client raises errors of four libraries
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise UnavailableError(
            f"{REPOSITORY} cannot be downloaded ({reason}); fetch it where there is a network (hf download "
            f"{REPOSITORY} --repo-type dataset --local-dir FOLDER), then --metadata densing_law=FOLDER"
        ) from error


def _rows(path: Path) -> Iterable[Mapping[str, Any]]:
    if path.suffix == ".jsonl":
        return read_samples(path)
    if path.suffix == ".parquet":
        import pyarrow as pa
        from pyarrow import parquet

        try:
            table: Sequence[Mapping[str, Any]] = parquet.read_table(path).to_pylist()
        except (OSError, pa.ArrowException) as error:
            raise InputError(f"{path}: not readable as Parquet ({str(error).splitlines()[0]})") from error
        return table
    content = read_json(path)
    if not isinstance(content, list) or not all(isinstance(row, Mapping) for row in content):
        raise InputError(f"{path}: a list of objects was expected")
    return content


def _document(row: Mapping[str, Any], where: str, name: str, columns: tuple[str, str]) -> Doc:
    texts = [row.get(column) for column in columns]
    if not all(isinstance(text, str) and text.strip() for text in texts):
        there = ", ".join(map(str, row))[:200]
        raise InputError(
            f"{where}: no text in {' or '.join(columns)}; it has {there}. Say which column is which: --metadata "
            "densing_law_input=COLUMN,densing_law_output=COLUMN"
        )
    context, answer = map(str, texts)
    joint = "" if context[-1].isspace() or answer[0].isspace() else "\n"
    return {"id": name, "context": context, "answer": f"{joint}{answer}"}


def score(doc: Mapping[str, Any], results: Sequence[Answer]) -> dict[str, float]:
    r"""Return the conditional loss of the answer, :math:`-\log_2 p(\text{answer} \mid \text{instruction})` per byte.

    Parameters
    ----------
    doc : mapping
        ``answer``.
    results : sequence of (float, bool)
        Its log-likelihood, in nats.

    Examples
    --------
    >>> score({"context": "Q", "answer": " 42"}, [(-3 * math.log(2), False)])
    {'bits_per_byte': 1.0}
    """
    size = len(doc["answer"].encode("utf-8"))
    return {"bits_per_byte": -results[0][0] / size / math.log(2)}
