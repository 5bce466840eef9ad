"""The numpy array of signatures; docstrings give its shape, unit and, where it is none of floats, what it holds."""

from __future__ import annotations

from typing import Any, TypeAlias

from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
