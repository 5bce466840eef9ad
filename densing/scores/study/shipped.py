"""What takes minutes to work out of the embedded catalog, shipped with it: joint scales, vintages and back-tests.

Vintages and back-tests need a fit of the joint scale at several dates. Their tables lie in ``data/`` beside this file,
with the digest of the catalog that they were made from and the name of its scale, which tells the sampler; of another
catalog there is nothing, and the commands work it out.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import pandas as pd

from densing.core import cache_folder, write_csv
from densing.scores.catalog import Catalog, Selection, load_catalog
from densing.scores.joint import GENERAL, SHIPPED_SCALES, catalog_cells, scale_name, usual_scale
from densing.scores.study.vintages import COLUMNS, vintages
from densing.scores.trend import FORECASTERS, ForecastBacktest, backtest_forecasts

FOLDER = Path(__file__).with_name("data")
TARGET = "density"
"""What the report forecasts; the back-tests of scores and abilities are left to the command."""


def shipped_vintages(catalog: Catalog, folder: Path = FOLDER) -> pd.DataFrame:
    """Return the shipped vintages; empty for another catalog than the embedded one.

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


def shipped_backtest(
    catalog: Catalog,
    folder: Path = FOLDER,
    *,
    selection: Selection | None = None,
    basket: str = GENERAL,
    seed: int = 0,
) -> ForecastBacktest | None:
    """Return the shipped back-tests of density forecasts; None for another catalog or other options.

    Parameters
    ----------
    catalog : Catalog
    folder : Path
        Folder of the tables.
    selection, basket, seed
        Of :func:`densing.scores.trend.backtest_forecasts`; what is shipped was made with its defaults.
    """
    if not (selection in (None, Selection()) and basket in (GENERAL, "mean") and seed == 0):
        return None
    table, cases, origins = (_read(catalog, folder / f"backtest-{part}.csv") for part in PARTS)
    if table.empty or cases.empty or origins.empty:
        return None
    for frame, names in ((cases, ("origin", "released")), (origins, ("origin",))):
        for name in names:
            frame[name] = pd.to_datetime(frame[name])
    return ForecastBacktest(
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
    table = table[table["catalog"].eq(catalog.digest)]
    if len(table):
        table = table[table["scale"].eq(scale_name(catalog_cells(catalog, "none")))]
    return table.drop(columns=["catalog", "scale"]).reset_index(drop=True)


def _write(table: pd.DataFrame, catalog: Catalog, path: Path) -> None:
    digits = dict.fromkeys(table.select_dtypes("float"), 6)
    scale = scale_name(catalog_cells(catalog, "none"))
    write_csv(table.round(digits).assign(catalog=catalog.digest, scale=scale), path)


def main() -> None:
    """Fit the joint scales of the embedded catalog, compute its vintages and back-tests, and store all three."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--out", type=Path, default=FOLDER)
    folder = parser.parse_args().out
    catalog = load_catalog()
    # Without the scores that makers gave their own models, and with them: the headline's sensitivity asks for both.
    shipped = {scale_name(cells): cells for cells in (catalog_cells(catalog, own) for own in ("none", "harness"))}
    for stale in set(SHIPPED_SCALES.glob("joint-*.npz")) - {SHIPPED_SCALES / name for name in shipped}:
        stale.unlink()
    SHIPPED_SCALES.mkdir(exist_ok=True)
    for name, cells in shipped.items():
        usual_scale(cells)
        if not (SHIPPED_SCALES / name).is_file():
            shutil.copyfile(cache_folder() / name, SHIPPED_SCALES / name)
    _write(vintages(catalog), catalog, folder / "vintages.csv")
    result = backtest_forecasts(catalog)
    parts = (
        result.table[result.table["target"].eq(TARGET)].assign(months=result.months),
        result.cases[result.cases["target"].eq(TARGET)],
        result.origins,
    )
    for name, part in zip(PARTS, parts, strict=True):
        _write(part, catalog, folder / f"backtest-{name}.csv")


if __name__ == "__main__":
    main()
