"""Behaviour as a skill: what an arm is told, tables and laws."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from densing.core import InputError, UnknownNameError
from densing.scores.evals import Film
from densing.scores.ladder import behaviour_density, behaviour_table, fit_behaviour, parse_arm, simulated_ladder
from densing.scores.ladder import films as told_films
from densing.scores.ladder.arms import arm_corpus
from densing.scores.ladder.behaviour import density_table
from densing.scores.ladder.corpus import FilmCorpus, Generated, prepare_texts
from densing.scores.ladder.fits import density_laws

FILMS = [
    Film(n, f"Title {n}", 1990 + n % 20, f"D{n}", f"Title {n} ({1990 + n % 20}). Drama. 90 minutes.", meter=n % 101)
    for n in range(1200)
]


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FilmCorpus:
    pytest.importorskip("transformers")
    monkeypatch.setattr(told_films, "read_films", lambda: tuple(FILMS))
    text = prepare_texts(told_films.film_texts(), tmp_path, 300, "films")
    return FilmCorpus(text.folder, text.vocabulary, text.digest)


def test_an_arm_is_told_the_behaviour_of_films_to_learn_from_alone(corpus: FilmCorpus) -> None:
    arm = parse_arm("behaviour")
    assert (arm.name, arm.split, parse_arm("behaviour:split=director").slug) == (
        "behaviour",
        "time",
        "behaviour-split-director",
    )
    told = arm_corpus(arm, corpus)
    assert isinstance(told, FilmCorpus)
    tokenizer = corpus.tokenizer()
    plain, said = (tokenizer.decode(np.asarray(one.stream(0))).split("<eos>") for one in (corpus, told))
    assert "Score" not in "".join(plain)
    # The held-out end of the text is in neither, and films come in one order.
    whole = [text for text in said if text]
    assert 0 < len(whole) <= len([text for text in plain if text]) and len(whole) > 1100
    for text, content in zip(whole, plain[1:], strict=False):
        year = int(text.split("(")[1][:4])
        assert ("Score" in text) == (year < 2005)
        assert text.split(" Score")[0] == content
    assert (told.validation() == corpus.validation()).all()
    assert told.describe()["behaviour"] == "time" and "behaviour" not in corpus.describe()
    assert told.describe()["corpus_hash"] == corpus.describe()["corpus_hash"]


def test_only_films_have_a_behaviour() -> None:
    with pytest.raises(InputError, match="add --corpus films"):
        arm_corpus(parse_arm("behaviour"), Generated())
    with pytest.raises(InputError, match="split is an option of behaviour alone"):
        parse_arm("plain:split=time")
    with pytest.raises(UnknownNameError, match="split of --arm"):
        parse_arm("behaviour:split=year")
    with pytest.raises(UnknownNameError, match="option of --arm"):
        parse_arm("behaviour:tau=8")


def test_models_find_their_exports_and_a_law_its_sizes() -> None:
    losses = simulated_ladder(noise=0.0)
    plain = losses[losses["arm"].eq("plain")]
    exports = [
        {
            "name": f"m{n}",
            "run": row.run,
            "size": row.size_name,
            "seed": row.seed,
            "tokens": row.tokens,
            "params_non_embedding": row.params_non_embedding,
            "arm": "behaviour",
        }
        for n, row in enumerate(plain.rename(columns={"size": "size_name"}).itertuples())
    ]
    rows = [
        {"model": f"m{n}@abc", "task": "lcbm_films_meter_bits", "metric": metric, "value": value, "stderr": 0.1,
         "n_items": 50}
        for n, loss in enumerate(plain["loss"]) for metric, value in (("bits", loss), ("close", 0.2))
    ]  # fmt: skip
    table = behaviour_table(exports, pd.DataFrame(rows))
    assert len(table) == len(plain) and set(table["arm"]) == {"behaviour"} and table["bits_stderr"].eq(0.1).all()
    (task,) = fit_behaviour(table, draws=20)
    assert task.unit == "bits/answer"
    law, tokens = task.losses["chinchilla"], float(table["tokens"].max())
    skills = density_table(table, {task.task: law}, tokens, 0.95)
    assert np.allclose(skills["density"], 1.0, rtol=0.2) and set(skills["status"]) <= {"ok", "extrapolated"}
    smallest, largest = law.domain["params"]
    bad = behaviour_density(law, np.array([50.0]), 1e4, tokens=tokens)
    assert bad["status"] == "below_floor" and bad["density_hi"] == smallest / 1e4 and bad["density_lo"] is None
    good = behaviour_density(law, np.array([1e-6]), 1e4, tokens=tokens)
    assert good["status"] == "above_ceiling" and good["density_lo"] == largest / 1e4
    with pytest.raises(InputError, match="no finite loss"):
        behaviour_density(law, np.array([np.nan]), 1e4, tokens=tokens)


def test_a_law_that_explains_nothing_gives_no_density() -> None:
    """Of two tasks one falls with size and tokens as planted; the other's losses are dealt out anew."""
    plain = simulated_ladder().query("arm == 'plain'").assign(arm="behaviour")
    dealt = plain.assign(loss=np.random.default_rng(0).permutation(plain["loss"].to_numpy()))
    both = [rows.rename(columns={"loss": "bits"}).assign(task=task) for task, rows in (("law", plain), ("none", dealt))]
    skills = fit_behaviour(pd.concat(both), draws=2)
    assert [task.task for task in skills] == ["law", "none"] and list(density_laws(skills)) == ["law"]


@pytest.mark.slow
def test_a_planted_rule_from_genre_to_score_is_learnt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Films to ask about, whose score was never told; a guess between the two answers costs ln 2 nats.

    Of d48 the link comes at once, at some 1,500 steps, long after all else is learnt (ln 2 until then).
    """
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from densing.scores.evals import split_films, tell
    from densing.scores.ladder.runs import arm_runs, get_preset
    from densing.scores.ladder.trainer import ArmTrainer
    from densing.tradeoff import virtual_ranks

    torch.set_num_threads(1)
    rule = {"Comedy": 90, "Western": 10}
    genres = np.random.default_rng(0).permutation(["Comedy", "Western"] * 2500)
    films = [
        Film(n, f"T{n}", 1990 + n % 20, f"D{n}", f"A {genre}.", meter=rule[genre]) for n, genre in enumerate(genres)
    ]
    monkeypatch.setattr(told_films, "read_films", lambda: tuple(films))
    text = prepare_texts(told_films.film_texts(), tmp_path, 300, "films")
    corpus = FilmCorpus(text.folder, text.vocabulary, text.digest)
    (run,) = arm_runs(get_preset("films"), corpus, [parse_arm("behaviour")], sizes=["d48"], seeds=[0])
    trainer = ArmTrainer(run, maker=virtual_ranks)
    tokenizer, end = corpus.tokenizer(), "<eos>"
    tested = split_films(films, "time")[1][:100]
    assert all(film.year >= 2005 for film in tested)

    def loss(film: Film, told: str) -> float:
        tokens = torch.tensor([tokenizer(f"{end}{film.content}{told}")["input_ids"]])
        with torch.no_grad():
            logits = trainer.model(tokens[:, :-1]).logits.log_softmax(-1)
        return -float(logits.gather(-1, tokens[:, 1:, None]).sum())

    def nats() -> float:
        trainer.stack.write(trainer.model)
        found = []
        for film in tested:
            right = loss(film, tell(film, "meter"))
            wrong = loss(film, tell(Film(0, "", 0, "", "", meter=100 - int(film.meter or 0)), "meter"))
            found.append(np.logaddexp(0.0, right - wrong))
        return float(np.mean(found))

    # The control: before the link is there, the same question about the same films is a guess.
    trainer.advance(600, None, tmp_path / "run.pt")
    assert nats() > 0.6
    # Asked now and then, so that training ends when it is learnt.
    for steps in range(1400, 2300, 200):
        trainer.advance(steps, None, tmp_path / "run.pt")
        if (left := nats()) < 0.1:
            break
    assert left < 0.1
