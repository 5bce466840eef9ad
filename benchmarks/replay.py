"""What the replay of a trace and the account of its causes cost beside reading it: CPU seconds, and their ratio.

    python benchmarks/replay.py TRACE [TRACE ...] [--json]

A large trace is made from a real one by ``enlarge.py``. The aim is a ratio of 2 at most.
"""

from __future__ import annotations

import argparse
import json
import time

from densing.efficiency.profile.causes import find_causes
from densing.efficiency.profile.rank import profile_timeline
from densing.efficiency.profile.replay import Replay
from densing.efficiency.timeline import condense, graph, select, summary
from densing.efficiency.traces import find_traces, read_rank


def measure(path: str) -> dict[str, float | int | str]:
    """Read a trace and replay it once each."""
    [trace] = find_traces([path])
    begin = time.process_time()
    rank = read_rank(trace)
    read = time.process_time() - begin
    profile, window = profile_timeline(rank), select(rank)
    begin = time.process_time()
    condensed = condense(rank, window, graph(rank, window))
    replay = Replay({rank.rank: condensed}, {rank.rank: profile.collectives})
    found = find_causes([profile], [summary(profile.collectives)], replay)
    spent = time.process_time() - begin
    return {"trace": path, "events": rank.events, "rows": len(replay), "causes": len(found.causes),
            "read_s": read, "replay_s": spent, "ratio": spent / read}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="+")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = [measure(path) for path in options.traces]
    if options.json:
        print(json.dumps(rows))
        return
    for row in rows:
        print(
            f"{row['events']:>10,} events: read {row['read_s']:.2f} s, replayed {row['replay_s']:.2f} s, "
            f"ratio {row['ratio']:.2f} ({row['trace']})"
        )


if __name__ == "__main__":
    main()
