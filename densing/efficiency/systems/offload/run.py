"""Real requests: rank 0 is the device, rank 1 the server; states are rounded, packed and sent over the run's link."""

from __future__ import annotations

import os
import statistics
import time
from typing import NamedTuple

import msgspec
import torch

from densing.core import InputError
from densing.efficiency.parallel import RunEnv, RunRecord, burst_bytes, comm, parse_rates
from densing.efficiency.simulation import EDGE, STATE_BITS, Served, Sides
from densing.efficiency.systems.offload.halves import Halves, layer_seconds
from densing.efficiency.systems.offload.wire import pack, unpack

DEVICE, SERVER = 0, 1


class Way(NamedTuple):
    """One way to serve: layers computed, layers of the device, bits of what it hands over."""

    left_at: int
    cut: int | None
    bits: int


def parse_ways(text: str) -> tuple[Way, ...]:
    """Read ways to serve, ``exit:cut:bits`` with commas between; cut ``device`` sends nothing, ``server`` all tokens.

    Raises
    ------
    InputError

    Examples
    --------
    >>> parse_ways("12:6:8,12:device:16")
    (Way(left_at=12, cut=6, bits=8), Way(left_at=12, cut=None, bits=16))
    """
    ways = []
    for part in text.split(","):
        fields = part.strip().split(":")
        places = {"device": None, "server": EDGE}
        try:
            left_at, cut, bits = fields
            way = Way(int(left_at), places[cut] if cut in places else int(cut), int(bits))
        except ValueError:
            raise InputError(
                f"ways: {part.strip()[:40]!r}: write exit:cut:bits, such as 12:6:8 or 12:device:16"
            ) from None
        if way.bits not in STATE_BITS or (way.cut is not None and not EDGE <= way.cut <= way.left_at):
            raise InputError(
                f"ways: {part.strip()[:40]!r}: the cut must not exceed the exit, and bits are 2, 4, 8 or 16"
            )
        ways.append(way)
    return tuple(ways)


def serve_requests(
    env: RunEnv, *, pretrained: str, gguf_file: str = "", ways: str = "1:device:16", tokens: int = 128,
    output_tokens: int = 1, edge_threads: int = 2, load: Halves | None = None,
) -> RunRecord:  # fmt: skip
    """Serve ``env.spec.steps`` requests in each way, one after another.

    Parameters
    ----------
    env : RunEnv
        Of two ranks.
    pretrained, gguf_file : str
        As :class:`Halves` takes them.
    ways : str
        As :func:`parse_ways` reads them.
    tokens : int
        Of a request.
    output_tokens : int
        Of an answer; each is the likeliest.
    edge_threads : int
        Threads of the server; the device has one.
    load : Halves, optional
        The model, where it is at hand.

    Returns
    -------
    RunRecord
        ``step_s`` are the device's seconds of all requests; ``extra``, for each way k: ``measured_s_k``, the median
        request; ``predicted_s_k`` from the layers' own seconds, measured before, and the link's rate.

    Raises
    ------
    InputError
        For another number of ranks, and layers that the model does not have.
    """
    if env.world_size != 2:
        raise InputError(f"nproc={env.world_size}: a run has one device and one server; give --nproc 2")
    chosen = parse_ways(ways)
    halves = load or Halves(pretrained, gguf_file)
    device = env.rank == DEVICE
    torch.set_num_threads(1 if device else edge_threads)
    if not device and hasattr(os, "sched_setaffinity"):
        # Ranks have a core each; the device waits while the server computes.
        os.sched_setaffinity(0, os.sched_getaffinity(os.getppid()))
    too_far = max(way.left_at for way in chosen)
    if too_far > halves.layers:
        raise InputError(f"ways: exit={too_far}: the model has {halves.layers} layers")
    times = _measured(env, halves, tokens, output_tokens, edge_threads)
    parts = [_Part(halves, way, times, device, output_tokens) for way in chosen]
    draws = torch.Generator().manual_seed(env.spec.seed)
    seconds: list[list[float]] = [[] for _ in chosen]
    waited: list[float] = []
    # Around all ways, so that what else the machine does falls on each of them.
    for _ in range(env.spec.steps + 1):
        for part, own in zip(parts, seconds, strict=True):
            ids = torch.randint(halves.vocabulary, (tokens,), generator=draws)
            taken, wait = part.serve(ids)
            own.append(taken)
            waited.append(wait)
    rate = parse_rates(env.spec.link, env.world_size)[0]
    # A bucket that is full when a request comes lets its first bytes pass at once.
    free = burst_bytes(rate) if rate.kind == "shaped" else 0
    extra = {}
    for number, (way, own) in enumerate(zip(chosen, seconds, strict=True)):
        sent, predicted = [], []
        for each, passes in ((times, 1), (times.one_token, output_tokens - 1)) if output_tokens > 1 else ((times, 1),):
            # The server alone goes on without the device.
            crosses = 0 if each is not times and way.cut == EDGE else each.sent(way.cut, way.bits)
            wire = max(crosses - free, 0) / rate.bytes_per_s + rate.latency_s * (2 if crosses else 0)
            sent.append(passes * crosses)
            predicted.append(passes * (sum(each.split(way.left_at, way.cut)) + wire))
        extra[f"measured_s_{number}"] = statistics.median(own[1:])
        extra[f"predicted_s_{number}"] = sum(predicted)
        extra[f"bytes_{number}"] = float(sum(sent))
    every = tuple(taken for own in seconds for taken in own[1:])
    return RunRecord(
        technique=env.spec.technique, rank=env.rank, world_size=env.world_size, losses=(0.0,) * len(every),
        step_s=every, wait_s=tuple(waited[len(chosen) :]), tokens=tokens, final_loss=0.0,
        # A request's seconds are the device's: the server waits between requests too.
        parameters=halves.parameters, extra=extra if device else {},
    )  # fmt: skip


def _measured(env: RunEnv, halves: Halves, tokens: int, output_tokens: int, edge_threads: int) -> Served:
    """Return both sides' seconds, measured one side after the other and told to both."""
    first = _sides(env, halves, tokens, edge_threads)
    decode = _sides(env, halves, 1, edge_threads, behind=tokens) if output_tokens > 1 else None
    return Served("served", tokens=tokens, width=halves.width, decode=decode, **msgspec.structs.asdict(first))


def _sides(env: RunEnv, halves: Halves, tokens: int, edge_threads: int, behind: int = 0) -> Sides:
    sides = []
    # A model that is still being read would slow the other side down.
    comm.all_reduce(torch.zeros(1), async_op=False)
    for side, threads in ((DEVICE, 1), (SERVER, edge_threads)):
        if env.rank == side:
            layers, ends = layer_seconds(halves, tokens, threads=threads, behind=behind)
            own = torch.tensor([*layers, *ends], dtype=torch.float64)
        else:
            own = torch.zeros(halves.layers + 2, dtype=torch.float64)
        comm.broadcast(own, side).wait()
        sides.append(own.tolist())
    (*device, first, last), (*edge, edge_first, edge_last) = sides
    return Sides(tuple(device), tuple(edge), (first, last), (edge_first, edge_last))


class _Part:
    """One side of a way to serve."""

    def __init__(self, halves: Halves, way: Way, times: Served, device: bool, output_tokens: int) -> None:
        self.halves, self.way, self.device, self.output_tokens = halves, way, device, output_tokens
        self.answer = torch.zeros(output_tokens if way.cut == EDGE else 1, dtype=torch.int64)
        passes = (times,) if output_tokens == 1 or way.cut == EDGE else (times, times.one_token)
        self.packets = [torch.empty(each.sent(way.cut, way.bits), dtype=torch.uint8) for each in passes]

    def serve(self, ids: torch.Tensor) -> tuple[float, float]:
        """Serve one request; return its seconds and those in which this side waited."""
        left_at, cut, bits = self.way
        self.cache = self.halves.new_cache() if self.output_tokens > 1 else None
        start, waited = time.perf_counter(), 0.0
        if cut is None:
            if self.device:
                self._decode(ids, left_at)
                return time.perf_counter() - start, 0.0
            return 0.0, 0.0
        if cut == EDGE:
            if self.device:
                waited += self._send(ids.to(torch.int32).view(torch.uint8))
            else:
                waited += _receive(self.packets[0], DEVICE)
                self.answer[:] = torch.cat(self._decode(self.packets[0].view(torch.int32).long(), left_at))
                comm.isend(self.answer, DEVICE).wait()
            return time.perf_counter() - start, waited
        for number in range(self.output_tokens):
            if self.device:
                state = self.halves.compute(ids, 0, cut, head=False, cache=self.cache)
                waited += self._send(pack(state, bits))
                ids = self.answer
            else:
                packet = self.packets[min(number, 1)]
                waited += _receive(packet, DEVICE)
                given = unpack(packet, bits, self.halves.width)
                self.answer[0] = self.halves.compute(given, cut, left_at, head=True, cache=self.cache).argmax()
                comm.isend(self.answer, DEVICE).wait()
        return time.perf_counter() - start, waited

    def _decode(self, ids: torch.Tensor, left_at: int) -> list[torch.Tensor]:
        """Return the tokens of an answer that this side computes alone."""
        found: list[torch.Tensor] = []
        for _ in range(self.output_tokens):
            ids = self.halves.compute(ids, 0, left_at, head=True, cache=self.cache).argmax()[None]
            found.append(ids)
        return found

    def _send(self, packet: torch.Tensor) -> float:
        """Send a packet to the server and take its answer; return the seconds that took."""
        sent = time.perf_counter()
        comm.isend(packet, SERVER).wait()
        return time.perf_counter() - sent + _receive(self.answer, SERVER)


def _receive(into: torch.Tensor, source: int) -> float:
    """Receive what a rank sends; return the seconds waited."""
    start = time.perf_counter()
    comm.irecv(into, source).wait()
    return time.perf_counter() - start
