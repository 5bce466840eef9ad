"""Cost of codecs, in passes over memory at the speed at which AdamW moves weights and moments.

    python benchmarks/codecs.py [--elements 16384 262144 4194304] [--repeats 15] [--json]

One process, one thread. A pass is the time in which a tensor's bytes move at the speed of AdamW's update, as `densing
calibrate` measures it, in the same run and on tensors of the same size; of each, the median of the repeats counts. The
constants of `densing/efficiency/simulation/sizes.py` are read off this table; plans multiply them by bytes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch

from densing.efficiency.parallel.codecs import Codec, Half, Int8, Reader, RowThreshold, Threshold, TopK, pack
from densing.efficiency.parallel.distributed.results import UPDATE_BYTES

SHARES = (0.01, 0.05, 0.2)
WIDTH = 128
NEVER = 1 << 30


def seconds(work: Callable[[], object], repeats: int) -> float:
    """Return the median time of a piece of work."""
    taken = []
    for _ in range(repeats + 2):
        begin = time.perf_counter()
        work()
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken[2:])


def adam_pass(count: int, repeats: int) -> float:
    """Return the seconds in which a float32 tensor's bytes pass, once."""
    weight = torch.nn.Parameter(torch.randn(count))
    weight.grad = torch.randn(count)
    update = torch.optim.AdamW([weight]).step
    return seconds(update, repeats) * 4 / UPDATE_BYTES


def codecs() -> dict[str, Callable[[], Codec]]:
    """Return codecs by name; of thresholds those that are renewed each time, and those that never are."""
    whole: dict[str, Callable[[], Codec]] = {"half": Half, "int8": Int8}
    for share in SHARES:
        whole[f"topk {share:g}"] = lambda share=share: TopK(share)
        whole[f"threshold {share:g}, renewed"] = lambda share=share: Threshold(1 - share)
        whole[f"threshold {share:g}, known"] = lambda share=share: Threshold(1 - share, NEVER)
        whole[f"rows {share:g}, renewed"] = lambda share=share: RowThreshold(1 - share)
        whole[f"rows {share:g}, known"] = lambda share=share: RowThreshold(1 - share, NEVER)
    return whole


def measure(count: int, repeats: int) -> list[dict[str, float | str]]:
    """Return the passes of encoding and of decoding, by codec."""
    tensor = torch.randn(count // WIDTH, WIDTH)
    rows = []
    for name, make in codecs().items():
        codec = make()
        data = pack([codec.encode(tensor)])
        once = adam_pass(count, repeats)
        encode = seconds(lambda codec=codec: pack([codec.encode(tensor)]), repeats)
        decode = seconds(lambda codec=codec, data=data: codec.decode(Reader(data), tensor), repeats)
        rows.append(
            {
                "codec": name,
                "elements": count,
                "adam_gb_per_s": 4 * count / once / 1e9,
                "encode_passes": encode / once,
                "decode_passes": decode / once,
            }
        )
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--elements", nargs="+", type=int, default=[1 << 14, 1 << 18, 1 << 22])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = [row for count in options.elements for row in measure(count, options.repeats)]
    if options.json:
        print(json.dumps(rows))
        return
    for row in rows:
        print(
            f"{row['elements']:9,} {row['codec']:24} encode {row['encode_passes']:6.1f}  decode "
            f"{row['decode_passes']:6.1f} passes at {row['adam_gb_per_s']:.1f} GB/s"
        )


if __name__ == "__main__":
    main()
