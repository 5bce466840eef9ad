"""What ``densing ladder`` joins: training, evaluation and fits of one folder."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from densing.cli.output import timed_bar
from densing.core import ArtefactError, InputError, UnavailableError, read_text, write_text

if TYPE_CHECKING:
    from densing.scores.ladder import Run

DESCRIPTION = "ladder.json"


def ask_runs(
    out: Path, preset: str, corpus: Path | None, vocabulary: int | None, asked: Mapping[str, Any]
) -> list[Run]:
    """Return the runs a command asks for, and leave the folder's description.

    Raises
    ------
    InputError
        When the folder holds a ladder of another preset or corpus.
    UnavailableError
        When the extra packages are not installed.
    """
    from densing.scores.ladder import Corpus, Generated, get_preset, ladder_runs, prepare, target_runs

    for name in ("torch", "transformers"):
        if find_spec(name) is None:
            raise UnavailableError(f"{name} is not installed; pip install 'densing[evals]'")
    chosen = get_preset(preset)
    source: Corpus = Generated()
    if corpus is not None:
        source = prepare(corpus, out / "corpus", vocabulary or chosen.vocabulary)
    common = {name: asked[name] for name in ("sizes", "seeds", "seed")}
    if asked["target"] is None:
        runs = ladder_runs(chosen, source, **common)
    else:
        runs = target_runs(chosen, source, asked["target"], **common, factor=asked["factor"])
    _describe(out, {"preset": preset, **source.describe()})
    return runs


def processes(asked: int | None, device: str) -> int:
    """Return how many processes to use; another device than the CPU is not shared unless asked."""
    if asked is None and device != "cpu":
        return 1
    # What this process may use can be less than what the machine has.
    allowed = getattr(os, "sched_getaffinity", None)
    return asked or len(allowed(0) if allowed else range(os.cpu_count() or 1))


def _describe(out: Path, about: Mapping[str, Any]) -> None:
    """Write what the ladder is; a folder holds one, because its laws are fitted together."""
    path = out / DESCRIPTION
    if not path.exists():
        write_text(path, json.dumps({"schema": 1, **about}, indent=2) + "\n")
        return
    known = read_description(out)
    for key in ("preset", "corpus_hash"):
        if known.get(key) != about[key]:
            raise InputError(
                f"{path}: holds a ladder of {key} {known.get(key)!r}, not {about[key]!r}; choose another --out"
            )


def read_description(folder: Path) -> dict[str, Any]:
    """Return ``ladder.json``.

    Raises
    ------
    InputError
        When the folder holds no ladder.
    """
    path = folder / DESCRIPTION
    if not path.is_file():
        raise InputError(
            f"{folder}: no ladder here ({DESCRIPTION} is missing); run `densing ladder train --out {folder}`"
        )
    try:
        found = json.loads(read_text(path, str(path)))
        return {"preset": str(found["preset"]), **found}
    except (ValueError, KeyError, TypeError) as error:
        raise ArtefactError(f"{path}: damaged ({error}); train again into another folder") from error


@contextmanager
def steps_bar(quiet: bool, runs: Sequence[Run]) -> Iterator[Callable[[str, int], None]]:
    """Yield ``tell(run, steps done)``; shows one bar over all runs, weighted by their cost, with the time left."""
    cost = {run.name: run.shape.batch * run.shape.total(run.corpus.vocabulary) + OVERHEAD for run in runs}
    total = sum(cost[run.name] * run.work for run in runs)
    steps: dict[str, int] = {}
    with timed_bar(quiet) as show:

        def tell(name: str, done: int) -> None:
            steps[name] = done
            show(name, sum(cost[run] * count for run, count in steps.items()), total)

        yield tell


# A step of the smallest model costs about as much as this many parameters times sequences do.
OVERHEAD = 1_200_000
