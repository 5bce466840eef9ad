"""Steps other than a transformer's, by name or from a TOML file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from densing.core import InputError, UnknownNameError
from densing.efficiency.simulation.cluster import read_toml

Step = TypeVar("Step", bound=msgspec.Struct)


@dataclass(frozen=True)
class Presets(Generic[Step]):
    """Steps of a kind: those of this package by name, others from TOML files.

    Parameters
    ----------
    kind : type
        A record with a ``name``.
    file : Path
        File of the presets.
    what : str
        The kind in words.
    check : callable
        Refuses an inconsistent step.
    """

    kind: type[Step]
    file: Path
    what: str
    check: Callable[[Step], None]

    @cached_property
    def steps(self) -> dict[str, Step]:
        """The presets by name."""
        tables = read_toml(self.file)
        return {name: _step(self.kind, {"name": name, **table}, f"preset {name}") for name, table in tables.items()}

    def names(self) -> tuple[str, ...]:
        """Return the names of the presets.

        Examples
        --------
        >>> from densing.efficiency.simulation import gather_names, served_names
        >>> gather_names()[0], served_names()
        ('sage-reddit', ('serve-smollm2-135m',))
        """
        return tuple(self.steps)

    def load(self, name: str | Path) -> Step:
        """Return a preset by name, or read a TOML file with the fields of the kind.

        Raises
        ------
        UnknownNameError
            For a name that is neither.
        InputError
            For a file that cannot be read, and for an inconsistent step.

        Examples
        --------
        >>> from densing.efficiency.simulation import load_convex, load_gather, load_served
        >>> load_gather("sage-reddit").width, load_convex("least-squares").loss
        (602, 'squares')
        >>> load_served("serve-smollm2-135m").layers
        30
        """
        path = Path(name)
        if (step := self.steps.get(str(name))) is None:
            if path.suffix != ".toml":
                raise UnknownNameError(self.what, str(name), self.steps, "a .toml file")
            step = _step(self.kind, {"name": path.stem, **read_toml(path)}, str(path))
        self.check(step)
        return step


def _step(kind: type[Step], table: dict[str, Any], where: str) -> Step:
    for key in table:
        if key not in kind.__struct_fields__:
            raise InputError(f"{where}: {UnknownNameError('field', key, kind.__struct_fields__)}")
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        raise InputError(f"{where}: {error}; correct the field") from error
