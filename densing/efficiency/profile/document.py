"""A run's profile as one plain document: the JSON of ``densing profile``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from densing.efficiency.profile.rank import RankProfile
    from densing.efficiency.profile.run import RunProfile
    from densing.efficiency.profile.stragglers import Stragglers

SHOWN_LATE = 20


def document(run: RunProfile) -> dict[str, Any]:
    """Return all that a run's profile says, as plain data; single communications are left to the store."""
    from densing import __version__
    from densing.efficiency.profile.frames import collective_rows
    from densing.efficiency.profile.summary import all_step_times

    together = run.together
    return {
        "version": __version__,
        "window": run.window,
        "options": dict(run.options),
        "figures": dict(run.figures),
        "ranks": [_rank(rank) for rank in run.ranks],
        "skipped_events": run.figures["skipped_events"],
        "repaired_events": run.figures["repaired_events"],
        "collectives": collective_rows(run.collectives, together.waiting if together else {}),
        "clocks": together and together.clocks.to_dict(),
        "stragglers": together and _waiting(together.stragglers),
        "what_if": together and together.what_if.to_dict(),
        "critical_path": together and together.path and together.path.to_dict(),
        "step_times": all_step_times(run.ranks).to_dict(),
        "step_spread": [row.to_dict() for row in run.spread],
        "causes": [cause.to_dict() for cause in run.causes],
        "notes": [note.to_dict() for note in run.notes],
    }


def _waiting(stragglers: Stragglers) -> dict[str, Any]:
    """Of single communications only those waited for most."""
    waiting = stragglers.to_dict()
    waiting["late"] = sorted(waiting["late"], key=lambda row: -row["waited_ns"])[:SHOWN_LATE]
    return waiting


def _rank(rank: RankProfile) -> dict[str, Any]:
    row = rank.to_dict()
    for heavy in ("collectives", "picture"):
        del row[heavy]
    row["path"].pop("segments", None)
    return row
