"""Lessons: what must change nothing changes nothing, and each loss is its formula."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the extra 'evals'")
pytest.importorskip("transformers", reason="needs the extra 'evals'")

from densing.core import InputError, UnknownNameError  # noqa: E402
from densing.scores.ladder import parse_arm, read_exports, read_knobs  # noqa: E402
from densing.scores.ladder.corpus import Generated, text_tokenizer  # noqa: E402
from densing.scores.ladder.runs import Run, get_preset  # noqa: E402
from densing.scores.ladder.teachers import Teacher, Translation, hidden  # noqa: E402
from densing.scores.ladder.teaching import LessonTrainer, distance, make_lesson, normal, step_flops  # noqa: E402
from densing.scores.ladder.workers import train_run  # noqa: E402
from tests.support.training_runs import micro_run, save_model  # noqa: E402

CORPUS = Generated()


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("teacher"))


def lesson_run(text: str, teacher: Path | str, steps: tuple[int, ...] = (4,)) -> Run:
    arm = dataclasses.replace(parse_arm(text), teacher=str(teacher))
    return dataclasses.replace(micro_run(steps=steps), arm=arm)


def weights_after(run: Run, steps: int = 3) -> list[Any]:
    trainer = LessonTrainer(run)
    for _ in range(steps):
        trainer.take_step(1.0)
    return [parameter.detach().clone() for parameter in trainer.model.parameters()]


@pytest.mark.parametrize("text", ["kd:weight=0", "fitnet:weight=0", "talking:rounds=2,w1=0,w2=0,w3=0"])
def test_a_lesson_of_no_weight_is_training_from_scratch_to_the_bit(teacher: Path, text: str) -> None:
    pairs = zip(weights_after(lesson_run(text, teacher)), weights_after(lesson_run("scratch", "")), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


@pytest.mark.parametrize("text", ["kd", "fitnet", "talking:rounds=0", "talking:rounds=2,codec=dense,message=5"])
def test_a_lesson_teaches_the_student_and_not_the_teacher(teacher: Path, text: str) -> None:
    run = lesson_run(text, teacher)
    trainer = LessonTrainer(run)
    assert trainer.lesson is not None
    frozen = [parameter.clone() for parameter in trainer.lesson.teacher.model.parameters()]
    taught = weights_after(run)
    assert any(not torch.equal(a, b) for a, b in zip(taught, weights_after(lesson_run("scratch", "")), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(frozen, trainer.lesson.teacher.model.parameters(), strict=True))
    assert trainer.lesson.teacher.model.training is False


def test_scratch_is_the_ladders_own_training(teacher: Path) -> None:
    from densing.scores.ladder.trainer import Trainer

    plain = Trainer(micro_run(steps=(4,)))
    for _ in range(3):
        plain.take_step(1.0)
    pairs = zip(plain.model.parameters(), weights_after(lesson_run("scratch", "")), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_following_predictions_is_kl_with_its_gradient() -> None:
    rng = torch.Generator().manual_seed(0)
    student = torch.randn(2, 3, 7, generator=rng, dtype=torch.float64, requires_grad=True)
    target, heat = torch.randn(2, 3, 7, generator=rng, dtype=torch.float64), 3.0
    loss = distance(student, target, heat)
    p, q = torch.softmax(target / heat, -1), torch.softmax(student / heat, -1)
    assert loss.item() == pytest.approx((heat**2 * (p * (p.log() - q.log())).sum(-1).mean()).item())
    loss.backward()
    # The closed form: T (q - p), per position of six.
    assert torch.allclose(student.grad, (heat * (q - p) / 6).detach())
    flat = torch.nn.functional.kl_div(
        torch.log_softmax(student.detach() / heat, -1).view(6, 7), p.view(6, 7), reduction="batchmean"
    )
    assert loss.item() == pytest.approx(heat**2 * flat.item())


def test_equal_models_that_speak_plainly_agree(teacher: Path) -> None:
    # The student is the teacher, and encoders and decoders change nothing.
    lesson = make_lesson(
        dataclasses.replace(parse_arm("talking:rounds=0"), teacher=str(teacher)),
        get_preset("tiny").shapes[1], CORPUS, 0,
    )  # fmt: skip
    assert lesson is not None
    for part in lesson.parts.values():
        torch.nn.init.eye_(part.weight)
        torch.nn.init.zeros_(part.bias)
    tokens = torch.arange(1, 17).view(1, 16)
    task = torch.tensor(1.5)
    states = hidden(lesson.teacher.model, tokens, lesson.layer)
    assert lesson.loss(task, states, tokens).item() == pytest.approx(1.5, abs=1e-6)
    other = type(states)(states.low.flip(-1), states.high, states.logits)
    assert lesson.loss(task, other, tokens).item() > 1.51


def test_upper_layers_make_of_their_own_lower_state_what_the_teacher_makes(teacher: Path) -> None:
    model = Teacher(teacher)
    states = model.states(torch.arange(1, 33).view(2, 16))
    assert torch.allclose(model.upper(states.low), states.high, atol=1e-6)
    assert (model.layer, model.width) == (1, 12)


def test_talk_passes_gradients_through_the_teacher_into_the_student(teacher: Path) -> None:
    trainer = LessonTrainer(lesson_run("talking:rounds=1,w2=0,w3=0", teacher))
    lesson = trainer.lesson
    assert lesson is not None
    tokens = torch.arange(1, 17).view(1, 16)
    student = hidden(trainer.model, tokens, lesson.layer)
    low = student.low.detach().requires_grad_()
    high = student.high.detach()
    (lesson.loss(torch.zeros(()), type(student)(low, high, student.logits), tokens)).backward()
    assert low.grad is not None and float(low.grad.abs().sum()) > 0
    for name in ("student_in", "teacher_out", "teacher_in", "student_out"):
        assert float(lesson.parts[name].weight.grad.abs().sum()) > 0, name


def test_normal_states_have_mean_0_and_variance_1() -> None:
    state = normal(torch.tensor([[1.0, 2.0, 6.0]]))
    assert state.mean().item() == pytest.approx(0, abs=1e-6)
    assert state.var(correction=0).item() == pytest.approx(1, rel=1e-4)


def test_operations_are_those_of_the_matrices(teacher: Path) -> None:
    run = lesson_run("scratch", "")
    shape, tokens = run.shape, run.shape.batch * run.preset.block
    # Forward and backward are three products per weight (the first layer's input needs no gradient, but the embedding
    # that made it does); attention adds its scores and sums.
    products = shape.non_embedding - shape.width * (2 * shape.layers + 1) + shape.width * CORPUS.vocabulary
    assert step_flops(run) == pytest.approx(6 * products * tokens, rel=0.1)
    assert step_flops(lesson_run("kd", teacher)) > step_flops(run)
    talks = [step_flops(lesson_run(f"talking:rounds={n}", teacher)) for n in (0, 1, 2)]
    assert talks[2] - talks[1] == pytest.approx(talks[1] - talks[0], rel=0.2)


def test_exports_are_students_and_a_cut_run_ends_with_the_same_bits(teacher: Path, tmp_path: Path) -> None:
    run = lesson_run("talking:rounds=1", teacher, steps=(10, 20))

    class CutError(Exception):
        pass

    def cut(done: int) -> None:
        raise CutError

    from densing.scores.ladder import trainer

    train_run(run, tmp_path / "whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "REPORT_STEPS", 8)
        with pytest.raises(CutError):
            train_run(run, tmp_path / "cut", report=cut)
    train_run(run, tmp_path / "cut")
    for whole, again in zip(read_exports(tmp_path / "whole"), read_exports(tmp_path / "cut"), strict=True):
        assert (whole["path"] / "model.safetensors").read_bytes() == (again["path"] / "model.safetensors").read_bytes()
        assert whole["params_total"] == run.shape.total(CORPUS.vocabulary)
        assert whole["loss"] == again["loss"] and whole["cost"]["flops"] == again["cost"]["flops"] > 0
        assert (whole["arm"], whole["teacher"]) == ("talking:rounds=1", str(teacher))


def broken(folder: Path) -> Path:
    from safetensors.torch import load_file, save_file

    file = folder / "model.safetensors"
    weights = load_file(file)
    name = sorted(weights)[0]
    weights[name][0, 0] = float("nan")
    save_file(weights, file, metadata={"format": "pt"})
    return folder


def test_a_teacher_that_cannot_teach_is_refused(teacher: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="contains NaN or infinity"):
        Teacher(broken(save_model(tmp_path / "nan")))
    with pytest.raises(InputError, match="layer 2 of 2"):
        Teacher(teacher, layer=2)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="transformers cannot load it"):
        Teacher(tmp_path / "empty")
    with pytest.raises(InputError, match=r"unknown teacher .nobody.*or give a folder"):
        Teacher("nobody")
    with pytest.raises(InputError, match="needs a teacher"):
        make_lesson(parse_arm("kd"), get_preset("tiny").shapes[0], CORPUS, 0)


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("kd:heat=2", UnknownNameError, "heat"),
        ("pupil", UnknownNameError, "pupil"),
        ("kd:weight=1.5", InputError, "from 0 to 1"),
        ("kd:temperature=0", InputError, "from 0.001 up"),
        ("talking:rounds=17", InputError, "from 0 to 16"),
        ("talking:rounds=1.5", InputError, "a whole number"),
        ("talking:codec=conv", UnknownNameError, "conv"),
        ("fitnet:weight=nan", InputError, "a number"),
    ],
)
def test_options_are_checked(text: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        read_knobs(parse_arm(text))


def test_another_vocabulary_has_states_and_no_predictions(tmp_path: Path) -> None:
    words: Sequence[str] = CORPUS.tokenizer().convert_ids_to_tokens(range(1, 60))
    tokenizer = text_tokenizer(iter([" ".join(words)]), 280)
    other = save_model(tmp_path / "other", tokenizer, len(tokenizer))
    shape = get_preset("tiny").shapes[0]
    with pytest.raises(InputError, match="another vocabulary"):
        make_lesson(dataclasses.replace(parse_arm("kd"), teacher=str(other)), shape, CORPUS, 0)
    weights = weights_after(lesson_run("talking:rounds=1", other))
    assert all(bool(weight.isfinite().all()) for weight in weights)


def test_a_translated_token_ends_where_its_last_piece_does() -> None:
    student = CORPUS.tokenizer()
    words = student.convert_ids_to_tokens(range(1, 60))
    tokenizer = text_tokenizer(iter([" ".join(words)]), 280)
    translate = Translation(student, tokenizer)
    tokens = torch.tensor([[3, 0, 7], [11, 2, 5]])
    own = translate(tokens)
    for row, last, ids in zip(own.tokens.tolist(), own.ends.tolist(), tokens.tolist(), strict=True):
        texts = [tokenizer.decode(row[a + 1 : b + 1]).strip() for a, b in zip([-1, *last], last, strict=False)]
        expected = [student.decode([number]) if number else tokenizer.eos_token for number in ids]
        assert texts == expected
    assert np.all(np.diff(own.ends.numpy(), axis=1) >= 1)
    assert own.mask.sum(dim=1).tolist() == [int(row[-1]) + 1 for row in own.ends]


def save_encoder(folder: Path, tokenizer: Any) -> Path:
    from transformers import BertConfig, BertModel

    torch.manual_seed(3)
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
    BertModel(BertConfig(vocab_size=len(tokenizer), max_position_embeddings=96, **sizes)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    words = CORPUS.tokenizer().convert_ids_to_tokens(range(1, 200))
    return save_encoder(tmp_path_factory.mktemp("encoder"), text_tokenizer(iter([" ".join(words)]), 600))


def test_an_encoder_has_states_above_its_lower_ones_and_predicts_nothing(encoder: Path) -> None:
    model = Teacher(encoder)
    states = model.states(torch.arange(1, 33).view(2, 16))
    assert states.logits is None and not model.predicts
    assert torch.allclose(model.upper(states.low), states.high, atol=1e-6)
    # It sees what comes later, where a language model does not.
    other = model.states(torch.cat([torch.arange(1, 16), torch.tensor([99])]).view(1, 16))
    assert not torch.equal(other.high[0, 0], states.high[0, 0])


def test_padding_changes_no_state_of_an_encoder(encoder: Path) -> None:
    lesson = make_lesson(
        dataclasses.replace(parse_arm("fitnet"), teacher=str(encoder)), get_preset("tiny").shapes[0], CORPUS, 0
    )
    assert lesson is not None and lesson.translation is not None
    # The first row alone, and beside one that needs more of the encoder's tokens.
    rows = torch.tensor([[1, 2, 3, 4], [1, 2, 3, 4]])
    lengths = [lesson.translation(torch.tensor([[n] * 4])).tokens.shape[1] for n in range(1, 60)]
    rows[1] = 1 + int(np.argmax(lengths))
    alone, beside = lesson._teacher_states(rows[:1]), lesson._teacher_states(rows)
    assert lesson.translation(rows).mask[0].sum() < lesson.translation(rows).mask[1].sum()
    for one, other in zip(alone, beside, strict=True):
        assert torch.allclose(one[0], other[0], atol=1e-5)


@pytest.mark.parametrize("text", ["fitnet", "talking:rounds=0", "talking:rounds=1"])
def test_an_encoder_teaches(encoder: Path, text: str) -> None:
    scratch = weights_after(lesson_run("scratch", ""))
    weights = weights_after(lesson_run(text, encoder))
    assert all(bool(weight.isfinite().all()) for weight in weights)
    assert any(not torch.equal(a, b) for a, b in zip(weights, scratch, strict=True))


def test_what_an_encoder_cannot_do_is_said(encoder: Path, tmp_path: Path) -> None:
    shape = get_preset("tiny").shapes[0]
    own = save_encoder(tmp_path / "own", CORPUS.tokenizer())
    with pytest.raises(InputError, match="is an encoder and does not predict next tokens"):
        make_lesson(dataclasses.replace(parse_arm("kd"), teacher=str(own)), shape, CORPUS, 0)
    with pytest.raises(InputError, match="reads 96 tokens at once, and a block of the student is 97"):
        Teacher(encoder).states(torch.ones(1, 97, dtype=torch.long))


def test_a_piece_of_a_text_ends_in_the_teachers_token_that_holds_its_last_letter() -> None:
    text = "The clouded leopard (2007). Drama, comedy. Directed by Aïda Bérénice."
    student, other = text_tokenizer(iter([text]), 270), text_tokenizer(iter([text * 2, "clouded leopards"]), 300)
    ids = student(text)["input_ids"]
    own = Translation(student, other)(torch.tensor([ids[:20]]))
    whole = "".join(student.decode([number]) for number in ids[:20])
    offsets = other(whole, return_offsets_mapping=True)["offset_mapping"]
    upto = np.cumsum([len(student.decode([number])) for number in ids[:20]])
    for end, at in zip(upto, own.ends[0].tolist(), strict=True):
        assert offsets[at][0] < end <= offsets[at][1]
