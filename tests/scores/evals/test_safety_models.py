"""Hostile model arguments and folders: refused with place, value and flag."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from densing.core.errors import InputError
from densing.scores.evals.safety import check_model

pytest.importorskip("lm_eval", reason="needs the extra evals: pip install 'densing[evals]'")

CONFIRM, TRUST = "--confirm_run_unsafe_code", "--trust_remote_code"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model folder with a plain configuration and safetensors weights in name only."""
    place = tmp_path / "model"
    place.mkdir()
    (place / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 8}))
    (place / "model.safetensors").write_bytes(b"")
    return place


def test_sound_model_passes(model: Path) -> None:
    (model / "training_args.bin").write_bytes(b"")
    args = {"pretrained": str(model), "dtype": "float32"}
    assert check_model("hf", args) == args
    assert check_model("hf", f"pretrained={model},dtype=float32") == args
    assert check_model("dummy", None) == {}


def test_consent_is_passed_on_and_defaults_made_safe() -> None:
    assert check_model("hf", {"pretrained": "x"}, trust_remote_code=True)["trust_remote_code"] is True
    assert "trust_remote_code" not in check_model("hf", {"pretrained": "x", "trust_remote_code": "False"})
    # lm-eval's sglang trusts unless told not to.
    assert check_model("sglang", {"pretrained": "x"})["trust_remote_code"] is False


@pytest.mark.parametrize(
    ("args", "key"),
    [
        ({"trust_remote_code": True}, "trust_remote_code"),
        ({"trust_remote_code": "true"}, "trust_remote_code"),
        ({"trust_remote_code": "yes please"}, "trust_remote_code"),
        ({"weights_only": False}, "weights_only"),
        ({"use_safetensors": "False"}, "use_safetensors"),
        ({"attn_implementation": "someone/kernel"}, "attn_implementation"),
        ({"use_kernels": True}, "use_kernels"),
        ({"custom_generate": "someone/thing"}, "custom_generate"),
        ({"worker_extension_cls": "evil.Worker"}, "worker_extension_cls"),
        ({"steer_path": "x.pt"}, "steer_path"),
    ],
)
def test_arguments_that_run_code(args: dict[str, Any], key: str) -> None:
    with pytest.raises(InputError, match=f"--model_args: {key}: .*{TRUST}"):
        check_model("hf", {"pretrained": "x", **args})
    check_model("hf", {"pretrained": "x", **args}, trust_remote_code=True)


@pytest.mark.parametrize(
    ("name", "content", "key"),
    [
        ("config.json", {"auto_map": {"AutoModelForCausalLM": "evil.Model"}}, "auto_map"),
        ("tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["evil.T", None]}}, "auto_map"),
        ("config.json", {"text_config": {"auto_map": {"AutoConfig": "evil.C"}}}, "auto_map"),
        ("processor_config.json", {"auto_map": {"AutoProcessor": "evil.P"}}, "auto_map"),
        ("generation_config.json", {"custom_generate": "me/evil"}, "custom_generate"),
        ("config.json", {"_attn_implementation": "someone/kernel"}, "_attn_implementation"),
        ("config.json", {"transformers_weights": "x.bin"}, "transformers_weights"),
    ],
)
def test_model_folder_that_names_code(model: Path, name: str, content: dict[str, Any], key: str) -> None:
    (model / name).write_text(json.dumps(content))
    with pytest.raises(InputError, match=f"{name}: {key}: .*{TRUST}"):
        check_model("hf", {"pretrained": str(model)})
    with pytest.raises(InputError, match=key):
        check_model("vllm", {"pretrained": "x", "tokenizer": str(model)})


@pytest.mark.parametrize("argument", ["pretrained", "peft", "delta", "tokenizer"])
def test_pickled_weights_are_refused(model: Path, argument: str) -> None:
    (model / "model.safetensors").unlink()
    (model / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(InputError, match=f"pytorch_model.bin.*safetensors.*{TRUST}"):
        check_model("hf", {"pretrained": "x", argument: str(model)})
    (model / "x.gguf").write_bytes(b"")
    check_model("hf", {"pretrained": str(model), "gguf_file": "x.gguf"})
    # Another safetensors file does not make transformers leave the pickle alone.
    (model / "other.safetensors").write_bytes(b"")
    with pytest.raises(InputError, match=TRUST):
        check_model("hf", {"pretrained": str(model)})


def test_adapter_leads_to_its_base_and_variants_to_their_own_weights(model: Path, tmp_path: Path) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(model)}))
    (adapter / "adapter_model.safetensors").write_bytes(b"")
    check_model("hf", {"pretrained": str(adapter)})
    (model / "pytorch_model.fp16.bin").write_bytes(b"")
    check_model("hf", {"pretrained": str(adapter)})
    with pytest.raises(InputError, match=r"fp16\.bin"):
        check_model("hf", {"pretrained": str(model), "variant": "fp16"})
    (model / "config.json").write_text(json.dumps({"auto_map": {"AutoConfig": "evil.C"}}))
    with pytest.raises(InputError, match="auto_map"):
        check_model("hf", {"pretrained": str(adapter)})


def test_subfolder_and_steering_pickle_are_looked_at(model: Path, tmp_path: Path) -> None:
    (model / "sub").mkdir()
    (model / "sub" / "config.json").write_text(json.dumps({"auto_map": {"AutoConfig": "evil.C"}}))
    with pytest.raises(InputError, match="auto_map"):
        check_model("hf", {"pretrained": str(model), "subfolder": "sub"})
    (tmp_path / "s.ckpt").write_bytes(b"")
    with pytest.raises(InputError, match="is a pickle"):
        check_model("hf", {"pretrained": "x", "anything": str(tmp_path / "s.ckpt")})
