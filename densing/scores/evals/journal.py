"""What a model has answered so far in one unit, safe against being killed at any moment, and never asked again.

The journal is one SQLite file per unit, with JSON values. The recorder stands under an lm-eval model and lets it answer
through the journal. A resumed run must give the same bits as an unbroken one, and floating-point results depend on
which requests share a batch. Three rules make it so. Answers are written when their batch is whole (when the next
forward pass starts, or the call ends), in one transaction. Only requests without an answer reach the model, and lm-eval
sorts and cuts these into the batches it would have reached anyway, since whole batches are missing from the front. A
request asked twice is two requests.
A log-likelihood that is not a finite number ends the unit at its first batch and is never written:
argmax over NaN picks a choice all the same, and chance would be stored as a score.
Models behind an API have no forward pass to wait for: each answer is written at once.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import math
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from densing.core import InputError

SCHEMA = "1"
Answer = tuple[str, Any, int]
"""Key of a request (or of a batch of windows), its JSON-ready answer, and how many requests it counts for."""
# How lm-eval asks a model, and the methods in which its models run a batch.
KINDS = ("loglikelihood", "loglikelihood_rolling", "generate_until")
FORWARD = ("_model_call", "_model_generate", "_model_multimodal_call", "_model_multimodal_generate")
Count = Callable[[int], object]


class Journal:
    """Answers of an unfinished unit, in the order they were given.

    Parameters
    ----------
    path : path
        The file; made when missing. One of another unit, another version or damaged is begun anew.
    owner : str
        Digest of the unit.

    Raises
    ------
    InputError
        When the place cannot be written to.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with Journal(Path(folder) / "journal.sqlite", "abc") as journal:
    ...         journal.add([("key", [-0.1, True], 1), ("key", [-0.2, False], 1)])
    ...     with Journal(Path(folder) / "journal.sqlite", "abc") as journal:
    ...         journal.answers("key"), journal.count
    ([[-0.1, True], [-0.2, False]], 2)
    """

    def __init__(self, path: Path, owner: str) -> None:
        self.path = Path(path)
        self.restarted = False
        try:
            self._connection = self._open(owner)
        except (sqlite3.DatabaseError, ValueError) as error:
            if _is_of_the_disk(error):
                # The answers in it were paid for: a full disk is no damage.
                raise _not_written(self.path, error) from error
            self.restarted = True
            for suffix in ("", "-wal", "-shm"):
                self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
            try:
                self._connection = self._open(owner)
            except sqlite3.Error as error:
                raise _not_written(self.path, error) from error

    def _open(self, owner: str) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(self.path, isolation_level=None, timeout=60)
        try:
            # Survives the death of the process without waiting for the disk; a power cut costs batches, never order.
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")
            connection.execute("CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL)")
            connection.execute(
                "CREATE TABLE IF NOT EXISTS answers "
                "(id INTEGER PRIMARY KEY, key TEXT NOT NULL, value TEXT NOT NULL, requests INTEGER NOT NULL)"
            )
            with _transaction(connection):
                for name, value in (("schema", SCHEMA), ("owner", owner)):
                    connection.execute("INSERT OR IGNORE INTO facts VALUES (?, ?)", (name, value))
            facts = dict(connection.execute("SELECT name, value FROM facts"))
            if (facts["schema"], facts["owner"]) != (SCHEMA, owner):
                raise ValueError("a journal of another unit or version")
            self._answers: dict[str, list[Any]] = {}
            self.count = 0
            for key, value, requests in connection.execute("SELECT key, value, requests FROM answers ORDER BY id"):
                self._answers.setdefault(key, []).append(json.loads(value))
                self.count += int(requests)
        except BaseException:
            connection.close()
            raise
        return connection

    def answers(self, key: str) -> list[Any]:
        """Return the answers stored under a key, oldest first."""
        return self._answers.get(key, [])

    def add(self, answers: Iterable[Answer], facts: Mapping[str, str] | None = None) -> None:
        """Store the answers of one batch, and facts that go with them, as a whole.

        Raises
        ------
        InputError
            When the file cannot be written, as on a full disk; what was stored before stays.
        """
        batch = list(answers)
        rows = [(key, json.dumps(value), requests) for key, value, requests in batch]
        try:
            with _transaction(self._connection):
                self._connection.executemany("INSERT INTO answers (key, value, requests) VALUES (?, ?, ?)", rows)
                self._connection.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?)", list((facts or {}).items()))
        except sqlite3.OperationalError as error:
            raise _not_written(self.path, error) from error
        for key, value, requests in batch:
            self._answers.setdefault(key, []).append(value)
            self.count += requests

    def fact(self, name: str) -> str | None:
        """Return a stored fact."""
        row = self._connection.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def close(self) -> None:
        """Close the file; the answers stay."""
        self._connection.close()

    def __enter__(self) -> Journal:
        """Return the journal."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close the file."""
        self.close()


def _is_of_the_disk(error: Exception) -> bool:
    """Whether a journal could not be opened for a reason outside of it: a full disk, another process, no rights."""
    codes = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_READONLY)
    # The lower byte is the kind of error.
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in codes


def _not_written(path: Path, error: Exception) -> InputError:
    return InputError(f"{path}: cannot keep answers ({error}); check space, rights and --out; those kept before stay")


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Do everything inside, or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        # Of a full disk SQLite has rolled back already.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def answered(path: Path) -> int:
    """Return how many requests a journal holds answers for; 0 when there is none that can be read just now.

    For watching another process: the file is opened for reading only.
    """
    if not path.is_file():
        return 0
    with suppress(sqlite3.Error), closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as journal:
        return int(journal.execute("SELECT COALESCE(SUM(requests), 0) FROM answers").fetchone()[0])
    return 0


@contextmanager
def recorded(
    lm: Any, journal: Journal, on_count: Count = lambda count: None, known: Mapping[str, Sequence[Any]] | None = None
) -> Iterator[Recorder]:
    """Let a model answer through a journal, as long as the context lasts.

    Parameters
    ----------
    lm : lm_eval.api.model.LM
        A loaded model; as it was, afterwards.
    journal : Journal
        Opened for the unit at hand.
    on_count : callable
        Told how many requests have an answer, after every batch.
    known : mapping, optional
        Log-likelihoods that were found elsewhere, by the key of their request: the journal takes those that are asked.
    """
    recorder = Recorder(lm, journal, on_count, known or {})
    hook = getattr(lm, "cache_hook", None)
    stand_ins: dict[str, Callable[..., Any]] = {
        kind: functools.partial(recorder.answer, kind, getattr(lm, kind)) for kind in KINDS
    }
    stand_ins |= {name: functools.partial(recorder.forward, getattr(lm, name)) for name in FORWARD if hasattr(lm, name)}
    if hasattr(lm, "_loglikelihood_tokens"):
        stand_ins["_loglikelihood_tokens"] = functools.partial(recorder.tokens, lm._loglikelihood_tokens)
    before = {name: vars(lm)[name] for name in stand_ins if name in vars(lm)}
    lm.cache_hook = recorder
    vars(lm).update(stand_ins)
    try:
        yield recorder
    finally:
        for name in stand_ins:
            del vars(lm)[name]
        vars(lm).update(before)
        lm.cache_hook = hook


class Recorder:
    """lm-eval's cache hook, and the methods that stand in for the model's own.

    Parameters
    ----------
    lm : lm_eval.api.model.LM
        A loaded model.
    journal : Journal
        Where answers go.
    on_count : callable
        Told how many requests have an answer, after every batch.
    known : mapping
        As for :func:`recorded`.
    """

    def __init__(self, lm: Any, journal: Journal, on_count: Count, known: Mapping[str, Sequence[Any]]) -> None:
        self.lm, self.journal, self.on_count, self.known = lm, journal, on_count, known
        self.fresh = 0
        self._batch: list[Answer] = []
        self._reported: Counter[str] = Counter()
        self._whole_batches = any(hasattr(lm, name) for name in FORWARD)
        self._sampled = False
        self._windows: Counter[str] | None = None
        self._requests: dict[str, Any] = {}

    def add_partial(self, attr: str, req: Sequence[Any] | None, res: Any) -> None:
        """Take one answer; lm-eval calls this for every request."""
        if req is None or (attr == "loglikelihood_rolling" and self._windows is not None):
            return  # windows of a long text: kept by batch in tokens()
        key = request_key(attr, req)
        self._reported[key] += 1
        self._refuse_not_finite(attr, key, res)
        self._batch.append((key, _plain(res), 1))
        if not self._whole_batches:
            self.flush()

    def _refuse_not_finite(self, kind: str, key: str, answer: Any) -> None:
        if kind == "generate_until":
            return
        value = float(answer[0] if isinstance(answer, tuple | list) else answer)
        if math.isfinite(value):
            return
        request = self._requests.get(key)
        item = "an item" if request is None else f"task {request.task_name}, document {request.doc_id}"
        raise InputError(
            f"{item}: the model's log-likelihood is {value}, no finite number; this unit is not stored. "
            "Evaluate in float32, and check the weights for NaN"
        )

    def flush(self) -> None:
        """Write the answers of the batch that is whole now."""
        if not self._batch:
            return
        batch, self._batch = self._batch, []
        self.journal.add(batch, {"random": _random_state(self.lm)} if self._sampled else None)
        self.fresh += sum(requests for _, _, requests in batch)
        self.on_count(self.journal.count)

    def forward(self, own: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run a forward pass: the batch before it is whole."""
        self.flush()
        return own(*args, **kwargs)

    def answer(self, kind: str, own: Callable[..., Any], requests: Sequence[Any], **kwargs: Any) -> list[Any]:
        """Answer requests from the journal, and by the model where that has none."""
        by_window = kind == "loglikelihood_rolling" and hasattr(self.lm, "_loglikelihood_tokens")
        self._windows = Counter() if by_window else None
        answers: list[Any] = [None] * len(requests)
        repeats: Counter[str] = Counter()
        missing = []
        keys = [request_key(kind, request.args) for request in requests]
        known = [
            (key, answer, 1)
            for key, count in Counter(keys).items()
            for answer in self.known.get(key, ())[len(self.journal.answers(key)) : count]
        ]
        if known:
            self.journal.add(known)
        for index, key in enumerate(keys):
            stored = self.journal.answers(key)
            if repeats[key] < len(stored):
                answer = stored[repeats[key]]
                answers[index] = tuple(answer) if kind == "loglikelihood" and isinstance(answer, list) else answer
            else:
                missing.append(index)
            repeats[key] += 1
        self._requests = dict(zip(keys, requests, strict=True))
        options = [request.args[1] for request in requests if len(request.args) > 1] if kind == "generate_until" else []
        self._sampled = any(isinstance(option, dict) and option.get("do_sample") for option in options)
        if missing:
            state = self.journal.fact("random")
            if self._sampled and len(missing) < len(requests) and state is not None:
                _restore_random_state(self.lm, state)
            self._reported.clear()
            fresh = list(own([requests[index] for index in missing], **kwargs))
            for index, answer in zip(missing, fresh, strict=True):
                answers[index] = answer
                if self._reported[keys[index]]:
                    self._reported[keys[index]] -= 1
                elif self._windows is None:
                    # A model that reports nothing on the way.
                    self._batch.append((keys[index], _plain(answer), 1))
            self.flush()
            for index in missing:
                self._refuse_not_finite(kind, keys[index], answers[index])
        self._sampled, self._windows, self._requests = False, None, {}
        return answers

    def tokens(self, own: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
        """Score token sequences; of long texts (rolling), whole batches of windows are kept and not scored again."""
        requests = kwargs["requests"] if "requests" in kwargs else args[0]
        if self._windows is None or any(request[0] is not None for request in requests):
            return list(own(*args, **kwargs))
        content = json.dumps([[list(context), list(target)] for _, context, target in requests])
        key = "windows:" + hashlib.sha256(content.encode("ascii")).hexdigest()
        stored = self.journal.answers(key)
        self._windows[key] += 1
        if self._windows[key] <= len(stored):
            return [tuple(answer) for answer in stored[self._windows[key] - 1]]
        answers = list(own(*args, **kwargs))
        if all(math.isfinite(float(answer[0])) for answer in answers):  # else its document is named when it is whole
            self._batch.append((key, [_plain(answer) for answer in answers], len(requests)))
        self.flush()
        return answers


def request_key(kind: str, arguments: Sequence[Any]) -> str:
    """Return the key of one request: lm-eval's own, over kind and arguments."""
    from lm_eval.api.model import hash_args

    return str(hash_args(kind, arguments))


def _plain(answer: Any) -> Any:
    if isinstance(answer, tuple | list):
        return [_plain(part) for part in answer]
    return answer.item() if hasattr(answer, "item") else answer


def _random_state(lm: Any) -> str:
    """Return where torch's generators stand: drawn text goes on from there after the last whole batch."""
    import torch

    states = [torch.get_rng_state()]
    if getattr(getattr(lm, "device", None), "type", "") == "cuda":
        states.append(torch.cuda.get_rng_state(lm.device))
    return json.dumps([base64.b64encode(state.numpy().tobytes()).decode("ascii") for state in states])


def _restore_random_state(lm: Any, stored: str) -> None:
    import torch

    states = [torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8) for text in json.loads(stored)]
    torch.set_rng_state(states[0])
    if len(states) > 1 and getattr(getattr(lm, "device", None), "type", "") == "cuda":
        torch.cuda.set_rng_state(states[1], lm.device)
