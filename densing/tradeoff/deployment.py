"""Choice of exit, cut and bits for serving a request, from quality, times and a varying link.

Source: Niu, Teng, Han and Zou, arXiv 2201.02968; density of what is kept: arXiv 2412.04315, Eqs. 1 and 4.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from msgspec.structs import asdict

from densing.core import (
    Card,
    Column,
    Field,
    InputError,
    Listing,
    Note,
    Readable,
    Table,
    as_table,
    column,
    formatting,
    numeric,
    read_sheet,
    write_csv,
    write_text,
)
from densing.efficiency.simulation import EDGE, Served, Sides
from densing.efficiency.systems import offload
from densing.tradeoff.pareto import non_dominated

FULL = 16
QUALITY = Table(
    "quality",
    (
        Column("exit", "integer", "layers computed", required=True, low=1, high=10_000, remedy="count layers from 1"),
        Column("cut", "integer", "layers before the cut; empty: no cut", low=0, high=10_000,
               remedy="count layers from 0, the embedding"),
        Column("cut_bits", "integer", "of each number handed over", low=2, high=16, default="16",
               remedy="write 2, 4, 8 or 16"),
        Column("weight_bits", "integer", "of the weights", low=2, high=32, default="16", remedy="write 4, 8 or 16"),
        Column("bits_per_byte", "number", "loss of this way to serve", required=True, low=1e-6, high=100,
               remedy="write bits per byte of the right answers"),
        Column("density", "number", "of the parameters kept", low=0),
    ),
    key=("exit", "cut", "cut_bits", "weight_bits"),
)  # fmt: skip
NEEDED = ("exit", "cut", "cut_bits", "bits_per_byte")
CARRIED = ("weight_bytes", "kept_non_embedding", "n_eff", "n_eff_lo", "n_eff_hi", "density", "density_lo", "density_hi",
           "status", "bound", "n_eff_per_byte")  # fmt: skip
DRAWS, GRID = (200, 50), 25
FORMAT = "densing-policy/1"


def _bounded(name: str) -> Callable[[Mapping[str, Any]], str]:
    """Return what shows a figure that may be a bound."""
    return lambda row: formatting.bounded(row.get(name), row.get("bound"))


WAYS = (
    Field("Way", column("choice")),
    numeric("Bits per byte", "bits_per_byte"),
    Field("Density", _bounded("density"), "density", optional=True),
    Field("N per byte", _bounded("n_eff_per_byte"), "n_eff_per_byte", optional=True),
    Field("Density per ms", _bounded("density_per_ms"), "density_per_ms", optional=True),
    numeric("Device ms", "device_ms"),
    numeric("Server ms", "edge_ms"),
    numeric("Bytes sent", "bytes", formatting.count),
    numeric("Median ms", "median_ms"),
    numeric("95 % ms", "p95_ms"),
    numeric("ms per token", "token_ms", optional=True, hint="Median, of each output token after the first"),
    numeric("Taken", "share", formatting.percentage, hint="By the recommended policy"),
)


@dataclass(frozen=True, repr=False)
class Deployment(Readable):
    """What to serve a model with.

    Parameters
    ----------
    model : str
    choices : pandas.DataFrame
        A row per way to serve: ``choice``, ``exit``, ``cut`` (NA: nothing is handed over, -1: the tokens are),
        ``cut_bits``, ``bits_per_byte``, ``quality`` (the whole model's bits per byte over its own), the density's
        columns where it is known, ``device_ms``, ``edge_ms``, ``bytes``, ``median_ms`` and ``p95_ms`` of requests
        that find all free, ``token_ms`` (median from one output token to the next, where there are several), ``front``
        (nothing else is better in quality and p95), ``share`` of the recommended policy.
    policies : pandas.DataFrame
        ``policy``, ``reward``, ``p95_ms``, ``late``; and the actor's reward less its own, with an interval:
        ``sac_d_gain``, ``_lo``, ``_hi``.
    recommended, reason : str
    tied : tuple of str
        Other policies that are as good, as far as the requests show.
    table : pandas.DataFrame
        What the recommended policy does when all is free: ``load``, ``from_mbit``, ``choice``.
    service : offload.Service
    times : Served
    output_tokens : int
        Of an answer.
    level : float
    tried : pandas.DataFrame, optional
        ``choice``, ``measured_ms``, ``predicted_ms``, ``difference``, ``bytes`` of real requests.
    quality_from : str
        Where the bits per byte come from: measured by densing, or given.
    notes : tuple of Note

    See Also
    --------
    deploy : makes it.
    """

    drawn_by: ClassVar[str] = "densing.plots:plot_deployment"

    model: str
    choices: pd.DataFrame
    policies: pd.DataFrame
    recommended: str
    tied: tuple[str, ...]
    reason: str
    table: pd.DataFrame
    service: offload.Service
    times: Served
    level: float
    output_tokens: int = 1
    tried: pd.DataFrame | None = None
    quality_from: str = ""
    notes: tuple[Note, ...] = ()

    @property
    def sentence(self) -> str:
        """What came out, in a sentence or two."""
        row = self.policies[self.policies["policy"].eq(self.recommended)].iloc[0]
        return (
            f"{self.model}: take {self.recommended}: {self.reason}. 95 % of requests take up to "
            f"{formatting.number(row['p95_ms'])} ms of {formatting.number(1e3 * self.service.deadline_s)}, "
            f"{formatting.percentage(row['late'])} are late."
        )

    def choices_listing(self) -> Listing:
        """Return the ways to serve, the fastest first; those on the front are marked."""
        title = "Ways to serve, fastest first. Those that nothing beats in quality and latency are emphasised."
        return Listing(title, self.choices, WAYS, "front")

    def policies_listing(self) -> Listing:
        """Return the policies on the same requests, the best first."""

        def gain(row: Mapping[str, Any]) -> str:
            if formatting.is_missing(row["sac_d_gain"]):
                return ""
            low, high = formatting.number(row["sac_d_gain_lo"]), formatting.number(row["sac_d_gain_hi"])
            return f"{formatting.number(row['sac_d_gain'])} ({low} to {high})"

        hint = f"{formatting.percentage(self.level)} interval"
        shown = (
            Field("Policy", column("policy")),
            Field("What it does", column("what")),
            numeric("Reward", "reward"),
            numeric("95 % ms", "p95_ms"),
            numeric("Late", "late", formatting.percentage),
            Field("sac-d beyond it", gain, "sac_d_gain", hint=hint),
        )
        return Listing("Policies on the same requests.", self.policies, shown)

    def decisions_listing(self) -> Listing:
        """Return what the recommended policy takes while all is free."""
        shown = (numeric("Load", "load"), numeric("From Mbit/s", "from_mbit"), Field("Way", column("choice")))
        return Listing(f"What {self.recommended} takes while all is free.", self.table, shown)

    def tried_listing(self) -> Listing:
        """Return what was served for real."""
        shown = (
            Field("Way", column("choice")),
            numeric("Bytes sent", "bytes", formatting.count),
            numeric("Predicted ms", "predicted_ms"),
            numeric("Measured ms", "measured_ms"),
            numeric("Difference", "difference", formatting.percentage),
        )
        return Listing("Measured while serving, one request at a time.", self.tried, shown)

    def card(self) -> Card:
        """Return what is shown: the recommendation, then the front."""
        title = f"Serving {self.model} between a device and a server"
        facts = {"found": self.sentence, "ways to serve": str(len(self.choices))}
        return Card(title, facts, Listing(title, self.choices[self.choices["front"]], WAYS), self.notes)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return {"sentence": self.sentence} | {field.name: getattr(self, field.name) for field in fields(self)}

    def write(self, folder: Path | str) -> Path:
        """Write ``policy.json``, ``choices.csv`` and ``policies.csv``; return the policy's file."""
        target = Path(folder)
        write_csv(self.choices, target / "choices.csv")
        write_csv(self.policies, target / "policies.csv")
        policy = {
            "format": FORMAT,
            "model": self.model,
            "policy": self.recommended,
            "tied": self.tied,
            "reason": self.reason,
            "deadline_ms": 1e3 * self.service.deadline_s,
            "tokens": self.times.tokens,
            "output_tokens": self.output_tokens,
            "how": "take the row of the load at hand with the largest from_mbit at or below the last bandwidth",
            "choices": self.choices[["choice", "exit", "cut", "cut_bits"]].astype(object)
            .where(self.choices[["choice", "exit", "cut", "cut_bits"]].notna(), None).to_dict("records"),
            "table": self.table.to_dict("records"),
        }  # fmt: skip
        path = target / "policy.json"
        write_text(path, json.dumps(policy, indent=1, allow_nan=False) + "\n")
        return path


def deploy(
    quality: pd.DataFrame | Path | str,
    times: Served,
    *,
    quality_from: str | None = None,
    model: str = "model",
    deadline_s: float,
    interval_s: float | None = None,
    latency_s: float = 0.0,
    output_tokens: int = 1,
    channel: offload.Channel | None = None,
    text_stays: bool = False,
    weight_bits: int = FULL,
    policies: Sequence[str] = tuple(offload.POLICIES),
    latency_weight: float = 0.1,
    penalty: float = 1.0,
    traces: int = offload.TRACES,
    seeds: int = 5,
    updates: int = 3000,
    level: float = 0.95,
    seed: int = 0,
    progress: Callable[[str, float], None] = lambda _label, _share: None,
) -> Deployment:
    """Choose how to serve a model's requests.

    Parameters
    ----------
    quality : pandas.DataFrame or path
        A row per evaluated way to serve, as :func:`densing.scores.density.served_densities` or ``measured_variants``
        give them, or the file of a table of :data:`QUALITY`:
        ``exit``, ``cut``, ``cut_bits``, ``bits_per_byte``, perhaps ``weight_bits`` and densities. Only what was
        evaluated is chosen from. A row without a cut stands for two ways: on the device, and on the server, to which
        the tokens' numbers are sent.
    times : Served
        What the layers take.
    quality_from : str, optional
        Where ``quality`` comes from, for what is printed; a table that somebody brings is called given, not measured.
    model : str
    deadline_s, latency_s : float
        The deadline is that of the whole answer.
    output_tokens : int
        Of an answer, decoded one after another: over a cut each sends a state and waits for the next token, so that a
        request takes its pass + (tokens - 1) (compute + latency + bytes/rate). Needs ``times.decode`` where above 1.
    interval_s : float, optional
        Between requests; the deadline.
    channel : offload.Markov or Recorded, optional
    text_stays : bool
        Whether the tokens themselves may not be sent.
    weight_bits : int
        Rows of other weights are left out.
    policies : sequence of str
    latency_weight, penalty : float
        See :class:`densing.efficiency.systems.offload.Service`.
    traces, seeds, updates : int
        See :func:`densing.efficiency.systems.offload.hold_contest`.
    level : float
        Of intervals.
    seed : int
    progress : callable
        Told a label and a share.

    Raises
    ------
    InputError
        Columns or rows that are missing, a deadline that nothing can meet, and as the parts raise.
    UnavailableError
        For ``sac-d`` without torch.

    Examples
    --------
    >>> import densing
    >>> import pandas as pd
    >>> from densing.efficiency.simulation import Served
    >>> times = Served("toy", (.1, .1), (.02, .02), (0., 0.), (0., 0.), tokens=8, width=64)
    >>> rows = pd.DataFrame({"exit": [2, 2], "cut": [None, 1], "cut_bits": [16, 4], "bits_per_byte": [1.0, 1.1]})
    >>> found = densing.deploy(rows, times, deadline_s=0.5, policies=["fixed", "last"], text_stays=True)
    >>> found.recommended
    'fixed'

    See Also
    --------
    densing.scores.density.served_densities
    """
    if quality_from is None:
        table = Path(quality).name if isinstance(quality, str | Path) else "a table"
        quality_from = f"given by {table}, which densing has not measured"
    chosen, read = _rows(quality, weight_bits, text_stays)
    whole = offload.whole_bits(
        (int(row.exit), None if math.isnan(row.place) else int(row.place), float(row.bits_per_byte))
        for row in chosen.itertuples()
    )
    chosen = chosen.assign(quality=whole / chosen["bits_per_byte"])
    actions = offload.list_actions(
        times,
        [(int(row.exit), None if math.isnan(row.place) else int(row.place), int(row.cut_bits), float(row.quality))
         for row in chosen.itertuples()],
        output_tokens,
    )  # fmt: skip
    service = offload.Service(
        deadline_s, deadline_s if interval_s is None else interval_s, latency_s, latency_weight=latency_weight,
        penalty=penalty,
    )  # fmt: skip
    link = channel or offload.Markov()
    found = link.draw(*DRAWS, seed)
    seconds = actions.seconds(found.bandwidth, found.load, latency_s)
    fastest = float(seconds.min())
    if fastest > deadline_s:
        raise InputError(
            f"deadline: {formatting.number(1e3 * deadline_s)} ms is met by nothing; the fastest, "
            f"{actions.labels[int(seconds.min((0, 1)).argmin())]}, takes {formatting.number(1e3 * fastest)} ms at best"
        )
    contest = offload.hold_contest(
        actions, service, link, policies=policies, traces=traces, seeds=seeds, updates=updates, level=level, seed=seed,
        progress=progress,
    )  # fmt: skip
    ranking = contest.ranking
    flat = seconds.reshape(-1, len(actions.labels))
    p95 = np.quantile(flat, 0.95, axis=0)
    choices = chosen.assign(
        choice=list(actions.labels), cut=chosen["place"].astype("Int64"), device_ms=1e3 * actions.device_s,
        edge_ms=1e3 * actions.edge_s, bytes=actions.all_bytes.astype(int), median_ms=1e3 * np.median(flat, axis=0),
        p95_ms=1e3 * p95, front=non_dominated(actions.quality, p95), share=contest.shares[ranking.recommended],
    )  # fmt: skip
    if output_tokens > 1:
        turns = actions.turn_seconds(found.bandwidth, found.load, latency_s).reshape(flat.shape)
        choices["token_ms"] = 1e3 * np.median(turns, axis=0)
    if "density" in choices:
        choices["density_per_ms"] = choices["density"] / choices["p95_ms"]
    shown = ["choice", "exit", "cut", "cut_bits", "bits_per_byte", "quality", *(c for c in CARRIED if c in choices),
             *(["density_per_ms"] if "density" in choices else []), "device_ms", "edge_ms", "bytes", "median_ms",
             "p95_ms", *(["token_ms"] if output_tokens > 1 else []), "front", "share"]  # fmt: skip
    return Deployment(
        model=model,
        choices=choices[shown].sort_values("p95_ms", ignore_index=True),
        policies=_policy_table(contest),
        recommended=ranking.recommended,
        tied=ranking.tied,
        reason=ranking.reason,
        table=_decisions(contest, actions, service, found.bandwidth, found.load),
        service=service,
        times=times,
        level=level,
        output_tokens=output_tokens,
        quality_from=quality_from,
        notes=(*read, *_notes(quality_from, times, chosen, text_stays, link)),
    )


def _rows(
    quality: pd.DataFrame | Path | str, weight_bits: int, text_stays: bool
) -> tuple[pd.DataFrame, tuple[Note, ...]]:
    """Return the ways to serve: evaluated rows, those without a cut once more for the server; and the notes."""
    notes: tuple[Note, ...] = ()
    if not isinstance(quality, pd.DataFrame):
        quality, notes = as_table(read_sheet(quality), QUALITY)
        quality = quality.dropna(axis="columns", how="all").assign(cut=lambda rows: rows.get("cut", math.nan))
    missing = [name for name in NEEDED if name not in quality]
    if missing:
        raise InputError(f"quality: no column {missing[0]}; it needs {', '.join(NEEDED)}")
    rows = quality
    if "weight_bits" in rows:
        rows = rows[rows["weight_bits"].eq(weight_bits)]
        if rows.empty:
            there = ", ".join(map(str, sorted(quality["weight_bits"].unique())))
            raise InputError(f"weight_bits={weight_bits}: nothing is evaluated with them; there are {there}")
    for name, low in (("exit", 1), ("cut_bits", 1), ("bits_per_byte", 1e-9)):
        values = pd.to_numeric(rows[name], errors="coerce")
        bad = rows[name][~(values >= low) | ~np.isfinite(values)]
        if len(bad):
            raise InputError(f"quality: row {bad.index[0]}: {name}: {bad.iloc[0]} is not a number above 0")
    place = pd.to_numeric(rows["cut"], errors="coerce").astype(float)
    rows = rows.assign(place=place, exit=rows["exit"].astype(int), cut_bits=rows["cut_bits"].astype(int))
    alone = rows[place.isna()]
    parts = [rows] if text_stays else [rows, alone.assign(place=float(EDGE))]
    together = pd.concat(parts, ignore_index=True)
    if together.empty:
        raise InputError("quality: no rows; evaluate the model with densing eval --exit ... --cut ...")
    return together, notes


def _policy_table(contest: offload.Contest) -> pd.DataFrame:
    gain = {each.rival: each for each in contest.ranking.differences}
    rows = []
    for name, own in contest.rewards.items():
        beside = gain.get(name)
        rows.append({
            "policy": name, "reward": float(own.mean()), "p95_ms": 1e3 * contest.latencies[name],
            "late": contest.late[name], "sac_d_gain": beside.mean if beside else math.nan,
            "sac_d_gain_lo": beside.lo if beside else math.nan, "sac_d_gain_hi": beside.hi if beside else math.nan,
            "what": offload.POLICIES[name],
        })  # fmt: skip
    return pd.DataFrame(rows).sort_values("reward", ascending=False, ignore_index=True)


def _decisions(
    contest: offload.Contest, actions: offload.Actions, service: offload.Service, bandwidth: Any, load: Any
) -> pd.DataFrame:
    """Return what the recommended policy does at each bandwidth, all being free; neighbours that agree are one row."""
    grid = np.geomspace(bandwidth.min(), bandwidth.max(), GRID)
    policy = contest.policies[contest.ranking.recommended]
    rows = []
    for busy in sorted({float(each) for each in np.unique(np.round(load, 2))})[:5]:
        requests = offload.Requests(actions, service, offload.Conditions(grid[:, None], np.full((GRID, 1), busy)))
        taken = policy(requests, requests.view())
        for number, choice in enumerate(taken):
            if not number or choice != taken[number - 1]:
                start = 0.0 if not number else float(grid[number] / offload.MEGABIT)
                rows.append({"load": busy, "from_mbit": round(start, 3), "choice": actions.labels[int(choice)]})
    return pd.DataFrame(rows)


def _notes(
    quality_from: str, times: Served, chosen: pd.DataFrame, text_stays: bool, channel: offload.Channel
) -> list[Note]:
    notes = [Note("quality-from", "info", f"quality: {quality_from}"),
             Note("times-from", "info", f"times: {times.source or 'of the user'}; {times.tokens} tokens a request",
                  {"tokens": times.tokens})]  # fmt: skip
    if isinstance(channel, offload.Recorded):
        notes += channel.notes
    else:
        notes.append(Note("made-up-channel", "warning", f"the link is made up, not recorded: {channel}; a trace of "
                          "your own says more (--trace)", {}))  # fmt: skip
    if not text_stays:
        notes.append(
            Note(
                "tokens-are-small", "info",
                f"tokens are sent as numbers, {times.sent(EDGE, 16)} bytes a request; a state is "
                f"{times.sent(0, 2)} bytes in 2 bits: for text a cut pays only where the tokens must stay on the "
                "device (--text-stays) or the server is slower than the device", {},
            )
        )  # fmt: skip
    if "bound" in chosen and chosen["bound"].eq("upper").any():
        notes.append(
            Note("densities-are-bounds", "warning",
                 "some densities are upper bounds: the loss lies beyond the reference",
                 {"rows": int(chosen["bound"].eq("upper").sum())})
        )  # fmt: skip
    return notes


def measure_served(
    pretrained: Path | str, gguf_file: str = "", *, name: str = "model", tokens: int = 128, output_tokens: int = 1,
    edge_threads: int = 2,
    progress: Callable[[float], None] = lambda _share: None,
) -> Served:  # fmt: skip
    """Measure what a model's layers take on this machine: one thread is the device, several are the server.

    Parameters
    ----------
    pretrained, gguf_file : path
        Folder of a model of transformers, and the file in it where it is one of llama.cpp.
    name : str
    tokens : int
        Of a request.
    output_tokens : int
        Of an answer; above 1 the pass of one token is measured too, behind those of a request.
    edge_threads : int
    progress : callable
        Told the share that is done.

    Raises
    ------
    InputError
        When the model cannot be read or cut.
    UnavailableError
        Without torch or transformers.
    """
    halves = offload.Halves(pretrained, gguf_file)
    kinds = ((tokens, 0), (1, tokens)) if output_tokens > 1 else ((tokens, 0),)
    sides = []
    for number, (each, behind) in enumerate(kinds):
        found = []
        for side, threads in enumerate((1, edge_threads)):
            done = 2 * number + side

            def told(share: float, done: int = done) -> None:
                progress((done + share) / (2 * len(kinds)))

            found.append(offload.layer_seconds(halves, each, threads=threads, behind=behind, progress=told))
        (device, device_ends), (edge, edge_ends) = found
        sides.append(Sides(device, edge, device_ends, edge_ends))
    source = (
        f"medians of 7 passes of {tokens} tokens in float32 on this machine: device 1 thread, server {edge_threads}"
    )
    return Served(
        name, **asdict(sides[0]), tokens=tokens, width=halves.width, parameters=halves.parameters, source=source,
        evidence="measured", decode=sides[1] if output_tokens > 1 else None,
    )  # fmt: skip


def try_choices(
    result: Deployment, pretrained: Path | str, gguf_file: str = "", *, link: str, requests: int = 7,
    edge_threads: int = 2, seed: int = 0, out: Path | str,
) -> Deployment:  # fmt: skip
    """Serve a deployment's front for real: two processes, states rounded and sent over a link.

    Parameters
    ----------
    result : Deployment
    pretrained, gguf_file
        The model.
    link : str
        ``40mbit`` (a shaped interface) or ``emulated:40mbit``.
    requests : int
        Of each way.
    edge_threads : int
    seed : int
        Of the requests' tokens.
    out : path
        Folder of the run; a finished one is read, not repeated.

    Returns
    -------
    Deployment
        With ``tried``: medians, and what the layers' times (measured anew, in the run) and the link's rate predicted.

    Raises
    ------
    InputError, UnavailableError, RunFailedError
        As a run does.
    """
    from msgspec.structs import replace as replace_record

    from densing.efficiency.parallel import RunSpec, launch

    front = result.choices[result.choices["front"]].reset_index(drop=True)
    places = {EDGE: "server"}
    ways = [
        f"{row.exit}:{'device' if pd.isna(row.cut) else places.get(int(row.cut), int(row.cut))}:{row.cut_bits}"
        for row in front.itertuples()
    ]
    knobs = {
        "pretrained": str(pretrained), "gguf_file": gguf_file, "ways": ",".join(ways), "tokens": result.times.tokens,
        "edge_threads": edge_threads, **({"output_tokens": result.output_tokens} if result.output_tokens > 1 else {}),
    }  # fmt: skip
    spec = RunSpec("sac-d", knobs=knobs, nproc=2, steps=requests, seed=seed, link=link, trace_steps=0, timeout_s=120.0)
    # A folder for each trial: other ways or another link are another run.
    trial = zlib.crc32(json.dumps(spec.to_dict(), sort_keys=True).encode())
    run = launch(replace_record(spec, out=str(Path(out) / f"{trial:08x}")), resume=True)
    extra = run.extra
    numbers = range(len(front))
    measured = np.array([extra[f"measured_s_{number}"] for number in numbers])
    predicted = np.array([extra[f"predicted_s_{number}"] for number in numbers])
    tried = pd.DataFrame(
        {"choice": front["choice"], "bytes": front["bytes"], "predicted_ms": 1e3 * predicted,
         "measured_ms": 1e3 * measured, "difference": measured / predicted - 1}
    )  # fmt: skip
    note = Note(
        "tried", "info",
        f"{len(front)} ways served for real over {link} ({run.link.kind}), medians of {requests}: predicted and "
        f"measured differ by {formatting.percentage(float(np.median(np.abs(tried['difference']))))} in the median",
        {"link": link, "kind": run.link.kind},
    )  # fmt: skip
    return replace(result, tried=tried, notes=(*result.notes, note))
