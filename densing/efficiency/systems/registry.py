"""Techniques, their knobs, and the registry: this package's techniques and those of other packages.

A technique is a plan for the simulator, claims to check, and where it is real, a run. Another package registers one
under the entry point ``densing.techniques``; a new one here is a folder and a line in :data:`BUILT_IN`."""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from numbers import Integral, Real
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

from densing.core import InputError, Note, UnavailableError, UnknownNameError

if TYPE_CHECKING:
    from densing.efficiency.parallel import RunEnv, RunRecord
    from densing.efficiency.simulation import Cluster, Workload
    from densing.efficiency.systems.claims import Claim
    from densing.efficiency.systems.plan import Plan


@runtime_checkable
class Technique(Protocol):
    """One published technique, or a baseline.

    Optional attributes, all defined by :class:`~densing.efficiency.systems.planner.base.Planned`:

    - ``changes_loss``: how the loss per step differs from plain synchronous training (another architecture, late
      averages), empty where it does not. A comparison shows it beside the speed-up; a missing attribute means unknown.
    - ``axis``: ``tp`` where the ranks of a real run share every matrix, ``pp`` where each holds some layers, ``server``
      where rank 0 holds the optimizer and the others compute gradients, ``table`` where one rank reads rows of a table
      in the host's memory, ``dp`` (also when missing) where each holds the whole model.
    - ``asynchronous``: whether a whole round of steps hides its communication, so that there is a least ``tau``.
    - ``plan_only``: names of knobs that a real run does not take.
    - ``check_run``: validates the specification of a run before any rank is started.
    - ``experimental``: why nothing should be built on it yet; empty where there is no reason.
    - ``not_available``: information that no readable source contains.
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
    """Empty, or what the run does instead of the technique itself (printed with all its results)."""

    def run(self, env: RunEnv, **knobs: Any) -> RunRecord:
        """Train ``env.spec.steps`` steps on this rank, and return its record."""


class BuiltIn:
    """Description of a technique of this package; see :class:`Technique`."""

    name: str = ""
    role: str = "exchange"
    paper: str = ""
    summary: str = ""
    knobs: tuple[Knob, ...] = ()
    axis: ClassVar[str] = "dp"
    changes_loss: ClassVar[str] = ""
    """How learning per step differs from plain synchronous training; empty if it does not."""
    experimental: ClassVar[str] = ""
    """Why nothing should be built on it yet."""
    not_available: ClassVar[tuple[str, ...]] = ()
    """What we looked for and found in no source that we could read; never filled in."""
    claims_in: ClassVar[str] = ""
    """Module that holds its ``CLAIMS``, imported when they are asked for; empty for a baseline."""

    @property
    def claims(self) -> tuple[Claim, ...]:
        """Published figures that the simulator can check; () for a baseline."""
        found: tuple[Claim, ...] = importlib.import_module(self.claims_in).CLAIMS if self.claims_in else ()
        return found


def kind_of(workload: Any) -> str:
    """Return the kind of a refused workload in words."""
    from densing.efficiency.simulation import Workload

    return "a transformer" if isinstance(workload, Workload) else f"of the kind {type(workload).__name__}"


def axis_of(technique: Technique) -> str:
    """Return the axis over which the ranks of a real run divide the work; see :class:`Technique`."""
    return str(getattr(technique, "axis", BuiltIn.axis))


@dataclass(frozen=True)
class Kind:
    """Type of a knob: text is parsed, a value of the type is only checked.

    Parameters
    ----------
    parse : callable
        Converts text to a value; raises an InputError for invalid text.
    check : callable
        Returns a valid value; raises an InputError for any other.
    """

    parse: Callable[[str], Any]
    check: Callable[[Any], Any]

    def __call__(self, text: str) -> Any:
        """Parse a text."""
        return self.parse(text)


@dataclass(frozen=True)
class Knob:
    """An option of a technique, with its default; ``kind`` parses the text of the command line.

    ``kind`` may be any function of a text; a :class:`Kind` also checks values that are not text. ``search`` is the
    range in which tuning looks for the best value; None: it is not tuned.
    """

    name: str
    default: Any
    help: str
    kind: Callable[[str], Any] = float
    search: tuple[float, float] | None = None


def whole(low: int, high: int | None = None) -> Kind:
    """Return the kind of integers from ``low`` up to ``high``.

    Examples
    --------
    >>> whole(1)("48")
    48
    """
    span = _between(low, high)

    def parse(text: str) -> int:
        try:
            return check(int(text))
        except ValueError:
            raise InputError(f"is not a whole number; give one {span}") from None

    def check(setting: Any) -> int:
        # True is an integer in Python, and no setting of a knob.
        if isinstance(setting, bool) or not isinstance(setting, Integral):
            raise InputError(f"is not a whole number; give one {span}")
        value = int(setting)
        if value < low or (high is not None and value > high):
            raise InputError(f"is out of range; give a whole number {span}")
        return value

    return Kind(parse, check)


def number(low: float, high: float | None = None) -> Kind:
    """Return the kind of finite numbers from ``low`` up to ``high``."""
    span = _between(low, high)

    def parse(text: str) -> float:
        try:
            return check(float(text))
        except ValueError:
            raise InputError(f"is not a number; give one {span}") from None

    def check(setting: Any) -> float:
        if isinstance(setting, bool) or not isinstance(setting, Real):
            raise InputError(f"is not a number; give one {span}")
        value = float(setting)
        if not math.isfinite(value) or value < low or (high is not None and value > high):
            raise InputError(f"is out of range; give a number {span}")
        return value

    return Kind(parse, check)


def _positive(value: float) -> float:
    if value == 0:
        raise InputError("is out of range; give a number above 0")
    return value


above_zero = Kind(lambda text: _positive(number(0.0).parse(text)), lambda value: _positive(number(0.0).check(value)))
"""Kind of a finite number above 0."""


def choice(names: Sequence[str]) -> Kind:
    """Return the kind of a choice among words."""

    def check(value: Any) -> str:
        if value not in names:
            raise InputError(f"is none of {', '.join(names)}; choose one")
        return str(value)

    return Kind(check, check)


def optional(kind: Callable[[str], Any]) -> Kind:
    """Return the kind that also allows None: ``none`` on the command line.

    Examples
    --------
    >>> optional(whole(1))("none"), optional(whole(1))("16")
    (None, 16)
    """
    inner = _kind(kind)
    return Kind(
        lambda text: None if text.lower() == "none" else inner.parse(text),
        lambda value: None if value is None else inner.check(value),
    )


def _flag(text: str) -> bool:
    answers = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    if text.lower() not in answers:
        raise InputError("is neither yes nor no; give yes or no")
    return answers[text.lower()]


flag = Kind(_flag, lambda value: value if isinstance(value, bool) else _flag(str(value)))
"""Kind of a yes-or-no value.

Examples
--------
>>> flag("yes"), flag("False")
(True, False)
"""


def settle(technique: str, knobs: Sequence[Knob], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return all settings of a technique: the given ones, parsed and checked, and defaults for the others.

    Raises
    ------
    UnknownNameError
        When it has no such knob.
    InputError
        When a value is invalid for its knob.

    Examples
    --------
    >>> settle("co2", (Knob("tau", 48, "steps per round", whole(1)),), {})
    {'tau': 48}
    """
    known = [knob.name for knob in knobs]
    for name in values:
        if name not in known:
            raise UnknownNameError(f"knob of {technique}:", name, known)
    settings = {}
    for knob in knobs:
        value, kind = values.get(knob.name, knob.default), _kind(knob.kind)
        try:
            settings[knob.name] = kind.parse(value) if isinstance(value, str) else kind.check(value)
        except (InputError, ValueError) as error:
            raise InputError(f"{technique}: {knob.name} = {value!r} {error}") from error
    return settings


def _kind(kind: Callable[[str], Any]) -> Kind:
    # Another package's parser may know texts alone.
    return kind if isinstance(kind, Kind) else Kind(kind, lambda value: kind(str(value)))


def _between(low: float, high: float | None) -> str:
    return f"from {low} up" if high is None else f"from {low} to {high}"


GROUP = "densing.techniques"

BUILT_IN: Mapping[str, str] = MappingProxyType(
    {
        "sequential": "baselines",
        "ddp": "ddp",
        "ddp-tuned": "ddp",
        "zero1": "zero",
        "zero2": "zero",
        "zero3": "zero",
        "local-sgd": "local_sgd",
        "slowmo": "local_sgd",
        "diloco": "diloco",
        "tensor-parallel": "baselines",
        "parallel-attention": "baselines",
        "pipeline": "pipeline",
        "co2": "co2",
        "topk": "dct",
        "dct": "dct",
        "powersgd": "powersgd",
        "fedavg": "fedft",
        "fedprox": "fedft",
        "topk-delta": "fedft",
        "int8-delta": "fedft",
        "fedft": "fedft",
        "local-only": "spafl",
        "spafl": "spafl",
        "ladder": "ladder_residual",
        "iso": "iso",
        "t3": "t3",
        "taccl": "taccl",
        "fusion": "fusion",
        "uc-mmc": "stragglers",
        "gradient-coding": "stragglers",
        "gc-mmc": "stragglers",
        "lcc": "stragglers",
        "backup-workers": "stragglers",
        "naive-average": "prox_csl",
        "owa": "prox_csl",
        "csl": "prox_csl",
        "prox-csl": "prox_csl",
        "owl-qn": "prox_csl",
        "device-table": "host_tables",
        "host-gather": "host_tables",
        "pinned-gather": "host_tables",
        "zero-copy": "host_tables",
        "sac-d": "offload",
    }
)
"""Module below ``densing.efficiency.systems`` of each name; imported when the technique is asked for."""

# What a command line, a file name and a table can hold without quoting.
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}", re.ASCII)


def technique_names() -> tuple[str, ...]:
    """Return the names :func:`get_technique` knows: built-in ones in their order, then those of other packages.

    Nothing is imported: a name here may still turn out to be broken when it is asked for (:func:`techniques`).

    Examples
    --------
    >>> technique_names()[:2]
    ('sequential', 'ddp')
    """
    usable, _ = _registered()
    return (*BUILT_IN, *usable)


def get_technique(name: str) -> Technique:
    """Return the technique of a name.

    Raises
    ------
    UnknownNameError
        When nothing is registered under the name.
    UnavailableError
        When it belongs to another package, and that package cannot be loaded or offers no technique.

    Examples
    --------
    >>> get_technique("ddp").name
    'ddp'
    """
    if name in BUILT_IN:
        return _built_in(name)
    usable, _ = _registered()
    if name not in usable:
        raise UnknownNameError("technique", name, technique_names())
    return _load(usable[name])


def techniques() -> tuple[tuple[Technique, ...], tuple[Note, ...]]:
    """Return every technique that can be loaded, and a note for each of another package that cannot.

    Returns
    -------
    techniques : tuple of Technique
        In the order of :func:`technique_names`.
    notes : tuple of Note
        ``broken-technique``, ``technique-name-taken`` or ``technique-name``.

    Examples
    --------
    >>> loaded, notes = techniques()
    >>> {technique.name for technique in loaded} >= {"ddp", "co2"}
    True
    """
    usable, refused = _registered()
    notes = list(refused)
    loaded = [_built_in(name) for name in BUILT_IN]
    for point in usable.values():
        try:
            loaded.append(_load(point))
        except UnavailableError as error:
            notes.append(Note("broken-technique", "warning", str(error), {"technique": point.name}))
    return tuple(loaded), tuple(notes)


def parse_settings(texts: Sequence[str], *, option: str = "--set ") -> dict[str, dict[str, Any]]:
    """Parse ``TECHNIQUE.KNOB=VALUE`` of ``--set``, each value as its knob says: knobs by technique.

    Messages begin with ``option`` and the text.

    Raises
    ------
    InputError
        When one has another form, is given twice, or its value does not fit the knob.
    UnknownNameError
        When there is no such technique or knob.

    Examples
    --------
    >>> parse_settings(["co2.tau=12"])
    {'co2': {'tau': 12}}
    """
    settings: dict[str, dict[str, Any]] = {}
    # The last dot parts technique and knob: a technique's name may hold dots itself.
    for text in texts:
        path, equals, value = text.partition("=")
        name, dot, knob = path.rpartition(".")
        if not (equals and dot):
            raise InputError(f"{option}{text}: write TECHNIQUE.KNOB=VALUE, as in co2.tau=48")
        kinds = {each.name: each.kind for each in get_technique(name).knobs}
        if knob not in kinds:
            raise UnknownNameError(f"knob of {name}:", knob, kinds)
        if knob in settings.setdefault(name, {}):
            raise InputError(f"{option}{text}: {path} is set twice; set it once")
        try:
            parsed = kinds[knob](value.strip())
        except InputError as error:
            raise InputError(f"{option}{text}: {value!r} {error}") from error
        except (ValueError, TypeError) as error:
            raise InputError(f"{option}{text}: {value!r} is not a valid value of this knob ({error})") from error
        if isinstance(parsed, float) and not math.isfinite(parsed):
            raise InputError(f"{option}{text}: {value!r} is not a finite number")
        settings[name][knob] = parsed
    return settings


def run_settings(
    names: Sequence[str], texts: Sequence[str] = (), *, tau: int | None = None
) -> dict[str, dict[str, Any]]:
    """Return every knob of a real run of each technique: as set, or its default.

    Parameters
    ----------
    names : sequence of str
        Techniques to be run.
    texts : sequence of str
        ``KNOB=VALUE``, for all of them that have the knob, or ``TECHNIQUE.KNOB=VALUE``.
    tau : int, optional
        Steps per round, for all of them that have rounds.

    Raises
    ------
    InputError
        When a technique is not to be run, a knob changes plans only, or as :func:`parse_settings`.
    UnknownNameError
        When there is no such technique or knob.

    Examples
    --------
    >>> run_settings(["ddp", "fedprox"], ["mu=0.5"], tau=8)
    {'ddp': {'bucket_mb': None}, 'fedprox': {'tau': 8, 'mu': 0.5, 'clients': None, 'parts': False}}
    """
    defaults = {}
    for name in names:
        technique = get_technique(name)
        unused = getattr(technique, "plan_only", ())
        defaults[name] = {knob.name: knob.default for knob in technique.knobs if knob.name not in unused}
    qualified: list[str] = []
    for text in (*texts, *([f"tau={tau}"] if tau is not None else ())):
        path, _, _ = text.partition("=")
        name, dot, knob = path.rpartition(".")
        if dot and name not in defaults:
            raise InputError(f"--set {text}: {name} is not among the techniques to run; add it to --technique")
        having = [one for one in ((name,) if dot else defaults) if knob in defaults[one]]
        if not having:
            runs = (name,) if dot else names
            if any(knob == each.name for one in runs for each in get_technique(one).knobs):
                raise InputError(
                    f"--set {knob}: changes plans only (`densing techniques compare`), not a real run of "
                    f"{', '.join(runs)}; leave it out"
                )
            known = sorted({key for one in runs for key in defaults[one]})
            raise UnknownNameError(f"knob of {', '.join(runs)}:", knob, known)
        qualified += [text] if dot else [f"{one}.{text}" for one in having]
    chosen = parse_settings(qualified)
    return {name: {**knobs, **chosen.get(name, {})} for name, knobs in defaults.items()}


def _built_in(name: str) -> Technique:
    module = importlib.import_module(f"densing.efficiency.systems.{BUILT_IN[name]}.technique")
    return next(value for value in vars(module).values() if _lack(value) is None and value.name == name)


def _registered() -> tuple[dict[str, EntryPoint], list[Note]]:
    """Entry points by name, without those whose name is taken or cannot be typed, and why those are left out."""
    usable: dict[str, EntryPoint] = {}
    notes: list[Note] = []
    for point in sorted(entry_points(group=GROUP), key=lambda point: (point.name, point.value)):
        details = {"technique": point.name, "value": point.value}
        if not NAME.fullmatch(point.name):
            message = (
                f"{point.value}: {point.name!r} is not a valid name for a technique; use a-z, 0-9, '-', '_' and '.'"
            )
            notes.append(Note("technique-name", "warning", message, details))
        elif point.name not in BUILT_IN and point.name not in usable:
            usable[point.name] = point
        # The same entry point twice is one package that is found in two places.
        elif point.name in BUILT_IN or usable[point.name].value != point.value:
            message = f"{point.value}: another technique is already called {point.name!r}; this one is left out"
            notes.append(Note("technique-name-taken", "warning", message, details))
    return usable, notes


def _load(point: EntryPoint) -> Technique:
    try:
        value = point.load()
        technique: Technique = value() if isinstance(value, type) else value
        missing = _lack(technique)
    except (Exception, SystemExit) as error:
        # Code of another package: whatever it raises, the user needs its name.
        reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise UnavailableError(
            f"technique {point.name}: {point.value} cannot be loaded ({reason}); repair or remove that package"
        ) from error
    if missing is not None:
        raise UnavailableError(f"technique {point.name}: {point.value} {missing}, so it is not a technique")
    if technique.name != point.name:
        raise UnavailableError(
            f"technique {point.name}: {point.value} has the name {technique.name!r}; register it under that name"
        )
    return technique


def _lack(value: Any) -> str | None:
    """Return the attribute that a value lacks to be a technique; None when it lacks none.

    Not ``isinstance(value, Technique)``, which evaluates ``claims`` and with them their imports.
    """
    if isinstance(value, type):
        return "is a class"
    for text in ("name", "role", "paper", "summary"):
        if not isinstance(getattr(value, text, None), str):
            return f"has no {text}"
    if not isinstance(getattr(value, "knobs", None), tuple):
        return "has no tuple of knobs"
    if not callable(getattr(value, "plan", None)):
        return "has no plan"
    return None if hasattr(type(value), "claims") or "claims" in vars(value) else "has no claims"
