"""Messages between a server and its workers: threads read and write them, so that a late or dead one holds up nobody.

gloo's operations between two ranks are over only for who waits for them, so somebody has to wait: each peer has a
thread that reads what comes from it and one that writes to it. Of a message the header comes first, straight; its
tensor is sent over whatever link the run has, and meets the others there.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist

from densing.efficiency.parallel import comm

STOP, GONE = -1, -2
"""Step numbers of the last messages: no step follows, or the peer is gone."""
NOTHING = -1
"""Number of a message that only reports what was done."""
HEADER = 4


class Message(NamedTuple):
    """What one rank tells another.

    Attributes
    ----------
    peer : int
        Who sent it, or is to have it.
    step : int
    number : int
        The scheme's number of it, or ``NOTHING``.
    value : float
        A loss, or how much was computed.
    tensor : torch.Tensor, optional
    words : str
        Of a peer that is gone: what gloo said.
    """

    peer: int
    step: int
    number: int = NOTHING
    value: float = 0.0
    tensor: torch.Tensor | None = None
    words: str = ""


class Mail:
    """Messages with some ranks.

    Parameters
    ----------
    peers : sequence of int
    dtype : torch.dtype
        Of all tensors.

    Attributes
    ----------
    sent_bytes, received_bytes : int
        Of tensors; headers are 32 bytes each.
    """

    def __init__(self, peers: Sequence[int], dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.sent_bytes = self.received_bytes = 0
        self._incoming = queue.SimpleQueue[Message]()
        self._waiting: dict[int, deque[Message]] = {peer: deque() for peer in peers}
        self._news = {peer: threading.Condition() for peer in peers}
        self._threads = [
            threading.Thread(target=work, args=(peer,), name=f"mail-{peer}", daemon=True)
            for peer in peers
            for work in (self._read, self._write)
        ]
        for thread in self._threads:
            thread.start()

    def post(self, message: Message, *, instead: bool = False) -> None:
        """Put a message in line; ``instead`` of those that wait there, which nobody needs any more."""
        news = self._news[message.peer]
        with news:
            if instead:
                self._waiting[message.peer].clear()
            self._waiting[message.peer].append(message)
            news.notify()

    def clear(self, peer: int) -> None:
        """Forget what has not begun to be sent."""
        with self._news[peer]:
            self._waiting[peer].clear()

    def get(self) -> Message:
        """Return the next message that has come, however long that takes."""
        return self._incoming.get()

    def within(self, seconds: float) -> Message | None:
        """Return the next message that has come; None if none does so in time."""
        try:
            return self._incoming.get(timeout=seconds)
        except queue.Empty:
            return None

    def close(self) -> None:
        """Wait until all is sent and every peer has sent its last message, or is gone."""
        for thread in self._threads:
            thread.join()

    def _read(self, peer: int) -> None:
        try:
            while True:
                header = torch.empty(HEADER, dtype=torch.float64)
                dist.recv(header, peer)
                step, message, value, size = header.tolist()
                tensor = None
                if size:
                    tensor = torch.empty(int(size), dtype=self.dtype)
                    comm.irecv(tensor, peer).wait()
                    self.received_bytes += tensor.nbytes
                self._incoming.put(Message(peer, int(step), int(message), value, tensor))
                if step == STOP:
                    return
        except RuntimeError as error:
            self._incoming.put(Message(peer, GONE, words=str(error)))
            # The other thread may wait for something to send.
            self.post(Message(peer, GONE), instead=True)

    def _write(self, peer: int) -> None:
        news = self._news[peer]
        while True:
            with news:
                news.wait_for(lambda: self._waiting[peer])
                message = self._waiting[peer].popleft()
            if message.step == GONE:
                return
            size = 0 if message.tensor is None else message.tensor.numel()
            header = torch.tensor([message.step, message.number, message.value, size], dtype=torch.float64)
            try:
                dist.send(header, peer)
                if message.tensor is not None:
                    comm.isend(message.tensor, peer).wait()
                    self.sent_bytes += message.tensor.nbytes
            except RuntimeError:
                # Who reads from it is told the same, and tells.
                return
            if message.step == STOP:
                return
