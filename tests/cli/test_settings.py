"""Settings by one rule: the command line before the environment, the environment before the file, the default last."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from densing.cli import settings
from tests.support.command import answer, commands, densing, printed, single_commands
from tests.support.folders import ROOT

SCORES = ROOT / "examples" / "my_scores.csv"
MMLU = ("density", "--benchmark", "mmlu", "--scores", SCORES)


def reference(done: str) -> str:
    """Return the reference in the title of a table of densities."""
    return done.splitlines()[0].removeprefix("Density against ").split(",")[0]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty place below which nothing of this machine's settings counts."""
    for name in list(settings.os.environ):
        if name.startswith("DENSING_DENSITY_") or name == "DENSING_VERBOSITY":
            monkeypatch.delenv(name)
    return tmp_path


def test_the_command_line_beats_the_environment_beats_the_file_beats_the_default(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert reference(densing(*MMLU, cwd=folder).stdout) == "qwen1.5"
    (folder / "densing.toml").write_text('[density]\nreference = "qwen2.5"\n')
    assert reference(densing(*MMLU, cwd=folder).stdout) == "qwen2.5"
    monkeypatch.setenv("DENSING_DENSITY_REFERENCE", "llama")
    assert reference(densing(*MMLU, cwd=folder).stdout) == "llama"
    assert reference(densing(*MMLU, "--reference", "qwen1.5", cwd=folder).stdout) == "qwen1.5"


def test_pyproject_and_a_folder_above_count_and_densing_toml_is_nearest(folder: Path) -> None:
    deep = folder / "a" / "b"
    deep.mkdir(parents=True)
    (folder / "pyproject.toml").write_text('[tool.densing.density]\nreference = "llama"\n')
    assert reference(densing(*MMLU, cwd=deep).stdout) == "llama"
    (folder / "a" / "pyproject.toml").write_text('[project]\nname = "other"\n')
    assert reference(densing(*MMLU, cwd=deep).stdout) == "llama", "a project without settings of ours is passed by"
    (folder / "densing.toml").write_text('[density]\nreference = "qwen2.5"\n')
    assert reference(densing(*MMLU, cwd=deep).stdout) == "qwen2.5"


def test_paths_of_a_file_count_from_its_folder_and_lists_are_lists(folder: Path) -> None:
    (folder / "below").mkdir()
    (folder / "mine.csv").write_text(SCORES.read_text())
    (folder / "densing.toml").write_text(
        '[density]\nscores = "mine.csv"\nbenchmark = "mmlu"\nfail-if = ["density<0.001", "n_eff<1"]\n'
    )
    rows = answer("density", cwd=folder / "below")
    assert [row["model"] for row in rows] == ["Skywork-13B-Base", "DCLM-Baseline-7B"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[density]\nrefernce = 'x'\n", ["[density]", "'refernce'", "did you mean 'reference'"]),
        ("[densty]\n", ["densing.toml", "'densty'", "did you mean 'density'"]),
        ("verbosity = 'loud'\n", ["densing.toml: verbosity = 'loud'", "quiet, normal, verbose, debug"]),
        ("[density]\nguard = 'wide'\n", ["--guard", "densing.toml [density]", "'wide' is not a valid float"]),
        ("[density]\nlevel = 3\n", ["--level", "densing.toml [density]", "0.5<=x<=0.999"]),
        ("[density]\npool = 'yes'\n", ["[density]: pool = 'yes'", "true or false"]),
        ("[density]\nguard = true\n", ["[density]: guard = True", "one value"]),
        ("[density]\nseed = [1, 2]\n", ["[density]: seed = [1, 2]", "not a list"]),
        ("[density]\nfetch = true\n", ["[density]: fetch", "command line only"]),
        ("density = 3\n", ["density = 3", "[density]"]),
        ("[density\n", ["densing.toml", "line 1"]),
    ],
)
def test_what_is_no_setting_is_one_error_that_names_file_field_and_remedy(
    folder: Path, text: str, said: list[str]
) -> None:
    (folder / "densing.toml").write_text(text)
    done = densing(*MMLU, cwd=folder)
    assert done.returncode in (1, 2) and done.stdout == ""
    for part in said:
        assert part in done.stderr
    assert densing("density", "--help", cwd=folder).returncode == 0, "help is there all the same"
    document = printed(densing(*MMLU, "--json", cwd=folder).stdout)
    assert said[-1] in document["error"]["message"]


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("DENSING_DENSITY_REFERNCE", "llama", "did you mean 'DENSING_DENSITY_REFERENCE'"),
        ("DENSING_VERBOSTY", "quiet", "did you mean 'DENSING_VERBOSITY'"),
        ("DENSING_VERBOSITY", "loud", "DENSING_VERBOSITY: verbosity = 'loud'"),
        ("DENSING_DENSITY_GUARD", "wide", "DENSING_DENSITY_GUARD: 'wide' is not a valid float"),
    ],
)
def test_variables_are_checked_as_the_file_is(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str
) -> None:
    monkeypatch.setenv(name, value)
    done = densing(*MMLU, cwd=folder)
    assert done.returncode in (1, 2) and done.stdout == "" and said in done.stderr


def test_doctor_says_where_each_setting_in_force_comes_from(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'cache = "kept"\n[density]\nguard = 4\nseed = 1\n[techniques.plan]\ngpus = 8\n'
    (folder / "densing.toml").write_text(text)
    monkeypatch.delenv("DENSING_CACHE")
    monkeypatch.setenv("DENSING_DENSITY_SEED", "7")
    rows = {row["name"]: (row["value"], row["source"]) for row in answer("doctor", cwd=folder)["settings"]}
    assert rows["verbosity"] == ("normal", "default")
    assert rows["cache"] == (str(folder / "kept"), "densing.toml")
    assert rows["density.guard"] == ("4", "densing.toml")
    assert rows["density.seed"] == ("7", "DENSING_DENSITY_SEED")
    assert rows["techniques.plan.gpus"] == ("8", "densing.toml")
    assert "  density.seed: 7 (DENSING_DENSITY_SEED)" in densing("doctor", cwd=folder).stdout.splitlines()
    monkeypatch.setenv("DENSING_EVAL_MODEL_ARGS", "pretrained=gpt2,token=hf_abcdefgh12")
    shown = {row["name"]: row["value"] for row in answer("doctor", cwd=folder)["settings"]}
    assert shown["eval.model_args"] == "pretrained=gpt2,token=***", "what doctor prints goes into reports of errors"
    (folder / "densing.toml").write_text("[techniques.plna]\n")
    assert "did you mean 'plan'" in densing("doctor", cwd=folder).stderr
    (folder / "densing.toml").write_text("[techniques.plan]\ngups = 8\n")
    assert densing(*MMLU, cwd=folder).returncode == 0, "a command reads its own table"
    assert "did you mean 'gpus'" in densing("doctor", cwd=folder).stderr


def test_quiet_leaves_the_answer_and_the_warnings_and_verbose_adds_what_is_read(folder: Path) -> None:
    plain, quiet, loud = (densing(*MMLU, *more, cwd=folder) for more in ((), ("-q",), ("-v",)))
    assert plain.stdout == quiet.stdout != ""
    # All columns come with it, those of an answer's table too.
    assert set(plain.stdout.split()) < set(loud.stdout.split())
    assert all(line.startswith("warning: ") for line in quiet.stderr.splitlines()) and "warning: " in quiet.stderr
    assert set(quiet.stderr.splitlines()) < set(plain.stderr.splitlines()) < set(loud.stderr.splitlines())
    assert "info: catalog: " in loud.stderr
    assert "debug: read " in densing(*MMLU, "-vv", cwd=folder).stderr
    assert "--quiet, --verbose" in densing(*MMLU, "-q", "-v", cwd=folder).stderr
    (folder / "densing.toml").write_text('verbosity = "quiet"\n')
    assert densing(*MMLU, cwd=folder).stderr == quiet.stderr
    assert "info: catalog: " in densing(*MMLU, "-v", cwd=folder).stderr, "the command line beats the file"


SINGLE = single_commands()


@pytest.mark.parametrize("path", SINGLE, ids=" ".join)
def test_every_command_has_a_setting_per_option_and_says_less_and_more(path: tuple[str, ...]) -> None:
    command = commands()[path]
    spellings = [name for parameter in command.params for name in parameter.opts]
    assert len(spellings) == len(set(spellings)), "no letter stands for two options"
    assert {"-q", "-v"} <= set(spellings)
    assert not settings.GIVEN_ONLY & settings.options_of(command).keys()


def test_the_library_logs_and_shows_nothing_until_a_program_says_so() -> None:
    code = "import densing; densing.load_catalog()"
    silent = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert silent.stdout == silent.stderr == ""
    asked = f"import logging; logging.basicConfig(level=logging.INFO); {code}"
    told = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert told.stderr.startswith("INFO:densing.scores.catalog.tables:catalog: ")
    assert any(isinstance(each, logging.NullHandler) for each in logging.getLogger("densing").handlers)
