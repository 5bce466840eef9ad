"""Banks of items: calibrated once on many models, then a new model's full score from a few of its answers.

The score is the mean over all items of the bank. Of n answered items in strata h, and p_j(theta) the bank's prediction,

score = mean_j p_j + sum_h W_h mean_(i in h) (y_i - p_i)      W_h: share of the bank's items that are in h

The residuals correct whatever the curves get wrong, so the estimate has no bias from models that are unlike those of
the calibration; the curves only make it narrower. With adaptively chosen items nothing corrects them: the score is the
prediction, and its interval takes its width from how far such predictions were off for calibrated models that the
curves did not know (folds by date).

Source: Cochran, Sampling Techniques (1977), 5A and 7, for strata and regression estimates; Saerndal, Swensson and
Wretman, Model Assisted Survey Sampling (1992), 6; Vovk, Gammerman and Shafer (2005), for intervals from errors on
others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import msgspec
import numpy as np
import pandas as pd
from scipy import stats
from scipy.special import expit

from densing.core import (
    Array,
    ArtefactError,
    Card,
    Field,
    InputError,
    Listing,
    Note,
    Readable,
    Record,
    TableLike,
    UnknownNameError,
    column,
    decode,
    formatting,
    named_stream,
    numeric,
    parse_json,
    plain,
    ranged,
    read_text,
    short,
    write_text,
)
from densing.scores.items.answers import Answers, AnswerTable, one_model, read_answers
from densing.scores.items.checks import FLAGS, check_items
from densing.scores.items.irt import fit_curves, grid, posterior

SCHEMA, VERSION = "densing-items", 1
SHIPPED = Path(__file__).with_name("data")
FEW_ITEMS = 10
"""Fewer answers than that are reported without a prediction."""
FEW_MODELS, FEW_BANK = 20, 20
"""Least models, and items, that a bank is calibrated on."""
MOST_ADAPTIVE = 100
LOOKS = (10, 25, 50, 75, 100)
"""Items after which adaptive predictions are compared with the truth."""
SLOPES = ("each", "common")
LEVELS = (0.5, 0.8, 0.9, 0.95, 0.99)
FOLDS = 5
PRIOR_ITEMS = 10
"""Answers that the variance expected from the curves counts for beside the one observed."""
DIGITS = 4
"""To which figures of items and models are kept, in memory as in a file."""
PER_STRATUM = 2
ADAPTIVE_SLOPE = 0.2
"""Items that tell models apart less are not chosen adaptively."""
Chosen = Literal["stratified", "random", "adaptive"]


class BankScore(Record, frozen=True):
    """A model's score on the whole bank, from a few of its items.

    Parameters
    ----------
    score, lo, hi : float
        In [0, 1].
    error : float
        Standard error of the score: how far it may be from the one on all items of the bank.
    level : float
        Of the interval.
    ability, ability_error : float
        In standard deviations of the calibrated models.
    items, bank_items : int
        Answered, and all.
    chosen : {"stratified", "random", "adaptive"}
        How the items were chosen.
    control : bool
        Whether the curves served as control variate.
    status : {"ok", "few_items", "above_range", "below_range"}
        ``above_range``: abler than every calibrated model, so that the ability is a lower limit, and with adaptive
        items the score too.
    sentence : str
        What the status means; empty when it is ok.
    notes : tuple of Note
    """

    score: float
    lo: float
    hi: float
    error: float
    level: float
    ability: float
    ability_error: float
    items: int
    bank_items: int
    chosen: str
    control: bool
    status: str
    sentence: str
    notes: tuple[Note, ...] = ()

    def listing(self, bank: str) -> Listing:
        """Return the score as a table of one row."""
        title = f"Score on the {self.bank_items} items of {bank}, {formatting.percentage(self.level)} interval."
        return Listing(title, [self], SCORE_FIELDS)


class Correction(msgspec.Struct, frozen=True):
    """How far adaptive predictions were off after some items, for calibrated models that the curves did not know.

    Parameters
    ----------
    items : int
    quantiles : tuple of float
        Of |error| / its own standard error, at :data:`LEVELS`.
    error, bias : float
        Mean absolute error and mean error, in score.
    models : int
    """

    items: int
    quantiles: tuple[float, ...]
    error: float
    bias: float
    models: int


class _Items(msgspec.Struct, frozen=True):
    item: list[str]
    task: list[str]
    text_hash: list[str]
    slope: list[float]
    intercept: list[float]
    discrimination: list[float]
    discrimination_error: list[float]
    answers: list[int]
    share: list[float]
    fit_p: list[float | None]
    drift_z: list[float | None]
    flag: list[str]


class _Models(msgspec.Struct, frozen=True):
    model: list[str]
    released: list[str]
    ability: list[float]
    ability_error: list[float]
    answers: list[int]
    score: list[float]


class _File(msgspec.Struct, frozen=True):
    schema: str
    schema_version: int
    name: str
    source: str
    licence: str
    slopes: str
    items: _Items
    models: _Models
    corrections: list[Correction]


@dataclass(frozen=True, repr=False)
class ItemBank(Readable):
    """Calibrated items, and what they are good for.

    Parameters
    ----------
    name : str
    items : pandas.DataFrame
        item, task, text_hash; slope and intercept, the curves that predict; discrimination with its error, the slope of
        the item's own; answers, share, fit_p, drift_z, flag.
    models : pandas.DataFrame
        Of the calibration: model, released, ability, ability_error, answers, score.
    corrections : tuple of Correction
        Of adaptive predictions; empty when there were too few models.
    slopes : {"each", "common"}
    source, licence : str
        Of the answers.

    See Also
    --------
    calibrate_items

    Examples
    --------
    >>> import densing
    >>> bank = densing.ItemBank.load("ikp")
    >>> answers = dict.fromkeys(bank.choose(40), 1.0)
    >>> bank.estimate(answers).status
    'above_range'
    """

    name: str
    items: pd.DataFrame
    models: pd.DataFrame
    corrections: tuple[Correction, ...] = ()
    slopes: str = "each"
    source: str = ""
    licence: str = ""
    drawn_by: ClassVar[str] = "densing.plots:plot_bank"

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self.items)

    @cached_property
    def slope(self) -> Array:
        """Slopes a, (J,)."""
        return self.items["slope"].to_numpy(dtype=float)

    @cached_property
    def intercept(self) -> Array:
        """Intercepts c, (J,)."""
        return self.items["intercept"].to_numpy(dtype=float)

    @cached_property
    def difficulty(self) -> Array:
        """Ability at which half of the models solve an item, b = -c / a, (J,); NaN where a is not positive."""
        positive = np.where(self.slope > 0, self.slope, np.nan)
        return np.asarray(-self.intercept / positive)

    @cached_property
    def _curves(self) -> Array:
        """Probabilities of a right answer, (J, grid)."""
        return np.asarray(expit(np.outer(self.slope, grid()[0]) + self.intercept[:, None]))

    @cached_property
    def _order(self) -> Array:
        """Items from the hardest to the easiest for a model of any ability."""
        return np.argsort(self._curves @ np.exp(grid()[1]), kind="stable")

    @cached_property
    def _places(self) -> dict[str, int]:
        return {str(name): at for at, name in enumerate(self.items["item"])}

    @cached_property
    def _unfit(self) -> Array:
        """Items that are not chosen adaptively, (J,) of bool."""
        return np.asarray(
            (self.items["discrimination"] < ADAPTIVE_SLOPE).to_numpy() | self.items["flag"].isin(_UNFIT).to_numpy()
        )

    def information(self, ability: Array) -> Array:
        """Return Fisher's information of all items together at each ability: sum_j a_j^2 p_j (1 - p_j).

        Examples
        --------
        >>> bank = ItemBank.load("ikp")
        >>> bool(bank.information(np.array([0.0]))[0] > bank.information(np.array([4.0]))[0])
        True
        """
        return np.asarray(self._information_of_items(ability).sum(1))

    def choose(self, count: int, *, chosen: Chosen = "stratified", seed: int = 0) -> list[str]:
        """Return items to ask a new model.

        Parameters
        ----------
        count : int
        chosen : {"stratified", "random"}
            Spread evenly over difficulty, or any. Adaptive ones come from :meth:`next`.
        seed : int

        Returns
        -------
        list of str
            A larger count begins with the items of a smaller one, so that more can be asked later.

        Raises
        ------
        InputError
            When the bank has fewer items.

        Examples
        --------
        >>> len(set(ItemBank.load("ikp").choose(101)))
        101
        """
        if chosen not in ("stratified", "random"):
            raise InputError(
                f"chosen {chosen!r}: write stratified or random; adaptive items come from bank.next(answers)"
            )
        if not 1 <= count <= len(self):
            raise InputError(f"{count} items: the bank has {len(self)}")
        rng = named_stream(seed, "items", self.name, chosen)
        every = rng.permutation(len(self)) if chosen == "random" else _spread(self._order, rng)
        return [str(name) for name in self.items["item"].to_numpy()[every[:count]]]

    def of_items(self, names: Iterable[str]) -> ItemBank:
        """Return a bank of some of the items, whose score is the mean over these.

        Examples
        --------
        >>> bank = ItemBank.load("ikp")
        >>> len(bank.of_items(bank.choose(100)))
        100
        """
        return replace(self, items=self.items[self.items["item"].isin(set(names))].reset_index(drop=True))

    def next(self, answers: Answers, count: int = 1) -> list[str]:
        """Return the items that tell most about a model's ability, given its answers so far.

        Parameters
        ----------
        answers : mapping, series, array or table
            May be empty.
        count : int
            The best so many.

        Examples
        --------
        >>> bank = ItemBank.load("ikp")
        >>> first = bank.next({})
        >>> first == bank.next({first[0]: 1.0})
        False
        """
        at, value, _ = self._answered(answers)
        _, weights, _ = self._posterior(at, value)
        information = self._choosable(weights @ grid()[0])[0]
        information[at] = -1.0
        best = np.argsort(-information, kind="stable")[:count]
        return [str(name) for name in self.items["item"].to_numpy()[best[information[best] > 0]]]

    def _information_of_items(self, ability: Array) -> Array:
        """Information of each item at each ability, (M, J)."""
        p = expit(np.outer(np.asarray(ability, dtype=float), self.slope) + self.intercept)
        return np.asarray(self.slope**2 * p * (1 - p))

    def _choosable(self, ability: Array) -> Array:
        """The same to six places, so that no processor's rounding breaks a tie; zero for what is not chosen."""
        information = np.round(self._information_of_items(ability), 6)
        information[:, self._unfit] = 0.0
        return information

    def _posterior(self, at: Array, value: Array) -> tuple[Array, Array, Array]:
        return posterior(value[None], self.slope[at], self.intercept[at])

    def _answered(self, answers: Answers, model: str | None = None) -> tuple[Array, Array, tuple[Note, ...]]:
        """Return positions of answered items, their answers, and what is wrong with some."""
        rows = one_model(answers, self.items["item"], model)
        unknown = [name for name in rows["item"] if name not in self._places]
        if unknown:
            raise UnknownNameError("item of the bank", unknown[0], self._places)
        at = np.array([self._places[name] for name in rows["item"]], dtype=int)
        texts, ours = rows["text_hash"].to_numpy(), self.items["text_hash"].to_numpy()[at]
        other = (texts != "") & (ours != "") & (texts != ours)
        notes: tuple[Note, ...] = ()
        if other.any():
            names = [str(name) for name in rows["item"][other]]
            message = (
                f"{formatting.plural(len(names), 'item')} with other texts than the bank's "
                f"({formatting.listed(names, 3)}): left out; the bank may be of another version of the task"
            )
            notes = (Note("other-texts", "warning", message, {"items": names}),)
        return at[~other], rows["answer"].to_numpy(dtype=float)[~other], notes

    def estimate(
        self,
        answers: Answers,
        *,
        chosen: Chosen = "stratified",
        control: bool = True,
        level: float = 0.95,
        model: str | None = None,
    ) -> BankScore:
        """Return the score on the whole bank from answers to some of its items.

        Parameters
        ----------
        answers : mapping, series, array or table
            Item to answer in [0, 1]; an array has the bank's order, NaN where there is no answer.
        chosen : {"stratified", "random", "adaptive"}
            How the items were chosen: by :meth:`choose`, or by :meth:`next`.
        control : bool
            Use the curves as control variate; without it strata or the mean alone. Adaptive choice needs the curves.
        level : float
            Of the interval.
        model : str, optional
            Which one, where a table holds several.

        Raises
        ------
        InputError, TableError
            Answers outside 0 to 1, items that the bank does not have, more adaptive items than are calibrated.

        Examples
        --------
        >>> bank = ItemBank.load("ikp")
        >>> answers = {item: float(at % 2) for at, item in enumerate(bank.choose(60, seed=1))}
        >>> score = bank.estimate(answers)
        >>> score.lo < score.score < score.hi
        True
        """
        if chosen not in ("stratified", "random", "adaptive"):
            raise InputError(f"chosen {chosen!r}: write stratified, random or adaptive")
        if not 0 < level < 1:
            raise InputError(f"level {level}: write a share between 0 and 1, such as 0.95")
        at, value, notes = self._answered(answers, model)
        if not len(at):
            raise InputError("no answers: give at least one item of the bank")
        if chosen == "adaptive" and not control:
            raise InputError("adaptive items need the curves: leave control on, or choose the items otherwise")
        theta, weights, _ = self._posterior(at, value)
        weights = weights[0]
        ability = float(weights @ theta)
        error = float(np.sqrt(max(weights @ theta**2 - ability**2, 0.0)))
        status, sentence = self._status(len(at), ability)
        if status == "few_items":
            score, lo, hi = _few(value, level)
            sd = math.sqrt(score * (1 - score) / len(at))
        elif chosen == "adaptive":
            score, half = self._adaptive(at, value, weights, level)
            sd = half / float(stats.norm.ppf(0.5 + level / 2))
            lo, hi = _interval(score, half)
            if status == "above_range":
                hi = 1.0
            elif status == "below_range":
                lo = 0.0
        else:
            score, sd, degrees = self._sampled(at, value, weights, chosen, control)
            lo, hi = _interval(score, sd * float(stats.t.ppf(0.5 + level / 2, degrees)))
        return BankScore(
            score, lo, hi, sd, level, ability, error, len(at), len(self), chosen, control, status, sentence, notes
        )

    def _status(self, count: int, ability: float) -> tuple[str, str]:
        if count < FEW_ITEMS:
            return "few_items", (
                f"{formatting.plural(count, 'item')}: the score is their plain mean with a binomial interval; "
                f"answer {FEW_ITEMS} or more for the bank's estimate"
            )
        known = self.models["ability"].to_numpy(dtype=float)
        if ability > known.max():
            best = str(self.models["model"].iloc[int(known.argmax())])
            return "above_range", (
                f"abler than every calibrated model (the best is {best}): the ability is a lower limit, and so is a "
                "score from adaptive items"
            )
        if ability < known.min():
            least = str(self.models["model"].iloc[int(known.argmin())])
            return "below_range", (
                f"less able than every calibrated model (the least is {least}): the ability is an upper limit, and so "
                "is a score from adaptive items"
            )
        return "ok", ""

    def estimate_parts(self, answers: Answers, parts: Iterable[str], *, model: str | None = None) -> pd.DataFrame:
        """Return the score on each part of the bank, such as its tasks, from stratified items of each.

        The ability that the curves are read at comes from all answers; a part's residuals correct its own score.

        Parameters
        ----------
        answers, model
            As for :meth:`estimate`.
        parts : iterable of str
            The part that each item of the bank belongs to.

        Returns
        -------
        pandas.DataFrame
            By part: score, error (standard error), answered, items. Parts with fewer than three answers have NaN.

        Examples
        --------
        >>> bank = ItemBank.load("ikp")
        >>> answers = {item: float(at % 2) for at, item in enumerate(bank.choose(200))}
        >>> bank.estimate_parts(answers, bank.items["task"])["items"].sum() == len(bank)
        np.True_
        """
        label = pd.Series(list(parts), self.items["item"].astype(str))
        at, value, _ = self._answered(answers, model)
        weights = self._posterior(at, value)[1][0]
        rows = []
        for part, members in label.groupby(label, sort=False):
            own = self.of_items(members.index)
            mine = label.iloc[at].eq(part).to_numpy()
            where = np.array([own._places[name] for name in label.index[at[mine]]], dtype=int)
            score, error = math.nan, math.nan
            if len(where) >= PER_STRATUM + 1:
                score, error, _ = own._sampled(where, value[mine], weights, "stratified", True)
            rows.append({"part": part, "score": score, "error": error, "answered": len(where), "items": len(own)})
        return pd.DataFrame(rows).set_index("part")

    def _sampled(
        self, at: Array, value: Array, weights: Array, chosen: str, control: bool
    ) -> tuple[float, float, float]:
        """Return the estimate by strata, corrected by the residuals of the curves; its error; degrees of freedom."""
        total, count = len(self), len(at)
        strata = self._strata(at) if chosen == "stratified" else np.zeros(total, dtype=int)
        predicted = self._curves @ weights if control else np.zeros(total)
        residual = value - predicted[at]
        mine = strata[at]
        sizes, answered = np.bincount(strata), np.bincount(mine)
        means = np.bincount(mine, residual) / answered
        share = sizes / total
        score = float(predicted.mean() + share @ means)
        if control:
            expected = predicted * (1 - predicted)
            # Residuals that are larger, or smaller, than the curves expect; two parameters' worth of fit.
            ratio = (residual @ residual + PRIOR_ITEMS * expected.mean()) / (
                expected[at].sum() + PRIOR_ITEMS * expected.mean()
            )
            variance = ratio * count / (count - 1) * np.bincount(strata, expected) / sizes
            degrees = count - 2
        else:
            variance = np.bincount(mine, (residual - means[mine]) ** 2) / np.maximum(answered - 1, 1)
            degrees = max(count - len(sizes), 1)
        error = math.sqrt(float((share**2 * (1 - answered / sizes) * variance / answered).sum()))
        return score, error, degrees

    def _strata(self, at: Array) -> Array:
        """Return the stratum of each item: as :meth:`choose` makes them, joined until each has two answers."""
        answered = np.zeros(len(self), dtype=int)
        answered[at] = 1
        strata, number, held = np.empty(len(self), dtype=int), 0, 0
        parts = np.array_split(self._order, max(1, len(at) // PER_STRATUM))
        left = len(at)
        for part in parts:
            strata[part] = number
            held += int(answered[part].sum())
            left -= int(answered[part].sum())
            if held >= PER_STRATUM and left >= PER_STRATUM:
                number, held = number + 1, 0
        return strata

    def _adaptive(self, at: Array, value: Array, weights: Array, level: float) -> tuple[float, float]:
        """Return the predicted score, and the half-width of its interval."""
        if not self.corrections:
            raise InputError("this bank has no intervals for adaptive items: it was calibrated on too few models")
        if len(at) > MOST_ADAPTIVE:
            raise InputError(
                f"{len(at)} adaptive items: their intervals are calibrated up to {MOST_ADAPTIVE}; for more, stratified "
                "items are as good"
            )
        if not LEVELS[0] <= level <= LEVELS[-1]:
            raise InputError(f"level {level}: with adaptive items between {LEVELS[0]} and {LEVELS[-1]}")
        answered = np.zeros((1, len(self)))
        known = np.full((1, len(self)), np.nan)
        answered[0, at], known[0, at] = 1.0, value
        (score,), (error,) = predict_rest(self._curves, weights[None], known, np.ones((1, len(self)), dtype=bool))
        widths = [float(np.interp(level, LEVELS, each.quantiles)) for each in self.corrections]
        width = float(np.interp(len(at), [each.items for each in self.corrections], widths))
        return float(score), float(error) * width

    # -- files ---------------------------------------------------------------------------------------------------------

    def save(self, path: Path | str) -> Path:
        """Write the bank as JSON.

        Examples
        --------
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     ItemBank.load("ikp").save(f"{folder}/bank.json").name
        'bank.json'
        """
        target = Path(path)
        items, models = self.items.copy(), self.models.copy()
        models["released"] = [formatting.day(day) if pd.notna(day) else "" for day in models["released"]]
        columns = {
            name: {str(key): _rounded(frame[key]) for key in frame.columns}
            for name, frame in (("items", items), ("models", models))
        }
        content = {
            "schema": SCHEMA,
            "schema_version": VERSION,
            "name": self.name,
            "source": self.source,
            "licence": self.licence,
            "slopes": self.slopes,
            **columns,
            "corrections": [msgspec.to_builtins(each) for each in self.corrections],
        }
        write_text(target, msgspec.json.encode(plain(content)).decode() + "\n")
        return target

    @classmethod
    def load(cls, path: Path | str) -> ItemBank:
        """Read a bank: a file that :meth:`save` wrote, or the name of one that ships (``ikp``).

        Raises
        ------
        ArtefactError
            When the file is not a bank, damaged, or of another version.
        InputError
            When there is no such file.
        """
        shipped = SHIPPED / f"{path}.json"
        source = shipped if str(path).isidentifier() and shipped.is_file() else Path(path)
        content = parse_json(read_text(source, str(path)), str(path))
        if not isinstance(content, dict) or content.get("schema") != SCHEMA:
            found = short(content.get("schema")) if isinstance(content, dict) else short(content)
            raise ArtefactError(f"{path}: $.schema: {found} is not {SCHEMA!r}; this is not a bank of items")
        if content.get("schema_version") != VERSION:
            raise ArtefactError(
                f"{path}: a bank of version {short(content.get('schema_version'))}, not {VERSION}; calibrate it again"
            )
        try:
            file = decode(content, _File)
        except ArtefactError as error:
            raise ArtefactError(f"{path}: {error}") from error
        items, models = (
            pd.DataFrame(_same_length(msgspec.to_builtins(part), str(path))) for part in (file.items, file.models)
        )
        items[["fit_p", "drift_z"]] = items[["fit_p", "drift_z"]].astype(float)
        models["released"] = pd.to_datetime(models["released"].replace("", None))
        return cls(file.name, items, models, tuple(file.corrections), file.slopes, file.source, file.licence)

    # -- what is shown -------------------------------------------------------------------------------------------------

    @property
    def notes(self) -> tuple[Note, ...]:
        """How many items are flagged, and why."""
        counts = self.items["flag"].value_counts()
        return tuple(
            Note(
                f"items-{flag.replace('_', '-')}", "info", f"{formatting.plural(int(counts[flag]), 'item')}: {meaning}"
            )
            for flag, meaning in FLAGS.items()
            if flag in counts
        )

    @property
    def by_task(self) -> pd.DataFrame:
        """One row per task: items, mean share, median slope, items flagged."""
        groups = self.items.assign(flagged=self.items["flag"].ne("")).groupby("task", sort=True)
        return groups.agg(
            items=("item", "size"),
            share=("share", "mean"),
            slope=("discrimination", "median"),
            flagged=("flagged", "sum"),
        ).reset_index()

    @property
    def sentence(self) -> str:
        """Where the bank measures best, and how many of its items tell something."""
        across = np.linspace(-3, 3, 121)
        information = self.information(across)
        best = float(across[information.argmax()])
        telling = int((~self._unfit).sum())
        return (
            f"{telling} of {len(self)} items tell models apart; all together measure ability best at "
            f"{formatting.number(best)} (± {formatting.number(1 / math.sqrt(float(information.max())))}), in standard "
            f"deviations of the {len(self.models)} calibrated models."
        )

    def tasks_listing(self) -> Listing:
        """Return one row per task as people read it."""
        return Listing("Items by task.", self.by_task, TASK_FIELDS)

    def items_listing(self) -> Listing:
        """Return the items as people read them, the hardest first."""
        table = self.items.assign(difficulty=self.difficulty).iloc[self._order]
        return Listing("Items, the hardest first.", table, ITEM_FIELDS)

    def information_listing(self) -> Listing:
        """Return the standard error of ability over ability, and the items whose difficulty is near each."""
        across = np.arange(-3.0, 3.5, 1.0)
        near = [int((np.abs(self.difficulty - at) <= 0.5).sum()) for at in across]
        table = pd.DataFrame({"ability": across, "error": 1 / np.sqrt(self.information(across)), "items": near})
        return Listing("What all items tell at an ability.", table, INFORMATION_FIELDS)

    def to_dict(self) -> dict[str, Any]:
        """Return what a program reads of it, without the items."""
        return {
            "name": self.name,
            "source": self.source,
            "licence": self.licence,
            "slopes": self.slopes,
            "tasks": self.by_task,
            "information": self.information_listing().rows,
            "models": self.models,
            "corrections": [msgspec.to_builtins(each) for each in self.corrections],
        }

    def card(self) -> Card:
        """Return what is shown of this bank."""
        ability = self.models["ability"]
        span = f"{formatting.number(ability.min())} to {formatting.number(ability.max())}"
        facts = {
            "models": f"{len(self.models)}, abilities {span}",
            "source": self.source or formatting.MISSING,
            "licence": self.licence or formatting.MISSING,
        }
        return Card(f"Bank {self.name}: {len(self)} items", facts, self.tasks_listing(), self.notes)


_UNFIT = ("none_right", "all_right", "not_discriminating", "duplicate")


TASK_FIELDS = (
    Field("Task", column("task")),
    numeric("Items", "items", formatting.clean),
    numeric("Right", "share", formatting.share, "mean share of calibrated models that solve an item"),
    numeric("Slope", "slope", formatting.number, "median; how well items tell models apart"),
    numeric("Flagged", "flagged", formatting.clean),
)
ITEM_FIELDS = (
    Field("Item", column("item")),
    Field("Task", column("task"), optional=True),
    numeric("Difficulty", "difficulty", hint="ability at which half of the models solve it"),
    numeric("Slope", "discrimination", hint="how well it tells models apart"),
    numeric("Right", "share", formatting.share, "share of calibrated models that solve it"),
    Field("Flag", lambda row: FLAGS.get(str(row["flag"]), ""), optional=True),
)
INFORMATION_FIELDS = (
    numeric("Ability", "ability"),
    numeric("Standard error", "error"),
    numeric("Items near", "items", formatting.clean, "whose difficulty is within a half of it"),
)
SCORE_FIELDS = (
    numeric("Score", "score", formatting.share),
    Field("Interval", ranged("", formatting.share)),
    numeric("Ability", "ability", hint="in standard deviations of the calibrated models"),
    numeric("Error", "ability_error"),
    numeric("Items", "items", formatting.clean),
    Field("Chosen", column("chosen")),
    Field("Status", column("status")),
    Field("What it means", column("sentence"), optional=True),
)


def calibrate_items(
    *sources: TableLike | Array | AnswerTable,
    name: str = "bank",
    slopes: str = "auto",
    source: str = "",
    licence: str = "",
) -> ItemBank:
    """Calibrate the items that models answered.

    Parameters
    ----------
    *sources : path, table or array
        As :func:`read_answers` takes them, or what it returned.
    name : str
    slopes : {"auto", "each", "common"}
        2PL, 1PL, or whichever predicts adaptively tried models of other dates better: high slopes are partly luck and
        partly of their time, and adaptive choice looks for just these.
    source, licence : str
        Of the answers; kept with the bank.

    Raises
    ------
    InputError, TableError
        As :func:`read_answers`; too few models or items.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> answers = rng.random((60, 30)) < expit(rng.normal(size=(60, 1)) - np.linspace(-2, 2, 30))
    >>> bank = calibrate_items(answers.astype(float))
    >>> len(bank), len(bank.models)
    (30, 60)
    """
    if slopes not in ("auto", *SLOPES):
        raise InputError(f"slopes {slopes!r}: write each (2PL), common (1PL) or auto")
    table = sources[0] if len(sources) == 1 and isinstance(sources[0], AnswerTable) else read_answers(*sources)
    answers = table.answers.to_numpy(dtype=float)
    for count, least, kind in ((len(answers), FEW_MODELS, "model"), (answers.shape[1], FEW_BANK, "item")):
        if count < least:
            raise InputError(f"{formatting.plural(count, kind)}: a bank is calibrated on {least} or more")
    free = fit_curves(answers)
    day = table.released.to_numpy(dtype="datetime64[D]")
    released = np.where(np.isnat(day), np.nan, day.astype("int64").astype(float))
    items = table.items.reset_index(names="item")
    items["discrimination"], items["discrimination_error"] = free.slope, free.slope_error
    checked = check_items(answers, free, released, items["text_hash"].to_numpy(dtype=str))
    items = pd.concat([items, checked], axis=1)
    tried = {kind: _corrections(items, answers, released, kind) for kind in (SLOPES if slopes == "auto" else (slopes,))}
    # By the last looks: of the few first items the curves say little. The first kind where nothing can be tried.
    kind = min(tried, key=lambda each: sum(look.error for look in tried[each][-3:]))
    curves = free if kind == "each" else fit_curves(answers, slopes=kind)
    models = pd.DataFrame(
        {
            "model": table.answers.index.astype(str),
            "released": table.released.to_numpy(),
            "ability": curves.ability,
            "ability_error": curves.ability_error,
            "answers": np.isfinite(answers).sum(1),
            "score": np.nanmean(answers, 1),
        }
    )
    items = items.assign(slope=curves.slope, intercept=curves.intercept)
    # As a file holds them, so that a bank that is saved draws the same strata.
    items, models = (
        frame.round(dict.fromkeys(frame.select_dtypes("float"), DIGITS))
        for frame in (items[list(_Items.__struct_fields__)], models)
    )
    return ItemBank(name, items, models, tried[kind], kind, source, licence)


def _corrections(items: pd.DataFrame, answers: Array, released: Array, slopes: str) -> tuple[Correction, ...]:
    """Return how far adaptive predictions are off: folds of models by date, each by the curves of the rest."""
    order = np.argsort(np.where(np.isfinite(released), released, np.inf), kind="stable")
    looks = [look for look in LOOKS if look <= answers.shape[1] // 2]
    errors: list[list[Array]] = [[] for _ in looks]
    ratios: list[list[Array]] = [[] for _ in looks]
    for fold in np.array_split(order, FOLDS):
        rest = np.setdiff1d(order, fold)
        curves = fit_curves(answers[rest], slopes=slopes)
        others = ItemBank("", items.assign(slope=curves.slope, intercept=curves.intercept), pd.DataFrame())
        truth = np.nanmean(answers[fold], 1)
        for at, (score, error) in enumerate(follow_adaptive(others, answers[fold], looks)):
            errors[at].append(score - truth)
            ratios[at].append(np.abs(score - truth) / error)
    found = []
    for look, error, ratio in zip(looks, map(np.concatenate, errors), map(np.concatenate, ratios), strict=True):
        # The rank that one model more has its level of chance to stay below.
        rank = [min(math.ceil((len(ratio) + 1) * level), len(ratio)) - 1 for level in LEVELS]
        quantiles = tuple(float(each) for each in np.sort(ratio)[rank])
        found.append(Correction(look, quantiles, float(np.abs(error).mean()), float(error.mean()), len(ratio)))
    return tuple(found)


def follow_adaptive(bank: ItemBank, answers: Array, looks: Sequence[int]) -> list[tuple[Array, Array]]:
    """Ask models adaptively what they are known to answer; return the predicted score and its own error at each look.

    Parameters
    ----------
    bank : ItemBank
    answers : (M, J) array
        In the bank's order, NaN where there is none; items without an answer are not asked and not part of the score.
    looks : sequence of int
        Numbers of items, rising.
    """
    theta, log_weight = grid()
    curves = bank._curves
    logits = np.outer(bank.slope, theta) + bank.intercept[:, None]
    softplus = np.logaddexp(0, logits)
    exists = np.isfinite(answers)
    value, known = np.where(exists, answers, 0.0), np.full(answers.shape, np.nan)
    log, rows = np.tile(log_weight, (len(answers), 1)), np.arange(len(answers))
    result = []
    for count in range(1, max(looks, default=0) + 1):
        weights = _normal(log)
        information = bank._choosable(weights @ theta)
        information[~exists | np.isfinite(known)] = -1.0
        best = information.argmax(1)
        known[rows, best] = value[rows, best]
        log += value[rows, best, None] * logits[best] - softplus[best]
        if count in looks:
            result.append(predict_rest(curves, _normal(log), known, exists))
    return result


def _normal(log: Array) -> Array:
    weights = np.exp(log - log.max(1, keepdims=True))
    return np.asarray(weights / weights.sum(1, keepdims=True))


def predict_rest(curves: Array, weights: Array, known: Array, exists: Array) -> tuple[Array, Array]:
    """Return scores as the answers that are known and predictions for the rest, and the errors that the curves expect.

    Parameters
    ----------
    curves : (J, Q) array
    weights : (M, Q) array
        Posterior of each model.
    known : (M, J) array
        Answers, NaN where there is none.
    exists : (M, J) array of bool
        Items that count.
    """
    open_ = (exists & ~np.isfinite(known)).astype(float)
    count = exists.sum(1)
    at_node = (np.nansum(known, 1)[:, None] + open_ @ curves) / count[:, None]
    score = (weights * at_node).sum(1)
    of_ability = np.maximum((weights * at_node**2).sum(1) - score**2, 0.0)
    p = weights @ curves.T
    return score, np.sqrt(of_ability + (p * (1 - p) * open_).sum(1) / count**2)


def _spread(order: Array, rng: np.random.Generator) -> Array:
    """Return an order of which every beginning is spread evenly: halves take turns, and so do theirs.

    Lots decide which half begins, in proportion to their items, and which is the larger, so that no item comes early
    more often than others.
    """
    count = len(order)
    if count < 2:
        return order
    cut = (count + int(rng.integers(2))) // 2
    halves = [_spread(half, rng) for half in (order[:cut], order[cut:])]
    first = int(rng.random() >= cut / count)
    turns = [np.arange(len(half)) + (at != first) / 2 for at, half in enumerate(halves)]
    return np.concatenate(halves)[np.argsort(np.concatenate(turns), kind="stable")]


def _few(value: Array, level: float) -> tuple[float, float, float]:
    """Return the mean with the interval of Clopper and Pearson."""
    from statsmodels.stats.proportion import proportion_confint

    right, count = float(value.sum()), len(value)
    lo, hi = proportion_confint(right, count, 1 - level, method="beta")
    return right / count, float(lo), float(hi)


def _interval(score: float, half: float) -> tuple[float, float]:
    return max(score - half, 0.0), min(score + half, 1.0)


def _rounded(values: pd.Series) -> list[Any]:
    if values.dtype.kind == "f":
        return [None if math.isnan(value) else round(float(value), DIGITS) for value in values]
    return list(values.tolist())


def _same_length(columns: dict[str, list[Any]], path: str) -> dict[str, list[Any]]:
    if len({len(values) for values in columns.values()}) != 1:
        raise ArtefactError(f"{path}: columns of different lengths; the file is damaged")
    return columns
