"""The reference families: whose sizes and scores make a ruler, and what is not published about the paper's own.

A one-step family is a set of catalog models of one recipe at several sizes; its scores come from one evaluator, the
first in the list that measured enough of them, and its targets are read from the same comparability series.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from densing.core import UnavailableError, UnknownNameError


@dataclass(frozen=True)
class Family:
    """A reference family.

    Parameters
    ----------
    name : str
        What ``--reference`` takes.
    title : str
        One line for people.
    kind : {"one-step", "two-step", "described"}
        Fitted as score in ln N, as loss in (N, D) then score in loss, or only described.
    models : tuple of str
        Catalog names of the members (empty for ladders with their own table).
    evaluators : tuple of str
        Preferred order; a ruler uses one.
    about : str
        Sizes, tokens, and what to know before using it.
    """

    name: str
    title: str
    kind: Literal["one-step", "two-step", "described"]
    models: tuple[str, ...] = ()
    evaluators: tuple[str, ...] = ()
    about: str = ""


def _sizes(prefix: str, *sizes: str) -> tuple[str, ...]:
    return tuple(f"{prefix}-{size}" for size in sizes)


_FAMILIES = (
    Family(
        "olmo-ladder",
        "OLMo ladder (190M to 1B fitted, 7B and 13B held out)",
        "two-step",
        about="16 runs, four sizes at 1, 2, 5 and 10 times Chinchilla tokens; bits per byte of the correct answer in "
        "N and D, then accuracy in bits per byte. Sizes are non-embedding counts. Five-shot cloze format with "
        "length-normalised "
        "accuracy, so MMLU is another measurement than the usual multiple-choice one.",
    ),
    Family(
        "densing-cpu",
        "Our own ladder (1.4k to 109k, generated text, trained on a CPU)",
        "two-step",
        about="Seven sizes times three seeds, each read at four token budgets from 0.3 to 1.6 million, on generated "
        "facts, bigrams, skip-bigrams and tables with Zipf tails; `densing ladder train --preset cpu` makes it again. "
        "Sizes are non-embedding counts. For checks whose answer is known beforehand, not for real language models.",
    ),
    Family(
        "pythia",
        "Pythia (70M to 12B, 0.3 T tokens)",
        "one-step",
        tuple(f"Pythia-{s}-deduped" for s in ("70M", "160M", "410M", "1B", "1.4B", "2.8B", "6.9B", "12B")),
        ("obsscaling",),
        "Same deduplicated data and order at every size. At chance on MMLU and near zero on GSM8K at every size.",
    ),
    Family(
        "qwen1.5",
        "Qwen1.5 dense base models (0.5B to 110B)",
        "one-step",
        _sizes("Qwen1.5", "0.5B", "1.8B", "4B", "7B", "14B", "32B", "72B", "110B"),
        ("obsscaling", "opencompass", "open_llm_leaderboard_v2", "qwen1.5_blog"),
        "The widest dense family measured under one protocol together with many 2023 and 2024 models.",
    ),
    Family(
        "qwen2.5",
        "Qwen2.5 dense base models (0.5B to 72B)",
        "one-step",
        _sizes("Qwen2.5", "0.5B", "1.5B", "3B", "7B", "14B", "32B", "72B"),
        ("swallow", "qwen2.5_blog"),
        "Measured beside models of 2024 and 2025.",
    ),
    Family(
        "llama",
        "Llama-1 and Llama-2 (7B to 70B)",
        "one-step",
        (*_sizes("Llama-1", "7B", "13B", "33B", "65B"), *_sizes("Llama-2", "7B", "13B", "70B")),
        ("obsscaling", "opencompass"),
        "Two generations on different token counts (1 to 2 T), so the points scatter around the curve more than those "
        "of a single recipe; no size below 7B, so small models are extrapolated.",
    ),
    Family(
        "densing-paper",
        "The Densing Law's own reference models (5M to 0.8B)",
        "described",
        about="Six sizes (5.2M, 31.5M, 106M, 245M, 477M and 828M non-embedding parameters), each at 10, 15, 20, 30, "
        "40 and 60 tokens per parameter on the MiniCPM-3-4B corpus, WSD schedule (arXiv 2412.04315v2, Table 1). The "
        "conditional losses of these models, the fitted a, alpha, b, beta and c, gamma, l, d, and the intercept of the "
        "trend are not published.",
    ),
)


def family_names() -> list[str]:
    """Return the names of all reference families, described ones included.

    See Also
    --------
    load_reference

    Examples
    --------
    >>> import densing
    >>> "qwen1.5" in densing.family_names()
    True
    """
    return [family.name for family in _FAMILIES]


def get_family(name: str) -> Family:
    """Return a reference family by name.

    Raises
    ------
    UnknownNameError
        When there is no such family.

    Examples
    --------
    >>> get_family("llama").evaluators
    ('obsscaling', 'opencompass')
    """
    for family in _FAMILIES:
        if family.name == name:
            return family
    raise UnknownNameError("reference", name, family_names())


def refuse_unpublished(family: Family) -> None:
    """Raise for a family that is known but cannot be fitted from anything published.

    Raises
    ------
    UnavailableError
        With what is missing and how to supply it.
    """
    if family.kind == "described":
        raise UnavailableError(
            f"reference {family.name!r} is described but has no published losses. {family.about} Supply them: "
            "`densing fit TABLE --law two-step --out ruler.json` on a CSV with columns params,tokens,loss,score, then "
            "`--reference ruler.json`."
        )
