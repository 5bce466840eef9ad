"""Models behind an OpenAI-compatible endpoint: answers that lm-eval would misread are refused, and failures are said.

lm-eval asks for a prompt with its answer, ``echo`` and ``logprobs``, and takes the numbers behind the prompt's tokens.
A server that ignores ``echo`` sends those of the text that it generated, or none: every answer would have
log-likelihood 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from densing.core import InputError
from densing.scores.evals.plan import ModelSpec

_INSTEAD = (
    "scores of generated answers are possible here (gsm8k, humaneval, ...), losses and multiple choice are not; vLLM "
    "and SGLang send log-likelihoods from /v1/completions (--model local-completions)"
)


def guard_answers(lm: Any, spec: ModelSpec) -> None:
    """Let a model behind an endpoint refuse what holds no log-likelihoods of its prompts; others stay as they are.

    Parameters
    ----------
    lm : lm_eval.api.model.LM
        The model.
    spec : ModelSpec
        What it was made of.
    """
    if not hasattr(lm, "parse_logprobs") or not hasattr(lm, "base_url"):
        return
    parse, where = lm.parse_logprobs, f"model {spec.name} at {lm.base_url}"

    def checked(outputs: Any, tokens: Sequence[Sequence[int]], ctxlens: Sequence[int], **kwargs: Any) -> Any:
        parts = outputs if isinstance(outputs, list) else [outputs]
        choices = [choice for part in parts for choice in _choices(part, where)]
        if len(choices) != len(tokens):
            raise InputError(
                f"{where}: {len(choices)} answers to {len(tokens)} prompts; the server takes no batches: --batch_size 1"
            )
        for choice, prompt in zip(choices, tokens, strict=True):
            _check(choice, len(prompt), where)
        return parse(outputs=outputs, tokens=tokens, ctxlens=ctxlens, **kwargs)

    def refuse(requests: Any, **kwargs: Any) -> NoReturn:
        raise InputError(f"{where}: a chat endpoint gives no log-likelihoods; {_INSTEAD}")

    lm.parse_logprobs = checked
    if "chat" in spec.type:
        lm.loglikelihood = lm.loglikelihood_rolling = refuse


def _choices(answer: Any, where: str) -> list[Mapping[str, Any]]:
    found = answer.get("choices") if isinstance(answer, Mapping) else None
    if not isinstance(found, list) or not all(isinstance(choice, Mapping) and "index" in choice for choice in found):
        raise InputError(f"{where}: its answer holds no list `choices`; is base_url that of /v1/completions?")
    return sorted(found, key=lambda choice: choice["index"])


def _check(choice: Mapping[str, Any], count: int, where: str) -> None:
    """Refuse an answer without the log-likelihoods of a prompt's tokens and of the one token generated."""
    about = choice.get("logprobs")
    found = about.get("token_logprobs") if isinstance(about, Mapping) else None
    if not isinstance(found, list) or len(found) < 2 <= count:
        raise InputError(f"{where}: it sends no log-likelihoods of prompts (echo and logprobs); {_INSTEAD}")
    if len(found) != count + 1:
        raise InputError(
            f"{where}: log-likelihoods of {len(found)} tokens, where the prompt's {count} and one more were expected; "
            "give the server's own tokenizer (--model_args tokenizer=NAME) and let prompts be sent as tokens"
        )
    best = about.get("top_logprobs") if isinstance(about, Mapping) else None
    if not isinstance(best, list) or len(best) != len(found):
        raise InputError(f"{where}: it sends no top_logprobs beside token_logprobs; {_INSTEAD}")


def server_failure(error: BaseException) -> str:
    """Return what a server's failure was, in its own words where it sent some; empty for another error.

    Examples
    --------
    >>> import requests
    >>> server_failure(requests.ConnectionError("refused"))
    'the server does not answer (refused); answers so far are kept: the same command goes on there'
    >>> server_failure(ValueError("x"))
    ''
    """
    package = type(error).__module__.partition(".")[0]
    if package not in ("requests", "urllib3", "aiohttp"):
        return ""
    kept = "answers so far are kept: the same command goes on there"
    response = getattr(error, "response", None)
    status = getattr(response, "status_code", None) or getattr(error, "status", None)
    if status is None:
        return f"the server does not answer ({str(error)[:200] or type(error).__name__}); {kept}"
    words = " ".join(str(getattr(response, "text", "") or getattr(error, "message", "")).split())[:200]
    remedy = "; fewer at a time: --model_args num_concurrent=1" if status == 429 else ""
    return f"the server refused with {status}{f': {words}' if words else ''}{remedy}; {kept}"
