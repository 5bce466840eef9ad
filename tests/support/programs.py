"""Programs for tests of what waited for what: simulated machines with their explicit graph, and any trace."""

from __future__ import annotations

from hypothesis import strategies as st

from densing.efficiency.timeline.timeline import Kind, Lane, RankTimeline, Spans, Step

STREAMS = [Lane("GPU 0", str(number)) for number in (7, 13, 20)]
THREAD, OTHER = Lane("100", "1"), Lane("100", "2")
KINDS = {Kind.COMPUTE: "compute", Kind.COMM: "communication", Kind.MEMCPY: "memcpy"}
CALL = 3


class Machine:
    """A host thread that launches work on streams, with the explicit graph of what waits for what.

    ``edges[v]`` holds (u, weight, kind, name): v happens no sooner than u plus weight.
    """

    def __init__(self, latency):
        self.latency, self.now, self.host = latency, 0, ("host", 0)
        self.time = {self.host: 0}
        self.edges = {self.host: []}
        self.work, self.calls, self.tail, self.pending = [], [], {}, {}

    def at(self, point, edges):
        """Add a moment: the latest of what it waits for."""
        self.edges[point] = edges
        self.time[point] = max(self.time[u] + weight for u, weight, _, _ in edges)
        return self.time[point]

    def spend(self, length):
        point = ("host", len(self.time))
        self.now = self.at(point, [(self.host, length, "host", "")])
        self.host = point

    def call(self, name, correlation=-1):
        begin = self.now
        self.spend(CALL)
        row = {"start": begin, "end": self.now, "kind": Kind.LAUNCH, "name": name, "lane": THREAD}
        self.calls.append({**row, "correlation": correlation})

    def launch(self, stream, length, kind):
        number = len(self.work)
        waits = [(self.host, self.latency, "launch", f"k{number}")]
        waits += [(point, 0, "", "") for point in self.pending.pop(stream, [])]
        if stream in self.tail:
            waits.append((self.tail[stream], 0, "", ""))
        start = self.at(("start", number), waits)
        end = self.at(("end", number), [(("start", number), length, KINDS[kind], f"k{number}")])
        self.tail[stream] = ("end", number)
        row = {"start": start, "end": end, "kind": kind, "name": f"k{number}", "lane": STREAMS[stream]}
        self.work.append({**row, "correlation": number})
        self.call("cudaLaunchKernel", number)

    def wait(self, stream, other):
        self.call("cudaStreamWaitEvent")
        if other in self.tail and other != stream:
            self.pending.setdefault(stream, []).append(self.tail[other])

    def sync(self, streams):
        begin, point = self.now, ("host", len(self.time))
        waits = [(self.tail[each], 0, "", "") for each in streams if each in self.tail]
        self.now = self.at(point, [(self.host, 0, "host", ""), *waits])
        self.host = point
        row = {"start": begin, "end": self.now, "kind": Kind.LAUNCH, "name": "cudaStreamSynchronize", "lane": THREAD}
        self.calls.append(row)

    def rank(self, **options):
        return RankTimeline(0, Spans.build(self.work), Spans.build(self.calls), **options)


@st.composite
def machines(draw):
    machine = Machine(draw(st.integers(0, 6)))
    # A trace that records the host's waits: in one that holds none, its long pauses may be taken for some.
    machine.sync([0])
    # A copy that ends within its own launch call could not be told from a blocking one.
    lengths = st.integers(CALL + 1, 400)
    for _ in range(draw(st.integers(1, 14))):
        action = draw(st.sampled_from(["launch", "launch", "launch", "wait", "sync"]))
        stream = draw(st.integers(0, 2))
        machine.spend(draw(st.integers(0, 60)))
        if action == "launch":
            machine.launch(stream, draw(lengths), draw(st.sampled_from(list(KINDS))))
        elif action == "wait":
            machine.wait(stream, draw(st.integers(0, 2)))
        else:
            machine.sync([stream] if draw(st.booleans()) else [0, 1, 2])
    machine.launch(0, draw(lengths), Kind.COMPUTE)
    return machine


def node(start, end, kind=Kind.COMPUTE, lane=0, name="k", correlation=-1):
    row = {"start": start, "end": end, "kind": kind, "lane": STREAMS[lane], "name": name}
    return {**row, "correlation": correlation}


def call(start, end, name="cudaLaunchKernel", correlation=-1, lane=THREAD, kind=Kind.LAUNCH):
    return {"start": start, "end": end, "kind": kind, "lane": lane, "name": name, "correlation": correlation}


@st.composite
def anything(draw):
    work, host = [], []
    for number in range(draw(st.integers(0, 7))):
        start, lane = draw(st.integers(0, 50)), draw(st.integers(0, 2))
        kind = draw(st.sampled_from([*KINDS, Kind.MEMSET, Kind.SYNC, Kind.CALL, Kind.UNKNOWN]))
        work.append(node(start, start + draw(st.integers(0, 20)), kind, lane, f"n{number}", number))
    for _ in range(draw(st.integers(0, 7))):
        start, kind = draw(st.integers(0, 50)), draw(st.sampled_from([Kind.LAUNCH, Kind.ANNOTATION, Kind.OP]))
        name = draw(st.sampled_from(["cudaLaunchKernel", "cudaDeviceSynchronize", "cudaStreamWaitEvent", "load"]))
        lane, number = draw(st.sampled_from([THREAD, OTHER])), draw(st.integers(-1, 7))
        host.append(call(start, start + draw(st.integers(0, 20)), name, number, lane, kind))
    steps = (Step(0, 5, 30), Step(1, 30, 45)) if draw(st.booleans()) else ()
    return RankTimeline(0, Spans.build(work), Spans.build(host), steps=steps, on_host=draw(st.booleans()))
