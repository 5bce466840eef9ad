"""Items of several stores, each with features of its own: one numbering for all, by name or by a hash of it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from densing.core import Array, InputError
from densing.efficiency.systems.prox_csl.parts import Part


class Store(NamedTuple):
    """Items that lie together.

    Attributes
    ----------
    features : sparse array or array of shape (n, d)
    labels : array of shape (n,)
    names : sequence of str
        One of each feature; a feature of the same name in two stores is the same.
    """

    features: Any
    labels: Array
    names: Sequence[str]


class Union(NamedTuple):
    """Stores under one numbering of features.

    Attributes
    ----------
    parts : list of Part
    names : list of str
        Of each feature; where names were hashed, all that share a number, with ``|`` between them.
    collisions : int
        Names that share their number with another.
    bytes : int
        What agreeing on the numbering takes: nothing where names are hashed, else every store's names to the main one,
        and each name's number back.
    """

    parts: list[Part]
    names: list[str]
    collisions: int
    bytes: int


def unite(stores: Sequence[Store], buckets: int | None = None) -> Union:
    """Return stores under one numbering of their features.

    Parameters
    ----------
    stores : sequence of Store
    buckets : int, optional
        Number features by a hash of their name, below this; no name then has to leave its store. Names that fall
        together are one feature, and are counted.

    Raises
    ------
    InputError
        No store, a store without items, names that are not one per feature, or a name twice in a store.

    Examples
    --------
    >>> first = Store(np.array([[1.0, 2.0]]), np.array([1]), ["cat", "dog"])
    >>> second = Store(np.array([[3.0]]), np.array([0]), ["dog"])
    >>> both = unite([first, second])
    >>> both.names, both.parts[1].features.toarray().tolist(), both.collisions
    (['cat', 'dog'], [[0.0, 3.0]], 0)
    """
    if not stores:
        raise InputError("no stores; give one or more")
    if buckets is not None and buckets < 1:
        raise InputError(f"{buckets} buckets for hashed names; give 1 or more")
    for place, store in enumerate(stores):
        items, width = np.shape(store.features)
        if not items:
            raise InputError(f"store {place}: no items; leave it out")
        if width != len(store.names):
            raise InputError(f"store {place}: {width} features and {len(store.names)} names; each feature needs one")
        if len(set(store.names)) != width:
            twice = next(name for name in store.names if list(store.names).count(name) > 1)
            raise InputError(f"store {place}: feature {twice!r} occurs twice; names must differ")
    known = sorted({name for store in stores for name in store.names})
    if buckets is None:
        numbers, width = {name: place for place, name in enumerate(known)}, len(known)
        labels = known
        # A name as text, and its number as four bytes.
        talk = sum(len(name.encode("utf-8", "surrogatepass")) + 4 for store in stores[1:] for name in store.names)
    else:
        numbers, width, talk = {name: _bucket(name, buckets) for name in known}, buckets, 0
        shared: dict[int, list[str]] = {}
        for name in known:
            shared.setdefault(numbers[name], []).append(name)
        labels = ["|".join(shared.get(number, [])) for number in range(buckets)]
    collisions = len(known) - len(set(numbers.values()))
    parts = []
    for store in stores:
        entries = sparse.coo_array(store.features)
        columns = np.array([numbers[name] for name in store.names], dtype=np.int64)
        # Entries of one row that fall into one column are added up.
        placed = sparse.coo_array((entries.data, (entries.row, columns[entries.col])), shape=(entries.shape[0], width))
        parts.append(Part(placed.tocsc(), store.labels))
    return Union(parts, labels, collisions, talk)


def _bucket(name: str, buckets: int) -> int:
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") % buckets
