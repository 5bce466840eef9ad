"""Stages on real ranks: equal to one process, to torch's own pipeline, and to themselves after a pause."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

torch = pytest.importorskip("torch")

from densing.efficiency.parallel.distributed.lm import build_lm, cross_entropy  # noqa: E402
from densing.efficiency.parallel.distributed.spec import LmShape, RunEnv, RunRecord, RunSpec  # noqa: E402
from densing.efficiency.parallel.pipeline.train import train_pipeline  # noqa: E402
from densing.efficiency.parallel.pipeline.virtual import train_stages  # noqa: E402
from tests.support import folders, pipeline_runs  # noqa: E402
from tests.support.gloo_ranks import ranks_of  # noqa: E402

pytestmark = pytest.mark.slow

RUNS = str(folders.SUPPORT / "pipeline_runs.py")
SHAPE = LmShape(layers=6, hidden=32, heads=2, ffn=48)
STEPS = 8
STAGES = 3


def spec(out: Path, steps: int = STEPS, every: int = 0, **knobs: object) -> RunSpec:
    return RunSpec(
        "pipeline", {"micro_batches": pipeline_runs.MICRO_BATCHES, **knobs}, steps=steps, model=SHAPE, batch=8,
        sequence=32, lr=1e-2, trace_steps=0, checkpoint_every=every, corpus=str(out.parent / "text.txt"), out=str(out),
    )  # fmt: skip


def write(folder: Path, specs: list[RunSpec]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "text.txt").write_text("A stage hands on what it has made of it, and later what became of that. " * 300)
    (folder / "spec.json").write_bytes(msgspec.json.encode(specs))


def records(folder: Path, number: int) -> list[RunRecord]:
    return [
        msgspec.json.decode((folder / f"record.{number}.{rank}.json").read_bytes(), type=RunRecord)
        for rank in range(STAGES)
    ]


def specs_of(folder: Path) -> dict[str, RunSpec]:
    named = {
        "dense": spec(folder / "a", every=STEPS),
        "uneven": spec(folder / "b", cuts=(1, 5)),
        "half": spec(folder / "c", codec="half"),
        "int8": spec(folder / "d", codec="int8"),
        "topk": spec(folder / "e", codec="topk", shares=[0.2, 0.1]),
        "threshold": spec(folder / "f", codec="threshold", shares=[0.25], refresh=3),
        "first half": spec(folder / "g", 5, 5, codec="threshold", shares=[0.25], refresh=3),
        "second half": spec(folder / "g", codec="threshold", shares=[0.25], refresh=3),
        "all of them": spec(folder / "h", codec="topk", shares=[1.0]),
        "turned round": spec(folder / "n", codec="topk", shares=[0.2, 0.1], order=(2, 0, 1)),
        "elsewhere": spec(folder / "o", 5, 5, order=(1, 2, 0), cuts=(1, 5)),
        "still elsewhere": spec(folder / "o", order=(1, 2, 0), cuts=(1, 5)),
    }
    refused = {
        "stages": spec(folder / "i", cuts=(0, 3)),
        "batch": spec(folder / "j", micro_batches=3),
        "codec": spec(folder / "k", codec="zip"),
        "share": spec(folder / "l", codec="topk", shares=[1.5]),
        "shares": spec(folder / "m", codec="topk", shares=[0.1] * 5),
        "order": spec(folder / "p", order=(0, 0, 2)),
    }
    return named | refused


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Three stages."""
    folder = tmp_path_factory.mktemp("stages")
    named = specs_of(folder)
    write(folder, list(named.values()))
    said = ranks_of(RUNS, STAGES, folder, "train")
    found: dict[str, Any] = {"folder": folder, "said": {}, "poison": [one["poison"] for one in said]}
    for number, name in enumerate(named):
        if (folder / f"record.{number}.0.json").exists():
            found[name] = records(folder, number)
        found["said"][name] = [one.get(str(number)) for one in said]
    return found


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One process: plain training by hand, and a pipeline of one stage."""
    folder = tmp_path_factory.mktemp("alone")
    one = spec(folder / "one")
    write(folder, [one])
    model = build_lm(SHAPE, 32, 0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=one.lr)
    losses = []
    for step in range(STEPS):
        batch = pipeline_runs.batch_of(one, step)
        loss = cross_entropy(model(batch[:, :-1]), batch[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    record = train_pipeline(RunEnv(one, 0, 1), micro_batches=2)
    return {"losses": losses, "weights": model.state_dict(), "record": record}


def test_one_stage_is_gradient_accumulation(alone: dict[str, Any]) -> None:
    assert alone["record"].losses == pytest.approx(alone["losses"], abs=1e-4)
    assert alone["record"].extra.keys() == {"drain_s"}


@pytest.mark.parametrize("name", ["dense", "uneven", "all of them", "still elsewhere"])
def test_stages_train_as_one_process_does(runs: dict[str, Any], alone: dict[str, Any], name: str) -> None:
    for record in runs[name]:
        assert record.losses == pytest.approx(alone["losses"], abs=1e-4)
        assert record.final_loss == runs[name][0].final_loss == pytest.approx(alone["record"].final_loss, abs=1e-4)
        assert record.parameters == sum(weight.numel() for weight in alone["weights"].values())
        assert record.tokens == 8 * 32


def test_the_stages_weights_are_the_whole_models(runs: dict[str, Any], alone: dict[str, Any]) -> None:
    together: dict[str, Any] = {}
    for rank in range(STAGES):
        place = runs["folder"] / "a" / "checkpoints" / f"step{STEPS:08d}" / f"rank{rank:05d}.pt"
        part = torch.load(place, weights_only=True)["state"]["trainee"]["stage"]
        assert not together.keys() & part.keys()
        together |= part
    assert together.keys() == alone["weights"].keys()
    for name, weight in alone["weights"].items():
        torch.testing.assert_close(together[name], weight, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["half", "int8", "topk", "threshold"])
def test_it_learns_from_less(runs: dict[str, Any], name: str) -> None:
    first = runs[name][0]
    assert first.losses[-1] < first.losses[0] - 1
    assert all(record.losses == first.losses and record.final_loss == first.final_loss for record in runs[name])
    near = {"half": 0.01, "int8": 0.1}.get(name, 1.0)
    assert first.losses == pytest.approx(runs["dense"][0].losses, abs=near)


def test_where_the_stages_are_changes_nothing(runs: dict[str, Any]) -> None:
    there, here = runs["topk"], runs["turned round"]
    assert [record.losses for record in here] == [record.losses for record in there]
    assert {record.final_loss for record in here} == {there[0].final_loss}
    # Stage 0 is on rank 2 now, and so are the bytes of its edge.
    assert here[2].extra["edge0_activations"] == there[0].extra["edge0_activations"]
    assert here[1].extra["edge1_gradients"] == there[2].extra["edge1_gradients"]


def test_virtual_stages_train_as_real_ones_do(runs: dict[str, Any]) -> None:
    """Another implementation: one process, no ranks, the codecs as autograd functions."""
    real = runs["topk"]
    found = train_stages(specs_of(runs["folder"])["topk"], cuts=(2, 4), shares=(0.2, 0.1))
    assert found.losses == pytest.approx(real[0].losses, abs=1e-4)
    assert found.final_loss == pytest.approx(real[0].final_loss, abs=1e-3)
    sent = {key: value for record in real for key, value in record.extra.items()}
    for edge, count in enumerate(found.sent):
        assert count == STEPS * (sent[f"edge{edge}_activations"] + sent[f"edge{edge}_gradients"])


def test_bytes_are_counted(runs: dict[str, Any]) -> None:
    micros, count, last = pipeline_runs.MICRO_BATCHES, 2 * 32 * 32, STAGES - 2
    sent = {name: {key: value for record in runs[name] for key, value in record.extra.items()} for name in
            ("dense", "half", "int8", "topk", "threshold")}  # fmt: skip
    for way in ("activations", "gradients"):
        assert sent["dense"][f"edge{last}_{way}"] == micros * (4 + 4 * count)
        assert sent["half"][f"edge{last}_{way}"] == micros * (4 + 2 * count)
        assert sent["int8"][f"edge{last}_{way}"] == micros * (4 + 4 + count)
        # A tenth: a mark, a count, a bit per element, and values.
        assert sent["topk"][f"edge{last}_{way}"] == micros * (4 + 4 + count // 8 + 4 * 205)
    # Gradients travel without indices: as many values as activations, but for lengths, counts and bits.
    there, back = (sent["threshold"][f"edge{last}_{way}"] for way in ("activations", "gradients"))
    assert there - back == micros * (8 + 4 + count // 8)
    assert sent["dense"]["packet_bytes"] > sent["half"]["packet_bytes"] > sent["threshold"]["packet_bytes"]


def test_resumed_in_mid_period_equals_unbroken_bit_by_bit(runs: dict[str, Any]) -> None:
    whole, resumed = runs["threshold"], runs["second half"]
    assert [record.resumed_from for record in resumed] == [5] * STAGES
    assert [record.losses for record in resumed] == [record.losses for record in whole]
    assert [record.final_loss for record in resumed] == [record.final_loss for record in whole]
    for name in ("packet_bytes", "sent_share"):
        assert [record.extra[name] for record in resumed] == [record.extra[name] for record in whole]


def test_waits_are_on_the_clock(runs: dict[str, Any]) -> None:
    for name in ("dense", "threshold"):
        for record in runs[name]:
            assert all(0 < wait <= step for wait, step in zip(record.wait_s, record.step_s, strict=True))


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("stages", "leave a stage without layers"),
        ("batch", "batch: 8 cannot be divided by micro_batches 3"),
        ("codec", "unknown codec 'zip'"),
        ("share", "share 1.5"),
        ("shares", "5 shares for"),
        ("order", "must contain each rank from 0 to 2 once"),
    ],
)
def test_what_makes_no_sense_is_refused_on_all_ranks(runs: dict[str, Any], name: str, word: str) -> None:
    assert all(word in said for said in runs["said"][name])


def test_a_stage_that_makes_nan_is_named_by_all_ranks(runs: dict[str, Any]) -> None:
    for codec in ("dense", "int8", "topk", "threshold"):
        assert {said[codec] for said in runs["poison"]} == {
            "step 1: stage 1, layers 2 to 3: its activations hold inf or NaN (its weight blocks.2.mlp.up.weight "
            "already does); lower the learning rate (--lr), go on from a checkpoint"
        }


def test_torchs_own_pipeline_of_two_stages_has_the_same_losses(alone: dict[str, Any], tmp_path: Path) -> None:
    write(tmp_path, [spec(tmp_path / "out")])
    found = ranks_of(RUNS, 2, tmp_path, "torch")
    assert found[1]["losses"] == pytest.approx(alone["losses"], abs=1e-4)
    assert found[0]["ours"] == found[1]["ours"] == pytest.approx(found[1]["losses"], abs=1e-5)
