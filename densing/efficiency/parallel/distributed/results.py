"""What a run leaves: one record out of those of its ranks (``run.json``), or what a probe measured (``probe.json``)."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from densing.core import ArtefactError, Note, Record, formatting
from densing.efficiency.parallel.distributed import folder
from densing.efficiency.parallel.distributed.spec import LmShape, RunRecord, RunSpec
from densing.efficiency.simulation import Computation, Device, Observation

BUSY = 0.2
"""Cores that others may keep busy during a run before its times are doubted."""
DIED = "died_rank"
"""Prefix of the figure that says in which step a rank died, if the run went on without it."""


class RunLink(Record, frozen=True):
    """The link between the ranks.

    Parameters
    ----------
    rate : str
        ``200mbit``; ``none`` where ranks spoke over the machine's loopback.
    kind : str
        ``shaped`` (real interfaces of that rate), ``emulated`` (waiting added to loopback) or ``none``.
    bytes_per_s, latency_s : float
        0 bytes per second: not limited.
    reason : str
        Why it is emulated although a shaped one was asked for.
    """

    rate: str = "none"
    kind: str = "none"
    bytes_per_s: float = 0.0
    latency_s: float = 0.0
    reason: str = ""


class Run(Record, frozen=True):
    """A finished run, as in ``run.json``.

    Parameters
    ----------
    step_s : float
        Seconds per step: mean over the ``timed_steps``, and over ranks.
    step_median_s : float
        Median of the same; methods that communicate every tau-th step have most steps without.
    wait_s : float
        Of ``step_s``, seconds in which the training thread stood still for communication (exposed).
    exposed : float
        ``wait_s / step_s``.
    timed_steps : int
        Steps these figures are from: those at the end of the run before the recorded ones, whole rounds of tau where
        there are rounds; the first quarter is left out where enough remain.
    losses : tuple of float
        Per step, mean of the ranks' (nats per token).
    final_loss : float
        On held-out text, of the averaged model.
    delay : str
        Of ``step_s`` part are delays that were injected: slept as this draws them.
    traces : str or None
        Folder of the recorded timelines below the run's, None if nothing was recorded.
    resumed_from : int
        Step of the checkpoint it went on from; -1 none.
    others : float, optional
        Cores that other processes kept busy meanwhile, mean; None where the machine does not say.
    """

    technique: str
    knobs: Mapping[str, Any]
    nproc: int
    steps: int
    seed: int
    link: RunLink
    stand_in: str
    step_s: float
    step_median_s: float
    wait_s: float
    exposed: float
    timed_steps: int
    tokens: int
    losses: tuple[float, ...]
    final_loss: float
    parameters: int
    resumed_from: int
    model: LmShape
    batch: int
    sequence: int
    lr: float
    corpus: str
    device: str
    traces: str | None
    extra: Mapping[str, float]
    versions: Mapping[str, str]
    delay: str = ""
    others: float | None = None

    @property
    def foretold(self) -> dict[str, float] | None:
        """The run's own prediction of a step, made before the timed steps; None for most runs."""
        if "predicted_step_s" not in self.extra:
            return None
        return {"step_s": self.extra["predicted_step_s"], "exposed_s": self.extra["predicted_wait_s"]}

    def notes(self) -> list[Note]:
        """Return caveats of the figures: an emulated link, a stand-in for the technique."""
        notes = []
        if self.link.kind == "emulated":
            cause = f" ({self.link.reason})" if self.link.reason else ""
            message = f"the link is emulated{cause}: delays were added on loopback, and no bytes crossed a real network"
            notes.append(Note("emulated-link", "warning", message))
        if self.delay:
            message = (
                "injected delays: ranks slept before computing for times drawn from "
                f"{self.delay}; there were no other delays"
            )
            notes.append(Note("injected-delays", "warning", message))
        if self.others is not None and self.others >= BUSY:
            message = (
                f"{self.technique}, seed {self.seed}: other processes kept {formatting.number(self.others)} of "
                f"{os.cpu_count()} cores busy during the run, and its times are theirs, too"
            )
            notes.append(Note("busy-machine", "warning", message, {"cores": self.others}))
        died = [name.removeprefix(DIED) for name in self.extra if name.startswith(DIED)]
        if died:
            message = f"{self.technique}, seed {self.seed}: ranks that died and were left out: {', '.join(died)}"
            notes.append(Note("dead-ranks", "warning", message))
        if self.stand_in:
            notes.append(Note("stand-in", "warning", f"{self.technique}: {self.stand_in}"))
        return notes


class SeedMean(Record, frozen=True):
    """A technique over its seeds; seconds are per step, ``predicted_*`` simulated beforehand or None.

    ``final_loss_sd`` is the standard deviation of one run, None with a single seed.
    """

    technique: str
    seeds: tuple[int, ...]
    link: str
    link_kind: str
    stand_in: str
    step_s: float
    wait_s: float
    exposed: float
    final_loss: float
    final_loss_sd: float | None
    predicted_step_s: float | None = None
    predicted_wait_s: float | None = None
    predicted_tau_min: float | None = None

    @property
    def off(self) -> float | None:
        """How much longer a step took than predicted, as a share of the prediction; None without one."""
        return self.step_s / self.predicted_step_s - 1 if self.predicted_step_s else None


def seed_means(runs: Sequence[Run], predictions: Sequence[Mapping[str, Any] | None]) -> list[SeedMean]:
    """Average over seeds: one row per technique, in the order of the runs.

    Parameters
    ----------
    runs : sequence of Run
    predictions : sequence of mapping or None
        Of each run: ``step_s``, ``exposed_s`` and ``tau_min`` as simulated beforehand, where the seed changes none of
        them, or as the run said it itself; their mean is the row's.
    """
    rows = []
    for name in dict.fromkeys(run.technique for run in runs):
        own = [run for run in runs if run.technique == name]
        predicted = [each for run, each in zip(runs, predictions, strict=True) if run.technique == name and each]
        losses = [run.final_loss for run in own]
        rows.append(
            SeedMean(
                technique=name,
                seeds=tuple(run.seed for run in own),
                link=own[0].link.rate,
                link_kind=own[0].link.kind,
                stand_in=own[0].stand_in,
                step_s=statistics.fmean(run.step_s for run in own),
                wait_s=statistics.fmean(run.wait_s for run in own),
                exposed=statistics.fmean(run.exposed for run in own),
                final_loss=statistics.fmean(losses),
                final_loss_sd=statistics.stdev(losses) if len(losses) > 1 else None,
                predicted_step_s=_mean_of(predicted, "step_s"),
                predicted_wait_s=_mean_of(predicted, "exposed_s"),
                predicted_tau_min=_mean_of(predicted, "tau_min"),
            )
        )
    return rows


def _mean_of(predictions: Sequence[Mapping[str, Any]], name: str) -> float | None:
    values = [each[name] for each in predictions if each.get(name) is not None]
    return statistics.fmean(values) if values else None


def gather(spec: RunSpec, link: RunLink, *, server: bool = False) -> Run:
    """Merge the records of all ranks; of a server's workers some may have none, and only figures count.

    Raises
    ------
    ArtefactError
        When a rank left none, or a damaged one.
    """
    out = Path(spec.out)
    records = []
    for rank in range(spec.nproc):
        path = folder.record_file(out, rank)
        # What a server could do without has died; its figures say so.
        if server and rank and not path.exists():
            continue
        try:
            records.append(RunRecord.from_dict(folder.read_json(path)))
        except msgspec.ValidationError as error:
            raise ArtefactError(f"{path}: not a record of a rank ({error}); run again with another --out") from error
    first = records[0]
    trained = [record for record in records if record.losses] or records
    timed = timed_steps(len(first.step_s), spec.trace_steps, spec.knobs)
    steps = [record.step_s[timed] for record in trained]
    waits = [record.wait_s[timed] for record in trained]
    step_s, wait_s = _mean(steps), _mean(waits)
    # Each figure over the ranks that have it.
    figures = dict.fromkeys(name for record in records for name in record.extra)
    extra = {name: statistics.fmean(r.extra[name] for r in records if name in r.extra) for name in figures}
    return Run(
        technique=spec.technique,
        knobs=spec.knobs,
        nproc=spec.nproc,
        steps=spec.steps,
        seed=spec.seed,
        link=link,
        stand_in=first.stand_in,
        step_s=step_s,
        step_median_s=statistics.median([value for row in steps for value in row] or [0.0]),
        wait_s=wait_s,
        exposed=wait_s / step_s if step_s else 0.0,
        timed_steps=len(range(*timed.indices(len(first.step_s)))),
        tokens=first.tokens,
        losses=first.losses,
        final_loss=statistics.fmean(record.final_loss for record in trained),
        parameters=first.parameters,
        resumed_from=first.resumed_from,
        model=spec.model,
        batch=spec.batch,
        sequence=spec.sequence,
        lr=spec.lr,
        corpus=spec.corpus,
        device=spec.device,
        traces="traces" if any(out.glob("traces/*.json*")) else None,
        extra=extra,
        versions=versions(),
        delay=spec.delay,
    )


def timed_steps(count: int, traced: int, knobs: Mapping[str, Any]) -> slice:
    """Return which steps are timed: none that is recorded, whole rounds, and not the first ones.

    Examples
    --------
    >>> timed_steps(48, 8, {"tau": 8})
    slice(8, 40, None)
    >>> timed_steps(20, 0, {})
    slice(5, 20, None)
    >>> timed_steps(3, 3, {})
    slice(1, 3, None)
    """
    stop = count - traced if count > traced else count
    tau = knobs.get("tau", 1)
    period = tau if isinstance(tau, int) and 1 <= tau <= stop else 1
    rounds = stop // period
    early = max(1, rounds // 4) if rounds > 2 else 0
    if (warming := knobs.get("warmup_rounds", 0)) and isinstance(warming, int):
        early = max(early, warming + 1)
    timed_rounds = max(1, rounds - early)
    return slice(max(0, stop - timed_rounds * period), stop)


def versions() -> dict[str, str]:
    """Return the versions a result depends on."""
    from importlib.metadata import version

    return {"densing": version("densing"), "python": platform.python_version(), "torch": version("torch")}


def _mean(rows: Sequence[Sequence[float]]) -> float:
    values = [value for row in rows for value in row]
    return statistics.fmean(values) if values else 0.0


PROBE_FILE = "probe.json"
UPDATE_BYTES = 24
"""Bytes that the update moves per parameter, as the planner counts: gradient, weight, two float32 moments twice."""


class Timed(Record, frozen=True):
    """A pass over a module.

    Parameters
    ----------
    name : {"attention", "mlp", "head"}
    phase : {"forward", "backward"}
    parts : int
        Tensor-parallel ranks that share it.
    tokens : int
        Of each sequence.
    flops, moved : float
        Operations and bytes as :mod:`densing.efficiency.simulation.workload` counts them.
    seconds : float
    """

    name: str
    phase: str
    parts: int
    tokens: int
    flops: float
    moved: float
    seconds: float


class Whole(Record, frozen=True):
    """A whole step without communication: forward and backward with all that belongs to them, and the update."""

    passes_s: float
    update_s: float
    parameters: int


class Probed(Record, frozen=True):
    """Measurements of a probe, as in ``OUT/probe.json``.

    Parameters
    ----------
    collectives : tuple of Observation
        Shortest of the ranks: what it took once all had come.
    computations : tuple of Computation
        Of every rank.
    modules : tuple of Timed
        Mean of the ranks.
    whole : Whole
        Mean of the ranks.
    module_sum_s : float
        A forward and backward pass as the sum of its modules.
    mode : str
    pipelined : float
        See :class:`densing.efficiency.simulation.cluster.Cluster`; mean of the ranks.
    """

    collectives: tuple[Observation, ...]
    computations: tuple[Computation, ...]
    modules: tuple[Timed, ...]
    whole: Whole
    module_sum_s: float
    mode: str = "train"
    pipelined: float = 0.0

    def device(self) -> Device:
        """Return this processor, with the modules' times as measured.

        Where the passes take longer as a whole than module by module (gradients added up, batches made), every module
        takes its share of the difference.
        """
        share = self.whole.passes_s / self.module_sum_s if self.mode == "train" else 1.0
        pieces = {(one.flops, one.moved): one.seconds * share for one in reversed(self.modules)}
        measured = tuple((flops, moved, took) for (flops, moved), took in sorted(pieces.items()))
        return Device(
            "processor core, measured",
            flops=max(flops / took for flops, _, took in measured),
            mem_bw=self.whole.parameters * UPDATE_BYTES / self.whole.update_s,
            measured=measured,
        )
