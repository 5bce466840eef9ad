"""Density of a model per device hour of its training, and the hours lost.

.. math:: \\text{capability per parameter per device hour} = \\rho / H

with ρ the model's density (effective over actual parameters) and H the device hours of its training.
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from densing.core import ArtefactError, InputError, Note, UnknownNameError, formatting, printed_data

if TYPE_CHECKING:
    import pandas as pd

    from densing.efficiency.profile import RunProfile
    from densing.efficiency.timeline import Partition
    from densing.scores.density import DensityResult

PER_HOURS = 1000.0


@dataclass(frozen=True, repr=False)
class DensityCost:
    """One model's density, the device hours of the training that made it, and what of them was lost.

    Parameters
    ----------
    model : str
    density : float
        Effective parameters over actual ones; a limit where ``bound`` says so.
    density_lo, density_hi : float or None
        Ends of its interval; None where unbounded or unknown.
    benchmark : str
        Empty where it is not known.
    n_eff : float or None
        Effective parameters.
    device_hours : float
        Of the whole training, from the user: devices × hours.
    note : str
        What to keep in mind (status of the inversion); empty if nothing.
    bound : {"", "upper", "lower"}
        Whether the density is a limit.
    partition : Partition or None
        Of the profiled run, all ranks together; its shares are taken to hold for the whole training. Without it
        nothing is said of what was lost.
    reference : str
        The reference that the density was read on; empty where it is not known. Densities of two references do not
        compare.

    Raises
    ------
    InputError
        When density or device hours are not positive and finite.

    See Also
    --------
    join : makes it from densities and a run's profile.
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
    partition: Partition | None = None
    reference: str = ""

    def __post_init__(self) -> None:
        """Check the figures that divide."""
        for name, value, remedy in (
            ("density", self.density, "density is effective divided by actual parameters"),
            ("device hours", self.device_hours, "give the devices times the hours of the whole training"),
        ):
            if not math.isfinite(value) or value <= 0:
                raise InputError(f"{self.model}: {name} {value:g} is not a positive number; {remedy}")

    @property
    def per_hour(self) -> float:
        """Density per 1,000 device hours.

        Examples
        --------
        >>> DensityCost("m", 2.0, None, None, "mmlu", None, 4000.0).per_hour
        0.5
        """
        return PER_HOURS * self.density / self.device_hours

    @property
    def exposed_share(self) -> float | None:
        """Share of the profiled time in which devices communicated and computed nothing."""
        return self._share("exposed_comm_ns")

    @property
    def idle_share(self) -> float | None:
        """Share of the profiled time in which devices did nothing."""
        return self._share("idle_ns")

    def _share(self, part: str) -> float | None:
        partition = self.partition
        return None if partition is None or not partition.window_ns else getattr(partition, part) / partition.window_ns

    @property
    def useful_share(self) -> float | None:
        """Share of the profiled time that was neither; its inverse bounds what better hiding can gain."""
        exposed, idle = self.exposed_share, self.idle_share
        return None if exposed is None or idle is None else 1 - exposed - idle

    @property
    def notes(self) -> tuple[Note, ...]:
        """What to keep in mind, as notes."""
        notes = []
        if self.note:
            notes.append(Note("density-limit", "warning", f"{self.model}: {self.note}"))
        if self.useful_share is not None:
            notes.append(
                Note("steps-typical", "info", "lost hours hold if the profiled steps are typical of the training")
            )
        return tuple(notes)

    @property
    def bought(self) -> list[str]:
        """What the device hours bought, a sentence each."""
        low, high = self.density_lo, self.density_hi
        if low is not None and high is not None:
            ends = f" ({formatting.number(low)} to {formatting.number(high)})"
        elif low is not None:
            ends = f" (at least {formatting.number(low)})"
        else:
            ends = "" if high is None else f" (at most {formatting.number(high)})"
        sentences = [
            f"{formatting.clean(self.model, 120)} has density {formatting.bounded(self.density, self.bound)}{ends} on "
            f"{formatting.clean(self.benchmark, 80) if self.benchmark else 'its benchmark'} after "
            f"{self.device_hours:,.0f} device hours: {formatting.bounded(self.per_hour, self.bound)} per parameter per "
            "1,000 device hours."
        ]
        if self.note:
            sentences.append(
                f"That density is a bound or lies outside the reference's range: {formatting.clean(self.note)}."
            )
        return sentences

    @property
    def lost(self) -> str:
        """How many of the device hours were lost, in a sentence; empty without a profile."""
        exposed, idle, useful = self.exposed_share, self.idle_share, self.useful_share
        if exposed is None or idle is None or useful is None:
            return ""
        hours = self.device_hours
        sentence = (
            f"If the profiled steps are typical of the training, {formatting.digits(hours * exposed)} of these hours "
            f"({formatting.percent(100 * exposed)}) were exposed communication and {formatting.digits(hours * idle)} "
            f"({formatting.percent(100 * idle)}) idle"
        )
        # Nothing but communication and idleness: there is no factor to name.
        if useful <= 0:
            return f"{sentence}."
        return (
            f"{sentence}; without either, the same model would have taken {formatting.digits(hours * useful)}, and "
            f"density per device hour would be {1 / useful:.2f} times as high. That is a ceiling: exposed time is not "
            "all on the critical path."
        )

    def sentences(self) -> list[str]:
        """Return what the training bought and what of its hours was lost, a sentence each."""
        return [*self.bought, *([self.lost] if self.lost else [])]

    def to_frame(self) -> pd.DataFrame:
        """Return a table of one row; hours and shares that are not known are missing.

        Examples
        --------
        >>> DensityCost("m", 2.0, 1.5, None, "mmlu", 3e9, 4000.0).to_frame()[["model", "density_per_1000_hours"]]
          model  density_per_1000_hours
        0     m                     0.5
        """
        import pandas as pd

        shares = {"exposed_comm": self.exposed_share, "idle": self.idle_share, "useful": self.useful_share}
        row = {
            **{name: value for name, value in self._plain().items() if name != "note"},
            "density_per_1000_hours": self.per_hour,
            **{f"{name}_share": share for name, share in shares.items()},
            **{f"{name}_hours": None if share is None else share * self.device_hours for name, share in shares.items()},
            "note": self.note,
        }
        frame = pd.DataFrame([row])
        numeric = [name for name in frame.columns if name not in ("model", "benchmark", "bound", "reference", "note")]
        return frame.astype(dict.fromkeys(numeric, float))

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, as ``densing profile --json`` prints it."""
        return {**self._plain(), "per_1000_device_hours": self.per_hour}

    def _plain(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "partition"}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> DensityCost:
        """Rebuild what :meth:`to_dict` wrote; it holds no partition."""
        return cls(**{name: value for name, value in data.items() if name != "per_1000_device_hours"})

    def __repr__(self) -> str:
        return "\n".join(self.sentences())

    def _repr_html_(self) -> str:
        return "".join(f"<p>{html.escape(sentence)}</p>" for sentence in self.sentences())


def join(
    density: DensityResult | pd.DataFrame | Iterable[Mapping[str, Any]] | Path | str,
    profile: RunProfile | None = None,
    *,
    device_hours: float,
    model: str | None = None,
    benchmark: str | None = None,
) -> DensityCost:
    """Join one model's density with the device hours of its training and the profile of a run of it.

    Parameters
    ----------
    density : DensityResult, DataFrame, records or path
        A result, its table, or a file that holds what ``densing density --json`` printed.
    profile : RunProfile, optional
        Of steps that are typical of the training: its shares say what of the hours was lost.
    device_hours : float
        Devices × hours of the model's whole training.
    model, benchmark : str, optional
        Which row, where there are several. A row read by loss is called ``<benchmark>:loss``.

    Raises
    ------
    ArtefactError
        When the file is not what that command prints, or the rows have no model or density.
    UnknownNameError
        When there is no row of that model or benchmark.
    InputError
        When several rows are left, the row has no density, or the device hours are not positive and finite.

    See Also
    --------
    densing.table_densities : densities of your own scores.
    densing.profile_run : the profile of a run.

    Examples
    --------
    >>> row = {"model": "m", "benchmark": "mmlu", "density": 1.5, "density_lo": 1.2, "density_hi": None, "n_eff": 3e9}
    >>> join([row, {**row, "model": "n"}], device_hours=3000, model="m").per_hour
    0.5
    """
    if isinstance(density, str | Path):
        rows, source = _read(Path(density)), str(density)
    else:
        table: Any = getattr(density, "table", density)
        rows, source = (
            table.to_dict("records") if hasattr(table, "columns") else [dict(row) for row in table],
            "density",
        )
    if not rows or not all(isinstance(row.get("model"), str) and "density" in row for row in rows):
        raise ArtefactError(f"{source}: rows without model or density; {WRONG}")
    for key, name in (("model", model), ("benchmark", benchmark)):
        if name is not None:
            names = {_name(row, key) for row in rows}
            rows = [row for row in rows if _name(row, key) == name]
            if not rows:
                raise UnknownNameError(f"{key} in {source}:", name, names)
    # Of several models the model tells them apart, of one model's rows the benchmark.
    if len(rows) > 1:
        key = "model" if len({row["model"] for row in rows}) > 1 else "benchmark"
        known = ", ".join(sorted({_name(row, key) for row in rows})[:10])
        raise InputError(f"{source}: {len(rows)} rows fit; name one by its {key} ({known})")
    return _joined(rows[0], device_hours, source, profile)


WRONG = "not the output of `densing density --json`; run that command and save its output"


def _read(path: Path) -> list[dict[str, Any]]:
    try:
        rows = printed_data(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise InputError(f"{path}: cannot read ({error.strerror}); check the path") from error
    except (ValueError, RecursionError) as error:
        raise ArtefactError(f"{path}: {WRONG}") from error
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise ArtefactError(f"{path}: {WRONG}")
    return rows


def _name(row: Mapping[str, Any], key: str) -> str:
    """Return how a row is called: by model, or by benchmark (skill) and, for losses, quantity."""
    if key == "model":
        return str(row["model"])
    name = str(row.get("benchmark") or row.get("skill") or "")
    return f"{name}:loss" if row.get("quantity") == "loss" else name


def _joined(row: Mapping[str, Any], device_hours: float, source: str, profile: RunProfile | None) -> DensityCost:
    def figure(key: str) -> float | None:
        value = row.get(key)
        # A file may hold null, true or text where a figure belongs; JSON's own infinities are none either.
        real = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
        return float(value) if real else None  # type: ignore[arg-type]

    density = figure("density")
    if density is None:
        model = formatting.clean(row["model"], 80)
        status = formatting.clean(row.get("status"))
        raise InputError(f"{source}: {model} has no density ({status}); choose a model that has one")
    bound = row["bound"] if row.get("bound") in ("upper", "lower") else ""
    partition = None
    if profile is not None:
        # Lengths of all ranks are added before they are divided: long windows weigh more than short ones.
        from densing.efficiency.profile import pooled

        partition = pooled([rank.partition for rank in profile.ranks])
    return DensityCost(
        model=formatting.clean(row["model"], 120),
        density=density,
        density_lo=figure("density_lo"),
        density_hi=figure("density_hi"),
        benchmark=_name(row, "benchmark"),
        n_eff=figure("n_eff"),
        device_hours=device_hours,
        note=""
        if formatting.is_missing(row.get("status")) or row["status"] == "ok"
        else formatting.status(row["status"], bound),
        bound=bound,
        partition=partition,
        reference="" if formatting.is_missing(row.get("reference")) else formatting.clean(row["reference"], 120),
    )
