"""Claims, the laws they are checked under, and the clusters and null models that checks share.

A check takes the simulator's laws (:class:`Physics`). Its answer is the one under the simulator's own; under a mutation
(collectives three times as slow, latencies ten times as long, no contention, no overlap) the whole check runs again,
its calibrations included. A law whose mutation leaves the answer unchanged is not tested by the claim.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from msgspec.structs import replace

from densing.core import InputError, UnavailableError, formatting, read_json
from densing.efficiency.simulation import Cluster, Graph, Link, Workload
from densing.efficiency.systems.plan import Plans, SteadyStep, measure
from densing.efficiency.timeline import Kind

if TYPE_CHECKING:
    from densing.efficiency.simulation import Simulation


@dataclass(frozen=True)
class Physics:
    """The laws that a claim is checked under; the defaults are the simulator's own.

    Parameters
    ----------
    collectives : float
        Factor on the time of every communication.
    latency : float
        Factor on the latency of every message.
    contention : float
        Factor on the contention of overlapping work; 0: none.
    overlap : bool
        Whether a rank computes and communicates concurrently.

    Examples
    --------
    >>> from densing.efficiency.simulation import load_cluster
    >>> round(Physics(latency=10).cluster(load_cluster("a100x8-tcp")).inter.alpha_s, 9)
    0.0003
    """

    collectives: float = 1.0
    latency: float = 1.0
    contention: float = 1.0
    overlap: bool = True

    def cluster(self, cluster: Cluster) -> Cluster:
        """Return a cluster under these laws: costs are linear in its links, so scaling these scales them."""

        def scaled(link: Link) -> Link:
            alpha, beta = link.alpha_s * self.latency, link.beta_s_per_byte
            return replace(link, alpha_s=alpha * self.collectives, beta_s_per_byte=beta * self.collectives)

        return cluster.change(
            intra=scaled(cluster.intra),
            inter=scaled(cluster.inter),
            wide=None if cluster.wide is None else scaled(cluster.wide),
            kappa=cluster.kappa * self.contention,
            kappa_comm=cluster.kappa_comm * self.contention,
        )

    def graph(self, graph: Graph) -> Graph:
        """Return the tasks as these laws let them run: without overlap a rank has one stream for everything.

        Examples
        --------
        >>> graph = Graph()
        >>> first = graph.add("product", Kind.COMPUTE, (0,), "compute", 1.0)
        >>> second = graph.add("all_reduce", Kind.COMM, (0,), "comm", 0.5)
        >>> Physics().simulate(graph).makespan, Physics(overlap=False).simulate(graph).makespan
        (1.0, 1.5)
        """
        if self.overlap:
            return graph
        # An annotation occupies nothing, whatever stream it is on.
        serial = graph.changed(lambda one: one if one.kind is Kind.ANNOTATION else one._replace(stream="one at a time"))
        serial.need, serial.until = graph.need, graph.until
        return serial

    def simulate(self, graph: Graph) -> Simulation:
        """Run a graph whose contention is in its tasks' seconds."""
        from densing.efficiency.simulation import simulate

        return simulate(self.graph(graph))

    def measure(self, technique: Plans, workload: Workload, cluster: Cluster, **knobs: Any) -> SteadyStep:
        """Plan, simulate and measure a technique.

        Raises
        ------
        InputError
            When the technique cannot work on this workload.
        """
        changed = self.cluster(cluster)
        plan = technique.plan(workload, changed, **knobs)
        return measure(dataclasses.replace(plan, graph=self.graph(plan.graph)), changed)


PHYSICS = Physics()
"""The simulator's laws, unbroken."""

MUTATIONS: Mapping[str, Physics] = MappingProxyType(
    {
        "ring costs x 3": Physics(collectives=3.0),
        "latency x 10": Physics(latency=10.0),
        "no contention": Physics(contention=0.0),
        "no overlap": Physics(overlap=False),
    }
)
"""Laws of the simulator that are broken one at a time."""


Evidence = Literal["first-hand", "second-hand", "derived", "measured", "recalled"]
Grade = Literal[
    "predicted", "calibrated on other rows", "fitted", "algebraic", "counted", "measured", "own measurement"
]
GRADES: tuple[Grade, ...] = get_args(Grade)


@dataclass(frozen=True)
class Answer:
    """Our answer to a paper's claim; ``value`` is None where the simulator cannot answer, ``note`` says why.

    ``ends`` is the range of the value over unpublished settings; a claim holds if it holds over the whole range, and
    cannot be answered if it holds over a part. ``readings``: the source can be read in several ways, and ours agrees
    with some of them: there is a value, and no verdict.
    """

    value: float | str | None
    note: str = ""
    ends: tuple[float, float] | None = None
    readings: bool = False


@dataclass(frozen=True)
class Claim:
    """A published figure, and how we recompute it.

    Parameters
    ----------
    id : str
        ``CO2-1a``.
    what, setup : str
    published : float or str
        The figure, or a direction in words (``4090 > A800``).
    unit : str
    evidence : Evidence
        Of the published figure.
    source : str
    check : callable
        Gives our :class:`Answer` under the laws it is handed (:class:`densing.efficiency.systems.claims.Physics`):
        all that it simulates goes through them, calibrations included.
    tolerance : float, optional
        Relative; None where a direction is compared: then ``check`` returns the same words if it holds. Said before
        the answer is looked at.
    inputs : str
        Published figures that ours was fitted to.
    grade : Grade
        What agreement is worth. ``predicted``: nothing that the same source measured went in.
        ``calibrated on other rows``: parameters were fitted to other figures, of this source or another. ``fitted``:
        to this very figure.
        ``algebraic``: ours follows from what went in whatever the simulator does. ``counted``: bytes or messages were
        counted, nothing was timed. ``measured``: the check runs a small experiment of ours, nothing is simulated.
        ``own measurement``: the figure is ours, not a paper's.
    null : callable, optional
        Answer of a model without a simulator from the same inputs; required for ``calibrated on other rows``.
    assumptions : mapping of str to callable
        The check under one changed assumption each, its range in the name; those that turn the verdict are printed,
        and of a miss that none of them turns all of them. An answer over a range has ``ends`` (:func:`over`).
    series, way : str
        Claims about the same published figures, which differ in how ours is made, stand in one table (``LAD-1``) with
        a column for each way (``b: no contention``).

    Raises
    ------
    densing.core.errors.InputError
        For a grade that does not exist, and for a calibrated claim without a null model.
    """

    id: str
    what: str
    setup: str
    published: float | str
    unit: str
    evidence: Evidence
    source: str
    check: Callable[[Physics], Answer]
    tolerance: float | None = None
    inputs: str = ""
    grade: Grade = "predicted"
    null: Callable[[], Answer] | None = None
    assumptions: Mapping[str, Callable[[], Answer]] = field(default_factory=dict)
    series: str = ""
    way: str = ""

    def __post_init__(self) -> None:
        if self.grade not in GRADES:
            raise InputError(f"claim {self.id}: grade {self.grade!r} is unknown; give one of {', '.join(GRADES)}")
        if self.grade == "calibrated on other rows" and self.null is None:
            raise InputError(
                f"claim {self.id} is calibrated on other rows and has no null model; give the prediction of a model "
                "without a simulator from the same rows"
            )


RECORDS = Path(__file__).with_name("records")
"""Results of our ladders, as `densing ladder gain` writes them; training takes too long for `validate`."""


def recorded(name: str, arm: str) -> Answer:
    """Return whether an arm lost anything against the baseline of its ladder.

    Parameters
    ----------
    name : str
        Name of a file in :data:`RECORDS`.
    arm : str

    Returns
    -------
    Answer
        ``no loss``, ``loss`` or ``not decided`` (see :func:`densing.ladder_gain`); in the note the ratio of tokens.

    Examples
    --------
    >>> recorded("less-to-send", "no such arm").value is None
    True
    """
    data = read_json(RECORDS / f"{name}.json")
    row = next((row for row in data["figures"] if row["arm"] == arm), None)
    if row is None:
        return Answer(None, f"arm {arm} is missing from the record {name}")
    spec = data["spec"]
    ratio, low, high = (formatting.number(row[f"token_{part}"]) for part in ("ratio", "lo", "hi"))
    share = formatting.number(row["bytes"] / spec["baseline_cost"]["bytes"])
    note = (
        f"{arm} beside {spec['baseline']}: {ratio} of the tokens ({low} to {high}), {share} of the bytes; "
        f"{row['pairs']} pairs of {', '.join(spec['sizes'])}; record {data['digest'][:12]}, made again by `densing "
        "techniques validate --measure` beside its runs"
    )
    return Answer({"yes": "no loss", "no": "loss"}.get(row["no_loss"], row["no_loss"]), note)


FREE = Link(0.0, 0.0)
"""A link without cost."""


def device_taking(
    physics: Physics, seconds: float, technique: Plans, workload: Workload, cluster: Cluster, **knobs: Any
) -> Cluster:
    """Return the cluster with its device scaled to a given step time; its links must be free."""
    now = physics.measure(technique, workload, cluster, **knobs).step_s
    device = cluster.device
    # With free links a step is compute alone, which is in inverse proportion to both rates of the roofline.
    faster = now / seconds
    return cluster.change(device=replace(device, flops=device.flops * faster, mem_bw=device.mem_bw * faster))


def link_taking(
    physics: Physics, seconds: float, level: str, technique: Plans, workload: Workload, cluster: Cluster, **knobs: Any
) -> Cluster:
    """Return the cluster with one link's latency and time per byte scaled to a given step time.

    The technique must hide nothing: then the step grows in proportion.

    Raises
    ------
    InputError
        When the step is shorter than its compute, or uses no such link.
    """
    link: Link = getattr(cluster, level)
    compute = physics.measure(technique, workload, cluster.change(**{level: FREE}), **knobs).step_s
    now = physics.measure(technique, workload, cluster, **knobs).step_s
    if now <= compute or seconds < compute:
        raise InputError(
            f"a step of {seconds:g} s leaves no time for the link {level!r} beside {compute:g} s of compute"
        )
    # Nothing is hidden, so what is beyond compute is in proportion to latency and time per byte.
    slower = (seconds - compute) / (now - compute)
    scaled = replace(link, alpha_s=link.alpha_s * slower, beta_s_per_byte=link.beta_s_per_byte * slower)
    return cluster.change(**{level: scaled})


class Published(NamedTuple):
    """Published step times of a row, in any unit of time.

    Attributes
    ----------
    free : float
        A step whose communication costs nothing.
    blocking : float
        A step that waits for all of it.
    step : float
        A step with the technique.
    """

    free: float
    blocking: float
    step: float


def constant_share(free: float, blocking: float, peers: Sequence[Published] = ()) -> float:
    """Return the step of a null model without a simulator: a constant share of the communication stays exposed.

    The share makes the relative errors of the other rows' throughput least squares, as the contention that ours is
    fitted with does; where ours is fitted to no other rows it has none either, and all is hidden.

    Parameters
    ----------
    free, blocking : float
        Of the row to be predicted, whose own step is left out.
    peers : sequence of Published

    Examples
    --------
    >>> constant_share(1.0, 2.0, [Published(1.0, 3.0, 1.5)]), constant_share(1.0, 2.0)
    (1.25, 1.0)
    """
    if not peers:
        return free
    from scipy.optimize import minimize_scalar

    def squares(share: float) -> float:
        return sum((row.step / (row.free + share * (row.blocking - row.free)) - 1) ** 2 for row in peers)

    # Rounded well above what the optimiser leaves open.
    fit = minimize_scalar(squares, bounds=(0.0, 1.0), method="bounded", options={"xatol": 1e-9})
    return float(free + round(float(fit.x), 6) * (blocking - free))


def over(check: Callable[[float], Answer], *values: float) -> Callable[[], Answer]:
    """Return an assumption that is varied over a range: its answer spans those at the values given.

    Examples
    --------
    >>> answer = over(lambda factor: Answer(10.0 * factor), 0.5, 1.0, 2.0)()
    >>> answer.value, answer.ends
    ('5 to 20', (5.0, 20.0))
    """

    def spanned() -> Answer:
        answers = [check(value).value for value in values]
        ours = [answer for answer in answers if isinstance(answer, int | float)]
        if len(ours) < len(answers):
            return Answer(None)
        low, high = float(min(ours)), float(max(ours))
        return Answer(f"{low:.4g} to {high:.4g}", "", (low, high))

    return spanned


def unless_unavailable(check: Callable[[], Answer]) -> Callable[[Physics], Answer]:
    """Return a check that names a missing requirement in its answer."""

    def answer(_: Physics) -> Answer:
        try:
            return check()
        except UnavailableError as error:
            return Answer(None, str(error))

    return answer
