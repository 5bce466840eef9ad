"""Steps other than a transformer's, by name or file."""

from __future__ import annotations

from pathlib import Path

from densing.core import UnknownNameError
from densing.efficiency.simulation.cluster import read_toml
from densing.efficiency.simulation.convex import Convex, convex_names, load_convex
from densing.efficiency.simulation.gather import Gather, gather_names, load_gather
from densing.efficiency.simulation.models import workload_names
from densing.efficiency.simulation.served import Served, load_served, served_names


def load_other(name: str) -> Gather | Convex | Served | None:
    """Return a step that gathers rows, one of a linear problem, or a request; None for any other name.

    A TOML file is of a linear problem where it has partitions, and of a request where it has a device's seconds.

    Raises
    ------
    UnknownNameError
        For a name that no step has, a transformer's included.
    InputError
        For a file that cannot be read, and for an inconsistent step.

    Examples
    --------
    >>> type(load_other("film-words")).__name__, load_other("llama-8b")
    ('Convex', None)
    """
    path = Path(name)
    steps = (*workload_names(), *gather_names(), *convex_names(), *served_names())
    if name not in steps and not path.suffix and len(path.parts) < 2 and not path.is_dir():
        raise UnknownNameError("model", name, steps, "a config.json or a .toml file")
    of_file = path.suffix == ".toml"
    if name in convex_names() or (of_file and "partitions" in read_toml(Path(name))):
        return load_convex(name)
    if name in served_names() or (of_file and "device_s" in read_toml(Path(name))):
        return load_served(name)
    return load_gather(name) if of_file or name in gather_names() else None
