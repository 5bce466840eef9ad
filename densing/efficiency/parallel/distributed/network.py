"""The network between ranks: links as they are written (``200mbit``, ``emulated:1gbit``, ``none``), and real ones.

Ranks may have links of their own (``1gbit,1gbit,50mbit``): what two of them send each other goes at the slower one's.

A real link of a chosen rate is made of network namespaces and shaped interfaces (Linux, iproute2). Each rank gets a
namespace of its own, held open by a small process that waits on a pipe from here: when this process ends, in whatever
way, the pipe closes, the holders end, and the kernel takes namespaces, interfaces and queues away. Nothing has a name
that could stay behind.

Two ranks are joined by a pair of interfaces, more by a bridge in a further namespace. Each direction of each rank's
link passes a token bucket (``tbf``): bytes over ``rate`` wait. The bucket holds 2.5 ms of traffic (32 KiB at least):
what fits in it after a pause passes at once, so it is kept small. Bandwidth is real then, and so is what the processor
does for it; latency is that of the machine itself. Packets leave in pieces smaller than any bucket, at every rate:
larger ones the queue would cut into single frames, and a slow link would cost the processor several times as much for
a byte as a fast one.

The superuser can do this; others can where the system lets them have user namespaces.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Literal

from msgspec.structs import replace

from densing.core import InputError, Record, UnavailableError, processes

Kind = Literal["none", "shaped", "emulated"]

_BITS = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
_FORM = re.compile(r"(?:(emulated):)?(\d+(?:\.\d+)?(?:e[+-]?\d+)?)([a-z]+)(?::(\d+(?:\.\d+)?)(us|ms|s))?", re.ASCII)
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_LEAST, _MOST = 1e4, 1e12

_TOOLS = {"ip": "iproute2", "tc": "iproute2", "nsenter": "util-linux", "unshare": "util-linux"}
_SUBNET = "10.213.77"
INTERFACE = "link0"
"""Name of a rank's network interface inside its namespace."""

_LEAST_BURST, _LARGEST_PACKET = 32768, 16384
"""Bytes: of the smallest bucket, and of what is handed to it at once."""
MOST_RANKS = 64
_PATIENCE_S = 20.0


class Rate(Record, frozen=True):
    """A link between ranks.

    Parameters
    ----------
    kind : {"none", "shaped", "emulated"}
    bytes_per_s : float
        Infinite where there is none.
    latency_s : float
        Per message; only an emulated link adds one.
    text : str
        As it was written.
    """

    kind: Kind
    bytes_per_s: float
    latency_s: float = 0.0
    text: str = "none"

    @property
    def bits_per_s(self) -> float:
        """Bits per second, as network tools count."""
        return 8 * self.bytes_per_s


NONE = Rate("none", math.inf)


def parse_rate(text: str) -> Rate:
    """Read a link.

    Parameters
    ----------
    text : str
        ``none``; a rate in kbit, mbit or gbit per second (decimal) for a shaped interface; ``emulated:`` before it
        for an emulated link, whose latency per message may follow (``emulated:200mbit:5ms``).

    Raises
    ------
    InputError
        When it is none of these, or the rate is below 10 kbit/s or above 1 Tbit/s.

    Examples
    --------
    >>> parse_rate("200mbit").bytes_per_s
    25000000.0
    >>> parse_rate("emulated:1gbit:5ms")
    Rate(kind='emulated', bytes_per_s=125000000.0, latency_s=0.005, text='emulated:1gbit:5ms')
    >>> parse_rate("none").kind
    'none'
    >>> parse_rate("fast")
    Traceback (most recent call last):
        ...
    densing.core.errors.InputError: link 'fast': write none, a rate like 200mbit or 1gbit, or emulated:200mbit
    """
    plain = text.strip().lower()
    if plain in ("", "none"):
        return NONE
    match = _FORM.fullmatch(plain)
    if match is None:
        raise InputError(f"link {text[:60]!r}: write none, a rate like 200mbit or 1gbit, or emulated:200mbit")
    emulated, number, unit, wait, wait_unit = match.groups()
    if unit not in _BITS:
        raise InputError(
            f"link {text[:60]!r}: unit {unit[:20]!r} is unknown; write bit, kbit, mbit or gbit (per second)"
        )
    bits = float(number) * _BITS[unit]
    if not _LEAST <= bits <= _MOST:
        raise InputError(f"link {text[:60]!r}: must lie between 10kbit and 1000gbit")
    if wait is not None and not emulated:
        raise InputError(f"link {text[:60]!r}: only an emulated link has a latency; write emulated:{plain}")
    latency = float(wait) * _SECONDS[wait_unit] if wait else 0.0
    if latency > 10:
        raise InputError(f"link {text[:60]!r}: latency above 10 s; give one like 5ms")
    return Rate("emulated" if emulated else "shaped", bits / 8, latency, plain)


def parse_rates(text: str, n: int) -> tuple[Rate, ...]:
    """Read the link of every rank: one for all, or one each with commas between them.

    Parameters
    ----------
    text : str
        As for :func:`parse_rate`; what comes before the first colon of several (``emulated:``) holds for all.
    n : int
        Ranks.

    Raises
    ------
    InputError
        When there are more or fewer than ranks, or some ranks have one and others none.

    Examples
    --------
    >>> [rate.bits_per_s for rate in parse_rates("emulated:1gbit,1gbit,50mbit", 3)]
    [1000000000.0, 1000000000.0, 50000000.0]
    """
    parts = [part.strip() for part in text.split(",")]
    if len(parts) == 1:
        return (parse_rate(text),) * n
    if len(parts) != n:
        raise InputError(f"link {text[:60]!r}: {len(parts)} links for {n} ranks; give one for all, or one per rank")
    before = "emulated:" if parts[0].startswith("emulated:") else ""
    rates = tuple(parse_rate(before + part.removeprefix(before)) for part in parts)
    if any(rate.kind == "none" for rate in rates):
        raise InputError(f"link {text[:60]!r}: some ranks have no link; give every rank a rate")
    return rates


def slowest(rates: Sequence[Rate]) -> Rate:
    """Return the link between ranks with these links: the least bandwidth, the longest latency.

    Examples
    --------
    >>> slowest(parse_rates("1gbit,50mbit", 2)).text
    '50mbit'
    """
    least = min(rates, key=lambda rate: rate.bytes_per_s)
    return replace(least, latency_s=max(rate.latency_s for rate in rates))


def burst_bytes(rate: Rate) -> int:
    """Return how many bytes may pass at once after a pause.

    Examples
    --------
    >>> burst_bytes(parse_rate("200mbit")), burst_bytes(parse_rate("1mbit"))
    (62500, 32768)
    """
    return max(_LEAST_BURST, round(rate.bytes_per_s * 0.0025))


def available() -> str | None:
    """Return None if shaped links can be made here, else the reason why not."""
    missing = _missing()
    if missing:
        return missing
    try:
        with Net(parse_rates("100mbit", 2)):
            return None
    except UnavailableError as error:
        return str(error)


def _missing() -> str | None:
    if sys.platform != "linux":
        return "network namespaces need Linux"
    for tool, package in _TOOLS.items():
        if shutil.which(tool) is None:
            return f"the tool {tool} is missing (package {package})"
    return None


class Net:
    """Context manager of namespaces for ranks and the links between them.

    Parameters
    ----------
    rates : sequence of Rate
        Of each rank's link, in either direction; 2 to 64.

    Raises
    ------
    InputError
        When there are too few or too many.
    UnavailableError
        When the system does not allow it, or a tool is missing; the message says which.
    """

    def __init__(self, rates: Sequence[Rate]) -> None:
        self.n, self.rates = len(rates), rates
        if not 2 <= self.n <= MOST_RANKS:
            raise InputError(f"nproc={self.n}: a shaped link joins 2 to {MOST_RANKS} ranks")
        self._holders: list[subprocess.Popen[bytes]] = []
        self._user: list[str] = []

    def __enter__(self) -> Net:
        """Make them."""
        missing = _missing()
        if missing:
            raise UnavailableError(f"cannot shape a link: {missing}")
        try:
            self._hold()
            self._join()
        except BaseException:
            self._release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release them."""
        self._release()

    def address(self, rank: int) -> str:
        """Return the address of a rank."""
        return f"{_SUBNET}.{rank + 1}"

    def inside(self, rank: int) -> list[str]:
        """Return the command prefix that runs a command in the namespace of a rank."""
        return self._enter(self._holders[rank])

    def _hold(self) -> None:
        if os.geteuid() == 0:
            self._holders = [_holder(["unshare", "--net"]) for _ in range(self.n)]
        else:
            # The first one also makes the user namespace in which all others may be made.
            self._holders = [_holder(["unshare", "--user", "--map-root-user", "--net"])]
            self._user = ["nsenter", "-t", str(self._holders[0].pid), "-U", "--preserve-credentials"]
            self._holders += [_holder([*self._user, "unshare", "--net"]) for _ in range(self.n - 1)]
        if self.n > 2:
            self._holders.append(_holder([*self._user, "unshare", "--net"]))

    def _enter(self, holder: subprocess.Popen[bytes]) -> list[str]:
        credentials = ["-U", "--preserve-credentials"] if self._user else []
        return ["nsenter", "-t", str(holder.pid), *credentials, "-n"]

    def _join(self) -> None:
        ranks = self._holders[: self.n]
        if self.n == 2:
            # Each end is made inside its namespace: two interfaces of one name could not pass through ours.
            first, second = ranks
            pair = f"link add {INTERFACE} type veth peer name {INTERFACE} netns {second.pid}"
            self._ip(first, [pair])
        else:
            switch = self._holders[-1]
            ports = [f"link add port{r} type veth peer name {INTERFACE} netns {h.pid}" for r, h in enumerate(ranks)]
            ups = [line for r in range(self.n) for line in (f"link set port{r} master sw", f"link set port{r} up")]
            self._ip(switch, ["link add sw type bridge", *ports, *ups, "link set sw up"])
            self._shape(switch, {f"port{rank}": rate for rank, rate in enumerate(self.rates)})
        for rank, (holder, rate) in enumerate(zip(ranks, self.rates, strict=True)):
            address = f"address add {self.address(rank)}/24 dev {INTERFACE}"
            small = f"link set {INTERFACE} gso_max_size {_LARGEST_PACKET}"
            self._ip(holder, ["link set lo up", address, small, f"link set {INTERFACE} up"])
            # Two ranks have one wire; else the switch's port to a rank is as slow as the rank's own.
            self._shape(holder, {INTERFACE: slowest(self.rates) if self.n == 2 else rate})

    def _ip(self, holder: subprocess.Popen[bytes], lines: Sequence[str]) -> None:
        _run([*self._enter(holder), "ip", "-batch", "-"], lines)

    def _shape(self, holder: subprocess.Popen[bytes], interfaces: Mapping[str, Rate]) -> None:
        lines = [
            f"qdisc add dev {name} root tbf rate {rate.bits_per_s:.0f}bit burst {burst_bytes(rate)} latency 100ms"
            for name, rate in interfaces.items()
        ]
        _run([*self._enter(holder), "tc", "-batch", "-"], lines)

    def _release(self) -> None:
        for holder in self._holders:
            if holder.stdin is not None:
                holder.stdin.close()
        processes.stop(self._holders, grace_s=0.2)
        for holder in self._holders:
            if holder.stdout is not None:
                holder.stdout.close()
        self._holders = []


def _holder(prefix: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a process that holds a namespace open until the pipe to it closes."""
    command = [*prefix, "sh", "-c", "echo ready; read -r line"]
    holder = processes.start(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=None)
    assert holder.stdout is not None
    if holder.stdout.readline() != b"ready\n":
        processes.stop([holder])
        raise UnavailableError("cannot shape a link: this user cannot create network namespaces here; run as root")
    return holder


def _run(command: Sequence[str], lines: Sequence[str]) -> None:
    text = "\n".join(lines) + "\n"
    try:
        result = subprocess.run(command, input=text, capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"cannot shape a link: {command[-3]} did not answer within {_PATIENCE_S:g} s") from None
    if result.returncode:
        reasons = (result.stderr.strip() or result.stdout.strip()).splitlines() or ["no reason given"]
        raise UnavailableError(f"cannot shape a link: {command[-3]} says {reasons[0]!r}")
