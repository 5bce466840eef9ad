"""Commands that a page asks its reader to run, as docs/first_hour reads them."""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import SourceFileLoader
from types import ModuleType
from typing import Any

from tests.support.folders import ROOT

SCRIPT = ROOT / "docs" / "first_hour"


def load_first_hour() -> ModuleType:
    """Return the script as a module; it has no suffix, and is no package's."""
    loader = SourceFileLoader("first_hour", str(SCRIPT))
    spec = importlib.util.spec_from_loader("first_hour", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    # A dataclass looks its module up.
    sys.modules["first_hour"] = module
    loader.exec_module(module)
    return module


def words(command: Any) -> str:
    """Return a command without a remark behind it and without how it is laid out."""
    return " ".join(command.text.partition("  #")[0].split())
