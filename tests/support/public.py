"""The rooms that other code may use: `densing`, the modules that it names, and those in them that name something."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from types import ModuleType

import densing


def public_rooms() -> list[ModuleType]:
    """Return the modules with an `__all__` that are reached from `densing.__all__`."""
    rooms = [thing for name in densing.__all__ if inspect.ismodule(thing := getattr(densing, name))]
    inner = [
        importlib.import_module(entry.name)
        for room in rooms
        for entry in pkgutil.iter_modules(getattr(room, "__path__", ()), f"{room.__name__}.")
    ]
    return [densing, *rooms, *(module for module in inner if hasattr(module, "__all__"))]
