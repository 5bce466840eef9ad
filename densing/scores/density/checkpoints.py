"""Checkpoints of one training: told from their names, in the order of steps, density against step."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from densing.core import InputError, formatting, read_json
from densing.scores.density.sentences import quoted_rows

_STEP = re.compile(
    r"(?:^|[@/_\-. ])(?:global[_-]?step|step|checkpoint|ckpt|iteration|iter)[_\-=. ]?(?P<count>\d+)(?P<unit>[km]?)"
    r"(?=$|[/_\-. ])",
    re.IGNORECASE,
)
_TOKENS = re.compile(r"[_\-]?tokens?[_\-=]?(?P<count>\d+(?:\.\d+)?)(?P<unit>[kmbt]?)(?![a-z0-9])", re.IGNORECASE)
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
COLUMNS = ["run", "step", "model", "benchmark", "density", "density_lo", "density_hi", "status", "bound"]
"""Of densities by step."""


def checkpoint(name: str) -> tuple[str, int] | None:
    """Return which run a checkpoint's name belongs to, and its step; None of a name that states none.

    Examples
    --------
    >>> checkpoint("EleutherAI/pythia-6.9b@step143000"), checkpoint("runs/mine/checkpoint-500")
    (('EleutherAI/pythia-6.9b', 143000), ('runs/mine', 500))
    >>> checkpoint("mine_step20k"), checkpoint("mine-iter_0012000-hf"), checkpoint("Stepfun-1")
    (('mine', 20000), ('mine-hf', 12000), None)
    >>> checkpoint("allenai/OLMo-2@stage1-step1000-tokens5B")
    ('allenai/OLMo-2@stage1', 1000)
    """
    name = _TOKENS.sub("", name)
    found = None
    for found in _STEP.finditer(name):  # noqa: B007
        pass
    if found is None:
        return None
    rest = name[: found.start()] + name[found.end() :]
    return rest.strip("@/_-. ") or "run", int(found["count"]) * _UNITS[found["unit"].lower()]


def tokens_of(name: str, known: Any = None) -> float:
    """Return how many tokens a checkpoint has seen: as its results say, else as its name does; NaN where neither.

    Examples
    --------
    >>> tokens_of("allenai/OLMo-2-1124-7B@stage1-step1000-tokens5B"), tokens_of("mine@step5")
    (5000000000.0, nan)
    """
    if known is not None and not formatting.is_missing(known) and float(known) > 0:
        return float(known)
    found = _TOKENS.search(name)
    return float(found["count"]) * _UNITS[found["unit"].lower()] if found else math.nan


@dataclass(frozen=True)
class CheckpointFolder:
    """A folder with a checkpoint's weights.

    Parameters
    ----------
    name : str
        ``RUN@stepN``, and ``-tokensM`` behind it where that is known.
    path : pathlib.Path
    step : int
    """

    name: str
    path: Path
    step: int


def checkpoint_folders(folder: Path) -> list[CheckpointFolder]:
    """Return the checkpoints below a folder, by run and step.

    Those of transformers (``checkpoint-500``) and others whose names say their step, and models of a ladder, whose
    ``densing.json`` says it. One without weights is being written still, and is left out.

    Raises
    ------
    InputError
        When there is none.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for step in (1000, 200, 300):
    ...         place = Path(folder) / "mine" / f"checkpoint-{step}"
    ...         place.mkdir(parents=True)
    ...         if step != 300:
    ...             _ = (place / "config.json").write_text("{}"), (place / "model.safetensors").write_text("")
    ...     [each.name for each in checkpoint_folders(Path(folder) / "mine")]
    ['mine@step200', 'mine@step1000']
    """
    found = []
    for place in sorted(folder.iterdir()) if folder.is_dir() else []:
        if not (place / "config.json").is_file() or not any(place.glob("*.safetensors")) | any(place.glob("*.bin")):
            continue
        facts = read_json(place / "densing.json") if (place / "densing.json").is_file() else {}
        steps = (facts.get("schedule") or {}).get("steps")
        named = (str(facts.get("run")), int(steps)) if steps else checkpoint(place.name)
        if named is None:
            continue
        run, step = named
        seen = f"-tokens{facts['tokens']:.0f}" if facts.get("tokens") else ""
        run = folder.resolve().name if run == "run" else run
        found.append((run, CheckpointFolder(f"{run}@step{step}{seen}", place, step)))
    if not found:
        raise InputError(
            f"{folder}: no checkpoint; expected folders with config.json and weights, named after their step "
            "(checkpoint-500, step500), or models of a ladder"
        )
    return [each for _, each in sorted(found, key=lambda pair: (pair[0], pair[1].step))]


def by_step(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table of densities with the checkpoints of each run in the order of steps, where its first one stood.

    Other rows stay where they are. As text, ``checkpoint-1000`` comes before ``checkpoint-200``.

    Examples
    --------
    >>> table = pd.DataFrame({"model": ["a/checkpoint-1000", "other", "a/checkpoint-200"]})
    >>> by_step(table)["model"].tolist()
    ['a/checkpoint-200', 'a/checkpoint-1000', 'other']
    """
    told = [checkpoint(str(name)) for name in table["model"]]
    columns = [table[name].astype(str) for name in ("benchmark", "quantity") if name in table]
    series = list(zip(*columns, strict=True)) or [()] * len(table)
    first: dict[object, int] = {}
    keys = []
    for place, (at, kind) in enumerate(zip(told, series, strict=True)):
        keys.append((place, 0) if at is None else (first.setdefault((at[0], kind), place), at[1]))
    return table.iloc[sorted(range(len(table)), key=keys.__getitem__)].reset_index(drop=True)


def densities_by_step(table: pd.DataFrame) -> pd.DataFrame:
    """Return density against step: a row per checkpoint, by run and step; of a combined row where there is one.

    Parameters
    ----------
    table : pandas.DataFrame
        Of a :class:`DensityResult` or :class:`RunDensities`.

    Returns
    -------
    pandas.DataFrame
        Columns :data:`COLUMNS`.

    Raises
    ------
    InputError
        When no model is named as a checkpoint.

    Examples
    --------
    >>> row = {"benchmark": "mmlu", "density": 1.0, "density_lo": 0.8, "density_hi": 1.2, "status": "ok", "bound": ""}
    >>> table = pd.DataFrame([{"model": f"mine@step{step}", **row} for step in (1000, 200)])
    >>> densities_by_step(table)[["run", "step"]].values.tolist()
    [['mine', 200], ['mine', 1000]]
    """
    rows = quoted_rows(table)
    told = [checkpoint(str(name)) for name in rows["model"]]
    kept = rows[[at is not None for at in told]]
    if kept.empty:
        raise InputError(
            "--by-step: no model name states a training step (step500, checkpoint-500, iter_500 or the like); found: "
            f"{', '.join(map(str, rows['model'].head(3)))}"
        )
    known = [at for at in told if at is not None]
    kept = kept.assign(run=[run for run, _ in known], step=[step for _, step in known])
    return kept.sort_values(["run", "benchmark", "step"], kind="stable", ignore_index=True)[COLUMNS]
