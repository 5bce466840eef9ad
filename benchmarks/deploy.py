"""docs/results/deploy.md: a small model between a device and a server, from measured quality and times.

    python benchmarks/deploy.py --folder FOLDER --page docs/results/deploy.md

FOLDER is that of benchmarks/exits.py: its result store has the exits, cuts and bits of SmolLM2-135M; the exits without
a cut are added. Then `densing deploy` in three settings, ways on the front served for real over two rates, and claims.
`--record` also writes what the claims rest on. Two idle cores are needed for the times; finished parts are kept.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from exits import EXITS, MODEL, Commands, listed
from overlap import densing

from densing.core import formatting
from densing.report import markdown

RATES = ("20mbit", "100mbit")
SETTINGS = {
    "The tokens stay on the device": ("--text-stays",),
    "The tokens may be sent": (),
    "The link changes at once": ("--text-stays", "--channel", "stay=0.2"),
    "Requests come twice as often": ("--text-stays", "--interval", "HALF"),
}


WEIGHTS = ("8", "4")
LADDER = "plain-exits-1-d24x6-s0-947200"
"""A model of our own, trained with a loss behind every layer; see benchmarks/exits.py."""


def deployed(folder: Path, store: Path, *arguments: str, model: str = MODEL) -> dict[str, Any]:
    """Return what `densing deploy` finds."""
    return densing("deploy", str(store), "--model", model, "--out", str(folder), *arguments, "--json")


def choices_table(found: dict[str, Any]) -> str:
    """Return the ways to serve."""
    rows = [
        (
            f"**{row['choice']}**" if row["front"] else row["choice"], formatting.number(row["bits_per_byte"]),
            formatting.bounded(row["density"], row["bound"]), formatting.bounded(row["n_eff_per_byte"], row["bound"]),
            formatting.bounded(row["density_per_ms"], row["bound"]), f"{row['bytes']:,}",
            formatting.number(row["median_ms"]), formatting.number(row["p95_ms"]), formatting.percentage(row["share"]),
        )
        for row in found["choices"]
    ]  # fmt: skip
    return markdown.table(("way", "bits per byte", "density", "N per byte of weights", "density per ms", "bytes sent",
                           "median ms", "95 % ms", "taken"), rows)  # fmt: skip


def rounded_table(found: dict[str, dict[str, Any]]) -> str:
    """Return the ways without a cut, by the bits of their weights."""
    rows = [
        (bits, row["choice"], formatting.number(row["bits_per_byte"]), formatting.bounded(row["density"], row["bound"]),
         formatting.bounded(row["n_eff_per_byte"], row["bound"]), formatting.number(row["median_ms"]))
        for bits, each in found.items() for row in each["choices"] if row["choice"].endswith("on the device")
    ]  # fmt: skip
    return markdown.table(("bits of weights", "way", "bits per byte", "density", "N per byte of weights", "median ms"),
                          rows)  # fmt: skip


def policies_table(found: dict[str, Any]) -> str:
    """Return the policies."""
    rows = []
    for row in found["policies"]:
        gain = row["sac_d_gain"]
        beside = "" if gain is None else f"{gain:+.3f} ({row['sac_d_gain_lo']:+.3f} to {row['sac_d_gain_hi']:+.3f})"
        rows.append((row["policy"], row["what"], f"{row['reward']:.3f}", formatting.number(row["p95_ms"]),
                     formatting.percentage(row["late"]), beside))  # fmt: skip
    return markdown.table(("policy", "", "reward", "95 % ms", "late", "sac-d beyond it"), rows)


def tried_table(trials: dict[str, dict[str, Any]]) -> str:
    """Return the real runs."""
    rows = [
        (rate, row["choice"], f"{row['bytes']:,}", formatting.number(row["predicted_ms"]),
         formatting.number(row["measured_ms"]), f"{100 * row['difference']:+.1f} %")
        for rate, found in trials.items() for row in found["tried"]
    ]  # fmt: skip
    return markdown.table(("link", "way", "bytes", "predicted ms", "measured ms", "difference"), rows)


def claims_table() -> str:
    """Return the claims with our answers."""
    findings = densing("techniques", "validate", "-t", "sac-d", "--json")
    return markdown.table(
        ("claim", "what", "claimed", "ours", "grade", "verdict", "remarks"),
        ((row["claim"], row["what"], row["published"], row["ours"] or "–", row["grade"], row["verdict"], row["note"])
         for row in findings),
    )  # fmt: skip


def keep_record(path: Path, found: dict[str, Any], trials: dict[str, dict[str, Any]]) -> None:
    """Write the record that the claims read."""
    ways = [{name: row[name] for name in ("exit", "cut", "cut_bits", "bits_per_byte")} for row in found["choices"]]
    tried = [{name: row[name] for name in ("choice", "predicted_ms", "measured_ms")}
             for each in trials.values() for row in each["tried"]]  # fmt: skip
    kept = {"source": "benchmarks/deploy.py", "model": MODEL, "link": ", ".join(f"shaped {rate}" for rate in trials),
            "times": found["times"], "ways": ways, "tried": tried}  # fmt: skip
    path.write_text(json.dumps(kept, indent=1) + "\n")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run everything and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--page", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=12)
    parser.add_argument("--record", type=Path)
    options = parser.parse_args(arguments)
    store, run = options.folder / "served", Commands(options.folder)
    run("eval", "--model", MODEL, "--tasks", "olmo_ladder", "--limit", str(options.limit), "--device", "cpu", "--exit",
        listed(EXITS), "--translators", str(options.folder / "translators"), "--out", str(store))  # fmt: skip
    # The layers' times decide the deadline: measured first, in the folder that all settings share.
    place = options.folder / "deploy"
    first = deployed(place, store, "--text-stays", "--deadline", "100000", "--policy", "fixed", "--latency", "10")
    times = first["times"]
    busy = 2 * (sum(times["device_s"]) + sum(times["device_ends_s"]))
    deadline = ("--deadline", f"{750 * busy:.0f}")
    settings = {name: [f"{375 * busy:.0f}" if part == "HALF" else part for part in chosen]
                for name, chosen in SETTINGS.items()}  # fmt: skip
    found = {name: deployed(place, store, *deadline, *chosen) for name, chosen in settings.items()}
    trials = {
        rate: deployed(place, store, *deadline, "--text-stays", "--policy", "fixed", "--try", rate, "--requests", "15")
        for rate in RATES
    }  # fmt: skip
    rounded = {
        bits: deployed(place, store, *deadline, "--text-stays", "--policy", "fixed", "--weight-bits", bits)
        for bits in WEIGHTS
    }
    own_model = f"pretrained={options.folder / 'deep/models' / LADDER},dtype=float32"
    own_setting = ("--reference", "densing-cpu", "--deadline", "5", "--policy", "fixed")
    served = options.folder / "deep-served"
    own = deployed(options.folder / "deploy-own", served, "--model_args", own_model, *own_setting, model=LADDER)
    main_one = found["The tokens stay on the device"]
    if options.record:
        keep_record(options.record, main_one, trials)
    parts = [
        "# Serving a model between a device and a server",
        "Written by `python benchmarks/deploy.py --folder FOLDER --page PAGE`; do not edit by hand. SAC-d (Niu et al., "
        "arXiv 2201.02968) chooses by reinforcement learning where a network is left, where it is handed over from a "
        "device to a server and in how many bits. Its abstract is all that could be read: state, reward and network "
        "sizes are ours. Here the network is a language model, quality is its measured loss ([exits](exits.md)), and "
        "the trained policy stands beside enumeration.",
        f"{MODEL}: {times['tokens']} tokens a request, deadline {750 * busy:.0f} ms (3/4 of what the whole model takes "
        f"on a busy device), a request per deadline. Times: {times['source']}. The link is made up: good and bad for "
        "ten requests on average (40 and 4 Mbit/s, spread 0.3), the device busy (twice as slow) in 30 % of requests. "
        "Rewards: whole loss over own loss, less 0.1 of the deadline used, less 1 for a deadline missed; 10 traces of "
        "200 requests, 5 trainings.",
    ]  # fmt: skip
    for name, each in found.items():
        setting = " ".join(("densing deploy STORE --model", MODEL, *deadline, *settings[name]))
        parts += [f"## {name}", f"`{setting}`", each["sentence"], choices_table(each), policies_table(each)]
    parts += [
        "## Rounded weights",
        "Round-to-nearest per channel, beside the weights as released: every way is evaluated with its weights; the "
        "arithmetic, and so the times, are those of 32 bits, and what is saved are bytes of weights.",
        rounded_table({"as released": main_one, **rounded}),
        "## A model with a loss at every exit",
        f"{LADDER} ([exits](exits.md)), a model of our own ladder: `densing deploy STORE --model {LADDER} --model_args "
        f"pretrained=FOLDER/{LADDER},dtype=float32 {' '.join(own_setting)}`, densities on its family's own reference. "
        "Its layers take parts of a millisecond, so a link pays for none of them.",
        own["sentence"], choices_table(own),
    ]  # fmt: skip
    parts += [
        "The oracle knows the bandwidth that a request will find and looks at that request alone, as enumeration does: "
        "where requests wait for one another it is not an upper bound. Bold: nothing else is better in quality and "
        "latency. Densities: N is read from the loss on the reference olmo-ladder over the parameters kept; ≤: the "
        "loss lies beyond the reference, no more than that can be said.",
        "## Served for real",
        "`densing deploy ... --try RATE --requests 15`: two processes, the device on one thread, the server on two; "
        "states rounded, packed and sent over a shaped interface; medians. Predicted: the layers' seconds, measured in "
        "the run before the requests, and bytes over the rate beyond what the interface's bucket holds. Rounding, "
        "packing and the answer's way back are not predicted.",
        tried_table(trials), "## Claims", claims_table(),
        "## Not done",
        "AlexNet on a Raspberry Pi, and figures that no readable source has. One request at a time is served for real; "
        "requests that wait for one another are simulated. Decoding token by token (a hand-over for each) is not "
        "modelled. No recorded trace of a mobile link was at hand: `--trace` reads one.",
    ]  # fmt: skip
    options.page.write_text("\n\n".join(parts) + "\n")
    print(f"wrote {options.page}")


if __name__ == "__main__":
    main()
