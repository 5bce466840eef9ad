"""``densing refs``: list, inspect and refit the shipped references."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from densing.cli import options as o
from densing.cli.output import emit_json, emit_table, progress, save, say, show_notes
from densing.core import DensingError, formatting, listing_of

if TYPE_CHECKING:
    from densing.scores.references import Reference

app = typer.Typer(
    no_args_is_help=True,
    help="Reference families, which convert scores into effective parameters.\n\nExample: densing refs list",
)


@app.command("list")
def list_refs(json: o.JsonFlag = False, out: o.Out = None) -> None:
    """List the reference families and the benchmarks each is fitted on.

    Example: densing refs list
    """
    import pandas as pd

    from densing.scores.catalog import load_catalog
    from densing.scores.joint import catalog_cells, joint_baskets
    from densing.scores.references import available_benchmarks, family_names, get_family

    families = [get_family(name) for name in family_names()]
    # The first is the general ability, which other references call the mean.
    joint = ["mean", *list(joint_baskets(catalog_cells(load_catalog(), "none")))[1:]]
    rows = [
        {
            "reference": family.name,
            "kind": family.kind,
            "title": family.title,
            "benchmarks": joint if family.kind == "joint" else available_benchmarks(family.name),
            "about": family.about,
        }
        for family in families
    ]
    table = pd.DataFrame(rows)
    flat = table.assign(benchmarks=[", ".join(names) or "none published" for names in table["benchmarks"]])
    save(flat, table, out)
    if json:
        emit_json(table)
    else:
        emit_table(listing_of("Reference families", flat[["reference", "kind", "title", "benchmarks"]]))


@app.command("show")
def show_ref(
    reference: Annotated[str, typer.Argument(help="Family name, or a fit written by `densing fit --out`.")],
    benchmark: o.Benchmark = "mean",
    diagnostics: Annotated[
        bool, typer.Option("--diagnostics", help="Bounds, conditioning, influence of each point.")
    ] = False,
    json: o.JsonFlag = False,
) -> None:
    """Show a reference: how it was measured, law, parameters with intervals, points, a ladder's held-out misses.

    Example: densing refs show olmo-ladder --benchmark hellaswag
    """
    import pandas as pd

    from densing.scores.references import get_family, ladder_misses, load_reference, points_listing

    ref = load_reference(reference, benchmark)
    # Only the OLMo ladder holds models out whose authors predicted them.
    misses = ladder_misses(ref.fit, ref.benchmarks) if ref.name == "olmo-ladder" else None
    extra = _diagnostics(ref) if diagnostics else {}
    payload = {
        **ref.describe(),
        "about": "" if reference.endswith(".json") else get_family(reference).about,
        "source": ref.fit.law.source,
        "intervals": ref.fit.intervals(),
        "points": ref.points,
        "status": ref.fit.status,
        "objective": ref.fit.objective,
        "options": ref.fit.options,
        "licence": ref.fit.meta.get("licence"),
        "misses": misses,
        "diagnostics": extra,
        "notes": list(ref.notes),
    }
    if json:
        emit_json(payload)
        return
    say(f"{ref.title}\n{payload['about']}")
    say(f"{ref.fit.law.equation}\nmeasured by {ref.evaluator or 'the family itself'}: {', '.join(ref.benchmarks)}")
    protocols = [{"benchmark": name, **ref.protocol(name).to_dict()} for name in ref.benchmarks]
    emit_table(listing_of("How the family was measured", pd.DataFrame(protocols)))
    emit_table(ref.fit.listing())
    emit_table(points_listing(ref), "Points")
    if misses is not None:
        emit_table(listing_of("Held-out models: our prediction and the authors'", misses, params=formatting.size))
    for title, table in extra.items():
        emit_table(listing_of(title, table))
    show_notes(ref.notes)


@app.command("build")
def build(
    names: Annotated[list[str] | None, typer.Argument(help="Families to refit; default: all.")] = None,
    out: Annotated[Path, typer.Option("--out", "-o", file_okay=False, help="Folder for the JSON fits.")] = Path(
        "reference_fits"
    ),
    json: o.JsonFlag = False,
) -> None:
    """Refit the shipped references from the embedded catalog and ladder table.

    Example: densing refs build qwen1.5 --out /tmp/fits
    """
    from densing.scores.catalog import load_catalog
    from densing.scores.references import build_all

    written = []
    with progress(quiet=json) as step:
        for number, (name, benchmark, path) in enumerate(build_all(load_catalog(), out, tuple(names or ()))):
            step(f"{name} {benchmark}", min(number / 50, 1.0))
            written.append({"reference": name, "benchmark": benchmark, "path": str(path)})
    if json:
        emit_json(written)
    else:
        say(f"wrote {len(written)} fits below {out}")


def _diagnostics(reference: Reference) -> dict[str, Any]:
    import pandas as pd

    from densing.scores.fit import bounds_table, conditioning, influence

    try:
        condition = pd.DataFrame({"condition_number": [conditioning(reference.fit)]})
        return {"bounds": bounds_table(reference.fit), "influence": influence(reference.fit), "conditioning": condition}
    except DensingError as error:
        return {"diagnostics": pd.DataFrame({"not available": [str(error)]})}
