"""Prompt sharing: the same log-likelihoods as lm-eval's own model, from fewer tokens, to the bit after a resume.

The oracle is ``HFLM`` of the installed lm-eval on the same model object. Models are random, with a start wide enough
for a wrong mask or position to move answers by more than a nat.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("lm_eval", reason="needs the extra evals")
torch = pytest.importorskip("torch", reason="needs the extra evals")
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.usefixtures("one_thread")]

MAX_LENGTH = 120
SHAPE: dict[str, Any] = {
    "vocab_size": 258,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
}
PROMPT = "Q: one\nA: yes\n\nQ: two of them\nA: no, not at all\n\n"


@dataclass
class Asked:
    """What of lm-eval's ``Instance`` a model reads."""

    args: tuple[str, str]


def byte_tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = ["<end>", "<pad>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    made = Tokenizer(models.BPE(vocab={letter: n for n, letter in enumerate(letters)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<end>", pad_token="<pad>")


def random_model(kind: str, **changes: Any) -> Any:
    import transformers

    torch.manual_seed(5)
    config, model = getattr(transformers, f"{kind}Config"), getattr(transformers, f"{kind}ForCausalLM")
    return model(config(**{**SHAPE, **changes})).eval()


def load(model: Any, shared: bool = True, batch_size: int | str = 1) -> Any:
    from lm_eval.models.huggingface import HFLM

    from densing.scores.evals.prefix import PrefixHFLM

    kind = PrefixHFLM if shared else HFLM
    return kind(
        pretrained=model, tokenizer=byte_tokenizer(), device="cpu", batch_size=batch_size, max_length=MAX_LENGTH
    )


def ask(lm: Any, pairs: list[tuple[str, str]]) -> list[tuple[float, bool]]:
    return list(lm.loglikelihood([Asked(pair) for pair in pairs], disable_tqdm=True))


@pytest.fixture(scope="module")
def pairs_of_models() -> dict[str, tuple[Any, Any]]:
    kinds: dict[str, dict[str, Any]] = {"Llama": {"num_key_value_heads": 2}, "GPTNeoX": {}}
    made = {kind: random_model(kind, **changes) for kind, changes in kinds.items()}
    return {kind: (load(model), load(model, shared=False)) for kind, model in made.items()}


def questions() -> list[tuple[str, str]]:
    texts = [f"{PROMPT}Q: {question}\nA:" for question in ("what is it", "what was it", "why")]
    return [(text, answer) for text in texts for answer in (" yes", " yesterday", " no", "n")]


# Few letters, so that prompts and answers begin alike; blank lines, so that they have paragraphs.
TEXT = st.text(alphabet="ab \n", min_size=1, max_size=30)
REQUESTS = st.lists(st.tuples(st.one_of(TEXT, st.just(""), TEXT.map(PROMPT.__add__)), TEXT), min_size=1, max_size=12)


@pytest.mark.parametrize("kind", ["Llama", "GPTNeoX"])
@settings(max_examples=25)
@given(requests=REQUESTS)
def test_answers_are_those_of_hf(
    kind: str, requests: list[tuple[str, str]], pairs_of_models: dict[str, tuple[Any, Any]]
) -> None:
    shared, plain = pairs_of_models[kind]
    # lm-eval moves spaces at the end of a context to the answer, and fails where nothing is left.
    requests = [(text, answer) for text, answer in requests if text == "" or text.strip()]
    assert not shared.prefix_fallback
    for (value, greedy), (expected, most_likely) in zip(ask(shared, requests), ask(plain, requests), strict=True):
        assert value == pytest.approx(expected, abs=1e-4)
        assert greedy == most_likely


def test_greedy_answers_are_recognised(pairs_of_models: dict[str, tuple[Any, Any]]) -> None:
    shared, _ = pairs_of_models["Llama"]
    text = "ab"
    with torch.inference_mode():
        token = int(shared.model(torch.tensor([shared.tok_encode(text)])).logits[0, -1].argmax())
    (_, best), (_, worse) = shared._loglikelihood_tokens(
        [(("", ""), shared.tok_encode(text), [token]), (("", ""), shared.tok_encode(text), [(token + 1) % 258])]
    )
    assert best and not worse


@pytest.mark.parametrize("batch_size", [3, "auto"])
def test_several_documents_in_a_pass_change_nothing_but_rounding(batch_size: int | str) -> None:
    model = random_model("Llama")
    one, several = ask(load(model), questions()), ask(load(model, batch_size=batch_size), questions())
    assert [value for value, _ in several] == pytest.approx([value for value, _ in one], abs=1e-4)


def test_a_document_gets_the_same_bits_whatever_stands_beside_it(pairs_of_models: dict[str, tuple[Any, Any]]) -> None:
    """What makes a resumed run equal to an unbroken one."""
    shared, _ = pairs_of_models["Llama"]
    asked = questions()
    together = dict(zip(asked, ask(shared, asked), strict=True))
    for start in range(0, len(asked), 4):
        alone = asked[start : start + 4]
        assert ask(shared, alone) == [together[pair] for pair in alone]
    assert ask(shared, asked[::-1]) == [together[pair] for pair in asked[::-1]]


def test_each_shared_token_is_run_once(
    pairs_of_models: dict[str, tuple[Any, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, _ = pairs_of_models["Llama"]
    run: list[int] = []
    own = type(shared)._model_call

    def count(self: Any, inps: Any, *args: Any, **kwargs: Any) -> Any:
        run.append(inps.numel())
        return own(self, inps, *args, **kwargs)

    monkeypatch.setattr(type(shared), "_model_call", count)
    asked = questions()
    ask(shared, asked)
    texts = {text for text, _ in asked}
    # " yes" + "terday" share their beginning, and of every answer the last byte is not run.
    assert sum(run) == len(PROMPT) + sum(len(text) - len(PROMPT) for text in texts) + 3 * len(" yesterda" + "no"[:1])
    # The examples are short enough to be one piece.
    assert len(run) == 1 + len(texts)
    assert sum(len(text + answer) - 1 for text, answer in asked) > 4 * sum(run)


def test_answers_are_reported_by_document(pairs_of_models: dict[str, tuple[Any, Any]]) -> None:
    """A journal may keep what was reported before a forward pass: the document before it is whole."""
    shared, _ = pairs_of_models["Llama"]
    events: list[Any] = []

    class Hook:
        def add_partial(self, kind: str, request: Any, answer: Any) -> None:
            assert kind == "loglikelihood"
            events.append(request[0])

    own, hook = shared._model_call, shared.cache_hook
    shared.cache_hook = Hook()
    shared._model_call = lambda *args, **kwargs: (events.append("pass"), own(*args, **kwargs))[1]
    try:
        ask(shared, questions())
    finally:
        del shared._model_call
        shared.cache_hook = hook
    reported = "".join("|" if event == "pass" else "." for event in events)
    assert reported.lstrip("|") == "....|....|...."


def test_prompts_beyond_the_context_are_cut_as_hf_cuts_them(pairs_of_models: dict[str, tuple[Any, Any]]) -> None:
    shared, plain = pairs_of_models["GPTNeoX"]
    asked = [("x" * (MAX_LENGTH + 9), " long"), ("y" * (MAX_LENGTH - 4), " long"), *questions()]
    expected = [value for value, _ in ask(plain, asked)]
    assert [value for value, _ in ask(shared, asked)] == pytest.approx(expected, abs=1e-4)


def test_rolling_text_and_chat_of_hf_still_work(pairs_of_models: dict[str, tuple[Any, Any]]) -> None:
    shared, plain = pairs_of_models["Llama"]
    text = "some words. " * 30
    assert shared.loglikelihood_rolling([Asked((text,))], disable_tqdm=True) == pytest.approx(  # type: ignore[arg-type]
        plain.loglikelihood_rolling([Asked((text,))], disable_tqdm=True),  # type: ignore[arg-type]
        abs=1e-3,
    )


@pytest.mark.parametrize(
    ("kind", "changes", "reason"),
    [
        ("Mistral", {"sliding_window": 16, "num_key_value_heads": 2}, "ends after 16 tokens"),
        ("Gemma2", {"num_key_value_heads": 2, "head_dim": 8}, "layers of sliding_attention"),
        # Its positions are read off the mask, which is ours here.
        ("Bloom", {"n_layer": 2, "n_head": 4}, "cannot continue"),
    ],
)
def test_models_that_cannot_share_run_as_hf(kind: str, changes: dict[str, Any], reason: str) -> None:
    model = random_model(kind, **changes)
    shared, plain = load(model), load(model, shared=False)
    assert reason in shared.prefix_fallback
    assert ask(shared, questions()) == ask(plain, questions())


def test_a_model_that_ignores_the_mask_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model("Llama")
    own = model.forward

    def deaf(input_ids: Any, attention_mask: Any = None, **kwargs: Any) -> Any:
        return own(input_ids, attention_mask=None, **kwargs)

    monkeypatch.setattr(model, "forward", deaf)
    shared, plain = load(model), load(model, shared=False)
    assert "changes its answers" in shared.prefix_fallback
    assert ask(shared, questions()) == ask(plain, questions())
