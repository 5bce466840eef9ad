"""What may run, and the sentence with which everything else is refused."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from densing.core import InputError

SHOWN = 120


@dataclass(frozen=True)
class Allowed:
    """The two consents a user can give, named as lm-eval's own flags.

    Parameters
    ----------
    trust_remote_code : bool
        Code that comes with a model, a data set or a metric may run.
    confirm_run_unsafe_code : bool
        Code that comes with a task file, or that a model writes (HumanEval, MBPP), may run.

    Examples
    --------
    >>> Allowed().permits("--trust_remote_code")
    False
    """

    trust_remote_code: bool = False
    confirm_run_unsafe_code: bool = False

    def permits(self, flag: str) -> bool:
        """Whether a flag was given; the empty flag is one that does not exist."""
        return bool(flag) and bool(getattr(self, flag.removeprefix("--")))


TRUST = "--trust_remote_code"
CONFIRM = "--confirm_run_unsafe_code"
NEVER = ""


def refuse(where: str, key: str, value: Any, reason: str, flag: str) -> NoReturn:
    """Raise the error for something that would run: place, key, value, reason and the flag that allows it.

    Examples
    --------
    >>> refuse("a.yaml:3", "process_docs", "!function u.f", "runs Python code of u.py", CONFIRM)
    Traceback (most recent call last):
    densing.core.errors.InputError: a.yaml:3: process_docs: '!function u.f' runs Python code of u.py; read it first,
    then
    pass --confirm_run_unsafe_code to allow it
    """
    text = repr(value)
    text = text if len(text) <= SHOWN else text[:SHOWN] + "...'"
    remedy = f"read it first, then pass {flag} to allow it" if flag else "no flag allows it"
    raise InputError(f"{where}: {key}: {text} {reason}; {remedy}")


def truthy(value: Any) -> bool:
    """Whether a flag among model arguments, which may be text, is on: only what plainly says no is off.

    Examples
    --------
    >>> [truthy(value) for value in (True, "true", "False", None, "0", "maybe")]
    [True, True, False, False, False, True]
    """
    return str(value).strip().lower() not in {"", "0", "false", "no", "none", "off"}


def task_folders() -> tuple[Path, ...]:
    """Return the folders whose task files may name Python functions: lm-eval's own and this package's."""
    import importlib.util

    from densing.scores.evals import tasks

    folders = [Path(entry) for entry in tasks.__path__]
    spec = importlib.util.find_spec("lm_eval")
    if spec is not None and spec.origin:
        folders.append(Path(spec.origin).parent / "tasks")
    return tuple(folder.resolve() for folder in folders)


def trusted(path: Path) -> bool:
    """Whether a task file lies, after following links, in one of :func:`task_folders`."""
    return any(path.resolve().is_relative_to(folder) for folder in task_folders())
