"""From ``--include`` to a selection of models."""

from __future__ import annotations

from densing.core import UnknownNameError
from densing.scores.catalog import Selection

WIDENINGS = ("continued", "compressed", "instruct", "moe", "domain", "unverified")


def selection_of(include: list[str] | None) -> Selection:
    """Return the headline selection widened by the named kinds of models.

    Examples
    --------
    >>> selection_of(["moe"]).architectures
    ('dense', 'moe')
    """
    names = set(include or [])
    for name in sorted(names):
        if name not in WIDENINGS:
            raise UnknownNameError("--include", name, WIDENINGS)
    usual = Selection()
    kinds = tuple(kind for kind in ("continued", "compressed", "instruct") if kind in names)
    made = {
        "continued": ("continued", "long_context", "upscaled", "upcycled"),
        "compressed": ("pruned", "pruned+distilled", "quantised"),
        "instruct": ("instruct_tuned",),
    }
    return Selection(
        kinds=usual.kinds + kinds,
        architectures=usual.architectures + (("moe",) if "moe" in names else ()),
        domains=usual.domains + (("code", "math") if "domain" in names else ()),
        derivations=usual.derivations + tuple(d for kind in kinds for d in made[kind]),
        verified_only="unverified" not in names,
    )
