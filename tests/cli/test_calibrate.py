"""``densing calibrate --delays`` through its entry point, on traces written here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from densing.cli import app
from densing.cli.calibrate import _device
from densing.efficiency.parallel import RunSpec, write_json
from densing.efficiency.simulation import Computation, load_cluster
from densing.efficiency.systems import predict
from tests.support.command import printed
from tests.support.delay_runs import write_run


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["calibrate", *map(str, arguments)])


def late(ranks: int = 6, steps: int = 20) -> np.ndarray:
    return 0.02 + np.random.default_rng(1).exponential(0.01, (ranks, steps))


def test_delays_are_written_where_the_link_is_not_told(tmp_path: Path) -> None:
    traces, out = write_run(tmp_path / "run", late()), tmp_path / "mine.toml"
    found = run(traces, "--delays", "--base", "cpu2", "--out", out, "--json")
    assert found.exit_code == 0, found.output
    document = printed(found.stdout)
    cluster = load_cluster(out)
    assert cluster.delay is not None and cluster.delay.kind == "shifted-exp" and cluster.delay.lasts == "step"
    mu = document["delays"]["models"][0]["mu"]
    assert mu["low"] < 100 < mu["high"] and cluster.delay.mu == mu["value"]
    assert (
        cluster.sources["delay.mu"].evidence == "measured" and "6 ranks, 20 steps" in cluster.sources["delay.mu"].source
    )
    assert cluster.inter == load_cluster("cpu2").inter and document["alpha_s"] is None
    assert {note["severity"] for note in document["notes"]} <= {"info", "warning"}
    # Without --delays nothing of them is looked at.
    assert "delays" not in printed(run(traces, "--base", "cpu2", "--json").stdout)


def test_a_run_of_train_tells_the_device_and_what_is_kept_is_listed(tmp_path: Path) -> None:
    own = late()
    traces, out = write_run(tmp_path / "run" / "traces", own), tmp_path / "mine.toml"
    spec = RunSpec("ddp", nproc=len(own))
    write_json(tmp_path / "run" / "spec.json", spec.to_dict())
    for path in (traces, traces.parent):
        document = printed(run(path, "--delays", "--base", "cpu2", "--out", out, "--json").stdout)
        made = load_cluster(out)
        quiet = made.change(delay=None, sources={})
        assert predict(spec, quiet).compute_s == pytest.approx(np.median(own), rel=1e-4)
        assert document["about"]["device"]["flops"] == made.device.flops
        assert made.device.flops / made.device.mem_bw == pytest.approx(50e9 / 8e9)
        assert made.sources["device.flops"].evidence == "measured" and "120 steps of ddp" in str(made.sources)
        [kept] = [note for note in document["notes"] if note["code"] == "kept-from-base"]
        assert "inter.alpha_s" in kept["message"] and "device" not in kept["message"]
    # Without a specification the operations of a step are unknown, and the device is the base's.
    found = run(write_run(tmp_path / "bare", own), "--delays", "--base", "cpu2", "--out", out)
    assert "do not tell how many operations" in found.stderr and load_cluster(out).device == load_cluster("cpu2").device
    # Computing beside communication is slowed down by kappa, which the device is not to hold once more.
    cluster = load_cluster("cpu2").change(kappa=0.25)
    beside = [Computation("0", 1.0, share) for share in (0.0, 0.5, 1.0)]
    device, told = _device((traces,), beside, cluster)
    assert device is not None and "compute 900 ms each" in told
    assert predict(spec, cluster.change(n=6, kappa=0.0, device=device)).compute_s == pytest.approx(0.9)


def test_the_models_are_shown_beside_each_other(tmp_path: Path) -> None:
    found = run(write_run(tmp_path / "run", late()), "--delays", "--base", "cpu2")
    assert found.exit_code == 0
    for text in ("shifted exponential, iid", "Pareto, persistent", "even ranks", "log-likelihood", "delays: shifted"):
        assert text in found.stdout
    several = run(write_run(tmp_path / "run", late()), write_run(tmp_path / "small", late(2, 5)), "--delays", "--json")
    assert "one-run" in {note["code"] for note in printed(several.stdout)["notes"]}


def test_runs_that_tell_no_delay_say_so(tmp_path: Path) -> None:
    unmarked = run(write_run(tmp_path / "none", late(), marks=False), "--delays", "--base", "cpu2", "--json")
    document = printed(unmarked.stdout)
    assert unmarked.exit_code == 3 and document["delays"]["delay"] is None
    assert {"no-own-steps", "no-delay"} <= {note["code"] for note in document["notes"]}
    few = run(write_run(tmp_path / "few", late(2, 2)), "--delays", "--base", "cpu2")
    assert few.exit_code == 3 and "too few" in few.output


def test_one_rank_and_a_damaged_file(tmp_path: Path) -> None:
    one = run(write_run(tmp_path / "one", late(1)), "--delays", "--base", "cpu2", "--json")
    document = printed(one.stdout)
    assert one.exit_code == 0 and "lasts-unknown" in {note["code"] for note in document["notes"]}
    cut = write_run(tmp_path / "cut", late()) / "rank3.json"
    cut.write_bytes(cut.read_bytes()[:-700])
    found = run(tmp_path / "cut", "--delays", "--base", "cpu2", "--json")
    notes = {note["code"] for note in printed(found.stdout)["notes"]}
    assert (
        found.exit_code in (0, 3)
        and {"file-ends-early", "own-steps-left-out"} <= notes
        and "Traceback" not in found.output
    )


def test_delays_go_with_recorded_runs(tmp_path: Path) -> None:
    assert run("--link", "none", "--delays").exit_code == 2
    out = tmp_path / "mine.toml"
    refused = run(write_run(tmp_path / "run", late()), "--delays", "--out", out)
    assert refused.exit_code == 1 and not out.exists()
