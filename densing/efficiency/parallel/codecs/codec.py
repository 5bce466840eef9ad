"""Codecs: a tensor becomes a packet of bytes, and a tensor again; here those that send every element."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from densing.core import InputError

HALF_MOST = 65504.0
LEVELS = 127


class Packet(NamedTuple):
    """The packet sent for one tensor."""

    tensors: tuple[torch.Tensor, ...]

    @property
    def bytes(self) -> int:
        """Its size on the wire."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors)


def pack(packets: Sequence[Packet]) -> torch.Tensor:
    """Concatenate packets into one row of bytes, in order.

    Examples
    --------
    >>> pack([Packet((torch.tensor([1], dtype=torch.int32), torch.tensor([0.5])))]).tolist()
    [1, 0, 0, 0, 0, 0, 0, 63]
    """
    # An empty tensor may have strides that cannot be viewed otherwise, and weighs nothing.
    parts = [tensor for packet in packets for tensor in packet.tensors if tensor.numel()]
    bytes_ = [part.contiguous().view(-1).view(torch.uint8) for part in parts]
    return torch.cat(bytes_) if bytes_ else torch.empty(0, dtype=torch.uint8)


class Reader:
    """Reads the output of :func:`pack`, piece by piece.

    Parameters
    ----------
    data : Tensor of uint8
    """

    def __init__(self, data: torch.Tensor) -> None:
        self.data, self.at = data, 0

    def take(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """Return the next ``count`` elements of a type.

        Raises
        ------
        InputError
            When there are not so many.
        """
        size = count * dtype.itemsize
        part = self.data[self.at : self.at + size]
        if part.numel() < size:
            raise InputError(f"a packet ends after {len(self.data)} bytes, but {self.at + size} were expected")
        self.at += size
        # A copy begins where any type may begin.
        return part.clone().view(dtype)


class Codec(ABC):
    """Encoder and decoder of one tensor; one object per tensor, because some keep state.

    What was sent and what was kept back add up: ``decode(encode(x)) + (x - decode(encode(x))) == x`` to the last bit,
    for all but :class:`~densing.efficiency.parallel.codecs.frequency.Frequencies` and
    :class:`~densing.efficiency.parallel.codecs.low_rank.LowRank`, whose products round.

    Attributes
    ----------
    adds : bool
        Whether packets are float32 numbers alone, equally many each time, and a sum of packets is the packet of the
        sum: then whoever adds them up need not decode them.
    drifts : bool
        Whether a packet may weigh much more or less than was meant; else it weighs about the most of :meth:`bounds`.
    """

    adds = False
    drifts = False

    @abstractmethod
    def encode(self, tensor: torch.Tensor) -> Packet:
        """Return the packet of a finite tensor of any shape."""

    @abstractmethod
    def decode(self, reader: Reader, like: torch.Tensor) -> torch.Tensor:
        """Return the tensor decoded from a packet, with the shape, type and device of ``like``."""

    @abstractmethod
    def bounds(self, like: torch.Tensor) -> tuple[int, int]:
        """Return the smallest and the largest packet of such a tensor, in bytes."""

    def take(self, tensor: torch.Tensor) -> Packet:
        """Return the packet of a contiguous tensor, and leave the remainder in the tensor."""
        packet = self.encode(tensor)
        tensor.sub_(self.decode(Reader(pack([packet]).cpu()), tensor))
        return packet

    def state_dict(self) -> dict[str, Any]:
        """Return the state that the next packet depends on."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where :meth:`state_dict` was taken."""
        if state:
            raise InputError(f"the state belongs to another codec ({', '.join(state)}); this one is stateless")


def codec_states(codecs: Sequence[Codec]) -> dict[str, dict[str, Any]]:
    """Return the states of codecs by their number; of those that have any, because empty ones vanish in some stores."""
    states = {str(number): codec.state_dict() for number, codec in enumerate(codecs)}
    return {number: state for number, state in states.items() if state}


def load_codecs(codecs: Sequence[Codec], states: Mapping[str, Mapping[str, Any]]) -> None:
    """Continue where :func:`codec_states` was taken."""
    for number, codec in enumerate(codecs):
        codec.load_state_dict(states.get(str(number), {}))


class Dense(Codec):
    """Every element unchanged.

    Examples
    --------
    >>> codec = Dense()
    >>> tensor = torch.tensor([1.0, -2.0])
    >>> codec.decode(Reader(pack([codec.encode(tensor)])), tensor).tolist()
    [1.0, -2.0]
    """

    adds = True

    def encode(self, tensor: torch.Tensor) -> Packet:
        """Return the elements."""
        return Packet((tensor.detach().reshape(-1),))

    def take(self, tensor: torch.Tensor) -> Packet:
        """Return the elements, and leave zeros."""
        packet = self.encode(tensor.clone())
        tensor.zero_()
        return packet

    def decode(self, reader: Reader, like: torch.Tensor) -> torch.Tensor:
        """Return the tensor."""
        return reader.take(like.numel(), like.dtype).to(like.device).view(like.shape)

    def bounds(self, like: torch.Tensor) -> tuple[int, int]:
        """Return its bytes."""
        size = like.numel() * like.element_size()
        return size, size


class Half(Codec):
    """Every element in 16 bits; values beyond their range (65,504) are clipped."""

    def encode(self, tensor: torch.Tensor) -> Packet:
        """Return the elements, rounded."""
        flat = tensor.detach().reshape(-1).float()
        return Packet((flat.clamp(-HALF_MOST, HALF_MOST).half(),))

    def decode(self, reader: Reader, like: torch.Tensor) -> torch.Tensor:
        """Return the tensor."""
        return reader.take(like.numel(), torch.float16).to(like.device, like.dtype).view(like.shape)

    def bounds(self, like: torch.Tensor) -> tuple[int, int]:
        """Return two bytes an element."""
        return 2 * like.numel(), 2 * like.numel()


class Int8(Codec):
    """Every element as one of 255 levels, evenly spaced up to the largest element of the tensor, or of its block.

    Source of blocks: Dettmers et al., "8-bit Optimizers via Block-wise Quantization", arXiv 2110.02861 (recalled;
    theirs are not evenly spaced).

    Parameters
    ----------
    block : int, optional
        Elements that share a spacing; None: all of the tensor.

    Raises
    ------
    InputError
        When a block is no positive whole number.

    Examples
    --------
    >>> tensor = torch.tensor([0.01, 0.02, 50.0, 100.0])
    >>> for codec in (Int8(), Int8(block=2)):
    ...     print(codec.decode(Reader(pack([codec.encode(tensor)])), tensor).tolist()[1])
    0.0
    0.019999999552965164
    """

    def __init__(self, block: int | None = None) -> None:
        if block is not None and (isinstance(block, bool) or not isinstance(block, int) or block < 1):
            raise InputError(f"block={block!r}: must be a positive whole number of elements, or None")
        self.block = block

    def encode(self, tensor: torch.Tensor) -> Packet:
        """Return the spacings and the levels."""
        flat = tensor.detach().reshape(-1).float()
        width = self._width(len(flat))
        rows = torch.nn.functional.pad(flat, (0, -len(flat) % width)).view(-1, width) if len(flat) else flat.view(1, 0)
        most = rows.abs().amax(1) if len(flat) else flat.new_zeros(1)
        # The smallest normal number: below it a spacing would lose its own digits.
        scale = (most / LEVELS).clamp_min(torch.finfo(torch.float32).tiny)
        levels = (rows / scale[:, None]).round_().to(torch.int8)
        return Packet((scale, levels.view(-1)[: len(flat)]))

    def decode(self, reader: Reader, like: torch.Tensor) -> torch.Tensor:
        """Return the tensor."""
        count = like.numel()
        scale = reader.take(self._spacings(count), torch.float32)
        levels = reader.take(count, torch.int8).float()
        spread = scale if len(scale) == 1 else scale.repeat_interleave(self._width(count))[:count]
        return (levels * spread).to(like.device, like.dtype).view(like.shape)

    def bounds(self, like: torch.Tensor) -> tuple[int, int]:
        """Return a byte an element, and four a spacing."""
        size = 4 * self._spacings(like.numel()) + like.numel()
        return size, size

    def shared(self, count: int) -> list[int]:
        """Return how many elements of a tensor of ``count`` share each of its spacings."""
        width = self._width(count)
        return [min(width, count - begin) for begin in range(0, count, width)] or [0]

    def _width(self, count: int) -> int:
        return max(1, count if self.block is None else min(self.block, count))

    def _spacings(self, count: int) -> int:
        return max(1, -(-count // self._width(count)))
