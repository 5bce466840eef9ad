"""docs/results/deploy.md: a small model between a device and a server, from measured quality and times.

    python benchmarks/deploy.py --folder FOLDER --page docs/results/deploy.md
    python benchmarks/deploy.py --page docs/results/deploy.md

FOLDER is that of benchmarks/exits.py: its result store has the exits, cuts and bits of SmolLM2-135M; the exits without
a cut are added. Then `densing deploy` in four settings, ways on the front served for real over two rates, and claims.
`--record` also writes what the claims rest on. Two idle cores are needed for the times; finished parts are kept.

Without a FOLDER policies and claims are worked out anew from the shipped record of ways and times (minutes); what needs
the model stays as the page has it.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from exits import EXITS, MODEL, Commands, listed
from overlap import densing
from systems import table_rows

from densing.core import formatting, read_json, write_csv
from densing.efficiency.systems.offload import TRACES
from densing.efficiency.systems.offload.claims import RECORD
from densing.report import markdown

RATES = ("20mbit", "100mbit")
SETTINGS = {
    "The tokens stay on the device": ("--text-stays",),
    "The tokens may be sent": (),
    "The link changes at once": ("--text-stays", "--channel", "stay=0.2"),
    "Requests come twice as often": ("--text-stays", "--interval", "HALF"),
}


QUALITY = ("bits per byte", "density", "N per byte of weights")
WEIGHTS = ("8", "4")
LADDER = "plain-exits-1-d24x6-s0-947200"
"""A model of our own, trained with a loss behind every layer; see benchmarks/exits.py."""


def deployed(folder: Path, store: Path, *arguments: str, model: str = MODEL) -> dict[str, Any]:
    """Return what `densing deploy` finds."""
    return densing("deploy", str(store), "--model", model, "--out", str(folder), *arguments, "--json")


def quality_cells(row: dict[str, Any]) -> tuple[str, ...]:
    """Return density and N per byte of weights of a way to serve."""
    return tuple(formatting.bounded(row[name], row["bound"]) for name in ("density", "n_eff_per_byte"))


def choices_table(found: dict[str, Any]) -> str:
    """Return the ways to serve of one setting."""
    rows = [
        (
            f"**{row['choice']}**" if row["front"] else row["choice"], formatting.number(row["bits_per_byte"]),
            *quality_cells(row), f"{row['bytes']:,}", formatting.number(row["median_ms"]),
            formatting.number(row["p95_ms"]), formatting.percentage(row["share"]),
        )
        for row in found["choices"]
    ]  # fmt: skip
    return markdown.table(("way", *QUALITY, "bytes sent", "median ms", "95 % ms", "taken"), rows)


def ways_table(found: dict[str, dict[str, Any]], known: dict[str, tuple[str, ...]]) -> str:
    """Return the ways to serve, and how often what is recommended takes each, a column per setting.

    Parameters
    ----------
    found : dict
        Answers of `densing deploy` by setting.
    known : dict
        Cells of density and N per byte by way, where the answers have none.
    """
    shares = {name: {row["choice"]: row["share"] for row in each["choices"]} for name, each in found.items()}
    ways = {row["choice"]: row for each in reversed(found.values()) for row in each["choices"]}
    rows = []
    for way, row in sorted(ways.items(), key=lambda pair: pair[1]["p95_ms"]):
        twin = way.replace("on the server", "on the device")
        cells = quality_cells(row) if "bound" in row else known.get(way, known[twin])
        taken = (formatting.percentage(own[way]) if way in own else "" for own in shares.values())
        rows.append((f"**{way}**" if row["front"] else way, formatting.number(row["bits_per_byte"]), *cells,
                     f"{row['bytes']:,}", formatting.number(row["median_ms"]), formatting.number(row["p95_ms"]),
                     *taken))  # fmt: skip
    heads = (f"taken: {name.lower()}" for name in found)
    return markdown.table(("way", *QUALITY, "bytes sent", "median ms", "95 % ms", *heads), rows)


def rounded_table(found: dict[str, dict[str, Any]]) -> str:
    """Return the ways without a cut, by the bits of their weights."""
    rows = [
        (bits, row["choice"], formatting.number(row["bits_per_byte"]), formatting.bounded(row["density"], row["bound"]),
         formatting.bounded(row["n_eff_per_byte"], row["bound"]), formatting.number(row["median_ms"]))
        for bits, each in found.items() for row in each["choices"] if row["choice"].endswith("on the device")
    ]  # fmt: skip
    return markdown.table(("bits of weights", "way", "bits per byte", "density", "N per byte of weights", "median ms"),
                          rows)  # fmt: skip


def policies_table(found: dict[str, dict[str, Any]]) -> str:
    """Return the policies: their rewards, shares of late requests and the actor's lead, by setting."""
    names = dict.fromkeys(row["policy"] for each in found.values() for row in each["policies"])
    rows = []
    for name in names:
        cells: list[str] = []
        what = ""
        for each in found.values():
            row = next((row for row in each["policies"] if row["policy"] == name), None)
            if row is None:
                cells += ["", ""]
                continue
            gain, what = row["sac_d_gain"], row["what"]
            beside = "" if gain is None else f"{gain:+.3f} ({row['sac_d_gain_lo']:+.3f} to {row['sac_d_gain_hi']:+.3f})"
            cells += [f"{row['reward']:.3f} ({formatting.percentage(row['late'])})", beside]
        rows.append((name, what, *cells))
    heads = (f"{part}: {setting.lower()}" for setting in found for part in ("reward (late)", "sac-d beyond it"))
    return markdown.table(("policy", "", *heads), rows)


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


def recorded_settings(place: Path) -> tuple[dict[str, Any], list[str]]:
    """Return the record that the claims read, and how `densing deploy` is handed its ways and times."""
    kept: dict[str, Any] = read_json(RECORD)
    write_csv(pd.DataFrame(kept["ways"]).astype({"cut": "Int64"}), place / "ways.csv")
    return kept["times"], ["--quality", str(place / "ways.csv"), "--times", "serve-smollm2-135m", "--model", MODEL]


def kept_of(page: Path) -> tuple[dict[str, tuple[str, ...]], str]:
    """Return densities by way as a page has them, and its text from the weights to the real requests."""
    text = page.read_text("utf-8")
    known: dict[str, tuple[str, ...]] = {}
    for row in table_rows(page.name):
        if {"way", *QUALITY} <= set(row) and "bits of weights" not in row:
            known.setdefault(row["way"].strip("*"), (row[QUALITY[1]], row[QUALITY[2]]))
    return known, text[text.index("## Rounded weights") : text.index("## Claims")].strip()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run everything and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--page", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=12)
    parser.add_argument("--record", type=Path)
    options = parser.parse_args(arguments)
    known: dict[str, tuple[str, ...]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        if options.folder is None:
            times, source = recorded_settings(Path(temporary))
            known, measured = kept_of(options.page)
            found = in_settings(times, source)
        else:
            times, found, measured = with_model(options.folder, options.limit, options.record)
    deadline = deadline_ms(times)
    commands = {
        name: " ".join(("densing deploy STORE --model", MODEL, "--deadline", f"{deadline:.0f}", *chosen))
        for name, chosen in settings_of(deadline).items()
    }
    parts = [
        "# Serving a model between a device and a server",
        "Written by `python benchmarks/deploy.py --folder FOLDER --page PAGE`, policies and claims without the folder; "
        "do not edit by hand. SAC-d (Niu et al., arXiv 2201.02968) chooses by reinforcement learning where a network "
        "is left, where it is handed over from a device to a server and in how many bits. Its abstract is all that "
        "could be read: state, reward and network sizes are ours. Here the network is a language model, quality is its "
        "measured loss ([exits](exits.md)), and the trained policy stands beside enumeration.",
        f"{MODEL}: {times['tokens']} tokens a request, deadline {deadline:.0f} ms (3/4 of what the whole model takes "
        f"on a busy device), a request per deadline. Times: {times['source']}. The link is made up: good and bad for "
        "ten requests on average (40 and 4 Mbit/s, spread 0.3), the device busy (twice as slow) in 30 % of requests. "
        f"Rewards: whole loss over own loss, less 0.1 of the deadline used, less 1 for a deadline missed; {TRACES} "
        "traces of 200 requests, 5 trainings.",
        "## What to take",
        "Policies that the requests cannot tell apart are a tie, and the simplest of them is recommended.",
        markdown.table(
            ("setting", "command", "found"),
            ((name, f"`{commands[name]}`", each["sentence"]) for name, each in found.items()),
        ),
        "## Policies",
        policies_table(found),
        "The oracle knows the bandwidth that a request will find and looks at that request alone, as enumeration does: "
        "where requests wait for one another it is not an upper bound.",
        "## Ways to serve",
        "Milliseconds are those of the first setting, on the server of the second. Bold: nothing else is better in "
        "quality and latency. Densities: N is read from the loss on the reference "
        "olmo-ladder over the parameters kept; ≤: the loss lies beyond the reference, no more than that can be said.",
        ways_table(found, known),
        measured,
        "## Claims",
        claims_table(),
        "## Not done",
        "AlexNet on a Raspberry Pi, and figures that no readable source has. One request at a time is served for real; "
        "requests that wait for one another are simulated. Decoding token by token (a hand-over for each) is not "
        "modelled. No recorded trace of a mobile link was at hand: `--trace` reads one.",
    ]
    options.page.write_text("\n\n".join(parts) + "\n")
    print(f"wrote {options.page}")


def deadline_ms(times: dict[str, Any]) -> float:
    """Return three quarters of what the whole model takes on a busy device."""
    return 1500 * (sum(times["device_s"]) + sum(times["device_ends_s"]))


def settings_of(deadline: float) -> dict[str, list[str]]:
    """Return the options of `densing deploy` in each setting."""
    half = f"{deadline / 2:.0f}"
    return {name: [half if part == "HALF" else part for part in chosen] for name, chosen in SETTINGS.items()}


def in_settings(times: dict[str, Any], source: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return what `densing deploy` finds in every setting."""
    deadline = deadline_ms(times)
    return {
        name: densing("deploy", *source, "--deadline", f"{deadline:.0f}", *chosen, "--json")
        for name, chosen in settings_of(deadline).items()
    }


def with_model(
    folder: Path, limit: int, record: Path | None
) -> tuple[dict[str, Any], dict[str, dict[str, Any]], str]:  # fmt: skip
    """Return times, what is found in every setting, and the part of the page that needs the model."""
    store, run = folder / "served", Commands(folder)
    run("eval", "--model", MODEL, "--tasks", "olmo_ladder", "--limit", str(limit), "--device", "cpu", "--exit",
        listed(EXITS), "--translators", str(folder / "translators"), "--out", str(store))  # fmt: skip
    # The layers' times decide the deadline: measured first, in the folder that all settings share.
    place = folder / "deploy"
    first = deployed(place, store, "--text-stays", "--deadline", "100000", "--policy", "fixed", "--latency", "10")
    times = first["times"]
    found = in_settings(times, (str(store), "--model", MODEL, "--out", str(place)))
    deadline = ("--deadline", f"{deadline_ms(times):.0f}")
    trials = {
        rate: deployed(place, store, *deadline, "--text-stays", "--policy", "fixed", "--try", rate, "--requests", "15")
        for rate in RATES
    }  # fmt: skip
    rounded = {
        bits: deployed(place, store, *deadline, "--text-stays", "--policy", "fixed", "--weight-bits", bits)
        for bits in WEIGHTS
    }
    own_model = f"pretrained={folder / 'deep/models' / LADDER},dtype=float32"
    own_setting = ("--reference", "densing-cpu", "--deadline", "5", "--policy", "fixed")
    served = folder / "deep-served"
    own = deployed(folder / "deploy-own", served, "--model_args", own_model, *own_setting, model=LADDER)
    main_one = next(iter(found.values()))
    if record:
        keep_record(record, main_one, trials)
    parts = [
        "## Rounded weights",
        "Round-to-nearest per channel, beside the weights as released: every way is evaluated with its weights; the "
        "arithmetic, and so the times, are those of 32 bits, and what is saved are bytes of weights.",
        rounded_table({"as released": main_one, **rounded}),
        "## A model with a loss at every exit",
        f"{LADDER} ([exits](exits.md)), a model of our own ladder: `densing deploy STORE --model {LADDER} --model_args "
        f"pretrained=FOLDER/{LADDER},dtype=float32 {' '.join(own_setting)}`, densities on its family's own reference. "
        "Its layers take parts of a millisecond, so a link pays for none of them.",
        own["sentence"], choices_table(own),
        "## Served for real",
        "`densing deploy ... --try RATE --requests 15`: two processes, the device on one thread, the server on two; "
        "states rounded, packed and sent over a shaped interface; medians. Predicted: the layers' seconds, measured in "
        "the run before the requests, and bytes over the rate beyond what the interface's bucket holds. Rounding, "
        "packing and the answer's way back are not predicted.",
        tried_table(trials),
    ]  # fmt: skip
    return times, found, "\n\n".join(parts)


if __name__ == "__main__":
    main()
