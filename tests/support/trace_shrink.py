"""Public traces made small enough to travel with the tests: whole events are left out, none is changed.

``python -m tests.support.trace_shrink SOURCE TARGET`` writes, for every ``*.json.gz`` of a folder, what the figures of
``golden/`` are made from: device work, the calls that launched it, annotations, metadata and the header, byte for byte
as recorded. Operators, flow arrows, counters and frames go; so do calls that launched nothing.
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

DEVICE = {"kernel", "gpu_memcpy", "gpu_memset"}
RANGES = {"user_annotation"}
CALLS = {"cuda_runtime", "cuda_driver"}
_SPACE = " \t\r\n,"


def events_of(text: str) -> tuple[int, int, list[tuple[str, dict[str, Any]]]]:
    """Where the events begin and end in a trace's text, and the text and value of each."""
    begin = text.index("[", text.index('"traceEvents"')) + 1
    decoder, events, at = json.JSONDecoder(), [], begin
    while True:
        while text[at] in _SPACE:
            at += 1
        if text[at] == "]":
            return begin, at, events
        value, end = decoder.raw_decode(text, at)
        events.append((text[at:end], value))
        at = end


def shrink(text: str) -> str:
    """Leave events out of a trace."""
    begin, end, events = events_of(text)
    launched = {event["args"].get("correlation") for _, event in events if event.get("cat") in DEVICE}

    def is_kept(event: dict[str, Any]) -> bool:
        category, name = event.get("cat"), str(event.get("name"))
        if event.get("ph") == "M" or category in DEVICE | RANGES or name.startswith(("nccl:", "record_param_comms")):
            return True
        return category in CALLS and event.get("args", {}).get("correlation") in launched

    kept = [source for source, event in events if is_kept(event)]
    return text[:begin] + "\n" + ",\n".join(kept) + "\n" + text[end:]


def main(source: Path, target: Path) -> None:
    """Shrink the traces of a folder."""
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.glob("*.json.gz")):
        small = shrink(gzip.decompress(path.read_bytes()).decode())
        (target / path.name).write_bytes(gzip.compress(small.encode(), compresslevel=9, mtime=0))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
