"""``densing eval``: run benchmarks with lm-eval and store every finished unit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from densing.cli import options as o
from densing.cli.figures import Pictures
from densing.cli.grouped import grouped
from densing.cli.output import emit_json, emit_table, say, show_notes, timed_bar, visible
from densing.core import InputError, Note, StoppedError, listing_of, parse_json, parse_pairs, read_text

if TYPE_CHECKING:
    import pandas as pd

    from densing.scores.evals import ModelSpec, Plan, Progress, RunStore, RunSummary, Stopped
    from densing.scores.items import Chosen, ItemBank

SHOWN = ["model", "task", "metric", "value", "stderr", "n_items", "unit"]
STATES = ("evaluated", "resumed", "skipped", "failed")


def _flag(*names: str, **options: Any) -> Any:
    # lm-eval writes underscores; dashes are accepted too.
    spellings = [*names, *(f"--{name[2:].replace('_', '-')}" for name in names if "_" in name)]
    return typer.Option(*spellings, **options)


def _elsewhere(name: str, instead: str) -> Any:
    """Declare an option of lm-eval that is done otherwise here, so that it says how."""

    def refuse(value: str | bool | None) -> None:
        if value:
            raise typer.BadParameter(f"{name} is lm-eval's; here {instead}")

    return _flag(name, hidden=True, callback=refuse)


ModelArgs = Annotated[
    str | None, typer.Option("--model_args", "--model-args", "-a", help="As in densing eval: pretrained=FOLDER.")
]


@dataclass(frozen=True)
class PlanOptions:
    """The models and tasks of a run."""

    model: Annotated[
        list[str] | None,
        _flag("--model", "-M", help="lm-eval model type (hf, vllm, local-completions, ...) or smollm2-135m.  [hf]"),
    ] = None
    model_args: Annotated[
        list[str] | None,
        _flag("--model_args", "-a", help="key=value,key2=value2 or JSON. Repeat with --model for several models."),
    ] = None
    tasks: Annotated[
        list[str] | None, _flag("--tasks", "-t", help="Tasks, groups, patterns or YAML files, with commas or blanks.")
    ] = None
    plan: Annotated[Path | None, _flag("--plan", help="Models, tasks and settings as TOML; flags override it.")] = None

    def load(self, variants: VariantOptions, harness: HarnessOptions) -> Plan:
        """Return the plan that flags and file say together; flags win."""
        from densing.scores.evals import plan_of, read_plan

        content = {} if self.plan is None else read_plan(self.plan)
        types, arguments = self.model or ["hf"], self.model_args or []
        if len(types) > 1 and len(types) != len(arguments):
            raise InputError(
                f"--model is given {len(types)} times and --model_args {len(arguments)} times; "
                "give them in pairs, or write a --plan"
            )
        if len(types) > 1:
            pairs = zip(types, arguments, strict=True)
            content["models"] = [{"model": t, "model_args": parse_pairs([a], "--model_args")} for t, a in pairs]
        elif self.model or self.model_args:
            content["models"] = [{"model": types[0], "model_args": parse_pairs(arguments, "--model_args")}]
        if self.tasks:
            names = [name for text in self.tasks for name in text.replace(",", " ").split()]
            content["tasks"] = list(dict.fromkeys(names))
        content["models"] = variants.models(content.get("models", []))
        source = "command line" if self.plan is None else str(self.plan)
        return plan_of({**content, **harness.content()}, source, **harness.code)


@dataclass(frozen=True)
class VariantOptions:
    """The ways in which every model is served."""

    exit: Annotated[
        str | None,
        _flag("--exit", help="Keep only this many layers; comma-separated. Needs --translators (densing exits)."),
    ] = None
    cut: Annotated[
        str | None, _flag("--cut", help="Cut after this many layers, where the state is sent on; comma-separated.")
    ] = None
    cut_bits: Annotated[
        str | None, _flag("--cut_bits", help="Bits of the state sent at the cut: 2, 4, 8, 16; comma-separated.")
    ] = None
    weight_bits: Annotated[
        str | None, _flag("--weight_bits", help="Round weights to 4 or 8 bits (16: as stored); comma-separated.")
    ] = None
    translators: Annotated[
        str | None,
        _flag(
            "--translators",
            help="Folder written by `densing exits` for this model; none: the model's own head reads each exit.",
        ),
    ] = None
    adapter: Annotated[
        str | None,
        _flag("--adapter", help="Folder written by `densing tune` for this model; evaluates the tuned model."),
    ] = None

    def models(self, entries: list[Any]) -> list[Any]:
        """Return a plan's models, each once for each way to serve it."""
        texts = {"exits": self.exit, "cuts": self.cut, "cut_bits": self.cut_bits, "weight_bits": self.weight_bits}
        axes = {name: numbers(text, name) for name, text in texts.items() if text is not None}
        if self.adapter is not None:
            parts = map(_parts, entries)
            entries = [{**entry, "model_args": {**args, "adapter": self.adapter}} for entry, args in parts]
        if axes or self.translators is not None:
            entries = [way for entry in entries for way in _ways(entry, axes, self.translators)]
        return entries


@dataclass(frozen=True)
class HarnessOptions:
    """The settings of lm-eval."""

    num_fewshot: Annotated[int | None, _flag("--num_fewshot", "-f", help="Few-shot examples in the prompt.")] = None
    batch_size: Annotated[str | None, _flag("--batch_size", "-b", help="A number, auto or auto:N.  [1]")] = None
    max_batch_size: Annotated[int | None, _flag("--max_batch_size", help="Largest batch auto tries.")] = None
    device: Annotated[str | None, _flag("--device", help="cpu, cuda:0, ...  [first GPU, else cpu]")] = None
    limit: Annotated[
        float | None,
        _flag("--limit", "-L", help="Use only the first documents of each task: a number, or a fraction below 1."),
    ] = None
    samples: Annotated[
        str | None, _flag("--samples", "-E", help="Documents by task, as JSON or a JSON file; excludes --limit.")
    ] = None
    include_path: Annotated[list[str] | None, _flag("--include_path", help="Folder of task files.")] = None
    seed: Annotated[
        str | None, _flag("--seed", help="One number, or four: python,numpy,torch,fewshot.  [0,1234,1234,1234]")
    ] = None
    gen_kwargs: Annotated[list[str] | None, _flag("--gen_kwargs", help="Generation options, key=value.")] = None
    apply_chat_template: Annotated[
        bool, _flag("--apply_chat_template", help="Wrap prompts in the model's chat template.")
    ] = False
    chat_template_name: Annotated[
        str | None, _flag("--chat_template_name", help="Which of the model's chat templates.")
    ] = None
    fewshot_as_multiturn: Annotated[
        bool | None,
        typer.Option(
            "--fewshot_as_multiturn/--no_fewshot_as_multiturn",
            "--fewshot-as-multiturn/--no-fewshot-as-multiturn",
            help="Format few-shot examples as chat turns.",
        ),
    ] = None
    system_instruction: Annotated[str | None, _flag("--system_instruction", help="System prompt.")] = None
    predict_only: Annotated[bool, _flag("--predict_only", "-x", help="Store answers, compute no metrics.")] = False
    trust_remote_code: Annotated[
        bool, _flag("--trust_remote_code", help="Run remote code of models and data sets.")
    ] = False
    confirm_run_unsafe_code: Annotated[
        bool, _flag("--confirm_run_unsafe_code", help="Run Python in task files and code generated by models.")
    ] = False
    metadata: Annotated[list[str] | None, _flag("--metadata", help="key=value metadata for tasks that need it.")] = None

    @property
    def code(self) -> dict[str, bool]:
        """What a file cannot allow: code of others that is run."""
        names = ("trust_remote_code", "confirm_run_unsafe_code")
        return {name: getattr(self, name) for name in names}

    def content(self) -> dict[str, Any]:
        """Return the settings that are given, as a plan has them."""
        content = {
            **vars(self),
            "apply_chat_template": self.chat_template_name or self.apply_chat_template or None,
            "predict_only": self.predict_only or None,
        }
        for name in ("chat_template_name", *self.code):
            del content[name]
        if (samples := self.samples) is not None:
            if not samples.lstrip().startswith("{"):
                samples = read_text(Path(samples), samples)
            content["samples"] = parse_json(samples, "--samples")
        for name in ("gen_kwargs", "metadata"):
            if content[name] is not None:
                content[name] = parse_pairs(content[name], f"--{name}")
        return {name: value for name, value in content.items() if value is not None}


@dataclass(frozen=True)
class ModelOptions:
    """One model, as commands take it that do something else with it than this one."""

    model: Annotated[str, _flag("--model", "-M", help="As in densing eval: hf, or smollm2-135m.")] = "hf"
    model_args: ModelArgs = None

    def spec(self, problem: str) -> ModelSpec:
        """Return the model; the problem is said of several."""
        args = [self.model_args] if self.model_args else []
        plan = PlanOptions([self.model], args, ["none"]).load(VariantOptions(), HarnessOptions())
        if len(plan.models) != 1:
            raise InputError(problem)
        return plan.models[0]


@dataclass(frozen=True)
class StoppingOptions:
    """How certain a density is to be."""

    until_ci: Annotated[
        float | None,
        _flag(
            "--until_ci",
            help="Evaluate random items, in a few planned looks, until the half-width of ln density is below this "
            "(0.2: about 20 %). If the full sets cannot reach it, their interval is reported. With --bank items of the "
            "bank, until the whole interval is, or items no longer matter.",
        ),
    ] = None
    reference: o.Reference = "olmo-ladder"
    ci_of: Annotated[str, _flag("--ci_of", help="Target of --until_ci: the population of items, or this set.")] = (
        "population"
    )
    ci_from: Annotated[str, _flag("--ci_from", help="Quantity of --until_ci: loss or score.")] = "loss"


@dataclass(frozen=True)
class BankOptions:
    """A few items in place of all."""

    bank: Annotated[
        str | None,
        _flag("--bank", help="A bank of items (densing items): evaluate a few of each benchmark, estimate all."),
    ] = None
    items: Annotated[
        int, _flag("--items", min=1, help="Items of --bank, as many of each benchmark; with --until_ci at most.")
    ] = 100
    adaptive: Annotated[
        bool,
        _flag("--adaptive", help="Choose every ten items of --bank by the answers before; 100 at most."),
    ] = False
    params: Annotated[
        list[str] | None, _flag("--params", metavar="NAME=COUNT", help="Size of a model, for its density with --bank.")
    ] = None
    checkpoints: Annotated[
        Path | None,
        _flag(
            "--checkpoints",
            file_okay=False,
            help="A run's folder: evaluate each checkpoint in it (checkpoint-500, or models of a ladder) on items of "
            "--bank; the same command takes in new ones.",
        ),
    ] = None
    html: o.Html = None
    png: o.Png = None
    svg: o.Svg = None

    def models(self, plan: Plan) -> Plan:
        """Return the plan with the checkpoints as its models."""
        from densing.scores.density import checkpoint_folders

        if self.checkpoints is None:
            return plan
        if self.bank is None:
            raise InputError("--checkpoints without --bank; name the bank whose items the checkpoints answer")
        (base,) = plan.models
        if "pretrained" in base.args:
            raise InputError(f"--checkpoints {self.checkpoints} names the models; drop pretrained from --model_args")
        found = [
            replace(base, name=each.name, args={**base.args, "pretrained": str(each.path)})
            for each in checkpoint_folders(self.checkpoints)
        ]
        return replace(plan, models=tuple(found))

    def steps(self, models: list[dict[str, Any]], bank: ItemBank, reference: str, json: bool) -> dict[str, Any]:
        """Show a run's checkpoints, and return them as plain data; nothing without --checkpoints."""
        if self.checkpoints is None or not models:
            return {}
        from densing.scores.density import BankSteps

        steps = BankSteps.of(bank.name, reference, models)
        if pictures := Pictures(self.html, self.png, self.svg):
            from densing.plots import plot_bank_steps
            from densing.report import build_bank_steps

            pictures.write(lambda path: build_bank_steps(steps, path), lambda: plot_bank_steps(steps), steps.table)
        if not json:
            emit_table(steps.listing())
        return {"checkpoints": steps.table, "notes": list(steps.notes)}


@dataclass(frozen=True)
class ElsewhereOptions:
    """What lm-eval has options for and is done otherwise here."""

    output_path: Annotated[str | None, _elsewhere("--output_path", "results go into a store: --out FOLDER")] = None
    wandb_args: Annotated[
        str | None, _elsewhere("--wandb_args", "no uploads: use --json, or `densing results show RUN --json`")
    ] = None
    hf_hub_log_args: Annotated[
        str | None,
        _elsewhere("--hf_hub_log_args", "no uploads: --out holds lm-eval's own files"),
    ] = None
    wandb_config_args: Annotated[str | None, _elsewhere("--wandb_config_args", "no uploads: use --json")] = None
    trackio_args: Annotated[str | None, _elsewhere("--trackio_args", "no uploads: use --json")] = None
    config: Annotated[str | None, _elsewhere("--config", "models, tasks and settings are TOML: --plan FILE")] = None
    use_cache: Annotated[
        str | None, _elsewhere("--use_cache", "every answer is kept in --out, and asked no second time")
    ] = None
    cache_requests: Annotated[
        str | None, _elsewhere("--cache_requests", "requests are built anew, and only answers kept, in --out")
    ] = None
    verbosity: Annotated[str | None, _elsewhere("--verbosity", "it is -v, -vv or -q")] = None
    write_out: Annotated[bool, _elsewhere("--write_out", "prompts lie with the answers in --out (samples_*.jsonl)")] = (
        False
    )
    show_config: Annotated[
        bool, _elsewhere("--show_config", "each task's configuration lies in --out (results_*.json)")
    ] = False
    check_integrity: Annotated[
        bool, _elsewhere("--check_integrity", "--dry_run loads every task and says what is to do")
    ] = False
    log_samples: Annotated[bool, _flag("--log_samples", "-s", hidden=True, help="Samples are always stored.")] = False


_LISTS = {
    "--tasks", "-t", "--model_args", "--model-args", "-a", "--gen_kwargs", "--gen-kwargs", "--metadata",
}  # fmt: skip
"""Options of which lm-eval takes several values: ``--tasks piqa sciq``."""
_TRUTHS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def as_lm_eval(arguments: Sequence[str]) -> list[str]:
    """Return arguments in the forms that this program reads: one value for each option, or none.

    Examples
    --------
    >>> as_lm_eval(["--tasks", "piqa", "sciq", "--apply_chat_template", "rag", "--fewshot_as_multiturn", "false"])
    ['--tasks', 'piqa,sciq', '--apply_chat_template', '--chat_template_name', 'rag', '--no_fewshot_as_multiturn']
    """
    read, rest = list[str](), list(arguments)
    while rest:
        name = rest.pop(0)
        values = list(takewhile(lambda text: not text.startswith("-"), rest))
        option = name.replace("-", "_").removeprefix("__")
        if name in _LISTS and len(values) > 1:
            # JSON objects are read one by one.
            joined = values if any(text.lstrip().startswith("{") for text in values) else [",".join(values)]
            read += [part for text in joined for part in (name, text)]
            del rest[: len(values)]
        elif option == "apply_chat_template" and values:
            read += [name, "--chat_template_name", rest.pop(0)]
        elif option == "fewshot_as_multiturn" and values and values[0].lower() in _TRUTHS:
            read.append(name if _TRUTHS[rest.pop(0).lower()] else "--no_fewshot_as_multiturn")
        else:
            read.append(name)
    return read


@grouped()
def eval_(
    request: PlanOptions,
    *,
    out: Annotated[Path, _flag("--out", "-o", file_okay=False, help="Folder of the run: the store.")] = Path(
        "results/evals"
    ),
    variants: VariantOptions,
    harness: HarnessOptions,
    executor: Annotated[
        str | None, _flag("--executor", help="local, slurm, or another package's; default: this process.")
    ] = None,
    executor_arg: Annotated[
        list[str] | None, _flag("--executor_arg", help="key=value for the executor; may be repeated.")
    ] = None,
    devices: Annotated[
        int | None,
        _flag("--devices", min=0, help="GPUs of each job of --executor; default: as model_args say, else one or none."),
    ] = None,
    stopping: StoppingOptions,
    few: BankOptions,
    elsewhere: ElsewhereOptions,
    dry_run: Annotated[bool, _flag("--dry_run", help="List finished and remaining units, then exit.")] = False,
    json: o.JsonFlag = False,
) -> None:
    """Run benchmarks with lm-eval: same flags, same numbers, and nothing done twice.

    Each model × task is stored when done. The same command goes on after an interruption, and does nothing at the end.

    A plan file says models = [{model_args = "pretrained=models/a"}] and tasks = ["piqa", {name = "sciq", limit = 50}].

    Example: densing eval --model hf --model_args pretrained=models/a --tasks piqa,sciq --limit 200 --out results/mine

    Example: densing eval --model_args pretrained=models/a --bank suite.json --items 100 --out results/mine

    Example: densing eval --checkpoints runs/mine --bank suite.json --out results/mine --html mine.html
    """
    bank = None if few.bank is None else _bank_of_tasks(few.bank)
    ruled = stopping.until_ci is not None or few.adaptive
    if few.adaptive and bank is None:
        raise InputError("--adaptive without --bank; name the bank that items are chosen from")
    if bank is not None:
        if harness.limit is not None or harness.samples is not None:
            raise InputError("--bank chooses the items; drop --limit and --samples")
        if ruled and (request.tasks or request.plan):
            raise InputError("with --until_ci or --adaptive a bank chooses the tasks too; drop --tasks and --plan")
        if ruled:
            request = replace(request, tasks=list(dict.fromkeys(bank.items["task"].astype(str))))
        else:
            request, harness = _few_items(request, harness, bank, few.items)
    if few.checkpoints is not None:
        request = replace(request, model=request.model or ["hf"])
    plan = few.models(request.load(variants, harness))
    if dry_run:
        import pandas as pd

        from densing.scores.evals import survey_plan

        rows = survey_plan(plan, out)
        if json:
            emit_json({"run": str(out), "units": rows})
        else:
            title = f"{out}: {sum(row['state'] != 'done' for row in rows)} units to do"
            emit_table(listing_of(title, pd.DataFrame(rows)))
        return
    if ruled and executor is not None:
        raise InputError("--until_ci and --adaptive run in this process; drop --executor")
    try:
        if bank is not None and ruled:
            _evaluate_bank(plan, out, bank, few, stopping, json)
        elif stopping.until_ci is not None:
            _evaluate_until(plan, out, stopping, json)
        else:
            _evaluate(plan, out, executor, executor_arg or [], devices, json, bank, few, stopping.reference)
    except KeyboardInterrupt:
        raise StoppedError(f"stopped; the same command resumes from {out}") from None


eval_.reads = as_lm_eval  # type: ignore[attr-defined]


def numbers(text: str, option: str) -> list[int]:
    """Return whole numbers with commas.

    Examples
    --------
    >>> numbers("12,18", "exits")
    [12, 18]
    """
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"--{option} {text}: give comma-separated whole numbers, as in 12,18") from None


def _ways(entry: Any, axes: dict[str, list[int]], translators: str | None) -> Iterator[Any]:
    """Yield a plan's model once for each way to serve it."""
    from densing.scores.evals import variant_grid

    entry, args = _parts(entry)
    for variant in variant_grid(**axes):
        own = {name: value for name, value in vars(variant).items() if value is not None}
        way = {**args, **own}
        if translators is not None:
            if "exit" not in way:
                raise InputError(f"--translators {translators}: no exit uses them; add --exit LAYERS")
            way["translators"] = translators
        yield {**entry, "model_args": way}


def _parts(entry: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a plan's model as a table, and its arguments."""
    entry = dict(entry) if isinstance(entry, dict) else {"model": entry}
    args = entry.get("model_args", {})
    return entry, parse_pairs([args], "model_args") if isinstance(args, str) else args


def _bank_of_tasks(name: str) -> ItemBank:
    """Return a bank whose items are documents of tasks."""
    from densing.scores.items import ItemBank

    bank = ItemBank.load(name)
    places = bank.items["item"].astype(str).str.rpartition("/")
    named = places[0].eq(bank.items["task"].astype(str)) & places[2].str.isdecimal()
    if not named.all():
        raise InputError(
            f"--bank {name}: item {bank.items['item'][~named].iloc[0]} is no document of a task of lm-eval; banks "
            "made from runs of densing eval or lm-eval's results can be evaluated (densing items calibrate)"
        )
    return bank


def _few_items(
    request: PlanOptions, harness: HarnessOptions, bank: ItemBank, count: int
) -> tuple[PlanOptions, HarnessOptions]:
    """Return a plan's tasks and settings with the items that a bank chooses."""
    import json as json_

    from densing.scores.density import choose_items

    samples: dict[str, list[int]] = {}
    for item in choose_items(bank, count, seed=0):
        task, _, document = item.rpartition("/")
        samples.setdefault(task, []).append(int(document))
    tasks = request.tasks or list(samples)
    return replace(request, tasks=tasks), replace(harness, samples=json_.dumps(samples))


def _of_bank(
    bank: ItemBank, store: RunStore, table: pd.DataFrame, few: BankOptions, reference: str, json: bool
) -> tuple[list[dict[str, Any]], list[Note]]:
    """Return each model's scores and densities from its answers to a bank's items, and show them."""
    from densing.scores.catalog import with_sizes
    from densing.scores.density import bank_measurements, density_listing, run_densities
    from densing.scores.items import answer_rows

    found, notes = list[dict[str, Any]](), list[Note]()
    chosen: Chosen = "adaptive" if few.adaptive else "stratified"
    sizes, known = o.parse_params(few.params or []), store.models()
    # Of the units of this plan alone: others of the store may hold the same items.
    items = store.items()
    rows = answer_rows(items[items["digest"].isin(table["digest"])])
    rows = rows[rows["item"].isin(bank.items["item"])]
    for model, answers in rows.groupby("model", sort=False):
        score = bank.estimate(answers, chosen=chosen)
        content: dict[str, Any] = {"model": model, **score.to_dict(), "scores": []}
        quiet = json or few.checkpoints is not None
        if not quiet:
            table_of = score.listing(bank.name)
            emit_table(table_of, f"{model}: {table_of.title}")
        try:
            measured = bank_measurements(bank, answers, chosen=chosen)
            content["scores"] = measured.measurements
            notes += measured.notes
            mine = {name: size for name, size in sizes.items() if name == model or str(model).endswith(f"/{name}")}
            models, told = with_sizes(known[known["model"].eq(model)], mine)
            densities = run_densities(measured.measurements, models, reference)
        except InputError as error:
            notes.append(Note("no-density", "warning", f"{model}: no density: {error}", {"model": model}))
        else:
            notes += [*told, *densities.notes]
            content["densities"] = densities.table
            if not quiet:
                emit_table(density_listing(densities.table, f"Density against {reference}, from the bank"))
        found.append(content)
    return found, notes


def _evaluate(
    plan: Plan,
    out: Path,
    executor: str | None,
    arguments: list[str],
    devices: int | None,
    json: bool,
    bank: ItemBank | None,
    few: BankOptions,
    reference: str,
) -> None:
    from densing.jobs import get_executor
    from densing.scores.evals import RunStore, run_plan

    if arguments and executor is None:
        raise InputError("--executor_arg without --executor; name one, e.g. --executor local")
    workers = None if executor is None else get_executor(executor, **parse_pairs(arguments, "--executor_arg"))
    with bar(json) as progress:
        summary = run_plan(plan, out, executor=workers, devices=devices, progress=progress)
    digests = {unit.digest for unit in summary.units if unit.state != "failed"}
    measured = RunStore(summary.folder).measurements() if digests else None
    table = None if measured is None else measured[measured["digest"].isin(digests)]
    by_bank: dict[str, Any] = {}
    notes: list[Note] = []
    if bank is not None and table is not None and len(table):
        models, notes = _of_bank(bank, RunStore(summary.folder), table, few, reference, json)
        steps = few.steps(models, bank, reference, json)
        notes += steps.pop("notes", [])
        by_bank = {"bank": bank.name, "models": models, **steps}
    if json:
        emit_json({**summary.to_dict(), "measurements": [] if table is None else table, **by_bank}, notes)
    else:
        if table is not None and len(table) and few.checkpoints is None:
            unfiltered = table["filter"].isin(["none", ""])
            metrics = table["metric"].where(unfiltered, table["metric"] + " (" + table["filter"] + ")")
            emit_table(listing_of(f"{summary.folder}", table.assign(metric=metrics)[SHOWN]))
        show_notes((*summary.notes, *notes))
        say("\n".join(_sentences(summary)))
    if summary.failed:
        raise typer.Exit(1)


def _evaluate_bank(
    plan: Plan, out: Path, bank: ItemBank, few: BankOptions, stopping: StoppingOptions, json: bool
) -> None:
    """Evaluate items of a bank until its rule stops: chosen adaptively, or until the density is known well enough."""
    from densing.scores.density import BankLook, BankRule
    from densing.scores.evals import RunStore, run_until

    left = list[float]()

    def make(benchmarks: Any, sizes: Any) -> BankRule:
        rule = BankRule.of(
            bank, sizes, count=few.items, chosen="adaptive" if few.adaptive else "stratified",
            target=stopping.until_ci, reference=stopping.reference,
        )  # fmt: skip
        if rule.reading is not None and not left:
            left.append(rule.reading.total().recipe)
            say(
                f"--until_ci {rule.reading.target:g} is of the whole interval; the reference and the scatter of models "
                f"leave ln density ± {left[0]:.2g} at its middle size, however many items are evaluated"
            )
        return rule

    with bar(json) as progress:
        stopped = run_until(plan, out, make, quantity="answer", progress=progress)
    store, units = RunStore(out), [unit for one in stopped for unit in one.units]
    measured = store.measurements()
    table = measured[measured["digest"].isin({unit.digest for unit in units})]
    models, notes = _of_bank(bank, store, table, few, stopping.reference, json)
    steps = few.steps(models, bank, stopping.reference, json)
    notes += [*steps.pop("notes", []), *(note for one in stopped for note in one.notes)]
    if json:
        by_model = {one.model: one.to_dict()["decision"] for one in stopped}
        models = [{**content, "decision": by_model.get(content["model"])} for content in models]
        requests, seconds = sum(unit.requests for unit in units), sum(one.seconds for one in stopped)
        content = {"run": str(out), "units": [unit.to_dict() for unit in units], "requests": requests}
        emit_json({**content, "seconds": seconds, "bank": bank.name, "models": models, **steps}, notes)
    else:
        show_notes(notes)
        say("\n".join(sentences(stopped, out)))
        totals = [(one.model, one.look.total) for one in stopped if isinstance(one.look, BankLook)]
        say("\n".join(f"{model}: {total.sentence}" for model, total in totals if total is not None))


def _evaluate_until(plan: Plan, out: Path, stopping: StoppingOptions, json: bool) -> None:
    """Evaluate until the interval of ln density is narrow enough, and say what that took."""
    from densing.scores.density import Decision, StoppingRule, rule_for
    from densing.scores.evals import run_until

    quantity = stopping.ci_from
    if quantity not in ("loss", "score"):
        raise InputError(f"--ci_from {quantity}: choose loss or score")

    rules: list[StoppingRule] = []

    def make(benchmarks: Any, sizes: Any) -> StoppingRule:
        options: dict[str, Any] = {"target": stopping.until_ci, "covers": stopping.ci_of}
        rules.append(rule_for(stopping.reference, benchmarks, sizes, quantity=quantity, **options))
        if len(rules) == 1:
            left = rules[0].total().reference
            say(
                f"--until_ci {stopping.until_ci:g} is of the items; the reference leaves ln density ± {left:.2g} at "
                "its middle size, however many items are evaluated. Pairs are known better: densing compare"
            )
        return rules[-1]

    with bar(json) as progress:
        stopped = run_until(plan, out, make, quantity=quantity, progress=progress)
    # A rule is made for each model, in order.
    totals = [
        rule.total(one.look) if isinstance(one.look, Decision) else None
        for rule, one in zip(rules, stopped, strict=True)
    ]
    if json:
        emit_json(
            {
                "run": str(out),
                "models": [{**one.to_dict(), "total": total} for one, total in zip(stopped, totals, strict=True)],
            },
            [n for one in stopped for n in one.notes],
        )
    else:
        say("\n".join(sentences(stopped, out)))
        pairs = zip(stopped, totals, strict=True)
        say("\n".join(f"{one.model}: {total.sentence}" for one, total in pairs if total is not None))
        show_notes(note for one in stopped for note in one.notes)


@contextmanager
def bar(quiet: bool) -> Iterator[Callable[[Progress], object]]:
    """Yield a listener that draws one bar with the time left over the whole plan; nothing when not on a terminal."""

    with timed_bar(quiet, "looking at models and tasks") as show:
        yield lambda progress: show(describe(progress), progress.done, progress.total or None)


def describe(progress: Progress) -> str:
    """Return one line on what is being evaluated.

    Examples
    --------
    >>> from densing.scores.evals import Progress
    >>> describe(Progress("tiny", "piqa", 10, 40, 1, 4))
    '1/4 tiny piqa'
    """

    unit = f"{progress.model} {progress.task or 'loading'}" if progress.model else ""
    return visible(f"{progress.units_done}/{progress.units} {unit}".strip())


def _sentences(summary: RunSummary) -> Iterator[str]:
    counts = {state: sum(unit.state == state for unit in summary.units) for state in STATES}
    if counts["skipped"] == len(summary.units):
        yield f"nothing to do: all {len(summary.units)} units are in {summary.folder}"
        return
    states = ", ".join(f"{number} {state}" for state, number in counts.items() if number)
    yield f"{states}; {summary.requests} model requests in {summary.seconds:.1f} s; stored in {summary.folder}"
    for unit in summary.failed:
        yield f"failed: {unit.model}, {unit.task}: {unit.error}"


def sentences(stopped: Sequence[Stopped], out: Path) -> Iterator[str]:
    """Yield what became of each model: the interval reached, the items, and the time they took of what all would have.

    Examples
    --------
    >>> from densing.scores.evals import Stopped
    >>> list(sentences([Stopped("tiny", (), None, 120, 4000, 0.0, float("nan"))], Path("results/a")))
    ['tiny: nothing to do, 120 of 4000 items are in results/a']
    """
    for one in stopped:
        if math.isnan(one.spared):
            decision = "" if one.look is None else f": {one.look.message}"
            yield f"{one.model}: nothing to do, {one.items} of {one.full} items are in {out}{decision}"
            continue
        assert one.look is not None
        full = one.seconds + one.spared
        yield (
            f"{one.model}: {one.look.message}; {one.items / one.full:.0%} of {one.full} items, "
            f"{one.seconds:.0f} s where all would take about {full:.0f} s; stored in {out}"
        )
