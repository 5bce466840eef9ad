"""From the tasks of a run to the rule that may stop it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from densing.core import InputError
from densing.scores.density.runs import RUN_GUARD, ruler_benchmarks
from densing.scores.density.sequential import StoppingRule
from densing.scores.references import ladder_reference, load_reference, loss_ruler


def rule_for(
    reference: str,
    benchmarks: Mapping[str, str],
    sizes: Mapping[str, int],
    *,
    quantity: str = "loss",
    tokens: float | None = None,
    **options: Any,
) -> StoppingRule:
    """Return the rule for a set of tasks: on the ruler that :func:`run_densities` reads them with.

    Parameters
    ----------
    reference : str
        A family, or the path of a JSON fit.
    benchmarks : mapping of str
        Benchmark id of each task; tasks of benchmarks that the reference has no ruler for do not enter.
    sizes : mapping of int
        Items in the full set of each task.
    quantity : {"loss", "score"}
        What is inverted.
    tokens : float, optional
        D0 of a two-step reference.
    **options
        Of :class:`StoppingRule`; the guard is that of the densities of a run unless given.

    Raises
    ------
    InputError
        When the reference has a ruler for none of the tasks, or none on the mean over them.

    Examples
    --------
    >>> rule_for("olmo-ladder", {"mine": "piqa", "other": "sciq"}, {"mine": 1838, "other": 1000}).sizes
    {'mine': 1838}
    """
    known = ruler_benchmarks(reference)
    used = {task: name for task, name in benchmarks.items() if name in known}
    if not used:
        found = ", ".join(sorted({name or task for task, name in benchmarks.items()}))
        raise InputError(f"reference {reference} has no ruler for {found}; it has {', '.join(known)}")
    names = tuple(sorted(used.values()))
    if len(names) == 1:
        ruler = load_reference(reference, names[0], tokens=tokens)
    else:
        ruler = ladder_reference(reference, names, tokens=tokens)
    return StoppingRule(
        loss_ruler(ruler) if quantity == "loss" else ruler,
        {task: sizes[task] for task in used},
        **{"guard": RUN_GUARD, **options},
    )
