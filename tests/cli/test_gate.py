"""``densing density --fail-if``: exit codes, and what is said, through the real entry point."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import folders
from tests.support.command import densing, printed
from tests.support.eval_files import choice_sample, write_results


@pytest.fixture
def scores(tmp_path: Path) -> Path:
    path = tmp_path / "mine.csv"
    lines = ["Mine-3B,3.1e9,2024-03-01,mmlu,0.62", "Floor-3B,3.1e9,2024-03-01,mmlu,0.2"]
    path.write_text("\n".join(["model,params,released,benchmark,score", *lines]), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("condition", "code", "said"),
    [
        (
            "density<0.01",
            4,
            ["Floor-3B: density<0.01: cannot be decided, density is 0.049", "score at or below the floor"],
        ),
        ("density>10", 0, []),
        ("density>2", 4, ["Mine-3B: density>2: cannot be decided, density is 2.34"]),
        ("density_hi<1", 4, ["Floor-3B: density_hi<1: density_hi is 0.049"]),
        ("density_hi<1 and density_lo>0", 0, []),
        ("densty<1", 1, ["unknown metric 'densty'; did you mean 'density'?"]),
        ("density<<1", 1, ["--fail-if: cannot read 'density<<1'"]),
        ("density<1ms", 1, ["density has none"]),
    ],
)
def test_a_gate_ends_with_its_exit_code(scores: Path, condition: str, code: int, said: list[str]) -> None:
    done = densing("density", "-r", "qwen1.5", "-b", "mmlu", "--scores", scores, "--fail-if", condition)
    assert done.returncode == code, done.stderr
    assert all(text in done.stderr for text in said), done.stderr
    # What is wrong with a condition is said before anything is shown.
    assert bool(done.stdout) == (code in (0, 4))


def test_json_says_what_failed_each_model(scores: Path) -> None:
    done = densing("density", "-r", "qwen1.5", "-b", "mmlu", "--scores", scores, "--fail-if", "density<0.8", "--json")
    assert done.returncode == 4
    rows = {row["model"]: row for row in printed(done.stdout)}
    assert rows["Mine-3B"]["fail_if"] == []
    [hit] = rows["Floor-3B"]["fail_if"]
    assert (hit["text"], hit["verdict"]) == ("density<0.8", "met")
    assert hit["values"]["density"]["high"] == rows["Floor-3B"]["density_hi"]
    plain = densing("density", "-r", "qwen1.5", "-b", "mmlu", "--scores", scores, "--json")
    assert plain.returncode == 0 and "fail_if" not in printed(plain.stdout)[0]


def test_stored_results_pass_a_gate_that_their_interval_decides(tmp_path: Path) -> None:
    text = " an answer of some length"
    samples = [
        choice_sample(i, [-0.6 * len(text), -60.0], 0, choices=[text, " another one as long"], acc=float(i % 3 > 0))
        for i in range(40)
    ]
    config = {"model": "hf", "model_args": "pretrained=models/tiny", "model_num_parameters": 200_000_000}
    write_results(tmp_path, {"hellaswag": samples}, config=config)
    given = ("density", "--results", tmp_path, "-r", "olmo-ladder", "--denominator", "total")
    plain = densing(*given, "--json")
    rows = {row["quantity"]: row for row in printed(plain.stdout)}
    low, high = rows["loss"]["density_lo"], rows["loss"]["density_hi"]
    assert 0 < low < high
    # Stock prompts are none of the reference's, and that stays what a passed gate ends with.
    assert densing(*given, "--fail-if", f"density<{low}").returncode == plain.returncode == 3
    undecided = densing(*given, "--fail-if", f"density<{(low + high) / 2}")
    assert undecided.returncode == 4 and "cannot be decided" in undecided.stderr
    assert densing(*given, "--fail-if", f"loss.density<{high * 1.01}").returncode == 4


def test_a_reference_that_combines_nothing_says_which_metrics_there_are() -> None:
    """Without a combined row 'density<0.8', as documented, once named a metric that was not there."""
    given = ("density", "--results", folders.DATA / "lm_eval", "-r", "qwen1.5", "--fail-if")
    done = densing(*given, "density<0.8")
    assert done.returncode == 1
    assert "no density of all benchmarks together" in done.stderr
    assert "Name one of them: arc_challenge.density, mmlu.density, winogrande.density\n" in done.stderr
    assert densing(*given, "score.density<0.8").returncode == 1
    assert densing(*given, "winogrande.density<0.01").returncode == 4


def test_a_gate_comes_before_an_error_note(tmp_path: Path) -> None:
    """A score measured otherwise than the reference is exit code 3; a condition that holds comes first."""
    path = tmp_path / "mine.csv"
    header = "model,params,released,benchmark,score,shots,metric,form"
    path.write_text(f"{header}\nMine,3e9,2024-03-01,mmlu,0.6,0,acc,letters\n", encoding="utf-8")
    given = ("density", "-r", "qwen1.5", "-b", "mmlu", "--scores", path)
    assert densing(*given, "--fail-if", "density<0.1").returncode == 3
    assert densing(*given, "--fail-if", "density<100").returncode == 4


@pytest.mark.parametrize("given", [(), ("--references", "all", "--scores", "SCORES"), ("--skills",)])
def test_a_gate_is_for_models_of_ones_own(scores: Path, given: tuple[str, ...]) -> None:
    arguments = [scores if part == "SCORES" else part for part in given]
    done = densing("density", *arguments, "--fail-if", "density<1")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
