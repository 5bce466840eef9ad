"""Tables of measured training runs: rows become columns of numbers, or a reason why they cannot.

A table has one row per configuration (:data:`COLUMNS`); what it leaves out is taken from the device's data sheet
(``devices.csv``) and the software's defaults (``stacks.csv``), the same for all rows.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import chain
from pathlib import Path

import numpy as np
import pandas as pd

from densing.core import Array, Column, InputError, Note, TableError, as_declared, read_sheet

FOLDER = Path(__file__).parent
SAMPLE = FOLDER / "sample.csv"

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "needed": ("row_id", "layers", "hidden", "seq", "gpu", "gpus"),
    "said or assumed": (
        "source_file_id", "framework", "model", "workload", "heads", "kv_heads", "ffn_hidden", "mlp", "vocab",
        "tied_embeddings", "moe", "gpu_mem_gb", "gpus_per_node", "interconnect_said", "tp", "sequence_parallel", "pp",
        "vpp", "pp_schedule", "dp", "cp", "ep", "dp_shard", "mbs", "gbs", "grad_acc", "precision", "recompute",
        "other_options",
    ),
    "measured": ("status", "tokens_per_s", "tokens_per_s_per_gpu_from_tflops", "mem_gb_said"),
}  # fmt: skip
"""Columns of a table by their use; others are ignored."""
NUMBERS = ("layers", "hidden", "seq", "gpus", "heads", "kv_heads", "ffn_hidden", "vocab", "gpu_mem_gb", "gpus_per_node",
           "tp", "pp", "vpp", "dp", "cp", "ep", "mbs", "gbs", "grad_acc", "tokens_per_s",
           "tokens_per_s_per_gpu_from_tflops", "mem_gb_said")  # fmt: skip
"""Columns that hold numbers."""
_DECLARED = tuple(
    Column(name, "number" if name in NUMBERS else "text", group) for group, names in COLUMNS.items() for name in names
)

SHEET = ("flops16", "flops8", "flops4", "mem_bw", "memory_gb", "units", "link", "nic", "per_node", "power",
         "usual_power")  # fmt: skip
"""Figures of a data sheet."""
MOST, MOST_LAYERS = 1e9, 10_000
EAGER = ", eager"
"""After a generation's name: programs that drive single operations wait for what others do not."""
LONG = 32_768
"""Tokens of a sequence from which on a run is of a kind of its own."""
KINDS = ("one domain", "several domains", "long sequences", "new generation", "mixture", "eager")
"""Kinds of runs, each with a range of its own: dense ones within one domain of fast links, or over several; beyond
:data:`LONG` tokens; on a generation that was never fitted; mixtures of experts; eager programs."""
ONE_DOMAIN, SEVERAL_DOMAINS, LONG_SEQUENCES, NEW_GENERATION, MIXTURE, EAGER_PROGRAM = KINDS
UNEVEN = 2
"""Layers by which the first and the last stage together may be shorter: embedding and head stand for them."""
HEAD_WIDTH = 128
LARGEST_HOST = 16
"""Devices of one host at most; links of a larger number are a rack's."""
VOCABULARY = 50304
WHOLE = 0.01
SHARDINGS = (
    (2, "grad-?op|zero-?(?:stage-?)?2|stage-?2|os\\+g"),
    (3, "zero-?(?:stage-?)?3|stage-?3|fsdp|hsdp|full(?:y)?-shard|hybrid-shard"),
    (1, "zero-?(?:stage-?)?1|stage-?1|dist(?:ributed)?-opt|shard(?:ed)?-opt"),
    (0, "^$|^no|^-$|ddp|^dp$|zero-?(?:stage-?)?0|^data-?parallel|replica|3d"),
)
"""What states of the replicas are called, blanks and underscores as hyphens; the first that is found counts."""
RECOMPUTED = (
    (0, r"^$|^no\b|^none|^not |^-$|^off|^false|^0$"),
    (2, "^full|^all|^every layer|^uniform|^block|^true|^yes|^1$|^on$"),
    (1, "^selective|^core|attn|attention|_act|moe|mlp|norm|proj"),
)
"""What is computed again, by the word that says so; "not said" is nothing."""
NARROW = "bf16|bfloat16|fp16|float16|half|16|fp8|float8|fp4|amp|mixed"
"""Precisions that can be expressed: products of 16 bits or fewer."""
BUBBLES = (("zb-?v|zb-?h2|zb-?2p|dualpipe", 0.0), ("zero-?bubble|zb", 1 / 3))
"""Schedules that put gradients of weights into the bubble, and what is left of it where forward passes, gradients of
inputs and of weights take the same: Qi et al., arXiv 2401.10241, table 1 (recalled; no run of them was ever fitted)."""
_EXPERTS = re.compile(r"(\d+) experts, top (\d+), expert ffn (\d+)")
_GBIT = re.compile(r"(?:(\d+) ?x ?)?(\d+(?:\.\d+)?) ?(?:Gb/s|Gbps|Gbit)")
"""Gigabits; a figure in GB/s is one of links within a node."""


@dataclass(frozen=True)
class Runs:
    """Training steps in columns: one number per step and attribute.

    Parameters
    ----------
    layers, hidden, heads, kv_heads, ffn, gated, vocabulary, tied : array
        The model; ``gated`` 1 for an MLP of three matrices, ``tied`` 1 for one matrix of embedding and head.
    experts, top, expert_ffn : array
        Of a mixture of experts; 0, 1 and 0 of a dense model.
    sequence, micro_batch, parts : array
        Tokens per sequence, sequences per micro-batch, micro-batches per step and replica.
    dp, tp, pp, cp, ep, virtual : array
        Replicas, tensor-parallel devices, stages, devices along the sequence, along the experts; stages per device.
    bubble : array
        Bubble of the schedule relative to 1F1B's.
    split_sequence : array
        1 where activations between tensor-parallel regions are split.
    zero : array
        Stage of ZeRO: 0 (DDP), 1 (optimizer), 2 (gradients), 3 (parameters too, FSDP).
    recompute : array
        0 nothing, 1 the core of attention, 2 whole layers, 3 half of what layers compute (FSDP's "selective": single
        operations, or every other layer).
    written, vendor, fused, hidden_gradients, gradient_bytes, eager, logit_bytes, hidden_sums : array
        Defaults of the software: attention writes its scores; is the vendor's kernel; element-wise operations are
        fused; gradients travel beside the backward pass; bytes per gradient; single operations are driven one by one
        (the optimizer's too); bytes kept per logit; sums of the tensor-parallel group are hidden.
    kept_gradient_bytes, bucket_numbers : array
        Bytes per gradient that stay in memory, and numbers of a bucket of gradients or parameters on its way.
    eight_bits : array
        1 where matrix products are of 8-bit numbers, or 4-bit ones.
    flops, flops_low, bandwidth, memory, units, link, nic, node, power : array
        The device: operations per second in 16 bits, and of the run's own products where they have fewer; bytes per
        second of its memory, bytes, units that share a product, bytes per second and direction to devices of its node
        and to the network, devices of a node, clock left by a limit of power.
    """

    layers: Array
    hidden: Array
    heads: Array
    kv_heads: Array
    ffn: Array
    gated: Array
    vocabulary: Array
    tied: Array
    experts: Array
    top: Array
    expert_ffn: Array
    sequence: Array
    micro_batch: Array
    parts: Array
    dp: Array
    tp: Array
    pp: Array
    cp: Array
    ep: Array
    virtual: Array
    bubble: Array
    split_sequence: Array
    zero: Array
    recompute: Array
    written: Array
    vendor: Array
    fused: Array
    hidden_gradients: Array
    gradient_bytes: Array
    eager: Array
    logit_bytes: Array
    hidden_sums: Array
    kept_gradient_bytes: Array
    bucket_numbers: Array
    eight_bits: Array
    flops: Array
    flops_low: Array
    bandwidth: Array
    memory: Array
    units: Array
    link: Array
    nic: Array
    node: Array
    power: Array

    def __len__(self) -> int:
        """Return the number of steps."""
        return len(self.layers)

    def take(self, which: Array) -> Runs:
        """Return some of the steps."""
        return Runs(**{field.name: getattr(self, field.name)[which] for field in fields(self)})

    def kinds(self, known: Array | bool = True) -> Array:
        """Return which of :data:`KINDS` each step is of; ``known``: whether its generation was fitted."""
        which = {
            EAGER_PROGRAM: self.eager > 0,
            MIXTURE: self.experts > 0,
            NEW_GENERATION: ~np.broadcast_to(known, len(self)),
            LONG_SEQUENCES: self.sequence > LONG,
            SEVERAL_DOMAINS: self.devices > self.node,
        }
        return np.select(list(which.values()), list(which), ONE_DOMAIN)

    @property
    def tokens(self) -> Array:
        """Tokens of one step, all replicas together."""
        return self.sequence * self.micro_batch * self.parts * self.dp

    @property
    def devices(self) -> Array:
        """Devices in all."""
        return self.dp * self.tp * self.pp * self.cp

    @property
    def attention_parameters(self) -> Array:
        """Parameters of a layer's attention."""
        return self.hidden * (2 * self.hidden + 2 * self.hidden * self.kv_heads / self.heads)

    @property
    def parameters(self) -> Array:
        """Parameters of the model that a token passes through, both matrices of embedding and head where untied."""
        mlp = np.where(self.experts > 0, self.top * self.expert_ffn, self.ffn) * self.hidden * (2 + self.gated)
        embedding = (2 - self.tied) * self.vocabulary * self.hidden
        return self.layers * (self.attention_parameters + mlp) + embedding

    @property
    def flops_per_token(self) -> Array:
        """Operations per token by PaLM's count, nothing recomputed.

        Source: Chowdhery et al., arXiv 2204.02311, appendix B.
        """
        return 6 * self.parameters + 12 * self.layers * self.hidden * self.sequence


@dataclass(frozen=True)
class MeasuredRuns:
    """A table of measured runs.

    Parameters
    ----------
    about : DataFrame
        Per row ``row_id``, ``source``, ``device`` and ``generation`` (empty where no data sheet is known), ``reason``
        (empty where the row can be expressed), ``status``, ``tokens_per_s`` and ``memory_gb`` (NaN where not measured).
    runs : Runs
        All rows; the numbers of a row that cannot be expressed are meaningless.
    name : str
        Of the file, for messages.
    notes : tuple of Note
        What was read differently from how the file states it.
    """

    about: pd.DataFrame
    runs: Runs
    name: str
    notes: tuple[Note, ...] = ()

    @property
    def constants(self) -> list[str]:
        """The group of constants of each row: its generation, eager programs apart."""
        eager = self.runs.eager > 0
        return [name + EAGER * bool(own and name) for name, own in zip(self.about.generation, eager, strict=True)]

    @property
    def usable(self) -> Array:
        """Rows that can be expressed."""
        return (self.about.reason == "").to_numpy()

    @property
    def measured(self) -> Array:
        """Usable rows with a measured speed."""
        return self.usable & (self.about.tokens_per_s > 0).to_numpy()


@cache
def _lines(name: str) -> tuple[dict[str, str], ...]:
    with (FOLDER / name).open(encoding="utf-8", newline="") as file:
        return tuple(csv.DictReader(file))


def device_names() -> tuple[str, ...]:
    """Return the devices whose data sheet is known.

    Examples
    --------
    >>> "H100" in device_names()
    True
    """
    return tuple(row["device"] for row in _lines("devices.csv"))


def framework_names() -> tuple[str, ...]:
    """Return the frameworks whose defaults are known.

    Examples
    --------
    >>> framework_names()[:2]
    ('nanotron', 'Megatron-Core')
    """
    return tuple(row["stack"] for row in _lines("stacks.csv"))


def hides_gradients(framework: str) -> bool:
    """Return whether a framework exchanges gradients beside the backward pass.

    Examples
    --------
    >>> hides_gradients("Megatron-Core"), hides_gradients("Megatron-LM")
    (True, False)
    """
    return _first("stacks.csv", framework.lower())["hidden_gradients"] == "1"


def device_of(name: str) -> str:
    """Return the generation of a device, empty where no data sheet is known.

    Examples
    --------
    >>> device_of("A100 SXM 80 GB"), device_of("abacus")
    ('A100', '')
    """
    return _first("devices.csv", name.lower())["generation"] or ""


def device_sheet(name: str) -> dict[str, float]:
    """Return the figures of a device's data sheet: operations, bytes and watts, per second where they are rates.

    Empty where none is known.

    Examples
    --------
    >>> device_sheet("NVIDIA H200")["units"], device_sheet("abacus")
    (132.0, {})
    """
    row = _first("devices.csv", name.lower())
    return {key: float(text) for key, text in row.items() if key in SHEET and text}


def evidence_of(name: str) -> tuple[str, str]:
    """Return how well a device's figures are known, and from which data sheet.

    Examples
    --------
    >>> evidence_of("A100 SXM 80 GB")
    ('recalled', 'NVIDIA A100 data sheet; DGX A100: 8 x 200 Gbit/s')
    """
    row = _first("devices.csv", name.lower())
    return row["evidence"] or "", row["source"] or ""


def narrow_of(name: str) -> float | None:
    """Return the speed of a device's 8-bit matrix products relative to 16 bits, None where it has none.

    Examples
    --------
    >>> narrow_of("H100 SXM") == 1978.9 / 989.4, narrow_of("A100 SXM 80 GB")
    (True, None)
    """
    sheet = device_sheet(name)
    return sheet["flops8"] / sheet["flops16"] if "flops8" in sheet else None


def watts_of(name: str) -> float | None:
    """Return the power of a device's board in watts, None where no data sheet is known.

    Examples
    --------
    >>> watts_of("A100 SXM 80 GB")
    400.0
    """
    return device_sheet(name).get("power")


def read_runs(source: Path | pd.DataFrame | None = None) -> MeasuredRuns:
    """Read a table of training runs.

    Parameters
    ----------
    source : path or DataFrame, optional
        A table with the columns of :data:`COLUMNS`, spelled as people do (:func:`densing.core.as_declared`); our own
        small selection when left out.

    Raises
    ------
    InputError
        When it cannot be read, lacks a required column, or repeats a ``row_id``.

    Examples
    --------
    >>> table = read_runs()
    >>> bool(table.usable.any()), set(table.about.columns) >= {"row_id", "reason"}
    (True, True)
    """
    sheet = read_sheet(SAMPLE if source is None else source, "table" if isinstance(source, pd.DataFrame) else None)
    sheet = as_declared(sheet, _DECLARED)
    name, cells = sheet.name, sheet.cells
    if sheet.problems:
        raise TableError(name, chain.from_iterable(sheet.problems.values()))
    missing = [column for column in COLUMNS["needed"] if column not in cells]
    if missing:
        raise InputError(
            f"{name}: column{'s' if len(missing) > 1 else ''} {', '.join(missing)} missing; a table of training runs "
            f"needs {', '.join(COLUMNS['needed'])}"
        )
    if (twice := cells.row_id[cells.row_id.duplicated()]).size:
        raise InputError(f"{name}: row {twice.index[0]}, row_id: {twice.iloc[0]!r} occurs twice; delete or rename one")
    for column in (column for group in COLUMNS.values() for column in group if column not in cells):
        cells[column] = ""
    return replace(_Reader(cells.map(str.strip), name).read(), notes=sheet.notes)


class _Reader:
    """Reads all rows, column by column, and notes the first reason why a row cannot be expressed."""

    def __init__(self, cells: pd.DataFrame, name: str) -> None:
        self.cells, self.name = cells, name
        self.reason = pd.Series("", index=cells.index)

    def refuse(self, which: pd.Series | Array, reason: str | pd.Series) -> None:
        """Give a reason to rows that have none."""
        self.reason = self.reason.mask(pd.Series(which, index=self.cells.index) & (self.reason == ""), reason)

    def text(self, column: str) -> pd.Series:
        """Return a column in lower case."""
        return self.cells[column].str.lower()

    def number(self, column: str, default: float | Array = np.nan, low: float = 1, whole: bool = True) -> Array:
        """Return a column of numbers, the default where a cell is empty; a cell that is not a number is a reason."""
        cells = self.cells[column]
        values = pd.to_numeric(cells, errors="coerce").astype(float)
        given = cells != ""
        bad = given & ~(values.between(low, MOST) & ((values % 1 == 0) | (not whole)))
        self.refuse(
            bad, column + ": " + cells.str.slice(0, 40) + f" is not a {'whole ' if whole else ''}number from {low:g} up"
        )
        return np.where(given & ~bad, values, default)

    def word(self, column: str, known: Sequence[tuple[int, str]], remedy: str, hyphens: bool = False) -> Array:
        """Return the number of the first pattern found in each cell; a word that matches none is a reason."""
        said = self.text(column)
        plain = said.str.replace("[ _]+", "-", regex=True) if hyphens else said
        found = [plain.str.contains(pattern) for _, pattern in known]
        self.refuse(~np.any(found, axis=0), f"{column}: " + said.str.slice(0, 40) + f" is not known; write {remedy}")
        return np.select(found, [float(number) for number, _ in known], 0.0)

    def flag(self, column: str, default: float | Array) -> Array:
        """Return a column of yes and no as 1 and 0."""
        said = self.text(column)
        return np.select([said.isin(["1", "1.0", "true", "yes"]), said.isin(["0", "0.0", "false", "no"])], [1.0, 0.0],
                         default)  # fmt: skip

    def lookup(self, file: str, column: str) -> pd.DataFrame:
        """Return, for each row, the first line of a file of ours whose pattern is found in a column."""
        distinct = {text: _first(file, text) for text in self.text(column).unique()}
        return pd.DataFrame([distinct[text] for text in self.text(column)], index=self.cells.index)

    def read(self) -> MeasuredRuns:
        """Return the table."""
        layers, hidden, sequence, devices = (self.number(name) for name in ("layers", "hidden", "seq", "gpus"))
        self.refuse(layers > MOST_LAYERS, f"layers: more than {MOST_LAYERS:,}")
        missing = {"layers": np.isnan(layers), "hidden": np.isnan(hidden), "seq": np.isnan(sequence),
                   "gpu": self.cells.gpu == "", "gpus": np.isnan(devices),
                   "gbs": (self.cells.gbs == "") & (self.cells.grad_acc == "")}  # fmt: skip
        names = pd.DataFrame(missing, index=self.cells.index)
        listed = names.dot(names.columns + ", ").str.removesuffix(", ")
        self.refuse(names.any(axis=1), listed + ": not stated")
        self.refuse(self.text("model").str.contains("bert|t5|vit"), "model: not a decoder")
        self.refuse(~self.text("workload").isin(["", "pretrain", "sft"]), "workload: " + self.cells.workload)
        self.refuse(self.text("dp_shard").str.contains("offload"), "dp_shard: states in the host's memory")
        moe = self.text("moe")
        experts = moe.str.extract(_EXPERTS).astype(float).fillna(0.0)
        self.refuse(~moe.isin(["", "0", "dense", "none"]) & (experts[0] == 0), "moe: the experts' shape is not stated")
        device, stack = self.lookup("devices.csv", "gpu"), self.lookup("stacks.csv", "framework")
        self.refuse(device.device.isna(), "gpu: no data sheet for " + self.cells.gpu + " is known")
        runs = Runs(
            **self.model(layers, hidden),
            experts=experts[0].to_numpy(), top=np.maximum(experts[1].to_numpy(), 1), expert_ffn=experts[2].to_numpy(),
            sequence=sequence, **self.layout(devices, sequence, layers, stack), **self.software(stack),
            **self.machine(device, devices),
        )  # fmt: skip
        source = self.text("source_file_id").str.partition("/")[0]
        about = pd.DataFrame({
            "row_id": self.cells.row_id,
            "source": source.where(source != "", self.name),
            "device": device.device.fillna(""),
            "generation": device.generation.fillna(""),
            "status": self.text("status").replace("", "ok"),
            "tokens_per_s": np.where(
                self.cells.tokens_per_s != "",
                self.number("tokens_per_s", low=0, whole=False),
                self.number("tokens_per_s_per_gpu_from_tflops", low=0, whole=False) * devices,
            ),
            "memory_gb": self.number("mem_gb_said", low=0, whole=False),
        })  # fmt: skip
        return MeasuredRuns(about.assign(reason=self.reason).reset_index(drop=True), runs, self.name)

    def model(self, layers: Array, hidden: Array) -> dict[str, Array]:
        """Return the model's shape."""
        heads = self.number("heads", np.maximum(np.floor(hidden / HEAD_WIDTH), 1))
        return {
            "layers": layers,
            "hidden": hidden,
            "heads": heads,
            "kv_heads": self.number("kv_heads", heads),
            "ffn": self.number("ffn_hidden", 4 * hidden),
            "gated": self.text("mlp").str.contains("glu").to_numpy(float),
            "vocabulary": self.number("vocab", VOCABULARY),
            "tied": self.flag("tied_embeddings", 0.0),
        }

    def layout(self, devices: Array, sequence: Array, layers: Array, stack: pd.DataFrame) -> dict[str, Array]:
        """Return the split and its schedule; a split that does not multiply to the devices or the batch is a reason."""
        tp, pp, cp, ep = (self.number(name, 1.0) for name in ("tp", "pp", "cp", "ep"))
        dp = self.number("dp", devices / (tp * pp * cp))
        self.refuse(
            ~np.isclose(dp * tp * pp * cp, devices),
            "gpus: not tp * pp * dp * cp = " + pd.Series(tp * pp * dp * cp, self.cells.index).map("{:g}".format),
        )
        self.refuse(pp > layers, "pp: more stages than layers")
        gbs, parts = self.number("gbs"), self.number("grad_acc")
        said = self.number("mbs")
        micro = np.where(np.isnan(said), np.where(np.isnan(parts), 1.0, gbs / (dp * parts)), said)
        # A pipeline interleaves its stages where the row says so without a number, as Megatron does: two per device.
        schedule = self.text("pp_schedule")
        virtual = self.number("vpp", np.where((pp > 1) & schedule.str.contains("interleaved"), 2.0, 1.0))
        self.refuse(virtual * pp > layers + UNEVEN, "vpp: more pieces than layers")
        parts = np.where(np.isnan(parts), np.maximum(gbs / (dp * micro), 1.0), parts)
        self.refuse(np.abs(parts - np.round(parts)) > WHOLE, "gbs: not mbs * dp times a whole number")
        zero = self.word("dp_shard", SHARDINGS, "ddp, zero1, zero2, zero3, fsdp or hsdp", hyphens=True)
        recompute = self.text("recompute")
        again = self.word("recompute", RECOMPUTED, "none, selective or full")
        halves = recompute.str.contains("per op|layer") | (stack.selective == "half")
        groups = np.where(tp > 1, stack.split_sequence.fillna("0").astype(float), 0.0)
        return {
            "micro_batch": micro, "parts": parts, "dp": dp, "tp": tp, "pp": pp, "cp": cp, "ep": ep,
            "virtual": np.maximum(virtual, 1.0),
            "bubble": np.select([schedule.str.contains(words) for words, _ in BUBBLES], [left for _, left in BUBBLES],
                                1.0),
            "split_sequence": np.maximum(self.flag("sequence_parallel", groups),
                                         recompute.str.contains("sequence parallel").to_numpy(float)),
            "zero": zero,
            "recompute": np.where((again == 1) & halves, 3.0, again),
        }  # fmt: skip

    def software(self, stack: pd.DataFrame) -> dict[str, Array]:
        """Return the software's defaults as changed by the row's options."""
        options, precision = self.text("other_options"), self.text("precision")
        self.refuse(
            ~precision.str.contains(NARROW) & (precision != ""),
            "precision: " + self.cells.precision.str.slice(0, 40) + " is not known; write bf16, fp16, fp8 or fp4",
        )
        attention = stack.attention.fillna("flash").mask(options.str.contains("flash"), "flash")
        usual = {"fused": 0.0, "hidden_gradients": 1.0, "gradient_bytes": 2.0, "eager": 0.0, "logit_bytes": 4.0,
                 "hidden_sums": 0.0, "kept_gradient_bytes": 2.0, "bucket_numbers": 0.0}  # fmt: skip
        numbers = stack[list(usual)].astype(float).fillna(usual)
        hidden = options.str.contains("tp-comm-overlap|async tp")
        return {
            "written": (attention == "written").to_numpy(float),
            "vendor": (attention == "vendor").to_numpy(float),
            "fused": np.maximum(numbers.fused, options.str.contains("compile")).to_numpy(float),
            **{name: numbers[name].to_numpy(float) for name in numbers.columns.difference(["fused", "hidden_sums"])},
            "hidden_sums": np.maximum(numbers.hidden_sums, hidden).to_numpy(float),
            "eight_bits": precision.str.contains("fp8|fp4").to_numpy(float),
        }

    def machine(self, device: pd.DataFrame, devices: Array) -> dict[str, Array]:
        """Return the device's figures; the network's as the row states, else the device's usual ones."""
        sheet = device.drop(columns=["device", "pattern", "generation", "evidence", "source"]).apply(pd.to_numeric)
        host = np.minimum(self.number("gpus_per_node", sheet.per_node.to_numpy()), devices)
        # NVLink reaches beyond a host where a rack is one domain, whatever a row says of its hosts.
        node = np.where(sheet.per_node > LARGEST_HOST, np.minimum(sheet.per_node, devices), host)
        said = self.text("interconnect_said")
        figures = self.cells.interconnect_said.str.extract(_GBIT).astype(float)
        gbit = (figures[0].fillna(1.0) * figures[1]).to_numpy()
        # Whoever does not say "per GPU" means what leads out of a node.
        share = np.where(said.str.contains("per gpu"), 1.0, np.maximum(host, 1.0))
        memory = self.number("gpu_mem_gb", sheet.memory_gb.to_numpy(), whole=False)
        precision = self.text("precision")
        eight = sheet.flops8.fillna(sheet.flops16)
        narrow = sheet.flops4.fillna(eight)
        # A scale per row is applied outside the tensor cores' fast sums: these products run at the pace of 16 bits.
        by_row = precision.str.contains("row-?wise")
        return {
            "flops": sheet.flops16.to_numpy(float),
            "flops_low": np.select([by_row, precision.str.contains("fp4")], [sheet.flops16, narrow], eight),
            "bandwidth": sheet.mem_bw.to_numpy(float),
            "memory": memory * 1e9,
            "units": sheet.units.to_numpy(float),
            "link": sheet.link.to_numpy(float),
            "nic": np.where(np.isnan(gbit), sheet.nic.to_numpy(float), gbit / 8 * 1e9 / share),
            "node": node,
            # Power goes with the third power of the clock.
            "power": np.cbrt((sheet.power / sheet.usual_power).to_numpy(float)),
        }


def _first(file: str, text: str) -> dict[str, str | None]:
    lines = _lines(file)
    found = next((line for line in lines if re.search(line["pattern"], text)), None) if text else None
    return {key: (found[key] or None) if found else None for key in lines[0]}
