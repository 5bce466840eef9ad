"""The errors densing raises, all below one root.

::

    DensingError
    ├── InputError              what the user handed over is wrong
    │   ├── TableError          a table: file, row, column, value, remedy
    │   ├── ArtefactError       a stored fit or result that cannot be read
    │   └── UnknownNameError    a name that does not exist (with the nearest that does)
    ├── UnavailableError        something real that is not published or not installed
    ├── DomainError             a value outside the domain of a law (also a ValueError)
    └── FitError                no fit is possible with these data

Every message says where, what value, and which remedy.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

# What a message lists before it only counts.
SHOWN_PROBLEMS = 20
SHOWN_NAMES = 30


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


class ArtefactError(InputError):
    """A stored artefact (a fit, a result) is damaged or of an unknown version."""


class UnknownNameError(InputError):
    """A name that is not one of the known ones.

    Examples
    --------
    >>> print(UnknownNameError("law", "chinchila", ["chinchilla", "power"]))
    unknown law 'chinchila'; did you mean 'chinchilla'? (known: chinchilla, power)
    """

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        choices = sorted(known)
        near = difflib.get_close_matches(name, choices, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ";"
        more = f", ... {len(choices)} in all" if len(choices) > SHOWN_NAMES else ""
        super().__init__(f"unknown {kind} {name!r}{hint} (known: {', '.join(choices[:SHOWN_NAMES])}{more})")


class UnavailableError(DensingError):
    """Something that exists but is unpublished, not shipped or not installed."""


class DomainError(DensingError, ValueError):
    """A value outside the domain on which a law is defined."""


class FitError(DensingError):
    """The data do not allow the fit that was asked for."""
