"""Adaptive evaluation: items in random order, in planned looks, until a stopping rule is met.

The rule is handed in, because evaluation knows nothing of density. The result is an ordinary unit per task, whose key
names the rule and the order instead of the items, so that a second call finds it: lm-eval evaluates the chosen items
once more at the end, and the unit's journal has every answer already.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from densing.core import InputError, Note, UnavailableError, install_command, strip_secrets
from densing.scores.evals.evaluation import environment, evaluate_unit
from densing.scores.evals.identity import UnitKey, effective_shots
from densing.scores.evals.items import ANSWERS, CHOICE, CLOZE, item_table, parse_sample, read_samples
from densing.scores.evals.journal import Journal, recorded, request_key
from densing.scores.evals.models import LoadedModel, load_model, seed_all
from densing.scores.evals.plan import ModelSpec, Plan, Settings, TaskSpec, json_like
from densing.scores.evals.safety import check_tasks, guarded
from densing.scores.evals.session import (
    ModelWork,
    OnProgress,
    Progress,
    Session,
    State,
    TaskSource,
    UnitOutcome,
    Work,
    ignore,
    include_paths,
)
from densing.scores.evals.store import RunStore

if TYPE_CHECKING:
    import pandas as pd

# Per-document metrics that are read, the ladder's own first; a loss is derived from the samples where none is stored.
METRICS = {
    "loss": ("metric_bits_per_byte",),
    "score": ("metric_accuracy", "metric_acc_norm", "metric_acc"),
    "answer": ANSWERS,
}


class Look(Protocol):
    """What a rule answers, as :class:`densing.scores.density.StoppingRule` does."""

    @property
    def stop(self) -> bool:
        """Whether to stop."""

    @property
    def reason(self) -> str:
        """Why."""

    @property
    def met(self) -> bool:
        """Whether what was asked for was reached."""

    @property
    def items(self) -> int:
        """Items that the decision rests on."""

    @property
    def needed(self) -> float:
        """Items planned in all."""

    @property
    def ahead(self) -> Mapping[str, int]:
        """Items of each task to have at the next look."""

    @property
    def message(self) -> str:
        """The decision in words."""


class Rule(Protocol):
    """What decides; :class:`densing.scores.density.StoppingRule` is one."""

    @property
    def sizes(self) -> Mapping[str, int]:
        """Items in the full set of each task that it looks at."""

    @property
    def first(self) -> Mapping[str, int]:
        """Items of each task at the first look."""

    def orders(self, look: Any = None) -> Mapping[str, Sequence[int]]:
        """Return documents of tasks whose order is not random: those that the look after this one needs, or more."""

    def update(self, losses_by_task: Mapping[str, Sequence[Any]], earlier: Any = None) -> Look:
        """Decide after everything drawn so far, given the decision of the look before."""

    def describe(self) -> Mapping[str, Any]:
        """Return the rule as plain data."""


MakeRule = Callable[[Mapping[str, str], Mapping[str, int]], Rule]
"""Benchmark id and size of each task, to the rule."""


@dataclass(frozen=True)
class Stopped:
    """How the adaptive evaluation of one model ended.

    Parameters
    ----------
    model : str
        Its name.
    units : tuple of UnitOutcome
        One per requested task.
    look : Look, optional
        The last decision; none where the store had the result and its items do not give it again.
    items, full : int
        Items evaluated, and in the full sets.
    seconds, spared : float
        Spent on the items, and what the others would have taken at the same pace (NaN where nothing was evaluated).
    notes : tuple of Note
        What to keep in mind: a target that was missed, items that another rule chose.
    """

    model: str
    units: tuple[UnitOutcome, ...]
    look: Look | None
    items: int
    full: int
    seconds: float
    spared: float
    notes: tuple[Note, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        look = None if self.look is None else dataclasses.asdict(self.look)  # type: ignore[call-overload]
        own = {name: getattr(self, name) for name in ("model", "items", "full", "seconds", "spared")}
        notes = [note.to_dict() for note in self.notes]
        return {**own, "units": [unit.to_dict() for unit in self.units], "decision": look, "notes": notes}


def run_until(
    plan: Plan,
    folder: Path,
    make_rule: MakeRule,
    *,
    quantity: str = "loss",
    order_seed: int = 0,
    progress: OnProgress = ignore,
) -> list[Stopped]:
    """Evaluate each model of a plan on randomly drawn items until the rule says that they are enough.

    Parameters
    ----------
    plan : Plan
        Models and tasks; the rule says how many items of each, and of tasks that it does not look at as many are drawn
        as of the others on average.
    folder : path
        The store. A killed call goes on where it stopped.
    make_rule : callable
        Makes the rule from the tasks' benchmarks and sizes, e.g. :func:`densing.scores.density.rule_for`.
    quantity : {"loss", "score", "answer"}
        What of each item the rule sees: bits per byte of the gold answer, or right and wrong (``answer``: as banks of
        items take it).
    order_seed : int
        Seed of the order of items.
    progress : callable
        Told how far it is; the total is the rule's own plan.

    Raises
    ------
    InputError
        When the plan chooses documents itself, or a task draws its examples anew for every document.
    """
    if any(plan.settings_for(m, t).limit or plan.settings_for(m, t).samples for m in plan.models for t in plan.tasks):
        raise InputError(
            "limit and samples cannot be combined with adaptive stopping, which chooses the items itself; drop one of "
            "them"
        )
    session = Session(plan, folder)
    with environment(session):
        session.store.record_plan(strip_secrets({**plan.to_dict(), "until": quantity}))
        surveyed = [session.survey(index) for index in range(len(plan.models))]
        return [
            stopped
            for model in surveyed
            for stopped in _run([_Adaptive(session, model, quantity, order_seed)], make_rule, progress)
        ]


def run_pair_until(
    pair: Sequence[tuple[Plan, Path]],
    make_rule: MakeRule,
    *,
    quantity: str = "loss",
    order_seed: int = 0,
    progress: OnProgress = ignore,
) -> list[Stopped]:
    """Evaluate two models on the same randomly drawn items until the rule says that they are enough.

    Both are loaded at once. Answers to these items that either store has from other evaluations with the same settings
    are taken from there.

    Parameters
    ----------
    pair : sequence of (Plan, path)
        A plan of one model, and its store; twice, with the same tasks.
    make_rule : callable
        As for :func:`run_until`; the rule sees two values of each item, one of each model.
    quantity, order_seed, progress
        As for :func:`run_until`.

    Raises
    ------
    InputError
        When the tasks of the two differ.
    """
    sessions = [Session(plan, folder) for plan, folder in pair]
    with ExitStack() as stack:
        for session in sessions:
            stack.enter_context(environment(session))
        both = [_Adaptive(session, session.survey(0), quantity, order_seed) for session in sessions]
        keys = [{part.work.identity.name: part.work.key for part in one.parts} for one in both]
        for name, key in keys[0].items():
            other = keys[1].get(name)
            if other is None or (key.task, key.settings) != (other.task, other.settings):
                raise InputError(
                    f"{both[0].name}, {both[1].name}: task {name} or its settings differ; a pair answers the same items"
                )
        # One order, however they were named: two such runs lock the same units in turn.
        return _run(sorted(both, key=lambda one: one.digest), make_rule, progress)


@dataclass
class _Part:
    """One requested task or group: its unit, and lm-eval's objects, built once."""

    work: Work
    tasks: Mapping[str, Any]
    stored: pd.DataFrame | None = None
    journal: Journal | None = None
    known: Mapping[str, list[Any]] = field(default_factory=dict)
    fresh: int = 0

    @property
    def answers(self) -> int:
        """Requests answered so far."""
        return 0 if self.journal is None else self.journal.count


class _Adaptive:
    """One model's evaluation: its units, and what was drawn."""

    def __init__(self, session: Session, model: ModelWork, quantity: str, order_seed: int) -> None:
        if model.failures:
            raise InputError(f"{model.spec.name}, {model.failures[0].task}: {model.failures[0].error}")
        self.session, self.model, self.quantity, self.order_seed = session, model, quantity, order_seed
        self.name, self.seconds = model.spec.name, 0.0
        self.loaded: LoadedModel | None = None
        self.parts = []
        for work in model.works:
            # Documents may be drawn; the same ones as for the unit's identity and for lm-eval.
            seed_all(work.settings.seed)
            loaded = session.source.load(work.requested.name, session.plan.metadata_for(model.spec))
            for name, task in loaded["tasks"].items():
                prepare(name, task, work.settings)
            self.parts.append(_Part(work, dict(loaded["tasks"])))
        tasks = {name: task for part in self.parts for name, task in part.tasks.items()}
        self.benchmarks = {name: benchmark_of(name, task) for name, task in tasks.items()}
        self.sizes = {name: len(task.eval_docs) for name, task in tasks.items()}
        self.order = {name: random_order(name, size, order_seed).tolist() for name, size in self.sizes.items()}
        self.digest = model.works[0].key.digest
        self.locks, self.journals = ExitStack(), ExitStack()
        self.seen: dict[str, list[float]] = {}
        self.drawn = dict.fromkeys(self.sizes, 0)

    def follow(self, rule: Rule, pair: Sequence[str]) -> None:
        """Name the rule, and the two of a pair, in the keys of the units, where others name the items."""
        self.rule = rule
        until = {"quantity": self.quantity, "order_seed": self.order_seed, "rule": rule.describe()}
        until |= {"pair": list(pair)} if len(pair) > 1 else {}
        for part in self.parts:
            settings = json_like({**part.work.key.settings, "until": until})
            key = dataclasses.replace(part.work.key, settings=settings)
            part.work = dataclasses.replace(part.work, key=key, unit=self.session.store.unit(key))
            part.stored = part.work.unit.items() if part.work.unit.status == "done" else None

    @property
    def stored(self) -> list[_Part]:
        """Units that are in the store."""
        return [part for part in self.parts if part.stored is not None]

    def load(self) -> None:
        """Load the model, unless the store has all it would answer."""
        if len(self.stored) < len(self.parts):
            assert self.model.identity is not None
            self.loaded = load_model(self.model.spec, self.model.loading, self.model.identity)

    def skipped(self, look: Look | None) -> Stopped:
        """Return what is read from the store alone."""
        items = sum(part.stored["doc_id"].size for part in self.stored if part.stored is not None)
        units = tuple(part.work.outcome("skipped") for part in self.stored)
        return Stopped(self.name, units, look, items, sum(self.sizes.values()), 0.0, math.nan, self._notes(look))

    def finish(self, look: Look) -> Stopped:
        """Store what was drawn."""
        drawn = [part for part in self.parts if any(self.drawn[task] for task in part.tasks)]
        units = tuple(self._store(part, look) for part in drawn)
        items, full = sum(self.drawn.values()), sum(self.sizes.values())
        spared = self.seconds / items * (full - items)
        return Stopped(self.name, units, look, items, full, self.seconds, spared, self._notes(look))

    def _notes(self, look: Look | None) -> tuple[Note, ...]:
        """Say that the target was missed, and that the store has items which another rule chose."""
        model, notes = self.model.spec.name, list[Note]()
        if look is not None and not look.met:
            message = f"{model}: the interval is wider than requested ({look.reason}), but valid"
            notes.append(Note("target-missed", "warning", message, {"reason": look.reason}))
        keys = [part.work.key for part in self.parts]
        for unit in (*self.session.store.units(), *self.session.store.partial()):
            key = unit.key
            until = (key.settings.get("until") or {}) if key else {}
            if key is None or until.get("rule", {}).get("rule") == self.rule.describe().get("rule"):
                continue
            # Items of a bank, of a pair, and at random are drawn for different ends.
            if not until or _end(until) != _end(keys[0].settings["until"]):
                continue
            if any(key.model == own.model and key.task == own.task for own in keys):
                message = (
                    f"{model}, {key.task_name}: {unit.folder} contains items drawn under an earlier release's "
                    "stopping rule; they are kept, and of their answers those to items that are drawn now are used. If "
                    "a task has two results, a density uses the one with more items; delete the folder to keep one"
                )
                notes.append(Note("other-rule", "warning", message, {"unit": str(unit.folder)}))
        return tuple(notes)

    def draw(self, counts: Mapping[str, int], look: Look | None, progress: OnProgress) -> None:
        """Draw the items that a look adds."""
        self.order |= {task: list(documents) for task, documents in self.rule.orders(look).items()}
        started = time.monotonic()
        for part in self.parts:
            self._draw_part(part, counts, self._count(part, look, progress))
        self.drawn = dict(counts)
        self.seconds += time.monotonic() - started

    def _draw_part(self, part: _Part, counts: Mapping[str, int], on_count: Callable[[int], object]) -> None:
        """Draw the items of one task or group that the next look adds, and keep what the rule needs of them."""
        fresh = {name: self.order[name][self.drawn[name] : counts[name]] for name in part.tasks}
        ids = {name: sorted(block) for name, block in fresh.items() if block}
        if part.stored is not None:
            tables = {name: part.stored[part.stored["task"].eq(name)] for name in ids}
        elif ids:
            if self.loaded is None:
                raise KeyError(next(iter(ids)))
            if part.journal is None:
                self.locks.enter_context(part.work.unit.lock())
                journal = Journal(part.work.unit.journal_path, part.work.key.digest)
                part.journal = self.journals.enter_context(journal)
                part.known = known_answers(self.session.store, part.work.key)
            with recorded(self.loaded.lm, part.journal, on_count, part.known) as recorder:
                tables = evaluate_block(self.loaded.lm, part.tasks, ids, part.work.settings)
            part.fresh += recorder.fresh
        for name in ids:
            self.seen.setdefault(name, []).extend(item_values(tables[name], fresh[name], self.quantity))

    def counts(self, ahead: Mapping[str, int]) -> dict[str, int]:
        """Return items of every task; of those that the rule does not look at as many as of the others on average."""
        average = math.ceil(sum(ahead.values()) / len(ahead))
        return {name: min(ahead.get(name, average), size) for name, size in self.sizes.items()}

    def _count(self, part: _Part, look: Look | None, progress: OnProgress) -> Callable[[int], object]:
        """Return a listener that tells progress towards the items that the rule plans as of now."""
        full = sum(self.sizes.values())
        each = sum(part.work.identity.requests for part in self.parts) / full
        expected = each * (min(look.needed, full) if look else sum(self.counts(self.rule.first).values()))
        label, units = self.model.spec.name, len(self.parts)

        def count(_: int) -> None:
            done = sum(part.answers for part in self.parts)
            progress(Progress(label, part.work.identity.name, done, max(expected, done), 0, units))

        return count

    def _store(self, part: _Part, look: Look) -> UnitOutcome:
        """Let lm-eval evaluate the chosen items as one unit; the journal answers."""
        if self.loaded is None:
            return part.work.outcome("skipped")
        loaded = self.loaded
        chosen = {name: tuple(sorted(self.order[name][: self.drawn[name]])) for name in part.tasks}
        counts = {name: len(ids) for name, ids in chosen.items()}
        work = dataclasses.replace(
            part.work,
            identity=dataclasses.replace(part.work.identity, docs=counts),
            settings=dataclasses.replace(part.work.settings, samples=chosen),
        )
        caveat = f"items drawn until a rule stopped: {look.message}; the full sets have {sum(self.sizes.values())}"
        model = dataclasses.replace(loaded, facts={**loaded.facts, "caveats": [*loaded.facts["caveats"], caveat]})
        outcome = evaluate_unit(self.session, model, work, lambda count: None)
        if outcome.state == "skipped":
            return outcome
        state: State = "evaluated" if part.answers == part.fresh else "resumed"
        return dataclasses.replace(outcome, state=state, requests=part.fresh + outcome.requests)


def _end(until: Mapping[str, Any]) -> tuple[bool, bool]:
    """Return what items were drawn for: a bank's score, a pair, or neither."""
    return until["quantity"] == "answer", "pair" in until


def _run(ones: Sequence[_Adaptive], make_rule: MakeRule, progress: OnProgress) -> list[Stopped]:
    """Draw until the rule stops, or read from the stores where it stopped before."""
    rule, look = make_rule(ones[0].benchmarks, ones[0].sizes), None
    for one in ones:
        one.follow(rule, [each.digest for each in ones])
    if any(one.stored for one in ones):
        # A part of which the rule took nothing is not stored. Of whole ones numbers of the last digit may have stopped
        # the run elsewhere than its items would stop one here.
        with suppress(KeyError):
            look = _draw(ones, rule, ignore)
    if look is not None or all(len(one.stored) == len(one.parts) for one in ones):
        return [one.skipped(look) for one in ones]
    with ExitStack() as stack:
        for one in ones:
            stack.enter_context(one.locks)
            one.load()
        look = _draw(ones, rule, progress)
        return [one.finish(look) for one in ones]


def _draw(ones: Sequence[_Adaptive], rule: Rule, progress: OnProgress) -> Look:
    """Draw items look by look until the rule stops; those of stored units come from the store."""
    with ExitStack() as stack:
        for one in ones:
            one.seen, one.drawn, one.seconds = {}, dict.fromkeys(one.sizes, 0), 0.0
            stack.enter_context(one.journals)
        look, counts = None, ones[0].counts(rule.first)
        while look is None or not look.stop:
            for one in ones:
                one.draw(counts, look, progress)
            each = {task: [one.seen.get(task, []) for one in ones] for task in rule.sizes}
            pairs = {task: of[0] if len(ones) == 1 else list(zip(*of, strict=True)) for task, of in each.items()}
            look = rule.update(pairs, look)
            counts = ones[0].counts(look.ahead)
    return look


def prepare(name: str, task: Any, settings: Settings) -> None:
    """Set a task up as ``simple_evaluate`` does.

    Raises
    ------
    InputError
        When its examples depend on the documents before: then an item of a block is not that item of the full set.
    """
    shots = effective_shots(task, settings.num_fewshot)
    sampler = str(getattr(getattr(task, "fewshot_cfg", None), "sampler", None) or "default")
    if shots and sampler != "first_n":
        raise InputError(
            f"task {name} draws {shots} examples anew for every document, so its items depend on their order; "
            "evaluate the full task, or give it fixed examples (fewshot_config: sampler: first_n)"
        )
    task.set_config(key="num_fewshot", value=shots)
    task.set_fewshot_seed(seed=settings.seed[3])
    if settings.gen_kwargs and task.get_config("output_type") == "generate_until":
        task.set_config(key="generation_kwargs", value=dict(settings.gen_kwargs), update=True)


def known_answers(store: RunStore, key: UnitKey) -> dict[str, list[Any]]:
    """Return the log-likelihoods that other finished units of this model and task hold, by the key of their request.

    A request is its whole text, so that other shots, templates or versions of a task are other requests; one that a
    unit asked twice has two answers.
    """
    known = dict[str, list[Any]]()
    for unit in store.units():
        other = unit.key
        if other is None or other.digest == key.digest or (other.model, other.task_name) != (key.model, key.task_name):
            continue
        mine = dict[str, list[Any]]()
        for path in sorted(unit.folder.glob("samples_*.jsonl")):
            for row in read_samples(path):
                sample = parse_sample(row, str(path))
                if sample.output_type in (CHOICE, CLOZE):
                    for request, response in zip(sample.requests, sample.responses, strict=False):
                        mine.setdefault(request_key("loglikelihood", request), []).append(list(response))
        known |= {name: answers for name, answers in mine.items() if len(answers) > len(known.get(name, ()))}
    return known


def evaluate_block(
    lm: Any, tasks: Mapping[str, Any], ids: Mapping[str, list[int]], settings: Settings
) -> dict[str, pd.DataFrame]:
    """Return the item tables of some documents, through lm-eval's own evaluation."""
    from lm_eval.evaluator import evaluate

    results = evaluate(
        lm=lm,
        task_dict={"tasks": {name: tasks[name] for name in ids}, "groups": {}},
        samples=dict(ids),
        bootstrap_iters=0,
        log_samples=True,
        system_instruction=settings.system_instruction,
        apply_chat_template=settings.apply_chat_template,
        fewshot_as_multiturn=bool(settings.multiturn),
        confirm_run_unsafe_code=True,  # the session has asked for consent
    )
    return {name: item_table(results["samples"][name], results["configs"][name], task=name) for name in ids}


def answer_documents(
    model: Any, tokenizer: Any, documents: Mapping[str, Sequence[int]], *, include_path: Sequence[str] = (),
    batch_size: int = 8,
) -> pd.DataFrame:  # fmt: skip
    """Return the items of some documents as a transformers model in memory answers them.

    Parameters
    ----------
    model, tokenizer : transformers.PreTrainedModel and its tokenizer
        The model is left in the mode it was in.
    documents : mapping of sequence of int
        By task.
    include_path : sequence of str
        Folders of task files.
    batch_size : int

    Raises
    ------
    InputError
        When a task would run code, or has no such document.
    UnavailableError
        When lm-eval is not installed.
    """
    import pandas as pd

    if find_spec("lm_eval") is None:
        raise UnavailableError(f"lm-eval is not installed; {install_command('evals')}")
    from lm_eval.models.huggingface import HFLM

    plan = Plan((ModelSpec("model", "hf", {}),), tuple(map(TaskSpec, documents)), include_path=tuple(include_path))
    folders, training = include_paths(plan), model.training
    check_tasks(folders, list(documents))
    source = TaskSource(folders)
    with guarded():
        tasks = {name: source.load(name, {})["tasks"][name] for name in documents}
        for name, task in tasks.items():
            if max(documents[name]) >= len(task.eval_docs):
                raise InputError(
                    f"task {name} has {len(task.eval_docs)} documents, not {max(documents[name]) + 1}; the bank is of "
                    "another version of the task"
                )
            prepare(name, task, plan.settings)
        try:
            lm = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=batch_size)
            ids = {name: sorted(chosen) for name, chosen in documents.items()}
            return pd.concat(evaluate_block(lm, tasks, ids, plan.settings).values(), ignore_index=True)
        finally:
            model.train(training)


def item_values(table: pd.DataFrame, ids: Sequence[int], quantity: str) -> list[float]:
    """Return what a rule sees of some documents.

    Parameters
    ----------
    table : pandas.DataFrame
        Items of one task (:func:`item_table`).
    ids : sequence of int
        Documents, in the order wanted.
    quantity : {"loss", "score", "answer"}
        Bits per byte of the gold answer, or 1 and 0.

    Raises
    ------
    InputError
        When a document has no such value.

    Examples
    --------
    >>> import pandas as pd
    >>> item_values(pd.DataFrame({"doc_id": [3, 5], "metric_acc": [1.0, 0.0]}), [5, 3], "score")
    [0.0, 1.0]
    """
    metrics = [column for column in METRICS[quantity] if column in table.columns]
    if metrics:
        values = table[metrics].astype(float).bfill(axis=1).iloc[:, 0]
    elif quantity == "loss":
        values = table["nll"] / (table["n_bytes"] * math.log(2))
    else:
        raise InputError("the tasks store no accuracy per document; stop by loss, or evaluate everything")
    chosen = values.astype(float).set_axis(table["doc_id"].astype(int)).loc[list(ids)]
    if not np.isfinite(chosen).all():
        unknown = int(chosen.index[~np.isfinite(chosen)][0])
        raise InputError(
            f"document {unknown}: no finite {quantity} of the gold answer; adaptive stopping cannot use it for this "
            "task"
        )
    return [float(value) for value in chosen]


def benchmark_of(name: str, task: Any) -> str:
    """Return the benchmark that a task's metadata names, else the task's own name."""
    metadata = task.get_config("metadata")
    return str((metadata or {}).get("benchmark") or name)


def random_order(name: str, size: int, seed: int) -> NDArray[np.int64]:
    """Return the order in which a task's documents are drawn: its own stream, whatever other tasks there are.

    Examples
    --------
    >>> sorted(random_order("piqa", 4, 0).tolist())
    [0, 1, 2, 3]
    """
    stream = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
    return np.random.default_rng([seed, stream]).permutation(size)
