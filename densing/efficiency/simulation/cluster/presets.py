"""Named clusters, each figure with its source, and clusters of the user's own from TOML."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from densing.core import InputError, UnknownNameError
from densing.efficiency.simulation.cluster.cluster import Cluster
from densing.efficiency.simulation.cluster.reading import checked, cluster_of, read_toml

FILE = Path(__file__).with_name("presets.toml")


def cluster_names() -> tuple[str, ...]:
    """Return the names of the presets.

    Examples
    --------
    >>> "a100x8-tcp" in cluster_names()
    True
    """
    return tuple(_file()["clusters"])


def load_cluster(name: str | Path, *, n: int | None = None) -> Cluster:
    """Return a preset by name, or read a TOML file.

    Parameters
    ----------
    name : str or path
        Of a preset, or of a TOML file with the fields of :class:`Cluster`; its ``device`` may name one of the presets'.
    n : int, optional
        Devices in all, in place of what it says.

    Raises
    ------
    UnknownNameError
        For a name that is neither.
    InputError
        For a file that cannot be read; the message names the field.

    Notes
    -----
    Data sheets give bandwidths; what a run reaches is less. Fit your own with ``densing calibrate``.

    Examples
    --------
    >>> cluster = load_cluster("a100x8-tcp", n=128)
    >>> cluster.n, cluster.inter.seconds(10e9) > 1, cluster.sources["inter.beta_s_per_byte"].evidence
    (128, True, 'second-hand')
    """
    cluster = _preset(str(name)) if str(name) in cluster_names() else _own(name)
    return cluster if n is None else _resized(cluster, n)


def _own(name: str | Path) -> Cluster:
    path = Path(name)
    if path.suffix != ".toml" and len(path.parts) < 2:
        raise UnknownNameError("cluster (nor a .toml file)", str(name), cluster_names())
    return cluster_of(read_toml(path), str(path), _file()["devices"])


def _resized(cluster: Cluster, n: int) -> Cluster:
    if isinstance(n, bool) or not isinstance(n, int):
        raise InputError(f"n: {n!r} is no number of devices; give a whole number")
    if cluster.speed and n != cluster.n:
        raise InputError(f"n: cluster {cluster.name} gives a speed for each of its {cluster.n} ranks; leave n out")
    return checked(cluster.change(n=n), cluster.name)


@cache
def _preset(name: str) -> Cluster:
    table = dict(_file()["clusters"][name])
    device: Mapping[str, Any] = _file()["devices"].get(table["device"], {})
    inherited = {f"device.{key}": value for key, value in device.get("sources", {}).items()}
    table["sources"] = inherited | dict(table["sources"])
    return cluster_of({"name": name, **table}, f"preset {name}", _file()["devices"])


@cache
def _file() -> dict[str, Any]:
    return read_toml(FILE)
