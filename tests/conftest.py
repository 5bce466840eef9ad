"""What every test shares: the helpers' folder, and one profile for the property tests.

One profile, so that a property holds or fails the same way everywhere: the same examples in every run, and nothing that
a slow machine decides. ``pytest --hypothesis-profile=explore`` looks for new examples.
"""

from __future__ import annotations

import gc
import os

# As the command line does; and tests run in as many processes as there are processors. Before numpy is loaded.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Torch, too, and in what tests start: threads of small models wait for one another, several times the processor's time
# of one thread where other tests run beside.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import signal
from collections.abc import Generator, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests.support import folders
from tests.support.evals_poison import Poisoned

if TYPE_CHECKING:
    from densing.scores.joint import JointScale

# Scripts that tests start as processes of their own find the tests' helpers.
os.environ["PYTHONPATH"] = os.pathsep.join([str(folders.ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])

# A shell makes what it starts in the background deaf to Ctrl-C, and so would be every process that tests interrupt.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile(
    "fixed",
    derandomize=True,
    deadline=None,
    database=None,
    # Files under a test's folder are written anew by each example; slowness is the machine's.
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.register_profile(
    "explore", settings.get_profile("fixed"), derandomize=False, max_examples=1000, print_blob=True
)
settings.load_profile("fixed")

# No tests are in them.
collect_ignore = ["matrix.py", "support"]


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> str:
    """A torch device: the processor, and a CUDA device where there is one. Tests that take it are marked ``gpu``."""
    torch = pytest.importorskip("torch")
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    return str(request.param)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without collections of garbage, and keep what was read out of later ones.

    Modules, tests and the trees that assertions are rewritten in are millions of objects that stay: to look through
    them again and again takes half of the time of collecting tests, and as long each time a large test makes garbage.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the tests that take minutes (marked with a time-out), each at the start of some process's share.

    At the end, processors would wait for them.
    """
    long = [item for item in items if item.get_closest_marker("timeout")]
    items[:] = [item for item in items if not item.get_closest_marker("timeout")]
    for number, item in reversed(list(enumerate(long))):
        items.insert(number * len(items) // len(long), item)


@pytest.fixture(scope="session")
def embedded_scale() -> JointScale:
    """The joint scale of the embedded catalog, as shipped; where that is stale, one process fits it for all."""
    from densing.scores.catalog import load_catalog
    from densing.scores.joint import catalog_scale

    return catalog_scale(load_catalog())


@pytest.fixture
def short_scales(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Joint scales of one short chain, kept nowhere: long enough for everything but figures."""
    from densing.scores.joint import fit_joint, scale
    from tests.support.joint_worlds import SHORT

    monkeypatch.setenv("DENSING_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(scale, "_FITTED", {})
    monkeypatch.setattr(scale, "DRAWS", SHORT["draws"])
    monkeypatch.setattr(scale, "fit_joint", partial(fit_joint, **SHORT))


@pytest.fixture(scope="module")
def few_sweeps(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Trends whose pace is fitted with few draws, kept for nobody else: where other numbers are asked for."""
    from densing.scores.trend import estimate, fit_pace

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DENSING_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(estimate, "fit_pace", partial(fit_pace, chains=4, sweeps=100, burn=50))
        yield


@pytest.fixture
def drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports of studies with the figures of the synthetic one: where what is asked is in the words."""
    from densing.report import study
    from tests.support import report_fixture

    monkeypatch.setattr(study, "figures", lambda _: report_fixture.drawn())


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Torch on one thread: other tests run beside, and threads that wait for each other are slower than one."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def poisoned(tmp_path: Path) -> Poisoned:
    """A task folder with code beside it, and the marker this code leaves."""
    return Poisoned(tmp_path)


@pytest.fixture
def folder(poisoned: Poisoned) -> Path:
    """The poisoned task folder."""
    return poisoned.folder


@pytest.fixture
def marker(poisoned: Poisoned) -> Path:
    """The file that poisoned code writes when it runs."""
    return poisoned.marker
