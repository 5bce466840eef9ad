"""Names of the last version, which warn and are removed in the next one."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any


def renamed(module: str, resolve: Callable[[str], Any], names: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a module's ``__getattr__`` that takes old names too, with a DeprecationWarning.

    Parameters
    ----------
    module : str
        The module, as it is imported.
    resolve : callable
        Its own ``__getattr__``.
    names : mapping of str
        From old name to new name.

    Examples
    --------
    >>> get = renamed("math", lambda name: __import__("math").__dict__[name], {"root": "sqrt"})
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     get("root")(4.0), str(caught[0].message)
    (2.0, 'math.root is now math.sqrt; the next version removes the old name')
    """

    def answer(name: str) -> Any:
        if name not in names:
            return resolve(name)
        message = f"{module}.{name} is now {module}.{names[name]}; the next version removes the old name"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return resolve(names[name])

    return answer
