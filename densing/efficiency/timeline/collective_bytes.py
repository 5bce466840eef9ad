"""How many bytes a communication moves, and how fast that is.

With S the bytes of a collective over n ranks that took t:

.. math:: algbw = S / t, \\qquad busbw = algbw \\cdot f(n)

S counts output bytes for all-gather and receive, input bytes otherwise. f is 2(n−1)/n for all-reduce, (n−1)/n for
all-gather, reduce-scatter and all-to-all, 1 for broadcast and reduce.

Source: NVIDIA nccl-tests, doc/PERFORMANCE.md (recalled, not re-read).
"""

from __future__ import annotations

from collections.abc import Callable

from densing.core import Record
from densing.efficiency.timeline.spans import Comm

MOST_BYTES = 1 << 44
"""A communication or copy of more is taken for a damaged figure: no device holds so much, and sums stay exact."""

BANDWIDTH_SOURCE = "nccl-tests (recalled)"

_SIZES: dict[int, str] = {
    1: "bool byte char schar uchar int8 int8_t uint8 uint8_t s8 u8 qint8 quint8 signedchar unsignedchar float8_e4m3fn"
    " float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu float8 fp8 fp8_e4m3 fp8_e5m2 float8e4m3 float8e5m2"
    " float8_e4m3 float4_e2m1fn_x2 hif8",
    2: "half bfloat16 float16 fp16 bf16 f16 short shortint int16 int16_t uint16 uint16_t unsignedshort s16 u16"
    " __half __nv_bfloat16 hip_bfloat16",
    4: "float float32 fp32 f32 int int32 int32_t uint32 uint32_t unsignedint unsigned s32 u32 qint32 complexhalf"
    " complex<half> complex32",
    8: "double float64 fp64 f64 long longint int64 int64_t uint64 uint64_t unsignedlong unsignedlongint longlong"
    " longlongint s64 u64 complexfloat complex<float> complex64",
    16: "complexdouble complex<double> complex128",
}
_SIZE_OF = {name: size for size, text in _SIZES.items() for name in text.split()}


def dtype_bytes(dtype: str) -> int:
    """Return the size of an element type as traces and frameworks write it; -1 if unknown.

    Source: ScalarType names of PyTorch (c10/core/ScalarType.h), C++ type names as record_shapes writes
    them, NCCL names.

    Examples
    --------
    >>> [dtype_bytes(text) for text in ("c10::BFloat16", "long int", "Float8_e4m3fn", "torch.float32", "blob")]
    [2, 8, 1, 4, -1]
    """
    text = dtype.lower().replace(" ", "")
    for prefix in ("c10::", "at::", "torch.", "nccl", "std::"):
        text = text.replace(prefix, "")
    return _SIZE_OF.get(text, -1)


def comm_bytes(op: str, comm: Comm, recorded: int = -1) -> int:
    """Return S of one communication on one rank; -1 if the trace does not tell, or tells more than :data:`MOST_BYTES`.

    Parameters
    ----------
    op : str
        Operation, as :class:`~densing.efficiency.timeline.spans.Comm` names it.
    comm : Comm
    recorded : int
        Bytes the trace itself records for the span; used where elements or type are unknown.

    Examples
    --------
    >>> comm_bytes("all_gather", Comm(in_elems=10, out_elems=40, dtype="float"))
    160
    """
    size = dtype_bytes(comm.dtype)
    elements = _elements(op, comm)
    moved = elements * size if size > 0 and elements >= 0 else recorded
    return moved if moved <= MOST_BYTES else -1


def _elements(op: str, comm: Comm) -> int:
    many = max(comm.group_size, len(comm.ranks))
    if op in ("all_gather", "recv"):
        scale = many if op == "all_gather" else 1
        return comm.out_elems if comm.out_elems >= 0 else _scaled(comm.in_elems, scale)
    scale = many if op == "reduce_scatter" else 1
    return comm.in_elems if comm.in_elems >= 0 else _scaled(comm.out_elems, scale)


def _scaled(elements: int, scale: int) -> int:
    return elements * scale if elements >= 0 and scale > 0 else -1


def _of_ring(n: int) -> float:
    return (n - 1) / n


_FACTORS: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * _of_ring(n),
    "all_gather": _of_ring,
    "reduce_scatter": _of_ring,
    "all_to_all": _of_ring,
    "broadcast": lambda n: 1.0,
    "reduce": lambda n: 1.0,
}


def bus_factor(op: str, group_size: int) -> float | None:
    """Return busbw / algbw; None for operations without an agreed factor and groups of unknown size or of one.

    Source: nccl-tests, doc/PERFORMANCE.md (recalled).

    Examples
    --------
    >>> bus_factor("all_reduce", 8), bus_factor("all_gather", 8), bus_factor("send", 2)
    (1.75, 0.875, None)
    """
    factor = _FACTORS.get(op)
    return factor(group_size) if factor is not None and group_size > 1 else None


class Bandwidth(Record, frozen=True):
    """Algorithm and bus bandwidth in GB/s (10⁹ bytes per second); None where they are not known."""

    algbw_gbps: float | None
    busbw_gbps: float | None


def bandwidth(op: str, group_size: int, moved: int, took_ns: int) -> Bandwidth:
    """Return the bandwidths of ``moved`` bytes in ``took_ns`` nanoseconds.

    Examples
    --------
    >>> bandwidth("all_reduce", 8, 1_000_000, 10_000)
    Bandwidth(algbw_gbps=100.0, busbw_gbps=175.0)
    """
    if moved < 0 or took_ns <= 0:
        return Bandwidth(None, None)
    algorithm = moved / took_ns
    factor = bus_factor(op, group_size)
    return Bandwidth(algorithm, None if factor is None else algorithm * factor)
