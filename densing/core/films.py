"""Films of Wikidata, in a wheel: their database is read where it lies; nothing is copied or imported.

Source: Wikidata (CC0), snapshot of 2026-10-18 in the wheel bokeh_sampledata 2026.1: 17,472 films of 1940 to 2014.
"""

from __future__ import annotations

from contextlib import closing
from typing import Any

from densing.core.errors import InputError
from densing.core.files import wheel_folder

PACKAGE = "bokeh_sampledata"
FILE = "_data/movies.db"
INSTALL = "pip install --no-deps bokeh_sampledata==2026.1"
FRESH = 60
"""Tomatometer from which on a film counts as fresh."""


def film_rows(query: str) -> list[tuple[Any, ...]]:
    """Return what a query of the films' database gives; its tables are ``omdb`` and ``tomatoes``.

    Parameters
    ----------
    query : str
        In SQL, of ours: nothing of a user goes into it.

    Raises
    ------
    UnavailableError
        When the wheel is not installed.
    InputError
        When its file cannot be read.
    """
    import sqlite3

    path = wheel_folder(PACKAGE, "the films are in a wheel that is not installed", INSTALL, FILE) / FILE
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
            return database.execute(query).fetchall()
    except sqlite3.Error as error:
        raise InputError(f"{path}: {error}; reinstall the wheel: {INSTALL}") from error
