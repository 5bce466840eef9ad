r"""What the task files of the suite lcbm-films call: films, their splits, questions on how they were received, metrics.

Content is what :func:`describe_film` tells; behaviour is what people made of it: the Tomatometer (0 to 100), the number
of reviews, takings. The forms are those of LCBM: behaviour from content, content from behaviour, which of two.

**Splits.** ``time``: films before 2005 to learn from, later ones to ask about. ``director``: films of whoever ever
directed together are on one side. ``random``: by a hash of the film. No film stands on both sides; that is checked.

**What is not a feature.** The wheel's counts of fresh and rotten reviews are derived from the rounded Tomatometer; they
are not read. Takings are the largest that is reported; below 1,000 dollars the unit is in doubt, and they are left out.

**Loss.** Where a model is too small to write a number, its log-likelihoods of all answers are a distribution: with
:math:`\ell_k` that of answer k, :math:`p = \mathrm{softmax}(\ell)`, the loss is :math:`-\log_2 p_{gold}` bits, the
prediction of least squared error is :math:`\sum_k p_k k`, and that of most accuracy is the middle of the heaviest
window. Answers end with a full stop, so that 6 is not a beginning of 63.

**Floors.** Each document carries what needs no model: the mean of the films to learn from, the best constant, and how
often each answer was given; the metrics ``..._floor`` are theirs, on the same documents.

Source: Khandelwal et al., "Large Content and Behavior Models to Understand, Simulate, and Optimize Content and
Behavior", ICLR 2024, arXiv 2309.00359: tasks, and accuracy as an error of at most 5 of 100. Films: Wikidata (CC0),
snapshot of 2026-10-18 in the wheel bokeh_sampledata 2026.1: 17,472 films of 1940 to 2014, read where they lie.
"""

from __future__ import annotations

import hashlib
import html
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from densing.core import Array, InputError, UnknownNameError, film_rows

# Stands in the keys of stored results for the code of this file; whoever changes what a function here returns for a
# document puts another text here.
REVISION = "lcbm-films-1"
FACTS = ("Title", "Year", "Genre", "Director", "Cast", "Country", "Language", "Runtime")
CAST = 5
"""Names of a cast that are told: casts of a hundred would leave little else to read."""
SPLITS = ("time", "director", "random")
TEST_FROM = 2005
TEST_SHARE = 0.2
"""Of the splits by director and at random."""
BEHAVIOURS = {"meter": "Score", "reviews": "Reviews", "box": "Box office"}
"""What is asked for, and the word before it in a text."""
CLOSE = {"meter": 5.0, "reviews": 0.1, "box": 0.1}
"""What counts as right: points of 100, or a share of the true count."""
LEAST_TAKINGS = 1000
CANDIDATES = 25
APART = 20
"""Points between the scores of a pair."""
SHOTS = 1000
"""Films that examples are drawn from."""
TAG = re.compile(r"<[^>]*>")
NUMBER = re.compile(r"(-?\d[\d,]*(?:\.\d+)?)\s*(thousand|million|billion)?", re.IGNORECASE)
UNITS = {"": 1.0, "thousand": 1e3, "million": 1e6, "billion": 1e9}

Doc = dict[str, Any]


@dataclass(frozen=True)
class Film:
    """A film: what it is, and how it was received.

    Parameters
    ----------
    id : int
        Of the wheel's table.
    title, directors : str
    year : int
    content : str
        See :func:`describe_film`.
    meter, reviews : int, optional
        Tomatometer and number of reviews.
    box : float, optional
        Takings in dollars.
    """

    id: int
    title: str
    year: int
    directors: str
    content: str
    meter: int | None = None
    reviews: int | None = None
    box: float | None = None

    @property
    def identity(self) -> tuple[str, int, str]:
        """What two entries of one film share."""
        return self.title.casefold(), self.year, self.directors.casefold()


def describe_film(film: Mapping[str, object]) -> str:
    """Return what is known of a film as a text; what is not known is not said.

    Examples
    --------
    >>> describe_film({"Title": "A Gang Story", "Year": 2011, "Genre": "Drama, Crime", "Director": "Olivier Marchal",
    ...                "Cast": "A, B, C, D, E, F", "Country": "", "Language": "French", "Runtime": 103.0})
    'A Gang Story (2011). Drama, Crime. Directed by Olivier Marchal. With A, B, C, D, E. In French. 103 minutes.'
    """
    cast = ", ".join(str(film["Cast"] or "").split(", ")[:CAST])
    minutes = film["Runtime"] if isinstance(film["Runtime"], int | float) else None
    sentences = (
        f"{film['Title']} ({film['Year']})",
        film["Genre"],
        film["Director"] and f"Directed by {film['Director']}",
        cast and f"With {cast}",
        film["Country"] and f"From {film['Country']}",
        film["Language"] and f"In {film['Language']}",
        minutes and f"{minutes:.0f} minutes",
    )
    return " ".join(f"{sentence}." for sentence in sentences if sentence)


def read_films() -> tuple[Film, ...]:
    """Return all films of the wheel, in order of id.

    Raises
    ------
    UnavailableError
        When the wheel is not installed.
    InputError
        When its file cannot be read, or a score is none.
    """
    names = (*FACTS, "ID", "Meter", "Reviews", "BoxOffice")
    columns = ", ".join(f'"{name}"' for name in names)
    rows = film_rows(f'select {columns} from omdb left join tomatoes using ("ID") order by "ID"')
    return tuple(film_of(dict(zip(names, row, strict=True))) for row in rows)


def film_of(row: Mapping[str, Any]) -> Film:
    """Return a film from a row of the wheel's tables; tags and entities of HTML become the text they stand for.

    Raises
    ------
    InputError
        When its score is not one of 0 to 100, or a count is below 0.

    Examples
    --------
    >>> row = dict.fromkeys(("Genre", "Director", "Cast", "Country", "Language", "Runtime", "Reviews", "BoxOffice"))
    >>> film_of({**row, "ID": 1, "Title": "<i>Lilo</i> &amp; Stitch", "Year": 2002, "Meter": 86}).content
    'Lilo & Stitch (2002).'
    """
    facts: dict[str, Any] = {
        name: html.unescape(TAG.sub("", value)).strip() if isinstance(value, str) else value
        for name, value in row.items()
    }
    about = f"films: film {facts['ID']} ({str(facts['Title'])[:60]})"
    meter, reviews, box = (facts[name] for name in ("Meter", "Reviews", "BoxOffice"))
    if meter is not None and not (isinstance(meter, int | float) and meter == int(meter) and 0 <= meter <= 100):
        raise InputError(f"{about}: Meter {meter!r} is not a whole number from 0 to 100; reinstall the wheel")
    for name, count in (("Reviews", reviews), ("BoxOffice", box)):
        if count is not None and not (isinstance(count, int | float) and count >= 0):
            raise InputError(f"{about}: {name} {count!r} is not a number of 0 or more; reinstall the wheel")
    return Film(
        int(facts["ID"]),
        str(facts["Title"]),
        int(facts["Year"]),
        str(facts["Director"] or ""),
        describe_film(facts),
        None if meter is None else int(meter),
        None if reviews is None else int(reviews),
        None if box is None or box < LEAST_TAKINGS else float(box),
    )


def tell(film: Film, behaviour: str) -> str:
    """Return a behaviour as texts tell it; takings are rounded to two digits. Empty where it is not known.

    Examples
    --------
    >>> film = Film(1, "A", 2001, "", "A (2001).", meter=63, box=426588510.0)
    >>> tell(film, "meter"), tell(film, "box"), tell(film, "reviews")
    (' Score 63.', ' Box office 430000000.', '')
    """
    value = getattr(film, behaviour)
    return "" if value is None else f" {BEHAVIOURS[behaviour]}{answer_text(behaviour, value)}"


def answer_text(behaviour: str, value: float) -> str:
    """Return a value as it stands in a text, with the space before it and the full stop that ends it."""
    return f" {float(f'{value:.1e}'):.0f}." if behaviour == "box" else f" {value:.0f}."


# Splits.


def split_films(films: Sequence[Film], split: str = "time") -> tuple[list[Film], list[Film]]:
    """Return films to learn from and films to ask about, each in an order drawn by hash.

    Parameters
    ----------
    films : sequence of Film
    split : {"time", "director", "random"}

    Raises
    ------
    UnknownNameError
        When there is no such split.
    InputError
        When a film would stand on both sides.

    Examples
    --------
    >>> old, new = (Film(year, f"Film {year}", year, "", f"Film {year}.") for year in (1999, 2009))
    >>> [[film.year for film in side] for side in split_films([new, old])]
    [[1999], [2009]]
    """
    if split not in SPLITS:
        raise UnknownNameError("split of the films", split, SPLITS)
    if split == "time":
        asked = [film.year >= TEST_FROM for film in films]
    elif split == "random":
        asked = [share_of(f"random/{film.id}") < TEST_SHARE for film in films]
    else:
        asked = [share_of(f"director/{group}") < TEST_SHARE for group in directing_together(films)]
    order = sorted(range(len(films)), key=lambda at: share_of(f"{split}/{films[at].id}"))
    learnt, tested = ([films[at] for at in order if asked[at] is side] for side in (False, True))
    known = {film.identity for film in learnt}
    twice = next((film for film in tested if film.identity in known), None)
    if twice is not None:
        raise InputError(
            f"split {split}: {twice.title} ({twice.year}) is in both the training and the test part; remove one"
        )
    return learnt, tested


def share_of(text: str) -> float:
    """Return a number of [0, 1) that is a text's own, whatever the release of a generator.

    Examples
    --------
    >>> 0 <= share_of("a film") < 1
    True
    """
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") / 2**64


def directing_together(films: Sequence[Film]) -> list[str]:
    """Return a name for each film's group: films are in one as far as shared directors reach.

    Examples
    --------
    >>> films = [Film(n, f"{n}", 2000, who, "") for n, who in enumerate(["A, B", "B, C", "C", "D", ""])]
    >>> groups = directing_together(films)
    >>> groups[0] == groups[1] == groups[2] != groups[3], len(set(groups))
    (True, 3)
    """
    parents: dict[str, str] = {}

    def root(name: str) -> str:
        while parents.setdefault(name, name) != name:
            name = parents[name]
        return name

    names = [[name for name in film.directors.split(", ") if name] or [f"film {film.id}"] for film in films]
    for group in names:
        for name in group[1:]:
            # The smaller name leads, so that groups do not depend on the order of films.
            low, high = sorted((root(name), root(group[0])))
            parents[high] = low
    return [root(group[0]) for group in names]


# Questions.


def load_behaviour(behaviour: str = "meter", split: str = "time", **_metadata: Any) -> dict[str, Any]:
    """Return the documents that ask for a behaviour, given the content."""
    return _dataset(behaviour, split)


def load_content(split: str = "time", **_metadata: Any) -> dict[str, Any]:
    """Return the documents that ask which of 25 films a behaviour is of."""
    return _dataset("content", split)


def load_pair(split: str = "time", **_metadata: Any) -> dict[str, Any]:
    """Return the documents that ask which of two films was liked more."""
    return _dataset("pair", split)


@cache
def _dataset(kind: str, split: str) -> dict[str, Any]:
    """Return examples and questions; made once for all models of a run."""
    import datasets

    learnt, tested = split_films(read_films(), split)
    parts = {}
    for name, films in (("train", learnt[:SHOTS]), ("test", tested)):
        makers = {"content": content_docs, "pair": pair_docs}
        docs = makers[kind](films) if kind in makers else behaviour_docs(films, learnt, kind)
        parts[name] = datasets.Dataset.from_list(docs)
    return parts


def behaviour_docs(films: Iterable[Film], learnt: Iterable[Film], behaviour: str) -> list[Doc]:
    """Return a document per film whose behaviour is known: text, truth, choices, and what needs no model.

    Parameters
    ----------
    films : iterable of Film
        Those to ask about.
    learnt : iterable of Film
        Those whose mean, best constant and shares are the floors.
    behaviour : {"meter", "reviews", "box"}

    Returns
    -------
    list of dict
        ``id, query, truth, target, behaviour, low, high, mean, constant, floor``: answers are the whole numbers from
        ``low`` to ``high``; the mean of counts is that of their logarithms; ``floor`` is the loss in bits of who knows
        nothing but how often each answer was given, each once more than it was.

    Raises
    ------
    UnknownNameError
        When there is no such behaviour.
    """
    if behaviour not in BEHAVIOURS:
        raise UnknownNameError("behaviour of films", behaviour, BEHAVIOURS)
    known = np.array([getattr(film, behaviour) for film in learnt if getattr(film, behaviour) is not None], float)
    counts = Counter(known.tolist())
    scale = measure_of(behaviour)
    # Reviews are 5 to 388 here; whoever has more is asked like all others.
    low, high = (0, 100) if behaviour == "meter" else (5, 400)
    about = {
        "behaviour": behaviour,
        "low": low,
        "high": high,
        "mean": float(np.mean([scale(value) for value in known])),
        "constant": best_constant(known, behaviour),
    }
    given = sum(counts[value] for value in range(low, high + 1)) + high + 1 - low
    docs = []
    for film in films:
        value = getattr(film, behaviour)
        if value is not None:
            query = f"{film.content} {BEHAVIOURS[behaviour]}"
            truth = {"truth": float(value), "target": answer_text(behaviour, value)}
            floor = -math.log2((counts[min(value, high)] + 1) / given)
            docs.append({"id": film.id, "query": query, **truth, **about, "floor": floor})
    return docs


def best_constant(values: Array, behaviour: str) -> float:
    """Return the constant that is most often close enough, among the values themselves and the whole numbers.

    Examples
    --------
    >>> best_constant(np.array([0.0, 90.0, 95.0, 100.0]), "meter")
    95.0
    """
    tried = np.arange(101.0) if behaviour == "meter" else np.unique(values)
    ordered = np.sort(values)
    if behaviour == "meter":
        low, high = tried - CLOSE[behaviour], tried + CLOSE[behaviour]
    else:
        # |c - v| <= s v
        low, high = tried / (1 + CLOSE[behaviour]), tried / (1 - CLOSE[behaviour])
    held = np.searchsorted(ordered, high, "right") - np.searchsorted(ordered, low, "left")
    return float(tried[held.argmax()])


def content_docs(films: Sequence[Film]) -> list[Doc]:
    """Return a document per film with score and reviews: 25 texts, of which one continues as the behaviour says.

    With every candidate as likely as another beforehand, p(film | behaviour) is p(behaviour | film) up to a factor, so
    the behaviour is asked behind each text.
    """
    known = [film for film in films if film.meter is not None and film.reviews is not None]
    docs = []
    for at, film in enumerate(known):
        others = _others(at, len(known), CANDIDATES - 1, f"content/{film.id}")
        gold = int(share_of(f"place/{film.id}") * CANDIDATES)
        texts = [known[other].content for other in others]
        texts.insert(gold, film.content)
        said = tell(film, "meter") + tell(film, "reviews")
        docs.append({"id": film.id, "contexts": texts, "continuation": said, "gold": gold})
    return docs


def pair_docs(films: Sequence[Film]) -> list[Doc]:
    """Return pairs of films at least 20 points apart: which of the two texts continues with the higher score?"""
    known = [film for film in films if film.meter is not None]
    docs = []
    for at, film in enumerate(known):
        tried = (known[other] for other in _others(at, len(known), 20, f"pair/{film.id}"))
        other = next((one for one in tried if abs(one.meter - film.meter) >= APART), None)  # type: ignore[operator]
        if other is None:
            continue
        better, worse = sorted((film, other), key=lambda one: -(one.meter or 0))
        gold = int(share_of(f"pair/{film.id}/{other.id}") * 2)
        texts = [worse.content, worse.content]
        texts[gold] = better.content
        docs.append({"id": film.id, "contexts": texts, "continuation": tell(better, "meter"), "gold": gold})
    return docs


def _others(at: int, count: int, wanted: int, seed: str) -> list[int]:
    """Draw other positions without replacement, by hash."""
    chosen: dict[int, None] = {}
    draw = 0
    while len(chosen) < min(wanted, count - 1):
        position = int(share_of(f"{seed}/{draw}") * count)
        if position != at:
            chosen.setdefault(position)
        draw += 1
    return list(chosen)


def answers(doc: Mapping[str, Any]) -> list[str]:
    """Return the texts of all answers that a document may have.

    Examples
    --------
    >>> answers({"behaviour": "meter", "low": 0, "high": 100})[63]
    ' 63.'
    """
    return [answer_text(doc["behaviour"], value) for value in range(doc["low"], doc["high"] + 1)]


def answer_index(doc: Mapping[str, Any]) -> int:
    """Return which of the answers is the true one; the last where it is beyond them."""
    return min(int(doc["truth"]), doc["high"]) - int(doc["low"])


# Metrics.


def measure_of(behaviour: str) -> Callable[[float], float]:
    """Return the scale that errors are taken on: points, or natural logarithms of counts (of one at least).

    Examples
    --------
    >>> measure_of("meter")(63.0), measure_of("reviews")(1.0)
    (63.0, 0.0)
    """
    return float if behaviour == "meter" else lambda value: math.log(max(value, 1.0))


def close_enough(behaviour: str, value: float, truth: float) -> bool:
    """Return whether a prediction counts as right: within 5 points, or within 10 % of a count.

    Examples
    --------
    >>> close_enough("meter", 58, 63), close_enough("meter", 57.9, 63), close_enough("box", 110, 100)
    (True, False, True)
    """
    error = abs(value - truth)
    allowed = CLOSE[behaviour] if behaviour == "meter" else CLOSE[behaviour] * truth
    return error <= allowed * (1 + 1e-12)


def read_number(text: str, behaviour: str = "meter") -> float | None:
    """Return the first number of a text, if it can be this behaviour; else None.

    Examples
    --------
    >>> [read_number(text) for text in (" 63. Reviews 5", " very good", " 630")], read_number("$1.5 million", "box")
    ([63.0, None, None], 1500000.0)
    """
    match = NUMBER.search(text)
    if match is None:
        return None
    value = float(match[1].replace(",", "")) * UNITS[(match[2] or "").casefold()]
    return value if 0 <= value <= (100 if behaviour == "meter" else math.inf) else None


def score_number(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, Any]:
    """Return what a generated number is worth; an answer without a number is counted, is wrong, and errs as the mean.

    Examples
    --------
    >>> doc = {"behaviour": "meter", "truth": 63.0, "mean": 60.0, "constant": 85.0}
    >>> score_number(doc, [" 60."])["close"], score_number(doc, [" good"])["no_number"]
    (1.0, 1.0)
    """
    behaviour, truth = doc["behaviour"], doc["truth"]
    scale, value = measure_of(behaviour), read_number(results[0], behaviour)
    predicted = doc["mean"] if value is None else scale(value)
    return {
        **errors(doc, predicted),
        "close": float(value is not None and close_enough(behaviour, value, truth)),
        "no_number": float(value is None),
    }


def score_answers(doc: Mapping[str, Any], results: Sequence[tuple[float, bool]]) -> dict[str, Any]:
    """Return the loss of the true answer among all answers, in bits, and what the distribution predicts.

    Parameters
    ----------
    doc : mapping
    results : sequence of (float, bool)
        Log-likelihood of each answer, in nats.

    Examples
    --------
    >>> doc = {"behaviour": "meter", "truth": 1.0, "low": 0, "high": 3, "mean": 1.0, "constant": 1.0, "floor": 2.0}
    >>> score_answers(doc, [(-2.0, False)] * 4)["bits"]
    2.0
    """
    behaviour = doc["behaviour"]
    values = np.arange(doc["low"], doc["high"] + 1.0)
    chances = softmax([value for value, _ in results])
    scale = measure_of(behaviour)
    predicted = float(chances @ np.array([scale(value) for value in values]))
    # Mass of all answers that are close to each one: the middle of the heaviest window is right most often.
    best = float(values[int((_near(behaviour, doc["low"], doc["high"]) @ chances).argmax())])
    gold = chances[answer_index(doc)]
    return {
        "bits": float(-np.log2(gold)) if gold > 0 else math.inf,
        "bits_floor": doc["floor"],
        **errors(doc, predicted),
        "close": float(close_enough(behaviour, best, doc["truth"])),
    }


@cache
def _near(behaviour: str, low: int, high: int) -> Array:
    """Return whether each answer (row) is close enough where another (column) is true."""
    answers = range(low, high + 1)
    return np.array([[close_enough(behaviour, guess, truth) for truth in answers] for guess in answers], dtype=float)


def errors(doc: Mapping[str, Any], predicted: float) -> dict[str, Any]:
    """Return errors of a prediction on the behaviour's scale, and those of the mean and of the best constant."""
    behaviour, truth = doc["behaviour"], doc["truth"]
    true = measure_of(behaviour)(truth)
    return {
        "rmse": (predicted - true) ** 2,
        "r2": (predicted, true),
        "rmse_floor": (doc["mean"] - true) ** 2,
        "close_floor": float(close_enough(behaviour, doc["constant"], truth)),
    }


def score_choice(doc: Mapping[str, Any], results: Sequence[tuple[float, bool]]) -> dict[str, float]:
    """Return whether the right text gives the behaviour most probability, and the loss of the choice in bits.

    Examples
    --------
    >>> score_choice({"gold": 1}, [(-5.0, False), (-3.0, False)])["acc"]
    1.0
    """
    chances = softmax([value for value, _ in results])
    gold = chances[doc["gold"]]
    return {
        "acc": float(int(np.argmax([value for value, _ in results])) == doc["gold"]),
        "bits": float(-np.log2(gold)) if gold > 0 else math.inf,
        "bits_floor": math.log2(len(results)),
    }


def softmax(values: Sequence[float]) -> Array:
    """Return probabilities from log-likelihoods.

    Examples
    --------
    >>> softmax([0.0, 0.0]).tolist()
    [0.5, 0.5]
    """
    logs = np.array(values, dtype=float)
    weights = np.exp(logs - logs.max())
    return np.asarray(weights / weights.sum())


def root_mean(squares: Sequence[float]) -> float:
    """Return the root of the mean of squares.

    Examples
    --------
    >>> root_mean([9.0, 16.0, 0.0, 0.0])
    2.5
    """
    return math.sqrt(sum(squares) / len(squares))


def determination(pairs: Sequence[tuple[float, float]]) -> float:
    """Return R2 of predictions and truths: 1 less squared errors over squared deviations from the truths' own mean.

    Examples
    --------
    >>> determination([(1.0, 1.0), (2.0, 3.0)])
    0.5
    """
    predicted, true = np.array(pairs, dtype=float).T
    spread = float(((true - true.mean()) ** 2).sum())
    return 1 - float(((predicted - true) ** 2).sum()) / spread if spread else math.nan
