"""What an event says: which category is what, typed structs that let the parser skip what is not wanted, exact times.

Sources of the categories: libkineto ``ActivityType`` names (output of 2020 to 2026), torch's ``kineto_shim`` (which of
them are the processor's), Intel's PTI plug-in (``collective_comm`` is the host's side of a collective, prefixed
``xccl:``) and Habana's (``hpu_op`` is the host's). The first exporter of 2020 wrote some of them capitalised.

Traces hold times as decimal microseconds, mostly with three decimals; they become integer nanoseconds, exactly. A
float64 resolves them only below 2⁴³ µs (101.8 days); Kineto's times since its own base stay below that, Unix times do
not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation, localcontext
from enum import IntEnum
from functools import lru_cache
from typing import Any, Literal, Union

import msgspec
import numpy as np
from numpy.typing import NDArray

from densing.efficiency.timeline import Int
from densing.efficiency.traces.kineto.text import NoNumber, clean


class Role(IntEnum):
    """What a reader does with an event: device work, device waits, host calls, ranges, operators, frames, nothing."""

    DEVICE = 0
    SYNC = 1
    LAUNCH = 2
    RANGE = 3
    OP = 4
    SKIP = 5
    UNKNOWN = 6
    FRAME = 7


MODULE = "nn.Module: "
"""What the name of a Python frame begins with that is the call of a module."""
KERNEL, MEMCPY, MEMSET, MTIA, SYNC = "kernel", "gpu_memcpy", "gpu_memset", "mtia_ccp_events", "cuda_sync"

ROLES: dict[str, Role] = {
    KERNEL: Role.DEVICE,
    MEMCPY: Role.DEVICE,
    MEMSET: Role.DEVICE,
    MTIA: Role.DEVICE,
    "Kernel": Role.DEVICE,
    "Memcpy": Role.DEVICE,
    "Memset": Role.DEVICE,
    SYNC: Role.SYNC,
    "xpu_sync": Role.SYNC,
    "cuda_runtime": Role.LAUNCH,
    "cuda_driver": Role.LAUNCH,
    "xpu_runtime": Role.LAUNCH,
    "xpu_driver": Role.LAUNCH,
    "mtia_runtime": Role.LAUNCH,
    "glow_runtime": Role.LAUNCH,
    "privateuse1_runtime": Role.LAUNCH,
    "privateuse1_driver": Role.LAUNCH,
    "hpu_op": Role.LAUNCH,
    "runtime": Role.LAUNCH,
    "driver": Role.LAUNCH,
    "Runtime": Role.LAUNCH,
    "Driver": Role.LAUNCH,
    "user_annotation": Role.RANGE,
    "collective_comm": Role.RANGE,
    "cpu_op": Role.OP,
    "Operator": Role.OP,
    "gpu_user_annotation": Role.SKIP,
    "external_correlation": Role.SKIP,
    "cpu_instant_event": Role.SKIP,
    "python_function": Role.SKIP,
    # What frames of modules become here; all others are left out.
    MODULE: Role.FRAME,
    "overhead": Role.SKIP,
    "mtia_insight": Role.SKIP,
    # Whole workloads, around the events of mtia_ccp_events that do them.
    "mtia_workloadd": Role.SKIP,
    # Our own overlay tracks, written back by `densing profile --perfetto`.
    "densing": Role.SKIP,
    "mtia_counters": Role.SKIP,
    "cuda_event": Role.SKIP,
    "cuda_profiler_range": Role.SKIP,
    "xpu_scope_profiler": Role.SKIP,
    "hardware_counters": Role.SKIP,
    "gpu_pm_counter": Role.SKIP,
    "Trace": Role.SKIP,
    "ac2g": Role.SKIP,
    "fwdbwd": Role.SKIP,
    "async_cpu_to_gpu": Role.SKIP,
    "async_gpu": Role.SKIP,
    "forward_backward": Role.SKIP,
}

# What is left out of a device's side: it shows that there was a device, and tells nothing of its work.
_OF_DEVICE = {
    "gpu_user_annotation",
    "cuda_event",
    "cuda_profiler_range",
    "xpu_scope_profiler",
    "gpu_pm_counter",
    "mtia_insight",
    "mtia_workloadd",
    "mtia_counters",
    "async_cpu_to_gpu",
    "async_gpu",
}

_ALIASES = {"Kernel": KERNEL, "Memcpy": MEMCPY, "Memset": MEMSET, "xpu_sync": SYNC}

# Other makers' plug-ins keep Kineto's pattern under their own prefix (mlu_memcpy, gcu_runtime, supa_sync, ...).
_PATTERNS: tuple[tuple[re.Pattern[str], Role, str], ...] = (
    (re.compile(r"(?i).+_memcpy"), Role.DEVICE, MEMCPY),
    (re.compile(r"(?i).+_memset"), Role.DEVICE, MEMSET),
    (re.compile(r"(?i).+_sync"), Role.SYNC, SYNC),
    (re.compile(r"(?i).+_(runtime|driver)"), Role.LAUNCH, ""),
    (re.compile(r"(?i).+_(user_annotation|profiler_range|counters?|overhead)"), Role.SKIP, ""),
)

# The exporter of autograd's first profiler wrote no category; its processes carry these names.
_PROCESSES = {"CUDA functions": KERNEL, "CPU functions": "cpu_op"}


@lru_cache(maxsize=1024)
def role(category: str) -> Role:
    """Return what to do with the events of a category.

    Examples
    --------
    >>> role("kernel").name, role("mlu_memcpy").name, role("Runtime").name, role("brand_new").name
    ('DEVICE', 'DEVICE', 'LAUNCH', 'UNKNOWN')
    """
    if category in ROLES:
        return ROLES[category]
    return next((role for pattern, role, _ in _PATTERNS if pattern.fullmatch(category)), Role.UNKNOWN)


def marks_device(category: str) -> bool:
    """Return whether events of a category, left out themselves, show that the run used a device.

    Examples
    --------
    >>> marks_device("cuda_profiler_range"), marks_device("gcu_profiler_range"), marks_device("fwdbwd")
    (True, True, False)
    """
    return category in _OF_DEVICE or (category not in ROLES and role(category) is Role.SKIP)


@lru_cache(maxsize=1024)
def canonical(category: str) -> str:
    """Return Kineto's present name of a device category, the category itself where it has no other.

    Examples
    --------
    >>> canonical("Memcpy"), canonical("mlu_memset"), canonical("kernel")
    ('gpu_memcpy', 'gpu_memset', 'kernel')
    """
    if category in ROLES:
        return _ALIASES.get(category, category)
    return next((name for pattern, _, name in _PATTERNS if name and pattern.fullmatch(category)), category)


def category_of(process: int | str) -> str:
    """Return the category of an event that has none, from its process; empty if that does not tell.

    Examples
    --------
    >>> category_of("CUDA functions"), category_of(7)
    ('kernel', '')
    """
    return _PROCESSES.get(process, "") if isinstance(process, str) else ""


# Typed structs, one per category.

Id = int | str
Number = int | float
_Complete = Literal["X"]


class CommArgs(msgspec.Struct, gc=False):
    """What a collective says of itself, as PyTorch names it."""

    collective: str = msgspec.field(default="", name="Collective name")
    in_elems: int = msgspec.field(default=-1, name="In msg nelems")
    out_elems: int = msgspec.field(default=-1, name="Out msg nelems")
    group_size: int = msgspec.field(default=-1, name="Group size")
    dtype: str = ""
    group: Id = msgspec.field(default="", name="Process Group Name")
    group_name: str = msgspec.field(default="", name="Process Group Description")
    ranks: str | list[int] = msgspec.field(default="", name="Process Group Ranks")
    seq: int = msgspec.field(default=-1, name="Seq")
    src: int = msgspec.field(default=-1, name="Src Rank")
    dst: int = msgspec.field(default=-1, name="Dst Rank")


class DeviceArgs(CommArgs, gc=False):
    """Arguments of device work."""

    stream: Id | None = None
    device: Id | None = None
    correlation: int = -1
    bytes: int = -1
    external: int = msgspec.field(default=-1, name="External id")


class LaunchArgs(msgspec.Struct, gc=False):
    """Arguments of a runtime call."""

    correlation: int = -1
    external: int = msgspec.field(default=-1, name="External id")


class RangeArgs(msgspec.Struct, gc=False):
    """Arguments of a named range."""

    dims: Any = msgspec.field(default=None, name="Input Dims")
    types: Any = msgspec.field(default=None, name="Input type")


class OpArgs(CommArgs, gc=False):
    """Arguments of an operator; those of a communication's operator tell what is communicated."""

    external: int = msgspec.field(default=-1, name="External id")
    dims: Any = msgspec.field(default=None, name="Input Dims")
    types: Any = msgspec.field(default=None, name="Input type")
    values: Any = msgspec.field(default=None, name="Concrete Inputs")


class FrameArgs(msgspec.Struct, gc=False):
    """Arguments of a module's call, which are not needed: calls nest by their times."""


ARGS: dict[Role, type[msgspec.Struct]] = {
    Role.DEVICE: DeviceArgs,
    Role.SYNC: DeviceArgs,
    Role.UNKNOWN: DeviceArgs,
    Role.LAUNCH: LaunchArgs,
    Role.RANGE: RangeArgs,
    Role.OP: OpArgs,
    Role.FRAME: FrameArgs,
}

_NO_TIME = msgspec.Raw(b"")


class AnyEvent(msgspec.Struct, gc=False):
    """An event of any kind, times as text; for those without category and for whatever fits no typed struct."""

    ph: str = "X"
    cat: str = ""
    name: str = ""
    ts: msgspec.Raw = _NO_TIME
    dur: msgspec.Raw = _NO_TIME
    pid: Id = 0
    tid: Id = 0
    args: dict[str, Any] | None = None


class ShapeArgs(msgspec.Struct, gc=False):
    """Shapes of an operator as they stand in the text: few differ, and each is read once."""

    external: int = msgspec.field(default=-1, name="External id")
    dims: msgspec.Raw = msgspec.field(default=_NO_TIME, name="Input Dims")
    types: msgspec.Raw = msgspec.field(default=_NO_TIME, name="Input type")
    values: msgspec.Raw = msgspec.field(default=_NO_TIME, name="Concrete Inputs")


class ShapedEvent(msgspec.Struct, gc=False):
    """An operator, read for its shapes alone."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    args: ShapeArgs = msgspec.field(default_factory=ShapeArgs)


SHAPED_EVENT = msgspec.json.Decoder(ShapedEvent)
ANY_EVENT = msgspec.json.Decoder(AnyEvent)
ANY_EVENTS = msgspec.json.Decoder(list[AnyEvent])


class Decoders:
    """The typed decoder of a file's events, which learns the categories it meets.

    Parameters
    ----------
    operators : bool
        Whether operators are wanted.
    text : bool
        Whether times are read as text (exact beyond float64).

    Attributes
    ----------
    learned : tuple of str
        Categories met in this file that no table names.

    Examples
    --------
    >>> rows = Decoders(operators=False, text=False).decode(b'[{"cat":"kernel","name":"gemm","ts":1.5,"dur":2}]')
    >>> rows[0].name, rows[0].ts, CATEGORY[type(rows[0])]
    ('gemm', 1.5, 'kernel')
    """

    MAX_LEARNED = 64

    def __init__(self, operators: bool, text: bool) -> None:
        self.operators, self.text = operators, text
        self.learned: tuple[str, ...] = ()
        self.decode = _decoder(operators, text, ()).decode

    def learn(self, categories: Iterable[str]) -> None:
        """Know more categories from here on."""
        new = [c for c in categories if c not in ROLES and c not in self.learned]
        if new and len(self.learned) + len(new) <= self.MAX_LEARNED:
            self.learned = (*self.learned, *sorted(new))
            self.decode = _decoder(self.operators, self.text, self.learned).decode


CATEGORY: dict[type, str] = {}
"""Category of each typed struct that is read; structs of skipped categories are missing."""


def tag_of(kind: type[msgspec.Struct]) -> str:
    """Return the category that a typed struct is of, one that is left out too."""
    return str(kind.__struct_config__.tag)


@lru_cache(maxsize=64)
def _decoder(operators: bool, text: bool, learned: tuple[str, ...]) -> msgspec.json.Decoder[Any]:
    kinds = tuple(struct_of(category, operators, text) for category in (*ROLES, *learned))
    return msgspec.json.Decoder(list[Union[kinds]])  # type: ignore[valid-type]  # noqa: UP007


@lru_cache(maxsize=512)
def struct_of(category: str, operators: bool, text: bool) -> type[msgspec.Struct]:
    """Return the struct of a category's events; one without fields for a category that is left out."""
    category_role = role(category)
    name = f"E{len(CATEGORY)}"
    if category_role is Role.SKIP or (category_role is Role.OP and not operators):
        return msgspec.defstruct(name, [], tag_field="cat", tag=category, gc=False)
    time: Any = (msgspec.Raw, _NO_TIME) if text else (Number, MISSING)
    args = ARGS[category_role]
    fields: list[Any] = [
        ("name", str, ""),
        ("ts", *time),
        ("dur", *time),
        ("pid", Id, 0),
        ("tid", Id, 0),
        ("args", args, msgspec.field(default_factory=args)),
        ("ph", _Complete, "X"),
    ]
    struct = msgspec.defstruct(name, fields, tag_field="cat", tag=category, gc=False)
    CATEGORY[struct] = category
    return struct


def typed(event: AnyEvent, category: str) -> Any:
    """Return an event of any kind as the struct of a category; arguments of an impossible type are left out."""
    kind, arguments = ARGS[role(category)], event.args or {}
    try:
        args = msgspec.convert(arguments, kind, strict=False)
    except msgspec.ValidationError:
        args = msgspec.convert({k: v for k, v in arguments.items() if _fits(k, v, kind)}, kind, strict=False)
    struct = struct_of(category, operators=True, text=True)
    return struct(name=event.name, ts=event.ts, dur=event.dur, pid=event.pid, tid=event.tid, args=args)


def _fits(key: str, value: Any, kind: type[msgspec.Struct]) -> bool:
    try:
        msgspec.convert({key: value}, kind, strict=False)
    except msgspec.ValidationError:
        return False
    return True


def from_value(value: dict[str, Any]) -> AnyEvent:
    """Make an event of a leniently parsed object; fields of impossible type count as absent.

    Examples
    --------
    >>> event = from_value({"ph": "X", "name": 7, "ts": Decimal("1.5"), "cat": "kernel"})
    >>> event.name, bytes(event.ts)
    ('7', b'1.5')
    """
    args = value.get("args")
    return AnyEvent(
        ph=_string(value.get("ph", "X")),
        cat=_string(value.get("cat", "")),
        name=_string(value.get("name", "")),
        ts=_time(value.get("ts")),
        dur=_time(value.get("dur")),
        pid=pid if type(pid := value.get("pid", 0)) is int else _string(pid),
        tid=tid if type(tid := value.get("tid", 0)) is int else _string(tid),
        args={clean(k): _plain(v) for k, v in args.items()} if isinstance(args, dict) else None,
    )


def _string(value: Any) -> str:
    return clean(value if isinstance(value, str) else str(_plain(value)))


def _time(value: Any) -> msgspec.Raw:
    if isinstance(value, str):
        return msgspec.Raw(b'"' + clean(value).encode() + b'"')
    if isinstance(value, NoNumber):
        return msgspec.Raw(value.text.encode())
    return msgspec.Raw(b"" if value is None else str(value).encode("utf-8", "replace"))


def _plain(value: Any) -> Any:
    if isinstance(value, NoNumber):
        return None
    if isinstance(value, Decimal):
        return float(value) if abs(value.adjusted()) < 300 else None
    return clean(value) if isinstance(value, str) else value


# Microseconds to nanoseconds.

MISSING = -(2**40)
"""Stands for a missing time; no event is at -12.7 days to the microsecond."""

LIMIT_NS = 2**62
"""Times at or beyond this (146 years) count as damaged: with the base time added they would overflow int64."""

BLUNT_NS = 2**42 * 1000
"""From here on (2⁴² µs) a float64 does not show whether its text had more than three decimals."""

_PLAIN, _RESOLVED = 2.0**42, 2.0**43
_BEYOND = float(LIMIT_NS // 1000)


class NeedsText(Exception):
    """The times of this file are finer than float64 holds: its decimal text must be read."""


def from_numbers(values: list[int | float]) -> Int:
    """Convert parsed numbers of microseconds to nanoseconds.

    With x the number, ns = 1000·⌊x⌋ + rint(1000·(x − ⌊x⌋)), which is exact below 2⁴³ µs for three decimals;
    integers are exact anyhow.

    Parameters
    ----------
    values : list of int or float
        Microseconds as a JSON parser gives them; ``MISSING`` for none.

    Returns
    -------
    int64 (n,)
        Nanoseconds; what lies beyond ``LIMIT_NS`` becomes ``LIMIT_NS`` or ``-LIMIT_NS``.

    Raises
    ------
    NeedsText
        When the numbers have more digits than float64 holds, or more than three decimals.

    Examples
    --------
    >>> from_numbers([4458676522690.655, 156.777, 3]).tolist()
    [4458676522690655, 156777, 3000]
    """
    try:
        array = np.fromiter(values, np.float64, len(values))
    except OverflowError:
        # Whole numbers that float64 does not hold.
        values = [max(min(value, 2**80), -(2**80)) for value in values]
        array = np.array(values, np.float64)
    top = np.abs(array).max(initial=0.0)
    if top >= _RESOLVED:
        return _from_large(array, values)
    if top < _PLAIN:
        ns = np.rint(array * 1000)
    else:
        units = np.floor(array)
        ns = units * 1000 + np.rint((array - units) * 1000)
    # Of all numbers with three decimals, ns/1000 is the nearest to the float read; if it is not the float itself,
    # the text had more decimals.
    if not (ns / 1000 == array).all():
        raise NeedsText
    return ns.astype(np.int64)


def _from_large(array: NDArray[np.float64], values: list[int | float]) -> Int:
    """Convert numbers of which some reach 2⁴³: from there on only whole numbers that were written as such are exact."""
    numbers = np.array(values)
    if numbers.dtype == np.int64:
        beyond = LIMIT_NS // 1000 + 1
        return np.asarray(numbers.clip(-beyond, beyond) * 1000).clip(-LIMIT_NS, LIMIT_NS)
    size = np.abs(array)
    sane, fine = size < _BEYOND, size < _RESOLVED
    large = np.flatnonzero(sane & ~fine)
    if len(large):
        if fine.any() or any(isinstance(values[i], float) for i in large):
            raise NeedsText
        return np.array([min(max(int(v) * 1000, -LIMIT_NS), LIMIT_NS) for v in values], np.int64)
    ns = from_numbers(np.where(sane, array, 0.0).tolist())
    return np.where(sane, ns, np.where(array > 0, LIMIT_NS, -LIMIT_NS))


def from_text(text: bytes | str | int | Decimal) -> int:
    """Convert the decimal text of microseconds to nanoseconds; digits below are rounded half to even.

    Returns
    -------
    int
        Nanoseconds; ``LIMIT_NS`` or ``-LIMIT_NS`` for what lies beyond.

    Raises
    ------
    ValueError
        When it is not a finite number.

    Examples
    --------
    >>> from_text(b"1682725898236567.0625"), from_text("12"), from_text(b"0.0005"), from_text(b"1e3")
    (1682725898236567062, 12000, 0, 1000000)
    """
    if isinstance(text, bytes):
        units, point, fraction = text.partition(b".")
        if len(fraction) <= 3 and len(units) < 17 and units.isdigit() and (fraction.isdigit() or not point):
            return min(int(units) * 1000 + (int(fraction) * 10 ** (3 - len(fraction)) if fraction else 0), LIMIT_NS)
        text = text.decode("ascii", "replace")
    try:
        number = Decimal(text)
    except (InvalidOperation, ValueError) as error:
        raise ValueError("not a number") from error
    if not number.is_finite():
        raise ValueError("not a number" if number.is_nan() else "not finite")
    if number.adjusted() >= 17:
        return LIMIT_NS if number > 0 else -LIMIT_NS
    if number.adjusted() < -30:
        return 0
    with localcontext() as context:
        # Digits that no clock wrote must not be rounded twice, nor a million of them be computed with.
        context.prec = max(40, min(len(number.as_tuple().digits) + 4, 4000))
        ns = int((number * 1000).to_integral_value(rounding=ROUND_HALF_EVEN))
    return min(max(ns, -LIMIT_NS), LIMIT_NS)
