"""Steps that gather rows of a table in the host's memory: features of a graph, embeddings, experts, adapters."""

from __future__ import annotations

import math
from pathlib import Path

from densing.core import InputError, Record
from densing.efficiency.simulation.presets import Presets

MOST = 10**12


class Gather(Record, frozen=True):
    """One step that gathers rows of a table for a device to compute on.

    Parameters
    ----------
    name : str
    table_rows, width : int
        Rows and columns of the table.
    rows : int
        Gathered per step.
    train_s : float
        Measured seconds of a step's computation on the device; nothing is derived from the device's peak.
    sample_s : float
        Seconds of the host's sampling of the rows.
    dtype_bytes : int
        Bytes of a number.
    parameters : int
        Parameters of the model on the device, without the table.
    steps : int
        Steps of an epoch.
    source, evidence : str

    Examples
    --------
    >>> step = Gather("toy", table_rows=1000, width=602, rows=100, train_s=0.01)
    >>> step.row_bytes, step.bytes, step.table_parameters
    (2408, 240800, 602000)
    """

    name: str
    table_rows: int
    width: int
    rows: int
    train_s: float
    sample_s: float = 0.0
    dtype_bytes: int = 4
    parameters: int = 0
    steps: int = 1
    source: str = ""
    evidence: str = ""

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.width * self.dtype_bytes

    @property
    def bytes(self) -> int:
        """Bytes gathered per step."""
        return self.rows * self.row_bytes

    @property
    def table_parameters(self) -> int:
        """Numbers of the table."""
        return self.table_rows * self.width


def check_gather(step: Gather) -> None:
    """Refuse an inconsistent step.

    Raises
    ------
    InputError

    Examples
    --------
    >>> check_gather(Gather("toy", 1000, 0, 100, 0.01))
    Traceback (most recent call last):
        ...
    densing.core.errors.InputError: toy: width: 0 is out of range; give a whole number from 1 to 1000000000000
    """
    for field, low in (("table_rows", 1), ("width", 1), ("rows", 1), ("parameters", 0), ("steps", 1)):
        value = getattr(step, field)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= MOST:
            raise InputError(
                f"{step.name}: {field}: {value!r} is out of range; give a whole number from {low} to {MOST}"
            )
    if step.rows > step.table_rows:
        raise InputError(
            f"{step.name}: rows: {step.rows:,} distinct rows of a table of {step.table_rows:,}; give at most that many"
        )
    if step.dtype_bytes not in (1, 2, 4, 8):
        raise InputError(
            f"{step.name}: dtype_bytes: {step.dtype_bytes} is not a valid number of bytes; give 1, 2, 4 or 8"
        )
    for field in ("train_s", "sample_s"):
        if not (math.isfinite(getattr(step, field)) and getattr(step, field) >= 0):
            raise InputError(f"{step.name}: {field}: {getattr(step, field)} is out of range; give seconds of 0 or more")


PRESETS = Presets(Gather, Path(__file__).with_suffix(".toml"), "table", check_gather)
gather_names, load_gather = PRESETS.names, PRESETS.load
