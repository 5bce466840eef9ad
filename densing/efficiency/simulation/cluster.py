"""Clusters: devices and the links between them; presets, each figure with its source, and the user's own.

The user's clusters are TOML files, read and written here: errors name file, field, value and remedy, and a written
cluster reads back equal.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from densing.core import InputError, Record, UnknownNameError, read_text
from densing.efficiency.simulation.delays import Delay, checked_delay


class Link(Record, frozen=True):
    """A link between two devices: ``seconds = alpha_s + bytes * beta_s_per_byte``.

    Parameters
    ----------
    alpha_s : float
        Latency of one message, seconds.
    beta_s_per_byte : float
        Seconds per byte (the inverse of the bandwidth in bytes per second).
    shared : str
        Name of the resource that devices of a node share (``nic``, ``pcie``); empty: every pair has its own.
    ring : bool
        Collectives over it are rings: its software or hardware knows no trees, or its latency is that of a ring's
        message, fitted to collectives' times.

    Examples
    --------
    >>> Link(1e-5, 1e-9).seconds(1_000_000)
    0.00101
    """

    alpha_s: float
    beta_s_per_byte: float
    shared: str = ""
    ring: bool = False

    def seconds(self, count: float) -> float:
        """Return the seconds of a message of so many bytes."""
        return self.alpha_s + count * self.beta_s_per_byte

    def faster(self, factor: float) -> Link:
        """Return the link with so many times the bandwidth, and the same latency."""
        return replace(self, beta_s_per_byte=self.beta_s_per_byte / factor)


class Device(Record, frozen=True):
    """One accelerator (or processor).

    Parameters
    ----------
    name : str
    flops : float
        Peak floating-point operations per second at the precision of training, dense.
    mem_bw : float
        Bytes per second to and from its memory.
    memory : float
        Bytes; 0 unknown.
    efficiency : float
        Share of the peak, in (0, 1], that matrix products reach.
    mem_efficiency : float
        Share of the memory bandwidth that streaming reaches.
    measured : tuple of (float, float, float)
        Operations, bytes moved and seconds of measured kernels: small products reach a share of the peak that depends
        on their shape. Work is timed by the most similar kernel, in proportion to operations.
    step_s : float
        Seconds of a training step that do not depend on its size, the optimizer left out.
    """

    name: str
    flops: float
    mem_bw: float
    memory: float = 0.0
    efficiency: float = 1.0
    mem_efficiency: float = 1.0
    measured: tuple[tuple[float, float, float], ...] = ()
    step_s: float = 0.0

    def seconds(self, flops: float, moved: float = 0.0) -> float:
        """Return the seconds of an operation: as measured, else by the roofline (computing or moving bytes).

        Examples
        --------
        >>> Device("toy", flops=1e12, mem_bw=1e9).seconds(2e12, 1e9)
        2.0
        >>> Device("toy", flops=1e12, mem_bw=1e9, measured=((1e9, 1e6, 0.1), (8e9, 1e6, 0.2))).seconds(2e9, 1e6)
        0.2
        """
        if self.measured and flops > 0:
            return _as_measured(self.measured, flops, moved)
        return max(flops / (self.flops * self.efficiency), moved / (self.mem_bw * self.mem_efficiency))


@lru_cache(maxsize=4096)
def _as_measured(pieces: tuple[tuple[float, float, float], ...], flops: float, moved: float) -> float:
    """Scale the time of the most similar kernel, by operations and bytes."""

    def distance(piece: tuple[float, float, float]) -> float:
        return abs(math.log(flops / piece[0])) + abs(math.log(max(moved, 1.0) / piece[1]))

    nearest = min(pieces, key=distance)
    return nearest[2] * flops / nearest[0]


class Figure(Record, frozen=True):
    """Source of a preset's figure.

    Parameters
    ----------
    source : str
    evidence : {"first-hand", "second-hand", "derived", "measured", "recalled"}
    """

    source: str
    evidence: str


class Cluster(Record, frozen=True):
    """Devices in nodes, nodes in sites, and a link for each level.

    Rank ``r`` is on node ``r // per_node`` and in site ``r // per_site`` (one site where ``per_site`` is 0).

    Parameters
    ----------
    name : str
    n, per_node : int
        Devices in all and per node.
    device : Device
    intra, inter : Link
        Within a node, between nodes.
    host : Link
        Between a device and its host's memory.
    per_site : int
    wide : Link, optional
        Between sites.
    pairs : mapping of str to float
        Bandwidth of a pair of sites (``0-2``) as a multiple of ``wide``'s; 1 where not named.
    delay : Delay, optional
        Delay of ranks beyond their work; with one, every rank is simulated.
    kappa, kappa_comm : float
        Contention: beside communication compute runs at ``1 / (1 + kappa)`` of its speed, and communication beside
        compute at ``1 / (1 + kappa_comm)``.
    pipelined : float
        Share of a collective's latency that overlaps with another collective of its group, 0 to 1. Two threads of gloo
        run one collective each and share only the wire; on a device's stream collectives follow one another: 0.
    speed : tuple of float
        Relative speed per rank; empty where all are equal.
    sources : mapping of str to Figure
        By field (``intra.alpha_s``): where the figure is from.
    """

    name: str
    n: int
    per_node: int
    device: Device
    intra: Link
    inter: Link
    host: Link
    per_site: int = 0
    wide: Link | None = None
    kappa: float = 0.0
    kappa_comm: float = 0.0
    pipelined: float = 0.0
    speed: tuple[float, ...] = ()
    sources: Mapping[str, Figure] = msgspec.field(default_factory=dict)
    pairs: Mapping[str, float] = msgspec.field(default_factory=dict)
    delay: Delay | None = None

    def link(self, a: int, b: int) -> Link:
        """Return the link that joins two ranks."""
        if a // self.per_node == b // self.per_node:
            return self.intra
        if self.wide is not None and self.per_site and a // self.per_site != b // self.per_site:
            low, high = sorted((a // self.per_site, b // self.per_site))
            times = self.pairs.get(f"{low}-{high}", 1.0)
            return self.wide if times == 1 else self.wide.faster(times)
        return self.inter

    def change(self, **fields: object) -> Cluster:
        """Return the cluster with other fields, say ``n=16``."""
        return replace(self, **fields)


EVIDENCE = ("first-hand", "second-hand", "derived", "measured", "recalled")
MOST_RANKS = 1_000_000
RANGES: tuple[tuple[str, float, float, str], ...] = (
    ("n", 1, MOST_RANKS, "a whole number"),
    ("per_node", 1, MOST_RANKS, "a whole number"),
    ("per_site", 0, MOST_RANKS, "a whole number"),
    ("kappa", 0, 100, "a number"),
    ("kappa_comm", 0, 100, "a number"),
    ("pipelined", 0, 1, "a number"),
)
DEVICE_RANGES: tuple[tuple[str, float, float], ...] = (
    ("flops", 1, 1e24), ("mem_bw", 1, 1e24), ("memory", 0, 1e18), ("efficiency", 1e-6, 1), ("mem_efficiency", 1e-6, 1),
    ("step_s", 0, 1e6),
)  # fmt: skip
Table = Mapping[str, Any]
FILE = Path(__file__).with_name("clusters.toml")


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
        Total number of devices, replacing the cluster's own.

    Raises
    ------
    UnknownNameError
        For a name that is neither.
    InputError
        For a file that cannot be read; the message names the field.

    Notes
    -----
    Data sheets give peak bandwidths; runs reach less. Fit your own with ``densing calibrate``.

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
        raise UnknownNameError("cluster", str(name), cluster_names(), "a .toml file")
    else:
        cluster = cluster_of(read_toml(path), str(path), _file()["devices"])
    if n is None:
        return cluster
    if isinstance(n, bool) or not isinstance(n, int):
        raise InputError(f"n: {n!r} is not a number of devices; give a whole number")
    if cluster.speed and n != cluster.n:
        raise InputError(f"n: cluster {cluster.name} has one speed per rank for {cluster.n} ranks; leave n out")
    return checked(cluster.change(n=n), cluster.name)


@cache
def _preset(name: str) -> Cluster:
    table = dict(_file()["clusters"][name])
    # Figures of the device have their sources with the device; the cluster's own win.
    device: Mapping[str, Any] = _file()["devices"].get(table["device"], {})
    inherited = {f"device.{key}": value for key, value in device.get("sources", {}).items()}
    table["sources"] = inherited | dict(table["sources"])
    return cluster_of({"name": name, **table}, f"preset {name}", _file()["devices"])


@cache
def _file() -> dict[str, Any]:
    return read_toml(FILE)


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file.

    Raises
    ------
    InputError
        When it cannot be read or is no TOML.
    """
    try:
        return tomllib.loads(read_text(path, str(path)))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{path}: not readable TOML ({error}); check quotes and brackets") from error


def cluster_of(table: Table, where: str, devices: Mapping[str, Table] | None = None) -> Cluster:
    """Build a cluster from the fields of a TOML file.

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
    fields: dict[str, Any] = dict(table)
    for name in ("name", "n", "per_node", "device", "intra", "inter", "host"):
        if name not in table:
            raise InputError(f"{where}: {name}: missing, but a cluster needs it")
    device = table["device"]
    if isinstance(device, str):
        if device not in (devices or {}):
            raise UnknownNameError("device", device, devices or {})
        device = (devices or {})[device]
    # A preset's device brings the sources of its figures along.
    device = {key: value for key, value in _table(device, f"{where}: device").items() if key != "sources"}
    _keys(device, Device.__struct_fields__, f"{where}: device")
    fields["device"] = _converted(device, Device, f"{where}: device")
    for name in ("intra", "inter", "host", "wide"):
        if table.get(name) is not None:
            fields[name] = _link(table[name], f"{where}: {name}")
    if table.get("delay") is not None:
        _keys(_table(table["delay"], f"{where}: delay"), Delay.__struct_fields__, f"{where}: delay")
        fields["delay"] = _converted(table["delay"], Delay, f"{where}: delay")
    fields["sources"] = {}
    for key, value in _table(table.get("sources", {}), f"{where}: sources").items():
        at = f"{where}: sources.{key}"
        figure: Figure = _converted(_table(value, at), Figure, at)
        if figure.evidence not in EVIDENCE:
            raise UnknownNameError("evidence", figure.evidence, EVIDENCE)
        fields["sources"][key] = figure
    return checked(_converted(fields, Cluster, where), where)


def checked(cluster: Cluster, where: str) -> Cluster:
    """Return the cluster if every field is within its range.

    Raises
    ------
    InputError
    """
    for field, low, high, kind in RANGES:
        _within(where, field, getattr(cluster, field), low, high, kind)
    if not cluster.name.strip():
        raise InputError(f"{where}: name: empty; name the cluster")
    if cluster.per_site % cluster.per_node:
        raise InputError(f"{where}: per_site: {cluster.per_site} is not a multiple of per_node {cluster.per_node}")
    if (cluster.wide is None) != (cluster.per_site == 0):
        raise InputError(f"{where}: per_site and wide: give both (several sites) or neither")
    if cluster.speed and len(cluster.speed) != cluster.n:
        raise InputError(f"{where}: speed: {len(cluster.speed)} values for {cluster.n} ranks; give one each or none")
    for value in cluster.speed:
        _within(where, "speed", value, 1e-6, 1e6)
    _check_pairs(cluster, where)
    if cluster.delay is not None:
        checked_delay(cluster.delay, f"{where}: delay")
    for field, low, high in DEVICE_RANGES:
        _within(where, f"device.{field}", getattr(cluster.device, field), low, high)
    for piece in cluster.device.measured:
        for value in piece:
            _within(where, "device.measured", value, 1e-12, 1e24)
    return cluster


def _check_pairs(cluster: Cluster, where: str) -> None:
    sites = -(-cluster.n // cluster.per_site) if cluster.per_site else 0
    known = {f"{one}-{other}" for other in range(sites) for one in range(other)} if cluster.pairs else set()
    for pair, times in cluster.pairs.items():
        if pair not in known:
            raise InputError(
                f"{where}: pairs: {pair!r} is not a pair of its {sites} sites; give two of them, "
                "the lower one first, "
                "as in 0-1"
            )
        _within(where, f"pairs.{pair}", times, 1e-6, 1e6)


def _within(where: str, field: str, value: float, low: float, high: float, kind: str = "a number") -> None:
    if not (math.isfinite(value) and low <= value <= high):
        raise InputError(f"{where}: {field}: {value} is out of range; give {kind} from {low:g} to {high:.7g}")


def _link(value: Any, where: str) -> Link:
    table = dict(_table(value, where))
    _keys(table, (*Link.__struct_fields__, "gbit_per_s"), where)
    if ("gbit_per_s" in table) == ("beta_s_per_byte" in table):
        raise InputError(f"{where}: give its bandwidth once, as gbit_per_s or as beta_s_per_byte")
    if "gbit_per_s" in table:
        rate = table.pop("gbit_per_s")
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < math.inf:
            raise InputError(f"{where}: gbit_per_s: {rate!r} is not a bandwidth; give a positive number")
        table["beta_s_per_byte"] = 8e-9 / rate
    link = _converted(table, Link, where)
    _within(where, "alpha_s", link.alpha_s, 0, 1e6)
    _within(where, "beta_s_per_byte", link.beta_s_per_byte, 0, 1e6)
    return link


def _table(value: Any, where: str) -> Table:
    if not isinstance(value, Mapping):
        raise InputError(f"{where}: {value!r} is not a table; give its fields")
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


def to_toml(record: Record) -> str:
    """Write a cluster, or a step of another kind, as TOML; :func:`cluster_of` reads the cluster back.

    Examples
    --------
    >>> link = Link(1e-5, 1e-9, shared="nic")
    >>> cluster = Cluster("mine", 2, 1, Device("toy", 1e12, 1e11), link, link, link)
    >>> cluster_of(tomllib.loads(to_toml(cluster)), "mine.toml") == cluster
    True
    """
    plain = {key: value for key, value in record.to_dict().items() if value is not None and value != {}}
    sources = plain.pop("sources", {})
    tables = {key: value for key, value in plain.items() if isinstance(value, Mapping)}
    lines = [f"{key} = {_value(value)}" for key, value in plain.items() if key not in tables]
    for name, table in (tables | {f"sources.{_value(key)}": value for key, value in sources.items()}).items():
        given = {key: value for key, value in table.items() if value is not None}
        lines += ["", f"[{name}]", *(f"{key} = {_value(value)}" for key, value in given.items())]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    """One value as TOML; its basic strings escape as JSON does, DEL besides."""
    if isinstance(value, str):
        return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    return repr(value)
