"""What the training bought: a model's density beside the device hours it took and what of them was lost.

.. math:: \\text{capability per parameter per device hour} = \\rho / H

with ρ the model's density (effective over actual parameters) and H the device hours of its training.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from densing.core import ArtefactError, InputError, UnknownNameError
from densing.efficiency.timeline import Partition
from densing.plots import digits, percent, status, text

PER_HOURS = 1000.0


@dataclass(frozen=True)
class JoinedDensity:
    """One model's density, and the device hours of the training that made it.

    Parameters
    ----------
    model, benchmark : str
    density : float
        Effective parameters over actual ones; a limit where ``bound`` says so.
    density_lo, density_hi : float or None
        Ends of its interval; None where unbounded or unknown.
    n_eff : float or None
        Effective parameters.
    device_hours : float
        Of the whole training, from the user: devices × hours.
    note : str
        What to keep in mind (status of the inversion); empty if nothing.
    bound : {"", "upper", "lower"}
        Whether the density is a limit.

    Raises
    ------
    InputError
        When density or device hours are not positive and finite.
    """

    model: str
    density: float
    density_lo: float | None
    density_hi: float | None
    benchmark: str
    n_eff: float | None
    device_hours: float
    note: str = ""
    bound: str = ""

    def __post_init__(self) -> None:
        """Check the figures that divide."""
        for name, value, remedy in (
            ("density", self.density, "a density is effective over actual parameters"),
            ("device hours", self.device_hours, "give the devices times the hours of the whole training"),
        ):
            if not math.isfinite(value) or value <= 0:
                raise InputError(f"{self.model}: {name} {value:g} is not a positive number; {remedy}")

    @property
    def per_hour(self) -> float:
        """Density per 1,000 device hours.

        Examples
        --------
        >>> JoinedDensity("m", 2.0, None, None, "mmlu", None, 4000.0).per_hour
        0.5
        """
        return PER_HOURS * self.density / self.device_hours

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {**asdict(self), "per_1000_device_hours": self.per_hour}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> JoinedDensity:
        """Rebuild what :meth:`to_dict` wrote."""
        return cls(**{key: value for key, value in data.items() if key != "per_1000_device_hours"})


def read_density(
    path: Path | str, device_hours: float, *, model: str | None = None, benchmark: str | None = None
) -> JoinedDensity:
    """Read one model's row from what ``densing density --json`` printed.

    Parameters
    ----------
    path : path
    device_hours : float
        Devices × hours of the model's training.
    model, benchmark : str, optional
        Which row, where the file holds several. A row read by loss is called ``<benchmark>:loss``.

    Raises
    ------
    ArtefactError
        When the file is not what that command prints.
    UnknownNameError
        When it has no row of that model or benchmark.
    InputError
        When several rows are left, or the row has no density.

    Examples
    --------
    >>> import tempfile
    >>> row = {"model": "m", "benchmark": "mmlu", "density": 1.5, "density_lo": 1.2, "density_hi": None, "n_eff": 3e9}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "density.json")
    ...     _ = file.write_text(json.dumps([row]))
    ...     read_density(file, 3000).per_hour
    0.5
    """
    rows = _rows(Path(path))
    rows = _chosen(rows, "model", model, path)
    rows = _chosen(rows, "benchmark", benchmark, path)
    if len(rows) > 1:
        key = "model" if len({row["model"] for row in rows}) > 1 else "benchmark"
        known = ", ".join(sorted({_name(row, key) for row in rows})[:10])
        raise InputError(f"{path}: {len(rows)} rows fit; name one by its {key} ({known})")
    return _joined(rows[0], device_hours, path)


def _rows(path: Path) -> list[dict[str, Any]]:
    what = "not what `densing density --json` prints; run that command and keep its output"
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot read ({error.strerror}); check the path") from error
    except (ValueError, RecursionError) as error:
        raise ArtefactError(f"{path}: {what}") from error
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise ArtefactError(f"{path}: {what}")
    if not all(isinstance(row.get("model"), str) and "density" in row for row in rows):
        raise ArtefactError(f"{path}: rows without model or density; {what}")
    return rows


def _name(row: Mapping[str, Any], key: str) -> str:
    """Return how a row is called: by model, or by benchmark (skill) and, for losses, quantity."""
    if key == "model":
        return str(row["model"])
    name = str(row.get("benchmark") or row.get("skill") or "")
    return f"{name}:loss" if row.get("quantity") == "loss" else name


def _chosen(rows: list[dict[str, Any]], key: str, wanted: str | None, path: Path | str) -> list[dict[str, Any]]:
    if wanted is None:
        return rows
    found = [row for row in rows if _name(row, key) == wanted]
    if not found:
        raise UnknownNameError(f"{key} in {path}:", wanted, {_name(row, key) for row in rows})
    return found


def _joined(row: Mapping[str, Any], device_hours: float, path: Path | str) -> JoinedDensity:
    where = f"{path}: {text.clean(row['model'], 80)}"
    density = _number(row.get("density"))
    if density is None:
        raise InputError(f"{where} has no density ({text.clean(row.get('status'))}); choose a model that has one")
    bound = row.get("bound") if row.get("bound") in ("upper", "lower") else ""
    note = "" if row.get("status") in (None, "ok") else status.in_words(row["status"], bound)
    low, high, size = (_number(row.get(key)) for key in ("density_lo", "density_hi", "n_eff"))
    return JoinedDensity(
        text.clean(row["model"], 120), density, low, high, _name(row, "benchmark"), size, device_hours, note, str(bound)
    )


def _number(value: Any) -> float | None:
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if good else None


def joined_words(joined: JoinedDensity, whole: Partition | None = None) -> list[str]:
    """Say what the training's device hours bought and what of them was lost, a sentence each.

    Parameters
    ----------
    joined : JoinedDensity
    whole : Partition, optional
        Of the profiled run, all ranks together; its shares are taken to hold for the whole training. Without it
        nothing is said of what was lost.
    """
    hours = joined.device_hours
    words = [
        f"{text.clean(joined.model, 120)} has density {status.bounded(joined.density, joined.bound)}"
        f"{_interval(joined)} on {text.clean(joined.benchmark, 80) if joined.benchmark else 'its benchmark'} after "
        f"{hours:,.0f} device hours: {status.bounded(joined.per_hour, joined.bound)} per parameter per 1,000 device "
        "hours."
    ]
    if joined.note:
        words.append(f"That density is a limit or lies outside the ruler: {text.clean(joined.note)}.")
    if whole is not None and whole.window_ns:
        words.append(_lost(hours, whole))
    return words


def _interval(joined: JoinedDensity) -> str:
    low, high = joined.density_lo, joined.density_hi
    if low is not None and high is not None:
        return f" ({text.number(low)} to {text.number(high)})"
    if low is not None:
        return f" (at least {text.number(low)})"
    return "" if high is None else f" (at most {text.number(high)})"


def _lost(hours: float, whole: Partition) -> str:
    exposed, idle = whole.exposed_comm_ns / whole.window_ns, whole.idle_ns / whole.window_ns
    useful = 1 - exposed - idle
    words = (
        f"If the profiled steps are typical of the training, {digits(hours * exposed)} of these hours "
        f"({percent(100 * exposed)}) were exposed communication and {digits(hours * idle)} ({percent(100 * idle)}) idle"
    )
    if useful <= 0:
        return words + "."
    return words + (
        f"; without either, the same model would have taken {digits(hours * useful)}, and density per device hour "
        f"would be {1 / useful:.2f} times as high. That is a ceiling: exposed time is not all on the critical path."
    )
