"""Models behind an API: any lm-eval type passes through, and an answer that was paid for is not asked for again."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lm_eval")
pytest.importorskip("torch")
pytest.importorskip("tenacity", reason="lm-eval's API models need its extra: pip install 'lm-eval[api]'")

import requests
import tenacity
from tokenizers.pre_tokenizers import ByteLevel

from densing.core.errors import InputError
from densing.scores.evals.identity import identify_model
from densing.scores.evals.models import load_model
from densing.scores.evals.plan import Loading, ModelSpec, Plan, Settings, TaskSpec
from densing.scores.evals.runner import run_plan
from densing.scores.evals.session import failed
from densing.scores.evals.store import RunStore
from tests.support.evals_toys import write_tasks, write_tokenizer

KEY = "sk-abcdefghijklmnopqrstuvwx"


class Server(ThreadingHTTPServer):
    """A completions server: the log-probability of a token is fixed by the token; fails after a number of answers."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.prompts = 0
        self.fail_after: int | None = None
        # Statuses of the first answers, 0: none within the client's patience.
        self.first: list[int] = []
        self.form: Callable[[int, list[int]], dict[str, Any]] = vllm
        self.batches: list[int] = []
        self.patient = threading.Event()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Stay quiet about clients that are gone."""


class Handler(BaseHTTPRequestHandler):
    """Answers as the documented completions API does with ``echo`` and ``logprobs``."""

    server: Server

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.server.fail_after is not None and self.server.prompts >= self.server.fail_after:
            self.send_error(500)
            return
        if self.server.first:
            status = self.server.first.pop(0)
            if not status:
                self.server.patient.wait(5)
            else:
                self.send_error(status, "slow down")
            return
        prompts = asked.get("prompt") or [asked["messages"]]
        self.server.prompts += len(prompts)
        self.server.batches.append(len(prompts))
        choices = [self.server.form(n, tokens) for n, tokens in enumerate(prompts)]
        body = json.dumps({"object": "text_completion", "choices": choices[::-1], "usage": {}}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: Any) -> None:
        """Stay quiet."""


def chances(tokens: list[int]) -> list[float]:
    return [-(token % 7) / 4 for token in tokens]


def vllm(number: int, tokens: list[int]) -> dict[str, Any]:
    """As vLLM 0.11 answers: nothing of the first token, the best one beside the one that is there."""
    logs = [*chances(tokens), -1.0]
    best = [{f"t{n}": log, "best": max(log, -0.25)} for n, log in enumerate(logs)]
    logprobs = {
        "text_offset": list(range(len(logs))), "tokens": [f"t{n}" for n in range(len(logs))],
        "token_logprobs": [None, *logs[1:]], "top_logprobs": [None, *best[1:]],
    }  # fmt: skip
    return {"index": number, "text": "amber", "logprobs": logprobs, "finish_reason": "length", "prompt_logprobs": None}


def sglang(number: int, tokens: list[int]) -> dict[str, Any]:
    """As SGLang 0.5 answers: offsets are not given, and only the best token stands in top_logprobs."""
    made = vllm(number, tokens)
    made["logprobs"] |= {
        "text_offset": [-1] * (len(tokens) + 1),
        "top_logprobs": [top and {"best": max(top.values())} for top in made["logprobs"]["top_logprobs"]],
    }
    return {**made, "matched_stop": None}


def silent(number: int, tokens: list[int]) -> dict[str, Any]:
    """As a server answers that knows neither echo nor logprobs."""
    return {"index": number, "text": "amber", "logprobs": None, "finish_reason": "length"}


def without_echo(number: int, tokens: list[int]) -> dict[str, Any]:
    """As a server answers that ignores echo: of the generated token alone."""
    logprobs = {"tokens": ["x"], "token_logprobs": [-1.0], "top_logprobs": [{"x": -1.0}]}
    return {"index": number, "text": "amber", "logprobs": logprobs}


def with_bos(number: int, tokens: list[int]) -> dict[str, Any]:
    """As a server answers that puts a token of its own before the prompt."""
    return vllm(number, [0, *tokens])


def chat(number: int, tokens: list[int]) -> dict[str, Any]:
    return {"index": number, "message": {"role": "assistant", "content": "amber"}, "finish_reason": "stop"}


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    yield made
    made.patient.set()
    made.shutdown()
    made.server_close()
    thread.join()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("endpoint")
    write_tokenizer(path / "tokenizer")
    write_tasks(path / "tasks")
    return path


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two tries lm-eval waits from one second on."""
    monkeypatch.setattr("lm_eval.models.api_models.wait_exponential", lambda **_: tenacity.wait_none())


def model_of(server: Server, folder: Path, kind: str = "local-completions", **args: Any) -> ModelSpec:
    path = "chat/completions" if "chat" in kind else "completions"
    given = {"model": "toy", "base_url": f"http://127.0.0.1:{server.server_port}/v1/{path}", "max_retries": 3}
    if "chat" not in kind:
        given |= {"tokenizer": str(folder / "tokenizer"), "tokenizer_backend": "huggingface", "max_length": 96}
    return ModelSpec.of(kind, given | args)


def plan_for(server: Server, folder: Path) -> Plan:
    names = (TaskSpec("toy_choice"), TaskSpec("toy_long", {"limit": 4.0}), TaskSpec("toy_text"))
    model = model_of(server, folder, max_retries=1)
    return Plan((model,), names, Settings(), Loading("2"), (str(folder / "tasks"),))


QUESTIONS = [("Q: amber", " brick"), ("Q: cedar delta", " ember"), ("Q:", " fjord grain"), ("Q: haven", " ivory")]


def answers(spec: ModelSpec, batch: str = "2") -> Any:
    from lm_eval.api.instance import Instance

    lm = load_model(spec, Loading(batch), identify_model(spec)).lm
    return lm.loglikelihood([Instance("loglikelihood", {}, pair, 0) for pair in QUESTIONS], disable_tqdm=True)


# Tokens are bytes in the order of the tokenizer's alphabet, behind one special token.
LETTERS = sorted(ByteLevel.alphabet())
LOGS = [chances([1 + LETTERS.index(letter) for letter in answer.replace(" ", "\u0120")]) for _, answer in QUESTIONS]
EXPECTED = [sum(logs) for logs in LOGS]


@pytest.mark.parametrize("form", [vllm, sglang])
@pytest.mark.parametrize(("batch", "args"), [("1", {}), ("3", {}), ("2", {"num_concurrent": 3})])
def test_answers_of_vllm_and_sglang_are_read_in_batches_and_at_once(
    server: Server, folder: Path, form: Any, batch: str, args: dict[str, Any]
) -> None:
    server.form = form
    found = answers(model_of(server, folder, **args), batch)
    assert [log for log, _ in found] == pytest.approx(EXPECTED)
    assert [greedy for _, greedy in found] == [all(log >= -0.25 for log in logs) for logs in LOGS]
    assert max(server.batches) == int(batch) and sum(server.batches) == len(QUESTIONS)


def test_a_request_that_fails_or_hangs_is_sent_again(server: Server, folder: Path) -> None:
    server.first = [429, 500]
    assert [log for log, _ in answers(model_of(server, folder))] == pytest.approx(EXPECTED)
    server.first = [0]
    assert [log for log, _ in answers(model_of(server, folder, timeout=1))] == pytest.approx(EXPECTED)
    server.first = [429] * 9
    with pytest.raises(requests.HTTPError) as caught:
        answers(model_of(server, folder))
    said = failed("toy", "toy_choice", "", caught.value).error
    assert "the server refused with 429" in said and "num_concurrent=1; answers so far are kept" in said


@pytest.mark.parametrize(
    ("form", "said"),
    [
        (silent, "sends no log-likelihoods of prompts"),
        (without_echo, "sends no log-likelihoods of prompts"),
        (with_bos, "the server's own tokenizer"),
    ],
)
def test_an_answer_that_would_be_misread_is_refused(server: Server, folder: Path, form: Any, said: str) -> None:
    server.form = form
    with pytest.raises(InputError, match=rf"model toy at http://127.0.0.1:\d+/v1/completions: .*{said}"):
        answers(model_of(server, folder))


def test_answers_that_are_too_few_are_refused(server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Handler, "do_POST", one_choice)
    with pytest.raises(InputError, match="1 answers to 2 prompts; the server takes no batches: --batch_size 1"):
        answers(model_of(server, folder))


def one_choice(self: Handler) -> None:
    tokens = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["prompt"][0]
    body = json.dumps({"choices": [vllm(0, tokens)]}).encode()
    self.send_response(200)
    self.send_header("Content-Length", str(len(body)))
    self.end_headers()
    self.wfile.write(body)


def test_a_chat_endpoint_gives_scores_and_says_that_it_gives_no_losses(server: Server, folder: Path) -> None:
    server.form = chat
    tasks = (TaskSpec("toy_choice"), TaskSpec("toy_text"))
    model = model_of(server, folder, "local-chat-completions")
    settings = Settings(apply_chat_template=True)
    run = run_plan(Plan((model,), tasks, settings, Loading("1"), (str(folder / "tasks"),)), folder / "chat")
    assert [unit.state for unit in run.units] == ["failed", "evaluated"], run.units
    assert "a chat endpoint gives no log-likelihoods; scores of generated answers are possible" in run.units[0].error


def test_a_server_that_is_gone_is_said(folder: Path) -> None:
    gone = Server()
    gone.server_close()
    with pytest.raises(requests.ConnectionError) as caught:
        answers(model_of(gone, folder))
    assert failed("toy", "t", "", caught.value).error.startswith("the server does not answer (")


def test_answers_are_kept_when_the_server_fails(
    server: Server, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    plan = plan_for(server, folder)
    whole = run_plan(plan, tmp_path / "whole")
    assert [unit.state for unit in whole.units] == ["evaluated"] * 3, whole.units
    prompts = server.prompts
    server.prompts, server.fail_after = 0, 12
    broken = run_plan(plan, tmp_path / "broken")
    assert [unit.state for unit in broken.units] == ["failed"] * 3
    server.fail_after = None
    resumed = run_plan(plan, tmp_path / "broken")
    assert [unit.state for unit in resumed.units] == ["resumed", "evaluated", "evaluated"]
    assert server.prompts == prompts, "nothing is asked twice"
    for unit in RunStore(tmp_path / "broken").units():
        (ours,), (theirs,) = (list((tmp_path / run / "units" / unit.folder.name).glob("samples_*"))
                              for run in ("broken", "whole"))  # fmt: skip
        assert ours.read_bytes() == theirs.read_bytes()
    stored = [path for path in tmp_path.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]
    assert stored == []
