"""Task files read as a tree of nodes with line numbers: nothing is built from them, so nothing runs."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from densing.core import InputError

MAX_FILE = 4 * 1024 * 1024
"""lm-eval's largest task file is below 100 kB."""
MAX_NODES = 200_000
MAX_DEPTH = 100
FUNCTION = "!function"
SUFFIXES = ("*.yaml", "*.yml")


@dataclass(frozen=True)
class Entry:
    """A key with its value somewhere in a task file.

    Parameters
    ----------
    where : str
        ``file:line``.
    key : str
        Key of the value, or of the list it stands in.
    node : object
        PyYAML's node.
    top : bool
        Whether it is the whole value of a key of the file itself.
    """

    where: str
    key: str
    node: Any
    top: bool = False

    @property
    def tag(self) -> str:
        """The node's YAML tag, ``!function`` or ``tag:yaml.org,2002:str``."""
        return str(self.node.tag)

    @property
    def text(self) -> str:
        """The value as written, empty for a list or mapping."""
        return self.node.value if isinstance(self.node.value, str) else ""

    def scalars(self) -> list[str]:
        """Return every value below this one as text."""
        return [text for _, node in _walk("", self.node) for text in [node.value] if isinstance(text, str)]


def regular_bytes(path: Path) -> bytes:
    """Read a file that must be a plain one of reasonable size: a pipe or a device would never end.

    Raises
    ------
    InputError
        When it is anything else.
    """
    try:
        kind = path.stat()
        if not stat.S_ISREG(kind.st_mode):
            raise InputError(f"{path}: not a regular file; remove it from the task folder")
        if kind.st_size > MAX_FILE:
            raise InputError(f"{path}: {kind.st_size} bytes, above the {MAX_FILE} a task file may have; split it")
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot read ({error.strerror}); check the path") from error


def compose(path: Path) -> Any | None:
    """Return the root node of a YAML file, or None when it is no YAML (lm-eval skips such files, too).

    Raises
    ------
    InputError
        When the file would grow beyond all bounds once its aliases are written out, or is no regular file.
    """
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    data = regular_bytes(path)
    try:
        _bounded(path, data)
        return yaml.compose(data, Loader=loader)
    except (yaml.YAMLError, RecursionError, ValueError):
        return None


def entries(path: Path) -> list[Entry]:
    """Return every key and value of a task file, at any depth, list items under the key of their list."""
    root = compose(path)
    if root is None:
        return []
    top = {id(child[1]) for child in root.value if isinstance(child, tuple)}
    found = sorted(_walk("", root), key=lambda item: item[1].start_mark.index)
    return [Entry(f"{path}:{node.start_mark.line + 1}", key, node, id(node) in top) for key, node in found]


def _bounded(path: Path, data: bytes) -> None:
    """Refuse a file whose nodes, aliases written out, exceed ``MAX_NODES``, or that is nested too deeply."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    sizes: dict[str, int] = {}
    open_nodes: list[tuple[str | None, int]] = []
    total = 0
    for event in yaml.parse(data, Loader=loader):
        if isinstance(event, yaml.AliasEvent):
            # An alias to what is still open contains itself.
            total += sizes.get(event.anchor, MAX_NODES + 1)
        elif isinstance(event, yaml.CollectionStartEvent):
            open_nodes.append((event.anchor, total))
            total += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_nodes.pop()
            if anchor is not None:
                sizes[anchor] = total - before
        elif isinstance(event, yaml.ScalarEvent):
            total += 1
        if total > MAX_NODES or len(open_nodes) > MAX_DEPTH:
            raise InputError(
                f"{path}:{event.start_mark.line + 1}: more than {MAX_NODES} values once aliases are written out, "
                f"or nested deeper than {MAX_DEPTH}; a task file needs neither"
            )


def _walk(key: str, node: Any) -> Iterator[tuple[str, Any]]:
    """Yield (key, node) for a node and all below it; a node is visited once, however many aliases name it."""
    seen: set[int] = set()
    stack = [(key, node)]
    while stack:
        name, current = stack.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield name, current
        if not isinstance(current.value, list):
            continue
        for child in current.value:
            if isinstance(child, tuple):
                stack.append((str(child[0].value), child[1]))
                stack.append((name, child[0]))
            else:
                stack.append((name, child))
