"""What each method says that the texts under attack were: the inverter, and what it must beat."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mia_batch.inversion.recovering import recover

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

__all__ = ["attack", "of_others"]


def attack(
    inverter: Path,
    auxiliary: Sequence[str],
    known: NDArray[np.float32],
    under_attack: NDArray[np.float32],
    cluster: NDArray[np.intp],
    *,
    tokens: int,
    seed: int,
) -> dict[str, list[str]]:
    """Return what each method of the table `Inversion` gives back, a text for each embedding.

    ``known`` are the embeddings of the auxiliary texts. Decoding is greedy, so that the embedding
    of another text gives what that text gave.
    """
    from sklearn.metrics import pairwise_distances_argmin

    asked = np.vstack([under_attack, known.mean(0, keepdims=True)])
    *recovered, constant = recover(inverter, asked, tokens)
    nearest = pairwise_distances_argmin(under_attack, known, metric="cosine")
    return {
        "inverter": recovered,
        "nearest": [auxiliary[i] for i in nearest],
        "shuffled": [recovered[i] for i in of_others(cluster, seed)],
        "unconditional": [constant] * len(recovered),
    }


def of_others(cluster: NDArray[np.intp], seed: int) -> NDArray[np.intp]:
    """Give each text the number of a text of another cluster, each of them once.

    Where one cluster has more than half of the texts, some of its texts get one of their own.
    """
    codes, place = np.unique(cluster, return_inverse=True)
    drawn = np.random.default_rng(seed).permutation(len(codes))
    order = np.argsort(drawn[place], kind="stable")
    other = np.empty_like(order)
    other[order] = np.roll(order, np.bincount(place).max())
    return other
