"""Arms: what is changed of a ladder's training, everything else being equal.

An arm is written ``METHOD:option=value,...``. The method is ``plain`` or the name of a way of sharing work between
ranks, with its own options; who trains supplies it (:data:`Maker`), because the ladder knows none. What is no
communication is the ladder's own: batch, learning rate, corpus, bits of the weights, losses at exits, clients with
data of their own, and ``behaviour``: plain training on films that are told with how they were received.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from densing.core import Array, InputError, UnknownNameError
from densing.scores.evals import SPLITS
from densing.scores.ladder.corpus import Corpus, FilmCorpus, Generated
from densing.scores.ladder.world import Recipe, get_recipe

PLAIN = "plain"
BEHAVIOUR = "behaviour"
ALONE = (PLAIN, BEHAVIOUR)
"""Methods of the ladder's own: ranks, where there are several, average gradients in every step."""
STANDARD, LADDER = "standard", "ladder"
"""Wirings of a layer's modules."""
FAMILY_FLOOR = 1e-6
REVERSE, RESEED = "reverse", "reseed"
"""Orders of arms that should gain nothing."""
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*", re.ASCII)


@dataclass(frozen=True)
class Arm:
    """One change of training.

    Parameters
    ----------
    method : str
        ``plain``, ``behaviour``, or how ranks share the work.
    knobs : mapping of str to str
        The method's own options, as they were written.
    ranks : int
        Virtual ranks; a step's sequences are dealt out among them.
    batch : int or None
        Sequences per step instead of the size's; the tokens stay the same, so steps become more or fewer.
    lr : float
        Factor of the learning rate.
    corpus : str
        Recipe of the generated corpus instead of the ladder's.
    bits : int or None
        To which the exported weights are rounded, per row of each matrix.
    clients : float or None
        Concentration of the Dirichlet distribution of the ranks' mixtures of families; None: all ranks read one stream.
    order : {"ascending", "reverse", "reseed"}
        Arms that should gain nothing. ``reverse``: ranks' tensors are added up from the last, which changes the last
        bits of sums over three ranks or more. ``reseed``: blocks of text come in the order of another seed.
    tokens : float
        Factor of the tokens of every budget: longer training under the budget's name, a target with a known answer.
    teacher : str
        A model that the run learns from, for methods with one.
    exits : float
        Weight of the loss behind every layer but the last, read with the model's own norm and head; 0: none.
    wiring : {"standard", "ladder"}
        What a module of a layer reads: the stream, or the stream as it was one module ago (Ladder-Residual).
    split : str
        Of ``behaviour``: which films are told with their reception, and which are kept to be asked about.
    """

    method: str = PLAIN
    knobs: Mapping[str, str] = field(default_factory=dict, hash=False)
    ranks: int = 1
    batch: int | None = None
    lr: float = 1.0
    corpus: str = ""
    bits: int | None = None
    clients: float | None = None
    order: str = "ascending"
    name: str = ""
    tokens: float = 1.0
    teacher: str = ""
    exits: float = 0.0
    wiring: str = STANDARD
    split: str = "time"

    @property
    def slug(self) -> str:
        """The name as part of a folder's."""
        return re.sub(r"[^a-z0-9._]+", "-", self.name)


class Ranks(Protocol):
    """Virtual ranks at work; :class:`densing.efficiency.parallel.VirtualMethods` is what trains."""

    @property
    def sent(self) -> float:
        """Bytes that one rank has sent."""

    @property
    def personal(self) -> bool:
        """Whether every rank keeps weights of its own."""

    @property
    def passing(self) -> Callable[[Any, int], Any] | None:
        """What becomes of activations (copies, tokens, width) that a layer hands on; None: nothing."""

    def figures(self) -> Mapping[str, float]:
        """Return figures of the method; ``kept_parameters`` where it masks some."""

    def backward(self, losses: Sequence[Any]) -> None:
        """Run every rank's backward pass."""

    def step(self) -> None:
        """Update every rank."""

    def finish(self) -> None:
        """Leave all ranks with the same parameters."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with a state."""


Maker = Callable[[Arm, Sequence[Any], Sequence[Any]], Ranks]
"""Makes ranks from an arm, their models and their optimizers; a function of a module, because workers need it."""

_OWN: dict[str, Callable[[str], Any]] = {
    "ranks": int,
    "batch": int,
    "lr": float,
    "tokens": float,
    "corpus": str,
    "bits": int,
    "clients": float,
    "order": str,
    "exits": float,
    "wiring": str,
    "split": str,
}
_LIMITS: dict[str, tuple[float, float, str]] = {
    "ranks": (1, 64, "a whole number from 1 to 64"),
    "batch": (1, 1 << 20, "a whole number of sequences from 1 up"),
    "lr": (1e-9, 1e9, "a factor above 0"),
    "tokens": (0.1, 100.0, "a factor from 0.1 to 100"),
    "bits": (2, 16, "a whole number from 2 to 16"),
    "clients": (1e-3, 1e6, "a concentration from 0.001 up"),
    "exits": (0.0, 100.0, "a weight from 0 to 100"),
}


def parse_arm(text: str, ranks: int = 1) -> Arm:
    """Read an arm.

    Parameters
    ----------
    text : str
        ``METHOD`` or ``METHOD:option=value,...``.
    ranks : int
        Where the arm does not say itself.

    Raises
    ------
    InputError
        When it is written otherwise, or a value is out of its range.

    Examples
    --------
    >>> arm = parse_arm("co2:tau=8,lr=2", ranks=4)
    >>> arm.name, arm.method, arm.knobs, arm.lr, arm.ranks
    ('co2:lr=2,tau=8', 'co2', {'tau': '8'}, 2.0, 4)
    >>> parse_arm("plain").slug
    'plain'
    """
    method, _, rest = text.strip().partition(":")
    if not _NAME.fullmatch(method):
        raise InputError(f"--arm {text!r}: write METHOD:option=value,..., as in co2:tau=8")
    pairs = [part.partition("=") for part in rest.split(",") if part.strip()]
    options = dict(sorted((key.strip(), value.strip()) for key, _, value in pairs))
    if len(options) < len(pairs) or not all(key and value for key, value in options.items()):
        raise InputError(f"--arm {text!r}: each option is written once and as option=value, as in co2:tau=8")
    own: dict[str, Any] = {}
    for key in [key for key in options if key in _OWN]:
        value = options[key]
        low, high, form = _LIMITS.get(key, (0, 0, ""))
        try:
            own[key] = _OWN[key](value)
            good = not form or low <= own[key] <= high
        except ValueError:
            good = False
        if not good:
            raise InputError(f"--arm {text}: {key}={value} is not {form}")
    if "corpus" in own:
        get_recipe(own["corpus"])
    if own.get("order", REVERSE) not in ("ascending", REVERSE, RESEED):
        raise UnknownNameError(f"order of --arm {text}:", own["order"], ("ascending", REVERSE, RESEED))
    if own.get("wiring", STANDARD) not in (STANDARD, LADDER):
        raise UnknownNameError(f"wiring of --arm {text}:", own["wiring"], (STANDARD, LADDER))
    if own.get("wiring", STANDARD) == LADDER and (method not in ALONE or "bits" in own):
        raise InputError(f"--arm {text}: wiring={LADDER} is only for {' and '.join(ALONE)}, without bits")
    if "split" in own and method != BEHAVIOUR:
        raise InputError(f"--arm {text}: split is an option of behaviour alone; leave it out")
    if own.get("split", "time") not in SPLITS:
        raise UnknownNameError(f"split of --arm {text}:", own["split"], SPLITS)
    knobs = {key: value for key, value in options.items() if key not in _OWN}
    if method in ALONE and knobs:
        raise UnknownNameError(f"option of --arm {text}:", next(iter(knobs)), sorted(_OWN))
    written = ",".join(f"{key}={value}" for key, value in options.items())
    return Arm(method, knobs, **{"ranks": ranks, **own}, name=f"{method}:{written}" if written else method)


def arm_corpus(arm: Arm, corpus: Corpus) -> Corpus:
    """Return what an arm is trained on.

    Raises
    ------
    InputError
        When the arm needs a recipe or families, which a user's text has not, or films.
    """
    if arm.method == BEHAVIOUR:
        if not isinstance(corpus, FilmCorpus):
            raise InputError(f"--arm {arm.name}: only the films corpus has behaviour; add --corpus films")
        corpus = corpus.with_behaviour(arm.split)
    if not arm.corpus and arm.clients is None:
        return corpus
    if not isinstance(corpus, Generated):
        raise InputError(f"--arm {arm.name}: your own text has no recipes or families; use the generated corpus")
    return Generated(arm.corpus or corpus.recipe, corpus.seed)


def client_recipes(recipe: Recipe, ranks: int, concentration: float, seed: int) -> list[Recipe]:
    """Return a mixture of families for each client: equal tokens each, and together the recipe's own mixture.

    Drawn from Dirichlet(concentration * shares), then scaled by turns to rows that add to 1 and columns whose mean is
    the recipe's share (iterative proportional fitting), so that an arm with clients sees no other corpus than one
    without.

    Source: Hsu et al., "Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification",
    arXiv 1909.06335, section 3; the scaling is ours.

    Parameters
    ----------
    recipe : Recipe
    ranks : int
    concentration : float
        The smaller, the less clients have in common.
    seed : int

    Examples
    --------
    >>> parts = client_recipes(get_recipe("clean"), 2, 0.5, 0)
    >>> sum(part.shares["facts"] for part in parts) / 2
    0.3...
    """
    shares = np.array(list(recipe.shares.values()))
    rng = np.random.default_rng([seed, 4, ranks])
    mixture: Array = rng.dirichlet(concentration * shares, size=ranks) + FAMILY_FLOOR
    for _ in range(1000):
        mixture *= shares / mixture.mean(axis=0)
        mixture /= mixture.sum(axis=1, keepdims=True)
    return [
        Recipe(recipe.name, dict(zip(recipe.shares, map(float, row), strict=True)), recipe.shuffled) for row in mixture
    ]
