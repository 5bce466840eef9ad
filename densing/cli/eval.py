"""``densing eval``: benchmarks run by lm-eval, every finished unit kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from densing.cli import options as o
from densing.cli import until as u

if TYPE_CHECKING:
    import pandas as pd

    from densing.scores.evals import Plan, Progress, RunSummary

SHOWN = ["model", "task", "metric", "value", "stderr", "n_items", "unit"]
STATES = ("evaluated", "resumed", "skipped", "failed")


def _flag(*names: str, **options: Any) -> Any:
    # lm-eval writes underscores; dashes are accepted too.
    spellings = [*names, *(f"--{name[2:].replace('_', '-')}" for name in names if "_" in name)]
    return typer.Option(*spellings, **options)


def _elsewhere(name: str, instead: str) -> Any:
    """Declare an option of lm-eval that is done otherwise here, so that it says how."""

    def refuse(value: str | None) -> None:
        if value is not None:
            raise typer.BadParameter(f"{name} is lm-eval's; here {instead}")

    return _flag(name, hidden=True, callback=refuse)


def eval_(
    model: Annotated[
        list[str] | None,
        _flag("--model", "-M", help="lm-eval model type (hf, vllm, local-completions, ...) or smollm2-135m.  [hf]"),
    ] = None,
    model_args: Annotated[
        list[str] | None,
        _flag("--model_args", "-a", help="key=value,key2=value2 or JSON. Repeat with --model for several models."),
    ] = None,
    tasks: Annotated[
        list[str] | None, _flag("--tasks", "-t", help="Tasks, groups, patterns or YAML files, with commas.")
    ] = None,
    plan: Annotated[
        Path | None, _flag("--plan", help="Models, tasks and settings as TOML; flags given here beat it.")
    ] = None,
    out: Annotated[Path, _flag("--out", "-o", file_okay=False, help="Folder of the run: the store.")] = Path(
        "results/evals"
    ),
    num_fewshot: Annotated[int | None, _flag("--num_fewshot", "-f", help="Examples in the prompt.")] = None,
    batch_size: Annotated[str | None, _flag("--batch_size", "-b", help="A number, auto or auto:N.  [1]")] = None,
    max_batch_size: Annotated[int | None, _flag("--max_batch_size", help="Largest batch auto tries.")] = None,
    device: Annotated[str | None, _flag("--device", help="cpu, cuda:0, ...  [first GPU, else cpu]")] = None,
    limit: Annotated[
        float | None, _flag("--limit", "-L", help="First documents of each task: a number, or a share below 1.")
    ] = None,
    samples: Annotated[
        str | None, _flag("--samples", "-E", help="Documents by task, as JSON or a JSON file; excludes --limit.")
    ] = None,
    include_path: Annotated[list[str] | None, _flag("--include_path", help="Folder of task files.")] = None,
    seed: Annotated[
        str | None, _flag("--seed", help="One number, or four: python,numpy,torch,fewshot.  [0,1234,1234,1234]")
    ] = None,
    gen_kwargs: Annotated[list[str] | None, _flag("--gen_kwargs", help="Generation options, key=value.")] = None,
    apply_chat_template: Annotated[
        bool, _flag("--apply_chat_template", help="Wrap prompts in the model's chat template.")
    ] = False,
    chat_template_name: Annotated[
        str | None, _flag("--chat_template_name", help="Which of the model's chat templates.")
    ] = None,
    fewshot_as_multiturn: Annotated[
        bool | None,
        typer.Option(
            "--fewshot_as_multiturn/--no_fewshot_as_multiturn",
            "--fewshot-as-multiturn/--no-fewshot-as-multiturn",
            help="Examples as turns of the chat.",
        ),
    ] = None,
    system_instruction: Annotated[str | None, _flag("--system_instruction", help="System prompt.")] = None,
    predict_only: Annotated[bool, _flag("--predict_only", "-x", help="Store answers, compute no metrics.")] = False,
    trust_remote_code: Annotated[
        bool, _flag("--trust_remote_code", help="Let code of models and data sets from outside run.")
    ] = False,
    confirm_run_unsafe_code: Annotated[
        bool, _flag("--confirm_run_unsafe_code", help="Let Python in task files run, and code that models write.")
    ] = False,
    metadata: Annotated[list[str] | None, _flag("--metadata", help="key=value for tasks that need it.")] = None,
    executor: Annotated[
        str | None, _flag("--executor", help="local, slurm, or another package's; this process when left out.")
    ] = None,
    executor_arg: Annotated[
        list[str] | None, _flag("--executor_arg", help="key=value for the executor; may be repeated.")
    ] = None,
    until_ci: u.UntilCi = None,
    reference: o.Reference = "olmo-ladder",
    ci_of: u.CiOf = "population",
    ci_from: u.CiFrom = "loss",
    output_path: Annotated[str | None, _elsewhere("--output_path", "results go into a store: --out FOLDER")] = None,
    wandb_args: Annotated[
        str | None, _elsewhere("--wandb_args", "nothing is sent anywhere: --json, or `densing results show RUN --json`")
    ] = None,
    hf_hub_log_args: Annotated[
        str | None,
        _elsewhere("--hf_hub_log_args", "nothing is sent anywhere: --out holds lm-eval's own files"),
    ] = None,
    dry_run: Annotated[bool, _flag("--dry_run", help="Say what is done and what is to do, and stop.")] = False,
    json: o.JsonFlag = False,
) -> None:
    """Run benchmarks with lm-eval: same flags, same numbers, and nothing done twice.

    Each model × task is stored when done. The same command goes on after an interruption, and does nothing at the end.

    A plan file says models = [{model_args = "pretrained=models/a"}] and tasks = ["piqa", {name = "sciq", limit = 50}].

    Example: densing eval --model hf --model_args pretrained=models/a --tasks piqa,sciq --limit 200 --out results/mine
    """
    given = {
        "num_fewshot": num_fewshot,
        "batch_size": batch_size,
        "max_batch_size": max_batch_size,
        "device": device,
        "limit": limit,
        "samples": samples,
        "include_path": include_path,
        "seed": seed,
        "gen_kwargs": gen_kwargs,
        "apply_chat_template": chat_template_name or (apply_chat_template or None),
        "fewshot_as_multiturn": fewshot_as_multiturn,
        "system_instruction": system_instruction,
        "predict_only": predict_only or None,
        "metadata": metadata,
    }
    code = {"trust_remote_code": trust_remote_code, "confirm_run_unsafe_code": confirm_run_unsafe_code}
    asked = asked_plan(model, model_args, tasks, plan, given, code)
    if dry_run:
        _show_survey(asked, out, json)
    elif until_ci is not None:
        u.evaluate_until(asked, out, u.Asked(until_ci, reference, ci_of, ci_from), executor, json)
    else:
        _report(_evaluate(asked, out, executor, executor_arg, quiet=json), json)


def asked_plan(
    model: list[str] | None,
    model_args: list[str] | None,
    tasks: list[str] | None,
    path: Path | None,
    given: dict[str, Any],
    code: dict[str, bool],
) -> Plan:
    """Return the plan that flags and file say together; flags win.

    Raises
    ------
    InputError
        When a flag or the file is wrong.
    """
    from densing.scores.evals import parse_pairs, plan_of, read_plan

    content = {} if path is None else read_plan(path)
    if model or model_args:
        content["models"] = _models(model or ["hf"], model_args or [])
    if tasks:
        content["tasks"] = list(dict.fromkeys(name for text in tasks for name in text.replace(",", " ").split()))
    for name, value in given.items():
        if value is None:
            continue
        if name in ("gen_kwargs", "metadata"):
            value = parse_pairs(value, f"--{name}")
        content[name] = _samples(value) if name == "samples" else value
    return plan_of(content, "command line" if path is None else str(path), **code)


def _models(types: list[str], args: list[str]) -> list[dict[str, Any]]:
    from densing.core import InputError
    from densing.scores.evals import parse_pairs

    if len(types) == 1:
        return [{"model": types[0], "model_args": parse_pairs(args, "--model_args")}]
    if len(types) != len(args):
        raise InputError(
            f"--model is given {len(types)} times and --model_args {len(args)} times; "
            "give them in pairs, or write a --plan"
        )
    return [{"model": t, "model_args": parse_pairs([a], "--model_args")} for t, a in zip(types, args, strict=True)]


def _samples(text: str) -> Any:
    from densing.core import read_text
    from densing.scores.evals import parse_json

    return parse_json(text if text.lstrip().startswith("{") else read_text(Path(text), text), "--samples")


def _evaluate(plan: Plan, out: Path, executor: str | None, arguments: list[str] | None, quiet: bool) -> RunSummary:
    from densing.cli.output import say
    from densing.core import InputError
    from densing.scores.evals import parse_pairs, run_plan

    if arguments and executor is None:
        raise InputError("--executor_arg without --executor; name one, e.g. --executor local")
    chosen = None
    if executor is not None:
        from densing.jobs import get_executor

        chosen = get_executor(executor, **parse_pairs(arguments or [], "--executor_arg"))
    try:
        with bar(quiet) as progress:
            return run_plan(plan, out, executor=chosen, progress=progress)
    except KeyboardInterrupt:
        say(f"stopped; the same command goes on from {out}")
        raise typer.Exit(130) from None


@contextmanager
def bar(quiet: bool) -> Iterator[Callable[[Progress], object]]:
    """Yield a listener that draws one bar with the time left over the whole plan; nothing when not on a terminal."""
    from densing.cli.output import timed_bar

    with timed_bar(quiet, "looking at models and tasks") as show:
        yield lambda progress: show(describe(progress), progress.done, progress.total or None)


def describe(progress: Progress) -> str:
    """Return one line on what is being evaluated.

    Examples
    --------
    >>> from densing.scores.evals.progress import Progress
    >>> describe(Progress("tiny", "piqa", 10, 40, 1, 4))
    '1/4 tiny piqa'
    """
    from densing.cli.output import visible

    doing = f"{progress.model} {progress.task or 'loading'}" if progress.model else ""
    return visible(f"{progress.units_done}/{progress.units} {doing}".strip())


def _report(summary: RunSummary, json: bool) -> None:
    from densing.cli.output import emit_json, emit_table, say, show_notes
    from densing.scores.evals import RunStore

    digests = {unit.digest for unit in summary.units if unit.state != "failed"}
    measured = RunStore(summary.folder).measurements() if digests else None
    table = None if measured is None else measured[measured["digest"].isin(digests)]
    if json:
        rows = [] if table is None else table
        emit_json({**summary.to_dict(), "measurements": rows})
    else:
        if table is not None and len(table):
            emit_table(_ordered(table), f"{summary.folder}")
        show_notes(summary.notes)
        say("\n".join(_sentences(summary)))
    if summary.failed:
        raise typer.Exit(1)


def _ordered(table: pd.DataFrame) -> pd.DataFrame:
    shown = table.copy()
    filtered = ~shown["filter"].isin(["none", ""])
    shown.loc[filtered, "metric"] = shown["metric"] + " (" + shown["filter"] + ")"
    return shown[SHOWN]


def _sentences(summary: RunSummary) -> Iterator[str]:
    counts = {state: sum(unit.state == state for unit in summary.units) for state in STATES}
    if counts["skipped"] == len(summary.units):
        yield f"nothing to do: all {len(summary.units)} units are in {summary.folder}"
        return
    said = ", ".join(f"{number} {state}" for state, number in counts.items() if number)
    yield f"{said}; {summary.requests} model requests in {summary.seconds:.1f} s; stored in {summary.folder}"
    for unit in summary.failed:
        yield f"failed: {unit.model}, {unit.task}: {unit.error}"


def _show_survey(plan: Plan, out: Path, json: bool) -> None:
    import pandas as pd

    from densing.cli.output import emit_json, emit_table
    from densing.scores.evals import survey_plan

    rows = survey_plan(plan, out)
    if json:
        emit_json({"run": str(out), "units": rows})
    else:
        emit_table(pd.DataFrame(rows), f"{out}: {sum(row['state'] != 'done' for row in rows)} units to do")
