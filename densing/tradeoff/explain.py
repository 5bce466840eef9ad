r"""On which items one model fails that another solves, in words: a sparse classifier over the stored items.

Of the items that B solves, those on which A fails are told from the others by the words and word pairs of their text
and by what is known of them (task, short fields of the document, length). The classifier is logistic with an L1
penalty, so that some dozens of weights are left; items may lie in several stores, between which only the features'
names, weights and gradients travel (proxCSL, :mod:`densing.efficiency.systems.prox_csl`). What it is worth is measured
on items held out; its stability is measured over resamples of the items, and only stable weights may be kept.

Source: for keeping what comes out again, Bach, "Bolasso", ICML 2008, and Meinshausen and Bühlmann, "Stability
selection", JRSS B 72 (2010).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from densing.core import (
    Array,
    Card,
    Field,
    InputError,
    Listing,
    Note,
    Readable,
    UnavailableError,
    UnknownNameError,
    column,
    formatting,
    install_command,
    named_seed,
    named_stream,
    numeric,
    of_part,
    once,
)

if TYPE_CHECKING:
    from densing.efficiency.systems import prox_csl

Among = Literal["solved", "all"]
AMONG: Mapping[Among, str] = {
    "solved": "of the items that B solves, those on which A fails",
    "all": "of all items, those that B solves and A does not",
}
STABLE = 0.8
"""Share of draws in which a weight keeps its sign, from which on it counts as stable."""
LEAST_ITEMS = 5
"""A word, or a field's value, that fewer items of a store hold is not a feature."""
FEWEST, HELD_OUT_FEWEST = 10, 5
"""Items of each class that a fit, and a test on held-out items, need at least."""
FOLDS, LAMBDAS, DECADES, PATIENCE = 5, 25, 2.5, 4
MOST_KINDS = 50
"""A field with more values than that does not name kinds of items."""
SLICES = ("A likely to fail", "A unlikely to fail")
# Metrics that say whether an item was solved, the first that both models have.
SOLVED = ("metric_accuracy", "metric_acc_norm", "metric_acc", "metric_exact_match", "metric_pass@1", "metric_em",
          "correct")  # fmt: skip
Step = Callable[[str, float], None]


@dataclass(frozen=True, repr=False)
class Explained(Readable):
    """Which items one model fails on and another solves.

    Parameters
    ----------
    a, b : str
        The models.
    among : {"solved", "all"}
        What is told apart (:data:`AMONG`).
    weights : pandas.DataFrame
        ``feature`` (``word: …``, ``task: …``, ``length: …`` or a field's name and value), ``weight`` (positive: A fails
        more often), ``stability`` (share of the draws with a weight of the same sign), ``stable``, ``items`` with the
        feature, ``fails`` (share of those on which A fails); the largest first.
    tasks : tuple of str
    items, fails : int
        Items told apart, and those on which A fails.
    held_out : int
        Items that took no part in the fit.
    auc, auc_lo, auc_hi : float
        Area under the receiver operating characteristic on held-out items with its interval; 0.5 is chance.
    level : float
        Of the interval.
    lam : float
        Penalty, chosen by cross-validation among those that leave at most so many weights.
    features : int
        Words, pairs and values there were to choose from.
    stores : tuple of str
        Each a partition; one, where the answers of A and B lie apart and had to be brought together.
    history, alphas : tuple of float
        Objective at the start and after each update, strength of the proximal term.
    bytes, bytes_draws, bytes_items, bytes_features : int
        What travelled between stores for the fit (names, solutions, weights, gradients), for the draws of stability,
        and what gathering the items as text, or as features (twelve bytes an entry), would have taken.
    slices : pandas.DataFrame
        Densities of both models on held-out items that the score puts among A's likely failures, and on the others:
        ``slice, model, benchmark, quantity, score, n_items, density, density_lo, density_hi, status``.
    notes : tuple of Note

    See Also
    --------
    explain_items : makes it.
    """

    a: str
    b: str
    among: Among
    weights: pd.DataFrame
    tasks: tuple[str, ...]
    items: int
    fails: int
    held_out: int
    auc: float
    auc_lo: float
    auc_hi: float
    level: float
    lam: float
    features: int
    stores: tuple[str, ...]
    history: tuple[float, ...]
    alphas: tuple[float, ...]
    bytes: int
    bytes_draws: int
    bytes_items: int
    bytes_features: int
    slices: pd.DataFrame
    notes: tuple[Note, ...] = ()

    @property
    def sentence(self) -> str:
        """What came out, in one sentence or two."""
        share = formatting.percentage(self.fails / self.items)
        stable = int(self.weights["stable"].sum())
        subject = f"{self.a} fails on {share} of {self.items} items" + (
            f" that {self.b} solves" if self.among == "solved" else f", and {self.b} solves those"
        )
        if not len(self.weights):
            return f"{subject}. No word and no field tells them apart."
        tell = "tells" if len(self.weights) == 1 else "tell"
        found = f"{formatting.plural(len(self.weights), 'weight')} {tell} them apart, {stable} of them stable"
        if math.isnan(self.auc):
            return f"{subject}. {found}; too few items are held out to say how well."
        worth = f"AUC on {self.held_out} held-out items {self.auc:.2f} ({self.auc_lo:.2f} to {self.auc_hi:.2f})"
        doubt = "" if self.auc_lo > 0.5 else ", which chance gives too"
        return f"{subject}. {found}; {worth}{doubt}."

    @property
    def moved(self) -> str:
        """What travelled, beside what gathering the items would have taken, in one sentence."""
        if len(self.stores) == 1:
            return "All items lie in one place: nothing had to travel, and the solution is that of all items."
        gathered = (
            f"{formatting.volume(self.bytes_items)} as text, {formatting.volume(self.bytes_features)} as features"
        )
        return (
            f"Between {len(self.stores)} stores {formatting.volume(self.bytes)} travelled for the fit and "
            f"{formatting.volume(self.bytes_draws)} for the stability; gathering the items takes {gathered}."
        )

    def weights_listing(self) -> Listing:
        """Return the weights, the largest first; stable ones are marked."""
        fields = (
            Field("Feature", column("feature", lambda value: formatting.clean(value, 120))),
            numeric("Weight", "weight", hint="Above 0: A fails more often"),
            numeric("Stability", "stability", formatting.percentage, hint="Draws in which it keeps its sign"),
            numeric("Items", "items", formatting.count, hint="That hold the feature"),
            numeric("A fails on", "fails", formatting.percentage, hint="Of those items"),
        )
        title = f"Told apart: {AMONG[self.among]}. Stable weights are emphasised."
        return Listing(title, self.weights, fields, "stable")

    def slices_listing(self) -> Listing:
        """Return the densities on either side of the score."""
        from densing.scores.density import DENSITY, INTERVAL, STATUS

        fields = (
            Field("Items", column("slice")),
            Field("Model", column("model")),
            Field("Benchmark", column("benchmark")),
            Field("By", column("quantity")),
            numeric("Value", "score", hint="Share solved, or bits per byte"),
            numeric("Number", "n_items", formatting.count),
            DENSITY,
            INTERVAL,
            STATUS,
        )
        return Listing("Densities on held-out items, by that score.", self.slices, fields)

    def card(self) -> Card:
        """Return what is shown: how well the items are told apart, then the weights."""
        facts = {"found": self.sentence, "penalty": formatting.number(self.lam), "features": str(self.features),
                 "moved": self.moved}  # fmt: skip
        return Card(f"Where {self.a} fails and {self.b} does not", facts, self.weights_listing(), self.notes)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return {"sentence": self.sentence} | {field.name: getattr(self, field.name) for field in fields(self)}


class Corpus(NamedTuple):
    """Items of one store that take part: features, whether A fails, and the rows they came from."""

    name: str
    rows: pd.DataFrame
    features: Any
    names: list[str]
    labels: Array


def explain_items(
    paths: Sequence[Path | str],
    *,
    model: str,
    against: str,
    nnz: int = 60,
    updates: int = 2,
    among: Among = "solved",
    held_out: float = 0.25,
    draws: int = 50,
    stable: bool = False,
    least: int = LEAST_ITEMS,
    reference: str = "olmo-ladder",
    params: Mapping[str, float] | None = None,
    level: float = 0.95,
    seed: int = 0,
    step: Step | None = None,
) -> Explained:
    """Say in words on which stored items one model fails that another solves.

    Parameters
    ----------
    paths : sequence of path
        Runs of ``densing eval`` or folders of lm-eval's results with samples. A store that holds the answers of both
        models is a partition of its own; the items of the others are brought together.
    model, against : str
        A, which fails, and B, which solves: names as ``densing results show`` gives them.
    nnz : int
        Maximum number of weights.
    updates : int
        Communication rounds between stores.
    among : {"solved", "all"}
        Whether the items on which A fails are told from the others that B solves, or from all others.
    held_out : float
        Share of the items that takes no part in the fit; which ones, only the item and the seed decide.
    draws : int
        Of the items anew, for the stability of the weights.
    stable : bool
        Fit anew with the features alone that keep their sign in :data:`STABLE` of the draws. The stability that is then
        given comes of as many draws more, in each of which every feature competes: those first kept by luck show it.
    least : int
        A word that fewer items of a store hold is not a feature.
    reference : str
        Reference of the densities above and below the score.
    params : mapping, optional
        Sizes of models by name, for the densities.
    level : float
        Of intervals.
    seed : int
    step : callable, optional
        Told a label and a share from time to time.

    Raises
    ------
    InputError
        Stores without texts or without both models, too few items of a kind, settings out of range.
    UnavailableError
        Without scikit-learn.

    Examples
    --------
    >>> import densing
    >>> densing.explain_items([], model="a", against="b")
    Traceback (most recent call last):
        ...
    densing.core.errors.InputError: no stores; give one or more runs of densing eval

    See Also
    --------
    read_results, run_densities
    """

    from densing.efficiency.simulation import ENTRY

    _check(paths, model, against, nnz, among, held_out, draws, level)
    tell = step or (lambda label, share: None)
    tell("reading items", 0.0)
    table, measured, notes = _answers([Path(path) for path in paths], model, against)
    chosen = table[table["b"]] if among == "solved" else table
    fails = (~chosen["a"] & chosen["b"]).to_numpy()
    held = np.array([_held_out(row, held_out, seed) for row in chosen.to_dict("records")], dtype=bool)
    _check_counts(fails, held, among, model, against)
    tell("features", 0.1)
    every = [_corpus(name, rows, least) for name, rows in table.groupby("store", sort=False)]
    position = {store.name: store for store in every}
    union, training, tested = _problem(chosen, fails, held, position)
    part = max(training.parts, key=lambda part: (not part.one_class, part.items))
    width = len(union.names)
    lam = _penalty(part, width, nnz, seed)
    tell("fit", 0.3)
    trained, lam, moved = _fit(training, width, lam, nnz, updates)
    tell("draws", 0.5)
    stability, moved_draws = _stability(training, trained.weights, lam, updates, range(draws), seed)
    if stable:
        support = np.flatnonzero(trained.weights[:width])
        kept = support[stability >= STABLE]
        again, lam, moved_again = _fit(training.only([*kept, width]), len(kept), lam, nnz, updates)
        trained = again._replace(weights=np.zeros(width + 1))
        trained.weights[[*kept, width]] = again.weights
        stability, moved_fresh = _stability(training, trained.weights, lam, updates, range(draws, 2 * draws), seed)
        moved, moved_draws = moved + moved_again, moved_draws + moved_fresh
        notes.append(Note("kept-stable", "info", f"{len(kept)} of {formatting.plural(len(support), 'weight')} kept "
                                                 f"their sign in {formatting.percentage(STABLE)} of {draws} draws and "
                                                 f"were fitted anew; stability is that of {draws} draws "
                                                 "more"))  # fmt: skip
    weights, intercept = trained.weights[:width], float(trained.weights[width])
    scores = tested.features[:, :width] @ weights + intercept
    auc, lo, hi = roc_auc(scores, tested.labels > 0, level)
    tell("densities", 0.9)
    shown = _weights(weights, stability, union.names, [*training.parts, tested])
    slices, doubts = _slices(table, position, union.names, weights, seed, held_out, measured, reference, params,
                             (model, against), level)  # fmt: skip
    notes += [*doubts, *_remarks(shown, trained.history, auc, lo, training, union.collisions, nnz)]
    others = [store for store in every if store.name != training.main_name]
    tell("done", 1.0)
    return Explained(
        a=model, b=against, among=among, weights=shown,
        tasks=tuple(sorted(chosen["task"].unique())), items=len(chosen), fails=int(fails.sum()),
        held_out=int(held.sum()), auc=auc, auc_lo=lo, auc_hi=hi, level=level, lam=lam, features=width,
        stores=tuple(position), history=trained.history, alphas=trained.alphas,
        bytes=moved + union.bytes, bytes_draws=moved_draws,
        bytes_items=int(sum(store.rows["bytes"].sum() for store in others)),
        bytes_features=int(sum(ENTRY * store.features.nnz for store in others)),
        slices=pd.DataFrame(slices), notes=tuple(once(notes)),
    )  # fmt: skip


def roc_auc(scores: Array, positive: Array, level: float = 0.95) -> tuple[float, float, float]:
    """Return the area under the ROC curve with its interval; NaN where either class has fewer than five items.

    Source: DeLong, DeLong and Clarke-Pearson, Biometrics 44 (1988), by the ranks of Sun and Xu, IEEE SPL 21 (2014); the
    interval is taken on the logit, where it keeps between 0 and 1.

    Parameters
    ----------
    scores : array of shape (n,)
    positive : array of shape (n,), of bool
    level : float

    Examples
    --------
    >>> tuple(round(end, 3) for end in roc_auc(np.arange(10.0), np.arange(10) % 3 == 0))
    (nan, nan, nan)
    >>> tuple(round(end, 3) for end in roc_auc(np.arange(20.0), np.arange(20) % 3 == 2))
    (0.5, 0.246, 0.754)
    """
    from scipy.stats import rankdata

    first, second = scores[positive], scores[~positive]
    m, n = len(first), len(second)
    if min(m, n) < HELD_OUT_FEWEST:
        return math.nan, math.nan, math.nan
    ranks = rankdata(np.r_[first, second])
    above = (ranks[:m] - rankdata(first)) / n
    below = 1 - (ranks[m:] - rankdata(second)) / m
    auc = float(above.mean())
    error = math.sqrt(above.var(ddof=1) / m + below.var(ddof=1) / n)
    if not 0 < auc < 1:
        return auc, auc, auc
    spread = NormalDist().inv_cdf((1 + level) / 2) * error / (auc * (1 - auc))
    middle = math.log(auc / (1 - auc))
    return auc, 1 / (1 + math.exp(spread - middle)), 1 / (1 + math.exp(-spread - middle))


def _check(
    paths: Sequence[Path | str], a: str, b: str, nnz: int, among: str, held_out: float, draws: int, level: float
) -> None:
    if not paths:
        raise InputError("no stores; give one or more runs of densing eval")
    if a == b:
        raise InputError(f"{a} against itself: it fails on nothing that it solves; name two models")
    if among not in AMONG:
        raise UnknownNameError("choice of items", among, AMONG)
    for name, value, low, high in (
        ("nnz", nnz, 1, 10_000), ("held_out", held_out, 0.05, 0.9), ("draws", draws, 2, 10_000),
        ("level", level, 0.5, 0.999),
    ):  # fmt: skip
        if not low <= value <= high:
            raise InputError(f"{name} is {value:g}; give from {low:g} to {high:g}")


def _check_counts(fails: Array, held: Array, among: Among, a: str, b: str) -> None:
    kinds = {f"on which {a} fails": fails, "others": ~fails}
    for kind, chosen in kinds.items():
        count = int((chosen & ~held).sum())
        if count < FEWEST:
            what = f"{AMONG[among]} (A = {a}, B = {b})"
            raise InputError(
                f"{what}: {count} items {kind} are left to learn from, and {FEWEST} are needed; evaluate both models "
                "on more items, or turn the question round"
            )


def _answers(paths: list[Path], a: str, b: str) -> tuple[pd.DataFrame, Any, list[Note]]:
    """Return a row per item that both models answered and whose text is stored, and what was measured."""

    from densing.scores.evals import read_results, read_texts

    results = {path: read_results(path) for path in paths}
    notes = [note for result in results.values() for note in result.notes]
    known = sorted({str(name) for result in results.values() for name in result.items.get("model", ())})
    for name in (a, b):
        if name not in known:
            raise UnknownNameError("model with stored items", name, known)
    answers, texts = [], []
    for path, result in results.items():
        documents, doubts = read_texts(path)
        notes += doubts
        texts.append(documents.assign(place=str(path)))
        both = {a, b} <= set(result.items["model"])
        answers.append(result.items.assign(place=str(path) if both else ""))
    items = pd.concat(answers, ignore_index=True)
    if (items["place"] == "").any() and items["model"].isin((a, b)).any():
        apart = sorted({str(path) for path, result in results.items() if len({a, b} & set(result.items["model"])) == 1})
        if apart:
            notes.append(
                Note("answers-apart", "info", f"{', '.join(apart)}: each holds the answers of one of the two models; "
                     "their items are brought together, and count as one store", {"stores": apart})
            )  # fmt: skip
    keys = ["task", "doc_id", "doc_hash"]
    rows, solved_by = [], {}
    for place, group in items[items["model"].isin((a, b))].groupby("place", sort=False):
        for task, of_task in group.groupby("task", sort=False):
            metric = _solved_metric(of_task, (a, b))
            if metric is None:
                continue
            solved_by[task] = metric.removeprefix("metric_")
            pairs = of_task[of_task["model"].eq(a)].merge(
                of_task[of_task["model"].eq(b)], on=keys, suffixes=("_a", "_b")
            )
            found = pairs[[*keys]].assign(
                a=pairs[f"{metric}_a"] >= 0.5,
                b=pairs[f"{metric}_b"] >= 0.5,
                store=place or "brought together",
            )
            rows.append(found[pairs[f"{metric}_a"].notna() & pairs[f"{metric}_b"].notna()])
    if not sum(map(len, rows)):
        raise InputError(f"no item was answered by both {a} and {b}; evaluate both on the same tasks")
    table = pd.concat(rows, ignore_index=True)
    twice = int(table.duplicated(keys).sum())
    if twice:
        notes.append(Note("items-twice", "info", f"{twice} items lie in several stores; each counts once, where it "
                          "was met first"))  # fmt: skip
    documents = pd.concat(texts, ignore_index=True).drop_duplicates(keys)
    table = table.drop_duplicates(keys).merge(documents.drop(columns="place"), on=keys, how="left")
    silent = int(table["text"].isna().sum())
    if silent:
        notes.append(Note("no-text", "warning", f"{silent} items have no text stored, and are left out"))
        table = table[table["text"].notna()].reset_index(drop=True)
    if table.empty:
        raise InputError(f"no item that both {a} and {b} answered has its text stored")
    metrics = ", ".join(f"{metric} ({count} tasks)" for metric, count in Counter(solved_by.values()).most_common())
    notes.append(Note("solved-by", "info", f"an item is solved where {metrics} is at least 0.5", solved_by))
    return table, (results, items), notes


def _solved_metric(items: pd.DataFrame, models: tuple[str, str]) -> str | None:
    for metric in SOLVED:
        if metric in items and all(items.loc[items["model"].eq(name), metric].notna().any() for name in models):
            return metric
    return None


def _held_out(row: Mapping[str, Any], share: float, seed: int) -> bool:
    return named_seed(seed, "held out", row["task"], str(row["doc_id"]), row["doc_hash"]) < share * 2**48


def _corpus(name: str, rows: pd.DataFrame, least: int) -> Corpus:
    """Return the features of a store's items, which each store makes for itself."""
    from scipy import sparse

    try:
        from sklearn.feature_extraction.text import CountVectorizer
    except ModuleNotFoundError as error:
        raise UnavailableError(f"explaining items needs scikit-learn; {install_command('explain')}") from error
    rows = rows.reset_index(drop=True)
    blocks, names = [], []
    try:
        counter = CountVectorizer(
            binary=True, ngram_range=(1, 2), token_pattern=r"(?u)\b\w+\b", min_df=min(least, len(rows))
        )
        blocks.append(counter.fit_transform(rows["text"]).astype(np.float64))
        names += [f"word: {word}" for word in counter.get_feature_names_out()]
    except ValueError:
        # No word is common enough: what is known of the items is left.
        pass
    facts: dict[str, list[int]] = {}
    values: dict[tuple[str, str], set[str]] = {}
    for row in rows.to_dict("records"):
        for field, value in row["fields"].items():
            values.setdefault((row["task"], field), set()).add(value)
    for number, row in enumerate(rows.to_dict("records")):
        length = len(row["text"].split())
        doubled = 1 << max(length.bit_length() - 1, 0)
        known = [f"task: {row['task']}", f"length: {doubled} to {2 * doubled - 1} words"]
        for field, value in row["fields"].items():
            # A field whose values hardly return is not a kind: an id, a title.
            if 1 < len(values[row["task"], field]) <= MOST_KINDS:
                known.append(f"{field}: {value}")
        for fact in dict.fromkeys(known):
            facts.setdefault(fact, []).append(number)
    common = {fact: numbers for fact, numbers in facts.items() if least <= len(numbers)}
    # A field may be called as ours are, or as another's feature: names are made one.
    taken = set(names)
    common = {fact: numbers for fact, numbers in common.items() if fact not in taken}
    if common:
        columns = np.repeat(np.arange(len(common)), [len(numbers) for numbers in common.values()])
        places = np.concatenate([np.array(numbers) for numbers in common.values()])
        blocks.append(sparse.coo_array((np.ones(len(places)), (places, columns)), shape=(len(rows), len(common))))
        names += list(common)
    if not names:
        raise InputError(
            f"{name}: no word and no field is held by {least} items; lower --least, or evaluate more items"
        )
    return Corpus(name, rows, sparse.csr_array(sparse.hstack(blocks)), names, np.zeros(len(rows)))


@dataclass(frozen=True)
class Training:
    """The partitions to learn from, an intercept's column behind the features; and which store is the main one."""

    parts: list[prox_csl.Part]
    main_name: str

    def holders(self) -> prox_csl.Here:
        """Return them as the updates ask for them, with a count of bytes of their own."""
        from densing.efficiency.systems import prox_csl

        return prox_csl.Here(self.parts)

    def only(self, columns: Sequence[int]) -> Training:
        """Return the same items with some of the features."""
        from densing.efficiency.systems import prox_csl

        parts = [prox_csl.Part(part.features[:, columns], part.labels) for part in self.parts]
        return Training(parts, self.main_name)


def _problem(
    chosen: pd.DataFrame, fails: Array, held: Array, stores: Mapping[str, Corpus]
) -> tuple[Any, Training, prox_csl.Part]:
    """Return the numbering of features, the partitions to learn from, and the held-out items."""
    from scipy import sparse as matrices

    from densing.efficiency.systems import prox_csl

    keys = ["task", "doc_id", "doc_hash"]
    learnt: list[tuple[str, Any]] = []
    tested: list[tuple[str, Any]] = []
    for name, store in stores.items():
        rows = (
            store.rows[keys]
            .reset_index(names="row")
            .merge(chosen[keys].assign(fails=fails, held=held), on=keys, how="inner")
        )
        for aside, target in ((False, learnt), (True, tested)):
            own = rows[rows["held"].eq(aside)]
            if len(own):
                features = store.features[own["row"].to_numpy()]
                target.append((name, prox_csl.Store(features, own["fails"].to_numpy(float), store.names)))
    # Names are agreed on by the stores that learn; the main one is the largest.
    learnt.sort(key=lambda pair: -len(pair[1].labels))
    union = prox_csl.unite([store for _, store in learnt])
    place = {name: number for number, name in enumerate(union.names)}

    parts = [prox_csl.Part(prox_csl.with_intercept(part.features), part.labels) for part in union.parts]
    blocks = []
    for _, store in tested:
        entries = matrices.coo_array(store.features)
        columns = np.array([place.get(name, -1) for name in store.names])[entries.col]
        kept = columns >= 0
        blocks.append(
            matrices.coo_array(
                (entries.data[kept], (entries.row[kept], columns[kept])), shape=(entries.shape[0], len(union.names))
            )
        )
    if blocks:
        labels = np.concatenate([store.labels for _, store in tested])
        test = prox_csl.Part(prox_csl.with_intercept(matrices.vstack(blocks)), labels)
    else:
        test = prox_csl.Part(prox_csl.with_intercept(matrices.csr_array((0, len(union.names)))), np.zeros(0))
    both = [number for number, part in enumerate(parts) if not part.one_class]
    return union, Training(parts, learnt[both[0] if both else 0][0]), test


def _penalties(lam: float, width: int) -> Array:
    """Return the penalty of each weight; the intercept behind them has none."""
    return np.r_[np.full(width, lam), 0.0]


def _penalty(part: prox_csl.Part, width: int, nnz: int, seed: int) -> float:
    """Return the penalty that predicts best in folds of the main store, of those that leave at most ``nnz`` weights."""
    from densing.efficiency.systems import prox_csl

    share = float(np.clip(part.labels.mean(), 1e-6, 1 - 1e-6))
    alone = np.r_[np.zeros(width), math.log(share / (1 - share))]
    largest = float(np.abs(part.gradient(alone)[1][:width]).max())
    lams = largest * 10 ** -np.linspace(0, DECADES, LAMBDAS)
    rows = part.features.tocsr()
    order = named_stream(seed, "folds").permutation(part.items)
    folds = []
    for fold in np.array_split(order, FOLDS):
        others = np.setdiff1d(order, fold)
        folds.append((prox_csl.Part(rows[others], part.labels[others]), prox_csl.Part(rows[fold], part.labels[fold])))
    folds = [(learnt, tested) for learnt, tested in folds if not learnt.one_class]
    weights, of_folds = alone, [alone] * len(folds)
    best, least, since = float(lams[0]), math.inf, 0
    for lam in lams:
        penalty = _penalties(lam, width)
        weights = prox_csl.minimise(part, penalty, start=weights, tol=1e-3).weights
        if np.count_nonzero(weights[:width]) > nnz:
            break
        of_folds = [
            prox_csl.minimise(learnt, penalty, start=last, tol=1e-3).weights
            for (learnt, _), last in zip(folds, of_folds, strict=True)
        ]
        loss = sum(tested.items * tested.gradient(last)[0] for (_, tested), last in zip(folds, of_folds, strict=True))
        best, least, since = (float(lam), loss, 0) if loss < least else (best, least, since + 1)
        # Smaller penalties only fit the folds closer from there on.
        if since == PATIENCE:
            break
    return best


def _fit(training: Training, width: int, lam: float, nnz: int, updates: int) -> tuple[Any, float, int]:
    """Return what the stores learn together, with the penalty raised while it leaves more weights than allowed."""
    from densing.efficiency.systems import prox_csl

    moved = 0
    while True:
        trained = prox_csl.train_csl(
            training.holders(), _penalties(lam, width), updates=updates, alpha="guarded", tol=1e-5
        )
        moved += trained.bytes
        if np.count_nonzero(trained.weights[:width]) <= nnz or not math.isfinite(lam):
            return trained, lam, moved
        lam *= 1.2


def _stability(
    training: Training, weights: Array, lam: float, updates: int, draws: range, seed: int
) -> tuple[Array, int]:
    """Return in which share of the draws each weight has the sign it has, and the bytes of all draws."""
    from densing.efficiency.systems import prox_csl

    support = np.flatnonzero(weights[:-1])
    agree, moved = np.zeros(len(support)), 0
    rows = [part.features.tocsr() for part in training.parts]
    for draw in draws:
        stream = named_stream(seed, "draw", str(draw))
        parts = []
        for part, features in zip(training.parts, rows, strict=True):
            own = stream.integers(part.items, size=part.items)
            parts.append(prox_csl.Part(features[own], part.labels[own]))
        drawn = prox_csl.train_csl(
            prox_csl.Here(parts), _penalties(lam, len(weights) - 1), updates=updates, alpha="guarded", start=weights,
            tol=1e-3,
        )  # fmt: skip
        moved += drawn.bytes
        agree += np.sign(drawn.weights[support]) == np.sign(weights[support])
    return agree / len(draws), moved


def _weights(weights: Array, stability: Array, names: list[str], parts: Sequence[prox_csl.Part]) -> pd.DataFrame:
    """Return the weights that are not zero, the largest first, with the items that hold each feature."""
    support = np.flatnonzero(weights)
    held, failed = np.zeros(len(support)), np.zeros(len(support))
    for part in parts:
        present = part.features[:, support] != 0
        held += np.asarray(present.sum(axis=0)).ravel()
        failed += present.T @ part.labels
    table = pd.DataFrame(
        {
            "feature": [names[number] for number in support],
            "weight": weights[support],
            "stability": stability,
            "stable": stability >= STABLE,
            "items": held.astype(int),
            "fails": failed / np.maximum(held, 1),
        }
    )
    return table.sort_values("weight", key=lambda column: -column.abs(), kind="stable", ignore_index=True)


def _slices(
    table: pd.DataFrame, stores: Mapping[str, Corpus], names: list[str], weights: Array, seed: int, held_out: float,
    measured: Any, reference: str, params: Mapping[str, float] | None, models: tuple[str, str], level: float,
) -> tuple[list[dict[str, Any]], list[Note]]:  # fmt: skip
    """Return densities of both models on the held-out items above and below the middle score of their task.

    All items that both answered take part, solved by B or not; what the classifier learnt from does not.
    """

    from densing.scores.catalog import with_sizes
    from densing.scores.density import run_densities

    keys = ["task", "doc_id", "doc_hash"]
    by_name = {name: weight for name, weight in zip(names, weights, strict=True) if weight}
    scored = []
    for store in stores.values():
        own = np.array([by_name.get(name, 0.0) for name in store.names])
        scored.append(store.rows[keys].assign(score=store.features @ own))
    scores = pd.concat(scored, ignore_index=True)
    scores = scores[[_held_out(row, held_out, seed) for row in scores.to_dict("records")]]
    # Ties stay together: where most items hold none of the words, the likely failures are fewer than half.
    likely = scores["score"] > scores.groupby("task")["score"].transform("median")
    scores = scores.assign(slice=np.where(likely, *SLICES))
    results, items = measured
    sizes, notes = with_sizes(pd.concat([result.models for result in results.values()], ignore_index=True), params)
    notes = [note for note in notes if any(name in note.message for name in models)]
    everything = pd.concat([result.measurements for result in results.values()], ignore_index=True)
    rows = []
    for name in SLICES:
        part = items.merge(scores[scores["slice"].eq(name)][keys], on=keys)
        part = part[part["model"].isin(models)]
        slice_rows = _measured_again(everything, part)
        if slice_rows.empty:
            continue
        try:
            densities = run_densities(slice_rows, sizes, reference, level=level, seed=seed)
        except InputError as error:
            notes.append(Note("slice-without-density", "info", f"{name}: {error}"))
            continue
        shown = ["model", "benchmark", "quantity", "score", "n_items", "density", "density_lo", "density_hi", "status",
                 "bound"]  # fmt: skip
        rows += [{"slice": name, **row} for row in densities.table.reindex(columns=shown).to_dict("records")]
        # What keeps these densities from being compared is not a fault of the weights.
        doubts = (replace(note, severity="warning") for note in densities.notes if note.severity != "info")
        notes += of_part("densities of the slices", doubts)
    return rows, notes


def _measured_again(measurements: pd.DataFrame, items: pd.DataFrame) -> pd.DataFrame:
    """Return the measurements of models and tasks, taken from some of their items."""

    from densing.scores.evals import metric_values

    rows = []
    for row in measurements.to_dict("records"):
        own = items[items["model"].eq(row["model"]) & items["task"].eq(row["task"])]
        if own.empty:
            continue
        values = metric_values(own, str(row["metric"]), str(row.get("filter") or ""))
        if values is None:
            continue
        values = values[np.isfinite(values)]
        if len(values) > 1:
            error = float(values.std(ddof=1)) / math.sqrt(len(values))
            rows.append({**row, "value": float(values.mean()), "stderr": error, "n_items": float(len(values))})
    return pd.DataFrame(rows, columns=measurements.columns)


def _remarks(
    shown: pd.DataFrame, history: tuple[float, ...], auc: float, lo: float, training: Training, collisions: int,
    nnz: int,
) -> list[Note]:  # fmt: skip
    notes = []
    if shown.empty:
        notes.append(Note("no-weights", "warning", "in folds no penalty predicts better than the share of failures "
                          "alone; no weight is left"))  # fmt: skip
    elif not math.isnan(auc) and lo <= 0.5:
        notes.append(Note("chance", "warning", f"AUC on held-out items is {auc:.2f}, and its interval reaches down to "
                          f"{lo:.2f}: the weights may describe chance"))  # fmt: skip
    loose = int((~shown["stable"].astype(bool)).sum()) if len(shown) else 0
    if loose:
        notes.append(Note("unstable", "info", f"{loose} of {formatting.plural(len(shown), 'weight')} keep their sign "
                                              "in "
                          f"fewer than {formatting.percentage(STABLE)} of the draws"))  # fmt: skip
    single = sum(part.one_class for part in training.parts)
    if single:
        notes.append(Note("one-class", "info", f"{formatting.plural(single, 'store')} with items of one kind only: no "
                          "solution of its own, gradients all the same"))  # fmt: skip
    if collisions:
        notes.append(Note("collisions", "warning", f"{collisions} features share a number with another"))
    if len(history) > 1 and history[-1] > history[0]:
        notes.append(Note("moved-away", "warning", f"the updates ended at an objective of {history[-1]:.4g}, above the "
                          f"{history[0]:.4g} they began at"))  # fmt: skip
    return notes
