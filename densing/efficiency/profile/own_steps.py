"""Own time of every rank and step: the seconds that models of delays are fitted to.

The length of a rank's step, less exposed communication and the waits that the trace marks:

.. math:: own_{rs} = |W_{rs}| - |C \\setminus K| - waits

A kernel that waits in a collective is communication, so in a synchronous run waiting for others is not own time. Idle
time, the host's too, is: it delays what follows. Steps are cut where the host marks
them; where a host runs ahead of its device, part of a step's work counts for another step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from densing.core import Note, Record, formatting
from densing.efficiency.timeline import occurrences

if TYPE_CHECKING:
    from densing.efficiency.profile.rank import RankProfile
    from densing.efficiency.simulation import DelayFit


class OwnSteps(Record, frozen=True):
    """Own seconds by rank and step, for the steps that all ranks recorded.

    Attributes
    ----------
    ranks, steps : tuple of int
        Their numbers.
    seconds : tuple of tuple of float
        By rank, then step.
    notes : tuple of Note
        What is left out, and why.
    """

    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    seconds: tuple[tuple[float, ...], ...]
    notes: tuple[Note, ...] = msgspec.field(default_factory=tuple)

    @property
    def size(self) -> int:
        """How many seconds there are."""
        return len(self.ranks) * len(self.steps)

    def fit(self, seed: int = 0) -> DelayFit:
        """Fit a model of delays; its notes say what was left out of the run.

        Examples
        --------
        >>> OwnSteps((0, 1), (1, 2), ((0.5, 0.6), (0.5, 0.7))).fit().status
        'too few'
        """
        from densing.efficiency.simulation import fit_delays

        found = fit_delays(np.array(self.seconds, float).reshape(len(self.ranks), len(self.steps)), seed=seed)
        return msgspec.structs.replace(found, notes=(*self.notes, *found.notes))


def own_seconds(ranks: Sequence[RankProfile]) -> OwnSteps:
    """Return the ranks' own time in the steps that all of them recorded.

    Examples
    --------
    >>> from densing.efficiency.profile.rank import profile_timeline
    >>> from densing.efficiency.timeline import Kind, RankTimeline, Spans, Step
    >>> work = Spans.build([{"start": 10, "end": 60, "kind": Kind.COMPUTE, "name": "gemm"},
    ...                     {"start": 60, "end": 80, "kind": Kind.COMM, "name": "ncclDevKernel_AllReduce"}])
    >>> own_seconds([profile_timeline(RankTimeline(0, work, Spans.empty(), (Step(7, 0, 80),)))]).seconds
    ((6e-08,),)
    """
    marked = [rank for rank in ranks if rank.steps]
    notes = []
    if len(marked) < len(ranks):
        without = formatting.ranks_of(rank.rank for rank in ranks if not rank.steps)
        remedy = "mark them with the profiler's step()" if not marked else "its delays are not in the fit"
        notes.append(Note("no-own-steps", "warning", f"{without}: no step is marked or recorded; {remedy}"))
    by_step = [dict(zip(occurrences(step.number for step in rank.steps), rank.steps, strict=True)) for rank in marked]
    shared = [key for key in (by_step[0] if by_step else ()) if all(key in steps for steps in by_step)]
    left = len(set().union(*by_step)) - len(shared)
    if left:
        text = (
            f"{formatting.plural(left, 'step')} that some rank did not record {'is' if left == 1 else 'are'} left out"
        )
        notes.append(Note("own-steps-left-out", "info" if shared else "warning", text, {"left_out": left}))
    seconds = tuple(tuple(steps[key].own_ns / 1e9 for key in shared) for steps in by_step)
    numbers = tuple(rank.rank for rank in marked)
    return OwnSteps(numbers, tuple(number for number, _ in shared), seconds, tuple(notes))


def largest_run(runs: Sequence[OwnSteps]) -> OwnSteps:
    """Return the run with most values; others may do different work and are not pooled with it.

    Examples
    --------
    >>> small, large = OwnSteps((0,), (1,), ((0.5,),)), OwnSteps((0,), (1, 2), ((0.5, 0.6),))
    >>> [note.code for note in largest_run([small, large]).notes]
    ['one-run']
    """
    best = max(runs, key=lambda run: run.size)
    if len(runs) == 1:
        return best
    text = (
        f"delays are fitted to the run with most ranks and steps, {formatting.ranks_of(best.ranks)}, of {len(runs)}: "
    )
    note = Note("one-run", "info", text + "the others may do different work", {"runs": len(runs)})
    return msgspec.structs.replace(best, notes=(*best.notes, note))
