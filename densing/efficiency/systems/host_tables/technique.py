"""Four ways for a device to access the rows of a table, as plans over the streams host, pcie and compute."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from msgspec.structs import replace

from densing.core import InputError, Note, UnavailableError, formatting
from densing.efficiency.simulation import Cluster, Gather, Graph, check_gather, load_cluster
from densing.efficiency.systems.host_tables.requests import requests_per_row
from densing.efficiency.systems.plan import FROM_HOST, Plan, measure
from densing.efficiency.systems.planner import run_knobs
from densing.efficiency.systems.registry import (
    BuiltIn,
    Knob,
    above_zero,
    choice,
    flag,
    kind_of,
    number,
    optional,
    settle,
    whole,
)
from densing.efficiency.timeline import Comm, Kind

if TYPE_CHECKING:
    from densing.efficiency.parallel import RunEnv, RunRecord, RunSpec

OVERLAP = Knob("overlap", True, "prefetch the next step's rows into a second buffer while this step computes", flag)
HOST_RATE = Knob(
    "host_gbs",
    35.0,
    "GB/s that the host's processors read and write, in total, while they gather or stage (35: "
    "derived from the README's bars for an RTX 3090's host)",
    above_zero,
)
ALIGN = Knob("align", True, "align threads to lines of 128 bytes (circular shift)", flag)
SHARE = Knob(
    "sm_share", 0.1,
    "share of the device's processors that overlapping reads occupy (0.1: the paper's)",
    number(0.0, 0.9),
)  # fmt: skip
HEADER = Knob("header_bytes", 16, "header bytes of a request on the wire (12 to 16, second-hand)", whole(0, 1024))
OUTSTANDING = Knob(
    "outstanding",
    None,
    "most reads in flight; none: 256 up to PCIe 3's 15.75 GB/s, else 768 (second-hand)",
    optional(whole(1)),
)
ROUND_TRIP = Knob("round_trip_us", 2.0, "latency of a read (1 to 5, second-hand; 2 assumed)", above_zero)

DATA = Knob("data", "films-graph", "graph of a real run: films and the people who made them", choice(("films-graph",)))
SEEDS = Knob("seeds", 128, "films per step of a real run, whose neighbourhoods are sampled", whole(1))
WIDTH = Knob("width", 602, "hashed columns of the films' facts, in a real run", whole(1, 100_000))
TABLE = Knob(
    "table", "", ".npy file with a row per film and person, used by a real run instead of the films' facts", str
)
RUN_KNOBS = (DATA, SEEDS, WIDTH, TABLE)

PCIE_3 = 15.75e9
BUFFERS = 2
ADAM_BYTES = 16
"""Bytes per parameter of the model: weight, gradient and two moments."""


class Stages(NamedTuple):
    """Seconds of a step's stages, and bytes that cross the wire."""

    sample_s: float
    gather_s: float
    wire_s: float
    train_s: float
    bytes: float


class TableTechnique(BuiltIn):
    """A way for a device to access rows of a table."""

    role = "loading"
    paper = "Min et al., VLDB 2021, arXiv 2103.03330"
    on_device: ClassVar[bool] = False
    """Whether the table lies in the device's memory."""
    synchronous: ClassVar[bool] = False
    """Whether the host thread that gathers also copies."""

    def check(self, workload: Any) -> None:
        """Refuse what gathers no rows of a table."""
        if not isinstance(workload, Gather):
            raise InputError(
                f"{self.name} fetches rows of a table for a device, and this workload is {kind_of(workload)}; it "
                "takes a Gather workload (sage-reddit, or a TOML file with its fields)"
            )
        check_gather(workload)

    def plan(self, workload: Any, cluster: Cluster, **knobs: Any) -> Plan:
        """Return the tasks of some steps of one device.

        Parameters
        ----------
        workload : Gather
        cluster : Cluster
            Its link to the host carries the rows.
        **knobs
            Those of :attr:`knobs`.

        Raises
        ------
        InputError
            On another workload, or for a knob out of range.
        """
        self.check(workload)
        settings = settle(self.name, self.knobs, knobs)
        overlap = bool(settings["overlap"])
        warmup, steps = 4, 8
        graph = _pipeline(self.stages(workload, cluster, settings), overlap, self.synchronous, warmup + steps)
        held = {"model": float(ADAM_BYTES * workload.parameters)}
        if self.on_device:
            held["table"] = float(workload.table_rows * workload.row_bytes)
        held["rows per step"] = float(workload.bytes * (BUFFERS if overlap else 1))
        return Plan(graph, 1, warmup, steps, held)

    def stages(self, workload: Gather, cluster: Cluster, knobs: Mapping[str, Any]) -> Stages:
        """Return the seconds of a step's stages."""
        raise NotImplementedError

    def parameters(self, workload: Gather) -> tuple[int, int]:
        """Return the parameters in the device's memory, and all: either may divide, and they give other densities."""
        every = workload.parameters + workload.table_parameters
        return (every if self.on_device else workload.parameters), every

    def remarks(self, workload: Gather, cluster: Cluster, **knobs: Any) -> tuple[Note, ...]:
        """Return which stage a step waits for."""
        stages = self.stages(workload, cluster, settle(self.name, self.knobs, knobs))
        parts = {"sampling": stages.sample_s, "host gather": stages.gather_s, "the wire": stages.wire_s,
                 "training": stages.train_s}  # fmt: skip
        longest = max(parts, key=lambda part: parts[part])
        each = ", ".join(f"{part} {formatting.number(1e3 * seconds)} ms" for part, seconds in parts.items() if seconds)
        message = f"{self.name}: {each}; longest: {longest}{self._requests(workload, knobs)}"
        return (Note("stages", "info", message, {"technique": self.name, **stages._asdict()}),)

    def _requests(self, workload: Gather, knobs: Mapping[str, Any]) -> str:
        return ""


def _pipeline(stages: Stages, overlap: bool, synchronous: bool, steps: int) -> Graph:
    """Return the tasks of some steps, and of as many after them as there are buffers: their rows come ahead."""
    graph = Graph()
    # No ranks: it is the host that is on the other side.
    comm = Comm(FROM_HOST, "host", "host")
    # A copy from ordinary memory is made by the thread that gathers.
    thread = ("host thread",) if synchronous else ()
    staged: list[int] = []
    trained: list[int] = []
    for step in range(steps + BUFFERS):
        graph.step = step
        # Free again: the host's buffer once its copy is made, the device's once it has been trained on.
        before = slice(step - BUFFERS, step - BUFFERS + 1) if overlap and step >= BUFFERS else slice(0)
        copied, read = staged[before], trained[before]
        after = [] if overlap else trained[-1:]
        if stages.sample_s:
            after = [graph.add("sample", Kind.ANNOTATION, (0,), "host", stages.sample_s, after=after)]
        if stages.gather_s:
            # Without a wire there is one pair of buffers, which both sides share.
            free = copied if stages.wire_s else read
            after = [graph.add("gather", Kind.MEMCPY, (0,), "host", stages.gather_s, count=round(stages.bytes),
                               after=[*after, *free], resources=thread)]  # fmt: skip
        if stages.wire_s:
            after = [graph.add("fetch rows", Kind.COMM, (0,), "pcie", stages.wire_s, count=round(stages.bytes),
                               after=[*after, *read], resources=thread, comm=comm)]  # fmt: skip
            staged += after
        trained.append(graph.add("train", Kind.COMPUTE, (0,), "compute", stages.train_s, after=after))
    return graph


class DeviceTable(TableTechnique):
    """The alternative where it fits: the table in the device's memory."""

    name = "device-table"
    summary = "the table is kept in the device's memory, if it fits: nothing is fetched"
    role = "baseline"
    knobs: tuple[Knob, ...] = (OVERLAP,)
    on_device = True

    def stages(self, workload: Gather, cluster: Cluster, knobs: Mapping[str, Any]) -> Stages:
        """Sample and train."""
        return Stages(workload.sample_s, 0.0, 0.0, workload.train_s, 0.0)


class RealTableTechnique(TableTechnique):
    """One that runs for real: on a processor the host's part, with a device all of it."""

    axis: ClassVar[str] = "table"
    plan_only: ClassVar[tuple[str, ...]] = ("host_gbs", "align", "sm_share", "header_bytes", "outstanding",
                                            "round_trip_us")  # fmt: skip
    stand_in: str = ""
    needs_device: ClassVar[bool] = True

    def check_run(self, spec: RunSpec) -> None:
        """Refuse a run that cannot be made here, and options that mean nothing to it.

        Raises
        ------
        UnavailableError
            Where it needs a device and there is none.
        InputError
            For options of a language model's run.
        """
        plain = type(spec)(spec.technique)
        if spec.nproc != 1:
            raise InputError(f"{self.name}: nproc is {spec.nproc}; a run has one device and one table: give --nproc 1")
        for field in ("model", "batch", "sequence", "corpus", "link", "delay", "checkpoint_every"):
            if getattr(spec, field) != getattr(plain, field):
                raise InputError(
                    f"{self.name}: {field} applies to runs of the language model, and this one "
                    "trains on a graph; leave it out (set the batch with --set seeds=128 and the "
                    "table's columns with --set width=602)"
                )
        if spec.device != "cpu" or self.needs_device:
            from densing.efficiency.systems.host_tables.device import no_device

            reason = no_device() or ("" if spec.device != "cpu" else "give --device cuda")
            if reason:
                raise UnavailableError(f"{self.name} needs a CUDA device: {reason}")

    def plan_of_run(self, spec: RunSpec, cluster: Cluster) -> Plan:
        """Refuse: such a run measures its own stages first, and says before it overlaps them what that should take."""
        raise InputError(
            f"{self.name}: a run measures its stages first and predicts from them; leave out --predict {cluster.name}"
        )

    def run(self, env: RunEnv, **knobs: Any) -> RunRecord:
        """Train on this rank, one stage after the other and then overlapped, and return the record."""
        from densing.efficiency.systems.host_tables.run import train_from_table

        options = run_knobs(self.name, self.knobs, self.plan_only, knobs)
        record = train_from_table(env, self.name, **options)
        # From the stages alone, as they were one after the other.
        stages = Stages(record.extra["sample_s"], record.extra["gather_s"], 0.0, record.extra["train_s"], 0.0)
        overlap = bool(options["overlap"]) and env.spec.device == "cpu"
        plan = Plan(_pipeline(stages, overlap, False, 12), 1, 4, 8)
        # Nothing of this cluster is used: the stages' seconds are the run's own.
        step = measure(plan, load_cluster("cpu2")).step_s
        rows = {key: requests_per_row(int(record.extra["width"]), align=key == "requests_aligned")
                for key in ("requests", "requests_aligned")}  # fmt: skip
        foretold = {"predicted_step_s": step, "predicted_wait_s": max(step - stages.train_s, 0.0)}
        return replace(record, extra={**record.extra, **foretold, **rows})


class HostGather(RealTableTechnique):
    """PyTorch's own way: index, then copy."""

    name = "host-gather"
    role = "baseline"
    summary = "the processor gathers rows and copies them to the device from ordinary memory"
    knobs: tuple[Knob, ...] = (OVERLAP, HOST_RATE, *RUN_KNOBS)
    stand_in = "without a device there is no PCIe: rows are gathered into shared memory"
    synchronous = True
    needs_device = False

    def stages(self, workload: Gather, cluster: Cluster, knobs: Mapping[str, Any]) -> Stages:
        """Read and write every row; the driver stages it once more, while what is staged already is on the wire."""
        moved = 2 * workload.bytes / (1e9 * knobs["host_gbs"])
        wire = max(cluster.host.seconds(workload.bytes), moved)
        return Stages(workload.sample_s, moved, wire, workload.train_s, float(workload.bytes))


class PinnedGather(RealTableTechnique):
    """The same through memory that the device may read by itself."""

    name = "pinned-gather"
    role = "baseline"
    summary = "the processor gathers rows into page-locked memory, and the device copies them from there by itself"
    knobs: tuple[Knob, ...] = (OVERLAP, HOST_RATE, *RUN_KNOBS)

    def stages(self, workload: Gather, cluster: Cluster, knobs: Mapping[str, Any]) -> Stages:
        """Read and write every row, then send it: T = rows bytes (read + write) / host + rows bytes / pcie."""
        moved = 2 * workload.bytes / (1e9 * knobs["host_gbs"])
        wire = cluster.host.seconds(workload.bytes)
        return Stages(workload.sample_s, moved, wire, workload.train_s, float(workload.bytes))


class ZeroCopy(RealTableTechnique):
    """PyTorch-Direct: threads of the device read the rows where they lie."""

    name = "zero-copy"
    summary = "device threads read rows in host memory directly over PCIe, aligned to lines of 128 bytes"
    knobs: tuple[Knob, ...] = (OVERLAP, ALIGN, SHARE, HEADER, OUTSTANDING, ROUND_TRIP, *RUN_KNOBS)
    plan_only = tuple(name for name in RealTableTechnique.plan_only if name != "align")
    not_available = ("tables per data set", "runs on several devices")
    claims_in = "densing.efficiency.systems.host_tables.claims"

    def stages(self, workload: Gather, cluster: Cluster, knobs: Mapping[str, Any]) -> Stages:
        """Bound by bandwidth or by latency.

        T = max((rows requests header + rows bytes) / pcie, rows requests round trip / outstanding)
        """
        requests = workload.rows * requests_per_row(workload.width, element=workload.dtype_bytes, align=knobs["align"])
        sent = workload.bytes + requests * knobs["header_bytes"]
        beta = cluster.host.beta_s_per_byte
        outstanding = knobs["outstanding"] or (256 if beta * PCIE_3 >= 1 else 768)
        wire = cluster.host.alpha_s + max(sent * beta, requests * 1e-6 * knobs["round_trip_us"] / outstanding)
        train = workload.train_s / (1 - knobs["sm_share"]) if knobs["overlap"] else workload.train_s
        return Stages(workload.sample_s, 0.0, wire, train, sent)

    def _requests(self, workload: Gather, knobs: Mapping[str, Any]) -> str:
        plain, aligned = (requests_per_row(workload.width, element=workload.dtype_bytes, align=each)
                          for each in (False, True))  # fmt: skip
        return f"; requests per row {plain:g}, aligned {aligned:g}"


DEVICE_TABLE, HOST_GATHER, PINNED_GATHER, ZERO_COPY = DeviceTable(), HostGather(), PinnedGather(), ZeroCopy()
