"""What a run leaves: its record as a document, what must be said of it, and means over seeds."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import pytest

from densing.core import ArtefactError
from densing.efficiency.parallel.distributed import folder
from densing.efficiency.parallel.distributed.results import Run, RunLink, seed_means
from densing.efficiency.parallel.distributed.spec import LmShape, RunSpec, first_difference, identity


def run_of(technique: str, seed: int = 0, **changes: Any) -> Run:
    fields: dict[str, Any] = {
        "technique": technique, "knobs": {}, "nproc": 2, "steps": 4, "seed": seed, "link": RunLink(), "stand_in": "",
        "step_s": 0.2, "step_median_s": 0.2, "wait_s": 0.1, "exposed": 0.5, "timed_steps": 3, "tokens": 8,
        "losses": (5.0, 4.0), "final_loss": 4.0, "parameters": 10, "resumed_from": -1, "model": LmShape(), "batch": 1,
        "sequence": 4, "lr": 1e-3, "corpus": "", "device": "cpu", "traces": None, "extra": {}, "versions": {},
    }  # fmt: skip
    return Run(**{**fields, **changes})


def test_a_run_comes_back_from_its_document(tmp_path: Path) -> None:
    run = run_of("co2", knobs={"tau": 8, "clip": None}, link=RunLink("200mbit", "shaped", 2.5e7))
    folder.write_json(tmp_path / folder.RUN, run.to_dict())
    assert Run.from_dict(folder.read_json(tmp_path / folder.RUN)) == run
    (tmp_path / folder.RUN).write_text('{"technique":')
    with pytest.raises(ArtefactError, match="damaged or unreadable"):
        folder.read_json(tmp_path / folder.RUN)


def test_means_over_seeds_are_those_of_each_technique_in_the_order_of_the_runs() -> None:
    losses = (3.0, 3.5, 4.25)
    runs = [run_of("co2", seed, final_loss=loss, step_s=0.1 * (seed + 1)) for seed, loss in enumerate(losses)]
    runs.insert(1, run_of("ddp", 7, wait_s=0.05, exposed=0.25))
    predictions = [{"step_s": 0.3, "exposed_s": 0.0, "tau_min": 2.5}, None, None, None]
    co2, ddp = seed_means(runs, predictions)
    assert (co2.technique, co2.seeds, ddp.technique, ddp.seeds) == ("co2", (0, 1, 2), "ddp", (7,))
    assert co2.final_loss == pytest.approx(sum(losses) / 3)
    assert co2.final_loss_sd == pytest.approx(statistics.stdev(losses))
    assert co2.step_s == pytest.approx(0.2)
    assert co2.off == pytest.approx(0.2 / 0.3 - 1) and ddp.off is None
    assert (co2.predicted_step_s, co2.predicted_wait_s, co2.predicted_tau_min) == (0.3, 0.0, 2.5)
    assert (ddp.final_loss_sd, ddp.predicted_step_s, ddp.wait_s, ddp.exposed) == (None, None, 0.05, 0.25)


def test_what_a_figure_hides_is_a_note() -> None:
    assert run_of("ddp").notes() == run_of("ddp", others=0.1).notes() == []
    (busy,) = run_of("ddp", others=1.5).notes()
    assert busy.code == "busy-machine" and "seed 0: other processes kept 1.5 of" in busy.message
    emulated = RunLink("200mbit", "emulated", reason="the tool tc is missing")
    notes = run_of("t3", link=emulated, stand_in="tiles").notes()
    assert [(note.code, note.severity) for note in notes] == [("emulated-link", "warning"), ("stand-in", "warning")]
    assert "(the tool tc is missing)" in notes[0].message and notes[1].message == "t3: tiles"


def test_only_what_changes_weights_is_part_of_a_runs_identity() -> None:
    spec = identity(RunSpec("ddp", out="here", steps=4))
    assert first_difference(spec, identity(RunSpec("ddp", out="there", steps=9, link="200mbit"))) is None
    assert first_difference(spec, identity(RunSpec("ddp", lr=0.5))) == "lr"
    assert first_difference({}, spec) is not None
