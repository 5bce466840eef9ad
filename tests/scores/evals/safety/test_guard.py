"""Hostile data while lm-eval runs: the guard stops what would run, and the flags let it."""

from __future__ import annotations

import json
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from densing.core.errors import InputError, UnavailableError
from densing.scores.evals.safety.checks import check_tasks, entries
from densing.scores.evals.safety.guard import TESTED, guarded, private, sandboxed_templates, version_notes
from tests.support.evals_poison import GOOD, built_in, load, write

pytest.importorskip("lm_eval", reason="needs the extra evals: pip install 'densing[evals]'")

CONFIRM, TRUST = "--confirm_run_unsafe_code", "--trust_remote_code"


def test_sound_task_passes_and_loads(folder: Path) -> None:
    write(folder, GOOD)
    check_tasks([folder], ["poisoned"])
    with guarded():
        assert len(load(folder).eval_docs) == 2


def test_function_runs_only_with_the_flag(folder: Path, marker: Path) -> None:
    """The guard alone stops it, too; with the flag lm-eval does as ever, so the poison is real."""
    write(folder, GOOD + "process_docs: !function evil.f")
    with pytest.raises(InputError, match=CONFIRM), guarded():
        load(folder)
    assert not marker.exists()
    with guarded(confirm_run_unsafe_code=True):
        load(folder)
    assert marker.exists()


def test_file_changed_after_the_check_is_stopped_by_the_guard(folder: Path, marker: Path) -> None:
    from lm_eval.tasks import TaskManager

    write(folder, GOOD)
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    write(folder, GOOD + "process_docs: !function evil.f")
    with pytest.raises(InputError, match="process_docs"), guarded():
        manager.load(["poisoned"])
    assert not marker.exists()


def test_humaneval_is_refused_when_lm_eval_loads_it() -> None:
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=str(built_in("humaneval")), include_defaults=False)
    with pytest.raises(InputError, match="unsafe_code"), guarded():
        manager.load(["humaneval"])


def test_unknown_metric_is_not_looked_up_as_a_script(folder: Path, marker: Path, monkeypatch: Any) -> None:
    place = folder / "evil_metric"
    place.mkdir()
    (place / "evil_metric.py").write_text((folder / "evil.py").read_text())
    monkeypatch.chdir(folder)
    write(folder, GOOD.replace("metric: acc", "metric: evil_metric"))
    check_tasks(folder, ["poisoned"])
    with pytest.raises(InputError, match=f"evil_metric.*{TRUST}"), guarded():
        load(folder)
    assert not marker.exists()


def test_downloaded_scripts_are_not_imported(tmp_path: Path, marker: Path, monkeypatch: Any) -> None:
    place = tmp_path / "evaluate_modules"
    place.mkdir()
    (place / "__init__.py").write_text("")
    (place / "m.py").write_text(f"open({str(marker)!r}, 'w').close()")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(InputError, match=TRUST), guarded():
        import evaluate_modules.m
    assert not marker.exists()
    with guarded(trust_remote_code=True):
        import evaluate_modules.m  # noqa: F401
    assert marker.exists()
    for name in [name for name in sys.modules if name.startswith("evaluate_modules")]:
        monkeypatch.delitem(sys.modules, name)


ESCAPE = "{{ cycler.__init__.__globals__.os.system('touch MARKER') }}"


@pytest.mark.parametrize("key", ["doc_to_text", "doc_to_target", "doc_to_choice", "gen_prefix"])
def test_templates_run_in_a_sandbox(key: str, folder: Path, marker: Path) -> None:
    template = ESCAPE.replace("MARKER", str(marker))
    lines = [line for line in GOOD.splitlines() if not line.startswith(f"{key}:")]
    write(folder, "\n".join([*lines, f'{key}: "{template}"']))
    check_tasks(folder, ["poisoned"])

    def build() -> None:
        task = load(folder)
        task.doc_to_prefix(task.eval_docs[0]) if key == "gen_prefix" else None

    with pytest.raises(InputError, match="template"), guarded():
        build()
    assert not marker.exists()


def test_template_escape_is_real_outside_the_sandbox(marker: Path) -> None:
    from lm_eval import utils

    before = utils.env
    with sandboxed_templates():
        assert utils.env is not before
    assert utils.env is before
    utils.apply_template(ESCAPE.replace("MARKER", str(marker)), {})
    assert marker.exists()


def test_sandbox_renders_lm_evals_own_templates_alike() -> None:
    """Each template of a sample of lm-eval's tasks, over made-up documents, gives the same text or error."""
    from jinja2 import meta
    from lm_eval import utils

    templates: set[str] = set()
    for place in sorted(built_in("").iterdir()):
        for file in sorted(place.glob("*.yaml"))[:2]:
            templates |= {e.text for e in entries(file) if e.key.startswith("doc_to_") and "{" in e.text}
    assert len(templates) > 100

    def outcome(template: str, doc: dict[str, Any]) -> str:
        try:
            return utils.apply_template(template, doc)
        except Exception as error:
            return type(error).__name__

    rendered = 0
    for template in sorted(templates):
        try:
            names = meta.find_undeclared_variables(utils.env.parse(template))
        except Exception:
            continue
        for value in ("Some words. [x] b", ["alpha", "beta", "c", "d"], 1, {"text": ["a", "b"], "label": [0, 1]}):
            doc = dict.fromkeys(names, value)
            plain = outcome(template, doc)
            with sandboxed_templates():
                assert outcome(template, doc) == plain
            rendered += not plain.endswith("Error")
    assert rendered > 100


class _Poison:
    """Pickles into a call that leaves the marker."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, str]]:
        return (open, (str(self.marker), "w"))


@pytest.fixture
def evil_model(tmp_path: Path, marker: Path) -> Path:
    """A folder whose configuration class is Python code that leaves the marker."""
    place = tmp_path / "evilmodel"
    place.mkdir()
    config = {"model_type": "evil", "auto_map": {"AutoConfig": "code.EvilConfig"}}
    (place / "config.json").write_text(json.dumps(config))
    (place / "code.py").write_text(
        f"open({str(marker)!r}, 'w').close()\nfrom transformers import PretrainedConfig\n"
        "class EvilConfig(PretrainedConfig):\n    model_type = 'evil'\n"
    )
    return place


@pytest.mark.filterwarnings("ignore")
def test_hub_code_runs_only_with_the_flag(evil_model: Path, marker: Path, tmp_path: Path, monkeypatch: Any) -> None:
    transformers = pytest.importorskip("transformers")
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    # What a task such as REFERENCE does by itself is stopped by the guard.
    with pytest.raises(InputError, match=TRUST), guarded():
        transformers.AutoConfig.from_pretrained(evil_model, trust_remote_code=True)
    assert not marker.exists()
    with guarded(trust_remote_code=True):
        transformers.AutoConfig.from_pretrained(evil_model, trust_remote_code=True)
    assert marker.exists()


@pytest.mark.filterwarnings("ignore")
def test_pickles_do_not_run_under_the_guard(tmp_path: Path, marker: Path) -> None:
    torch = pytest.importorskip("torch")
    pandas = pytest.importorskip("pandas")
    file = tmp_path / "weights.bin"
    torch.save(_Poison(marker), file)
    plain = tmp_path / "data.pkl"
    plain.write_bytes(pickle.dumps(_Poison(marker)))
    with guarded():
        with pytest.raises(pickle.UnpicklingError):
            torch.load(file, weights_only=False)
        with pytest.raises(InputError, match=TRUST):
            pandas.read_pickle(plain)
    assert not marker.exists()
    assert "TORCH_FORCE_WEIGHTS_ONLY_LOAD" not in os.environ
    torch.load(file, weights_only=False).close()
    assert marker.exists()


@pytest.fixture(autouse=True)
def _no_questions(monkeypatch: Any) -> Iterator[None]:
    """No test may ask at the terminal or the network."""
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked at the terminal"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    yield


@pytest.mark.parametrize(("module", "name"), [("_factory", "load_yaml"), ("_yaml_loader", "_import_func_in_yml")])
def test_an_lm_eval_without_the_guarded_names_loads_nothing(
    module: str, name: str, folder: Path, marker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder, GOOD + "process_docs: !function evil.f")
    monkeypatch.delattr(f"lm_eval.tasks.{module}.{name}")
    with pytest.raises(UnavailableError) as caught, guarded():
        load(folder)
    expected = f"has no lm_eval.tasks.{module}.{name}, which is needed to block code in task files"
    assert expected in str(caught.value)
    assert f"tested with lm-eval {', '.join(TESTED)}: pip install 'lm-eval=={TESTED[-1]}'" in str(caught.value)
    assert not marker.exists()


def test_an_lm_eval_without_the_guarded_module_says_the_same() -> None:
    with pytest.raises(UnavailableError, match=r"has no lm_eval\.tasks\._nowhere\.load_yaml"):
        private("_nowhere", "load_yaml")


def test_the_tested_version_is_the_installed_one_and_another_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert version("lm_eval") in TESTED, "run these tests, then name this version in TESTED"
    assert version_notes() == []
    monkeypatch.setattr("densing.scores.evals.safety.guard.TESTED", ("0.0.1",))
    [note] = version_notes()
    assert note.severity == "warning" and "tested with 0.0.1" in note.message
