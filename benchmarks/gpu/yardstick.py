"""Stage 7: arms of training at 5 to 106 million kept parameters, on four virtual ranks; goes on where it was."""

from __future__ import annotations

import dataclasses
import sysconfig
from pathlib import Path
from typing import Any

from benchmarks.gpu.record import Session
from densing.scores.ladder import (
    Arm,
    Corpus,
    Preset,
    arm_runs,
    describe_ladder,
    find_corpus,
    get_preset,
    read_exports,
    train,
)
from densing.scores.ladder.runs import MODELS
from densing.tradeoff import device_estimate, read_arms, tune_arms, virtual_ranks

ARMS = ("plain", "plain:order=reseed", "co2:tau=8", "diloco:tau=8", "local-sgd:tau=8", "dct:eta=0.9",
        "plain:wiring=ladder")  # fmt: skip
DRY_ARMS = ARMS[2:3]
DRY_FILES = 30
RANKS, TRIALS, NEXT_SIZE_RUNS = 4, 3, 6
"""Virtual ranks; trials per arm on the smallest size; and what the tuning trains of each arm on the next."""
PLANNED_MINUTES = 45
LICENCE = "Python's standard library, PSF License Agreement"


def text(session: Session) -> Path:
    """Return one file with the source of the machine's Python, which its licence lets anyone copy."""
    source, target = Path(sysconfig.get_paths()["stdlib"]), session.work / "text" / "python.txt"
    if not target.exists():
        files = sorted(each for each in source.rglob("*.py") if "site-packages" not in each.parts)
        files = files[: session.size(DRY_FILES, None)]
        target.parent.mkdir(parents=True, exist_ok=True)
        whole = "\n".join(each.read_text(encoding="utf-8", errors="replace") for each in files)
        part = target.with_suffix(".tmp")
        part.write_text(whole, encoding="utf-8")
        part.replace(target)
    session.read_from(f"text: {LICENCE}", target)
    return target


def run(session: Session) -> None:
    """Estimate, tune, train, and say what is left for the next call."""
    preset, trials = get_preset(session.size("tiny", "gpu")), session.size(2, TRIALS)
    if session.dry:
        preset = dataclasses.replace(preset.shorter(1), shapes=preset.shorter(1).shapes[:2])
    folder, arms = session.work / "yardstick", read_arms(list(session.size(DRY_ARMS, ARMS)), RANKS)
    corpus = find_corpus(str(text(session)), folder / "corpus", preset.vocabulary)
    estimate(session, preset, corpus, arms)
    about = {"preset": preset.name, **corpus.describe(), "trials": trials}
    describe_ladder(folder, about)

    def pulse(*_: Any) -> None:
        session.check_time()

    training: dict[str, Any] = {
        "workers": 1, "device": session.torch_device, "maker": virtual_ranks, "progress": pulse
    }  # fmt: skip
    search = tune_arms(preset, corpus, arms, folder, trials=trials, seed=0, about=about, **training)
    for arm in search.arms:
        session.add("tuned", **{**arm.to_dict(), "settings": str(dict(arm.settings))})
    runs = arm_runs(preset, corpus, search.tuned(arms), seeds=[0])
    try:
        train(runs, folder, **training)
    finally:
        for each in read_exports(folder) if (folder / MODELS).is_dir() else ():
            session.add("losses", **{key: value for key, value in each.items() if isinstance(value, str | int | float)})


def estimate(session: Session, preset: Preset, corpus: Corpus, arms: list[Arm]) -> None:
    """Keep what the cost model expects: an estimate, beside which the seconds of this record will stand."""
    name = session.record.device.get("name", "") or "H200"
    first, second = (shape.name for shape in preset.shapes[:2])
    trials = [
        *arm_runs(preset, corpus, arms, sizes=[first], seeds=range(TRIALS)),
        *arm_runs(preset, corpus, arms, sizes=[second], seeds=range(NEXT_SIZE_RUNS)),
    ]
    for what, group in (("training", arm_runs(preset, corpus, arms, seeds=[0])), ("tuning", trials)):
        found = device_estimate(group, name)
        session.add(
            "estimate of the cost model", what=what, device=found.device, runs=len(group), minutes=found.minutes,
            low=found.low, high=found.high, planned_minutes=PLANNED_MINUTES,
        )  # fmt: skip
        print(f"estimate, not measured: {what} takes {found.minutes:.1f} minutes on one {found.device}", flush=True)
