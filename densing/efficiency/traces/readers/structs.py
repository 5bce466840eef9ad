"""Events as typed structs, one set per use: what is not wanted is skipped by the parser itself."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Literal, Union

import msgspec

from densing.efficiency.traces.readers.categories import ROLES, Role, role
from densing.efficiency.traces.readers.exact import MISSING

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


ARGS: dict[Role, type[msgspec.Struct]] = {
    Role.DEVICE: DeviceArgs,
    Role.SYNC: DeviceArgs,
    Role.UNKNOWN: DeviceArgs,
    Role.LAUNCH: LaunchArgs,
    Role.RANGE: RangeArgs,
    Role.OP: OpArgs,
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
        self.decode = self._decoder()

    def _decoder(self) -> Any:
        return _decoder(self.operators, self.text, self.learned).decode

    def learn(self, categories: Iterable[str]) -> None:
        """Know more categories from here on."""
        new = [c for c in categories if c not in ROLES and c not in self.learned]
        if new and len(self.learned) + len(new) <= self.MAX_LEARNED:
            self.learned = (*self.learned, *sorted(new))
            self.decode = self._decoder()


CATEGORY: dict[type, str] = {}
"""Category of each typed struct that is wanted; structs of skipped categories are not in it."""


def tag_of(kind: type[msgspec.Struct]) -> str:
    """Return the category that a typed struct is of, one that is left out too."""
    return str(kind.__struct_config__.tag)


@lru_cache(maxsize=64)
def _decoder(operators: bool, text: bool, learned: tuple[str, ...]) -> msgspec.json.Decoder[Any]:
    kinds = tuple(struct_of(category, operators, text) for category in (*ROLES, *learned))
    return msgspec.json.Decoder(list[Union[kinds]])  # type: ignore[valid-type]  # noqa: UP007


@lru_cache(maxsize=512)
def struct_of(category: str, operators: bool, text: bool) -> type[msgspec.Struct]:
    what = role(category)
    name = f"E{len(CATEGORY)}"
    if what is Role.SKIP or (what is Role.OP and not operators):
        return msgspec.defstruct(name, [], tag_field="cat", tag=category, gc=False)
    time: Any = (msgspec.Raw, _NO_TIME) if text else (Number, MISSING)
    args = ARGS[what]
    fields: list[Any] = [
        ("name", str, ""),
        ("ts", *time),
        ("dur", *time),
        ("pid", Id, 0),
        ("tid", Id, 0),
        ("args", args, msgspec.field(default_factory=args)),
        ("ph", _Complete, "X"),
    ]
    made = msgspec.defstruct(name, fields, tag_field="cat", tag=category, gc=False)
    CATEGORY[made] = category
    return made
