"""Training on a device: the same as on the processor, as far as rounding lets it."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs the extra 'evals'")
pytest.importorskip("transformers", reason="needs the extra 'evals'")

from densing.scores.ladder import Run, parse_arm  # noqa: E402
from densing.scores.ladder.stack import Stack  # noqa: E402
from densing.scores.ladder.trainer import (  # noqa: E402
    ArmTrainer,
    Trainer,
    build_model,
    load_checkpoint,
    save_checkpoint,
)
from densing.tradeoff import virtual_ranks  # noqa: E402
from tests.support.training_runs import micro_run  # noqa: E402

pytestmark = pytest.mark.gpu

ARMS = ("plain", "co2:tau=2", "diloco:tau=2", "local-sgd:tau=2", "dct:eta=0.9", "plain:wiring=ladder")


def armed(text: str) -> Run:
    run = micro_run()
    shape = dataclasses.replace(run.shape, batch=4, layers=2)
    return dataclasses.replace(run, shape=shape, arm=parse_arm(text, 2))


def test_attention_without_written_scores_is_the_softmax_of_scores_in_16_bits_too(device: str) -> None:
    shape = dataclasses.replace(micro_run().shape, width=64, heads=4, kv_heads=2, head_width=16, ffn=160, layers=2)
    model = build_model(shape, 50, 32, 0, device)
    batch = torch.randint(50, (2, 3, 33), generator=torch.Generator().manual_seed(0)).to(device)
    losses = {}
    for precision in ("float32", "bfloat16"):
        stack = Stack(model, shape, 2, precision)
        losses[precision] = stack.losses(batch)
        losses[precision].sum().backward()
        assert stack.vector.grad.device.type == device and torch.isfinite(stack.vector.grad).all()
    with torch.no_grad():
        # The oracle: transformers' own model, its scores written.
        model.set_attn_implementation("eager")
        logits = model(input_ids=batch.flatten(0, 1)[:, :-1]).logits
        expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[..., 1:].flatten())
    assert float(losses["float32"].mean().detach()) == pytest.approx(float(expected), rel=1e-4)
    # Eight bits of a mantissa.
    assert float(losses["bfloat16"].mean().detach()) == pytest.approx(float(expected), rel=2**-8)


@pytest.mark.parametrize("arm", ARMS)
def test_an_arm_goes_on_where_it_was_on_a_device_and_learns_what_the_processor_does(
    arm: str, device: str, tmp_path: Path
) -> None:
    whole, halves = (ArmTrainer(armed(arm), where, maker=virtual_ranks) for where in ("cpu", device))
    for _ in range(6):
        whole.take_step(1.0)
    for _ in range(3):
        halves.take_step(1.0)
    save_checkpoint(halves.state(), tmp_path / "state.pt")
    again = ArmTrainer(armed(arm), device, maker=virtual_ranks)
    state = load_checkpoint(tmp_path / "state.pt", device)
    assert state is not None
    again.restore(state)
    for _ in range(3):
        again.take_step(1.0)
    for one in (whole, again):
        one.settle()
    assert again.stack.vector.device.type == device
    assert again.losses()["validation"] == pytest.approx(whole.losses()["validation"], rel=1e-3)


def test_a_run_without_arms_learns_what_the_processor_does(device: str) -> None:
    losses = []
    for where in ("cpu", device):
        trainer = Trainer(micro_run(), where)
        for _ in range(5):
            trainer.take_step(1.0)
        losses.append(float(trainer.loss))
    assert losses[1] == pytest.approx(losses[0], rel=1e-3) and losses[0] < math.log(micro_run().corpus.vocabulary)
