"""Training: the same bits again, after a kill too; what is done is skipped; exports load where they should."""

from __future__ import annotations

import dataclasses
import math
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from densing.core.errors import ArtefactError, InputError
from tests.support import folders
from tests.support.training_runs import micro_run

torch = pytest.importorskip("torch", reason="needs the extra 'evals'")
pytest.importorskip("transformers", reason="needs the extra 'evals'")


from densing.scores.ladder.folder import read_exports  # noqa: E402
from densing.scores.ladder.runs import (  # noqa: E402
    Run,
    get_preset,
    ladder_runs,
)
from densing.scores.ladder.trainer import (  # noqa: E402
    Trainer,
    batch_loss,
    build_model,
    load_checkpoint,
    save_checkpoint,
)
from densing.scores.ladder.workers import train, train_run  # noqa: E402

pytestmark = pytest.mark.slow

SCRIPT = folders.SUPPORT / "training_runs.py"


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ladder")
    torch.set_num_threads(1)
    assert train_run(micro_run(), folder) == 2
    return folder


def content(folder: Path) -> dict[str, bytes]:
    """Return all that was exported, byte for byte."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted((folder / "models").rglob("*")) if p.is_file()}


def test_a_run_gives_the_same_bits_again(trained: Path, tmp_path: Path) -> None:
    train_run(micro_run(), tmp_path)
    assert content(tmp_path) == content(trained)
    assert not list(tmp_path.rglob("*.pt"))


def test_another_seed_gives_another_model(trained: Path, tmp_path: Path) -> None:
    train_run(micro_run(seed=1), tmp_path)
    one, other = (next(f.rglob("*-640/model.safetensors")).read_bytes() for f in (trained, tmp_path))
    assert one != other


def test_what_is_done_is_skipped(trained: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in trained.rglob("*")}
    assert train_run(micro_run(), trained) == 0
    assert train([micro_run()], trained) == {"d8-s0": 0}
    assert {path: path.stat().st_mtime_ns for path in trained.rglob("*")} == before


def test_killed_runs_end_with_the_bits_of_an_unbroken_one(trained: Path, tmp_path: Path) -> None:
    # Steps since each start: in the first stable stage, its decay, the second stable stage, its decay.
    moments = [3, 9, 6, 8, 12, 9, 5]
    folder = tmp_path / "killed"
    # The script is not a module of the tests' package there.
    command = [sys.executable, str(SCRIPT), str(folder), *map(str, moments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=folders.ROOT)
    assert done.returncode == 0, done.stderr[-2000:]
    assert content(folder) == content(trained)
    run = micro_run()
    steps = int(done.stdout)
    assert sum(moments) <= steps <= run.work + len(moments) * run.preset.checkpoint


def test_a_checkpoint_is_whole_or_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "stable.pt"
    save_checkpoint({"step": 1}, path)

    def half(state: object, stream: object) -> None:
        stream.write(b"half")  # type: ignore[attr-defined]
        raise OSError("disk full")

    monkeypatch.setattr(torch, "save", half)
    with pytest.raises(OSError, match="disk full"):
        save_checkpoint({"step": 2}, path)
    assert load_checkpoint(path, "cpu") == {"step": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["stable.pt"]
    path.write_bytes(b"half")
    with pytest.raises(ArtefactError, match="delete it"):
        load_checkpoint(path, "cpu")


def test_a_decay_leaves_no_trace_in_later_budgets(trained: Path, tmp_path: Path) -> None:
    assert train_run(micro_run(steps=(40,)), tmp_path) == 1
    whole = content(trained)
    assert content(tmp_path) == {name: data for name, data in whole.items() if "d8-s0-1280" in name}


def test_descriptions_say_what_a_model_is(trained: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    for about in read_exports(trained):
        model = AutoModelForCausalLM.from_pretrained(about["path"])
        assert sum(p.numel() for p in model.parameters()) == about["params_total"]
        tokenizer = AutoTokenizer.from_pretrained(about["path"])
        assert tokenizer("<eos> say w007")["input_ids"] == [0, 4, tokenizer.convert_tokens_to_ids("w007")]
        assert about["params_non_embedding"] == micro_run().shape.non_embedding
        assert about["tokens"] == about["schedule"]["steps"] * 2 * 16
        assert (about["preset"], about["size"], about["seed"], about["target"]) == ("tiny", "d8", 0, "")
        assert 0 < about["loss"]["validation_nats_per_token"] < 1.1 * math.log(703)
        assert len(about["corpus_hash"]) == 64
        assert set(about["versions"]) == {"densing", "numpy", "torch", "transformers"}


def test_a_damaged_description_is_named(trained: Path, tmp_path: Path) -> None:
    place = tmp_path / "models" / "x"
    place.mkdir(parents=True)
    (place / "densing.json").write_text("{")
    with pytest.raises(ArtefactError, match=r"densing\.json"):
        list(read_exports(tmp_path))


def test_what_a_killed_export_left_is_no_model(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained / "models" / "d8-s0-640", tmp_path / "models" / ".d8-s0-640.x1")
    assert not list(read_exports(tmp_path))
    train_run(micro_run(), tmp_path)
    assert content(tmp_path) == content(trained)


def test_training_learns(tmp_path: Path) -> None:
    run = micro_run(steps=(300,))
    train_run(run, tmp_path)
    (about,) = read_exports(tmp_path)
    assert about["loss"]["validation_nats_per_token"] < math.log(703) - 1


def test_two_processes_train_what_one_would(trained: Path, tmp_path: Path) -> None:
    told: list[tuple[str, int]] = []
    runs = [micro_run(), micro_run(seed=1)]
    done = train(runs, tmp_path, workers=2, progress=lambda name, steps: told.append((name, steps)))
    assert done == {"d8-s0": 2, "d8-s1": 2}
    found = content(tmp_path)
    assert {name: data for name, data in found.items() if "s0" in name} == content(trained)
    assert {name: max(steps for run, steps in told if run == name) for name in done} == dict.fromkeys(
        done, runs[0].work
    )


def test_a_device_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--device nonsense"):
        train([micro_run()], tmp_path, device="nonsense")


def test_loss_is_the_mean_cross_entropy() -> None:
    model = build_model(micro_run().shape, 11, 16, 0)
    batch = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])
    with torch.no_grad():
        p = torch.softmax(model(input_ids=batch[:, :-1]).logits.double(), dim=-1)
    by_hand = -np.mean([math.log(p[row, place, batch[row, place + 1]]) for row in range(2) for place in range(3)])
    assert batch_loss(model, batch, "float32").item() == pytest.approx(by_hand, rel=1e-5)


def test_smallest_gpu_size_takes_steps_on_a_cpu(tmp_path: Path) -> None:
    # The preset itself needs a GPU; this checks that its smallest model goes through the trainer.
    preset = dataclasses.replace(get_preset("gpu"), block=16, warmup=1)
    shape = dataclasses.replace(preset.shapes[0], batch=1, steps=(2,))
    trainer = Trainer(Run(preset, shape, 0, micro_run().corpus, shape.steps))
    trainer.advance(2, None, tmp_path / "stable.pt")
    state = load_checkpoint(tmp_path / "stable.pt", "cpu")
    assert state is not None
    assert state["step"] == 2
    assert math.isfinite(float(state["loss"]))


def test_presets_name_their_runs_apart() -> None:
    runs = [run for name in ("tiny", "cpu") for run in ladder_runs(get_preset(name), micro_run().corpus)]
    assert len({(run.preset.name, run.name) for run in runs}) == len(runs)
