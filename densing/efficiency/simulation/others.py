"""Steps that are no transformer's, by name or file."""

from __future__ import annotations

from pathlib import Path

from densing.efficiency.simulation.convex import Convex, convex_names, load_convex
from densing.efficiency.simulation.gather import Gather, gather_names, load_gather
from densing.efficiency.simulation.presets import read_toml


def load_other(name: str) -> Gather | Convex | None:
    """Return a step that gathers rows or one of a linear problem; None for a name that is neither.

    A TOML file is of a linear problem where it has partitions.

    Raises
    ------
    InputError
        For a file that cannot be read, and for numbers that do not go together.

    Examples
    --------
    >>> type(load_other("film-words")).__name__, load_other("llama-8b")
    ('Convex', None)
    """
    of_file = Path(name).suffix == ".toml"
    if name in convex_names() or (of_file and "partitions" in read_toml(Path(name))):
        return load_convex(name)
    return load_gather(name) if of_file or name in gather_names() else None
