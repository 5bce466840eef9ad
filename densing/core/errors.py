"""The errors densing raises, all below one root.

::

    DensingError
    ├── InputError              what the user handed over is wrong
    │   ├── TableError          a table: file, row, column, value, remedy
    │   ├── ArtefactError       a stored fit or result that cannot be read
    │   └── UnknownNameError    a name that does not exist (with the nearest that does)
    ├── UnavailableError        something real that is not published or not installed
    ├── DomainError             a value outside the domain of a law (also a ValueError)
    ├── FitError                no fit is possible with these data
    └── StoppedError            the user stopped the work (Ctrl-C)

Every message says where, what value, and which remedy.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

# What a message lists before it only counts.
SHOWN_PROBLEMS = 20
SHOWN_NAMES = 30
T = TypeVar("T")


class DensingError(Exception):
    """Root of all errors that densing raises on purpose.

    See Also
    --------
    Note

    Examples
    --------
    >>> import densing
    >>> try:
    ...     densing.load_reference("qwen1.6", "mmlu")
    ... except densing.DensingError as error:
    ...     print(type(error).__name__)
    UnknownNameError
    """

    def to_dict(self) -> dict[str, Any]:
        """Return what a program reads of it: its kind, its message, and what the error knows apart.

        Examples
        --------
        >>> InputError("a.json: no such file; check the path").to_dict()
        {'kind': 'InputError', 'message': 'a.json: no such file; check the path'}
        """
        return {"kind": type(self).__name__, "message": str(self)}


class InputError(DensingError):
    """Something the user supplied is wrong; the message names the remedy."""


class TableError(InputError):
    """A table does not fit its declaration.

    Parameters
    ----------
    where : str
        File (or name) of the table.
    problems : iterable of str
        One sentence per problem: row, column, value, remedy.

    Examples
    --------
    >>> print(TableError("scores.csv", ["row 2, column score: 45 is above 1; write 0.45"]))
    scores.csv: row 2, column score: 45 is above 1; write 0.45
    """

    def __init__(self, where: str, problems: Iterable[str]) -> None:
        self.where = where
        self.problems = tuple(problems)
        lines = [f"{where}: {problem}" for problem in self.problems[:SHOWN_PROBLEMS]]
        if len(self.problems) > SHOWN_PROBLEMS:
            lines.append(f"{where}: ... and {len(self.problems) - SHOWN_PROBLEMS} more problems")
        super().__init__("\n".join(lines))

    def to_dict(self) -> dict[str, Any]:
        """Return also where it is, and every problem: the message holds the first of them.

        Examples
        --------
        >>> TableError("a.csv", ["row 2, column score: 45 is above 1; write 0.45"]).to_dict()["where"]
        'a.csv'
        """
        return {**super().to_dict(), "where": self.where, "problems": list(self.problems)}


def gathered(where: str, *steps: Callable[[], T]) -> list[T]:
    """Return what each step returns; where some find a table at fault, all of their problems are one error.

    Raises
    ------
    TableError
        With the problems of all steps, each once.

    Examples
    --------
    >>> def refuse():
    ...     raise TableError("mine.csv", ["row 2, column score: 45 is above 1"])
    >>> gathered("mine.csv", lambda: 1, lambda: 2)
    [1, 2]
    >>> gathered("mine.csv", refuse, lambda: 2, refuse)
    Traceback (most recent call last):
        ...
    densing.core.errors.TableError: mine.csv: row 2, column score: 45 is above 1
    """
    results: list[T] = []
    problems: list[str] = []
    for step in steps:
        try:
            results.append(step())
        except TableError as error:
            problems += error.problems
    if problems:
        raise TableError(where, dict.fromkeys(problems))
    return results


class ArtefactError(InputError):
    """A stored artefact (a fit, a result) is damaged or of an unknown version."""


SLIP = 0.85
"""Likeness of a name with a letter too many or wrong."""


def nearest(name: str, known: Iterable[str], most: int = 3, likeness: float = 0.6) -> list[str]:
    """Return the names that one may have meant: itself, those it is short for, otherwise the one it is most like.

    Neither case counts nor what stands between words.

    Parameters
    ----------
    name : str
        What was written.
    known : iterable of str
        The names there are.
    most : int
        How many are returned at most.
    likeness : float
        Least likeness of a name that is neither longer nor off by a slip; :data:`SLIP` where most names have none.

    Examples
    --------
    >>> nearest("h100", ["a100x8-tcp", "h100x8-nvlink", "h100x8-nop2p"])
    ['h100x8-nop2p', 'h100x8-nvlink']
    >>> nearest("TCP", ["a100x8-tcp", "h100x8-nvlink"])
    ['a100x8-tcp']
    >>> nearest("Chinchila", ["chinchilla", "power"]), nearest("quadratic", ["chinchilla", "power"])
    (['chinchilla'], [])
    >>> nearest("mmluu", ["mmlu", "global_mmlu_uk"]), nearest("MMLU", ["mmlu", "mmlu_ca"])
    (['mmlu'], ['mmlu'])
    >>> nearest("Modell-Nr", ["model"]), nearest("Modell-Nr", ["model"], likeness=SLIP)
    (['model'], [])
    """
    key = "".join(_words(name))
    tails = {each: ["".join(words[at:]) for at in range(len(words))] for each in known if (words := _words(each))}
    whole = [letters[0] for letters in tails.values()]
    if same := [each for each, letters in tails.items() if key and letters[0] == key]:
        return same[:most]
    # Of whole names a slip of one letter comes before being short for later words: "mmluu" is mmlu, not global_mmlu_uk.
    slip = difflib.get_close_matches(name.lower(), [each.lower() for each in tails], n=1, cutoff=SLIP)
    short = [each for each, letters in tails.items() if len(key) > 1 and any(tail.startswith(key) for tail in letters)]
    if short and (not slip or any(each.startswith(key) for each in whole)):
        # Whole names before later words of them, and what adds least before what adds more.
        return sorted(short, key=lambda each: (not tails[each][0].startswith(key), len(each), each))[:most]
    if slip:
        return [each for each in tails if each.lower() in slip][:most]
    close = difflib.get_close_matches(key, whole, n=1, cutoff=likeness)
    return [each for each, letters in tails.items() if letters[0] in close][:most]


def _words(name: str) -> list[str]:
    return re.findall(r"[^\W_]+", name.lower())


class UnknownNameError(InputError):
    """A name that is not one of the known ones.

    Parameters
    ----------
    kind : str
        What it is a name of.
    name : str
        What was written.
    known : iterable of str
        The names there are.
    instead : str, optional
        What else could have been given.
    near : sequence of str, optional
        What it may have meant, where more is known than how names are spelled; else those spelled like it.

    Examples
    --------
    >>> print(UnknownNameError("law", "chinchila", ["chinchilla", "power"]))
    unknown law 'chinchila'; did you mean 'chinchilla'? (known: chinchilla, power)
    >>> print(UnknownNameError("cluster", "mine", ["cpu2"], "a .toml file"))
    unknown cluster 'mine' (known: cpu2; or give a .toml file)
    """

    def __init__(self, kind: str, name: str, known: Iterable[str], instead: str = "", near: Sequence[str] = ()) -> None:
        self.name = name
        self.known = sorted(known)
        self.suggestions = list(near) or nearest(name, self.known)
        hint = f"; did you mean {' or '.join(map(repr, self.suggestions))}?" if self.suggestions else ""
        names = "known: " + ", ".join(self.known[:SHOWN_NAMES])
        if len(self.known) > SHOWN_NAMES:
            # Pages of names would hide what was most likely meant.
            names = f"{len(self.known)} are known" if hint else f"{names}, ... {len(self.known)} in all"
        other = f"; or give {instead}" if instead else ""
        super().__init__(f"unknown {kind} {name!r}{hint} ({names}{other})")

    def to_dict(self) -> dict[str, Any]:
        """Return also the name, those it may stand for, and all there are.

        Examples
        --------
        >>> UnknownNameError("law", "chinchila", ["chinchilla", "power"]).to_dict()["suggestions"]
        ['chinchilla']
        """
        return {**super().to_dict(), "name": self.name, "suggestions": self.suggestions, "known": self.known}


class UnavailableError(DensingError):
    """Something that exists but is unpublished, not shipped or not installed."""


class DomainError(DensingError, ValueError):
    """A value outside the domain on which a law is defined."""


class FitError(DensingError):
    """The data do not allow the fit that was asked for."""


class StoppedError(DensingError):
    """The user stopped the work; the message says how it goes on."""
