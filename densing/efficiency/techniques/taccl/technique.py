"""TACCL: collectives synthesised for the machine at hand, from a sketch, by mixed-integer programs.

:func:`~densing.efficiency.techniques.taccl.synthesis.synthesise` makes a schedule; :class:`Synthesised` gives them to
any plan; the technique here is data parallelism (and blocking tensor parallelism) with all of its collectives
synthesised. Source: Shah et al., NSDI 2023, arXiv 2111.04867, and the released code.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from densing.core import InputError
from densing.efficiency.techniques.planner import BUCKET, Planned, above_zero, choice, settle, whole
from densing.efficiency.techniques.protocol import Claim, Knob, Plan
from densing.efficiency.techniques.taccl.real import STAND_IN

if TYPE_CHECKING:
    from densing.efficiency.parallel import RunEnv, RunRecord
    from densing.efficiency.simulation import Cluster, Workload

TOGETHER = Knob("together", 6, "most chunks that travel as one message (released code: 6)", whole(1, 64))
TIME_LIMIT = Knob("time_limit", 2.0, "seconds for each routing problem", above_zero)
OP = Knob("op", "all_gather", "of a real run: all_gather or all_reduce", choice(("all_gather", "all_reduce")))
BYTES = Knob("bytes", 1 << 20, "of a real run: bytes that each rank puts in", whole(4, 1 << 32))
NODES = Knob("nodes", 0, "of a real run: nodes that the ranks are taken for; 0: two from 4 ranks on", whole(0, 1024))


class Taccl(Planned):
    """Synthesised collectives under DDP's buckets and blocking tensor-parallel sums.

    A real run makes no training step: each step is one collective, by the synthesised schedule and by torch's own.
    """

    name = "taccl"
    role = "collective"
    paper = "Shah et al., NSDI 2023, arXiv 2111.04867"
    summary = "collectives synthesised for the machine: routes by a MILP, an order, chunks that travel together"
    knobs = (BUCKET, TOGETHER, TIME_LIMIT, OP, BYTES, NODES)
    stand_in = STAND_IN

    @property
    def claims(self) -> tuple[Claim, ...]:
        """Published and pilot figures."""
        from densing.efficiency.techniques.claims.taccl import CLAIMS

        return CLAIMS

    def plan(self, workload: Workload, cluster: Cluster, **knobs: Any) -> Plan:
        """Return the tasks of some steps; see :meth:`Planned.plan`.

        Raises
        ------
        InputError
            When there is no group that communicates, or one of more than 64 ranks.
        """
        from densing.efficiency.techniques.planner import plan_steps
        from densing.efficiency.techniques.taccl.tasks import Synthesised

        given = settle(self.name, self.knobs, knobs)
        if max(workload.split.dp, workload.split.tp) < 2:
            raise InputError("taccl needs ranks that communicate: dp >= 2 or tp >= 2")
        warmup, steps = self.window(given)
        return plan_steps(
            workload,
            cluster,
            self.tensor(workload, cluster, given),
            self.exchange(given),
            collectives=partial(Synthesised, together=given["together"], time_limit=given["time_limit"]),
            warmup=warmup,
            steps=steps,
            memory=self.memory(workload, given),
        )

    def run(self, env: RunEnv, **knobs: Any) -> RunRecord:
        """Run a synthesised collective ``env.spec.steps`` times on this rank, check it and time it."""
        from densing.efficiency.techniques.taccl.real import run

        given = settle(self.name, self.knobs, knobs)
        return run(env, given["op"], given["bytes"], given["nodes"], given["together"], given["time_limit"])


TACCL = Taccl()
