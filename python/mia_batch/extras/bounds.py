"""Bounds of the probability that one sample comes near to the true continuation of a passage."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil, inf, log1p
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import polars as pl

from mia_batch.cli.show import strongest
from mia_batch.errors import SettingsError
from mia_batch.evidence.engines.registry import available_memory, end_token_ids
from mia_batch.evidence.request import Decoding, EngineSpec
from mia_batch.models.tokens import Tokenizer
from mia_batch.models.weights import quiet
from mia_batch.pipeline.custody import record_file
from mia_batch.pipeline.stages.questions import resumed
from mia_batch.prompts import extraction
from mia_batch.schemas import Bounds
from mia_batch.stats import Flags, Floats, Ints
from mia_batch.stats.intervals import clopper_pearson
from mia_batch.tables import sink

if TYPE_CHECKING:
    from mia_batch.evidence.engines.transformers import Pretrained
    from mia_batch.observer import Observer
    from mia_batch.pipeline import Run
    from mia_batch.pipeline.context import Audit

# The search, which knows a model only by the probabilities of its next tokens.

ROUNDING = 2.0**-13
"""What one token's probability may be off by, relative to itself: logits of float32 in batches of
other sizes, and a sampler's softmax. Sums of float64 are off by far less."""

NextTokens: TypeAlias = "Callable[[Ints | None, Ints | None], Floats]"
"""Gives the probabilities of the next token after each of some texts, texts by vocabulary.

It is given the texts by the numbers of their parents among those of the call before,
and the token that is added to each; the first call, with None and None, is about the
prompt alone.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nearness:
    """Samples of as many tokens as ``truth`` that differ from it by at most ``within`` edits.

    ``edits`` are those of Levenshtein; without them tokens are compared place by place
    (Hamming). A sample that ends before, at one of the tokens ``ends``, misses the
    tokens that are left, one edit each. A text is known by its row of the table of
    Wagner and Fischer (1974): the edits between it and each beginning of ``truth``.
    """

    truth: Ints
    within: int
    edits: bool = False
    ends: tuple[int, ...] = ()

    @property
    def first(self) -> Floats:
        places = np.arange(self.truth.size + 1, dtype=np.float64)[None]
        return places if self.edits else np.where(places, inf, 0.0)

    def after(self, rows: Floats, tokens: Ints) -> Floats:
        """Rows of texts with one token more; -1 is a token that ``truth`` does not have."""
        found = np.full(rows.shape, inf)
        found[:, 1:] = rows[:, :-1] + (self.truth != tokens[:, None])
        if not self.edits:
            return found
        places = np.arange(rows.shape[1])
        kept = np.minimum(found, rows + 1) - places
        return np.asarray(np.minimum.accumulate(kept, axis=1) + places)

    def can_come(self, rows: Floats, n: int) -> Flags:
        """Which texts of ``n`` tokens some continuation brings near."""
        ahead = n - np.arange(rows.shape[1])
        least = np.maximum(ahead, 0) if self.ends else np.abs(ahead)
        return np.asarray((rows + least).min(1) <= self.within)

    def split(
        self, rows: Floats, n: int, mass: Floats, next_tokens: Floats
    ) -> tuple[Floats, Floats]:
        """Split the probability of texts of ``n`` tokens by their next token.

        Returns that of each text with each token, 0 where it cannot come near, and that
        of each text that ends here and is near.
        """
        unlike, ends = np.full(len(rows), -1), list(self.ends)
        other = self.can_come(self.after(rows, unlike), n + 1)
        found: Floats = (mass * other)[:, None] * next_tokens
        reach = self.within if self.edits else 0
        for token in np.unique(self.truth[max(0, n - reach) : n + reach + 1]):
            can_come = self.can_come(self.after(rows, unlike * 0 + token), n + 1)
            found[:, token] = mass * can_come * next_tokens[:, token]
        found[:, ends] = 0.0
        is_near = (rows + np.arange(rows.shape[1])[::-1]).min(1) <= self.within
        return found, mass * is_near * next_tokens[:, ends].sum(1)


class Found(NamedTuple):
    """Bounds of a probability, which lies between ``lower`` and ``upper`` in any case.

    It is at most ``likely_upper`` unless an event of 2.5 % happened; ``estimate`` is
    right on average.
    """

    lower: float
    upper: float
    likely_upper: float
    estimate: float
    tokens_asked: int


def bound(
    model: NextTokens, near: Nearness, *, width: int, draws: int, seed: int = 0
) -> Found:
    """Search the texts that can come near, the likeliest ``width`` of each length.

    The lower bound adds up those that came near, the upper one adds all that was left
    out though some continuation of it may. ``draws`` of what was left out are continued
    at random among the texts that can come near; the probability of keeping to these is
    a draw's weight. So nothing is left to chance that is known (Rao 1945, Blackwell
    1947), and the mean weight estimates the share that comes near. A draw that counts
    with the probability of its weight is a plain sample: how many count bounds the
    share (Clopper and Pearson 1934).

    Cooper et al. (2026), arXiv:2603.24917, give lower bounds by beams under the
    constraints of decoding; frontiers that bound from above are those of Suresh et al.
    (2025), arXiv:2512.05439. Their texts were read in part: the table of edits, texts
    that end before, the draws and the rounding are ours.
    """
    rng, size = np.random.default_rng(seed), near.truth.size
    rows, mass, lower, left_out, asked = near.first, np.ones(1), 0.0, 0.0, -1
    drawn, weight, came = np.zeros((draws, size + 1)), np.zeros(draws), np.zeros(draws)
    parent, token = np.zeros((2, draws), np.int64)
    parents: Ints | None = None
    tokens: Ints | None = None
    for n in range(size):
        said, on = model(parents, tokens), np.flatnonzero(weight)
        asked += len(said)
        found, ended = near.split(rows, n, mass, said[: len(rows)])
        lower += float(ended.sum())
        further, ended = near.split(drawn[on], n, weight[on], said[len(rows) :])
        came[on] += ended
        weight[on] = further.sum(1)
        if n == size - 1:
            lower += float(found.sum())
            break
        parent[on] = len(rows) + np.arange(on.size)
        token[on] = [_choose(each, rng, 1)[0] for each in further]
        drawn[on] = near.after(drawn[on], token[on])
        flat = found.ravel()
        least = np.partition(np.append(flat, np.zeros(width)), -width)[-width]
        kept = np.flatnonzero((flat > 0) & (flat >= least))[:width]
        mass, flat[kept] = flat[kept], 0.0
        # A draw is of all that was left out so far: it begins anew with the share of
        # what is new.
        left_out += (pruned := float(flat.sum()))
        anew = np.flatnonzero(rng.random(draws) * left_out < pruned)
        parent[anew], token[anew] = np.divmod(
            _choose(flat, rng, anew.size), found.shape[1]
        )
        drawn[anew], weight[anew], came[anew] = (
            near.after(rows[parent[anew]], token[anew]),
            1,
            0,
        )
        parents, tokens = np.divmod(kept, found.shape[1])
        rows = near.after(rows[parents], tokens)
        parents, tokens = (
            np.append(own, each[weight > 0])
            for own, each in ((parents, parent), (tokens, token))
        )
        if not parents.size:
            break
    came += weight
    n_hits = int((rng.random(draws) < came).sum())
    share = clopper_pearson(n_hits, draws).high if draws else 1.0
    down, up = (1 - ROUNDING) ** size, (1 + ROUNDING) ** size
    return Found(
        lower=lower * down,
        upper=min((lower + left_out) * up, 1.0),
        likely_upper=min((lower + share * left_out) * up, 1.0),
        estimate=lower + (came.mean() if draws else 0.0) * left_out,
        tokens_asked=asked,
    )


def _choose(mass: Floats, rng: np.random.Generator, n: int) -> Ints:
    sums = mass.cumsum()
    if not n or not sums[-1]:
        return np.zeros(n, np.int64)
    chosen = sums.searchsorted(rng.random(n) * sums[-1], side="right")
    # Rounding may go beyond
    return np.asarray(np.minimum(chosen, sums.searchsorted(sums[-1])))


def samples_needed(probability: float, p: float) -> float:
    """Count the samples of which one comes near with probability ``p``; infinite if none can.

    n of (n, p)-discoverable extraction: Hayes et al. (2024), arXiv:2410.19482.
    """
    if probability <= 0:
        return inf
    return 1 if probability >= p else ceil(log1p(-p) / log1p(-probability))


# The strongest passages of a run, bounded with its model.


def reader(
    model: Pretrained,
    decoding: Decoding,
    prompt: list[int],
    check: CheckMemory | None = None,
) -> NextTokens:
    """Ask a model for next tokens under a decoding; it keeps what it has read of each text."""
    import torch

    from mia_batch.evidence.engines.transformers import keep_likeliest

    cache: Any = None
    n_tokens = len(prompt) - 1

    @torch.inference_mode()
    def read(parents: Ints | None, tokens: Ints | None, /) -> Floats:
        nonlocal cache, n_tokens
        ids = (
            torch.tensor([prompt])
            if tokens is None
            else torch.from_numpy(tokens)[:, None]
        )
        n_tokens += 1
        if check is not None:
            check(len(ids), n_tokens)
        if parents is not None:
            if not hasattr(cache, "reorder_cache"):
                raise SettingsError(
                    "model: it keeps no cache of texts that bounds can branch"
                )
            cache.reorder_cache(torch.from_numpy(parents).to(model.device))
        said = model.model(ids.to(model.device), past_key_values=cache, use_cache=True)
        cache, logits = said.past_key_values, said.logits[:, -1].float()
        kept = keep_likeliest(
            logits / decoding.temperature, decoding.top_k, decoding.top_p
        )
        return np.asarray(kept.double().softmax(-1).cpu().numpy())

    return read


def _load(audit: Audit) -> Pretrained:
    from mia_batch.evidence.engines.transformers import Pretrained

    run, source = audit.run, audit.source("target")
    recorded = run.manifest.models["target"]["source"]
    if source != recorded or source["digest"] is None:
        raise SettingsError(
            f"bounds need the model of {run.folder} as it was, on this machine: the"
            f" run's is {recorded['name']!r} with digest {recorded['digest']}, here is"
            f" {source['digest']}"
        )
    name, revision = str(source["name"]), source["revision"]
    spec = EngineSpec(
        engine="transformers",
        kind="logprobs",
        model=name,
        revision=revision,
        dtype="float32",
    )
    with quiet():
        model = Pretrained(spec)
    if model.prompted is not None:
        raise SettingsError(
            f"model: {name!r} has virtual tokens; bounds need a model without"
        )
    return model


CheckMemory: TypeAlias = (
    "Callable[[int, int], None]"  # of how many texts, of how many tokens
)
_ENTRY_BYTES = 44  # of a text's probabilities: what is said, split, and sorted
# Bytes of the smallest tensor that is given back when it is freed
_KEPT_BY_GLIBC = 32 << 20


class _TooWideError(SettingsError):
    pass


def memory_needed(model: Pretrained, texts: int, n_tokens: int) -> int:
    """Bytes that a search takes where the model is, as measured by ``benches.bounds memory``."""
    from mia_batch.evidence.engines.transformers import count_keys_and_values

    config = model.model.config.get_text_config()
    kept = 4 * texts * n_tokens * count_keys_and_values(config)
    if model.on_cpu and kept < 2 * config.num_hidden_layers * _KEPT_BY_GLIBC:
        kept *= 2
    return kept + _ENTRY_BYTES * texts * model.vocab_size


def memory_check(model: Pretrained, width: int) -> CheckMemory:
    """Refuse what is too wide for the memory, a GPU's or this machine's, that is free by now."""
    import torch

    free, where = available_memory(), "memory"
    if model.device.type == "cuda":
        free, where = torch.cuda.mem_get_info(model.device)[0], "the GPU's memory"

    def check(texts: int, n_tokens: int) -> None:
        needed = memory_needed(model, texts, n_tokens)
        if needed > free:
            most = max(1, width * free // memory_needed(model, 2 * width, n_tokens))
            raise _TooWideError(
                f"--width {width:,} takes {needed / 2**30:,.1f} GiB of {where}, and "
                f"{free / 2**30:,.1f} GiB are free; give at most {most:,}"
            )

    return check


def bound_run(
    run: Run,
    observer: Observer,
    changed: Mapping[str, Any],
    *,
    passages: int = 20,
    distance: str = "levenshtein",
    within: int = 5,
    width: int = 10,
) -> pl.DataFrame:
    """Bound the strongest passages of a run; the table ``bounds`` in its folder keeps it."""
    audit = resumed(run, observer, **changed)
    settings = audit.settings
    if not settings.temperature:
        raise SettingsError(
            "temperature= is 0, at which one sample is as all; give one above 0"
        )
    found = strongest(run, passages).select("target_id")
    model, tokenizer = _load(audit), Tokenizer.load(settings.model, settings.revision)
    of_decoding = {
        each: getattr(settings, each) for each in ("temperature", "top_k", "top_p")
    }
    n, most = settings.extraction_tokens, settings.extraction_prefix_tokens
    configs = model.model.config.get_text_config(), model.model.generation_config
    ends = end_token_ids(
        tokenizer.end, *(each and each.eos_token_id for each in configs)
    )
    check = memory_check(model, width)
    check(2 * width, most + 2)  # as many draws as texts: few passages need less
    possible = tuple(end for end in sorted(ends) if end < model.vocab_size)
    how = {**of_decoding, "distance": distance, "within": within, "n_tokens": n}
    # The strongest passages: what stands before their true continuation, and this.
    own = pl.col("target_id").is_in(found["target_id"].implode())
    targets = run.scan("targets").filter(own).collect(engine="streaming")
    texts = targets.select(
        "target_id",
        "prefix",
        text=extraction(targets)["text"].fill_null(targets["reference"]),
    )
    texts, rows = (
        found.join(texts, on="target_id", maintain_order="left"),
        list[dict[str, Any]](),
    )
    for number, (target_id, prefix, text) in enumerate(texts.iter_rows(), start=1):
        observer.step(f"bounding passage {number} of {texts.height}")
        special, before, after = tokenizer.encode_after(prefix or "", text or "")
        prompt, row = special + before[-most:], {"target_id": target_id, **how}
        if len(after) < n or not prompt or len(prompt) + n > model.max_model_len:
            row["reason"] = (
                f"its prompt has {len(prompt)} tokens and its true text {len(after)};"
                f" bounds need at least 1 and {n}, together at most"
                f" {model.max_model_len}"
            )
        else:
            truth, read = (
                np.array(after[:n]),
                reader(model, Decoding(**of_decoding), prompt, check),
            )
            is_edits = distance == "levenshtein"
            near = Nearness(truth=truth, within=within, edits=is_edits, ends=possible)
            try:
                row |= bound(
                    read, near, width=width, draws=width, seed=settings.seed
                )._asdict()
            except _TooWideError as error:  # what other passages have is kept
                row["reason"] = str(error)
        rows.append(row)
    table = pl.DataFrame(rows, schema=Bounds.create_empty().schema)
    with run.held():
        sink(table, run.path("bounds"), Bounds)
        record_file(run, "bounds.parquet")
    return table
