"""Measurements that were kept, made again from what they were made of: do the same figures come out?"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from densing.core import ArtefactError, DensingError, InputError, decode, plain, read_json, write_text
from densing.tradeoff.gain import SCHEMA, GainRecord, Gains, finite_or_none, ladder_gain, number_of

if TYPE_CHECKING:
    from densing.efficiency.techniques import Finding

RECORD = "gain.json"
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
        raise InputError(
            f"{file}: cannot read it, no record of a measurement is there; run `densing ladder gain {file.parent}`"
        )
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
        raise ArtefactError(f"{where}: no record of gains; give the gain.json that `densing ladder gain DIR` leaves")
    if data.get("schema") != SCHEMA:
        raise ArtefactError(
            f"{where}: schema {data.get('schema')!r} of records of gains is not known here; measure again with "
            "`densing ladder gain DIR`, or use the version that wrote it"
        )
    return decode(data, GainRecord, f"{where}: $")


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
    densing.efficiency.techniques.validate
    """
    from densing.efficiency.techniques import Finding

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
        "draws": spec["draws"], "level": spec["level"], "seed": spec["seed"],
    }  # fmt: skip
    return ladder_gain(folder, **options)
