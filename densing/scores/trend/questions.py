"""The questions of the trend: each answered with an estimate, an interval and a test, from one joint scale."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from densing.core import Array, DensingError, InputError, UnknownNameError, cached
from densing.scores.catalog import OWN_FLAGS, Catalog, Selection, load_recall, select, selection_of
from densing.scores.joint import catalog_scale, joint_cells
from densing.scores.references import SKILLS
from densing.scores.trend import compute, experts, languages, periods, skills
from densing.scores.trend.answers import PER_YEAR, Answer, Answers, unanswered
from densing.scores.trend.data import EPOCH, TrendData
from densing.scores.trend.facts import recall_trend
from densing.scores.trend.joint_data import JointData, shifted
from densing.scores.trend.languages import FEWEST_MODELS, LANGUAGES, LanguageData, TableStep
from densing.scores.trend.tobit import tobit_slope

FEWEST_CELLS, FEWEST_SKILLS = 3, 3
"""Scores in a language, or skills, from which on a model counts as measured there."""
MULTILINGUAL = "multilingual"
"""The basket of all languages but English."""
UNNAMED = "mul"
"""The language of benchmarks that hold several: XWinograd says little of any."""
FITTING = 0.6
"""Share of the time that a scale takes which is not in the cache."""
PILOT = (("falcon_h1_docs",), "Falcon's English table"), (("euroeval", "euroeval_val"), "EuroEval")
"""The two tables whose paces differed in a pilot."""
KEPT = 10
"""Answers that stay in the cache folder."""


def answer_questions(
    catalog: Catalog,
    names: Sequence[str] | None = None,
    *,
    level: float = 0.95,
    seed: int = 0,
    keep: bool = False,
    step: Callable[[str, float], None] = lambda label, share: None,
) -> Answers:
    """Answer the questions of the trend on the joint scale of a catalog.

    Parameters
    ----------
    catalog : Catalog
        Embedded, or with a user's rows.
    names : sequence of str, optional
        Of ``pace, language, skill, experts, compute``; all by default.
    level : float
        Of all intervals.
    seed : int
    keep : bool
        Whether the answers are cached, and read from the cache for the same catalog and options.
    step : callable
        Called with a label and the share done, for progress bars.

    Returns
    -------
    Answers
        One :class:`Answer` per question, in the order asked. For a question that the catalog cannot answer it says
        why and gives no number.

    Raises
    ------
    UnknownNameError
        For another question.
    InputError
        For a level outside (0, 1).

    See Also
    --------
    estimate_trend, recall_trend
    """
    if not 0 < level < 1:
        raise InputError(f"level {level} is not between 0 and 1; write 0.95 for 95 %")
    names = list(QUESTIONS) if names is None else list(dict.fromkeys(names))
    for name in names:
        if name not in QUESTIONS:
            raise UnknownNameError("question of the trend", name, QUESTIONS)

    def fitting(label: str, share: float) -> None:
        step(label, FITTING * share)

    def work() -> Answers:
        fitting("joint scale", 0.0)
        try:
            data = JointData(catalog, catalog_scale(catalog, step=fitting), seed)
        except DensingError as error:
            return Answers(tuple(_nothing(name, error) for name in names), level)
        answers = []
        for position, name in enumerate(names):
            step(name, FITTING + (1 - FITTING) * position / len(names))
            try:
                answers.append(QUESTIONS[name].ask(data, level))
            except DensingError as error:
                answers.append(_nothing(name, error))
        step("answers", 1.0)
        return Answers(tuple(answers), level)

    inputs = (catalog.digest, names, level, seed)
    return cached(work, Answers, "answers", *inputs, by=answer_questions, most=KEPT) if keep else work()


def _pace(data: JointData, level: float) -> Answer:
    models = data.dated()
    makers = periods.front_makers(data.ablest)
    measured = data.traits(models) >= FEWEST_SKILLS
    return periods.answer_pace(models, makers=makers, measured=measured, level=level, seed=data.seed)


def _language(data: JointData, level: float) -> Answer:
    if MULTILINGUAL not in data.scale.baskets:
        reason = "no benchmark on the joint scale is in another language than English"
        return unanswered("language", languages.QUESTION, PER_YEAR, reason)
    traits = data.scale.basket(MULTILINGUAL).traits
    shares = {name.split(" in ")[0]: share for name, share in traits.items()}
    english = [
        (data.measured_in(skill), share, skill) for skill, share in shares.items() if skill in data.scale.baskets
    ]
    if abs(sum(share for _, share, _ in english) - 1) > 1e-9:
        raise InputError("the multilingual basket has skills that English does not, so no skill is the same in both")
    table = data.scale.cells.table
    named = table[~table["language"].isin(["en", UNNAMED])]
    counts = named["model"].value_counts()
    multilingual = data.dated(MULTILINGUAL)
    others = skills.on_models(multilingual, set(counts.index[counts >= FEWEST_CELLS]))
    loosely = multilingual.take(data.traits(multilingual, MULTILINGUAL) > 0)
    headline = set(multilingual.model.tolist())
    by_code = named[named["model"].isin(headline)].groupby("language")["model"].agg(set)
    members = [code for group in LANGUAGES.values() for code in group]
    codes = {
        code: skills.on_models(data.dated(code), by_code[code])
        for code in members
        if code in by_code and len(by_code[code]) >= FEWEST_MODELS
    }
    measured = LanguageData(english, data.dated(), others, loosely, codes)
    return languages.answer_language(measured, _pilot(data), level=level, seed=data.seed)


def _pilot(data: JointData) -> list[TableStep]:
    """Return two evaluators' tables, then the second with one change at a time."""
    catalog, cells = data.catalog, data.scale.cells.table
    (first, first_name), (second, second_name) = PILOT
    headline = select(catalog, Selection(since=EPOCH))
    wide = select(catalog, selection_of(["continued", "compressed", "moe", "unverified"]))
    one, other = cells[cells["evaluator"].isin(first)], cells[cells["evaluator"].isin(second)]
    if one.empty or other.empty:
        return []
    window = headline[headline["model"].isin(one["model"])]["released"]
    same_window = headline[headline["released"].between(window.min(), window.max())]
    until = headline[headline["released"].le(window.max())]
    from_scratch = headline[headline["derivation"].eq("scratch")]
    common = headline[headline["model"].isin(set(one["model"]) & set(other["model"]))]
    flagged = joint_cells(replace(catalog, scores=_without_flags(catalog.scores))).table
    raw = flagged[flagged["evaluator"].isin(second)]
    makers = headline[headline["organisation"].isin(headline[headline["model"].isin(one["model"])]["organisation"])]
    measurer = catalog.evaluators.set_index("id")["organisation"].reindex(first).dropna().tolist()
    foreign = headline[~headline["organisation"].isin(measurer)]
    return [
        TableStep(first_name, one, headline),
        TableStep(second_name, other, headline),
        TableStep(f"{second_name}, English only", other[other["language"].eq("en")], headline, "English only"),
        TableStep(
            f"{second_name}, other languages only", other[other["language"].ne("en")], headline, "other languages only"
        ),
        TableStep(f"{second_name}, to the last date of {first_name}", other, until, "the same last date"),
        TableStep(f"{second_name}, window of {first_name}", other, same_window, "the same window"),
        TableStep(f"{second_name}, makers of {first_name}", other, makers, "the same makers"),
        TableStep(f"{second_name}, without distilled models", other, from_scratch, "no distilled models"),
        TableStep(f"{second_name}, with erratic rows", raw, headline, "erratic rows kept"),
        TableStep(f"{second_name}, all models of any kind", other, wide),
        TableStep(f"{second_name}, all of any kind, with erratic rows", raw, wide),
        TableStep(f"{second_name}, models of both tables", other, common),
        TableStep(f"{first_name}, models of both tables", one, common),
        TableStep(f"{first_name}, all models of any kind", one, wide),
        TableStep(
            f"{first_name}, without distilled models",
            one,
            from_scratch,
            "no distilled models in the first",
            of_first=True,
        ),
        TableStep(
            f"{first_name}, without its own makers' models",
            one,
            foreign,
            "the first without its own makers' models",
            of_first=True,
        ),
    ]


def _without_flags(scores: pd.DataFrame) -> pd.DataFrame:
    """Remove the flags of the rule for erratic rows, and keep all others."""
    flags = [
        ";".join(flag for flag in cell.split(";") if flag not in OWN_FLAGS) if isinstance(cell, str) else cell
        for cell in scores["flags"]
    ]
    return scores.assign(flags=flags)


def _skill(data: JointData, level: float) -> Answer:
    measured = {skill: data.measured_in(skill) for skill in SKILLS if skill in data.scale.baskets}
    headline = tobit_slope(data.dated(), level, seed=data.seed).doubling_months
    recall = recall_trend(load_recall(), level=level, pace_months=headline) if np.isfinite(headline) else None
    return skills.answer_skill(measured, recall=recall, level=level, seed=data.seed)


def _experts(data: JointData, level: float) -> Answer:
    models, ratio = expert_data(data)
    measured = data.traits(models, include=("moe",)) >= FEWEST_SKILLS
    wider = expert_data(data, ("moe", "unverified"))
    answer = experts.answer_experts(models, ratio, measured=measured, wider=wider, level=level, seed=data.seed)
    catalog = data.catalog.models
    mixtures = catalog.loc[catalog["architecture"].eq("moe") & catalog["kind"].eq("base"), "model"]
    on_scale = int(mixtures.isin(data.scale.models).sum())
    reach = (
        f"Of {len(mixtures)} base mixtures of experts in the catalog {on_scale} are on the joint scale and "
        f"{int((ratio > 0).sum())} have a sourced date since {EPOCH.date()} and both sizes; makers' own figures of "
        "their own models do not count."
    )
    return replace(answer, caveats=(*answer.caveats, reach))


def expert_data(data: JointData, include: tuple[str, ...] = ("moe",)) -> tuple[TrendData, Array]:
    """Return ln(effective size / active parameters) of dense models and mixtures, and ln(total / active)."""
    models = data.dated(include=include)
    total, active = (np.log(data.fact(models, f"params_{name}_b")) for name in ("total", "active"))
    moe = data.catalog.models.set_index("model")["architecture"].reindex(models.model).eq("moe").to_numpy()
    # A dense model uses what it has, whether or not a table says so; a mixture of one unknown size says nothing.
    ratio = np.where(moe, total - active, 0.0)
    known = np.isfinite(ratio)
    return shifted(models.take(known), ratio[known]), ratio[known]


def _compute(data: JointData, level: float) -> Answer:
    models = data.dated()
    log_size = np.log(data.fact(models, "params_total_b") * 1e9)
    tokens = data.fact(models, "tokens_t") * 1e12
    return compute.answer_compute(models, log_size, tokens, level=level, seed=data.seed)


@dataclass(frozen=True)
class Question:
    """A question of the trend.

    Parameters
    ----------
    text : str
        The question as a reader asks it.
    unit : str
        Of the answer.
    ask : callable
        Called with the data and the level of the interval.
    """

    text: str
    unit: str
    ask: Callable[[JointData, float], Answer]


QUESTIONS: Mapping[str, Question] = {
    "pace": Question(periods.QUESTION, PER_YEAR, _pace),
    "language": Question(languages.QUESTION, PER_YEAR, _language),
    "skill": Question(skills.QUESTION, PER_YEAR, _skill),
    "experts": Question(experts.QUESTION, experts.UNIT, _experts),
    "compute": Question(compute.QUESTION, compute.UNIT, _compute),
}


def _nothing(name: str, error: DensingError) -> Answer:
    question = QUESTIONS[name]
    return unanswered(name, question.text, question.unit, str(error).rstrip("."))
