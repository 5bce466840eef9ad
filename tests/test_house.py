"""The house: no circles between files, no folder entered past its face, and faces that hold what they name."""

from __future__ import annotations

import ast
import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import rooms
from tests.support.folders import ROOT, TESTS
from tests.support.house import House

HOUSE = House()


def test_no_files_import_each_other_in_a_circle() -> None:
    assert HOUSE.circles() == []


def test_folders_are_entered_by_their_faces() -> None:
    assert HOUSE.bypasses() == []


@pytest.mark.parametrize("package", sorted(HOUSE.faces))
def test_a_face_holds_what_it_names(package: str) -> None:
    face = importlib.import_module(package)
    for name, module in HOUSE.faces[package].items():
        # A module of that name would stand before the function as soon as somebody imports it.
        shadow = f"{package}.{name}"
        assert shadow not in HOUSE.paths or module == shadow, f"{shadow} is a module and a name of the face"
        try:
            assert getattr(face, name) is not None
        except ModuleNotFoundError as error:
            assert (error.name or "").split(".")[0] in {"torch", "lm_eval", "transformers", "sklearn"}


def test_no_test_imports_another_test() -> None:
    for path in TESTS.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            assert ".test_" not in f".{module}", f"{path.relative_to(ROOT)} imports {module}"


def test_the_architecture_page_shows_the_code() -> None:
    text = rooms.PAGE.read_text(encoding="utf-8")
    assert text == rooms.page(text, HOUSE), "run python -m tests.support.rooms"
    assert rooms.PICTURE.read_text(encoding="utf-8") == rooms.picture(HOUSE), "run python -m tests.support.rooms"
    # Every place that the page names exists.
    for place in re.findall(r"`([a-z_/]+/(?:[a-z_]+\.py)?)`", text):
        assert (ROOT / "densing" / place).exists(), place


def test_every_room_says_what_it_is_for() -> None:
    assert not [room for room, sentence in rooms.rooms(HOUSE).items() if not sentence.endswith(".")]


USER = """
import densing

reference = densing.load_reference("qwen1.5", "mmlu")
densities = densing.catalog_densities(densing.load_catalog(), reference)
trend = densing.estimate_trend(densing.TrendData.from_density(densities))
print(trend.headline, densing.__version__)
with densing.timeline.record("traces"):
    pass
{line}
"""


LINES = {
    "": [],
    'densing.load_refrence("qwen1.5")': ['"load_refrence"'],
    "densing.catalog_densities(densing.load_catalog(), 7)": ["incompatible type"],
    'densing.load_refrence("x")\ndensing.get_law(name=7)': ['"load_refrence"', "incompatible type"],
    "reference.nothing\ndensities.nothing\ntrend.nothing": ['"Reference"', '"DensityResult"', '"TrendResult"'],
}


def test_a_users_editor_sees_the_types(tmp_path: Path) -> None:
    mypy = pytest.importorskip("mypy.api")
    scripts = {line: tmp_path / f"script_{number}.py" for number, line in enumerate(LINES)}
    for line, script in scripts.items():
        script.write_text(USER.format(line=line), encoding="utf-8")
    # All in one run, with the settings of `make types`, which skip torch and the like: to read those takes a minute.
    output, _, code = mypy.run([*map(str, scripts.values()), f"--config-file={ROOT / 'pyproject.toml'}"])
    for line, messages in LINES.items():
        errors = [row for row in output.splitlines() if f"{scripts[line].name}:" in row and ": error:" in row]
        assert len(errors) == len(messages), output
        assert all(message in error for message, error in zip(messages, errors, strict=True)), output
    assert output.count(": error:") == sum(map(len, LINES.values())), output
    assert code == 1


@pytest.mark.slow
def test_a_flag_a_score_and_an_event_walk_short_ways(tmp_path: Path) -> None:
    code = (
        "import json, sys; from pathlib import Path; from tests.support.house import walks\n"
        "print(json.dumps([[len(walk.files), sorted(name for _, name in walk.functions)]"
        " for walk in walks(Path(sys.argv[1])).values()]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True, cwd=ROOT
    )
    (score, *of_score), (event, *of_event), (flag, *of_flag) = json.loads(done.stdout.splitlines()[-1])
    # A score that people bring passes more files than one of ours: the address or the logged run that its table might
    # be, its file form and spelling, its model's name, what is said of all these. A pace that varies is a file beside
    # the straight line's; what a command prints passes the file that knows which command it is, its arguments'
    # (their parsing and their settings), and the one that makes groups of options of them. A technique of rounds passes
    # the file of the plan that all of these share. Causes are what a replay gains without them: an event passes the
    # file of its rank's dependencies and that of the replay. Time by module and the grid of ranks are further files.
    assert score <= 30 and event <= 34 and flag <= 9
    # The page's walks pass the functions that they name.
    walked = rooms.PAGE.read_text(encoding="utf-8").partition("## Three walks")[2].partition("## Where")[0]
    told = [re.findall(r"`[a-z_/]+\.py`\s+`([A-Za-z_.]+)`", walk) for walk in walked.strip().split("\n\n")]
    for names, passed in zip(told, (of_score, of_event, of_flag), strict=True):
        assert len(names) >= 4 and set(names) <= set(passed[0]), set(names) - set(passed[0])
