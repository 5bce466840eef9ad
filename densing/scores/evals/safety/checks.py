"""The first line: task files and models are data until the user says otherwise; what in them would run code is refused.

Nothing is loaded for that. A task file is read as a tree of nodes with line numbers: nothing is built from it, so
nothing runs. Of a model its arguments and the files of its folder are looked at.
"""

from __future__ import annotations

import fnmatch
import json
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NoReturn

from densing.core import InputError

# Who answers for what may run: the user by one of two flags named as lm-eval's own, or nobody.
TRUST = "--trust_remote_code"
CONFIRM = "--confirm_run_unsafe_code"
NEVER = ""
SHOWN = 120


@dataclass(frozen=True)
class Allowed:
    """The two consents a user can give, named as lm-eval's own flags.

    Parameters
    ----------
    trust_remote_code : bool
        Code that comes with a model, a data set or a metric may run.
    confirm_run_unsafe_code : bool
        Code that comes with a task file, or that a model writes (HumanEval, MBPP), may run.
    """

    trust_remote_code: bool = False
    confirm_run_unsafe_code: bool = False


def refuse(where: str, key: str, value: Any, reason: str, flag: str) -> NoReturn:
    """Raise the error for something that would run: place, key, value, reason and the flag that allows it.

    Examples
    --------
    >>> refuse("a.yaml:3", "process_docs", "!function u.f", "runs Python code of u.py", CONFIRM)
    Traceback (most recent call last):
    densing.core.errors.InputError: a.yaml:3: process_docs: '!function u.f' runs Python code of u.py; read it first,
    then
    pass --confirm_run_unsafe_code to allow it
    """
    text = repr(value)
    text = text if len(text) <= SHOWN else text[:SHOWN] + "...'"
    remedy = f"read it first, then pass {flag} to allow it" if flag else "no flag allows it"
    raise InputError(f"{where}: {key}: {text} {reason}; {remedy}")


def truthy(value: Any) -> bool:
    """Whether a flag among model arguments, which may be text, is on: only what plainly says no is off.

    Examples
    --------
    >>> [truthy(value) for value in (True, "true", "False", None, "0", "maybe")]
    [True, True, False, False, False, True]
    """
    return str(value).strip().lower() not in {"", "0", "false", "no", "none", "off"}


# Task files.

MAX_FILE = 4 * 1024 * 1024
"""lm-eval's largest task file is below 100 kB."""
MAX_NODES = 200_000
MAX_DEPTH = 100
MAX_INCLUDES = 50
FUNCTION = "!function"
SUFFIXES = ("*.yaml", "*.yml")
RUN_MODEL_CODE_UNMARKED = ("cruxeval", "longproc")
"""Folders of lm-eval 0.4.13 whose scoring runs (exec, eval, a compiler) what the model wrote without saying so."""
STANDARD_TAG = "tag:yaml.org,2002:"
PICKLE_BUILDERS = ("pandas", "spark", "sql", "generator", "cache")
DATA_PICKLES = (".pkl", ".pickle", ".pt", ".pth")
PROTOCOLS = ("http", "https", "hf", "file", "zip", "gzip", "tar", "bz2", "lzma", "xz", "zstd", "lz4")
_PROTOCOL = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*)(?:://|::)")

IncludePath = str | Path | Sequence[str | Path] | None


def check_tasks(
    include_path: IncludePath,
    tasks: Iterable[str | Path],
    *,
    trust_remote_code: bool = False,
    confirm_run_unsafe_code: bool = False,
) -> None:
    """Refuse task files that would run code no flag allows, before lm-eval sees them.

    Checked are the files below ``include_path`` that the requested tasks, groups and tags lead to, and tasks given
    as files, each with everything it includes. lm-eval's own task folder and this package's may name Python
    functions; nothing else may without a flag.

    Parameters
    ----------
    include_path : path or sequence of paths, optional
        Folders of task files, as lm-eval's ``--include_path``.
    tasks : iterable of str
        Names, patterns or files of tasks.
    trust_remote_code, confirm_run_unsafe_code : bool
        The user's consent, named as lm-eval's flags.

    Raises
    ------
    InputError
        Naming file, line, key, value and the flag that would allow it.

    Examples
    --------
    >>> check_tasks(None, ["hellaswag"])
    """
    allowed = Allowed(trust_remote_code, confirm_run_unsafe_code)
    names = [str(task) for task in tasks]
    folders = [include_path] if isinstance(include_path, (str, Path)) else include_path or []
    files: list[Path] = []
    for folder in map(Path, folders):
        if not folder.expanduser().is_dir():
            raise InputError(f"--include_path {folder}: not a folder; name the folder that holds the task files")
        files += sorted(file for suffix in SUFFIXES for file in folder.expanduser().glob(f"**/{suffix}"))
    for file in _reached(files, names):
        check_file(file, allowed)
    for name in names:
        file = Path(name).expanduser()
        if file.suffix and file.is_file():
            check_file(file, allowed)


def check_file(path: Path, allowed: Allowed) -> None:
    """Refuse what one task file and its includes would run beyond what is allowed.

    Raises
    ------
    InputError
        As :func:`check_tasks`.
    """
    for file, nodes in _with_includes(path):
        foreign = not trusted(file)
        for entry in nodes:
            # First what runs code that is in no installed package, whoever wrote the task.
            if entry.key == "unsafe_code" and truthy(entry.text):
                _need_confirmation(entry, entry.text, "runs code generated by the model", allowed)
            if entry.text and not allowed.trust_remote_code:
                if entry.key == "trust_remote_code" and truthy(entry.text) and _scripts_run():
                    refuse(entry.where, entry.key, entry.text, "runs the data set's own Python script", TRUST)
                if entry.key == "hf_evaluate" and truthy(entry.text):
                    reason = "downloads the metric as a Python script and runs it"
                    refuse(entry.where, entry.key, entry.text, reason, TRUST)
                if entry.key == "custom_generate":
                    reason = "runs generate.py of that repository or folder"
                    refuse(entry.where, entry.key, entry.text, reason, TRUST)
            if foreign:
                _check_foreign(entry, file, allowed)
            elif entry.tag == FUNCTION and file.parent.name in RUN_MODEL_CODE_UNMARKED:
                _need_confirmation(entry, f"{FUNCTION} {entry.text}", "runs code generated by the model", allowed)


def _check_foreign(entry: Entry, file: Path, allowed: Allowed) -> None:
    """Refuse what a task file of unknown origin may not ask for."""
    if entry.tag == FUNCTION:
        module = entry.text.rpartition(".")[0]
        script = file.parent / f"{module.replace('.', '/')}.py"
        code = script.resolve() if script.exists() else f"the module {module}"
        _need_confirmation(entry, f"{FUNCTION} {entry.text}", f"runs Python code of {code}", allowed)
    elif not entry.tag.startswith(STANDARD_TAG) or entry.tag.startswith(f"{STANDARD_TAG}python"):
        refuse(entry.where, entry.key, f"{entry.tag} {entry.text}", "is a tag that constructs Python objects", NEVER)
    if allowed.trust_remote_code:
        return
    if entry.key == "dataset_path":
        if entry.text in PICKLE_BUILDERS:
            refuse(entry.where, entry.key, entry.text, "reads pickles or makes data by running code", TRUST)
        if entry.text.endswith(".py"):
            refuse(entry.where, entry.key, entry.text, "is a Python script", TRUST)
        for folder in {Path(entry.text).expanduser(), file.parent / entry.text}:
            if entry.text and (folder / f"{folder.name}.py").is_file():
                reason = f"is a folder with a loading script, {folder.name}.py"
                refuse(entry.where, entry.key, entry.text, reason, TRUST)
    elif entry.key == "metric" and (re.search(r"[/\\]", entry.text) or entry.text.endswith(".py")):
        refuse(entry.where, entry.key, entry.text, "loads the metric from a Python script", TRUST)
    elif entry.key in ("data_files", "data_dir"):
        for text in entry.scalars():
            unknown = [name for name in _PROTOCOL.findall(text) if name.lower() not in PROTOCOLS]
            if unknown:
                reason = f"uses the protocol {unknown[0]}, which may run code or programs"
                refuse(entry.where, entry.key, text, reason, TRUST)
            if text.lower().endswith(DATA_PICKLES):
                refuse(entry.where, entry.key, text, "is a pickle, which can run code when loaded", TRUST)
    elif entry.key == "trust_remote_code" and truthy(entry.text):
        refuse(entry.where, entry.key, entry.text, "asks for the data set's own Python script", TRUST)


def _need_confirmation(entry: Entry, value: str, reason: str, allowed: Allowed) -> None:
    if not allowed.confirm_run_unsafe_code:
        refuse(entry.where, entry.key, value, reason, CONFIRM)


def _scripts_run() -> bool:
    """Whether the installed ``datasets`` still runs loading scripts (before 4.0); later ones ignore the request."""
    try:
        return int(version("datasets").split(".")[0]) < 4
    except (PackageNotFoundError, ValueError):
        return True


def task_folders() -> tuple[Path, ...]:
    """Return the folders whose task files may name Python functions: lm-eval's own and this package's."""
    import importlib.util

    from densing.scores.evals import tasks

    folders = [Path(entry) for entry in tasks.__path__]
    spec = importlib.util.find_spec("lm_eval")
    if spec is not None and spec.origin:
        folders.append(Path(spec.origin).parent / "tasks")
    return tuple(folder.resolve() for folder in folders)


def trusted(path: Path) -> bool:
    """Whether a task file lies, after following links, in one of :func:`task_folders`."""
    return any(path.resolve().is_relative_to(folder) for folder in task_folders())


def _reached(files: Sequence[Path], patterns: Sequence[str]) -> list[Path]:
    """Return the files that the requested tasks lead to, through groups and tags."""
    declared: dict[Path, set[str]] = {}
    referred: dict[Path, set[str]] = {}
    for file in files:
        # Each must be a plain file, for lm-eval opens all of them.
        regular_bytes(file)
        top = [entry for _, nodes in _with_includes(file) for entry in nodes if entry.top]
        declared[file] = {entry.text for entry in top if entry.key in ("task", "group")}
        declared[file] |= {text for entry in top if entry.key == "tag" for text in entry.scalars()}
        referred[file] = {text for entry in top if entry.key == "task" and not entry.text for text in entry.scalars()}

    def matches(file: Path) -> bool:
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in names for name in declared[file])

    names, reached, remaining = set(patterns), list[Path](), list(files)
    while new := [file for file in remaining if matches(file)]:
        reached += new
        remaining = [file for file in remaining if file not in new]
        names |= {name for file in new for name in referred[file]}
    return reached


def _with_includes(path: Path) -> list[tuple[Path, list[Entry]]]:
    """Return a file's entries and those of every file it includes."""
    queue = [path.expanduser().resolve()]
    done: dict[Path, list[Entry]] = {}
    while queue:
        file = queue.pop()
        if file in done:
            continue
        if len(done) >= MAX_INCLUDES:
            raise InputError(f"{path}: includes more than {MAX_INCLUDES} files; put them into fewer")
        done[file] = entries(file)
        queue += [
            (file.parent / text).resolve()
            for entry in done[file]
            if entry.key == "include"
            for text in entry.scalars()
            if (file.parent / text).exists()
        ]
    return list(done.items())


@dataclass(frozen=True)
class Entry:
    """A key with its value somewhere in a task file.

    Parameters
    ----------
    where : str
        ``file:line``.
    key : str
        Key of the value, or of the list it stands in.
    node : object
        PyYAML's node.
    top : bool
        Whether it is the whole value of a key of the file itself.
    """

    where: str
    key: str
    node: Any
    top: bool = False

    @property
    def tag(self) -> str:
        """The node's YAML tag, ``!function`` or ``tag:yaml.org,2002:str``."""
        return str(self.node.tag)

    @property
    def text(self) -> str:
        """The value as written, empty for a list or mapping."""
        return self.node.value if isinstance(self.node.value, str) else ""

    def scalars(self) -> list[str]:
        """Return every value below this one as text."""
        return [text for _, node in _walk("", self.node) for text in [node.value] if isinstance(text, str)]


def entries(path: Path) -> list[Entry]:
    """Return every key and value of a task file, at any depth, list items under the key of their list."""
    root = compose(path)
    if root is None:
        return []
    top = {id(child[1]) for child in root.value if isinstance(child, tuple)}
    nodes = sorted(_walk("", root), key=lambda item: item[1].start_mark.index)
    return [Entry(f"{path}:{node.start_mark.line + 1}", key, node, id(node) in top) for key, node in nodes]


def compose(path: Path) -> Any | None:
    """Return the root node of a YAML file, or None when it is no YAML (lm-eval skips such files, too).

    Raises
    ------
    InputError
        When the file would grow beyond all bounds once its aliases are written out, or is not a regular file.
    """
    import yaml

    data = regular_bytes(path)
    # The fast loader gives up on deep nesting before it says that it is any: what it cannot read, the other one may.
    for loader in dict.fromkeys((getattr(yaml, "CSafeLoader", yaml.SafeLoader), yaml.SafeLoader)):
        with suppress(yaml.YAMLError, RecursionError, ValueError):
            _refuse_unbounded(path, data, loader)
            return yaml.compose(data, Loader=loader)
    return None


def _refuse_unbounded(path: Path, data: bytes, loader: Any) -> None:
    """Refuse a file whose nodes, aliases written out, exceed ``MAX_NODES``, or that is nested too deeply."""
    import yaml

    sizes: dict[str, int] = {}
    open_nodes: list[tuple[str | None, int]] = []
    total = 0
    for event in yaml.parse(data, Loader=loader):
        if isinstance(event, yaml.AliasEvent):
            # An alias to what is still open contains itself.
            total += sizes.get(event.anchor, MAX_NODES + 1)
        elif isinstance(event, yaml.CollectionStartEvent):
            open_nodes.append((event.anchor, total))
            total += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_nodes.pop()
            if anchor is not None:
                sizes[anchor] = total - before
        elif isinstance(event, yaml.ScalarEvent):
            total += 1
        if total > MAX_NODES or len(open_nodes) > MAX_DEPTH:
            raise InputError(
                f"{path}:{event.start_mark.line + 1}: more than {MAX_NODES} values once aliases are written out, "
                f"or nested deeper than {MAX_DEPTH}; task files need neither"
            )


def _walk(key: str, node: Any) -> Iterator[tuple[str, Any]]:
    """Yield (key, node) for a node and all below it; a node is visited once, however many aliases name it."""
    visited: set[int] = set()
    stack = [(key, node)]
    while stack:
        name, current = stack.pop()
        if id(current) in visited:
            continue
        visited.add(id(current))
        yield name, current
        if not isinstance(current.value, list):
            continue
        for child in current.value:
            if isinstance(child, tuple):
                stack.append((str(child[0].value), child[1]))
                stack.append((name, child[0]))
            else:
                stack.append((name, child))


def regular_bytes(path: Path) -> bytes:
    """Read a file that must be a plain one of reasonable size: a pipe or a device would never end.

    Raises
    ------
    InputError
        When it is anything else.
    """
    try:
        kind = path.stat()
        if not stat.S_ISREG(kind.st_mode):
            raise InputError(f"{path}: not a regular file; remove it from the task folder")
        if kind.st_size > MAX_FILE:
            raise InputError(f"{path}: {kind.st_size} bytes, above the {MAX_FILE} a task file may have; split it")
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot read ({error.strerror}); check the path") from error


# Models: their arguments, and the folders among these.

MAX_CONFIG = 32 * 1024 * 1024
MAX_FOLDERS = 8
WEIGHT_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".nemo", ".joblib")
# What Trainer leaves beside the weights (training_args.bin, optimizer.pt).
NEVER_READ = ("training_args", "optimizer", "scheduler", "rng_state", "scaler")
LOADS_PICKLES = ("nemo_lm", "megatron_lm")
TRUSTS_BY_DEFAULT = ("sglang",)
IMPORTS_PYTHON = (
    "custom_generate",
    "kernel_config",
    "kv_transfer_config",
    "logits_processors",
    "scheduler_cls",
    "worker_cls",
    "worker_extension_cls",
)
"""Arguments whose value names Python code to import."""
_KERNEL = re.compile(r"^[^/:]+/[^/:]+(?:@[^/:]+)?(?::[^/:]+)?$")
_TEXT_ONLY = ("tokenizer.json", "vocab.json")


def check_model(
    model_type: str, model_args: Mapping[str, Any] | str | None, *, trust_remote_code: bool = False
) -> dict[str, Any]:
    """Refuse a model that would run code when loaded; return its arguments with consent made explicit.

    Folders among the arguments (model, tokenizer, adapter, delta) are looked into: code named in ``auto_map``,
    kernels to download, weights that are pickles.

    Parameters
    ----------
    model_type : str
        lm-eval's model type, ``hf``, ``vllm``, ...
    model_args : mapping, str or None
        Arguments, or lm-eval's ``key=value,key=value``.
    trust_remote_code : bool
        The user's consent, named as lm-eval's flag.

    Returns
    -------
    dict
        The arguments; ``trust_remote_code`` is there exactly where lm-eval would otherwise decide differently.

    Raises
    ------
    InputError
        Naming argument or file, value and the flag that would allow it.

    Examples
    --------
    >>> check_model("hf", {"pretrained": "gpt2", "dtype": "float32"})
    {'pretrained': 'gpt2', 'dtype': 'float32'}
    """
    if isinstance(model_args, str):
        from lm_eval.utils import simple_parse_args_string

        args: dict[str, Any] = simple_parse_args_string(model_args)
    else:
        args = dict(model_args or {})
    consent = args.pop("trust_remote_code", None)
    if trust_remote_code:
        return {**args, "trust_remote_code": True}
    if truthy(consent):
        refuse("--model_args", "trust_remote_code", consent, "runs Python code that comes with the model", TRUST)
    if model_type in LOADS_PICKLES:
        refuse(
            "--model", "model type", model_type, "reads its weights from pickles, which can run code when loaded", TRUST
        )
    option = "--model_args"
    for key, value in args.items():
        if key in IMPORTS_PYTHON and truthy(value):
            refuse(option, key, value, "names Python code to import and run", TRUST)
        if key in ("use_kernels", "allow_all_kernels") and truthy(value):
            refuse(option, key, value, "downloads kernels and runs them", TRUST)
        if key in ("weights_only", "use_safetensors") and value is not None and not truthy(value):
            refuse(option, key, value, "reads weights as pickles, which can run code when loaded", TRUST)
        _check_kernel(option, key, value)
        if isinstance(value, str) and value.lower().endswith(WEIGHT_PICKLES) and Path(value).expanduser().is_file():
            refuse(option, key, value, "is a pickle, which can run code when loaded", TRUST)
        if key == "steer_path" and not str(value).lower().endswith(".csv"):
            refuse(option, key, value, "is read as a pickle, which can run code when loaded", TRUST)
    for folder in _folders(args):
        _check_folder(folder, args)
    return {**args, "trust_remote_code": False} if model_type in TRUSTS_BY_DEFAULT else args


def _check_kernel(where: str, key: str, value: Any) -> None:
    """transformers takes ``owner/name`` for an attention implementation as a repository of code to download."""
    if not key.endswith(("attn_implementation", "experts_implementation")):
        return
    for name in value.values() if isinstance(value, Mapping) else [value]:
        if isinstance(name, str) and _KERNEL.match(name):
            refuse(where, key, name, "downloads a kernel and runs it", TRUST)


def _folders(args: Mapping[str, Any]) -> list[Path]:
    """List the local folders among the arguments, and those that their adapters build on."""
    texts = [value for value in args.values() if isinstance(value, (str, Path))]
    queue = [Path(text).expanduser() for text in texts if Path(text).expanduser().is_dir()]
    folders: list[Path] = []
    while queue and len(folders) < MAX_FOLDERS:
        folder = queue.pop(0)
        if folder in folders:
            continue
        folders.append(folder)
        if args.get("subfolder") and (folder / str(args["subfolder"])).is_dir():
            queue.append(folder / str(args["subfolder"]))
        base = _config(folder / "adapter_config.json").get("base_model_name_or_path")
        if isinstance(base, str) and Path(base).is_dir():
            queue.append(Path(base))
    return folders


def _check_folder(folder: Path, args: Mapping[str, Any]) -> None:
    """Refuse a model folder whose configuration names code, or whose weights exist as pickles only."""
    for file in sorted(folder.glob("*.json")):
        if file.name in _TEXT_ONLY or file.name.endswith(".index.json"):
            continue
        for key, value in _keys(_config(file)):
            if key == "auto_map" and value:
                hint = "(transformers may know the model without it: delete the key)"
                refuse(str(file), key, value, f"names Python code that comes with the model {hint}", TRUST)
            if key == "transformers_weights" and not str(value).endswith(".safetensors"):
                refuse(str(file), key, value, "names weights that are not a safetensors file", TRUST)
            if key in ("custom_generate", "custom_pipelines") and value:
                refuse(str(file), key, value, "names Python code that comes with the model", TRUST)
            _check_kernel(str(file), key, value)
    pickles = [
        file.name
        for file in sorted(folder.iterdir())
        if file.suffix.lower() in WEIGHT_PICKLES and not file.name.startswith(NEVER_READ)
    ]
    # A GGUF file among the arguments is loaded instead.
    if not pickles or args.get("gguf_file"):
        return
    variant = f".{args['variant']}" if args.get("variant") else ""
    safe = (f"model{variant}.safetensors", f"model.safetensors.index{variant}.json", "adapter_model.safetensors")
    if not any((folder / name).is_file() for name in safe):
        reason = "is a pickle, which can run code when loaded (save the model as safetensors)"
        refuse(str(folder), "weights", pickles[0], reason, TRUST)


def _config(file: Path) -> dict[str, Any]:
    """Read a configuration file of a model folder; what is no JSON will not load as a model either."""
    try:
        if not file.is_file():
            return {}
        if file.stat().st_size > MAX_CONFIG:
            raise InputError(f"{file}: above {MAX_CONFIG} bytes; model configurations are never that large")
        data = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def _keys(data: Any) -> Iterator[tuple[str, Any]]:
    """Yield the keys and values of all objects in a document."""
    stack = [data]
    while stack:
        current = stack.pop()
        if isinstance(current, dict):
            yield from current.items()
            stack.extend(current.values())
        elif isinstance(current, list):
            stack.extend(current)
