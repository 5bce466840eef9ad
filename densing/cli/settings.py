"""Settings: options missing on the command line are read from the environment and a file, by one rule.

The command line comes before the environment, the environment before the file, the file before the default.
:data:`PROGRAM` lists the settings of the program itself; every other one is an option of a command, ``--guard`` of
``densing density``: ``DENSING_DENSITY_GUARD`` in the environment, ``guard`` below ``[density]`` in ``densing.toml``, or
below ``[tool.densing.density]`` in ``pyproject.toml``. The file is that of the working directory, or of the nearest
folder above it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer

from densing.cli import calls
from densing.core import SLIP, InputError, UnknownNameError, nearest

PREFIX = "DENSING"
DEFAULT = "default"
VERBOSITY = {"quiet": logging.ERROR, "normal": logging.WARNING, "verbose": logging.INFO, "debug": logging.DEBUG}
"""Verbosity, and the corresponding log level."""
PROGRAM = {"verbosity": "normal", "cache": "", "debug": "false"}
"""Settings of the program and their defaults: verbosity, cache folder, and whether internal errors
print a traceback."""
GIVEN_ONLY = frozenset(
    {"json", "fetch", "trust_remote_code", "confirm_run_unsafe_code", "quiet", "verbose", "help", "version",
     "json_schema", "install_completion", "show_completion"}
)  # fmt: skip
"""Options accepted on the command line only, so that no file or variable can change the output format, run
code or fetch anything."""


@dataclass(frozen=True)
class Setting:
    """A setting in force.

    Parameters
    ----------
    name : str
        Of the program (``cache``), or of a command (``density.guard``).
    value : str
        Empty for the cache where nobody set it: the user's own cache folder.
    source : str
        The variable, the file, ``command line`` or ``default``.
    """

    name: str
    value: str
    source: str


@dataclass(frozen=True)
class SettingsFile:
    """A file of settings.

    Parameters
    ----------
    path : pathlib.Path or None
        None where there is none.
    table : dict
        What it holds.
    """

    path: Path | None = None
    table: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Its path, from the working directory where that is shorter."""
        here = Path.cwd()
        return "" if self.path is None else str(self.path.relative_to(here) if self.path.parent == here else self.path)

    @property
    def root(self) -> str:
        """What stands before the name of a command's table in the file."""
        return "tool.densing" if self.path is not None and self.path.name == "pyproject.toml" else ""

    def place(self, words: Sequence[str]) -> str:
        """Return how a table of the file is named in a message."""
        table = ".".join([*filter(None, [self.root]), *words])
        return f"{self.name} [{table}]" if table else self.name

    def below(self, words: Sequence[str]) -> dict[str, Any]:
        """Return the table of a command.

        Raises
        ------
        InputError
            When something else than a table has its name.
        """
        table: Any = self.table
        for at, word in enumerate(words):
            table = table.get(word, {})
            if not isinstance(table, dict):
                where, below = self.place(words[:at]), self.place(words[: at + 1]).removeprefix(f"{self.name} ")
                raise InputError(f"{where}: {word} = {table!r}, which is a command; put its options below {below}")
        return table


def find_file(folder: Path | None = None) -> SettingsFile:
    """Return the settings of the nearest ``densing.toml``, or ``pyproject.toml`` with ``[tool.densing]``.

    Raises
    ------
    InputError
        When it is not TOML.
    """
    start = (folder or Path.cwd()).absolute()
    for place in (start, *start.parents):
        for path in (place / "densing.toml", place / "pyproject.toml"):
            try:
                text = path.read_text(encoding="utf-8")
            except (FileNotFoundError, NotADirectoryError, PermissionError):
                continue
            except UnicodeDecodeError as error:
                raise InputError(f"{path}: not UTF-8 text; write it as such") from error
            if path.name == "pyproject.toml" and "tool.densing" not in text:
                continue
            import tomllib

            try:
                table = tomllib.loads(text)
            except tomllib.TOMLDecodeError as error:
                raise InputError(f"{path}: {error}; settings are TOML, as in: guard = 3.0") from error
            if path.name == "pyproject.toml":
                table = table.get("tool", {}).get("densing", {})
            return SettingsFile(path, table)
    return SettingsFile()


def options_of(command: Any) -> dict[str, Any]:
    """Return what a file or a variable may set of a command: its options by their names."""
    return {
        parameter.name: parameter
        for parameter in command.params
        if parameter.param_type_name == "option" and parameter.name not in GIVEN_ONLY
    }


def variable(*words: str) -> str:
    """Return the variable of a setting.

    Examples
    --------
    >>> variable("own-loop", "guard")
    'DENSING_OWN_LOOP_GUARD'
    """
    return "_".join([PREFIX, *words]).upper().replace("-", "_")


def defaults_of(file: SettingsFile, words: Sequence[str], command: Any) -> dict[str, Any]:
    """Return what the file says of a command's options, as the command line would hand them over.

    Raises
    ------
    UnknownNameError
        When it names what is not an option of the command.
    InputError
        When a value is a table, or no yes or no where one belongs.
    """
    known = options_of(command)
    # A command may lead others, whose tables stand in its own.
    below = getattr(command, "commands", {})
    defaults = {}
    for key, value in file.below(words).items():
        if key in below:
            continue
        name = key.replace("-", "_")
        where = f"{file.place(words)}: {key} = {value!r}"
        if name in GIVEN_ONLY:
            raise InputError(f"{where}: --{key} is accepted on the command line only; leave it out here")
        if name not in known:
            raise UnknownNameError(f"setting in {file.place(words)}:", key, sorted(known))
        option = known[name]
        if isinstance(value, dict) or isinstance(value, bool) != option.is_flag:
            raise InputError(f"{where}: {'write true or false' if option.is_flag else 'write one value, or a list'}")
        values = value if isinstance(value, list) else [value]
        if not option.multiple and isinstance(value, list):
            raise InputError(f"{where}: takes one value, not a list")
        if not option.is_flag:
            values = [_from_file(each, option, file) for each in values]
        defaults[name] = values if option.multiple else values[0]
    return defaults


def _from_file(value: Any, option: Any, file: SettingsFile) -> str:
    """Return a value as text; a path counts from the folder of the file."""
    assert file.path is not None
    text = str(value)
    is_path = option.type.name in ("path", "file", "directory") and "://" not in text
    return str(file.path.parent / text) if is_path else text


def program_settings(file: SettingsFile, commands: Sequence[str]) -> list[Setting]:
    """Return the settings of the program itself, in force.

    Parameters
    ----------
    file : SettingsFile
    commands : sequence of str
        What else may stand at the top of the file.

    Raises
    ------
    UnknownNameError
        When the file names what is neither a setting nor a command.
    InputError
        When a value is none of those it may have.
    """
    for key in file.table:
        if key not in (*PROGRAM, *commands):
            raise UnknownNameError(f"setting in {file.place(())}:", key, (*PROGRAM, *commands))
    settings = []
    for name, default in PROGRAM.items():
        value, source = default, DEFAULT
        if name in file.table:
            value, source = file.table[name], file.name
            if isinstance(value, dict | list):
                raise InputError(f"{source}: {name} = {value!r}: write one value")
            value = str(value).lower() if isinstance(value, bool) else str(value)
            if name == "cache" and value:
                assert file.path is not None
                value = str(file.path.parent / Path(value).expanduser())
        if os.environ.get(variable(name)):
            value, source = os.environ[variable(name)], variable(name)
        if name == "verbosity" and value not in VERBOSITY:
            raise InputError(f"{source}: verbosity = {value!r}; write one of {', '.join(VERBOSITY)}")
        settings.append(Setting(name, value, source))
    return settings


def check_variables(words: Sequence[str], command: Any) -> None:
    """Refuse a variable that looks like a setting of a command, or of the program, and is none.

    Raises
    ------
    UnknownNameError
    """
    own = {variable(*words, name) for name in options_of(command)}
    below = tuple(variable(*words, name) + "_" for name in getattr(command, "commands", {}))
    program = {variable(name) for name in PROGRAM}
    for name in sorted(os.environ):
        if name.startswith(variable(*words) + "_") and name not in own and not name.startswith(below):
            raise UnknownNameError(f"variable, a setting of `densing {' '.join(words)}`,", name, own)
        if name.startswith(f"{PREFIX}_") and name not in program and nearest(name, program, likeness=SLIP):
            raise UnknownNameError("variable", name, program)


def options_in_force(tree: Any) -> list[Setting]:
    """Return every option of a command that the file or a variable sets.

    Parameters
    ----------
    tree : click.Group
        All commands: each table of the file is checked.

    Raises
    ------
    InputError, UnknownNameError
        As for a single command.
    """
    file = find_file()

    def walk(words: tuple[str, ...], command: Any) -> Iterator[Setting]:
        commands = getattr(command, "commands", {})
        # A group has options where it is a command itself.
        if not commands or (words and options_of(command)):
            defaults = defaults_of(file, words, command)
            check_variables(words, command)
            for name in options_of(command):
                own = variable(*words, name)
                value, source = (os.environ.get(own), own) if os.environ.get(own) else (defaults.get(name), file.name)
                if value is not None:
                    yield Setting(".".join([*words, name]), str(value), source)
        elif words:
            for key in file.below(words):
                if key not in commands:
                    raise UnknownNameError(f"command in {file.place(words)}:", key, commands)
        for name, each in commands.items():
            yield from walk((*words, name), each)

    return list(walk((), tree))


def apply(settings: Sequence[Setting], *, quiet: bool, verbose: int) -> list[Setting]:
    """Put the program's settings into force, with those of the command line above them, and return them.

    Raises
    ------
    typer.BadParameter
        When the line asks for both, less and more.
    """
    if quiet and verbose:
        raise typer.BadParameter("--quiet and --verbose cannot be combined", param_hint="--quiet, --verbose")
    given = "quiet" if quiet else ("verbose", "debug")[min(verbose, 2) - 1] if verbose else ""
    settings = [
        Setting(each.name, given, "command line") if given and each.name == "verbosity" else each for each in settings
    ]
    values = {setting.name: setting.value for setting in settings}
    os.environ.update({variable(each.name): each.value for each in settings
                       if each.name == "cache" and each.source != DEFAULT})  # fmt: skip
    if values["debug"] == "true":
        os.environ[variable("debug")] = "1"
    calls.speak(values["verbosity"])
    log = logging.getLogger("densing")
    log.handlers = [each for each in log.handlers if not isinstance(each, _ToPeople)] + [_ToPeople()]
    log.setLevel(VERBOSITY[values["verbosity"]])
    return settings


class _ToPeople(logging.Handler):
    """Writes what the library logs where remarks go."""

    def emit(self, record: logging.LogRecord) -> None:
        from densing.cli.output import warn

        warn(f"{record.levelname.lower()}: {record.getMessage()}", "dim")
