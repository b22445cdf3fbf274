"""Which texts an inversion attacks, what is shared with what it gives back, and their tables."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from itertools import product
from typing import Any

import numpy as np
import polars as pl

from mia_batch.errors import CorpusError
from mia_batch.schemas import Inversion, InversionTexts
from mia_batch.stats.intervals import ratio_difference, ratio_of_sums


def texts_table(
    attacked: pl.DataFrame,
    recovered: Mapping[str, list[str]],
    counts: Mapping[str, pl.DataFrame],
) -> pl.DataFrame:
    asked = attacked.filter(pl.col("reason").is_null())
    others = attacked.filter(pl.col("reason").is_not_null())
    shared, true, answered = (
        pl.col(f"{name}_tokens") for name in ("shared", "true", "recovered")
    )
    parts = []
    for method, texts in recovered.items():
        tokens = counts[method]["tokens"].struct
        found = asked.with_columns(
            pl.Series("recovered", texts, dtype=pl.String),
            *(
                tokens[name].alias(f"{name}_tokens")
                for name in ("true", "recovered", "shared")
            ),
            exact=tokens["exact"],
        ).with_columns(
            precision=pl.when(answered > 0).then(shared / answered),
            recall=shared / true,
            f1=2 * shared / (true + answered),
        )
        parts += [each.with_columns(method=pl.lit(method)) for each in (found, others)]
    columns = InversionTexts.create_empty().schema
    table = pl.concat(parts, how="diagonal_relaxed").sort("row", maintain_order=True)
    return table.select(pl.col(name).cast(dtype) for name, dtype in columns.items())


def part(documents: pl.DataFrame, share: float, seed: int) -> pl.DataFrame:
    """Add ``cluster`` and ``auxiliary``: whether a text is the attacker's own.

    Clusters are texts of one group and equal texts, with all of their groups. In the
    order of a hash each becomes auxiliary that brings their number nearer to the share.
    """
    clustered = documents.with_columns(cluster=_clusters(documents))
    named = clustered.group_by("cluster").agg(
        pl.col("group").fill_null("").min(), pl.col("text").min(), n=pl.len()
    )
    key = str(seed).encode()[:64]  # as many bytes as the hash takes
    names = (
        f"{group}\0{text}".encode()
        for group, text in named["group", "text"].iter_rows()
    )
    hashes = pl.Series([blake2b(name, key=key).hexdigest() for name in names])
    order = named.with_columns(hash=hashes).sort("hash", "cluster")
    left, chosen = share * documents.height, []
    for n in order["n"]:
        chosen.append(n < 2 * left)
        left -= n * chosen[-1]
    taken = order.select("cluster", auxiliary=pl.Series(chosen))
    if taken["auxiliary"].all() or not taken["auxiliary"].any():
        raise CorpusError(
            f"the texts are {named.height} groups, which cannot be dealt out to an"
            " attacker and an attacked side; give texts of more groups"
        )
    return clustered.join(taken, on="cluster", how="left", maintain_order="left")


def deal(
    documents: pl.DataFrame,
    share: float,
    seed: int,
    encode: Callable[[list[str]], list[list[int]]],
    most: int,
) -> pl.DataFrame:
    """Say of documents who is auxiliary (see `part`), and by a ``reason`` who cannot be used."""
    is_text = pl.col("text").str.contains(r"\S").fill_null(value=False)
    there, empty = documents.filter(is_text), documents.filter(~is_text)
    if there.is_empty():
        raise CorpusError("there is no text in the data; give some")
    lengths = pl.Series(map(len, encode(there["text"].to_list())), dtype=pl.Int64)
    too_long = pl.format(
        "the text has {} tokens, more than max_tokens, which is {}",
        lengths,
        pl.lit(most),
    )
    dealt = part(there, share, seed).with_columns(
        reason=pl.when(lengths > most)
        .then(too_long)
        .when(lengths == 0)
        .then(pl.lit("the decoder's tokenizer finds no token in the text"))
    )
    empty = empty.with_columns(
        auxiliary=pl.lit(False), reason=pl.lit("there is no text")
    )
    return pl.concat([dealt, empty], how="diagonal").sort("row")


def _clusters(documents: pl.DataFrame) -> pl.Series:
    """Give what hangs together by group or by text one number."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    text = documents["text"].rank("dense").to_numpy().astype(np.intp) - 1
    group = documents["group"].rank("dense").cast(pl.Int64) - 1
    n_texts = int(text.max()) + 1
    edges = (
        text[group.is_not_null().to_numpy()],
        n_texts + group.drop_nulls().to_numpy(),
    )
    size = n_texts + documents.height
    graph = coo_array((np.ones(len(edges[0])), edges), shape=(size, size))
    _, component = connected_components(graph, directed=False)
    return pl.Series("cluster", component[text]).rank("dense").cast(pl.Int64) - 1


_REST = r"[\p{L}\p{M}]*(?:['-][\p{L}\p{M}]+)*"
_TITLES = r"\b(Mr|Mrs|Ms|Dr|St|Prof|Mme|Mlle|Sr|Sra)\."
_OPENING = r"[\s'\"_*\p{Pi}\p{Ps}\p{Pd}\x{A1}\x{BF}]*"
_STARTS = rf"(^|[.!?:\x{{2026}}]['\"_*\p{{Pf}}\p{{Pe}}]*\s){_OPENING}\p{{L}}{_REST}"
_FIRST_PERSON = ["I", "I'm", "I'll", "I've", "I'd"]


def names_in(text: pl.Expr) -> pl.Expr:
    """List the names in a text: words with a first capital letter that begin no sentence."""
    # It finds proper nouns of English and its like, misses those that begin a sentence,
    # and takes other capitals (headings, German nouns) for names. The point of "Mr."
    # ends no sentence.
    plain = text.str.replace_all("\u2019", "'", literal=True).str.replace_all(
        _TITLES, "$1"
    )
    inner = plain.str.replace_all(_STARTS, "$1 ")
    words = inner.str.extract_all(rf"\b\p{{Lu}}{_REST}")
    return words.list.filter(~pl.element().is_in(_FIRST_PERSON))


def numbers_in(text: pl.Expr) -> pl.Expr:
    return text.str.extract_all(r"\p{Nd}+(?:[.,]\p{Nd}+)*")


UNITS = ("tokens", "token_sets", "names", "numbers")


def overlaps(
    true: Sequence[str],
    recovered: Sequence[str],
    encode: Callable[[Sequence[str]], list[list[int]]],
) -> pl.DataFrame:
    """Count what texts and recovered texts share: a struct of each of `UNITS`, a row a pair."""
    # As multisets, and as sets, as the released code of GEIA counts them
    # (eval_classification.py); but without special tokens: an end of text that both
    # sides have was not recovered.
    listed = [_listed(texts, encode) for texts in (true, recovered)]
    pairs = {unit: zip(*(side[unit] for side in listed), strict=True) for unit in UNITS}
    counts = {unit: [_compared(*pair) for pair in both] for unit, both in pairs.items()}
    return pl.DataFrame(counts, schema=dict.fromkeys(UNITS, _COUNTS))


_COUNTS = pl.Struct(
    {
        "true": pl.UInt32,
        "recovered": pl.UInt32,
        "shared": pl.UInt32,
        "exact": pl.Boolean,
    }
)


def inferred(true: pl.Series, said: pl.Series) -> pl.Series:
    """Count attributes that are inferred as `overlaps` counts units; null ones are not there."""
    right = (true == said).fill_null(value=False)
    there = true.is_not_null()
    counts = pl.DataFrame(
        {"true": there, "recovered": there, "shared": right, "exact": right}
    )
    return counts.to_struct().cast(_COUNTS)


def _listed(
    texts: Sequence[str], encode: Callable[[Sequence[str]], list[list[int]]]
) -> dict[str, list[list[Any]]]:
    column, text = (
        pl.DataFrame({"text": texts}, schema={"text": pl.String}),
        pl.col("text"),
    )
    found = column.select(names=names_in(text), numbers=numbers_in(text)).to_dict(
        as_series=False
    )
    tokens = encode(texts)
    return {
        "tokens": tokens,
        "token_sets": [sorted(set(ids)) for ids in tokens],
        **found,
    }


def _compared(true: list[Any], recovered: list[Any]) -> dict[str, int | bool]:
    shared = (Counter(true) & Counter(recovered)).total()
    exact = true == recovered
    return {
        "true": len(true),
        "recovered": len(recovered),
        "shared": shared,
        "exact": exact,
    }


_HAS = pl.col("true") > 0
_METRICS = {
    "precision": (pl.col("shared"), pl.col("recovered")),
    "recall": (pl.col("shared"), pl.col("true")),
    "f1": (2 * pl.col("shared"), pl.col("true") + pl.col("recovered")),
    "exact": (pl.col("exact") & _HAS, _HAS),
}
"""Numerator and denominator of each text: the figure is the ratio of their sums over texts."""

_VERSUS = (
    ("inverter", "nearest"),
    ("inverter", "shuffled"),
    ("shuffled", "unconditional"),
)


def figures(
    found: Mapping[str, pl.DataFrame], cluster: pl.Series, n_unscored: int
) -> pl.DataFrame:
    r"""Make the table `Inversion` of what each method shares with the texts (see `overlaps`).

    Of \(t_i\) true, \(r_i\) recovered and \(s_i\) shared units of text i, micro
    precision is \(\sum s_i / \sum r_i\), micro recall \(\sum s_i / \sum t_i\), and
    micro F1, their harmonic mean, \(2 \sum s_i / \sum (t_i + r_i)\). Exact matches are
    a share of the texts that have such a unit.

    PrivLM-Bench, Li et al. 2024 (arXiv:2311.04044), appendix B.3.
    """
    codes = cluster.rank("dense").to_numpy().astype(np.intp) - 1
    rows = []
    units = next(iter(found.values())).columns
    for unit, (metric, parts) in product(units, _METRICS.items()):
        sums = {
            method: (
                np.stack(
                    [
                        frame[unit].struct.unnest().select(each).to_series()
                        for each in parts
                    ]
                ).astype(np.float64)
            )
            for method, frame in found.items()
        }
        pairs: list[tuple[str, str | None]] = [
            *((method, None) for method in found),
            *_VERSUS,
        ]
        for method, versus in pairs:
            one, other = sums[method], None if versus is None else sums[versus]
            counts = (one[1] > 0) | (other is not None and other[1] > 0)
            _, some = np.unique(codes[counts], return_inverse=True)
            if other is None:
                ratio = ratio_of_sums(one[:, counts], some)
            else:
                ratio = ratio_difference(one[:, counts], other[:, counts], some)
            row: dict[str, Any] = ratio.interval._asdict() if ratio.interval else {}
            row = {"method_of_interval": row.pop("method", None)} | row
            row |= {"method": method, "versus": versus, "unit": unit, "metric": metric}
            row |= {
                "value": ratio.value,
                "reason": ratio.reason,
                "n_unscored": n_unscored,
            }
            row |= {
                "n_texts": int(counts.sum()),
                "n_clusters": int(some.max(initial=-1)) + 1,
            }
            rows.append(row)
    return pl.DataFrame(rows, schema=Inversion.create_empty().schema)


def sentence(found: pl.DataFrame, n_auxiliary: int) -> str:
    rows = found.filter(unit="tokens", metric="f1").to_dicts()
    f1 = {(row["method"], row["versus"]): row for row in rows}
    own = f1["inverter", None]
    if own["value"] is None:
        return f"Nothing can be said of the embeddings: {own['reason']}."
    limits = f"no interval: {own['reason']}"
    if own["low"] is not None:
        limits = f"95 % interval {own['low']:.3f} to {own['high']:.3f}"
    guess = found.filter(pl.col("versus").is_null(), unit="attribute", metric="exact")
    right = dict(guess.select(pl.col("method").cast(pl.String), "value").iter_rows())
    near, other = (f"{f1[name, None]['value']:.3f}" for name in ("nearest", "shuffled"))
    leads, gains = (
        (f1["inverter", name]["low"] or 0) > 0 for name in ("nearest", "shuffled")
    )
    said = (
        f"A decoder that was trained on {n_auxiliary:,} auxiliary texts and their"
        " embeddings gives back tokens of the others with a micro F1 of"
        f" {own['value']:.3f} ({limits}); the auxiliary text of the nearest embedding"
        f" has {near}, the decoder with the embedding of another text {other}."
    )
    if right.get("inverter") is not None:
        said += (
            f" A classifier infers the attribute of {right['inverter']:.3f} of them;"
            f" the most frequent one is that of {right['unconditional']:.3f}."
        )
    so = "nothing shows that it reads the embeddings at all; another attacker might"
    if gains and leads:
        so = (
            "the embeddings give away words of texts that the attacker never saw. It is"
            " a lower bound of what they hold: a larger decoder, or more texts, may"
            " give back more"
        )
    elif gains:
        so = (
            "it reads the embeddings, but nothing shows that it gives back more than a"
            " search among known texts; another attacker might"
        )
    return f"{said} So {so}."
