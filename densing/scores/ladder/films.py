"""Films as a text to train on: a sentence or two of facts about each, from a wheel that carries Wikidata's.

What people made of a film (its score, reviews and takings) is not in the text.

Source: Wikidata (CC0), snapshot of 2026-10-18 in the wheel bokeh_sampledata 2026.1: 17,472 films of 1940 to 2014. It is
read where it lies; nothing is copied or imported.
"""

from __future__ import annotations

import numpy as np

from densing.core import film_rows

FACTS = ("Title", "Year", "Genre", "Director", "Cast", "Country", "Language", "Runtime")
CAST = 5
"""Names of a cast that are told: casts of a hundred would leave little else to read."""


def film_texts(seed: int = 0) -> list[str]:
    """Return a text about each film, in an order drawn once: what is held out at the end is a random sample.

    Parameters
    ----------
    seed : int
        Of the order.

    Raises
    ------
    UnavailableError
        When the wheel is not installed.
    InputError
        When its file cannot be read.
    """
    columns = ", ".join(f'"{fact}"' for fact in FACTS)
    rows = film_rows(f"select {columns} from omdb order by ID")
    order = np.random.default_rng(seed).permutation(len(rows))
    return [describe(dict(zip(FACTS, rows[at], strict=True))) for at in order]


def describe(film: dict[str, object]) -> str:
    """Return what is known of a film as a text; what is not known is not said.

    Examples
    --------
    >>> describe({"Title": "A Gang Story", "Year": 2011, "Genre": "Drama, Crime", "Director": "Olivier Marchal",
    ...           "Cast": "A, B, C, D, E, F", "Country": "", "Language": "French", "Runtime": 103.0})
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
