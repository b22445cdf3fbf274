"""Texts that an inversion attacks, what it gives back of them, and the tables of both."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from itertools import product
from typing import Any

import numpy as np
import polars as pl

from mia_batch.errors import CorpusError
from mia_batch.schemas import Inversion, InversionTexts
from mia_batch.stats import Codes, Floats
from mia_batch.stats.intervals import ratio_difference, ratio_of_sums


def build_texts_table(
    attacked: pl.DataFrame,
    recovered: Mapping[str, list[str]],
    counts: Mapping[str, pl.DataFrame],
) -> pl.DataFrame:
    """Build the table `InversionTexts`: what each method gave back of each attacked text."""
    usable = attacked.filter(pl.col("reason").is_null())
    unusable = attacked.filter(pl.col("reason").is_not_null())
    n_true = pl.col("true_tokens")
    n_recovered = pl.col("recovered_tokens")
    n_shared = pl.col("shared_tokens")
    frames = []
    for method, texts in recovered.items():
        tokens = counts[method]["tokens"].struct
        rows = usable.with_columns(
            pl.Series("recovered", texts, dtype=pl.String),
            tokens["true"].alias("true_tokens"),
            tokens["recovered"].alias("recovered_tokens"),
            tokens["shared"].alias("shared_tokens"),
            exact=tokens["exact"],
        ).with_columns(
            precision=pl.when(n_recovered > 0).then(n_shared / n_recovered),
            recall=n_shared / n_true,
            f1=2 * n_shared / (n_true + n_recovered),
        )
        method_name = pl.lit(method)
        frames.append(rows.with_columns(method=method_name))
        frames.append(unusable.with_columns(method=method_name))
    table = pl.concat(frames, how="diagonal_relaxed").sort("row", maintain_order=True)
    schema = InversionTexts.create_empty().schema
    return table.select(pl.col(name).cast(dtype) for name, dtype in schema.items())


def add_auxiliary(documents: pl.DataFrame, share: float, seed: int) -> pl.DataFrame:
    """Add ``cluster`` and ``auxiliary``: whether a text is the attacker's own.

    Clusters are texts of one group and equal texts, with all of their groups. In the
    order of a hash each becomes auxiliary that brings their number nearer to the share.
    """
    clustered = documents.with_columns(cluster=_clusters(documents))
    clusters = clustered.group_by("cluster").agg(
        pl.col("group").fill_null("").min(), pl.col("text").min(), n=pl.len()
    )
    key = str(seed).encode()[:64]  # as many bytes as the hash takes
    hashes = [
        blake2b(f"{group}\0{text}".encode(), key=key).hexdigest()
        for group, text in clusters["group", "text"].iter_rows()
    ]
    clusters = clusters.with_columns(hash=pl.Series(hashes)).sort("hash", "cluster")
    n_missing = share * documents.height
    is_auxiliary = []
    for n_texts in clusters["n"]:
        is_nearer = n_texts < 2 * n_missing
        is_auxiliary.append(is_nearer)
        if is_nearer:
            n_missing -= n_texts
    if all(is_auxiliary) or not any(is_auxiliary):
        raise CorpusError(
            f"the texts are {clusters.height} groups, which cannot be dealt out to an"
            " attacker and an attacked side; give texts of more groups"
        )
    sides = clusters.select("cluster", auxiliary=pl.Series(is_auxiliary))
    return clustered.join(sides, on="cluster", how="left", maintain_order="left")


def prepare_documents(
    documents: pl.DataFrame,
    share: float,
    seed: int,
    encode: Callable[[list[str]], list[list[int]]],
    max_tokens: int,
) -> pl.DataFrame:
    """Add which texts are auxiliary, and the ``reason`` where a text cannot be used."""
    is_text = pl.col("text").str.contains(r"\S").fill_null(value=False)
    texts = documents.filter(is_text)
    if texts.is_empty():
        raise CorpusError("there is no text in the data; give some")
    lengths = pl.Series(map(len, encode(texts["text"].to_list())), dtype=pl.Int64)
    too_long = pl.format(
        "the text has {} tokens, more than max_tokens, which is {}",
        lengths,
        pl.lit(max_tokens),
    )
    no_token = pl.lit("the decoder's tokenizer finds no token in the text")
    texts = add_auxiliary(texts, share, seed).with_columns(
        reason=pl.when(lengths > max_tokens)
        .then(too_long)
        .when(lengths == 0)
        .then(no_token)
    )
    empty = documents.filter(~is_text).with_columns(
        auxiliary=pl.lit(False), reason=pl.lit("there is no text")
    )
    return pl.concat([texts, empty], how="diagonal").sort("row")


def _clusters(documents: pl.DataFrame) -> pl.Series:
    """Return the number of each text's cluster: what a group or a text connects."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    text = documents["text"].rank("dense").to_numpy().astype(np.intp) - 1
    group = documents["group"].rank("dense").cast(pl.Int64) - 1
    n_texts = int(text.max()) + 1
    # A graph of texts and groups
    text_nodes = text[group.is_not_null().to_numpy()]
    group_nodes = n_texts + group.drop_nulls().to_numpy()
    size = n_texts + documents.height
    graph = coo_array(
        (np.ones(len(text_nodes)), (text_nodes, group_nodes)), shape=(size, size)
    )
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


def count_overlaps(
    true: Sequence[str],
    recovered: Sequence[str],
    encode: Callable[[Sequence[str]], list[list[int]]],
) -> pl.DataFrame:
    """Count what texts and recovered texts share: a struct of each of `UNITS`, a row a pair."""
    # As multisets, and as sets, as the released code of GEIA counts them
    # (eval_classification.py); but without special tokens: an end of text that both
    # sides have was not recovered.
    true_units = _list_units(true, encode)
    recovered_units = _list_units(recovered, encode)
    counts = {}
    for unit in UNITS:
        pairs = zip(true_units[unit], recovered_units[unit], strict=True)
        counts[unit] = [_compare(*pair) for pair in pairs]
    return pl.DataFrame(counts, schema=dict.fromkeys(UNITS, _COUNTS))


_COUNTS = pl.Struct(
    {
        "true": pl.UInt32,
        "recovered": pl.UInt32,
        "shared": pl.UInt32,
        "exact": pl.Boolean,
    }
)


def count_inferred(true: pl.Series, guessed: pl.Series) -> pl.Series:
    """Count attributes as `count_overlaps` counts units; null ones are not there."""
    is_right = (true == guessed).fill_null(value=False)
    has_value = true.is_not_null()
    counts = pl.DataFrame(
        {
            "true": has_value,
            "recovered": has_value,
            "shared": is_right,
            "exact": is_right,
        }
    )
    return counts.to_struct().cast(_COUNTS)


def _list_units(
    texts: Sequence[str], encode: Callable[[Sequence[str]], list[list[int]]]
) -> dict[str, list[list[Any]]]:
    """List the units of each text, by their kinds."""
    frame = pl.DataFrame({"text": texts}, schema={"text": pl.String})
    text = pl.col("text")
    words = frame.select(names=names_in(text), numbers=numbers_in(text))
    tokens = encode(texts)
    return {
        "tokens": tokens,
        "token_sets": [sorted(set(ids)) for ids in tokens],
        **words.to_dict(as_series=False),
    }


def _compare(true: list[Any], recovered: list[Any]) -> dict[str, int | bool]:
    return {
        "true": len(true),
        "recovered": len(recovered),
        "shared": (Counter(true) & Counter(recovered)).total(),
        "exact": true == recovered,
    }


_HAS_UNIT = pl.col("true") > 0
_METRICS = {
    "precision": (pl.col("shared"), pl.col("recovered")),
    "recall": (pl.col("shared"), pl.col("true")),
    "f1": (2 * pl.col("shared"), pl.col("true") + pl.col("recovered")),
    "exact": (pl.col("exact") & _HAS_UNIT, _HAS_UNIT),
}
"""Numerator and denominator of each text: the figure is the ratio of their sums over texts."""

_VERSUS = (
    ("inverter", "nearest"),
    ("inverter", "shuffled"),
    ("shuffled", "unconditional"),
)


def build_figures(
    counts: Mapping[str, pl.DataFrame], cluster: pl.Series, n_unscored: int
) -> pl.DataFrame:
    r"""Build the table `Inversion` of what each method shares with the texts.

    Of \(t_i\) true, \(r_i\) recovered and \(s_i\) shared units of text i (see
    `count_overlaps`), micro precision is \(\sum s_i / \sum r_i\), micro recall
    \(\sum s_i / \sum t_i\), and micro F1, their harmonic mean,
    \(2 \sum s_i / \sum (t_i + r_i)\). Exact matches are a share of the texts that have
    such a unit.

    PrivLM-Bench, Li et al. 2024 (arXiv:2311.04044), appendix B.3.
    """
    codes = cluster.rank("dense").to_numpy().astype(np.intp) - 1
    pairs: list[tuple[str, str | None]] = [(method, None) for method in counts]
    pairs += _VERSUS
    units = next(iter(counts.values())).columns
    rows = []
    for unit, metric in product(units, _METRICS):
        ratios = {
            method: _ratio_parts(frame[unit], metric)
            for method, frame in counts.items()
        }
        for method, versus in pairs:
            subtracted = None if versus is None else ratios[versus]
            row = _figure(ratios[method], subtracted, codes)
            row |= {
                "method": method,
                "versus": versus,
                "unit": unit,
                "metric": metric,
                "n_unscored": n_unscored,
            }
            rows.append(row)
    return pl.DataFrame(rows, schema=Inversion.create_empty().schema)


def _ratio_parts(counts: pl.Series, metric: str) -> Floats:
    """Return numerator and denominator of each text, a row each."""
    frame = counts.struct.unnest()
    columns = [frame.select(column).to_series() for column in _METRICS[metric]]
    return np.stack(columns).astype(np.float64)


def _figure(ratio: Floats, subtracted: Floats | None, codes: Codes) -> dict[str, Any]:
    """Compute a ratio over texts, or its difference from another, with its interval."""
    has_unit = ratio[1] > 0
    if subtracted is not None:
        has_unit = has_unit | (subtracted[1] > 0)
    _, cluster = np.unique(codes[has_unit], return_inverse=True)
    if subtracted is None:
        figure = ratio_of_sums(ratio[:, has_unit], cluster)
    else:
        figure = ratio_difference(ratio[:, has_unit], subtracted[:, has_unit], cluster)
    interval = figure.interval._asdict() if figure.interval else {}
    return {
        "method_of_interval": interval.pop("method", None),
        **interval,
        "value": figure.value,
        "reason": figure.reason,
        "n_texts": int(has_unit.sum()),
        "n_clusters": int(cluster.max(initial=-1)) + 1,
    }


def sentence(figures: pl.DataFrame, n_auxiliary: int) -> str:
    """Return what the figures say, and what they do not."""
    f1 = {
        (row["method"], row["versus"]): row
        for row in figures.filter(unit="tokens", metric="f1").iter_rows(named=True)
    }
    inverter = f1["inverter", None]
    if inverter["value"] is None:
        return f"Nothing can be said of the embeddings: {inverter['reason']}."
    limits = f"no interval: {inverter['reason']}"
    if inverter["low"] is not None:
        limits = f"95 % interval {inverter['low']:.3f} to {inverter['high']:.3f}"
    result = (
        f"A decoder that was trained on {n_auxiliary:,} auxiliary texts and their"
        " embeddings gives back tokens of the others with a micro F1 of"
        f" {inverter['value']:.3f} ({limits}); the auxiliary text of the nearest"
        f" embedding has {f1['nearest', None]['value']:.3f}, the decoder with the"
        f" embedding of another text {f1['shuffled', None]['value']:.3f}."
    )
    attributes = figures.filter(
        pl.col("versus").is_null(), unit="attribute", metric="exact"
    )
    accuracies = attributes.select(pl.col("method").cast(pl.String), "value")
    accuracy = dict(accuracies.iter_rows())
    if accuracy.get("inverter") is not None:
        result += (
            f" A classifier infers the attribute of {accuracy['inverter']:.3f} of them;"
            f" the most frequent one is that of {accuracy['unconditional']:.3f}."
        )
    beats_nearest = (f1["inverter", "nearest"]["low"] or 0) > 0
    reads_embeddings = (f1["inverter", "shuffled"]["low"] or 0) > 0
    conclusion = (
        "nothing shows that it reads the embeddings at all; another attacker might"
    )
    if reads_embeddings and beats_nearest:
        conclusion = (
            "the embeddings give away words of texts that the attacker never saw. It is"
            " a lower bound of what they hold: a larger decoder, or more texts, may"
            " give back more"
        )
    elif reads_embeddings:
        conclusion = (
            "it reads the embeddings, but nothing shows that it gives back more than a"
            " search among known texts; another attacker might"
        )
    return f"{result} So {conclusion}."
