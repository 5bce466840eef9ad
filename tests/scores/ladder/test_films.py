"""Films as a text: what is in it, what must not be, and where it is from."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from densing.core import InputError, UnavailableError, wheel_folder
from densing.core.films import FILE, INSTALL, PACKAGE
from densing.scores.evals import describe_film
from densing.scores.ladder import find_corpus
from densing.scores.ladder.corpus import Generated
from densing.scores.ladder.films import film_texts


def test_what_is_not_known_is_not_said() -> None:
    film = {"Title": "<b>A</b>", "Year": 1950, **dict.fromkeys(["Genre", "Director", "Cast", "Country"], "")}
    assert describe_film({**film, "Language": None, "Runtime": None}) == "<b>A</b> (1950)."


def test_every_film_is_told_once_without_what_people_made_of_it() -> None:
    try:
        folder = wheel_folder(PACKAGE, "", INSTALL, FILE)
    except UnavailableError as error:
        pytest.skip(str(error))
    texts = film_texts()
    with sqlite3.connect(folder / FILE) as database:
        (films,) = database.execute("select count(*) from omdb").fetchone()
        title, meter = database.execute(
            "select o.Title, t.Meter from omdb o join tomatoes t using (ID) where o.ID = 372"
        ).fetchone()
    assert len(texts) == films == 17_472
    (one,) = [text for text in texts if text.startswith(f"{title} (")]
    assert one.endswith("(2009). Documentary. Directed by Ondi Timoner. From United States. In English. 90 minutes.")
    assert str(meter) not in one
    assert film_texts() == texts != film_texts(seed=1) and sorted(film_texts(seed=1)) == sorted(texts)


def test_a_wheel_that_is_damaged_or_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = tmp_path / "bokeh_sampledata"
    (package / "_data").mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UnavailableError, match="pip install --no-deps bokeh_sampledata"):
        film_texts()
    (package / FILE).write_bytes(b"no database, although as long as the head of one must be: " * 20)
    with pytest.raises(InputError, match=r"movies\.db: file is not a database"):
        film_texts()


def test_a_corpus_has_the_name_a_user_gives_it(tmp_path: Path) -> None:
    assert find_corpus("noisy", tmp_path, 300) == Generated("noisy")
    with pytest.raises(InputError, match=r"unknown corpus 'nowhere' .*clean.*or give a file or folder"):
        find_corpus("nowhere", tmp_path, 300)
