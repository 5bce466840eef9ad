"""The second line: while lm-eval loads and runs, what the checks of files cannot see is stopped where it would run.

The checks read files before they are used. This guard stands at the places where code enters: task functions,
templates, metrics, data-set and model scripts. All changes are undone on leaving.

lm-eval offers no public place for the first of these: its loader of task files is a private module. The guard needs two
names there, and without them nothing is loaded.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

from densing.core import InputError, Note, UnavailableError
from densing.scores.evals.safety.checks import CONFIRM, TRUST, Allowed, check_file, refuse, trusted

DOWNLOADED_CODE = ("evaluate_modules", "datasets_modules")
"""Packages under whose names ``evaluate`` and ``datasets`` import the scripts they downloaded."""
TESTED = ("0.4.13",)
"""Versions of lm-eval with which the tests of this guard have passed."""


@contextmanager
def sandboxed_templates() -> Iterator[None]:
    """Render task templates in jinja's sandbox instead of lm-eval's open environment.

    Text is the same; a template that reaches for Python's internals raises.

    Raises
    ------
    InputError
        When a template tried what the sandbox forbids.
    """
    from jinja2 import BaseLoader
    from jinja2.exceptions import SecurityError
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from lm_eval import utils

    sandbox = ImmutableSandboxedEnvironment(
        loader=BaseLoader(), undefined=utils.env.undefined, keep_trailing_newline=utils.env.keep_trailing_newline
    )
    sandbox.filters.update(utils.env.filters)
    with ExitStack() as stack:
        substitute(stack, utils, "env", sandbox)
        try:
            yield
        except SecurityError as error:
            raise InputError(
                f"a task's template (doc_to_text, doc_to_target or doc_to_choice) was stopped: {error}; "
                "no flag allows it, correct the template"
            ) from error


@contextmanager
def guarded(*, trust_remote_code: bool = False, confirm_run_unsafe_code: bool = False) -> Iterator[None]:
    """Load and run models and tasks with templates sandboxed and every way in for code closed but those allowed.

    Not for use in two threads with different consents: the places are those of the whole process.

    Raises
    ------
    InputError
        When something tried to run that no flag given allows.
    """
    allowed = Allowed(trust_remote_code, confirm_run_unsafe_code)
    with ExitStack() as stack:
        stack.enter_context(sandboxed_templates())
        _guard_tasks(stack, allowed)
        _guard_data(stack, allowed)
        if not allowed.trust_remote_code:
            _guard_metrics(stack)
            _guard_models(stack)
        yield


def _guard_tasks(stack: ExitStack, allowed: Allowed) -> None:
    """Check each task file, of lm-eval's own tasks too, at the moment its functions would be imported."""
    _factory = private("_factory", "load_yaml")
    _yaml_loader = private("_yaml_loader", "_import_func_in_yml")

    def load_yaml(path: str | Path, *args: Any, **kwargs: Any) -> Any:
        check_file(Path(path), allowed)
        return original(path, *args, **kwargs)

    def import_function(reference: str, folder: Path) -> Any:
        if not (allowed.confirm_run_unsafe_code or trusted(folder)):
            refuse(str(folder), "!function", reference, "runs Python code", CONFIRM)
        return importer(reference, folder)

    original = _factory.load_yaml
    importer = _yaml_loader._import_func_in_yml
    substitute(stack, _factory, "load_yaml", functools.wraps(original)(load_yaml))
    substitute(stack, _yaml_loader, "_import_func_in_yml", functools.wraps(importer)(import_function))


def private(module: str, name: str) -> Any:
    """Return a private module of lm-eval that has a name which the guard stands in for.

    Raises
    ------
    UnavailableError
        When this version of lm-eval has no such module or name.

    Examples
    --------
    >>> private("_factory", "load_yaml").__name__
    'lm_eval.tasks._factory'
    """
    full = f"lm_eval.tasks.{module}"
    try:
        owner = import_module(full)
    except ModuleNotFoundError as error:
        if error.name != full:
            raise
        owner = None
    if not hasattr(owner, name):
        raise UnavailableError(
            f"lm-eval {version('lm_eval')} has no {full}.{name}, which is needed to block code in task files, so no "
            f"evaluation is run; tested with lm-eval {', '.join(TESTED)}: "
            f"pip install 'lm-eval=={TESTED[-1]}'"
        )
    return owner


def version_notes() -> list[Note]:
    """Return a note where the installed lm-eval is none of those that the guard was tested with."""
    if (installed := version("lm_eval")) in TESTED:
        return []
    message = (
        f"lm-eval {installed} is installed; blocking code in task files was tested with {', '.join(TESTED)}; "
        f"use only task files you trust, or pip install 'lm-eval=={TESTED[-1]}'"
    )
    return [Note("untested-harness", "warning", message, {"installed": installed, "tested": list(TESTED)})]


def _guard_metrics(stack: ExitStack) -> None:
    """A metric lm-eval does not know is looked up, without asking, as a script of the ``evaluate`` library."""
    from lm_eval.api import registry, task

    def get_metric(name: str, hf_evaluate_metric: bool = False) -> Callable[..., Any] | None:
        import lm_eval.api.metrics  # noqa: F401  (fills the registry)

        if hf_evaluate_metric or name not in registry.metric_registry:
            refuse("a task", "metric", name, "is none of lm-eval's; it would be loaded as a Python script", TRUST)
        return original(name, hf_evaluate_metric)

    original = registry.get_metric
    substitute(stack, registry, "get_metric", get_metric)
    substitute(stack, task, "get_metric", get_metric)
    sys.meta_path.insert(0, finder := _NoDownloadedCode())
    stack.callback(sys.meta_path.remove, finder)


def _guard_data(stack: ExitStack, allowed: Allowed) -> None:
    """Say yes or no to data-set scripts for the user, who would otherwise be asked at the terminal."""
    import datasets
    import pandas as pd

    if hasattr(datasets.config, "HF_DATASETS_TRUST_REMOTE_CODE"):
        substitute(stack, datasets.config, "HF_DATASETS_TRUST_REMOTE_CODE", allowed.trust_remote_code)

    def read_pickle(source: Any, *args: Any, **kwargs: Any) -> NoReturn:
        refuse("a data set", "file", str(source), "is a pickle, which can run code when loaded", TRUST)

    if not allowed.trust_remote_code:
        substitute(stack, pd, "read_pickle", read_pickle)


def _guard_models(stack: ExitStack) -> None:
    """No code from model repositories, no pickles in full, whatever a task or a model type passes by itself."""
    before = os.environ.get("TORCH_FORCE_WEIGHTS_ONLY_LOAD")
    if before is None:
        stack.callback(os.environ.pop, "TORCH_FORCE_WEIGHTS_ONLY_LOAD", None)
    else:
        stack.callback(os.environ.__setitem__, "TORCH_FORCE_WEIGHTS_ONLY_LOAD", before)
    os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "1"
    try:
        from transformers import dynamic_module_utils
    except ImportError:
        return

    def get_class_in_module(class_name: str, module_path: Any, *args: Any, **kwargs: Any) -> NoReturn:
        refuse(str(module_path), "class", class_name, "is Python code that comes with the model", TRUST)

    substitute(stack, dynamic_module_utils, "get_class_in_module", get_class_in_module)


class _NoDownloadedCode:
    """An import hook that finds nothing and refuses the packages of downloaded scripts."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> None:
        if name.partition(".")[0] in DOWNLOADED_CODE and name.count("."):
            refuse("a metric or data set", "script", name, "is Python code from outside", TRUST)


def substitute(stack: ExitStack, owner: Any, name: str, value: Any) -> None:
    """Set an attribute, and set it back when the stack closes."""
    stack.callback(setattr, owner, name, getattr(owner, name))
    setattr(owner, name, value)
