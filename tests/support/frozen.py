"""Which results can be changed by who reads them."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from dataclasses import is_dataclass

import msgspec


def changeable(package: str, without: str = "") -> set[str]:
    """Return the public records of a package, a module of it left out, whose fields can be set after they were made."""
    found = set()
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
        if module.name == without:
            continue
        for name, kind in inspect.getmembers(importlib.import_module(f"{package}.{module.name}"), inspect.isclass):
            if name.startswith("_") or not kind.__module__.startswith(package):
                continue
            if issubclass(kind, msgspec.Struct):
                frozen = kind.__struct_config__.frozen
            else:
                frozen = not is_dataclass(kind) or kind.__dataclass_params__.frozen
            if not frozen:
                found.add(name)
    return found
