"""Model names: the catalog model, family and kind that a name stands for.

One reading of names serves every table and every result that people bring. Nothing is merged on a likeness: two names
are one model where only case, separators, the organisation before it, or what converters add (``-hf``) tell them apart,
and everything else that looks alike is asked about.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import lru_cache
from itertools import groupby

import numpy as np
import pandas as pd

from densing.core import NOTHING, Note, TableError, cell_text, formatting
from densing.scores.catalog.catalog import Catalog

# Names on the hub (and in harnesses' tables) that no rule turns into the catalog's.
_ALIASES = {
    "amber": "Amber-7B",
    "bloom": "BLOOM-176B",
    "deepseek-llm-7b-base": "DeepSeek-LLM-7B",
    "deepseek-llm-67b-base": "DeepSeek-LLM-67B",
    "gpt2": "GPT-2-124M",
    "gpt2-medium": "GPT-2-355M",
    "gpt2-large": "GPT-2-774M",
    "gpt2-xl": "GPT-2-1.5B",
    "llama-7b": "Llama-1-7B",
    "llama-13b": "Llama-1-13B",
    "llama-30b": "Llama-1-33B",
    "llama-65b": "Llama-1-65B",
    "mixtral-8x7b-v0.1": "Mixtral-8x7B",
    "mixtral-8x22b-v0.1": "Mixtral-8x22B",
    "phi-1-5": "Phi-1.5",
    "stablelm-2-1-6b": "StableLM-2-1.6B",
}
# What converters and harnesses add: the weights are the same.
_ADDED = frozenset({"hf", "turbomind", "vllm", "safetensors", "fp16", "bf16", "float16", "bfloat16"})
# What says that a model was not tuned: nothing new behind a base model's name, but a distinction where it is left off.
_BASE = frozenset({"base", "pt", "pretrain", "pretrained"})
_MAKERS = frozenset({"meta", "google", "microsoft", "facebook", "eleutherai", "nvidia", "ibm"})
_TUNED = frozenset({
    "instruct", "instruction", "chat", "it", "sft", "dpo", "rlhf", "orpo", "ppo", "kto", "simpo", "assistant",
    "aligned", "tulu", "zephyr", "vicuna", "alpaca", "wizardlm", "hermes", "dolly", "oasst", "guanaco", "koala",
    "thinking",
})  # fmt: skip
_CONTINUED = frozenset({"finetune", "finetuned", "ft", "lora", "qlora", "merge", "merged", "slerp"})
_SMALLER = frozenset({
    "gptq", "awq", "gguf", "exl2", "int4", "int8", "4bit", "8bit", "fp8", "nf4", "quantised", "quantized", "pruned",
})  # fmt: skip
_CODE, _MATHS = frozenset({"code", "coder"}), frozenset({"math", "maths"})
# Names of sizes, and of the corpus's treatment: of one family all the same.
_SIZE_NAMES = frozenset({"mini", "small", "medium", "large", "xl", "xxl", "nano", "micro", "deduped", "preview"})
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([bm])")
_OLD_SIZE = re.compile(r"(\d+)b(\d+)")
_EXPERTS = re.compile(r"\d+x\d+(?:\.\d+)?[bm]?|\d+e|moe|olmoe|euromoe|(?:a\d+(?:\.\d+)?[bm])")
_ACTIVE = re.compile(r"a(\d+(?:\.\d+)?)([bm])")
_EFFECTIVE = re.compile(r"e\d+b")
# Versions of weights, dates of a snapshot, lengths of context, tokens.
_REVISION = re.compile(r"v\d+(?:\.\d+)*|\d{4}|\d{6}|\d{8}|step\d*|\d+[kt]|\d*4e1t|rc\d+")
_NUMBER = re.compile(r"\d+(?:\.\d+)*")
_CLOSED = frozenset({"chatgpt", "claude", "gemini", "bard"})
_FIRST_CLOSED_GPT = 3.5
# A file's own count may leave out a part; beyond this it is another model of the same name.
AGREEMENT = 0.1
# Counts differ by what they leave out: buffers, tied embeddings, a rounded or a cut digit.
COUNTING = 0.02
_LIKENESS = 0.85
_NOTHING = NOTHING | {"unknown", "?"}
_ASKED = ("family", "organisation", "released")


@lru_cache(maxsize=32768)
def words_of(name: str) -> tuple[str, ...]:
    """Return a name as the words that it is told by: small, without organisation and revision, sizes in billions.

    Examples
    --------
    >>> words_of("meta-llama/Llama3-8b-hf"), words_of("Gemma 7 B"), words_of("bloom-7b1"), words_of("Qwen2.5-500M@main")
    (('llama', '3', '8b', 'hf'), ('gemma', '7b'), ('bloom', '7.1b'), ('qwen', '2.5', '0.5b'))
    """
    last = name.strip().rstrip("/").rpartition("/")[2].partition("@")[0].casefold()
    last = re.sub(r"(\d)\s+([bm])\b", r"\1\2", last)
    found: list[str] = []
    # A point counts between digits only.
    for part in re.split(r"[^\w.]+|_+|\.(?!\d)|(?<!\d)\.", last):
        # llama3 is llama-3, while v2, h1 and a3b are words.
        whole = part in _ADDED or part in _SMALLER or _REVISION.fullmatch(part)
        pieces = None if whole else re.fullmatch(r"([^\W\d_]{2,})(\d.*)", part)
        for piece in pieces.groups() if pieces else (part,):
            if old := _OLD_SIZE.fullmatch(piece):
                piece = f"{old[1]}.{old[2]}b"
            if size := _SIZE.fullmatch(piece):
                piece = f"{float(size[1]) * (1.0 if size[2] == 'b' else 1e-3):g}b"
            found += [piece] if piece else []
    return tuple(found)


def _key(parts: Iterable[str]) -> str:
    """Join words, letters with letters: ``open llama`` is ``openllama``."""
    runs = groupby(parts, key=lambda word: word.isalpha())
    return "-".join("".join(run) if letters else "-".join(run) for letters, run in runs)


def _core(parts: Sequence[str]) -> tuple[str, ...]:
    """Leave out of a name's words what converters, makers and base models add to it."""
    kept = [word for word in parts if word not in _ADDED and word not in _BASE]
    if len(kept) > 1 and kept[0] in _MAKERS:
        kept = kept[1:]
    if kept[:1] == ["pythia"]:
        kept = [word for word in kept if word != "v1.1"]
    return tuple(kept)


def _says_base(parts: Sequence[str]) -> bool:
    return not _BASE.isdisjoint(parts)


@dataclass(frozen=True)
class _Names:
    """The catalog's names by what they are told by.

    ``lacking`` has sorted words of a name without one of them (or none, the empty word), ``numbered`` the words with
    digits, beside the letters of the others.
    """

    exact: frozenset[str]
    plain: Mapping[str, tuple[str, ...]]
    core: Mapping[str, tuple[str, ...]]
    words: Mapping[str, tuple[str, ...]]
    lacking: Mapping[tuple[str, ...], Sequence[tuple[str, str]]]
    numbered: Mapping[tuple[str, ...], Sequence[tuple[str, str]]]
    letters: frozenset[str]
    families: Mapping[str, str]
    makers: Mapping[str, str]
    rows: Mapping[str, Mapping[str, object]]


@lru_cache(maxsize=16)
def _organisations(catalog: Catalog) -> Mapping[str, str]:
    """Return who made a family of the catalog; empty where several did."""
    makers: dict[str, set[str]] = {}
    for family, maker in zip(catalog.models["family"], catalog.models["organisation"], strict=True):
        if isinstance(family, str):
            makers.setdefault(family, set()).update([maker] if isinstance(maker, str) else [])
    return {family: next(iter(each)) if len(each) == 1 else "" for family, each in makers.items()}


@lru_cache(maxsize=16)
def _names(catalog: Catalog) -> _Names:
    spelled = {str(model): words_of(str(model)) for model in catalog.models["model"]}
    plain: dict[str, tuple[str, ...]] = {}
    core: dict[str, tuple[str, ...]] = {}
    for model, parts in spelled.items():
        plain[_key(parts)] = (*plain.get(_key(parts), ()), model)
        core[_key(_core(parts))] = (*core.get(_key(_core(parts)), ()), model)
    for name, model in _ALIASES.items():
        if model in spelled:
            plain.setdefault(_key(words_of(name)), (model,))
            core.setdefault(_key(_core(words_of(name))), (model,))
    rows = catalog.models.set_index(catalog.models["model"].astype(str)).to_dict("index")
    of_lineage: dict[str, set[str]] = {}
    for model, parts in spelled.items():
        family = rows[model]["family"]
        for lineage in _lineages(parts) if isinstance(family, str) else ():
            of_lineage.setdefault(_key(lineage), set()).add(str(family))
    families = {key: next(iter(several)) for key, several in of_lineage.items() if key and len(several) == 1}
    families |= {_key(words_of(str(family))): str(family) for family in catalog.models["family"].dropna().unique()}
    lacking: dict[tuple[str, ...], list[tuple[str, str]]] = {}
    numbered: dict[tuple[str, ...], list[tuple[str, str]]] = {}
    for model, parts in spelled.items():
        words_left = sorted(_core(parts))
        telling = [word for word in words_left if _REVISION.fullmatch(word) or _SIZE.fullmatch(word) or word == "1"]
        for word in ("", *dict.fromkeys(telling)):
            rest = words_left.copy()
            if word:
                rest.remove(word)
            lacking.setdefault(tuple(rest), []).append((model, word))
        digits = tuple(word for word in _core(parts) if not word.isalpha())
        numbered.setdefault(digits, []).append((model, _letters_of(_core(parts))))
    letters = frozenset(_letters_of(_core(parts)) for parts in spelled.values())
    by_word: dict[str, set[str]] = {}
    for family, maker in _organisations(catalog).items():
        by_word.setdefault(_letters_of(words_of(family)[:1]), set()).add(maker)
    makers = {word: next(iter(each)) for word, each in by_word.items() if word and len(each) == 1}
    return _Names(frozenset(spelled), plain, core, spelled, lacking, numbered, letters, families, makers, rows)


def find_model(catalog: Catalog, name: str, *, kind: str | None = None) -> tuple[str, str] | None:
    """Return the model of the catalog that a name means, and how it was matched; None where none does.

    Nothing is guessed: ``exact`` is the catalog's own name; ``normalised`` differs in case, separators, the
    organisation before it or the revision behind it; ``alias`` is a spelling known from the hub, or what a converter
    adds (``-hf``). ``base`` behind a base model's name changes nothing; a name without it is not the catalog's name
    with it, because makers often call their tuned model so (Qwen3-8B).

    Parameters
    ----------
    catalog : Catalog
        Where the models are.
    name : str
        Name in the results: a path, a hub id, or a label.
    kind : str, optional
        ``base`` where it is known that the model was not tuned.

    Examples
    --------
    >>> from densing.scores.catalog import load_catalog
    >>> catalog = load_catalog()
    >>> find_model(catalog, "Qwen2.5-7B"), find_model(catalog, "Qwen/qwen2.5_7b@main")
    (('Qwen2.5-7B', 'exact'), ('Qwen2.5-7B', 'normalised'))
    >>> find_model(catalog, "meta-llama/Llama-2-13b-hf"), find_model(catalog, "Qwen/Qwen2.5-7B-Instruct")
    (('Llama-2-13B', 'alias'), None)
    >>> find_model(catalog, "Qwen3-8B"), find_model(catalog, "Qwen3-8B", kind="base")
    (None, ('Qwen3-8B-Base', 'alias'))
    """
    names = _names(catalog)
    if name in names.exact:
        return name, "exact"
    parts = words_of(name)
    if len(models := names.plain.get(_key(parts), ())) == 1:
        return models[0], "normalised" if _key(words_of(models[0])) == _key(parts) else "alias"
    base = _says_base(parts) or kind == "base"
    # A name that says base may leave it off; one that does not may not add it.
    models = tuple(m for m in names.core.get(_key(_core(parts)), ()) if base or not _says_base(names.words[m]))
    if base and len(models) > 1:
        models = tuple(m for m in models if _says_base(names.words[m]))
    if len(models) == 1 and not (base and names.rows[models[0]]["kind"] == "instruct"):
        return models[0], "alias"
    return None


@dataclass(frozen=True)
class Identity:
    """Which model of the catalog a name is.

    Parameters
    ----------
    model : str or None
        The catalog's name for it.
    how : str
        ``exact``, ``normalised`` or ``alias``: how ``named`` was matched; empty where it is none.
    near : tuple of str
        Models that it may be and is not taken for.
    named : str or None
        The catalog's model of this name, also where a revision or another size makes it another model.
    """

    model: str | None = None
    how: str = ""
    near: tuple[str, ...] = field(default=())
    named: str | None = None


def identify(
    catalog: Catalog, name: str, *, params_b: float | None = None, kind: str | None = None, ask: bool = True
) -> Identity:
    """Return which model of the catalog a name is, whatever its spelling, and what it may be where it is none.

    Parameters
    ----------
    catalog : Catalog
        Where the models are.
    name : str
        As somebody wrote it. Behind ``@`` stands a revision: an intermediate state of a model is another one.
    params_b : float, optional
        Its size in billions: a model of another size is another model.
    kind : str, optional
        As for :func:`find_model`.
    ask : bool
        Whether names that are near are looked for.

    Examples
    --------
    >>> from densing.scores.catalog import load_catalog
    >>> catalog = load_catalog()
    >>> identify(catalog, "google/gemma 7b", params_b=8.54).model, identify(catalog, "Gemma-7B-it").model
    ('Gemma-7B', None)
    >>> identify(catalog, "Mistral 7B").near[0], identify(catalog, "Gemma 7B", params_b=27.0).near
    ('Mistral-7B-v0.1', ('Gemma-7B',))
    """
    match = find_model(catalog, name, kind=kind)
    revision = name.rpartition("/")[2].partition("@")[2]
    if match is not None and (match[1] == "exact" or revision in ("", "main")):
        row = _names(catalog).rows[match[0]]
        if match[1] == "exact" or params_b is None or _may_be(params_b, row):
            return Identity(*match, named=match[0])
        return Identity(how=match[1], near=(match[0],), named=match[0])
    if match is not None:
        return Identity(how=match[1], named=match[0])
    return Identity(near=_near(catalog, name, params_b) if ask else ())


def _may_be(params_b: float, row: Mapping[str, object]) -> bool:
    sizes = [row[f"params_{name}_b"] for name in ("total", "label", "active", "non_embedding")]
    known = [float(size) for size in sizes if isinstance(size, float | int) and size == size]
    return not known or any(same_size(params_b, size) or abs(params_b / size - 1) <= AGREEMENT for size in known)


def same_size(one: float, two: float) -> bool:
    """Return whether two sizes in billions are one, as far as they are rounded and counted.

    Examples
    --------
    >>> same_size(7.6, 7.61), same_size(1.41465, 1.414647808), same_size(7.615616512, 7.61), same_size(7, 8.54)
    (True, True, True, False)
    """
    if not (one > 0 and two > 0):
        return False
    # Half a unit of the last digit of the coarser one, but never half of it.
    coarse = max(
        0.5 * 10.0 ** -len(np.format_float_positional(size, trim="-").partition(".")[2]) for size in (one, two)
    )
    return abs(one - two) <= max(min(coarse, AGREEMENT * two), COUNTING * two) * (1 + 1e-9)


def _near(catalog: Catalog, name: str, params_b: float | None) -> tuple[str, ...]:
    names, parts = _names(catalog), _core(words_of(name))
    if not parts or kind_of(name):
        return ()
    sizes = any(_SIZE.fullmatch(word) for word in parts)
    found = []
    for model, word in names.lacking.get(tuple(sorted(parts)), ()):
        # What it lacks is the word base, a version, or the size that stands in a column of its own.
        version = sizes and not _SIZE.fullmatch(word)
        sized = not sizes and _SIZE.fullmatch(word) and params_b and _may_be(params_b, names.rows[model])
        found += [model] if not word or version or sized else []
    letters = _letters_of(parts)
    if sizes and letters not in names.letters:
        # A slip of the pen: all numbers are the same, and no known model is called so.
        numbers = tuple(word for word in parts if not word.isalpha())
        for model, other in names.numbered.get(numbers, ()):
            alike = letters[:1] == other[:1] and abs(len(letters) - len(other)) <= 2
            found += [model] if alike and SequenceMatcher(None, letters, other).ratio() >= _LIKENESS else []
    return tuple(dict.fromkeys(found))


def _letters_of(parts: Sequence[str]) -> str:
    return "".join(word for word in parts if word.isalpha())


def kind_of(name: str) -> dict[str, str]:
    """Return what a name says of the kind of a model beyond dense base models: columns of the catalog, and ``why``.

    Told are models tuned to follow instructions, continued and quantised ones, mixtures of experts, models of code and
    mathematics, and closed models, whose size nobody published.

    Examples
    --------
    >>> kind_of("Llama-3-8B-Instruct"), kind_of("Mixtral-8x7B")["architecture"], kind_of("Qwen2.5-7B")
    ({'kind': 'instruct', 'derivation': 'instruct_tuned', 'why': 'instruct'}, 'moe', {})
    >>> kind_of("Zeta-30B-A3B")["params_active_b"], kind_of("GPT-4"), kind_of("GPT-2-124M")
    ('3', {'kind': 'closed', 'why': 'size not published'}, {})
    """
    parts = words_of(name)
    told: dict[str, str] = {}
    why: list[str] = []

    def tell(reason: str, **facts: str) -> None:
        told.update({column: fact for column, fact in facts.items() if column not in told})
        why.append(reason)

    if tuned := next((word for word in parts if word in _TUNED), None):
        tell(tuned, kind="instruct", derivation="instruct_tuned")
    elif _is_closed(parts):
        # What it was made of, and whether it is one model, nobody outside knows either.
        tell("size not published", kind="closed")
    elif word := next((word for word in parts if word in _SMALLER), None):
        tell(word, kind="compressed", derivation="compressed" if word == "pruned" else "quantised")
    elif word := next((word for word in parts if word in _CONTINUED), None):
        tell(word, kind="continued", derivation="continued")
    if any(_EXPERTS.fullmatch(word) for word in parts):
        tell("mixture of experts", architecture="moe")
        if active := next((match for word in parts if (match := _ACTIVE.fullmatch(word))), None):
            told["params_active_b"] = f"{float(active[1]) * (1.0 if active[2] == 'b' else 1e-3):g}"
    for domain, marks in (("code", _CODE), ("math", _MATHS)):
        if not marks.isdisjoint(parts):
            tell(domain, domain=domain)
    return told | ({"why": ", ".join(why)} if why else {})


def _is_closed(parts: Sequence[str]) -> bool:
    if not parts or any(_SIZE.fullmatch(word) for word in parts):
        return False
    if parts[0] in _CLOSED or re.fullmatch(r"o[1345]", parts[0]):
        return True
    number = re.match(r"\d+(?:\.\d+)?", parts[1]) if len(parts) > 1 and parts[0] == "gpt" else None
    return number is not None and float(number[0]) >= _FIRST_CLOSED_GPT


def _lineages(parts: Sequence[str]) -> list[tuple[str, ...]]:
    """Return what a name shares with its family, the most telling first: words without size and kind, then fewer."""
    dropped = _ADDED | _BASE | _TUNED | _CONTINUED | _SMALLER

    def is_mark(word: str) -> bool:
        pattern = _SIZE.fullmatch(word) or _EXPERTS.fullmatch(word) or _EFFECTIVE.fullmatch(word)
        return word in dropped or (pattern is not None and word[-3:] != "moe")

    core = _core(parts)
    sized = next((at for at, word in enumerate(core) if _SIZE.fullmatch(word)), len(core))

    def is_revision(word: str, at: int) -> bool:
        # Before the size a version is a generation: DeepSeek-V3.
        return bool(_REVISION.fullmatch(word)) and not (word.startswith("v") and at < sized)

    kept = [(at, word) for at, word in enumerate(core) if not is_mark(word)]
    most = tuple(word for _, word in kept)
    fewer = tuple(word for at, word in kept if not is_revision(word, at) and word not in _SIZE_NAMES)
    return [lineage for lineage in dict.fromkeys((most, fewer)) if lineage]


@dataclass(frozen=True)
class Families:
    """Families of models, read from their names.

    Parameters
    ----------
    family : mapping of str to str
        By model.
    how : mapping of str to str
        By model: ``catalog`` (a family that the catalog knows), ``beginning`` (its name begins as one), ``name``
        (shared with other models of the table), ``alone`` (no other model is called so).
    organisation : mapping of str to str
        By model: the maker of the catalog's families that are called so, else the first word of the name where several
        families share it, for they are one maker's generations as a rule; empty where nothing tells.
    """

    family: Mapping[str, str]
    how: Mapping[str, str]
    organisation: Mapping[str, str]

    def sentence(self) -> str:
        """Return which families were read, and what an interval over them takes for granted."""
        groups: dict[str, dict[str, int]] = {how: {} for how in ("catalog", "beginning", "name", "alone")}
        for model, family in self.family.items():
            group = groups[self.how[model]]
            group[family] = group.get(family, 0) + 1
        listed = {
            how: formatting.listed((f"{name} ({count})" if count > 1 else name for name, count in group.items()), 12)
            for how, group in groups.items()
        }
        text = [f"families of {formatting.plural(len(self.family), 'model')} are read from names"]
        text += [f"known to the catalog: {listed['catalog']}"] if groups["catalog"] else []
        text += [f"named like one of its families: {listed['beginning']}"] if groups["beginning"] else []
        text += [f"by a common name: {listed['name']}"] if groups["name"] else []
        text += [f"each its own family: {listed['alone']}"] if groups["alone"] else []
        unsure = [how for how in ("beginning", "name", "alone") if groups[how]]
        sure = ". Intervals of a trend treat families as independent"
        if unsure:
            sure += "; they are too narrow if two of the last group belong to one generation of one maker"
        return "; ".join(text) + sure + ". To change this, add a column family"


def infer_families(names: Iterable[str], catalog: Catalog) -> Families:
    """Return the family of every model by its name: the catalog's where it knows one, else that of the table.

    A family is one generation of one maker. What tells models of a family apart (sizes, versions of the weights,
    ``-hf``, ``-base``, ``-instruct``, ``-deduped``) is left out of the name, and what remains is looked up; a name that
    only begins as a family of the catalog belongs to it, unless a number follows, which is another generation.

    Parameters
    ----------
    names : iterable of str
        The models of one table.
    catalog : Catalog
        Where families are known.

    Examples
    --------
    >>> from densing.scores.catalog import load_catalog
    >>> names = ["Pythia-1.4B-deduped", "llama3-8b-instruct", "Zeta-1B", "zeta 7b", "Solo"]
    >>> read = infer_families(names, load_catalog())
    >>> list(read.family.values()), list(read.how.values())
    (['Pythia', 'Llama-3', 'Zeta', 'Zeta', 'Solo'], ['catalog', 'catalog', 'name', 'name', 'alone'])
    """
    known, names = _names(catalog), list(names)
    family, how, stems = {}, {}, {}
    for name in names:
        match = find_model(catalog, name)
        if match is not None and isinstance(listed := known.rows[match[0]]["family"], str):
            family[name], how[name] = listed, "catalog"
            continue
        lineages = _lineages(words_of(name))
        if found := next((known.families[key] for each in lineages if (key := _key(each)) in known.families), None):
            family[name], how[name] = found, "catalog"
        elif lineages and (begins := _beginning(lineages[-1], known.families)):
            family[name], how[name] = begins, "beginning"
        else:
            stems[name] = _key(_stem(lineages[-1])) if lineages else ""
    sharing = Counter(stems.values())
    shown: dict[str, str] = {}
    for name, stem in stems.items():
        several = bool(stem) and sharing[stem] > 1
        family[name] = shown.setdefault(stem, _shown(name, stem)) if several else name
        how[name] = "name" if several else "alone"
    makers, first = _organisations(catalog), {name: _letters_of(words_of(name)[:1]) for name in names}
    generations: dict[str, set[str]] = {}
    for name, word in first.items():
        generations.setdefault(word, set()).add(family[name])
        shown.setdefault(word, _shown(name, word))
    organisation = {
        name: makers.get(family[name])
        or known.makers.get(word)
        or (shown[word] if word and len(generations[word]) > 1 else "")
        for name, word in first.items()
    }
    order = list(dict.fromkeys(names))
    return Families(*({name: each[name] for name in order} for each in (family, how, organisation)))


def _beginning(lineage: Sequence[str], families: Mapping[str, str]) -> str | None:
    """Return the family whose name a longer name begins with; a number behind it is another generation."""
    for count in range(len(lineage) - 1, 0, -1):
        if not lineage[count][0].isdigit() and (family := families.get(_key(lineage[:count]))) is not None:
            return family
    return None


def _stem(lineage: Sequence[str]) -> tuple[str, ...]:
    """Return a name up to the number of its generation, or all of it where there is none."""
    at = next((at for at, word in enumerate(lineage) if at and _NUMBER.fullmatch(word)), None)
    return tuple(lineage if at is None else lineage[: at + 1])


def _shown(name: str, stem: str) -> str:
    """Return the beginning of a name that holds a stem, as it is written there; the stem where no beginning does."""
    last = name.rstrip("/").rpartition("/")[2]
    ends = (end for end in range(1, len(last) + 1) if not last[end : end + 1].isalnum())
    return next((last[:end] for end in ends if _key(words_of(last[:end])) == stem), stem)


_TOLD = ("family", "organisation", "released", "released_precision", "kind", "architecture", "derivation", "domain",
         "layers", "tokens_t", "params_total_b", "params_active_b", "params_non_embedding_b")  # fmt: skip
"""Columns that may be blank for a model of the catalog."""
# A pair of models needs no word on what an interval over families takes for granted.
_FEW = 3
_SHOWN = 8


@dataclass(frozen=True)
class Told:
    """A table of models with its blank cells filled by what the names say.

    Parameters
    ----------
    cells : pandas.DataFrame
        As text.
    known : mapping of str to str
        The catalog's name of every model that it knows.
    notes : tuple of Note
        What was read from names, and what is asked.
    """

    cells: pd.DataFrame
    known: Mapping[str, str]
    notes: tuple[Note, ...]


def told_by_names(cells: pd.DataFrame, catalog: Catalog, where: str, titles: Mapping[str, str] | None = None) -> Told:
    """Fill the blank cells of a table of models by its names: known models, families, kinds.

    What a cell states stays. A model that the catalog knows has the catalog's facts; of others the name tells family
    and kind. A blank below a filled cell, as merged cells leave it, is never taken for the value above it.

    Parameters
    ----------
    cells : pandas.DataFrame
        Text in declared columns of models, ``params_total_b`` in billions, indexed by row number; a model may have
        several rows.
    catalog : Catalog
        Where models and families are known.
    where : str
        Name of the table in messages.
    titles : mapping of str to str, optional
        What the table calls its columns.

    Raises
    ------
    TableError
        Where families or organisations look like merged cells: rows, column and remedy.

    Examples
    --------
    >>> from densing.scores.catalog import load_catalog
    >>> rows = pd.DataFrame({"model": ["gemma 7b", "Zeta-8x7B"], "params_total_b": ["8.5", "47"]}, index=[2, 3])
    >>> told = told_by_names(rows, load_catalog(), "mine.csv")
    >>> told.cells[["family", "architecture"]].values.tolist(), dict(told.known)
    ([['Gemma', 'dense'], ['Zeta-8x7B', 'moe']], {'gemma 7b': 'Gemma-7B'})
    """
    names = cells["model"].map(lambda cell: cell_text(cell).strip())
    models = [name for name in dict.fromkeys(names) if name]
    stated = {column: _stated(cells, names, column) for column in _TOLD}
    sizes = stated["params_total_b"]
    identities = {
        name: identify(catalog, name, params_b=_number(sizes.get(name)), kind=stated["kind"].get(name))
        for name in models
    }
    known = {name: found.model for name, found in identities.items() if found.model is not None}
    rows = _names(catalog).rows
    facts: dict[str, dict[str, str]] = {
        name: {column: cell_text(rows[model][column]) for column in _TOLD} for name, model in known.items()
    }
    notes = _merged_cells(cells, names, stated, facts, where, titles or {})
    for name, listed in facts.items():
        if stated["kind"].get(name, listed["kind"]) != listed["kind"]:
            del listed["derivation"]
        size, total = _number(sizes.get(name)), _number(listed["params_total_b"])
        for column in ("params_active_b", "params_non_embedding_b"):
            part = _number(listed[column])
            # A part of another count belongs to that one; a dense model's active size follows from its own.
            if size is not None and not (part and total and same_size(size, total) and part < min(size, total)):
                listed[column] = ""
        if name in stated["released"]:
            listed["released_precision"] = ""
    kinds = {name: kind_of(name) for name in models if name not in known}
    for name, told in kinds.items():
        size, active = _number(sizes.get(name)), _number(told.get("params_active_b"))
        # A kind that is stated is the user's to say, and so is what follows from it.
        states_kind = name in stated["kind"]
        facts[name] = {
            column: fact
            for column, fact in told.items()
            if column in _TOLD
            and not (states_kind and column in ("kind", "derivation"))
            and not (column == "params_active_b" and (stated["architecture"].get(name) == "dense" or not size))
        }
        if active is not None and size is not None and active > size:
            facts[name].pop("params_active_b", None)
    without = [name for name in models if name not in stated["family"]]
    families = infer_families([name for name in without if not facts[name].get("family")], catalog)
    for name, family in families.family.items():
        facts[name] |= {"family": family, "organisation": families.organisation[name]}
    spelled = {_key(words_of(family)): family for family in _organisations(catalog)}
    canon = {
        family: spelled[key]
        for family in dict.fromkeys(stated["family"].values())
        if (key := _key(words_of(family))) in spelled
    }
    for name, family in stated["family"].items():
        facts[name]["family"] = canon.get(family, family)
    filled = _filled(cells, names, stated, facts)
    every = Families(
        {name: facts[name]["family"] for name in without},
        {name: families.how.get(name, "catalog") for name in without},
        {name: facts[name].get("organisation", "") for name in without},
    )
    notes += _notes(models, identities, kinds, stated, facts, where)
    if len(without) >= _FEW:
        details = {"families": every.family, "how": every.how, "organisations": every.organisation}
        notes.append(Note("families-inferred", "info", f"{where}: {every.sentence()}", details))
    return Told(filled, known, tuple(notes))


def _stated(cells: pd.DataFrame, names: pd.Series, column: str) -> dict[str, str]:
    """Return what a table states of each model in a column: the first filled cell."""
    if column not in cells:
        return {}
    texts = [cell_text(cell).strip() for cell in cells[column]]
    stated: dict[str, str] = {}
    for name, text in zip(names, texts, strict=True):
        if text and text.casefold() not in _NOTHING:
            stated.setdefault(name, text)
    return stated


def _number(text: str | None) -> float | None:
    try:
        value = float(text) if text else 0.0
    except ValueError:
        return None
    return value if 0 < value < float("inf") else None


def _filled(
    cells: pd.DataFrame,
    names: pd.Series,
    stated: Mapping[str, Mapping[str, str]],
    facts: Mapping[str, Mapping[str, str]],
) -> pd.DataFrame:
    filled = cells.copy()
    for column in _TOLD:
        told = {
            name: row[column]
            for name, row in facts.items()
            if row.get(column) and (name not in stated[column] or column == "family")
        }
        present = column in cells
        if not told and not (present and column in _ASKED):
            continue
        before = cells[column] if present else pd.Series("", index=cells.index, dtype=object)
        # Where no row of a model states it, all of them do now; a word for nothing is a blank.
        filled[column] = [
            told.get(name, "" if column in _ASKED and cell_text(cell).strip().casefold() in _NOTHING else cell)
            for name, cell in zip(names, before, strict=True)
        ]
    return filled


def _merged_cells(
    cells: pd.DataFrame,
    names: pd.Series,
    stated: Mapping[str, Mapping[str, str]],
    facts: Mapping[str, Mapping[str, str]],
    where: str,
    titles: Mapping[str, str],
) -> list[Note]:
    """Refuse families and organisations that look like merged cells; ask about other blanks, and dates."""
    first: dict[str, int] = {}
    for number, name in zip(cells.index, names, strict=True):
        first.setdefault(name, int(number))
    first.pop("", None)
    problems, notes = [], []
    for column in _ASKED:
        if column not in cells or not stated[column]:
            continue
        # What stands there by word ("unknown") is not a blank.
        worded = {name for name, cell in zip(names, cells[column], strict=True) if cell_text(cell).strip()}
        title = titles.get(column, column)
        above, before, blanks, repeats = "", "", [], False
        for name in first:
            held = stated[column].get(name)
            if held is not None:
                # Merged cells state a value once.
                repeats |= stated[column].get(before) == held
                above = name
            elif above and name not in worded and not _belongs(name, above, stated[column][above], column, facts):
                blanks.append((first[name], stated[column][above], first[above]))
            before = name
        if not blanks:
            continue
        shown = formatting.listed((f"row {row} (below {value}, row {at})" for row, value, at in blanks), _SHOWN)
        if column != "released" and not repeats:
            problems.append(
                f"column {title}: blank in {shown}; if the cell above applies (merged cells), "
                "write its value in every row; otherwise write unknown"
            )
        else:
            effect = "has no date and is left out of trends" if column == "released" else "is read from names"
            message = (
                f"{where}, column {title}: blank in {shown}; values of the cell above are not "
                f"used (merged cells?), so a blank {effect}; write the value in every row, or "
                "unknown"
            )
            details = {"column": title, "rows": [row for row, _, _ in blanks]}
            notes.append(Note("blank-below", "warning", message, details))
    if problems:
        raise TableError(where, problems)
    return notes


def _belongs(name: str, above: str, held: str, column: str, facts: Mapping[str, Mapping[str, str]]) -> bool:
    """Return whether the catalog says what a blank holds, and no merged cell contradicts it."""
    mine, its = facts.get(name, {}).get(column, ""), facts.get(above, {}).get(column, "")
    return bool(mine) and (column == "released" or mine != its or _key(words_of(mine)) == _key(words_of(held)))


def identity_notes(identities: Mapping[str, Identity], where: str) -> list[Note]:
    """Say which models of a table, or of results, the catalog knows, and which have a name near one of its own.

    Parameters
    ----------
    identities : mapping of str to Identity
        By the user's name; see :func:`identify`.
    where : str
        What holds these names.
    """
    notes = []
    if known := {name: found.model for name, found in identities.items() if found.model}:
        shown = formatting.listed((n if n == model else f"{n} (there {model})" for n, model in known.items()), _SHOWN)
        message = (
            f"{where}: {formatting.plural(len(known), 'model')} of yours that the catalog knows: "
            f"{shown}; treated as your own "
            f"{'measurement of it' if len(known) == 1 else 'measurements of them'}, with blanks "
            "filled from the catalog"
        )
        notes.append(Note("known-models", "info", message, {"models": known}))
    if near := {name: found.near for name, found in identities.items() if found.near}:
        shown = formatting.listed((f"{name} ({' or '.join(each[:3])}?)" for name, each in near.items()), _SHOWN)
        message = (
            f"{where}: treated as new models, although the catalog has similar names: {shown}; if "
            "a model is the same, write the catalog's name, otherwise it may count twice"
        )
        notes.append(Note("near-names", "warning", message, {"models": {n: list(each) for n, each in near.items()}}))
    return notes


def _notes(
    models: Sequence[str],
    identities: Mapping[str, Identity],
    kinds: Mapping[str, Mapping[str, str]],
    stated: Mapping[str, Mapping[str, str]],
    facts: Mapping[str, Mapping[str, str]],
    where: str,
) -> list[Note]:
    notes = identity_notes(identities, where)
    spelled: dict[str, list[str]] = {}
    for name in models:
        if not identities[name].model and "@" not in name and (key := _key(_core(words_of(name)))):
            spelled.setdefault(key, []).append(name)
    if several := [each for each in spelled.values() if len(each) > 1]:
        shown = formatting.listed((" and ".join(each[:3]) for each in several), _SHOWN)
        message = (
            f"{where}: names that may be the same model: {shown}; if so, spell them alike, "
            "otherwise the model counts twice"
        )
        notes.append(Note("near-names", "warning", message, {"models": {each[0]: each[1:] for each in several}}))
    apart = {
        name: told["why"]
        for name, told in kinds.items()
        if told and any(facts[name].get(c) and name not in stated[c] for c in ("kind", "architecture", "domain"))
    }
    if apart:
        shown = formatting.listed((f"{name} ({why})" for name, why in apart.items()), _SHOWN)
        message = (
            f"{where}: judged by their names not to be dense base models of general text, so not "
            f"part of the headline: {shown}; to change this, set the columns kind, architecture "
            "and domain (base, dense, general)"
        )
        notes.append(Note("kinds-told", "warning", message, {"models": apart}))
    return notes


def verified_dates(models: pd.DataFrame) -> pd.Series:
    """Return which release dates somebody else than the user vouches for: sourced, and not from a table of theirs.

    Parameters
    ----------
    models : pandas.DataFrame
        Columns ``released_basis, released_source`` of the catalog.
    """
    basis, source = models["released_basis"], models["released_source"].astype("string")
    return basis.notna() & basis.ne("unverified") & ~source.str.startswith("user:").fillna(False).astype(bool)
