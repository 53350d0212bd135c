"""First neighbours: for each embedding the closest other one, exact, in bounded memory.

All pairs are looked at once, a tile of the upper triangle at a time; a tile serves its rows and its columns. Neighbours
are chosen by float32 products (float64 where the embeddings are), their distances then computed in float64. Of equally
close ones the first counts. As many threads as torch has share the tiles out, and none waits for another.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from fedvisage.core.errors import FedVisageError, nearest

Metric = Literal["euclidean", "squared-euclidean", "cosine"]
Search = Literal["exact", "approximate"]
TILE = 1024
ROWS = 4096


class Neighbours(NamedTuple):
    """The first neighbour of each embedding: its position (N,) and distance (N,)."""

    position: NDArray[np.int64]
    distance: NDArray[np.float64]


def first_neighbours(
    x: ArrayLike,
    *,
    metric: Metric = "euclidean",
    normalise: bool = True,
    search: Search = "exact",
) -> Neighbours:
    """The closest other embedding of each of x (N, d), N at least 2, and its distance.

    `normalise` brings embeddings to unit length first; the metrics then agree on who is closest and differ in the
    distance only. `search="approximate"` uses faiss (the `approximate` extra): see `neighbour_recall`.
    """
    rows = vectors(x, metric, normalise)
    if len(rows) < 2:
        raise FedVisageError("a first neighbour needs at least 2 embeddings")
    return neighbours(rows, metric, search)


def vectors(x: ArrayLike, metric: Metric = "euclidean", normalise: bool = True) -> Tensor:
    """Checked embeddings (N, d), at unit length if wanted or asked for by the metric; never the caller's memory."""
    if metric not in get_args(Metric):
        raise FedVisageError(f"unknown metric '{metric}': {nearest(metric, get_args(Metric))}")
    array: NDArray[Any] = x.detach().cpu().numpy() if isinstance(x, Tensor) else np.asarray(x)
    if array.ndim != 2 or 0 in array.shape or array.dtype.kind not in "fiu":
        raise FedVisageError(f"embeddings are real numbers (N, d), not empty; got {array.dtype} {array.shape}")
    dtype = np.float64 if array.dtype == np.float64 else np.float32
    rows = torch.from_numpy(np.array(array, dtype=dtype, order="C"))
    length = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    bad = int((~length.isfinite()).sum())
    if bad:
        raise FedVisageError(f"{bad} of {len(rows)} embeddings hold NaN, infinite or too large values")
    if normalise or metric == "cosine":
        zero = int((length == 0).sum())
        if zero:
            raise FedVisageError(f"{zero} of {len(rows)} embeddings are zero vectors, which have no direction")
        rows.div_(length)
    return rows


def unit_(rows: Tensor) -> Tensor:
    """Rows (N, d) at unit length, in place; zero rows stay zero."""
    length = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return rows.div_(torch.where(length > 0, length, torch.ones_like(length)))


def neighbours(rows: Tensor, metric: Metric, search: Search = "exact") -> Neighbours:
    """First neighbours of checked rows (N, d), N at least 2; for cosine they are at unit length (or zero)."""
    index = positions(rows, metric, search)
    return Neighbours(index.numpy(), distances(rows, index, metric))


def positions(rows: Tensor, metric: Metric, search: Search) -> Tensor:
    """Position (N,) of each row's first neighbour, for who does not need the distances."""
    if search not in get_args(Search):
        raise FedVisageError(f"unknown search '{search}': {nearest(search, get_args(Search))}")
    return closest(rows, metric) if search == "exact" else approximately_closest(rows, metric)


@torch.no_grad()
def closest(rows: Tensor, metric: Metric) -> Tensor:
    """Position (N,) of the closest other row: the largest x·y, or for Euclid x·y - |x|²/2 - |y|²/2 about the mean."""
    half = None
    if metric != "cosine":
        half = torch.linalg.vecdot(rows, rows) / 2
        if bool((half.max() - half.min()) <= 16 * torch.finfo(half.dtype).eps * half.max()):
            half = None  # all of one length: the largest inner product is the closest
        else:
            rows = rows - rows.mean(dim=0)
            half = torch.linalg.vecdot(rows, rows) / 2
    parts = torch.split(rows, TILE)
    # sets of faces mostly come person by person: with a row's own tile first, few others improve on it
    tiles = [(i, i) for i in range(len(parts))] + list(itertools.combinations(range(len(parts)), 2))
    threads = torch.get_num_threads()
    if threads == 1 or len(parts) < 4:
        return _search(parts, half, tiles)[1]
    with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        found = list(pool.map(lambda own: _search(parts, half, tiles[own::threads]), range(threads)))
    torch.set_num_threads(threads)  # threads that start later ask what was set last
    best, index = found[0]
    for value, position in found[1:]:
        better = torch.where(position < index, value >= best, value > best)
        best, index = torch.where(better, value, best), torch.where(better, position, index)
    return index


def _search(parts: Sequence[Tensor], half: Tensor | None, tiles: Iterable[tuple[int, int]]) -> tuple[Tensor, Tensor]:
    """The largest product of each row within these tiles (N,) and where it is (N,); the first of equals."""
    count = sum(map(len, parts))
    best = parts[0].new_full((count,), -torch.inf)
    index = torch.zeros(count, dtype=torch.int64)
    buffer = parts[0].new_empty(len(parts[0]) ** 2)
    for i, j in tiles:
        row, column, top, left = parts[i], parts[j], i * TILE, j * TILE
        tile = torch.mm(row, column.T, out=buffer[: len(row) * len(column)].view(len(row), len(column)))
        if half is not None:
            tile.sub_(half[top : top + len(row), None]).sub_(half[left : left + len(column)])
        if i == j:
            tile.fill_diagonal_(-torch.inf)
        else:
            _improve(best[left : left + len(column)], index[left : left + len(column)], tile.T, top)
        _improve(best[top : top + len(row)], index[top : top + len(row)], tile, left)
    return best, index


def _improve(best: Tensor, index: Tensor, tile: Tensor, offset: int) -> None:
    """Take into best and index (n,) the maxima of a tile's rows that surpass them, or equal them and come earlier."""
    top = tile.amax(dim=1)
    better = torch.where(index > offset, top >= best, top > best).nonzero().squeeze(1)
    if len(better):
        best[better] = top[better]
        # numpy's argmax of contiguous rows is several times as fast as torch's, and gives the first of equals
        found = tile.index_select(0, better).contiguous().numpy().argmax(axis=1)
        index[better] = torch.from_numpy(found) + offset


def distances(rows: Tensor, index: Tensor, metric: Metric) -> NDArray[np.float64]:
    """Distance (N,) of each row (N, d) to the row at `index` (N,), in float64."""
    parts = []
    for start in range(0, len(rows), ROWS):
        a, b = rows[start : start + ROWS].double(), rows[index[start : start + ROWS]].double()
        if metric == "cosine":
            parts.append(1 - torch.cosine_similarity(a, b, dim=1))
        else:
            square = (a - b).square().sum(dim=1)
            parts.append(square)
    result: NDArray[np.float64] = torch.cat(parts).numpy()
    # PyTorch's root is off by a last bit on some processors, which a threshold would see
    return np.sqrt(result) if metric == "euclidean" else result


def approximately_closest(rows: Tensor, metric: Metric) -> Tensor:
    """Position (N,) of a close other row by faiss's HNSW graph; with several threads it may differ between calls."""
    try:
        import faiss
    except ImportError:
        raise FedVisageError("approximate neighbours need faiss: pip install 'fedvisage[approximate]'") from None
    kind = faiss.METRIC_INNER_PRODUCT if metric == "cosine" else faiss.METRIC_L2
    graph = faiss.IndexHNSWFlat(rows.shape[1], 32, kind)
    graph.hnsw.efConstruction, graph.hnsw.efSearch = 100, 64
    data = rows.float().numpy()
    graph.add(data)
    result = np.empty(len(rows), np.int64)
    for start in range(0, len(rows), ROWS):
        _, found = graph.search(data[start : start + ROWS], 3)
        own = np.arange(start, start + len(found))[:, None]
        usable = (found != own) & (found >= 0)
        alone = ~usable.any(axis=1)
        result[start : start + ROWS] = found[np.arange(len(found)), usable.argmax(axis=1)]
        # an isolated node of the graph finds nobody: any other row is a poor but valid answer
        result[start : start + ROWS][alone] = (own[alone, 0] + 1) % len(rows)
    return torch.from_numpy(result)


@torch.no_grad()
def neighbour_recall(
    x: ArrayLike,
    position: ArrayLike,
    *,
    metric: Metric = "euclidean",
    normalise: bool = True,
    sample: int = 1000,
    rng: np.random.Generator | None = None,
) -> float:
    """Share of `sample` embeddings of x (N, d), drawn by `rng` (evenly spread without it), whose neighbour is closest.

    A neighbour counts when no other is closer by more than one part in 10,000.
    """
    rows, found = vectors(x, metric, normalise), torch.from_numpy(np.asarray(position, dtype=np.int64))
    count = min(sample, len(rows))
    if count < 1 or found.shape != rows.shape[:1] or len(rows) < 2:
        raise FedVisageError(f"no recall of {count} among {len(rows)} embeddings with {tuple(found.shape)} neighbours")
    if rng is None:
        chosen = torch.linspace(0, len(rows) - 1, count, dtype=torch.float64).long()
    else:
        chosen = torch.from_numpy(rng.choice(len(rows), count, replace=False))
    shortest = np.full(count, np.inf)
    for start in range(0, len(rows), ROWS):
        others = torch.cdist(rows[chosen].double(), rows[start : start + ROWS].double())
        others[chosen[:, None] == torch.arange(start, start + others.shape[1])] = torch.inf
        shortest = np.minimum(shortest, others.amin(dim=1).numpy())
    own = torch.linalg.vector_norm(rows[chosen].double() - rows[found[chosen]].double(), dim=1).numpy()
    return float(np.mean(own <= shortest * (1 + 1e-4) + 1e-6))
