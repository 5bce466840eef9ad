"""What takes minutes to work out of the embedded catalog, shipped with it: vintages and back-tests of forecasts.

Each needs a fit of the joint scale at several dates. The tables lie in ``data/`` beside this file, with the digest of
the catalog that they were made from; of another catalog there is nothing, and the commands work it out.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

from densing.core import write_csv
from densing.scores.catalog import Catalog, load_catalog
from densing.scores.study.vintages import COLUMNS, vintages
from densing.scores.trend import FORECASTERS, Rehearsal, rehearse_forecasts

FOLDER = Path(__file__).with_name("data")
TARGET = "density"
"""What the report forecasts; the back-tests of scores and abilities are left to the command."""


def shipped_vintages(catalog: Catalog, folder: Path = FOLDER) -> pd.DataFrame:
    """Return the vintages of this catalog; empty where it is another one.

    Examples
    --------
    >>> shipped_vintages(load_catalog([{"model": "mine", "params": 1e9, "score": 0.5, "benchmark": "mmlu"}])).empty
    True
    """
    table = _read(catalog, folder / "vintages.csv")
    if table.empty:
        return pd.DataFrame(columns=COLUMNS)
    reason, vintage = table["reason"].astype(object).fillna(""), pd.to_datetime(table["vintage"])
    return table.assign(reason=reason, vintage=vintage)[COLUMNS]


def shipped_rehearsal(catalog: Catalog, folder: Path = FOLDER) -> Rehearsal | None:
    """Return the back-tests of forecasts of density on this catalog; None where it is another one."""
    table, cases, origins = (_read(catalog, folder / f"rehearsal-{part}.csv") for part in PARTS)
    if table.empty or cases.empty or origins.empty:
        return None
    for frame, names in ((cases, ("origin", "released")), (origins, ("origin",))):
        for name in names:
            frame[name] = pd.to_datetime(frame[name])
    return Rehearsal(
        table=table,
        cases=cases,
        origins=origins,
        forecasters=tuple(forecaster.name for forecaster in FORECASTERS),
        labels={forecaster.name: forecaster.label for forecaster in FORECASTERS},
        months=float(table["months"].iloc[0]),
    )


PARTS = ("table", "cases", "origins")


def _read(catalog: Catalog, path: Path) -> pd.DataFrame:
    try:
        table = pd.read_csv(path, dtype={"catalog": str})
    except OSError:
        return pd.DataFrame()
    return table[table["catalog"].eq(catalog.digest)].drop(columns="catalog").reset_index(drop=True)


def _write(table: pd.DataFrame, catalog: Catalog, path: Path) -> None:
    digits = dict.fromkeys(table.select_dtypes("float"), 6)
    write_csv(table.round(digits).assign(catalog=catalog.digest), path)


def main() -> None:
    """Work out vintages and back-tests of the embedded catalog and keep their tables."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--out", type=Path, default=FOLDER)
    folder = parser.parse_args().out
    catalog = load_catalog()
    _write(vintages(catalog), catalog, folder / "vintages.csv")
    result = rehearse_forecasts(catalog)
    parts = (
        result.table[result.table["target"].eq(TARGET)].assign(months=result.months),
        result.cases[result.cases["target"].eq(TARGET)],
        result.origins,
    )
    for name, part in zip(PARTS, parts, strict=True):
        _write(part, catalog, folder / f"rehearsal-{name}.csv")


if __name__ == "__main__":
    main()
