"""Stored measurements recomputed from their inputs, to check that the figures agree."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from densing.core import (
    ArtefactError,
    DensingError,
    Field,
    InputError,
    Listing,
    Record,
    column,
    decode,
    formatting,
    numeric,
    plain,
    read_json,
    write_text,
)
from densing.tradeoff.gain import COLUMNS, SCHEMA, GainRecord, Gains, finite_or_none, ladder_gain, number_of, ratio

if TYPE_CHECKING:
    import pandas as pd

    from densing.efficiency.systems import Finding

RECORD = "gain.json"
PLAIN = ("plain", "ddp")
"""Baselines that are plain training."""
SHIPPED = (
    "technique", "arm", "token_ratio", "token_lo", "token_hi", "token_one", "token_least", "token_most", "no_loss",
    "bytes_share", "pairs", "trials", "record",
)  # fmt: skip
LEVEL = 0.95
"""Of intervals that come without their level: the usual one of ``densing density``."""
SAME = 1e-9
"""Relative: the same losses and seeds give the same bits on one machine; other BLAS libraries round otherwise."""
_FIGURES = {"density_ratio": "density ratio", "token_ratio": "token ratio", "bytes": "bytes that a rank sends"}


def read_record(path: Path | str) -> tuple[GainRecord, Path]:
    """Return a record of gains, and the folder that it was made of.

    Parameters
    ----------
    path : path
        The record (``gain.json``) or the folder that holds it.

    Raises
    ------
    InputError
        When there is none.
    ArtefactError
        When it is damaged, or of another schema.

    See Also
    --------
    check_record
    """
    file = Path(path)
    file = file / RECORD if file.is_dir() else file
    if not file.is_file():
        raise InputError(f"{file}: no such file; run `densing ladder gain {file.parent}`")
    return checked_record(read_json(file), str(file)), file.parent


def write_record(gains: Gains, folder: Path) -> Path:
    """Leave the record of gains in the folder that they were measured in, and return the file."""
    file = folder / RECORD
    write_text(file, json.dumps(plain(gains.record()), indent=2) + "\n")
    return file


def checked_record(data: Any, where: str) -> GainRecord:
    """Return a record of gains from plain data.

    Raises
    ------
    ArtefactError
        When it is none, or of another schema.
    """
    if not isinstance(data, dict) or data.get("kind") != "gain":
        raise ArtefactError(f"{where}: not a record of gains; give the gain.json that `densing ladder gain DIR` writes")
    if data.get("schema") != SCHEMA:
        raise ArtefactError(
            f"{where}: schema {data.get('schema')!r} of records of gains is not known here; measure again with "
            "`densing ladder gain DIR`, or use the version that wrote it"
        )
    return decode(data, GainRecord, f"{where}: $")


class ArmFigures(Record, frozen=True):
    """An arm in a record of gains: :data:`densing.tradeoff.gain.COLUMNS`."""

    arm: str
    density_ratio: float | None
    density_lo: float | None
    density_hi: float | None
    bytes: float | None
    seconds: float | None
    joules: float | None
    pairs: int
    status: str
    token_ratio: float | None = None
    token_lo: float | None = None
    token_hi: float | None = None
    kept_parameters: float | None = None
    no_loss: str = "not decided"
    density_one: str = ""
    density_least: float | None = None
    density_most: float | None = None
    token_one: str = ""
    token_least: float | None = None
    token_most: float | None = None


class LadderSpec(Record, frozen=True):
    """What a record of gains says of its ladder."""

    baseline: str
    baseline_cost: dict[str, float | None]
    preset: str = ""
    level: float = LEVEL
    link: str | None = None
    sizes: tuple[str, ...] = ()
    params: tuple[float, ...] = ()
    tokens: tuple[float, ...] = ()
    seeds: tuple[int, ...] = ()
    trials: int | None = None


class ArmTrend(Record, frozen=True):
    """A row of :meth:`Gains.trends` in a record."""

    arm: str
    ratio: str
    trend: float | None = None
    trend_lo: float | None = None
    trend_hi: float | None = None
    size_trend: float | None = None
    size_trend_lo: float | None = None
    size_trend_hi: float | None = None
    p_value: float | None = None


def gain_record(gain: Gains | GainRecord | Path | str) -> tuple[GainRecord, str]:
    """Return a measurement as its record, checked to the last figure, and its name in messages.

    Raises
    ------
    InputError, ArtefactError
        As :func:`read_record` and :func:`arm_figures`.
    """
    if isinstance(gain, Path | str):
        record, where = read_record(gain)[0], str(gain)
    else:
        kept = gain.record() if isinstance(gain, Gains) else gain
        where = f"gains over {kept.spec.get('baseline')}"
        record = checked_record(plain(kept), where)
    # Who reads on has no longer the name of the file.
    arm_figures(record, where)
    arm_trends(record, where)
    return record, where


def arm_figures(record: GainRecord, where: str) -> tuple[LadderSpec, list[ArmFigures]]:
    """Return what a record says of its ladder and of each arm.

    Raises
    ------
    ArtefactError
        When a part is missing, or not what it should be.
    InputError
        When an interval ends before it begins.
    """
    figures = decode(list(record.figures), list[ArmFigures], f"{where}: $.figures")
    spec = decode(dict(record.spec), LadderSpec, f"{where}: $.spec")
    if not 0 < spec.level < 1:
        raise ArtefactError(f"{where}: $.spec.level: {spec.level:g} is not an interval level; measure again")
    for figure in figures:
        name = f"{where}: {formatting.clean(figure.arm, 120)}"
        for kind in ("density", "token"):
            ratio, low, high = (getattr(figure, f"{kind}_{part}") for part in ("ratio", "lo", "hi"))
            for part, value in (("ratio", ratio), ("lo", low), ("hi", high)):
                if value is not None and not 0 < value < math.inf:
                    raise ArtefactError(f"{name}: {kind}_{part} {value:g} is no finite number above 0; measure again")
            interval_ends(low, high, name, f"{kind} ratio")
    return spec, figures


def arm_trends(record: GainRecord, where: str) -> list[ArmTrend]:
    """Return the trends that a record keeps; none in records of before they were kept.

    Raises
    ------
    ArtefactError
        When one is not what it should be.
    """
    return decode(list(record.trends), list[ArmTrend], f"{where}: $.trends")


def interval_ends(lo: float | None, hi: float | None, where: str, of: str = "density") -> tuple[float, float]:
    """Return the ends of an interval, NaN where they are not known.

    Raises
    ------
    InputError
        When it ends before it begins.
    """
    low, high = (math.nan if end is None else float(end) for end in (lo, hi))
    if low > high:
        raise InputError(f"{where}: the interval of the {of} ends at {high:g} and begins at {low:g}; swap them")
    return low, high


def gain_table(gain: Gains | GainRecord | Path | str) -> pd.DataFrame:
    """Return a row per arm: :data:`densing.tradeoff.gain.COLUMNS`, share of bytes, trend of tokens.

    Parameters
    ----------
    gain : Gains, GainRecord or path
        What :func:`densing.ladder_gain` gives, or the ``gain.json`` that ``densing ladder gain`` leaves.

    Returns
    -------
    pandas.DataFrame
        Also ``bytes_share`` (of the baseline's bytes) and ``trend, trend_lo, trend_hi`` (d ln token ratio / d ln D);
        missing where nothing is known, as in records of before trends were kept.

    Raises
    ------
    InputError, ArtefactError
        When a file is not what it should be.

    See Also
    --------
    densing.plots.plot_gain
    """
    import pandas as pd

    record, where = gain_record(gain)
    spec, figures = arm_figures(record, where)
    of_tokens = {trend.arm: trend for trend in arm_trends(record, where) if trend.ratio == "token"}
    base = spec.baseline_cost.get("bytes")
    rows = []
    for figure in figures:
        trend = of_tokens.get(figure.arm, ArmTrend(figure.arm, "token"))
        share = None if not base or figure.bytes is None else figure.bytes / base
        ends = {name: getattr(trend, name) for name in ("trend", "trend_lo", "trend_hi")}
        rows.append({**figure.to_dict(), "bytes_share": share, **ends})
    return pd.DataFrame(rows, columns=[*COLUMNS, "bytes_share", "trend", "trend_lo", "trend_hi"])


def shipped_gains(techniques: Sequence[str] = ()) -> pd.DataFrame:
    """Return what this package's own ladders measured of techniques, beside plain training.

    Parameters
    ----------
    techniques : sequence of str
        Names; all when empty.

    Returns
    -------
    pandas.DataFrame
        ``technique, arm, token_ratio, token_lo, token_hi, token_one, token_least, token_most, no_loss, bytes_share,
        pairs, trials, record``: of an arm measured twice the row whose arms were tuned alike comes first; ``trials`` is
        missing where they were not.

    See Also
    --------
    densing.worth : carries the ratios to a run.

    Examples
    --------
    >>> shipped_gains(["co2"])[["arm", "record"]].to_numpy().tolist()
    [['co2:tau=8', 'tuned'], ['co2:tau=8', 'rounds']]
    """
    rows = _shipped_table()
    return rows[rows["technique"].isin(techniques)].reset_index(drop=True) if techniques else rows.copy()


@cache
def _shipped_table() -> pd.DataFrame:
    import pandas as pd

    tables = []
    for record, name in shipped_records():
        spec, _ = arm_figures(record, name)
        table = gain_table(record)
        names = table["arm"].str.partition(":")[0]
        tables.append(table.assign(technique=names, trials=spec.trials, record=name))
    rows = pd.concat(tables, ignore_index=True).astype({"trials": "Int64"})
    # Plain training on other tokens tells a ladder's law; nobody chooses it as a technique.
    rows = rows[~rows["technique"].isin(PLAIN)]
    return rows.sort_values(["technique", "trials"], kind="stable", ignore_index=True)[list(SHIPPED)]


def tuned_listing(gain: Gains | GainRecord | Path | str) -> Listing | None:
    """Return token ratios of a ladder's arms with all arms tuned alike beside those with plain training's settings.

    Those of the other kind, and further arms of both, are of the shipped records that have an arm in common with this
    ladder. None where one of both kinds is nowhere, or the baseline is not plain training.

    Examples
    --------
    >>> from densing.efficiency.systems import RECORDS
    >>> tuned_listing(RECORDS / "tuned.json").cells()[0][0]
    'co2:tau=8'
    """
    import pandas as pd

    record, where = gain_record(gain)
    spec, _ = arm_figures(record, where)
    own = gain_table(record).assign(trials=spec.trials, record="this ladder").astype({"trials": "Int64"})
    shipped = shipped_gains()
    akin = shipped.loc[shipped["arm"].isin(own["arm"]), "record"].unique()
    rows = pd.concat([own, shipped[shipped["record"].isin(akin)]], ignore_index=True)[list(SHIPPED[1:])]
    sides = []
    for kind, mask in (("tuned", rows["trials"].notna()), ("untuned", rows["trials"].isna())):
        first = rows[mask].drop_duplicates("arm").set_index("arm")
        sides.append(first.rename(columns=lambda name, kind=kind: f"{kind}_{name.removeprefix('token_')}"))
    if spec.baseline not in PLAIN or sides[0].empty or sides[1].empty:
        return None

    def side(name: str) -> Callable[[Mapping[str, Any]], str]:
        return lambda row: formatting.MISSING if row[f"{name}_record"] is None else ratio(name)(row)

    fields = (
        Field("Arm", column("arm")),
        Field("Tuned", side("tuned"), "tuned_ratio", hint="What a token is worth, all arms tuned alike"),
        numeric("Trials", "tuned_trials", formatting.count),
        Field("Of", column("tuned_record")),
        Field("Untuned", side("untuned"), "untuned_ratio", hint="With plain training's learning rate"),
        Field("Of record", column("untuned_record")),
    )
    title = "What a token of each arm is worth, with all arms tuned alike and with plain training's settings."
    if older := sorted(rows.loc[~rows["token_one"].isin(["yes", "no"]), "record"].unique()):
        title += f" Fitted before law and ratio were fitted to both arms at once: {', '.join(older)}."
    both = sides[0].join(sides[1], how="outer").sort_index().reset_index().astype(object)
    return Listing(title, both.where(both.notna(), None), fields)


def shipped_records() -> list[tuple[GainRecord, str]]:
    """Return the shipped measurements beside plain training, each with the name of its file."""
    from densing.efficiency.systems import RECORDS

    read = [(gain_record(path)[0], path.stem) for path in sorted(RECORDS.glob("*.json"))]
    return [(record, name) for record, name in read if record.spec.get("baseline") in PLAIN]


def shipped_listing(techniques: Sequence[str] = ()) -> Listing:
    """Return :func:`shipped_gains` as people read it."""
    fields = (
        Field("Arm", column("arm")),
        Field("A token is worth", ratio("token"), "token_ratio", hint="Of plain training's, at equal loss"),
        Field("No loss", column("no_loss")),
        numeric("Bytes", "bytes_share", formatting.percentage, hint="Of plain training's"),
        numeric("Trials", "trials", formatting.count, hint="Of learning rate and outer step, for every arm"),
        numeric("Pairs", "pairs", formatting.count),
        Field("Record", column("record")),
    )
    title = "Measured on ladders of small models beside plain training; `densing worth` carries it to a run."
    return Listing(title, shipped_gains(techniques), fields)


def check_record(path: Path | str) -> list[Finding]:
    """Make a measurement again from the runs beside its record, and hold both figures side by side.

    Parameters
    ----------
    path : path
        As for :func:`read_record`.

    Returns
    -------
    list of Finding
        One per arm and figure, of grade ``own measurement``: ``agrees``, ``differs``, or ``not answerable`` where the
        runs are gone or nothing was known.

    Raises
    ------
    InputError, ArtefactError
        As :func:`read_record`.

    See Also
    --------
    densing.efficiency.systems.validate
    """
    from densing.efficiency.systems import Finding

    record, folder = read_record(path)
    why, again = "", None
    try:
        again = _again(record, folder)
    except DensingError as error:
        why = str(error)
    if again is not None and again.digest != record.digest:
        why = "the runs are not those of the record (another digest)"
    rows = {} if again is None else {arm.arm: arm.row() for arm in again.arms}
    findings = []
    for figures in record.figures:
        arm = str(figures.get("arm", ""))
        for key, name in _FIGURES.items():
            kept, made = (finite_or_none(number_of(row.get(key))) for row in (figures, rows.get(arm, {})))
            gap = made / kept - 1 if kept and made is not None else None
            if kept is None or made is None:
                verdict = "agrees" if kept is made and again is not None else "not answerable"
            else:
                verdict = "agrees" if math.isclose(kept, made, rel_tol=SAME) else "differs"
            findings.append(
                Finding(
                    technique=arm.partition(":")[0],
                    claim=f"{name} of {arm}",
                    what=f"{name} beside {record.spec.get('baseline', 'plain')}",
                    setup=f"{figures.get('pairs', 0)} pairs of {record.spec.get('preset', '?')}",
                    published="unknown" if kept is None else kept,
                    unit="",
                    evidence="measured",
                    source=str(folder),
                    ours="unknown" if made is None and again is not None else made,
                    error=gap,
                    tolerance=SAME,
                    grade="own measurement",
                    verdict=verdict,
                    inputs=f"losses and costs of {record.digest[:12]}",
                    note=why,
                )
            )
    return findings


def _again(record: GainRecord, folder: Path) -> Gains:
    """Make the measurement again with the options that the record names."""
    spec = record.spec
    options: dict[str, Any] = {
        "baseline": spec["baseline"], "law": spec.get("law_of"), "link": spec["link"], "watts": spec["watts"],
        "level": spec["level"],
    }  # fmt: skip
    return ladder_gain(folder, **options)
