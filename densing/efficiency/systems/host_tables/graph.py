"""Graphs, neighbourhoods drawn from them, and the graph of films and people with the facts about its films.

Source of the sampling: Hamilton, Ying and Leskovec, arXiv 1706.02216 (GraphSAGE); of the films: Wikidata (CC0) in the
wheel bokeh_sampledata 2026.1, read where it lies.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from densing.core import FRESH, InputError, film_rows, named_stream
from densing.efficiency.systems.host_tables.tables import HostTable, open_table

Ids = NDArray[np.int64]
FANOUTS = (25, 10)
"""Neighbours sampled for every seed, then for every node found."""
PEOPLE = ("Director", "Writer", "Cast")
FACTS = ("Genre", "Language", "Country", "Rating", "Year")


class Graph(NamedTuple):
    """A graph by the neighbours of each node.

    Attributes
    ----------
    starts : int64 (n + 1,)
        Where the neighbours of each node begin.
    neighbours : int64 (e,)
    """

    starts: Ids
    neighbours: Ids

    @classmethod
    def undirected(cls, pairs: Ids, nodes: int) -> Graph:
        """Return the graph of pairs (e, 2), each of them both ways.

        Examples
        --------
        >>> Graph.undirected(np.array([[0, 2], [1, 2]]), 3).neighbours.tolist()
        [2, 2, 0, 1]
        """
        source, target = np.concatenate([pairs, pairs[:, ::-1]]).T
        order = np.lexsort((target, source))
        starts = np.concatenate([[0], np.cumsum(np.bincount(source, minlength=nodes))])
        return cls(starts, target[order])


def draw_neighbours(graph: Graph, nodes: Ids, fanout: int, rng: np.random.Generator) -> tuple[Ids, Ids]:
    """Return distinct neighbours of each node, all of them where it has no more than ``fanout``.

    Returns
    -------
    counts : int64 (n,)
        Drawn of each node.
    drawn : int64 (sum of counts,)

    Examples
    --------
    >>> star = Graph.undirected(np.array([[0, 1], [0, 2], [0, 3]]), 4)
    >>> counts, drawn = draw_neighbours(star, np.array([0, 3]), 2, np.random.default_rng(0))
    >>> counts.tolist(), drawn[2:].tolist()
    ([2, 1], [0])
    """
    first = graph.starts[nodes]
    degrees = graph.starts[nodes + 1] - first
    owner = np.repeat(np.arange(len(nodes)), degrees)
    place = np.arange(len(owner)) - np.repeat(np.cumsum(degrees) - degrees, degrees)
    # Neighbours of a node in an order of chance; the first so many are a draw without repetition.
    shuffled = np.lexsort((rng.random(len(owner)), owner))
    chosen = shuffled[place < fanout]
    return np.minimum(degrees, fanout), graph.neighbours[np.repeat(first, degrees) + place][chosen]


class Block(NamedTuple):
    """A layer of a neighbourhood: the sources of each of its targets, which are the first of its nodes.

    Attributes
    ----------
    counts : int64 (targets,)
    sources : int64 (sum of counts,)
        By their place among the nodes that the layer reads.
    """

    counts: Ids
    sources: Ids


class Neighbourhood(NamedTuple):
    """Input of a step.

    Attributes
    ----------
    nodes : int64 (n,)
        Whose rows are needed, the seeds first.
    blocks : tuple of Block
        The one that reads the rows first.
    """

    nodes: Ids
    blocks: tuple[Block, ...]


def draw_neighbourhood(
    graph: Graph, seeds: Ids, rng: np.random.Generator, fanouts: Sequence[int] = FANOUTS
) -> Neighbourhood:
    """Draw neighbours of seeds, neighbours of these, and so on.

    Examples
    --------
    >>> path = Graph.undirected(np.array([[0, 1], [1, 2]]), 3)
    >>> draw_neighbourhood(path, np.array([0]), np.random.default_rng(0)).nodes.tolist()
    [0, 1, 2]
    """
    nodes, blocks = seeds, list[Block]()
    for fanout in fanouts:
        counts, drawn = draw_neighbours(graph, nodes, fanout, rng)
        reached = np.concatenate([nodes, np.setdiff1d(drawn, nodes)])
        order = np.argsort(reached)
        blocks.insert(0, Block(counts, order[np.searchsorted(reached, drawn, sorter=order)]))
        nodes = reached
    return Neighbourhood(nodes, tuple(blocks))


class Task(NamedTuple):
    """A graph, a table with a row per node, and the labels to learn.

    Attributes
    ----------
    graph : Graph
    table : HostTable
    labels : int64 (n,)
        Of nodes; -1 where there is none.
    train, held_out : int64
        Nodes to learn from, and to test on.
    """

    graph: Graph
    table: HostTable
    labels: Ids
    train: Ids
    held_out: Ids

    @property
    def classes(self) -> int:
        """Labels there are."""
        return int(self.labels.max()) + 1

    def seeds(self, count: int, seed: int, step: int) -> Ids:
        """Return the nodes of a step, drawn without repetition."""
        return named_stream(seed, "seeds", str(step)).choice(self.train, min(count, len(self.train)), replace=False)

    def neighbourhood(self, nodes: Ids, seed: int, step: int) -> Neighbourhood:
        """Return the neighbourhood of a step's nodes."""
        return draw_neighbourhood(self.graph, nodes, named_stream(seed, "neighbours", str(step)))


def films_task(width: int = 602, table: str = "") -> Task:
    """Return films and their people: is a film fresh or rotten?

    A person is joined to every film that they directed, wrote or played in. A film's row holds its facts (genres,
    languages, countries, rating, decade, words of its title), hashed into the columns; what people made of it is not
    in it. A person's row is empty but for the first column: how many films, as a logarithm.

    Parameters
    ----------
    width : int
        Columns of the rows.
    table : str
        A ``.npy`` file with a row per film and person instead of these, in the order of films (by number) and people
        (by name).

    Raises
    ------
    UnavailableError
        Without the wheel.
    InputError
        When its file cannot be read, or the table has another number of rows.
    """
    columns = ", ".join(f'"{column}"' for column in (*PEOPLE, *FACTS, "Title"))
    films = film_rows(f"select ID, {columns} from omdb order by ID")
    meters = dict(film_rows('select ID, "Meter" from tomatoes where "Meter" is not null'))
    worked = [{name for text in film[1:4] for name in (text or "").split(", ") if name} for film in films]
    number = {name: len(films) + at for at, name in enumerate(sorted(set().union(*worked)))}
    pairs = np.array([(film, number[name]) for film, names in enumerate(worked) for name in sorted(names)])
    nodes = len(films) + len(number)
    graph = Graph.undirected(pairs, nodes)
    labels = np.full(nodes, -1)
    labels[: len(films)] = [meters[film[0]] >= FRESH if film[0] in meters else -1 for film in films]
    order = named_stream(0, "a fifth to test on").permutation(np.flatnonzero(labels >= 0))
    held_out, train = np.sort(order[: len(order) // 5]), np.sort(order[len(order) // 5 :])
    if table:
        rows = open_table(table)
        if len(rows.rows) != nodes:
            raise InputError(f"{table}: {len(rows.rows):,} rows for {nodes:,} films and people; give one each")
    else:
        rows = HostTable(_facts(films, graph, width), name="the films' facts")
    return Task(graph, rows, labels, train, held_out)


def _facts(films: Sequence[Sequence[object]], graph: Graph, width: int) -> NDArray[np.float32]:
    rows = np.zeros((len(graph.starts) - 1, width), np.float32)
    for at, film in enumerate(films):
        genre, language, country, rating, year, title = film[4:]
        words = [f"{kind} {word}" for kind, text in (("genre", genre), ("language", language), ("country", country))
                 for word in str(text or "").split(", ") if word]  # fmt: skip
        words += [
            f"rating {rating}",
            f"decade {str(year)[:3]}",
            *(f"title {word}" for word in str(title).lower().split()),
        ]
        rows[at, [zlib.crc32(word.encode()) % width for word in words]] = 1.0
    rows[len(films) :, 0] = np.log1p(np.diff(graph.starts)[len(films) :])
    return rows
