"""The public surface: names, docstrings, and that the packaging ships what the package needs."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import densing
from densing.scores.references.library import fits_folder
from tests.support.public import public_rooms


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


def test_every_public_class_and_function_has_a_signature() -> None:
    """Editors and Sphinx ask for it; of a struct it evaluates the fields' annotations."""
    things = {f"{room.__name__}.{name}": getattr(room, name) for room in public_rooms() for name in room.__all__}
    things |= {
        f"{name}.{key}": method
        for name, thing in things.items() if inspect.isclass(thing)
        for key, method in inspect.getmembers(thing, inspect.isfunction) if not key.startswith("_")
    }  # fmt: skip
    assert "densing.DensityResult.to_latex" in things
    # An exception without an __init__ of its own has Python's, which has no signature.
    asked = {name: thing for name, thing in things.items() if callable(thing) and thing is not densing.DensingError}
    unreadable = {}
    for name, thing in asked.items():
        try:
            inspect.signature(thing)
        except (NameError, ValueError) as error:
            unreadable[name] = error
    assert not unreadable


def test_namespaces_are_reached_by_name_without_importing_them_first() -> None:
    code = "import densing; print(densing.timeline.record.__name__, densing.timeline.Kind.COMM.name)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["record", "COMM"]


def test_the_shipped_fits_are_found() -> None:
    assert (fits_folder() / "qwen1.5" / "mean.json").is_file()
