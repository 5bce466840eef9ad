"""Behaviour as a skill, beside what needs no language model: floors on the same films, and LCBM's claims.

Floors are the mean and the best constant of the films to learn from, and ridge regression and gradient boosting on
words and word pairs of their content.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from densing.core import Array, UnavailableError, install_command, named_stream

if TYPE_CHECKING:
    from densing.tradeoff.gain import Gains

METER, PAIR = "lcbm_films_meter_bits", "lcbm_films_pair"
RIDGES = (10.0, 30.0, 100.0, 300.0, 1000.0)
"""Penalties that are tried: every fifth film to learn from decides, and no film to ask about."""
COMPONENTS = 64
"""Of the words, by truncated SVD: what trees grow on."""
CLOSE = 5.0
SOURCE = "arXiv 2309.00359"


def film_floors(split: str = "time", count: int | None = None, *, boosting: bool = True) -> pd.DataFrame:
    """Return what predicts the Tomatometer of the films to ask about without a language model.

    Parameters
    ----------
    split : {"time", "director", "random"}
    count : int, optional
        Only the first so many films, as ``--limit`` takes them.
    boosting : bool
        Whether trees are grown too, which takes seconds.

    Returns
    -------
    pandas.DataFrame
        ``predictor, rmse, r2, close, n``: the share within 5 points is ``close``.

    Raises
    ------
    UnavailableError
        Without the wheel, or without scikit-learn.
    """

    from densing.scores.evals import read_films, split_films

    try:
        from sklearn.decomposition import TruncatedSVD
        from sklearn.ensemble import HistGradientBoostingRegressor
        from sklearn.feature_extraction.text import CountVectorizer
        from sklearn.linear_model import Ridge
    except ModuleNotFoundError as error:
        raise UnavailableError(f"floors of films need scikit-learn; {install_command('explain')}") from error
    learnt, tested = ([film for film in side if film.meter is not None] for side in split_films(read_films(), split))
    tested = tested[:count]
    known, true = (np.array([film.meter for film in side], dtype=float) for side in (learnt, tested))
    scores = np.arange(101.0)
    held = (np.abs(known - scores[:, None]) <= CLOSE).mean(axis=1)
    guesses = {
        "mean": np.full(len(true), known.mean()),
        "best constant": np.full(len(true), scores[held.argmax()]),
    }
    words = CountVectorizer(binary=True, ngram_range=(1, 2))
    seen, asked = words.fit_transform([film.content for film in learnt]), None
    asked = words.transform([film.content for film in tested])
    guesses["ridge on words"] = Ridge(alpha=ridge_penalty(seen, known)).fit(seen, known).predict(asked)
    if boosting:
        svd = TruncatedSVD(COMPONENTS, random_state=0).fit(seen)
        trees = HistGradientBoostingRegressor(random_state=0).fit(svd.transform(seen), known)
        guesses["boosting on words"] = trees.predict(svd.transform(asked))
    return pd.DataFrame([{"predictor": name, **predicted(guess, true)} for name, guess in guesses.items()])


def ridge_penalty(seen: Any, known: Array) -> float:
    """Return the penalty with which four fifths of the films to learn from predict every fifth best.

    Parameters
    ----------
    seen : sparse matrix (films, words)
    known : float (films,)

    Examples
    --------
    >>> words = np.random.default_rng(0).normal(size=(200, 40))
    >>> ridge_penalty(words, 100 * words[:, 0]), ridge_penalty(words, np.random.default_rng(1).normal(size=200))
    (10.0, 1000.0)
    """
    from sklearn.linear_model import Ridge

    held = np.arange(len(known)) % 5 == 0

    def error(penalty: float) -> float:
        guess = Ridge(alpha=penalty).fit(seen[~held], known[~held]).predict(seen[held])
        return float(((guess - known[held]) ** 2).mean())

    return min(RIDGES, key=error)


def predicted(guess: Array, true: Array) -> dict[str, Any]:
    """Return RMSE, R2, the share within 5 points and the number of films.

    Examples
    --------
    >>> predicted(np.array([60.0, 50.0]), np.array([63.0, 40.0]))["close"]
    0.5
    """
    squares = (guess - true) ** 2
    spread = float(((true - true.mean()) ** 2).mean())
    return {
        "rmse": float(np.sqrt(squares.mean())),
        "r2": 1 - float(squares.mean()) / spread if spread else float("nan"),
        "close": float((np.abs(guess - true) <= CLOSE).mean()),
        "n": len(true),
    }


def behaviour_claims(
    behaviour: pd.DataFrame, floors: pd.DataFrame, gains: Gains | None = None, fewshot: pd.DataFrame | None = None,
    *, draws: int = 2000, level: float = 0.95, seed: int = 0,
) -> pd.DataFrame:  # fmt: skip
    """Hold what was measured beside LCBM's claims; all of grade ``measured``, on other data and sizes than the paper's.

    Parameters
    ----------
    behaviour : pandas.DataFrame
        See :func:`densing.scores.ladder.behaviour_table`.
    floors : pandas.DataFrame
        See :func:`film_floors`.
    gains : Gains, optional
        Of the arms beside plain training, on held-out content (:func:`densing.ladder_gain`).
    fewshot : pandas.DataFrame, optional
        Measurements of a large model with examples in its prompt: ``task, metric, value, n_items``.
    draws, level, seed
        Of the intervals: runs are resampled in pairs of size and seed.

    Returns
    -------
    pandas.DataFrame
        ``claim, says, evidence, grade, found, verdict``.

    Notes
    -----
    Source: arXiv 2309.00359, tables 2 to 5 (first-hand).
    """
    rows = []
    close = _paired(behaviour, "close")
    if len(close) >= 3 and {"plain", "behaviour"} <= set(close):
        gap = (close["behaviour"] - close["plain"]).to_numpy()
        low, high = _interval(gap, draws, level, seed)
        held = floors.set_index("predictor")["close"]
        mean, constant = float(held["mean"]), held.get("best constant")
        told, plain = float(close["behaviour"].mean()), float(close["plain"].mean())
        last = behaviour[behaviour["tokens"].eq(behaviour["tokens"].max()) & behaviour["task"].eq(METER)]
        films = max(float(last["n_items"].max()), 1.0)
        # All runs are asked the same few films: what these differ by from others does not average out over runs.
        told_se, plain_se = (np.sqrt(share * (1 - share) / films) for share in (told, plain))
        found = (
            f"within 5 points: told {told:.3f}, content alone {plain:.3f} (difference {gap.mean():+.3f}; {low:+.3f} to "
            f"{high:+.3f} over runs, standard error over films {np.hypot(told_se, plain_se):.3f}), mean {mean:.3f}; "
            f"{len(gap)} pairs, {films:.0f} films"
        )
        width = 2 * float(np.hypot(told_se, plain_se))
        # Every part has to hold: over plain training, over what needs no film's content, and where a film is chosen.
        parts = [
            (min(low, told - plain - width), max(high, told - plain + width)),
            (plain - mean - 2 * plain_se, plain - mean + 2 * plain_se),
        ]
        if constant is not None:
            parts.append((told - constant - 2 * told_se, told - constant + 2 * told_se))
            found += f", best constant {constant:.3f}"
        if "bits_floor" in last:
            bits = last[last["arm"].eq("behaviour")]
            parts.append(_interval((bits["bits_floor"] - bits["bits"]).to_numpy(), draws, level, seed))
            found += f"; loss {bits['bits'].mean():.2f} bits, of answers' shares alone {bits['bits_floor'].mean():.2f}"
        pair = _paired(behaviour, "acc", PAIR) if "acc" in behaviour else close.iloc[:0]
        if len(pair) >= 3 and {"plain", "behaviour"} <= set(pair):
            beyond = (pair["behaviour"] - pair["plain"]).to_numpy()
            share = pair[["behaviour", "plain"]].mean()
            width = 2 * float(np.sqrt((share * (1 - share) / films).sum()))
            low, high = _interval(beyond, draws, level, seed)
            parts.append((min(low, beyond.mean() - width), max(high, beyond.mean() + width)))
            found += f"; the better of two films: told {share['behaviour']:.3f}, content alone {share['plain']:.3f}"
        lowest, least = min(low for low, _ in parts), min(high for _, high in parts)
        verdict = "agrees" if lowest > 0 else "differs" if least < 0 else "not decided"
    else:
        found, verdict = "needs both arms, three pairs of runs", "not answerable"
    rows.append(("LCB-1", "told > same size on content alone > predictors without content", "first-hand", found,
                 verdict))  # fmt: skip
    arm = next((one for one in gains.arms if one.arm == "behaviour"), None) if gains else None
    if arm is None:
        found, verdict = "needs the gain on held-out content", "not answerable"
    else:
        shift = arm.tokens
        found = f"content's tokens are worth {_ratio(shift)}; no loss: {arm.no_loss}"
        verdict = {"yes": "agrees", "no": "differs"}.get(arm.no_loss, "not decided")
    rows.append(("LCB-2", "content is understood no worse", "first-hand", found, verdict))
    rows.append(("LCB-3", "a small model that was told beats a large one with examples", "first-hand",
                 *_against(behaviour, fewshot)))  # fmt: skip
    rows.append(("LCB-4", "the paper's tables (13 B, video, CBC corpus)", "first-hand",
                 "other corpus, five orders of magnitude smaller", "not answerable"))  # fmt: skip
    table = pd.DataFrame(rows, columns=["claim", "says", "evidence", "found", "verdict"])
    table.insert(3, "grade", "measured")
    return table


def _paired(behaviour: pd.DataFrame, metric: str, task: str = METER) -> pd.DataFrame:
    """Return a metric of a task at the largest budget: a row per size and seed, a column per arm."""
    last = behaviour[behaviour["tokens"].eq(behaviour["tokens"].max()) & behaviour["task"].eq(task)]
    return last.pivot_table(index=["size", "seed"], columns="arm", values=metric).dropna()


def _interval(values: Array, draws: int, level: float, seed: int) -> tuple[float, float]:
    rng = named_stream(seed, "behaviour-claims")
    means = values[rng.integers(len(values), size=(draws, len(values)))].mean(axis=1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _ratio(shift: Any) -> str:
    ends = ("unknown" if end is None else f"{end:.3f}" for end in (shift.ratio, shift.lo, shift.hi))
    value, low, high = ends
    return f"{value} ({low} to {high}) of plain training's"


def _against(behaviour: pd.DataFrame, fewshot: pd.DataFrame | None) -> tuple[str, str]:
    """Compare the loss of the score's answer: the largest size that was told, and the large model's.

    On different films each is compared beyond the loss of answers' shares on its own.
    """
    bits = _paired(behaviour, "bits")
    rows = None if fewshot is None else fewshot[fewshot["task"].eq(METER) & fewshot["metric"].eq("bits")]
    if rows is None or rows.empty or "behaviour" not in bits:
        return "needs the few-shot model on lcbm_films_meter_bits", "not answerable"
    row = rows.iloc[0]
    params = behaviour.groupby("size")["params_non_embedding"].first()
    size = params.idxmax()
    ours = bits["behaviour"].xs(size, level="size").to_numpy()
    other, error = float(row["value"]), float(row["stderr"])
    found = (
        f"{size}: {ours.mean():.2f} bits a score ({ours.min():.2f} to {ours.max():.2f} over seeds); {row['model']} "
        f"with examples {other:.2f} (standard error {error:.2f}, first {int(row['n_items'])} films; ours "
        f"{int(behaviour['n_items'].max())})"
    )
    # One large model and few films: only a gap of two standard errors counts.
    gap = other - float(ours.mean())
    if fewshot is not None and int(row["n_items"]) != int(behaviour["n_items"].max()):
        shares = fewshot[fewshot["task"].eq(METER) & fewshot["metric"].eq("bits_floor")]
        if shares.empty or "bits_floor" not in behaviour:
            return f"{found}; other films, and no floors to compare them by", "not decided"
        own = float(_paired(behaviour, "bits_floor")["behaviour"].xs(size, level="size").mean())
        theirs = float(shares.iloc[0]["value"])
        gap -= theirs - own
        found += f"; beyond the loss of answers' shares on the films of each ({theirs:.2f} and {own:.2f}) {gap:.2f}"
    return found, "agrees" if gap > 2 * error else "differs" if gap < -2 * error else "not decided"
