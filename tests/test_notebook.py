"""The quickstart notebook runs from top to bottom, in a fresh kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import folders

NOTEBOOK = folders.ROOT / "docs" / "notebooks" / "quickstart.ipynb"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning")
def test_quickstart_gives_a_density_an_interval_and_a_plot(tmp_path: Path) -> None:
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert len(cells) == 6, "six cells, as promised"
    density = cells[2].outputs[0]["data"]["text/html"]
    assert "Mine-3B" in density and "density_lo" in density
    assert "over the twelve months" in cells[3].outputs[0]["data"]["text/html"].lower()
    assert "months" in cells[4].outputs[0]["data"]["text/html"]
    plot = cells[5].outputs[0]["data"]
    assert any("plotly" in kind for kind in plot)
