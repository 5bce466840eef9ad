"""Task suites that the package brings: folders of lm-eval task files, found by name."""

from __future__ import annotations

from pathlib import Path

from densing.core import UnknownNameError

SUITES = ("olmo-ladder",)


def suite_folder(name: str) -> Path:
    """Return the folder of task files to hand to lm-eval as ``include_path``.

    Parameters
    ----------
    name : str
        Name of a suite: ``olmo-ladder``.

    Returns
    -------
    pathlib.Path
        An existing folder inside the installed package.

    Raises
    ------
    UnknownNameError
        When there is no such suite.

    Examples
    --------
    >>> "olmo_ladder_piqa" in suite_tasks("olmo-ladder")
    True
    >>> suite_folder("olmo-lader")
    Traceback (most recent call last):
        ...
    densing.core.errors.UnknownNameError: unknown suite 'olmo-lader'; did you mean 'olmo-ladder'? (known: olmo-ladder)
    """
    if name not in SUITES:
        raise UnknownNameError("suite", name, SUITES)
    return Path(__file__).parent / name


def suite_tasks(name: str) -> tuple[str, ...]:
    """Return the names of the tasks of a suite, sorted; groups are not among them.

    Raises
    ------
    UnknownNameError
        When there is no such suite.
    """
    return tuple(sorted(path.stem for path in suite_folder(name).glob("*_*.yaml") if path.stem != "olmo_ladder"))
