"""The command that installs one of densing's extras where it is installed: from its folder, or from an index."""

from __future__ import annotations

import json
import shlex
from pathlib import Path


def install_command(extra: str) -> str:
    """Return the command that adds an extra, for messages that say what is missing.

    An installation from a folder, as pip records it (PEP 610, ``direct_url.json``), and a clone that was never
    installed name that folder: an index need not have densing, and may have another version. All others name the
    package, which pip then finds installed.

    Parameters
    ----------
    extra : str
        As ``pyproject.toml`` names it: evals, train, ...

    Examples
    --------
    >>> install_command("evals").startswith("pip install ") and "[evals]" in install_command("evals")
    True
    """
    from importlib.metadata import PackageNotFoundError, distribution
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    try:
        origin = json.loads(distribution("densing").read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        origin = {"url": Path(__file__).parents[2].as_uri(), "dir_info": {"editable": True}}
    folder = Path(url2pathname(urlsplit(origin.get("url", "")).path))
    if "dir_info" not in origin or not (folder / "pyproject.toml").is_file():
        return f"pip install {shlex.quote(f'densing[{extra}]')}"
    place = "." if folder == Path.cwd() else str(folder)
    editable = "-e " if origin["dir_info"].get("editable") else ""
    return f"pip install {editable}{shlex.quote(f'{place}[{extra}]')}"
