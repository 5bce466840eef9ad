"""Training compute of models (floating-point operations), as far as the catalog's facts allow."""

from __future__ import annotations

import numpy as np
import pandas as pd

from densing.scores.catalog.catalog import Catalog

NO_TOKENS = "no known number of training tokens"
NO_ACTIVE = "no known number of parameters per token"
NOT_WHOLE = "made from other weights, so their training is not counted"
TEACHER = "only the student's passes are counted, not the teacher's"


def training_compute(catalog: Catalog) -> pd.DataFrame:
    r"""Return the floating-point operations of every model's training.

    .. math:: C = 6 N_{active} D

    Two operations per parameter and token forward, four backward; attention over the context is left out. N counts the
    parameters that a token meets, embeddings included; of a dense model without a stated number all of them.

    Parameters
    ----------
    catalog : Catalog

    Returns
    -------
    pandas.DataFrame
        A row per model: ``model, n_active, tokens, flops, evidence, missing``. ``flops`` is NaN where ``missing`` says
        why: no known tokens or size, or weights made from other weights, whose own training nobody adds up.
        ``evidence`` says whose the tokens are, and that a distilled model's teacher is not counted.

    Notes
    -----
    Source: Kaplan et al. 2020, arXiv 2001.08361, table 1 and section 2.1 (their N leaves embeddings out).

    See Also
    --------
    densing.frontier

    Examples
    --------
    >>> from densing.scores.catalog import load_catalog
    >>> rows = training_compute(load_catalog()).set_index("model")
    >>> rows.loc["Llama-2-7B", ["n_active", "tokens"]].tolist()
    [6738400000.0, 2000000000000.0]
    >>> f"{rows.loc['Llama-2-7B', 'flops']:.3g}", rows.loc["Yi-1.5-9B", "missing"]
    ('8.09e+22', 'made from other weights, so their training is not counted')
    """
    models = catalog.models
    active, total = (models[f"params_{name}_b"].astype(float) for name in ("active", "total"))
    n_active = 1e9 * active.where(active.notna() | models["architecture"].ne("dense"), total)
    tokens = 1e12 * models["tokens_t"].astype(float)
    missing = np.select(
        [models["kind"].ne("base"), ~tokens.gt(0), ~n_active.gt(0)], [NOT_WHOLE, NO_TOKENS, NO_ACTIVE], default=""
    )
    evidence = "counted: 6 N D, tokens from " + models["tokens_source"].fillna("a table without a source")
    evidence += np.where(models["derivation"].eq("distilled"), f"; {TEACHER}", "")
    known = missing == ""
    return pd.DataFrame(
        {
            "model": models["model"],
            "n_active": n_active,
            "tokens": tokens,
            "flops": (6 * n_active * tokens).where(known),
            "evidence": evidence.where(known, ""),
            "missing": missing,
        }
    ).reset_index(drop=True)
