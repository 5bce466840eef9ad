"""What ``--json`` prints: one envelope around every command's answer, its schema, and the form of 0.2."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import ValidationError

from densing.cli.output import output_schema
from tests.support.command import commands, densing, printed, schema

MINE = "model,params,released,benchmark,score\nMine-3B,3.1e9,2024-03-01,mmlu,0.62\n"


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.csv"
    path.write_text(MINE, encoding="utf-8")
    return path


def test_every_command_that_prints_json_is_in_the_schema_and_no_other() -> None:
    speaking = {
        " ".join(path)
        for path, command in commands().items()
        if any("--json" in parameter.opts for parameter in command.params)
    }
    assert set(json.loads(output_schema())["properties"]["command"]["enum"]) == {"", *speaking}
    assert densing("--json-schema").stdout == output_schema()


def test_an_answer_stands_in_one_envelope_with_its_notes(mine: Path) -> None:
    done = densing("density", "-r", "qwen1.5", "-b", "mmlu", "--scores", mine, "--json")
    document = json.loads(done.stdout)
    assert list(document) == ["schema", "version", "command", "notes", "data"]
    assert (document["schema"], document["command"]) == ("densing-output/1", "density")
    assert "protocol-unknown" in {note["code"] for note in document["notes"]}
    assert [row["model"] for row in document["data"]] == ["Mine-3B"]
    groups = json.loads(densing("techniques", "show", "ddp", "--json").stdout)
    assert (groups["command"], groups["data"]["name"]) == ("techniques show", "ddp")


def test_the_form_of_0_2_is_kept_beside_it(mine: Path, tmp_path: Path) -> None:
    given = ("density", "-r", "qwen1.5", "-b", "mmlu", "--scores", mine)
    bare = json.loads(densing(*given, "--json=v0").stdout)
    assert (
        bare
        == json.loads(densing(*given, "--json").stdout)["data"]
        == json.loads(densing(*given, "--json=v1").stdout)["data"]
    )
    out = tmp_path / "out.json"
    assert densing(*given, "--json=v0", "--out", out).returncode == 0 and json.loads(out.read_text()) == bare
    assert densing(*given, "--out", out).returncode == 0 and printed(out.read_text()) == bare
    notes = json.loads(densing("refs", "show", "olmo-ladder", "--benchmark", "mmlu", "--json=v0").stdout)["notes"]
    assert (
        notes
        == json.loads(densing("refs", "show", "olmo-ladder", "--benchmark", "mmlu", "--json").stdout)["notes"]
        != []
    )


@pytest.mark.parametrize("arguments", [("density", "-r", "qwenn"), ("densty",), ("density", "--level", "7")])
def test_a_failure_has_its_envelope_and_its_form_of_0_2(arguments: tuple[str, ...]) -> None:
    done = densing(*arguments, "--json")
    document = json.loads(done.stdout)
    schema().validate(document)
    command = "density" if arguments[0] == "density" else ""
    assert (document["command"], document["data"], document["exit_code"]) == (command, None, done.returncode)
    bare = json.loads(densing(*arguments, "--json=v0").stdout)
    assert bare == {"error": document["error"], "exit_code": document["exit_code"]}


def test_an_unknown_form_is_a_usage_error_that_names_those_there_are() -> None:
    done = densing("doctor", "--json=v7")
    assert done.returncode == 2
    assert "'v7' is not a form of JSON; write --json, or --json=v0" in done.stderr
    assert printed(done.stdout)["error"]["kind"] == "UsageError"


def test_json_does_not_take_the_argument_behind_it() -> None:
    assert printed(densing("techniques", "show", "--json", "ddp").stdout)["name"] == "ddp"
    assert json.loads(densing("techniques", "show", "--json=v0", "ddp").stdout)["name"] == "ddp"


def test_what_the_schema_does_not_allow_is_found() -> None:
    document = json.loads(densing("techniques", "show", "ddp", "--json").stdout)
    for wrong in (
        {**document, "schema": "densing-output/2"},
        {**document, "command": "techniques sow"},
        {**document, "data": []},
        {**document, "data": {key: value for key, value in document["data"].items() if key != "claims"}},
        {**document, "notes": [{"code": "x", "severity": "grave", "message": ""}]},
        {**document, "more": 1},
        {**document, "exit_code": 1},
    ):
        with pytest.raises(ValidationError):
            schema().validate(wrong)
