"""Make a large trace out of a real one: its events repeated, clocks and ids shifted, the text's layout untouched.

    python benchmarks/enlarge.py TRACE OUT --copies 50 [--steps 6]

Every copy begins where the one before it ended. Step markers stay in ``--steps`` of the copies only, spread evenly:
the time of some tools grows with steps, and what is measured is the reading.
"""

from __future__ import annotations

import argparse
import gzip
import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

NUMBER = re.compile(r'("(?:ts|correlation|External id|id)"\s*:\s*)(\d+(?:\.\d+)?)')
BOUNDARY = re.compile(r"(?<=\})\s*,\s*(?=\{\s*\"(?:ph|name|cat)\")")
MARK = re.compile(r'"ProfilerStep#(\d+)"')


def read_text(path: Path) -> str:
    """Read a trace, inflated if need be."""
    data = path.read_bytes()
    return (gzip.decompress(data) if path.suffix == ".gz" else data).decode()


def split(text: str) -> tuple[str, list[str], str]:
    """Return what precedes the events, the events, and what follows them."""
    opening = re.search(r'"traceEvents"\s*:\s*\[\s*', text)
    if opening is None:
        raise SystemExit("no traceEvents in this file")
    parts = BOUNDARY.split(text[opening.end() :])
    last = re.search(r"\}\s*\]", parts[-1])
    if last is None:
        raise SystemExit("the events do not end")
    tail = parts[-1][last.start() + 1 :]
    return text[: opening.end()], [*parts[:-1], parts[-1][: last.start() + 1]], tail


def copies(events: list[str], count: int, steps: int) -> Iterator[str]:
    """Yield the events of each copy, shifted."""
    moments = [Decimal(m.group(2)) for e in events for m in NUMBER.finditer(e) if '"ts"' in m.group(1)]
    ids = [int(m.group(2)) for e in events for m in NUMBER.finditer(e) if '"ts"' not in m.group(1)]
    span, width = int(max(moments) - min(moments)) + 1_000_000, max(ids) + 1
    marked = {round(i * (count - 1) / max(steps - 1, 1)) for i in range(steps)}
    first = min((int(n) for e in events for n in MARK.findall(e)), default=0)
    pieces = [NUMBER.split(event) for event in events]
    for copy in range(count):
        for event in pieces:
            text = "".join(shifted(event, copy * span, copy * width))
            mark = MARK.search(text)
            if mark and (copy not in marked or int(mark.group(1)) != first):
                continue
            yield MARK.sub(f'"ProfilerStep#{first + copy}"', text) if mark else text


def shifted(pieces: list[str], moment: int, number: int) -> Iterator[str]:
    """Yield an event's text with its times and ids moved on."""
    yield pieces[0]
    for key, value, rest in zip(pieces[1::3], pieces[2::3], pieces[3::3], strict=True):
        yield key
        yield str(Decimal(value) + moment) if '"ts"' in key else str(int(value) + number)
        yield rest


def enlarge(source: Path, out: Path, count: int, steps: int = 6) -> int:
    """Write the large trace; return its number of events."""
    head, events, tail = split(read_text(source))
    written = 0
    with out.open("w") as stream:
        stream.write(head)
        for event in copies(events, count, steps):
            stream.write((",\n  " if written else "") + event)
            written += 1
        stream.write(tail)
    return written


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--copies", type=int, default=50)
    parser.add_argument("--steps", type=int, default=6)
    args = parser.parse_args()
    print(f"{enlarge(args.source, args.out, args.copies, args.steps):,} events in {args.out}")


if __name__ == "__main__":
    main()
