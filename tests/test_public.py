"""The public surface: names, docstrings, and that the packaging ships what the package needs."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import densing
from densing.scores.references.rulers import fits_folder


def test_all_is_sorted_complete_and_importable() -> None:
    names = [name for name in densing.__all__ if name != "__version__"]
    assert names == sorted(names)
    assert {"load_catalog", "forecast", "profile_run"} <= set(names)
    for name in names:
        assert getattr(densing, name) is not None
    with pytest.raises(AttributeError, match="nonsense"):
        _ = densing.nonsense


@pytest.mark.parametrize("name", sorted(set(densing.__all__) - {"__version__"}))
def test_every_public_name_has_a_docstring(name: str) -> None:
    documented = getattr(densing, name)
    text = inspect.getdoc(documented)
    assert text and len(text.splitlines()[0]) > 10
    if inspect.isfunction(documented) and len(inspect.signature(documented).parameters) > 1:
        assert "Parameters" in text, f"{name} does not document its parameters"


def test_namespaces_are_reached_by_name_without_importing_them_first() -> None:
    code = "import densing; print(densing.timeline.record.__name__, densing.timeline.Kind.COMM.name)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["record", "COMM"]


def test_the_shipped_fits_are_found() -> None:
    assert (fits_folder() / "qwen1.5" / "mean.json").is_file()
