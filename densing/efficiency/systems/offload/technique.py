"""SAC-d: a request is computed on a device up to a layer, sent on in few bits, and finished on a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from densing.core import InputError, Note, formatting
from densing.efficiency.simulation import EDGE, STATE_BITS, Cluster, Graph, Served, check_served
from densing.efficiency.systems.plan import Plan
from densing.efficiency.systems.planner import run_knobs
from densing.efficiency.systems.registry import BuiltIn, Knob, above_zero, choice, kind_of, optional, settle, whole
from densing.efficiency.timeline import Comm, Kind

if TYPE_CHECKING:
    from densing.efficiency.parallel import RunEnv, RunRecord, RunSpec

EXIT = Knob("exit", None, "number of layers computed; none: all", optional(whole(1)))
CUT = Knob("cut", "middle", "layers computed on the device: a number, middle, device (all) or server (none)", str)
BITS = Knob("bits", "8", "bits per number sent", choice(tuple(map(str, STATE_BITS))))
INTERVAL = Knob("interval_ms", 200.0, "milliseconds between requests", above_zero)
PRETRAINED = Knob("pretrained", "", "folder of a transformers model, for a real run", str)
GGUF = Knob("gguf_file", "", "GGUF file in that folder, if the model is one of llama.cpp, for a real run", str)
WAYS = Knob(
    "ways", "1:device:16", "comma-separated exit:cut:bits, where cut is a number, device or server, for a real run", str
)
TOKENS = Knob("tokens", 128, "tokens per request of a real run", whole(1, 100_000))
OUTPUT = Knob("output_tokens", 1, "tokens per answer, decoded one after another", whole(1, 100_000))
THREADS = Knob("edge_threads", 2, "threads of the server in a real run (the device has one)", whole(1, 1024))

DEVICE, SERVER = 0, 1


class SacD(BuiltIn):
    """A way to serve one model on two machines; ``densing deploy`` chooses among such ways."""

    name = "sac-d"
    role = "serving"
    paper = "Niu, Teng, Han and Zou, arXiv 2201.02968"
    summary = (
        "the first layers run on a device and the rest on a server, with quantised states "
        "sent between them (densing deploy)"
    )
    knobs: tuple[Knob, ...] = (EXIT, CUT, BITS, INTERVAL, PRETRAINED, GGUF, WAYS, TOKENS, OUTPUT, THREADS)
    axis: ClassVar[str] = "request"
    plan_only: ClassVar[tuple[str, ...]] = ("exit", "cut", "bits", "interval_ms")
    stand_in = ""
    changes_loss = "an earlier exit and fewer bits change the answers; densing eval --exit measures by how much"
    not_available = (
        "arXiv 2201.02968: state, reward, network sizes and all figures are in no source that we could read",
    )
    claims_in = "densing.efficiency.systems.offload.claims"

    def check(self, workload: Any) -> None:
        """Refuse what is not a request."""
        if not isinstance(workload, Served):
            raise InputError(
                f"{self.name} serves requests, and this workload is {kind_of(workload)}; it takes "
                "a Served workload (a TOML file with the layers' times on both sides, as densing "
                "deploy writes it)"
            )
        check_served(workload)

    def plan(self, workload: Any, cluster: Cluster, **knobs: Any) -> Plan:
        """Return the tasks of some requests, one behind the other, through device, link and server.

        Parameters
        ----------
        workload : Served
        cluster : Cluster
            Its link between nodes joins device and server.
        **knobs
            Those of :attr:`knobs`.

        Raises
        ------
        InputError
            On another workload, or for a knob out of range.
        """
        self.check(workload)
        settings = settle(self.name, self.knobs, knobs)
        passes = []
        for here, there, sent in self._passes(workload, settings):
            wire = cluster.inter.alpha_s + sent * cluster.inter.beta_s_per_byte if sent else 0.0
            passes.append((here, sent, wire, there, cluster.inter.alpha_s if sent else 0.0))
        warmup, steps = 4, 16
        graph = request_graph([passes] * (warmup + steps), settings["interval_ms"] / 1e3)
        return Plan(graph, 2, warmup, steps)

    def remarks(self, workload: Served, cluster: Cluster, **knobs: Any) -> tuple[Note, ...]:
        """Return how a request's time is spent."""
        parts = {"device": 0.0, "wire": 0.0, "server": 0.0}
        for here, there, sent in self._passes(workload, settle(self.name, self.knobs, knobs)):
            parts["device"] += here
            parts["wire"] += sent * cluster.inter.beta_s_per_byte + (2 * cluster.inter.alpha_s if sent else 0.0)
            parts["server"] += there
        each = ", ".join(f"{part} {formatting.number(1e3 * seconds)} ms" for part, seconds in parts.items())
        message = f"{self.name}: a request alone takes {formatting.number(1e3 * sum(parts.values()))} ms ({each})"
        return (Note("stages", "info", message, {"technique": self.name, **parts}),)

    @staticmethod
    def _passes(workload: Served, settings: Mapping[str, Any]) -> list[tuple[float, float, int]]:
        """Return for each output token the seconds on the device and on the server, and the bytes sent."""
        left_at, bits = settings["exit"] or workload.layers, int(settings["bits"])
        cut = place(str(settings["cut"]), left_at)
        first = (*workload.split(left_at, cut), workload.sent(cut, bits))
        if not (more := settings["output_tokens"] - 1):
            return [first]
        one = workload.one_token
        return [first, *[(*one.split(left_at, cut), 0 if cut == EDGE else one.sent(cut, bits))] * more]

    def check_run(self, spec: RunSpec) -> None:
        """Refuse a run that serves nothing.

        Raises
        ------
        InputError
        """
        from densing.efficiency.systems.offload.run import parse_ways

        if spec.nproc != 2:
            raise InputError(f"{self.name}: nproc is {spec.nproc}; a run has one device and one server: give --nproc 2")
        if spec.device != "cpu":
            raise InputError(f"{self.name}: device {spec.device}: both sides run on CPUs only; leave it out")
        if not spec.knobs.get("pretrained"):
            raise InputError(f"{self.name}: give a model with --set pretrained=FOLDER, or use densing deploy --try")
        parse_ways(str(spec.knobs.get("ways", WAYS.default)))

    def plan_of_run(self, spec: RunSpec, cluster: Cluster) -> Plan:
        """Refuse: such a run measures its layers first, and predicts from these."""
        raise InputError(
            f"{self.name}: a run measures its layers first and predicts from them; leave out --predict {cluster.name}"
        )

    def run(self, env: RunEnv, **knobs: Any) -> RunRecord:
        """Serve requests on this rank, and return the record."""
        from densing.efficiency.systems.offload.run import serve_requests

        return serve_requests(env, **run_knobs(self.name, self.knobs, self.plan_only, knobs))


SAC_D = SacD()


def place(cut: str, left_at: int) -> int | None:
    """Return a cut as :meth:`densing.efficiency.simulation.Served.split` takes it.

    Raises
    ------
    InputError

    Examples
    --------
    >>> place("middle", 12), place("device", 12), place("3", 12)
    (6, None, 3)
    """
    named = {"middle": left_at // 2, "device": None, "server": EDGE}
    if cut in named:
        return named[cut]
    try:
        number = int(cut)
    except ValueError:
        number = -1
    if number < 0:
        raise InputError(f"cut {cut[:40]!r}: give a number of layers, middle, device or server")
    return number


def request_graph(requests: Sequence[Sequence[tuple[float, int, float, float, float]]], interval_s: float) -> Graph:
    """Return the tasks of requests: for each output token device, link, server, and the token's way back.

    Parameters
    ----------
    requests : sequence of sequences of (device_s, bytes, wire_s, edge_s, back_s)
        Passes of each request, one per output token. What is 0 is passed by.
    interval_s : float
        Between requests.
    """
    graph = Graph()
    there = Comm("send_recv", "service", "service", 2, (DEVICE, SERVER), src=DEVICE, dst=SERVER)
    back = Comm("send_recv", "service", "service", 2, (SERVER, DEVICE), src=SERVER, dst=DEVICE)
    clock: list[int] = []
    for step, passes in enumerate(requests):
        graph.step = step
        # The first request comes at once.
        wait = interval_s if step else 0.0
        clock = [graph.add("request", Kind.ANNOTATION, (DEVICE,), "clock", wait, after=clock)]
        after = clock
        for device_s, sent, wire_s, edge_s, back_s in passes:
            if device_s:
                after = [graph.add("first layers", Kind.COMPUTE, (DEVICE,), "compute", device_s, after=after)]
            if sent:
                # The bytes take the link; what they then spend on their way holds up no others.
                after = [graph.add("hand over", Kind.COMM, (DEVICE, SERVER), "there", wire_s, count=sent, after=after,
                                   comm=there)]  # fmt: skip
            if sent or edge_s:
                after = [graph.add("last layers", Kind.COMPUTE, (SERVER,), "compute", edge_s, after=after)]
            if sent:
                answered = [graph.add("answer", Kind.COMM, (SERVER, DEVICE), "back", back_s, count=8, after=after,
                                      comm=back)]  # fmt: skip
                # Without a device's part the server goes on while the token is on its way.
                after = answered if device_s else after
    return graph
