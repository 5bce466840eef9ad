"""Where a technique pays off: speed-ups over the bandwidth of a link and the size of the batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from densing.core import InputError, Note, Record
from densing.efficiency.simulation import resized
from densing.efficiency.techniques.comparison import DOES_NOT_FIT, Settings, compare

if TYPE_CHECKING:
    import pandas as pd

    from densing.efficiency.simulation import Cluster, Workload

MARGIN = 0.02
"""A speed-up within this of 1 is a tie."""

FACTORS = (1 / 16, 1 / 4, 1.0, 4.0, 16.0)
BATCHES = (1, 4, 16, 64)
LINKS = ("intra", "inter", "wide")


class Cell(Record, frozen=True):
    """One technique at one bandwidth and one batch.

    Parameters
    ----------
    bandwidth_gbps : float
        Of the link that is varied, 10^9 bits per second.
    batch : int
        Sequences per data-parallel replica.
    technique : str
    step_s, speedup : float, optional
        None where it does not apply.
        None too for the speed-up of what does not fit in memory.
    verdict : {"wins", "ties", "loses", "does not fit", "does not apply"}
        Against the baseline, with a margin of 2 %.
    """

    bandwidth_gbps: float
    batch: int
    technique: str
    step_s: float | None
    speedup: float | None
    verdict: str


class RegimeMap(Record, frozen=True):
    """The cells, by bandwidth, batch and technique; which link was varied; and the baseline."""

    cells: tuple[Cell, ...]
    link: str
    baseline: str
    notes: tuple[Note, ...] = ()

    def table(self) -> pd.DataFrame:
        """Return the cells as a table."""
        return Record.frame(self.cells)


def regime(
    workload: Workload,
    cluster: Cluster,
    techniques: Sequence[str],
    *,
    link: str | None = None,
    bandwidths_gbps: Sequence[float] = (),
    batches: Sequence[int] = BATCHES,
    knobs: Settings | None = None,
    baseline: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> RegimeMap:
    """Compare techniques over a grid of bandwidths and batches.

    Parameters
    ----------
    workload, cluster, techniques, knobs, baseline
        As for :func:`densing.efficiency.techniques.comparison.compare`.
    link : {"intra", "inter", "wide"}, optional
        Which link is varied; the one between nodes when left out, within the node where there is only one.
    bandwidths_gbps : sequence of float
        10^9 bits per second; when empty 1/16 to 16 times the cluster's own.
    batches : sequence of int
    progress : callable, optional
        Called with the cells done and the cells in all.

    Raises
    ------
    InputError
        When a bandwidth or a batch is not positive, or the link is not one of this cluster.
    """
    varied = link or ("inter" if cluster.n > cluster.per_node else "intra")
    grid = _grid(cluster, varied, bandwidths_gbps, batches)
    cells: list[Cell] = []
    notes: dict[str, Note] = {}
    misfits: dict[str, dict[int, float]] = {}
    for number, (bandwidth, batch) in enumerate(grid):
        comparison = compare(
            resized(workload, batch),
            _with(cluster, varied, bandwidth),
            techniques,
            knobs=knobs,
            baseline=baseline,
            remedies=False,
        )
        for row in sorted(comparison.rows, key=lambda row: list(techniques).index(row.technique)):
            misfit = row.status == DOES_NOT_FIT
            speedup = None if misfit else row.speedup
            outcome = DOES_NOT_FIT if misfit else verdict(speedup)
            cells.append(Cell(bandwidth, batch, row.technique, row.step_s, speedup, outcome))
            if misfit:
                misfits.setdefault(row.technique, {})[batch] = (row.memory_bytes or 0.0) / 1e9
        for note in comparison.notes:
            # A remark that holds of many cells is said once.
            if not note.code.startswith("memory"):
                notes.setdefault(note.code if note.severity == "info" else note.message, note)
        if progress is not None:
            progress(number + 1, len(grid))
    remarks = (*notes.values(), *([_misfits(misfits, cluster)] if misfits else []))
    return RegimeMap(tuple(cells), varied, baseline or techniques[0], remarks)


def _misfits(needs: Mapping[str, Mapping[int, float]], cluster: Cluster) -> Note:
    """One note on all cells that do not fit: techniques that do not at the same batches are named together."""
    by_batches: dict[tuple[int, ...], list[str]] = {}
    for name, batches in needs.items():
        by_batches.setdefault(tuple(batches), []).append(name)
    where = "; ".join(
        f"{', '.join(names)} at batch {', '.join(map(str, batches))}" for batches, names in by_batches.items()
    )
    room = f"{cluster.device.name} has {cluster.device.memory / 1e9:,.0f} GB"
    return Note(
        "map-memory",
        "warning",
        f"map: does not fit, {room}: {where}",
        {"need_gb": {name: {str(batch): need for batch, need in found.items()} for name, found in needs.items()}},
    )


def verdict(speedup: float | None) -> str:
    """Return what a speed-up amounts to.

    Examples
    --------
    >>> [verdict(value) for value in (1.3, 1.01, 0.9, None)]
    ['wins', 'ties', 'loses', 'does not apply']
    """
    if speedup is None:
        return "does not apply"
    if abs(speedup - 1) <= MARGIN:
        return "ties"
    return "wins" if speedup > 1 else "loses"


def _grid(cluster: Cluster, link: str, bandwidths: Sequence[float], batches: Sequence[int]) -> list[tuple[float, int]]:
    if link not in LINKS or getattr(cluster, link) is None:
        known = ", ".join(name for name in LINKS if getattr(cluster, name) is not None)
        raise InputError(f"cluster {cluster.name} has no link {link!r}; it has {known}")
    for value in (*bandwidths, *batches):
        if not 0 < value < float("inf"):
            raise InputError(f"{value} is no bandwidth or batch of a map; give positive numbers")
    if not batches:
        raise InputError("no batch for the map; give some, as in 1,4,16")
    own = getattr(cluster, link).beta_s_per_byte
    if not bandwidths and not own:
        raise InputError(f"cluster {cluster.name}: its link {link} costs no time per byte; give the map's bandwidths")
    chosen = sorted({float(f"{value:.6g}") for value in bandwidths or [factor * 8e-9 / own for factor in FACTORS]})
    return [(bandwidth, batch) for bandwidth in chosen for batch in sorted(set(batches))]


def _with(cluster: Cluster, link: str, bandwidth_gbps: float) -> Cluster:
    return cluster.change(**{link: replace(getattr(cluster, link), beta_s_per_byte=8e-9 / bandwidth_gbps)})
