"""Named clusters, each figure with its source, and clusters of the user's own: TOML, read and written.

Errors name file, field, value and remedy; what is written reads back equal.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from densing.core import InputError, UnknownNameError
from densing.efficiency.simulation.cluster.cluster import Cluster, Device, Figure, Link

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
    path = Path(name)
    if str(name) in cluster_names():
        cluster = _preset(str(name))
    elif path.suffix != ".toml" and len(path.parts) < 2:
        raise UnknownNameError("cluster (nor a .toml file)", str(name), cluster_names())
    else:
        cluster = cluster_of(read_toml(path), str(path), _file()["devices"])
    if n is None:
        return cluster
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


EVIDENCE = ("first-hand", "second-hand", "derived", "measured", "recalled")
MOST_RANKS = 1_000_000
Table = Mapping[str, Any]


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file.

    Raises
    ------
    InputError
        When it cannot be read or is no TOML.
    """
    from densing.core import read_text

    try:
        return tomllib.loads(read_text(path, str(path)))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{path}: no readable TOML ({error}); check quotes and brackets") from error


def cluster_of(table: Table, where: str, devices: Mapping[str, Table] | None = None) -> Cluster:
    """Build a cluster from what a TOML file says.

    Parameters
    ----------
    table : mapping
        The fields of :class:`Cluster`. ``device`` may be a name of ``devices``; a link gives ``alpha_s`` and either
        ``beta_s_per_byte`` or ``gbit_per_s``; ``sources`` maps a field (``intra.alpha_s``) to ``source`` and
        ``evidence``.
    where : str
        File, for messages.
    devices : mapping, optional

    Raises
    ------
    InputError, UnknownNameError
        For anything missing, unknown, or outside its range.

    Examples
    --------
    >>> link = {"alpha_s": 1e-5, "gbit_per_s": 80}
    >>> table = {"name": "mine", "n": 2, "per_node": 1, "device": {"name": "toy", "flops": 1e12, "mem_bw": 1e11},
    ...          "intra": link, "inter": link, "host": link}
    >>> cluster_of(table, "mine.toml").inter.seconds(1e10)
    1.00001
    >>> cluster_of(table | {"n": -2}, "mine.toml")
    Traceback (most recent call last):
    ...
    densing.core.errors.InputError: mine.toml: n: -2 is out of range; give a whole number from 1 to 1000000
    """
    _keys(table, Cluster.__struct_fields__, where)
    fields: dict[str, Any] = {key: value for key, value in table.items() if key not in _PARTS}
    for name in ("name", "n", "per_node", "device", "intra", "inter", "host"):
        if name not in table:
            raise InputError(f"{where}: {name}: missing; a cluster needs it")
    fields["device"] = _device(table["device"], where, devices or {})
    for name in ("intra", "inter", "host", "wide"):
        if table.get(name) is not None:
            fields[name] = _link(table[name], f"{where}: {name}")
    sources = _table(table.get("sources", {}), f"{where}: sources")
    fields["sources"] = {key: _figure(value, f"{where}: sources.{key}") for key, value in sources.items()}
    return checked(_converted(fields, Cluster, where), where)


_PARTS = ("device", "intra", "inter", "host", "wide", "sources")


def checked(cluster: Cluster, where: str) -> Cluster:
    """Return the cluster if every field is within its range.

    Raises
    ------
    InputError
    """
    for field in ("n", "per_node"):
        _within(where, field, getattr(cluster, field), 1, MOST_RANKS, "a whole number")
    _within(where, "per_site", cluster.per_site, 0, MOST_RANKS, "a whole number")
    for field in ("kappa", "kappa_comm"):
        _within(where, field, getattr(cluster, field), 0, 100)
    _within(where, "pipelined", cluster.pipelined, 0, 1)
    if not cluster.name.strip():
        raise InputError(f"{where}: name: empty; name the cluster")
    if cluster.per_site % cluster.per_node:
        raise InputError(f"{where}: per_site: {cluster.per_site} is no multiple of per_node {cluster.per_node}")
    if (cluster.wide is None) != (cluster.per_site == 0):
        raise InputError(f"{where}: per_site and wide: give both (several sites) or neither")
    if cluster.speed and len(cluster.speed) != cluster.n:
        raise InputError(f"{where}: speed: {len(cluster.speed)} values for {cluster.n} ranks; give one each or none")
    for value in cluster.speed:
        _within(where, "speed", value, 1e-6, 1e6)
    device = cluster.device
    for field in ("flops", "mem_bw"):
        _within(where, f"device.{field}", getattr(device, field), 1, 1e24)
    _within(where, "device.memory", device.memory, 0, 1e18)
    for field in ("efficiency", "mem_efficiency"):
        _within(where, f"device.{field}", getattr(device, field), 1e-6, 1)
    for piece in device.measured:
        for value in piece:
            _within(where, "device.measured", value, 1e-12, 1e24)
    return cluster


def _within(where: str, field: str, value: float, low: float, high: float, what: str = "a number") -> None:
    if not (math.isfinite(value) and low <= value <= high):
        raise InputError(f"{where}: {field}: {value} is out of range; give {what} from {low:g} to {high:.7g}")


def _device(value: Any, where: str, devices: Mapping[str, Table]) -> Device:
    if isinstance(value, str):
        if value not in devices:
            raise UnknownNameError("device", value, devices)
        value = devices[value]
    fields = dict(_table(value, f"{where}: device"))
    # A preset's device brings the sources of its figures along.
    fields.pop("sources", None)
    _keys(fields, Device.__struct_fields__, f"{where}: device")
    return _converted(fields, Device, f"{where}: device")


def _link(value: Any, where: str) -> Link:
    table = dict(_table(value, where))
    _keys(table, (*Link.__struct_fields__, "gbit_per_s"), where)
    if ("gbit_per_s" in table) == ("beta_s_per_byte" in table):
        raise InputError(f"{where}: give its bandwidth once, as gbit_per_s or as beta_s_per_byte")
    if "gbit_per_s" in table:
        rate = table.pop("gbit_per_s")
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < math.inf:
            raise InputError(f"{where}: gbit_per_s: {rate!r} is no bandwidth; give a positive number")
        table["beta_s_per_byte"] = 8e-9 / rate
    link = _converted(table, Link, where)
    _within(where, "alpha_s", link.alpha_s, 0, 1e6)
    _within(where, "beta_s_per_byte", link.beta_s_per_byte, 0, 1e6)
    return link


def _figure(value: Any, where: str) -> Figure:
    figure = _converted(_table(value, where), Figure, where)
    if figure.evidence not in EVIDENCE:
        raise UnknownNameError("evidence", figure.evidence, EVIDENCE)
    return figure


def _table(value: Any, where: str) -> Table:
    if not isinstance(value, Mapping):
        raise InputError(f"{where}: {value!r} is no table; give its fields")
    return value


def _keys(table: Table, known: Iterable[str], where: str) -> None:
    known = tuple(known)
    for key in table:
        if key not in known:
            error = UnknownNameError("field", str(key), known)
            raise InputError(f"{where}: {error}")


def _converted(fields: Table, kind: type[Any], where: str) -> Any:
    try:
        return msgspec.convert(dict(fields), kind)
    except msgspec.ValidationError as error:
        raise InputError(f"{where}: {error}; correct the field") from error


def to_toml(cluster: Cluster) -> str:
    """Write a cluster as TOML that :func:`cluster_of` reads back.

    Examples
    --------
    >>> link = Link(1e-5, 1e-9, shared="nic")
    >>> cluster = Cluster("mine", 2, 1, Device("toy", 1e12, 1e11), link, link, link)
    >>> cluster_of(tomllib.loads(to_toml(cluster)), "mine.toml") == cluster
    True
    """
    plain = {key: value for key, value in cluster.to_dict().items() if value is not None}
    sources = plain.pop("sources")
    tables = {key: value for key, value in plain.items() if isinstance(value, Mapping)}
    lines = [f"{key} = {_value(value)}" for key, value in plain.items() if key not in tables]
    for name, table in (tables | {f"sources.{_value(key)}": value for key, value in sources.items()}).items():
        lines += ["", f"[{name}]", *(f"{key} = {_value(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    """One value as TOML; its basic strings escape as JSON does, DEL besides."""
    if isinstance(value, str):
        return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    return repr(value)
