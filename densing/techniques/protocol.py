"""What a technique is: a plan for the simulator, claims to check, and where it is real, a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from densing.cluster.cluster import Cluster
    from densing.simulation.tasks import Graph
    from densing.training.distributed.spec import RunEnv, RunRecord
    from densing.workload.workload import Workload

Evidence = Literal["first-hand", "second-hand", "derived", "measured", "recalled"]
Knobs = Mapping[str, Any]


@dataclass(frozen=True)
class Knob:
    """An option of a technique, with its default; ``kind`` parses the text of the command line."""

    name: str
    default: Any
    help: str
    kind: Callable[[str], Any] = float


@dataclass(frozen=True)
class Plan:
    """What a technique gives the simulator.

    Parameters
    ----------
    graph : Graph
        Its tasks carry their step.
    ranks : int
        Ranks simulated: equal ranks may be represented by one.
    warmup : int
        Steps before the steady state.
    steps : int
        Steps of the steady state: one period or several (CO2: a multiple of tau).
    memory : mapping of str to float
        Bytes per rank by purpose: parameters, gradients, optimizer, activations, technique.
    stands_for : mapping of int to int
        How many real ranks a simulated rank represents; empty: one each.
    """

    graph: Graph
    ranks: int
    warmup: int
    steps: int
    memory: Mapping[str, float] = field(default_factory=dict)
    stands_for: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """What we find where a paper claims something; ``value`` None where the simulator cannot answer, ``note`` why."""

    value: float | str | None
    note: str = ""


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
        Gives our :class:`Answer`, computed from the simulator.
    tolerance : float, optional
        Relative; None where a direction is compared: then ``check`` returns the same words if it holds.
    inputs : str
        Which published figures went into ours (what was fitted to what).
    slow : bool
        Takes more than ten seconds.
    fitted : bool
        The figure itself went into ours: that it comes out shows that it is possible, and predicts nothing.
    """

    id: str
    what: str
    setup: str
    published: float | str
    unit: str
    evidence: Evidence
    source: str
    check: Callable[[], Answer]
    tolerance: float | None = None
    inputs: str = ""
    slow: bool = False
    fitted: bool = False


@runtime_checkable
class Technique(Protocol):
    """One published technique, or a baseline.

    It may also have ``changes_loss``: how what is learned per step differs from plain synchronous training (another
    architecture, averages that arrive late), empty where it does not. A comparison says so beside its speed-up; where
    the attribute is missing it says that this is not known.
    """

    name: str
    role: str
    paper: str
    summary: str
    knobs: tuple[Knob, ...]

    @property
    def claims(self) -> tuple[Claim, ...]:
        """Published figures that the simulator can check; () for a baseline."""

    def plan(self, workload: Workload, cluster: Cluster, **knobs: Any) -> Plan:
        """Return the tasks of some steps.

        Raises
        ------
        InputError
            When it cannot work on this workload (no tensor-parallel group, say); the message says what it needs.
        """


@runtime_checkable
class Runnable(Protocol):
    """A technique that runs for real: one call per rank, inside the process group."""

    stand_in: str
    """Empty, or what the run is instead of the technique itself (printed wherever its results are)."""

    def run(self, env: RunEnv, **knobs: Any) -> RunRecord:
        """Train ``env.spec.steps`` steps on this rank, and return its record."""
