"""Stacked copies against transformers' own model, and arms trained with them."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the extra 'evals'")
pytest.importorskip("transformers", reason="needs the extra 'evals'")

from densing.core import InputError  # noqa: E402
from densing.efficiency.parallel import Coding  # noqa: E402
from densing.scores.ladder import Run, parse_arm, read_exports  # noqa: E402
from densing.scores.ladder.folder import count_parameters  # noqa: E402
from densing.scores.ladder.runs import DivergedError  # noqa: E402
from densing.scores.ladder.stack import Stack, StackOptimizer  # noqa: E402
from densing.scores.ladder.trainer import ArmTrainer, Trainer, batch_loss, build_model  # noqa: E402
from densing.scores.ladder.workers import train, train_run  # noqa: E402
from densing.tradeoff import virtual_ranks  # noqa: E402
from tests.support.training_runs import micro_run  # noqa: E402


def armed(text: str, ranks: int = 2, **changes: Any) -> Run:
    return dataclasses.replace(micro_run(), arm=parse_arm(text, ranks), **changes)


def trainer(text: str, ranks: int = 2, **changes: Any) -> ArmTrainer:
    return ArmTrainer(armed(text, ranks, **changes), maker=virtual_ranks)


def test_a_stack_has_the_losses_and_gradients_of_its_models() -> None:
    run = micro_run()
    shape = dataclasses.replace(run.shape, heads=4, head_width=2, kv_heads=2)
    models = [build_model(shape, 50, 16, seed) for seed in (0, 1)]
    stack = Stack(models[0], shape, 2)
    with torch.no_grad():
        stack.vector[1] = Stack(models[1], shape, 1).vector[0]
    batch = torch.randint(50, (2, 3, 17), generator=torch.Generator().manual_seed(0))
    losses = stack.losses(batch)
    losses.sum().backward()
    for number, model in enumerate(models):
        loss = batch_loss(model, batch[number], "float32")
        assert float(losses[number].detach()) == pytest.approx(float(loss.detach()), rel=1e-5)
        loss.backward()
        holder = copy.deepcopy(model)
        gradients = copy.deepcopy(stack)
        gradients.vector = torch.nn.Parameter(stack.vector.grad)
        gradients.write(holder, number)
        for (name, parameter), other in zip(model.named_parameters(), holder.parameters(), strict=True):
            assert torch.allclose(parameter.grad, other, rtol=1e-3, atol=1e-6), name


def test_a_late_stack_reads_the_stream_one_module_ago() -> None:
    """The oracle: the modules of transformers' own layers, put together by hand as Ladder-Residual's Eq. 2 says."""
    shape = dataclasses.replace(micro_run().shape, layers=3, heads=4, head_width=2, kv_heads=2)
    model = build_model(shape, 50, 16, 0)
    batch = torch.randint(50, (1, 3, 17), generator=torch.Generator().manual_seed(0))
    tokens = batch[0, :, :-1]
    with torch.no_grad():
        # Far enough from the start for the wiring to move the loss.
        for weight in model.parameters():
            weight.mul_(10 if weight.dim() > 1 else 1)
        streams = [model.model.embed_tokens(tokens)]
        turns = model.model.rotary_emb(streams[0], torch.arange(16)[None])
        for layer in model.model.layers:
            modules = (
                lambda x, layer=layer: layer.self_attn(
                    layer.input_layernorm(x), position_embeddings=turns, attention_mask=None
                )[0],
                lambda x, layer=layer: layer.mlp(layer.post_attention_layernorm(x)),
            )
            for module in modules:
                streams.append(streams[-1] + module(streams[max(len(streams) - 2, 0)]))
        logits = model.lm_head(model.model.norm(streams[-1]))
        expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[0, :, 1:].flatten())
    late, plain = (float(Stack(model, shape, 1, late=late).losses(batch).detach()) for late in (True, False))
    assert late == pytest.approx(float(expected), rel=1e-5)
    assert abs(late - plain) > 1e-2


def test_a_ladder_wired_arm_is_validated_as_it_was_trained_and_loads_as_no_llama(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    run = armed("plain:wiring=ladder", 1)
    train([run], tmp_path, maker=virtual_ranks)
    (export,) = [
        each for each in read_exports(tmp_path) if each["tokens"] == max(e["tokens"] for e in read_exports(tmp_path))
    ]
    assert export["wiring"] == "ladder"
    arm = trainer("plain:wiring=ladder", 1)
    arm.advance(run.budgets[-1].end, run.budgets[-1], tmp_path / "again.pt")
    arm.settle()
    assert arm.losses()["validation"] == pytest.approx(export["loss"]["validation_nats_per_token"])
    assert abs(arm.losses()["validation"] - arm.validate()) > 1e-5
    with pytest.raises(ValueError, match="llama-ladder"):
        AutoModelForCausalLM.from_pretrained(export["path"])
    with pytest.raises(InputError, match="wiring=ladder is only for plain"):
        parse_arm("co2:tau=8,wiring=ladder", 2)


def test_exits_are_read_with_the_models_own_norm_and_head() -> None:
    run = micro_run()
    shape = dataclasses.replace(run.shape, layers=3)
    model = build_model(shape, 50, 16, 0)
    batch = torch.randint(50, (1, 3, 17), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        states = model(batch[0, :, :-1], output_hidden_states=True).hidden_states
        logits = [model.lm_head(model.model.norm(state)) for state in states[1:3]] + [model.lm_head(states[3])]
        each = [torch.nn.functional.cross_entropy(part.flatten(0, 1), batch[0, :, 1:].flatten()) for part in logits]
        stack = Stack(model, shape, 1)
        for weight in (0.0, 0.3, 1.0):
            expected = (each[2] + weight * (each[0] + each[1])) / (1 + 2 * weight)
            assert float(stack.losses(batch, exits=weight)) == pytest.approx(float(expected), rel=1e-5)


def test_a_run_with_exits_reads_its_first_layer_better(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    losses = {}
    for text in ("plain", "plain:exits=1"):
        run = armed(text, 1, steps=(60,))
        run = dataclasses.replace(run, shape=dataclasses.replace(run.shape, layers=3))
        train_run(run, tmp_path, maker=virtual_ranks)
        (export,) = [each for each in read_exports(tmp_path) if each["run"] == run.name]
        assert export.get("exits") == (1.0 if "exits" in text else None)
        model = AutoModelForCausalLM.from_pretrained(export["path"])
        rows = torch.from_numpy(run.corpus.validation()[:640].astype(np.int64)).view(40, 16)
        with torch.no_grad():
            state = model(rows, output_hidden_states=True).hidden_states[1]
            logits = model.lm_head(model.model.norm(state))[:, :-1]
            losses[text] = float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()))
    assert losses["plain:exits=1"] < losses["plain"]


def test_a_stack_steps_as_adamw_does_for_each_copy_alone() -> None:
    shape = micro_run().shape
    stack = Stack(build_model(shape, 50, 16, 0), shape, 2)
    rows = stack.rows()
    optimiser = StackOptimizer(stack, rows, lr=0.1, betas=(0.9, 0.98), weight_decay=0.01)
    alone = [torch.nn.Parameter(row.clone()) for row in stack.vector.detach()]
    others = [torch.optim.AdamW([one], lr=0.1, betas=(0.9, 0.98), weight_decay=0.01) for one in alone]
    generator = torch.Generator().manual_seed(1)
    for _ in range(3):
        stack.vector.grad = torch.randn(stack.vector.shape, generator=generator)
        for one, gradient in zip(alone, stack.vector.grad, strict=True):
            one.grad = gradient.clone()
            torch.nn.utils.clip_grad_norm_([one], 1.0)
        optimiser.clip(1.0)
        for row, other in zip(optimiser.rows, others, strict=True):
            row.step()
            other.step()
    assert torch.allclose(stack.vector.detach(), torch.stack([one.detach() for one in alone]), atol=1e-6)
    # Rows are views: what a method writes is what the stack computes with.
    rows[1].vector.data.zero_()
    assert not stack.vector[1].any()


def test_plain_ranks_train_as_one_process_with_the_whole_batch() -> None:
    one, two, old = trainer("plain", 1), trainer("plain", 2), Trainer(micro_run())
    for _ in range(6):
        for each in (one, two, old):
            each.take_step(0.5)
    # Adam's first steps divide gradients by themselves: what is all rounding moves by a whole step.
    assert float(one.loss) == pytest.approx(float(old.loss), rel=1e-6)
    assert float(two.loss) == pytest.approx(float(old.loss), rel=1e-4)
    assert (one.ranks.sent, two.ranks.sent) == (0, 6 * 4 * one.stack.vector.shape[1])
    assert torch.equal(two.stack.vector[0], two.stack.vector[1])


@pytest.mark.parametrize(
    "text",
    [
        "co2:tau=3",
        "local-sgd:tau=3",
        "slowmo:tau=3",
        "diloco:fragments=2,tau=4",
        "local-sgd:clients=0.5,tau=3",
        "fedft:tau=3",
    ],
)
def test_a_state_goes_on_with_the_same_bits(text: str) -> None:
    whole, broken = trainer(text), trainer(text)
    for each in (whole, broken):
        for _ in range(5):
            each.take_step(0.5)
    state = copy.deepcopy(broken.state())
    again = trainer(text)
    again.restore(state)
    for each in (whole, again):
        for _ in range(5):
            each.take_step(0.5)
        each.ranks.finish()
    assert torch.equal(whole.stack.vector, again.stack.vector)
    assert torch.equal(whole.stack.vector[0], whole.stack.vector[1])
    assert whole.ranks.sent == again.ranks.sent > 0


def test_clients_with_weights_of_their_own_go_on_with_the_same_bits() -> None:
    text = "spafl:clients=0.5,lam=0.05,ramp=1,tau=3,threshold_lr=0.02"
    whole, broken = trainer(text), trainer(text)
    for each in (whole, broken):
        for _ in range(5):
            each.take_step(0.5)
    again = trainer(text)
    again.restore(copy.deepcopy(broken.state()))
    for each in (whole, again):
        for _ in range(5):
            each.take_step(0.5)
        each.settle()
    assert torch.equal(whole.stack.vector, again.stack.vector)
    assert not torch.equal(whole.stack.vector[0], whole.stack.vector[1])
    assert whole.losses() == again.losses()
    assert whole.ranks.figures()["kept_share"] < 1
    assert 0 < whole.about()["params_kept"] < count_parameters(whole.model)[1]
    # Embeddings are left alone.
    assert whole.stack.vector[:, : 8 * whole.run.corpus.vocabulary].ne(0).all()


def test_clients_are_tested_on_their_own_mixtures(tmp_path: Path) -> None:
    run = dataclasses.replace(armed("local-only:clients=0.1"), steps=(20,))
    assert train_run(run, tmp_path, maker=virtual_ranks) == 1
    export = next(read_exports(tmp_path))
    losses = export["loss"]
    # What a client knows best is what it has read.
    assert losses["clients_nats_per_token"] < losses["validation_nats_per_token"]
    assert "client 0's" in export["personal"] and export["cost"]["bytes"] == 0
    each = trainer("local-sgd:clients=0.1,tau=2")
    for _ in range(4):
        each.take_step(0.5)
    each.settle()
    assert set(each.losses()) == {"train", "validation", "clients"}
    # All rows are equal: the stack's mean is the model's own.
    some = each._held_out[0][:6]
    together = float(batch_loss(each.model, torch.from_numpy(some.astype(np.int64)), "float32").detach())
    assert each._mean_loss([some] * 2) == pytest.approx(together, rel=1e-5)


def test_virtual_stages_change_what_their_edges_leave_out_and_nothing_else() -> None:
    shape = dataclasses.replace(micro_run().shape, layers=3)
    plain, whole, thin, again = (
        trainer(text, shape=shape) for text in ("plain", "fusion:r=1", "fusion:r=4", "fusion:r=4")
    )
    for each in (plain, whole, thin):
        for _ in range(4):
            each.take_step(0.5)
    assert torch.equal(plain.stack.vector, whole.stack.vector) and plain.losses() == whole.losses()
    assert not torch.equal(plain.stack.vector, thin.stack.vector)
    # Copies are micro-batches of one model: they stay equal.
    assert torch.equal(thin.stack.vector[0], thin.stack.vector[1])
    run, edges = thin.run, thin.run.shape.layers - 1
    tokens = run.shape.batch // 2 * run.preset.block
    there, back = Coding("threshold", 0.25).bytes(tokens, run.shape.width)
    most = 4 * 2 * edges * (there + back) / (edges + 1)
    # Zeros are no entries, and their gradients do not come back.
    assert 0.98 * most < thin.ranks.sent <= most
    again.restore(copy.deepcopy(thin.state()))
    for each in (thin, again):
        each.take_step(0.5)
    assert torch.equal(thin.stack.vector, again.stack.vector) and thin.ranks.sent == again.ranks.sent


def test_between_rounds_ranks_are_apart() -> None:
    each = trainer("local-sgd:tau=3")
    for step in range(1, 7):
        each.take_step(1.0)
        assert torch.equal(each.stack.vector[0], each.stack.vector[1]) == (step % 3 == 0)


def test_an_export_says_its_arm_and_what_it_took(tmp_path: Path) -> None:
    run = armed("local-sgd:bits=4,tau=3")
    assert train_run(run, tmp_path, maker=virtual_ranks) == 2
    assert train_run(run, tmp_path, maker=virtual_ranks) == 0
    first, last = sorted(read_exports(tmp_path), key=lambda export: export["tokens"])
    assert (first["arm"], first["ranks"], first["weight_bits"]) == ("local-sgd:bits=4,tau=3", 2, 4)
    # 20 steps are 6 rounds and an early one: parameters, and three float64 of news; a ring of two sends all once.
    assert first["cost"]["bytes"] == 7 * (4 * first["params_total"] + 24)
    assert last["cost"]["bytes"] > first["cost"]["bytes"]
    assert last["cost"]["seconds"] > 0 and first["cost"]["seconds"] > 0
    from transformers import AutoModelForCausalLM

    weights = AutoModelForCausalLM.from_pretrained(first["path"]).model.layers[0].mlp.up_proj.weight
    assert all(len(row.unique()) <= 15 for row in weights)
    assert not list(tmp_path.rglob("*.pt"))


@pytest.mark.parametrize("stops", [(3, 9), (12, 5, 6)])
def test_a_run_that_is_cut_off_ends_with_the_bits_of_an_unbroken_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stops: tuple[int, ...]
) -> None:
    monkeypatch.setattr("densing.scores.ladder.trainer.REPORT_STEPS", 1)
    run = armed("co2:tau=3")

    def cut_off(limit: int) -> Any:
        calls = iter(range(limit))

        def report(_: int) -> None:
            if next(calls, None) is None:
                raise KeyboardInterrupt

        return report

    for limit in stops:
        with pytest.raises(KeyboardInterrupt):
            train_run(run, tmp_path / "cut", report=cut_off(limit), maker=virtual_ranks)
    for folder in ("cut", "whole"):
        train_run(run, tmp_path / folder, maker=virtual_ranks)
    cut, whole = (list(read_exports(tmp_path / folder)) for folder in ("cut", "whole"))
    for one, other in zip(cut, whole, strict=True):
        assert (one["path"] / "model.safetensors").read_bytes() == (other["path"] / "model.safetensors").read_bytes()
        assert (one["loss"], one["cost"]["bytes"]) == (other["loss"], other["cost"]["bytes"])


def test_a_loss_that_is_no_number_names_run_and_step(tmp_path: Path) -> None:
    run = armed("co2:tau=2")
    wild = dataclasses.replace(run, preset=dataclasses.replace(run.preset, peak=1e30))
    with pytest.raises(DivergedError, match=r"co2-tau-2-d8-s0: .*NaN"):
        train_run(wild, tmp_path, maker=virtual_ranks)


def test_a_run_that_diverges_does_not_stop_the_others(tmp_path: Path) -> None:
    run = armed("co2:tau=2")
    wild = dataclasses.replace(run, preset=dataclasses.replace(run.preset, peak=1e30))
    with pytest.raises(DivergedError, match=r"co2-tau-2-d8-s0: .*; all other runs are done"):
        train([wild, armed("plain")], tmp_path, maker=virtual_ranks)
    assert {export["arm"] for export in read_exports(tmp_path)} == {"plain"}


def test_a_full_disk_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(InputError, match="No space left"):
        train_run(armed("plain"), tmp_path, maker=virtual_ranks)
    assert not list(tmp_path.rglob("*.pt"))
    assert not list(tmp_path.rglob("densing.json"))
