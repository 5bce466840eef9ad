"""The example of one's own loop, as a reader starts it: torchrun, two ranks, gloo, every technique."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("this build of torch has no torch.distributed", allow_module_level=True)

from tests.support.folders import ROOT  # noqa: E402

pytestmark = pytest.mark.slow

SCRIPT = ROOT / "examples" / "own_loop.py"
NAMES = re.findall(r'^    "([a-z0-9-]+)": lambda', SCRIPT.read_text(), re.MULTILINE)


@pytest.mark.parametrize("name", NAMES)
def test_the_example_trains_with_every_technique_it_names(name: str) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run([*torchrun, str(SCRIPT), name], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    losses = [float(loss) for loss in re.findall(r"^step \d+: loss ([\d.]+)$", done.stdout, re.MULTILINE)]
    assert len(losses) == 5
    # The variance of a product of two standard normal numbers is 1: that is what a model that learns nothing leaves.
    assert losses[-1] < 0.8 < losses[0]
    assert len(NAMES) == 8
