"""How well the size of a model is known: a published count, or the rounded figure in its name."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd

from densing.scores.catalog.schema import SIZE_BASES

# A size in a name: its digits, and whether they count billions or millions.
_IN_NAME = re.compile(r"(?<![\d.])(\d+(?:\.(\d+))?)([BM])(?![a-z])", re.IGNORECASE)


def size_intervals(models: pd.DataFrame) -> pd.DataFrame:
    """Return between which sizes a model lies, given the digits in which its size is printed.

    Half a unit of the last digit on either side: a 7B is 6.5 to 7.5 B, a 1.5B is 1.45 to 1.55 B, a 500M is 499.5 to
    500.5 M. A count is printed to two digits at least, so 12 B counted is 11.5 to 12.5 B and 4.3 B is 4.25 to 4.35 B.

    Makers do not only round: of the catalog's 82 dense models with a label and a count of another value, 55 counts lie
    in the interval of the label. It is the least that a label leaves open.

    Parameters
    ----------
    models : pandas.DataFrame
        Columns ``model, params_label_b, params_total_b, params_basis`` of the catalog.

    Returns
    -------
    pandas.DataFrame
        Aligned with the models; ``params_lo, params_hi``, counts. Missing where the basis is: a user's own size is
        taken as it is.

    Examples
    --------
    >>> from densing.scores.catalog import load_catalog
    >>> models = load_catalog().models
    >>> size_intervals(models)[models["model"].eq("Falcon-H1-7B").to_numpy()].iloc[0].tolist()
    [6500000000.0, 7500000000.0]
    """
    rows = []
    for row in models.to_dict("records"):
        total, label = float(row["params_total_b"]), float(row["params_label_b"])
        if row.get("params_basis") not in SIZE_BASES or not total > 0:
            rows.append((np.nan, np.nan))
            continue
        if row["params_basis"] != "count" and (total == label or np.isnan(label)):
            half = _half_of_label(str(row["model"]), total)
        else:
            half = 0.5 * 10.0 ** -max(_decimals(total), 1 - int(np.floor(np.log10(total))))
        rows.append(((total - half) * 1e9, (total + half) * 1e9))
    return pd.DataFrame(rows, columns=["params_lo", "params_hi"], index=models.index)


def _half_of_label(name: str, billions: float) -> float:
    for digits, decimals, unit in _IN_NAME.findall(name):
        scale = 1.0 if unit in "bB" else 1e-3
        if np.isclose(float(digits) * scale, billions):
            return float(0.5 * 10.0 ** -len(decimals) * scale)
    return float(0.5 * 10.0 ** -_decimals(billions))


def _decimals(number: float) -> int:
    return len(np.format_float_positional(number, trim="-").partition(".")[2])
