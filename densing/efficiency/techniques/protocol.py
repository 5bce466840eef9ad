"""What a technique is: a plan for the simulator, claims to check, and where it is real, a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args, runtime_checkable

from densing.core import InputError

if TYPE_CHECKING:
    from densing.efficiency.parallel import RunEnv, RunRecord
    from densing.efficiency.simulation import Cluster, Graph, Workload
    from densing.efficiency.techniques.physics import Physics

Evidence = Literal["first-hand", "second-hand", "derived", "measured", "recalled"]
Grade = Literal["predicted", "calibrated on other rows", "fitted", "algebraic", "counted", "own measurement"]
GRADES: tuple[Grade, ...] = get_args(Grade)
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
        Gives our :class:`Answer` under the laws it is handed (:class:`densing.efficiency.techniques.physics.Physics`):
        all that it simulates goes through them, calibrations included.
    tolerance : float, optional
        Relative; None where a direction is compared: then ``check`` returns the same words if it holds. Said before
        the answer is looked at.
    inputs : str
        Which published figures went into ours (what was fitted to what).
    slow : bool
        Takes more than ten seconds.
    grade : Grade
        What agreement would be worth. ``predicted``: nothing that the same source measured went in.
        ``calibrated on other rows``: parameters were fitted to other figures, of this source or another. ``fitted``:
        to this very figure.
        ``algebraic``: ours follows from what went in whatever the simulator does. ``counted``: bytes or messages were
        counted, nothing was timed. ``own measurement``: the figure is ours, not a paper's.
    null : callable, optional
        What a model without a simulator answers from the same inputs; needed of ``calibrated on other rows``.
    assumptions : mapping of str to callable
        The check with one assumption changed, by what it is changed to: which of them decide the verdict is printed.

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
    slow: bool = False
    grade: Grade = "predicted"
    null: Callable[[], Answer] | None = None
    assumptions: Mapping[str, Callable[[], Answer]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.grade not in GRADES:
            raise InputError(f"claim {self.id}: grade {self.grade!r} does not exist; give one of {', '.join(GRADES)}")
        if self.grade == "calibrated on other rows" and self.null is None:
            raise InputError(
                f"claim {self.id} is calibrated on other rows and has no null model; give what a model without a "
                "simulator says from the same rows"
            )


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
