"""Models behind an API: any lm-eval type passes through, and an answer that was paid for is not asked for again."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lm_eval")
pytest.importorskip("torch")
pytest.importorskip("tenacity", reason="lm-eval's API models need its extra: pip install 'lm-eval[api]'")

from densing.scores.evals.plan import Loading, ModelSpec, Plan, Settings, TaskSpec
from densing.scores.evals.runner import run_plan
from densing.scores.evals.store import RunStore
from tests.support.evals_toys import write_tasks, write_tokenizer

KEY = "sk-abcdefghijklmnopqrstuvwx"


class Server(ThreadingHTTPServer):
    """A completions server: the log-probability of a token is fixed by the token; fails after a number of answers."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.prompts = 0
        self.fail_after: int | None = None


class Handler(BaseHTTPRequestHandler):
    """Answers as the documented completions API does with ``echo`` and ``logprobs``."""

    server: Server

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.server.fail_after is not None and self.server.prompts >= self.server.fail_after:
            self.send_error(500)
            return
        self.server.prompts += len(asked["prompt"])
        body = json.dumps({"choices": [self.choice(n, tokens) for n, tokens in enumerate(asked["prompt"])]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    @staticmethod
    def choice(number: int, tokens: list[int]) -> dict[str, Any]:
        chances = [-(token % 7) / 4 for token in tokens] + [-1.0]
        best = [{"x": chance} for chance in chances]
        return {"index": number, "text": "amber", "logprobs": {"token_logprobs": chances, "top_logprobs": best}}

    def log_message(self, *arguments: Any) -> None:
        """Stay quiet."""


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
    thread.join()


def plan_for(server: Server, folder: Path) -> Plan:
    write_tokenizer(folder / "tokenizer")
    tasks = write_tasks(folder / "tasks")
    args = {
        "model": "toy",
        "base_url": f"http://127.0.0.1:{server.server_port}/v1/completions",
        "tokenizer": str(folder / "tokenizer"),
        "tokenizer_backend": "huggingface",
        "max_length": 96,
        "max_retries": 1,
    }
    model = ModelSpec.of("local-completions", args)
    names = (TaskSpec("toy_choice"), TaskSpec("toy_long", {"limit": 4.0}), TaskSpec("toy_text"))
    return Plan((model,), names, Settings(), Loading("2"), (str(tasks),))


def test_answers_are_kept_when_the_server_fails(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    plan = plan_for(server, tmp_path)
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
