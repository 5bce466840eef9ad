"""Results that take minutes, kept in the cache folder under a name that tells all they were made of."""

from __future__ import annotations

import hashlib
import io
import json
import logging
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from densing.core import DensingError, Note, cache_folder, write_text

LOG = logging.getLogger(__name__)
T = TypeVar("T")
FOLDER = "today"


def kept(make: Callable[[], T], kind: type[T], name: str, *inputs: object, by: Callable[..., Any]) -> T:
    """Return what is kept of a result, or make it and keep it.

    Parameters
    ----------
    make : callable
        Works the result out.
    kind : type
        Its dataclass, of tables, texts, notes and mappings of texts to texts.
    name : str
        Of the part, for its file.
    *inputs : object
        What the result depends on; tables by their content, others by their text.
    by : callable
        The function that makes it: a change in its room makes it anew.

    Examples
    --------
    >>> from densing.scores.study.recovery import Recovery
    >>> table = pd.DataFrame({"world": [1], "hi": [float("inf")], "held": [True]})
    >>> made = [kept(lambda: Recovery(table), Recovery, "example", 0, by=kept) for _ in range(2)]
    >>> made[1].table.to_dict("records")
    [{'world': 1, 'hi': inf, 'held': True}]
    """
    digest = hashlib.sha256()
    for part in inputs:
        text = part.to_csv(index=False, float_format="%.17g") if isinstance(part, pd.DataFrame) else repr(part)
        digest.update(text.encode())
    for source in sorted(Path(str(sys.modules[by.__module__].__file__)).parent.glob("*.py")):
        digest.update(source.read_bytes())
    path = cache_folder() / FOLDER / f"{name}-{digest.hexdigest()[:24]}.json"
    # Whatever is wrong with a kept file: the result is made anew.
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        result = kind(**{key: _decoded(value) for key, value in json.loads(path.read_text(encoding="utf-8")).items()})
        LOG.info("%s: read from %s", name, path)
        return result
    LOG.info("%s: worked out anew", name)
    result = make()
    with suppress(OSError, DensingError):
        path.parent.mkdir(parents=True, exist_ok=True)
        for old in path.parent.glob(f"{name}-*.json"):
            old.unlink(missing_ok=True)
        content = {item.name: _encoded(getattr(result, item.name)) for item in fields(kind)}  # type: ignore[arg-type]
        write_text(path, json.dumps(content))
    return result


def _encoded(value: Any) -> Any:
    if isinstance(value, pd.DataFrame):
        # As CSV: JSON knows no infinity.
        return {"table": value.to_csv(index=False, float_format="%.17g")}
    if isinstance(value, dict):
        return {"mapping": value}
    if isinstance(value, tuple):
        return {"notes": [note.to_dict() for note in value]}
    return value


def _decoded(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if "table" in value:
        return pd.read_csv(io.StringIO(value["table"]), keep_default_na=False, na_values=[""])
    if "mapping" in value:
        return {key: tuple(items) for key, items in value["mapping"].items()}
    return tuple(Note.from_dict(note) for note in value["notes"])
