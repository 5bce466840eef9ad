"""``densing deploy`` through its entry point."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from densing.efficiency.simulation import Sides, load_served, to_toml
from tests.support.command import printed
from tests.support.profile_command import densing

WAYS = "exit,cut,cut_bits,bits_per_byte\n12,,16,3.2\n30,,16,1.33\n30,6,4,2.1\n30,6,8,1.34\n"
QUICK = ("--times", "serve-smollm2-135m", "--policy", "oracle,last,fixed", "--traces", 4, "--text-stays")


@pytest.fixture
def ways(tmp_path: Path) -> Path:
    path = tmp_path / "ways.csv"
    path.write_text(WAYS)
    return path


def test_a_model_is_deployed_and_a_folder_written(ways: Path, tmp_path: Path) -> None:
    out = tmp_path / "served"
    done = densing("deploy", "--quality", ways, *QUICK, "--deadline", 430, "--out", out)
    assert "Ways to serve, fastest first" in done.stdout and "the link is made up" in done.stderr + done.stdout
    assert json.loads((out / "policy.json").read_text())["model"] == "ways"
    assert {"deploy.html", "choices.csv", "policies.csv"} <= {file.name for file in out.iterdir()}
    page = (out / "deploy.html").read_text()
    assert "Quality is given by ways.csv, which densing has not measured" in page and "is measured" not in page
    trace = tmp_path / "lte.csv"
    trace.write_text("mbit\n5\n30\n5\n40\n")
    found = printed(densing("deploy", "--quality", ways, *QUICK, "--trace", trace, "--json").stdout)
    assert found["recommended"] in {"last", "fixed"} and len(found["choices"]) == 4
    packets = tmp_path / "lte.up"
    packets.write_text("".join(f"{each}\n" for each in range(2000)))
    times = out / "answers.toml"
    numbers = load_served("serve-smollm2-135m")
    sides = {name: getattr(numbers, name) for name in Sides.__struct_fields__}
    times.write_text(to_toml(msgspec.structs.replace(numbers, decode=Sides(**sides))))
    options = ("--times", times, *QUICK[2:], "--trace", packets, "--output-tokens", 3, "--deadline", 2000,
               "--interval", 500)  # fmt: skip
    found = printed(densing("deploy", "--quality", ways, *options, "--json").stdout)
    assert found["output_tokens"] == 3 and all(way["token_ms"] > 0 for way in found["choices"])
    assert "made up" not in json.dumps(found)


def test_what_is_missing_is_said(ways: Path, tmp_path: Path) -> None:
    for options, words in (
        ((), "give either a result store"),
        (("--quality", ways), "layer times are missing"),
        (("--quality", ways, *QUICK, "--deadline", 1), "is met by nothing"),
        (("--quality", ways, *QUICK, "--channel", "good=fast"), "'fast' is not a number"),
        (("--quality", ways, *QUICK, "--output-tokens", 2), "decode is missing"),
        (("--quality", ways, *QUICK, "--try", "20mbit"), "needs the model to serve"),
    ):
        assert words in densing("deploy", *options, code=1).stderr
