"""Schema of the catalog's tables: columns, units, ranges, vocabularies and keys.

The same declarations check the embedded files and a user's own.
"""

from __future__ import annotations

from densing.core import Column, Table

FORMS = ("cloze", "letters", "generate")
SIZED_KINDS = ("base", "continued", "compressed", "instruct")
KINDS = (*SIZED_KINDS, "closed")
ARCHITECTURES = ("dense", "moe")
LAYERS = ("attention", "hybrid", "state-space")
DOMAINS = ("general", "code", "math")
DERIVATIONS = (
    "scratch",
    "distilled",
    "continued",
    "long_context",
    "upscaled",
    "upcycled",
    "pruned",
    "pruned+distilled",
    "compressed",
    "quantised",
    "instruct_tuned",
    "checkpoint",
)
DATE_BASES = ("vendor", "paper", "tracker", "upload", "sibling", "unverified")
SKILLS = ("knowledge", "reasoning", "mathematics", "code", "language", "other")
SIZE_BASES = ("count", "second-hand", "label", "recalled")
PRECISIONS = ("day", "month")
ROLES = ("harness", "vendor", "collected", "user")
_BILLIONS = "billions: write 7 for 7e9 parameters"
ALSO: dict[str, tuple[str, ...]] = {
    "model": ("model name", "model id", "llm"),
    "params": ("parameters", "n params", "num params", "num parameters", "param count", "parameter count",
               "params count", "number of parameters", "model size", "size"),
    "released": ("release", "release date", "released on", "date released", "date of release"),
    "organisation": ("organization", "developer", "vendor"),
    "benchmark": ("task", "tasks", "dataset", "benchmark name"),
    "score": ("acc", "accuracy", "value", "result"),
    "shots": ("n shot", "n shots", "num fewshot", "few shot"),
    "items": ("n items", "num items", "n samples", "num samples"),
    "tokens": ("n tokens", "num tokens", "training tokens", "train tokens"),
    "loss": ("val loss", "valid loss", "validation loss", "eval loss", "test loss", "cross entropy"),
}  # fmt: skip
"""Other names of columns in the user's tables; case and separators do not matter."""
BENCHMARKS_ALSO: dict[str, tuple[str, ...]] = {
    "arc_challenge": ("arc c",),
    "arc_easy": ("arc e",),
    "bbh": ("big bench hard",),
    "commonsense_qa": ("csqa",),
    "openbookqa": ("obqa",),
    "truthfulqa": ("truthfulqa mc2",),
    "winogrande": ("wino",),
}
"""Other names of benchmarks, besides id and name."""


def size_column(name: str, meaning: str) -> Column:
    """Return a column of parameter counts in billions, with their range and what to write."""
    return Column(name, "number", meaning, low=1e-5, high=1e4, remedy=_BILLIONS, unit="billions")


def _text(name: str, meaning: str, **options: object) -> Column:
    return Column(name, "text", meaning, **options)  # type: ignore[arg-type]


_RELEASED = Column(
    "released",
    "date",
    "date on which the weights (otherwise the paper) were released",
    low="2018-01-01",
    remedy="give the day of the release as 2024-02-29 (or its month as 2024-02), between 2018-01-01 and today",
)
MODELS = Table(
    "models",
    (
        _text("model", "canonical name of the model", required=True),
        _text("family", "one generation of one vendor; the clusters of standard errors"),
        _text("organisation", "who trained it"),
        _RELEASED,
        _text("released_basis", "basis of the date", choices=DATE_BASES),
        _text("released_source", "source of the date, id#place"),
        size_column("params_label_b", "size according to the name, billions"),
        size_column("params_total_b", "total parameters including embeddings, billions"),
        size_column("params_active_b", "active parameters per token, billions"),
        size_column("params_non_embedding_b", "parameters without embeddings, billions"),
        _text("params_source", "source of total and active size, id#place"),
        _text(
            "params_basis",
            "basis of the size: published count, quoted count (second-hand), label in the name, or recalled",
            choices=SIZE_BASES,
        ),
        _text("non_embedding_source", "source of the size without embeddings, id#place"),
        Column(
            "tokens_t",
            "number",
            "training tokens, trillions",
            low=1e-6,
            high=1e3,
            remedy="trillions: write 15 for 15e12 tokens",
            unit="trillions",
        ),
        _text("tokens_source", "source of the tokens, id#place"),
        _text("architecture", "dense or mixture of experts", choices=ARCHITECTURES, default="dense"),
        _text(
            "kind",
            "base: trained from random initialisation; continued: trained from other weights; "
            "compressed; instruct; closed: size not published",
            choices=KINDS,
            default="base",
        ),
        _text("derivation", "how the weights were made", choices=DERIVATIONS),
        _text("derived_from", "parent model in this catalog"),
        _text("domain", "domain of the training text", choices=DOMAINS, default="general"),
        _text("licence", "licence tag of the weights, where known"),
        _text("in_paper", "where arXiv 2412.04315 mentions it: fig1, fig4, journal"),
        _text("notes", "anything a reader should know"),
        _text("layers", "token-mixing layers; blank if unknown, which is mostly attention", choices=LAYERS),
        _text(
            "released_precision",
            "whether the date is exact to the day, or the middle of a known month",
            choices=PRECISIONS,
            default="day",
        ),
    ),
    key=("model",),
)
SCORES = Table(
    "scores",
    (
        _text("model", "name of a model in the catalog", required=True),
        _text("benchmark", "id of a benchmark in the catalog", required=True),
        Column(
            "score",
            "number",
            "share of the full score, 0 to 1",
            required=True,
            low=0.0,
            high=1.0,
            remedy="write 0.45 for 45 %",
            unit="share",
        ),
        _text("metric", "metric"),
        Column("shots", "integer", "examples in the prompt", low=0, high=1000),
        Column("items", "integer", "number of test items, if it differs from the benchmark's", low=1),
        _text("evaluator", "who measured", default="user"),
        _text("series", "values are comparable only within a series"),
        _text("source", "source of the value, id#place"),
        Column("measured", "date", "date of the measurement"),
        _text("flags", "known problems, separated by ;"),
        _text("form", "cloze (text of an option), letters or generate", choices=FORMS),
        Column(
            "stated_se",
            "number",
            "standard error stated by the evaluator, in the unit of the score",
            low=1e-6,
            high=1.0,
            remedy="must be above 0: write 0.012, or half the width of a 95 % interval divided by 1.96",
        ),
    ),
    key=("model", "benchmark", "evaluator"),
)
BENCHMARKS = Table(
    "benchmarks",
    (
        _text("id", "short name used throughout", required=True),
        _text("name", "full name"),
        Column(
            "chance",
            "number",
            "chance score, the floor of the laws",
            required=True,
            low=0.0,
            high=1.0,
            remedy="write 0.25 for four options",
        ),
        _text("chance_source", "source of the floor, id#place"),
        Column("items", "integer", "size of the test set, for binomial noise", required=True, low=1),
        _text("items_source", "source of the size, id#place"),
        _text("skill", "skill that it measures", choices=SKILLS, default="other"),
        Column("scale", "flag", "whether it measures the capability of base models", default="true"),
        _text("protocol", "usual shots and metric"),
        _text("default_series", "default series"),
        _text("notes", "anything a reader should know"),
        _text("language", "ISO 639-1 code of the items' language, mul for a mixture", default="en"),
    ),
    key=("id",),
)
EVALUATORS = Table(
    "evaluators",
    (
        _text("id", "short name used throughout", required=True),
        _text("role", "own harness, vendor, collected from papers, or user", choices=ROLES, default="user"),
        _text("who", "who measured"),
        _text("harness", "software used"),
        Column(
            "preference", "integer", "priority; the lowest comes first if a series has several", low=0, default="1000"
        ),
        _text("notes", "anything a reader should know"),
        _text("organisation", "organisation that runs it, spelled as for models"),
    ),
    key=("id",),
)
SOURCES = Table(
    "sources",
    (
        _text("id", "short name used before # in every source column", required=True),
        _text("title", "title of the source"),
        _text("url", "where it is"),
        _text("commit", "git commit read"),
        _text("licence", "licence of the data"),
        _text("attribution", "who, title, licence, link, changes: as CC BY 4.0 asks"),
        _text("facts", "facts taken from it"),
        _text("paper", "paper to cite"),
    ),
    key=("id",),
)
PROTOCOLS = Table(
    "protocols",
    (
        _text("evaluator", "an evaluator in the catalog, a ladder or a harness", required=True),
        _text("benchmark", "benchmark or task; * matches anything", required=True),
        Column("shots", "integer", "examples in the prompt, if the score does not state them", low=0, high=1000),
        _text("form", "cloze: text of an option; letters: its letter; generate", choices=FORMS),
        _text("metric", "metric, if the score does not state it"),
        _text("normalisation", "divisor of an answer's log-likelihood"),
        _text("cot", "whether the answer follows a chain of thought", choices=("yes", "no")),
        _text("source", "document that states this", required=True),
    ),
    key=("evaluator", "benchmark"),
)
GROUPS = Table(
    "groups",
    (
        _text("group", "name of the group, in the plural", required=True),
        _text("family", "name of a family in the catalog", required=True),
        _text("reason", "how its members differ from the rest", required=True),
        _text("source", "source of that statement", required=True),
    ),
    key=("group", "family"),
)
