"""The examples of one's own loop on two ranks over gloo, with every technique and hook. It is its own script."""

from __future__ import annotations

import contextlib
import os
import re
import runpy
import socket
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("this build of torch has no torch.distributed", allow_module_level=True)

from tests.support.folders import ROOT  # noqa: E402

pytestmark = pytest.mark.slow

SCRIPTS = [ROOT / "examples" / "own_loop.py", ROOT / "examples" / "ddp_hook.py"]
NAMES = [
    f"{script.stem} {name}"
    for script in SCRIPTS
    for name in re.findall(r'^    "([a-z0-9-]+)": [{l]', script.read_text(), re.MULTILINE)
]


def run_all(out: Path) -> None:
    """Run the example as torchrun would, on two forked ranks: torch is imported once for all techniques."""
    import torch._dynamo  # by optimizers: once, not in every rank

    torch.set_num_threads(1)
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in NAMES]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        ports = [each.getsockname()[1] for each in sockets]
    children = []
    for rank in range(2):
        child = os.fork()
        if child:
            children.append(child)
            continue
        code = 1
        try:
            for name, port in zip(NAMES, ports, strict=True):
                place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": "2"}
                os.environ.update(place)
                stem, technique = name.split()
                script = next(str(each) for each in SCRIPTS if each.stem == stem)
                sys.argv = [script, technique]
                with (out / f"{name}-{rank}.txt").open("w") as stream, contextlib.redirect_stdout(stream):
                    runpy.run_path(script, run_name="__main__")
            code = 0
        finally:
            sys.stderr.flush()
            os._exit(code)
    sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0 for child in children))


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    out = tmp_path_factory.mktemp("own-loop")
    done = subprocess.run([sys.executable, __file__, str(out)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return {name: (out / f"{name}-0.txt").read_text() for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_the_examples_train_with_every_technique_they_name(printed: dict[str, str], name: str) -> None:
    losses = [float(loss) for loss in re.findall(r"^step \d+: loss ([\d.]+)$", printed[name], re.MULTILINE)]
    assert len(NAMES) == 15 and len(losses) == 5
    # The variance of a product of two standard normal numbers is 1: that is what a model that learns nothing leaves.
    assert losses[-1] < 0.8 < losses[0]


if __name__ == "__main__":
    run_all(Path(sys.argv[-1]))
