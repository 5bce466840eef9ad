"""Watch the ranks of a run from outside: who has come, who has gone, and whether all ended well."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from densing.efficiency.parallel.distributed import folder
from densing.efficiency.parallel.distributed.processes import started_at
from densing.efficiency.parallel.distributed.progress import told

_TICK_S = 0.05
# torchrun notices a dead rank within 0.1 s and then says how it died; this is how long it may take over it.
_GRACE_S = 3.0


class Watch:
    """What is seen of a run.

    Parameters
    ----------
    out : Path
    nproc : int
    agents : sequence of subprocess.Popen
        torchrun: one for all ranks, or one per rank.

    Attributes
    ----------
    codes : list of int or None
        Of the agents, when last looked at; negative: killed by that signal.
    pids : dict of int to int
        Process of each rank that has come.
    dead : list of int
        Ranks that have gone without a record, in the order in which that was seen.
    """

    def __init__(self, out: Path, nproc: int, agents: Sequence[subprocess.Popen[bytes]]) -> None:
        self.out, self.nproc = out, nproc
        self.codes: list[int | None] = [None] * len(agents)
        self.pids: dict[int, int] = {}
        self.dead: list[int] = []
        self._agents = agents
        self._started: dict[int, str] = {}

    def until_over(self, on_step: Callable[[int], None] = lambda step: None) -> bool:
        """Return True once all agents have ended well, or False soon after something has gone wrong."""
        trouble: float | None = None
        while True:
            self.codes = [agent.poll() for agent in self._agents]
            self._look()
            on_step(told(self.out))
            if all(code == 0 for code in self.codes):
                return True
            if trouble is None and (self.dead or any(self.codes)):
                trouble = time.monotonic()
            if trouble is not None and self._explained(time.monotonic() - trouble):
                return False
            time.sleep(_TICK_S)

    def _look(self) -> None:
        """Note which ranks have come, and which have gone since the last look."""
        for rank in range(self.nproc):
            if rank not in self.pids:
                with suppress(OSError, ValueError):
                    pid, _, started = folder.pid_file(self.out, rank).read_text().partition(" ")
                    self.pids[rank], self._started[rank] = int(pid), started
            elif rank not in self.dead and self._gone(rank) and not folder.record_file(self.out, rank).exists():
                self.dead.append(rank)

    def _gone(self, rank: int) -> bool:
        started = self._started[rank]
        # Where the kernel tells no starting times, only the agents can know.
        return started != "None" and started_at(self.pids[rank]) != started

    def _explained(self, since_s: float) -> bool:
        """Return whether all that could say why has ended: the agent of each dead rank, or time is up."""
        if since_s > _GRACE_S:
            return True
        agents = {rank if len(self.codes) > 1 else 0 for rank in self.dead}
        return since_s > _GRACE_S / 6 and any(self.codes) and all(self.codes[agent] is not None for agent in agents)
