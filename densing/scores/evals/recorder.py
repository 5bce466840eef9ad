"""Under an lm-eval model: what it answers goes into a journal, and what the journal holds is not asked again.

A resumed run must give the same bits as an unbroken one, and floating-point results depend on which requests share a
batch. Three rules make it so. Answers are written when their batch is whole: when the next forward pass starts, or the
call ends. Only requests without an answer reach the model, and lm-eval sorts and cuts these into the batches it would
have reached anyway, since whole batches are missing from the front. A request asked twice is two requests.
A log-likelihood that is no finite number ends the unit at its first batch and is never written: argmax over NaN picks
a choice all the same, and chance would be stored as a score.
Models behind an API have no forward pass to wait for: each answer is written at once.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from densing.core import InputError
from densing.scores.evals.journal import Answer, Journal

KINDS = ("loglikelihood", "loglikelihood_rolling", "generate_until")
FORWARD = ("_model_call", "_model_generate", "_model_multimodal_call", "_model_multimodal_generate")
Count = Callable[[int], object]


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
    """

    def __init__(self, lm: Any, journal: Journal, on_count: Count) -> None:
        self.lm, self.journal, self.on_count = lm, journal, on_count
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
            return  # windows of a long text: kept by batch in _tokens
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
            f"{item}: the model's log-likelihood is {value}, no finite number; nothing of this unit is stored. "
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


@contextmanager
def recorded(lm: Any, journal: Journal, on_count: Count = lambda count: None) -> Iterator[Recorder]:
    """Let a model answer through a journal, as long as the context lasts.

    Parameters
    ----------
    lm : lm_eval.api.model.LM
        A loaded model; as it was, afterwards.
    journal : Journal
        Opened for the unit at hand.
    on_count : callable
        Told how many requests have an answer, after every batch.
    """
    recorder = Recorder(lm, journal, on_count)
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
