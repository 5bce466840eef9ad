"""docs/first_hour: what it reads out of a page, what it compares, and the tutorials in a clean environment."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.folders import ROOT
from tests.support.pages import SCRIPT, load_first_hour, words

first_hour = load_first_hour()
ENVIRONMENT = first_hour.environment(Path(sys.executable).parent)
README = {words(command) for command in first_hour.read_commands(ROOT / "README.md")}
# Without README's commands: tests/test_readme.py runs them, and compares what how-to pages show of them.
HOW_TO = {
    page.stem: [command for command in first_hour.read_commands(page) if words(command) not in README]
    for page in sorted((ROOT / "docs" / "how-to").glob("*.md"))
}
PAGE = """\
```console
$ printf 'one 1.00\\n two   2.00\\nthree\\n'
one 1.01
...
three
$ exit 4
$ echo $?
4
```
<!-- first_hour: figures of one machine, not compared -->
```console
$ echo 5
6
```
<!-- first_hour: not run: this machine has no such thing -->
```console
$ exit 5
```
```python
print(7)
```
```text
7
```
```toml
not = "run"
```
"""


def test_commands_their_places_and_their_output_are_read_out_of_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    read = [(command.place, command.python, command.shown) for command in first_hour.read_commands(page)]
    assert read == [
        ("page.md:2", False, ("one 1.01", "...", "three")),
        ("page.md:6", False, ()),
        ("page.md:7", False, ("4",)),
        ("page.md:12", False, ()),
        ("page.md:20", True, ("7",)),
    ]
    assert first_hour.try_commands(first_hour.read_commands(page), tmp_path, ENVIRONMENT) == []


@pytest.mark.parametrize(
    ("old", "new", "place"),
    [
        ("one 1.01", "one 1.03", "page.md:2: the page shows a line"),
        ("three\n$", "four\n$", "page.md:2: the page shows a line"),
        ("one 1.01\n...\nthree", "three\none 1.01", "page.md:2: the page shows a line"),
        ("$ echo $?\n4\n", "", "page.md:6: exit code 4"),
        ("$ echo $?\n4\n", "$ echo $?\n3\n", "page.md:7: the page shows a line"),
        ("print(7)", "raise SystemExit(2)", "page.md:20: exit code 2"),
    ],
)
def test_a_page_that_says_otherwise_is_named_with_its_line(tmp_path: Path, old: str, new: str, place: str) -> None:
    page = tmp_path / "page.md"
    assert old in PAGE
    page.write_text(PAGE.replace(old, new))
    (wrong,) = first_hour.try_commands(first_hour.read_commands(page), tmp_path, ENVIRONMENT)
    assert wrong.startswith(place)


@pytest.mark.slow
@pytest.mark.parametrize("page", [name for name, commands in HOW_TO.items() if commands])
def test_a_how_to_page_does_what_it_says(page: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    assert first_hour.try_commands(HOW_TO[page], tmp_path, ENVIRONMENT) == []


@pytest.mark.slow
def test_the_trainer_of_a_tutorial_logs_the_densities_that_the_page_shows(tmp_path: Path) -> None:
    """The one script that the clean environment has no packages for."""
    pytest.importorskip("transformers", reason="needs transformers, which the extra evals brings")
    text = (first_hour.TUTORIALS / "follow-my-run.md").read_text("utf-8")
    page = tmp_path / "page.md"
    page.write_text(text[text.index(first_hour.NOT_RUN) :].replace(first_hour.NOT_RUN, ""))
    script = first_hour.read_commands(page)[0]
    assert script.python and first_hour.try_commands([script], tmp_path, ENVIRONMENT) == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_tutorials_do_what_they_say_on_a_wheel() -> None:
    # In an environment of its own; what it depends on is installed afresh where this script is run by hand.
    done = subprocess.run([sys.executable, str(SCRIPT), "--borrow"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "wheel: " in done.stdout and "import densing: " in done.stdout
