"""The command being run and its output format, read from the arguments before typer parses them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

FLAG = "--json"
ENVELOPE, BARE = "v1", "v0"
"""Forms of what ``--json`` prints: in one envelope; as version 0.2 printed it, a shape per command."""


@dataclass(frozen=True)
class Call:
    """What was called.

    Parameters
    ----------
    command : str
        The words of the command: ``techniques compare``; empty before there is one.
    form : {"v1", "v0"}
    verbosity : {"quiet", "normal", "verbose", "debug"}
    """

    command: str = ""
    form: str = ENVELOPE
    verbosity: str = "normal"

    @property
    def quiet(self) -> bool:
        """Whether nothing but the answer, warnings and errors is written."""
        return self.verbosity == "quiet"

    @property
    def verbose(self) -> bool:
        """Whether what is only worth knowing is written, too."""
        return self.verbosity in ("verbose", "debug")


_current = Call()


def current() -> Call:
    """Return the call that is running."""
    return _current


def speak(verbosity: str) -> None:
    """Note how much the call that is running says."""
    global _current
    _current = replace(_current, verbosity=verbosity)


def begin(command: str, arguments: Sequence[str]) -> list[str]:
    """Note what is called, and return the arguments with ``--json=v0`` and ``--json=v1`` as plain ``--json``.

    An option whose value may be left out would take the argument behind it for its value: the form is split off here.

    Raises
    ------
    ValueError
        When ``--json=`` names no form.

    Examples
    --------
    >>> begin("profile", ["--json=v0", "traces"]), current()
    (['--json', 'traces'], Call(command='profile', form='v0', verbosity='normal'))
    >>> begin("profile", ["--json", "traces"]), current().form
    (['--json', 'traces'], 'v1')
    """
    global _current
    form = ENVELOPE
    rest: list[str] = []
    _current = Call(command)
    for at, argument in enumerate(arguments):
        if argument == "--":
            rest += arguments[at:]
            break
        if argument.startswith(f"{FLAG}="):
            form, argument = argument.removeprefix(f"{FLAG}="), FLAG
            if form not in (ENVELOPE, BARE):
                raise ValueError(f"{form!r} is not a form of JSON; write {FLAG}, or {FLAG}={BARE} for what 0.2 printed")
        rest.append(argument)
    _current = Call(command, form)
    return rest
