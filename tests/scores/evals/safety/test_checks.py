"""Hostile task files, model arguments and folders: refused with place, value and flag before anything is loaded."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from densing.core.errors import InputError
from densing.scores.evals.safety.checks import (
    MAX_FILE,
    RUN_MODEL_CODE_UNMARKED,
    Allowed,
    check_file,
    check_model,
    check_tasks,
    entries,
    task_folders,
    trusted,
)
from tests.support.evals_poison import GOOD, built_in, write

pytest.importorskip("lm_eval", reason="needs the extra evals: pip install 'densing[evals]'")

CONFIRM, TRUST = "--confirm_run_unsafe_code", "--trust_remote_code"


POISON = {
    "function": ("process_docs: !function evil.f", "process_docs", CONFIRM),
    "installed function": ("process_docs: !function os.system", "process_docs", CONFIRM),
    "class": ("class: !function evil.f", "class", CONFIRM),
    "nested function": ("fewshot_config: {samples: !function evil.f}", "samples", CONFIRM),
    "function as key": ("metadata: {? !function evil.f : 1}", "metadata", CONFIRM),
    "function in a list": ("metric_list: [{metric: !function evil.f}]", "metric", CONFIRM),
    "custom data set": ("custom_dataset: !function evil.f", "custom_dataset", CONFIRM),
    "unsafe code": ("unsafe_code: true", "unsafe_code", CONFIRM),
    "metric script": ("metric_list: [{metric: ./evil.py}]", "metric", TRUST),
    "hub metric": ("metric_list: [{metric: f1, hf_evaluate: true}]", "hf_evaluate", TRUST),
    "data script": ("dataset_path: ./evil.py", "dataset_path", TRUST),
    "data folder with script": ("dataset_path: scripted", "dataset_path", TRUST),
    "pickled data": ("dataset_path: pandas", "dataset_path", TRUST),
    "pickled file": ("dataset_kwargs: {data_files: [x.pkl]}", "data_files", TRUST),
    "trusting data": ("dataset_kwargs: {trust_remote_code: true}", "trust_remote_code", TRUST),
    "strange protocol": ("dataset_kwargs: {data_files: 'reference://::x.json'}", "data_files", TRUST),
    "chained protocol": ("dataset_kwargs: {data_files: {a: ['simplecache::ssh://h/x']}}", "data_files", TRUST),
    "custom generate": ("generation_kwargs: {custom_generate: me/evil}", "custom_generate", TRUST),
}


@pytest.mark.parametrize("name", POISON)
def test_poisoned_task_is_refused(name: str, folder: Path, marker: Path) -> None:
    line, key, flag = POISON[name]
    (folder / "scripted").mkdir()
    (folder / "scripted" / "scripted.py").write_text((folder / "evil.py").read_text())
    file = write(folder, GOOD + line)
    with pytest.raises(InputError) as refused:
        check_tasks(folder, ["poisoned"])
    message = str(refused.value)
    assert message.startswith(f"{file}:{len(GOOD.splitlines()) + 1}: {key}: ")
    assert message.endswith(f"pass {flag} to allow it")
    assert not marker.exists()
    check_tasks(folder, ["poisoned"], trust_remote_code=flag == TRUST, confirm_run_unsafe_code=flag == CONFIRM)


def test_python_tags_are_never_allowed(folder: Path) -> None:
    for tag in ("!!python/object/apply:os.system ['true']", "!!python/name:os.system ''", "!whatever x"):
        write(folder, GOOD + f"metadata: {tag}")
        with pytest.raises(InputError, match="no flag allows it"):
            check_tasks(folder, ["poisoned"], trust_remote_code=True, confirm_run_unsafe_code=True)


def test_include_is_followed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "else").mkdir()
    write(tmp_path / "else", "process_docs: !function evil.f", "base.yaml")
    write(folder, "include: ../else/middle.yaml\n" + GOOD)
    write(tmp_path / "else", "include: [base.yaml]", "middle.yaml")
    with pytest.raises(InputError, match=r"base\.yaml:1: process_docs"):
        check_tasks(folder, ["poisoned"])


@pytest.mark.parametrize(
    ("request_", "extra"),
    [
        ("a_group", "group: a_group\ntask: [other, {group: inner, task: [poisoned]}]"),
        ("poi*", ""),
        ("a_tag", ""),
    ],
)
def test_groups_tags_and_patterns_lead_to_their_files(folder: Path, request_: str, extra: str) -> None:
    write(folder, GOOD + "tag: [a_tag]\nprocess_docs: !function evil.f")
    write(folder, GOOD.replace("poisoned", "other"), "other.yaml")
    if extra:
        write(folder, extra, "group.yaml")
    check_tasks(folder, ["other"])
    with pytest.raises(InputError, match="process_docs"):
        check_tasks(folder, [request_])


def test_task_given_as_a_file_is_checked(folder: Path) -> None:
    file = write(folder, GOOD + "process_docs: !function evil.f")
    with pytest.raises(InputError, match="process_docs"):
        check_tasks(None, [str(file)])


def test_folder_that_is_only_named_like_lm_evals_is_not_trusted(tmp_path: Path, folder: Path) -> None:
    place = tmp_path / "lm_eval" / "tasks"
    place.mkdir(parents=True)
    write(place, GOOD + "process_docs: !function evil.f")
    (tmp_path / "link").symlink_to(place)
    for path in (place, tmp_path / "link"):
        with pytest.raises(InputError, match=CONFIRM):
            check_tasks(path, ["poisoned"])
    (folder / "hellaswag.yaml").symlink_to(built_in("hellaswag/hellaswag.yaml"))
    check_tasks(folder, ["hellaswag"])


@pytest.mark.parametrize("name", ["humaneval", "mbpp", "cruxeval", "longproc"])
def test_built_in_tasks_that_run_model_code_need_the_flag(name: str) -> None:
    if not built_in(name).is_dir():
        pytest.skip(f"this lm-eval has no {name}")
    file = next(f for f in sorted(built_in(name).glob("*.yaml")) if any(e.tag == "!function" for e in entries(f)))
    assert trusted(file)
    with pytest.raises(InputError, match=f"runs code generated by the model.*{CONFIRM}"):
        check_file(file, Allowed())
    check_file(file, Allowed(confirm_run_unsafe_code=True))


def test_every_built_in_that_calls_exec_or_eval_is_known() -> None:
    """A new lm-eval with one more folder of this kind fails here."""
    import re

    marked = {file.parent.name for file in built_in("").rglob("*.yaml") if "unsafe_code: true" in file.read_text()}
    runs = re.compile(r"^(?!\s*#).*(?<![\w.])(?:exec|eval)\(|code_eval", re.MULTILINE)
    found = {file.parent.name for file in built_in("").rglob("*.py") if runs.search(file.read_text())}
    assert found - marked - set(RUN_MODEL_CODE_UNMARKED) == set()
    assert found >= set(RUN_MODEL_CODE_UNMARKED)


def test_user_task_cannot_unmark_what_it_includes(folder: Path) -> None:
    write(folder, f"include: {built_in('humaneval/humaneval.yaml')}\ntask: poisoned\nunsafe_code: false")
    with pytest.raises(InputError, match=r"humaneval\.yaml:3: unsafe_code"):
        check_tasks(folder, ["poisoned"])


BOMBS = {
    "aliases": "a: &a [1,1,1,1,1,1,1,1,1]\n"
    + "\n".join(f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]" for a, b in zip("abcdefgh", "bcdefghi", strict=True)),
    "itself": "a: &a [*a]",
    "nesting": "a: " + "[" * 3000 + "]" * 3000,
    "flow nesting": "a: " + "{b: " * 500 + "1" + "}" * 500,
}


@pytest.mark.parametrize("name", BOMBS)
def test_yaml_bombs(name: str, folder: Path) -> None:
    write(folder, GOOD + BOMBS[name])
    with pytest.raises(InputError, match="aliases are written out"):
        check_tasks(folder, ["poisoned"])


def test_files_that_never_end_or_are_huge(folder: Path) -> None:
    write(folder, GOOD)
    os.mkfifo(folder / "pipe.yaml")
    with pytest.raises(InputError, match="not a regular file"):
        check_tasks(folder, ["poisoned"])
    (folder / "pipe.yaml").unlink()
    (folder / "zero.yaml").symlink_to("/dev/zero")
    with pytest.raises(InputError, match="not a regular file"):
        check_tasks(folder, ["poisoned"])
    (folder / "zero.yaml").unlink()
    (folder / "huge.yaml").write_bytes(b"#" * (MAX_FILE + 1))
    with pytest.raises(InputError, match="split it"):
        check_tasks(folder, ["poisoned"])


def test_include_of_a_device_and_cycles(folder: Path) -> None:
    write(folder, GOOD + "include: /dev/zero")
    with pytest.raises(InputError, match="not a regular file"):
        check_tasks(folder, ["poisoned"])
    write(folder, GOOD + "include: t.yaml")
    check_tasks(folder, ["poisoned"])


def test_broken_and_oddly_named_files_are_left_to_lm_eval(folder: Path) -> None:
    write(folder, GOOD)
    for name, text in {
        "bad.yaml": "a: [",
        "two.yaml": "a: 1\n---\nb: 2",
        "nl\n\x1b[31m.yaml": "x: 1",
        "e.yaml": "",
    }.items():
        (folder / name).write_text(text)
    (folder / "bytes.yaml").write_bytes(b"\xff\xfe\x00\x01")
    check_tasks(folder, ["poisoned"])
    with pytest.raises(InputError, match="not a folder"):
        check_tasks(folder / "nowhere", ["poisoned"])


def test_our_own_task_folder_is_trusted() -> None:
    from densing.scores.evals import tasks

    assert Path(tasks.__path__[0]).resolve() in task_folders()


# ---- models ---------------------------------------------------------------------------------------------------


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
