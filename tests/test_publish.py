"""What is published agrees with itself: versions, workflows, recipe, image, templates."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import densing
from densing.cli import build
from tests.support.folders import ROOT

yaml = pytest.importorskip("yaml", reason="needs PyYAML, which the extra evals brings")

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
ACTION = GITHUB / "actions" / "density" / "action.yml"
# Names on conda's main channel that are not those of the Python index.
CONDA_NAMES = {"python-isal": "isal"}
PINNED = re.compile(r"^(\./.+|[\w-]+/[\w./-]+@(v\d+|release/v\d+))$")


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def pythons() -> list[str]:
    """The versions that the classifiers promise."""
    found = [re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", line) for line in PROJECT["classifiers"]]
    return [match[1] for match in found if match]


def jobs(path: Path) -> dict[str, Any]:
    return dict(yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"])


def steps(path: Path) -> list[dict[str, Any]]:
    if path == ACTION:
        return list(yaml.safe_load(path.read_text(encoding="utf-8"))["runs"]["steps"])
    return [step for job in jobs(path).values() for step in job.get("steps", [])]


def test_the_version_is_one() -> None:
    [changelog, *_] = re.findall(r"^## \[?(\d[^\]\s]*)\]? - (\d{4}-\d\d-\d\d)$", text("CHANGELOG.md"), re.M)
    citation = yaml.safe_load(text("CITATION.cff"))
    assert changelog == (densing.__version__, citation["date-released"])
    assert citation["version"] == densing.__version__
    [conda] = re.findall(r'set version = "(.+)"', text("conda/meta.yaml"))
    assert conda == densing.__version__
    assert f"density@v{densing.__version__}" in text("docs/how-to/ci.md")


def test_addresses_are_of_one_place() -> None:
    citation = yaml.safe_load(text("CITATION.cff"))
    home = PROJECT["urls"]["Homepage"]
    assert {"Homepage", "Documentation", "Source", "Changelog", "Issues"} == set(PROJECT["urls"])
    assert home == citation["repository-code"] == PROJECT["urls"]["Source"]
    assert all(url.startswith(home) for name, url in PROJECT["urls"].items() if name != "Documentation")
    files = (
        re.sub(r"\s", " ", text("docs/how-to/ci.md")) + text("conda/meta.yaml") + text(".github/workflows/density.yml")
    )
    owner = home.removeprefix("https://github.com/")
    assert set(re.findall(r"github\.com/([\w-]+/[\w-]+)", files)) == {owner}
    assert f"uses: {owner}/.github/actions/density@" in files


@pytest.mark.parametrize("path", [*WORKFLOWS, ACTION], ids=lambda path: path.stem)
def test_steps_are_pinned_and_call_what_exists(path: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", text("Makefile"), re.M))
    if path.stem == "site" and not (ROOT / "docs" / "conf.py").is_file():
        pytest.skip("there is no site yet to build")
    for step in steps(path):
        assert PINNED.match(step.get("uses", "./here")), step
        if step.get("uses", "").startswith("./"):
            assert (ROOT / step["uses"] / "action.yml").is_file()
        script = step.get("run", "")
        # What people type into a form or an input would be part of the script.
        assert "${{" not in script, script
        for line in script.splitlines():
            words = shlex.split(line, comments=True) if line.startswith("make ") else []
            assert set(words[1:]) - {word for word in words if "=" in word} <= targets, line
            if line.startswith(".ci/"):
                assert (ROOT / line).is_file()
        # Behind an option that is only given where its input is.
        for line in re.findall(r"^densing (.+)$", script.replace("\\\n", " ").replace("${MODEL_ARGS:+", ""), re.M):
            command, given = line.split()[0], set(re.findall(r"(?<!\S)--[\w-]+", line))
            known = {name for option in options(command) for name in (*option.opts, *option.secondary_opts)}
            assert given <= known, line


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_have_the_least_rights(path: Path) -> None:
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert content["permissions"] == {"contents": "read"}
    more = {name: job["permissions"] for name, job in content["jobs"].items() if "permissions" in job}
    expected = {
        "publish": {"publish": {"id-token": "write"}},
        "site": {"deploy": {"pages": "write", "id-token": "write"}},
    }
    assert more == expected.get(path.stem, {})


def test_every_promised_python_is_tested_and_installed() -> None:
    assert PROJECT["requires-python"] == f">={pythons()[0]}"
    for name, job in (("tests", "pythons"), ("wheel", "install")):
        assert jobs(GITHUB / "workflows" / f"{name}.yml")[job]["strategy"]["matrix"]["python"] == pythons()
    assert jobs(GITHUB / "workflows" / "tests.yml")["everything"]["container"] == f"python:{pythons()[0]}-bookworm"


def test_git_trusts_the_checkout_of_a_container(tmp_path: Path) -> None:
    """There the files belong to another user than the one who runs: what the job sets lets git read them."""
    if os.geteuid() != 0 or shutil.which("git") is None:
        pytest.skip("needs root, who may give files away, and git")
    [job] = [job for path in WORKFLOWS for job in jobs(path).values() if "container" in job]
    checkout, home = tmp_path / "checkout", tmp_path / "home"
    home.mkdir()
    subprocess.run(["git", "init", "-q", str(checkout)], check=True)
    for path in (checkout, *checkout.rglob("*")):
        os.chown(path, 1001, 1001)
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "GITHUB_WORKSPACE": str(checkout)}
    [trust] = [step["run"] for step in job["steps"] if step.get("run", "").startswith("git config")]
    codes = []
    for command in ("git ls-files", trust, "git ls-files"):
        codes.append(subprocess.run(["bash", "-c", command], cwd=checkout, env=env, check=False).returncode)
    assert codes == [128, 0, 0]


def test_only_a_release_publishes() -> None:
    for path in WORKFLOWS:
        publishes = any("pypi-publish" in step.get("uses", "") for step in steps(path))
        assert publishes == (path.stem == "publish")
    content = yaml.safe_load((GITHUB / "workflows" / "publish.yml").read_text(encoding="utf-8"))
    # YAML 1.1 reads the key `on` as true.
    assert content[True] == {"release": {"types": ["published"]}}
    assert set(content["jobs"]["publish"]["needs"]) == {"wheel", "version"}
    [check] = [step for step in content["jobs"]["version"]["steps"] if "run" in step]
    for tag, code in ((f"v{densing.__version__}", 0), ("v9.9.9", 1), (f"v{densing.__version__}0", 1)):
        assert subprocess.run(["bash", "-c", check["run"]], cwd=ROOT, env={"TAG": tag}, check=False).returncode == code


def test_the_action_uses_options_that_exist() -> None:
    content = yaml.safe_load(ACTION.read_text(encoding="utf-8"))
    read = set(re.findall(r"\$\{\{ inputs\.([\w-]+) \}\}", ACTION.read_text(encoding="utf-8")))
    assert read == set(content["inputs"])
    example = steps(GITHUB / "workflows" / "density.yml")[-1]
    assert set(example["with"]) <= set(content["inputs"])
    script = "\n".join(step.get("run", "") for step in steps(ACTION)).replace("\\\n", " ")
    lines = [line for line in script.splitlines() if line.startswith("densing ")]
    assert len(lines) == 2


def options(command: str) -> list[Any]:
    """The options of a command; of `densing` alone where this is one of its own."""
    main: Any = typer.main.get_command(build(command))
    return list(main.params if command.startswith("--") else main.commands[command].params)


def test_the_recipe_needs_what_the_project_needs() -> None:
    recipe = yaml.safe_load(
        re.sub(r"\{\{ (\w+) \}\}", r"\1", re.sub(r"^\{%.*%\}$", "", text("conda/meta.yaml"), flags=re.M))
    )
    listed = {}
    for line in recipe["requirements"]["run"]:
        name, _, version = line.partition(" ")
        listed[canonicalize_name(CONDA_NAMES.get(name, name))] = version
    needed = {}
    for line in PROJECT["dependencies"]:
        requirement = Requirement(line)
        needed[canonicalize_name(requirement.name)] = requirement.specifier
    assert listed.pop("python") == PROJECT["requires-python"]
    assert {name: Requirement(f"{name}{version}").specifier for name, version in listed.items()} == needed
    system = tomllib.loads(text("pyproject.toml"))["build-system"]["requires"]
    assert {line.replace(" ", "") for line in recipe["requirements"]["host"]} >= set(system)
    [entry] = recipe["build"]["entry_points"]
    assert entry == f"densing = {PROJECT['scripts']['densing']}"


def test_the_image_copies_what_the_wheel_is_built_from() -> None:
    kept = {line[1:] for line in text(".dockerignore").splitlines() if line.startswith("!")}
    wheel = tomllib.loads(text("pyproject.toml"))["tool"]["hatch"]["build"]["targets"]["wheel"]
    sources = {*wheel["packages"], *wheel["force-include"], "pyproject.toml", "README.md", *PROJECT["license-files"]}
    assert sources == kept
    dockerfile = text("Dockerfile")
    assert f"ARG PYTHON={pythons()[0]}\n" in dockerfile
    last = dockerfile[dockerfile.rindex("FROM ") :]
    assert 'ENTRYPOINT ["densing"]' in last and last.index("USER 1000") < last.index("ENTRYPOINT")


def test_issue_forms_are_whole() -> None:
    forms = sorted((GITHUB / "ISSUE_TEMPLATE").glob("*.yml"))
    assert {path.stem for path in forms} == {"bug", "config", "data", "trace"}
    for path in forms:
        if path.stem == "config":
            continue
        form = yaml.safe_load(path.read_text(encoding="utf-8"))
        assert form["name"] and form["description"]
        names = [part["id"] for part in form["body"]]
        assert len(names) == len(set(names))
        assert all(part["attributes"]["label"] for part in form["body"])
        assert any(part.get("validations", {}).get("required") for part in form["body"])
