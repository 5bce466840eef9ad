"""Ranks that leave and come back between rounds: checkpoints of any number of ranks, and a drill of torch's agents.

This file is its own script for the first part.
"""

from __future__ import annotations

import os
import re
import runpy
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("this build of torch has no torch.distributed", allow_module_level=True)

from densing import training  # noqa: E402
from densing.core import InputError  # noqa: E402
from densing.efficiency.parallel import Link, PeerError  # noqa: E402
from tests.support.folders import ROOT  # noqa: E402
from tests.support.gloo_ranks import fork_ranks, ranks_of  # noqa: E402

pytestmark = pytest.mark.slow

WIDTH, TAU = 12, 3
METHODS: dict[str, Callable[[Any, Any], Any]] = {
    "local-sgd": lambda model, optimizer: training.LocalSGD(model, optimizer, TAU),
    "slowmo": lambda model, optimizer: training.SlowMo(model, optimizer, TAU),
    "co2": lambda model, optimizer: training.CO2(model, optimizer, TAU),
    "diloco": lambda model, optimizer: training.DiLoCo(model, optimizer, 2 * TAU, fragments=2, delay=1, mix=0.5),
}


def made(name: str, seed: int) -> Any:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, 16), torch.nn.Dropout(0.1), torch.nn.Linear(16, 2))
    return METHODS[name](model, torch.optim.AdamW(model.parameters(), lr=0.01))


def go(method: Any, checkpoints: Any, rank: int, rounds: int) -> None:
    """Train to the end of a round; batches are known by round, step and rank."""
    while method.round < rounds:
        seed = 1000 * method.round + 10 * method.count + rank
        batch = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(seed))
        method.optimizer.zero_grad()
        method.model(batch).square().sum().backward()
        method.step()
        checkpoints.save()


def bits(method: Any) -> list[str]:
    return [value.hex() for p in method.model.parameters() for value in p.detach().flatten().tolist()]


def moments(method: Any) -> list[str]:
    """Return the inner optimizer's memory of the first tensor, which is each rank's own."""
    return [value.hex() for value in next(iter(method.optimizer.state.values()))["exp_avg"].flatten().tolist()]


def part(rank: int, size: int, out: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in METHODS:
        folder = out / name
        method = made(name, seed=size)
        checkpoints = training.RoundCheckpoints(method, folder)
        begun = checkpoints.load()
        found[name] = {"begun": begun, "loaded": bits(method), "moments": moments(method) if begun else []}
        go(method, checkpoints, rank, begun + 3)
        found[name] |= {"at 3": bits(method), "moments at 3": moments(method), "kept": len(list(folder.iterdir()))}
        if begun:
            continue
        # The same ranks go on in one piece, and from the checkpoint.
        go(method, training.RoundCheckpoints(method, out / f"{name}-more"), rank, 5)
        again = made(name, seed=99)
        resumed = training.RoundCheckpoints(again, folder)
        resumed.load()
        go(again, training.RoundCheckpoints(again, out / f"{name}-again"), rank, 5)
        found[name] |= {"whole": bits(method), "resumed": bits(again)}
    model = torch.nn.Linear(WIDTH, 8)
    spafl = training.SpaFL(model, torch.optim.SGD(model.parameters(), lr=0.1), 2)
    checkpoints = training.RoundCheckpoints(spafl, out / "spafl")
    try:
        checkpoints.load()
        checkpoints.save()
        found["spafl"] = ""
    except InputError as error:
        found["spafl"] = str(error)
    return found


@pytest.fixture(scope="module")
def changing(tmp_path_factory: pytest.TempPathFactory) -> list[list[dict[str, Any]]]:
    """Three ranks, then two, then three again, over the same checkpoints."""
    out, found = tmp_path_factory.mktemp("rejoin"), []
    for size in (3, 2, 3):
        found.append(ranks_of(__file__, size, out))
        (out / f"store{size}").unlink(missing_ok=True)
    return found


@pytest.mark.parametrize("name", METHODS)
def test_any_number_of_ranks_goes_on_from_the_end_of_a_round(changing: list[list[dict[str, Any]]], name: str) -> None:
    three, two, back = changing
    assert [ranks[0][name]["begun"] for ranks in changing] == [0, 3, 6]
    for rank, each in enumerate(two):
        assert each[name]["loaded"] == three[rank][name]["at 3"]
        assert each[name]["moments"] == three[rank][name]["moments at 3"]
    for rank, each in enumerate(back):
        # The one that came back takes a copy of what rank 0 has for its own.
        assert each[name]["loaded"] == two[rank % 2][name]["at 3"]
        assert each[name]["moments"] == two[rank % 2][name]["moments at 3"]
    assert two[0][name]["moments"] != two[1][name]["moments"]
    assert [ranks[0][name]["kept"] for ranks in changing] == [2, 2, 2]


@pytest.mark.parametrize("name", METHODS)
def test_as_many_ranks_as_before_go_on_to_the_last_bit(changing: list[list[dict[str, Any]]], name: str) -> None:
    for each in changing[0]:
        assert each[name]["resumed"] == each[name]["whole"] != each[name]["at 3"]


def test_weights_of_ones_own_need_as_many_ranks(changing: list[list[dict[str, Any]]]) -> None:
    three, two, _ = changing
    assert {each["spafl"] for each in three} == {""}
    assert all(
        "written by 3 ranks, and this run has 2; every rank of SpaFL has weights" in each["spafl"] for each in two
    )


def test_a_method_without_rounds_has_no_place_where_ranks_are_alike(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 1)
    dct = training.DCT(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(InputError, match="DCT has no rounds"):
        training.RoundCheckpoints(dct, tmp_path)


def lonely(out: str) -> None:
    """Be one of two ranks, the other one of which comes once and never again."""
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{out}/lonely", rank=int(sys.argv[-1]), world_size=2, timeout=timedelta(seconds=3)
    )
    if sys.argv[-1] == "1":
        time.sleep(20)
        os._exit(0)
    began = time.monotonic()
    try:
        Link().exchange("here")
    except PeerError as error:
        sys.stdout.write(f"{time.monotonic() - began:.1f} s: {error}")
        sys.stdout.flush()
    os._exit(0)


def test_a_peer_that_never_comes_ends_with_a_sentence_within_the_time_out(tmp_path: Path) -> None:
    commands = [[sys.executable, __file__, "lonely", str(tmp_path), rank] for rank in "01"]
    silent = subprocess.Popen(commands[1], env={**os.environ, "PYTHONPATH": str(ROOT)})
    try:
        done = subprocess.run(
            commands[0], capture_output=True, text=True, timeout=100, env={**os.environ, "PYTHONPATH": str(ROOT)}
        )
    finally:
        silent.kill()
        silent.wait()
    seconds, _, sentence = done.stdout.partition(" s: ")
    assert 2 < float(seconds) < 15, done.stderr
    assert sentence.startswith("another rank has not come within the time-out of the process group (")
    assert "start all ranks again, from a checkpoint" in sentence


class Agents:
    """Agents of torch, as torchrun would start them on four nodes with a worker each; forked, to import torch once."""

    def __init__(self, out: Path) -> None:
        self.out, self.agents, self.count = out, dict[int, int](), 0
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]

    def start(self, node: int) -> None:
        self.count += 1
        pid = os.fork()
        if pid:
            self.agents[node] = pid
            return
        from torch.distributed.launcher.api import LaunchConfig, elastic_launch

        code = 1
        try:
            config = LaunchConfig(
                min_nodes=2, max_nodes=4, nproc_per_node=1, run_id="drill", max_restarts=9, monitor_interval=0.2,
                start_method="fork", rdzv_backend="c10d", rdzv_endpoint=f"127.0.0.1:{self.port}",
                rdzv_configs={
                    "is_host": str(node == 0), "last_call_timeout": 2, "keep_alive_interval": 1,
                    "keep_alive_max_attempt": 3, "join_timeout": 90,
                },
            )  # fmt: skip
            elastic_launch(config, worker)(str(self.out), self.count)
            code = 0
        finally:
            sys.stderr.flush()
            os._exit(code)

    def kill(self, node: int) -> None:
        """End an agent and its worker at once, as when a node is lost."""
        agent = self.agents.pop(node)
        with suppress(OSError):
            for child in Path(f"/proc/{agent}/task/{agent}/children").read_text().split():
                os.kill(int(child), signal.SIGKILL)
        os.kill(agent, signal.SIGKILL)
        os.waitpid(agent, 0)

    def printed(self) -> str:
        return "".join(path.read_text() for path in sorted(self.out.glob("*.out")))

    def until(self, text: str, seconds: float = 150) -> None:
        end = time.monotonic() + seconds
        while text not in self.printed():
            assert time.monotonic() < end, f"no {text!r} in {self.printed()}"
            time.sleep(0.1)


def worker(out: str, number: int) -> None:
    """Run the example, as torchrun does."""
    sys.argv = ["rejoin.py", f"{out}/checkpoints", "0.02"]
    with Path(out, f"{number}.out").open("a") as stream, redirect_stdout(stream):
        runpy.run_path(str(ROOT / "examples" / "rejoin.py"), run_name="__main__")


def drill(out: Path) -> None:
    """Kill two of four nodes in training, let one come back, and wait for the end."""
    import torch._dynamo  # by optimizers: once, not in every worker
    import torch.distributed.launcher.api

    torch.set_num_threads(1)
    # Else a store outlives the group, and whoever comes back looks for the others under another number of restarts.
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    team = Agents(out)
    try:
        for node in range(4):
            team.start(node)
        team.until("round 6: ")
        team.kill(2)
        team.kill(3)
        team.until(" of 2\n")
        team.start(2)
        team.until(" of 3\n")
        for node in list(team.agents):
            assert os.waitpid(team.agents.pop(node), 0)[1] == 0
    finally:
        for node in list(team.agents):
            team.kill(node)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds workers in /proc")
def test_two_of_four_are_killed_and_one_comes_back(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, __file__, "drill", str(tmp_path)],
        capture_output=True, text=True, timeout=500, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    text = "".join(path.read_text() for path in sorted(tmp_path.glob("*.out")))
    lines = re.findall(r"^round (\d+): loss ([\d.]+) of (\d)$", text, re.MULTILINE)
    rounds = [(int(number), float(loss), int(ranks)) for number, loss, ranks in lines]
    ranks = [each for _, _, each in sorted(rounds)]
    assert 4 in ranks and 2 in ranks and 3 in ranks
    assert {number for number, _, _ in rounds} == set(range(1, 41)), "no round is left out"
    # A product of two standard normal numbers has variance 1: what a model that learns nothing leaves.
    assert sum(loss for number, loss, _ in rounds if number > 35) / 5 < 0.6
    for number, world in re.findall(r"go on after round (\d+) on (\d) ranks", text):
        assert int(number) >= 5 and world in "234"


if __name__ == "__main__":
    if "drill" in sys.argv:
        drill(Path(sys.argv[-1]))
    elif "lonely" in sys.argv:
        lonely(sys.argv[-2])
    else:
        fork_ranks(lambda rank, size: part(rank, size, Path(sys.argv[-1])))
