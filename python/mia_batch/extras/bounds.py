"""Bounds of the probability that one sample comes near to the true continuation of a passage."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil, inf, log1p
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import polars as pl

from mia_batch.cli.show import rank_passages
from mia_batch.errors import SettingsError
from mia_batch.evidence.engines.registry import available_memory, end_token_ids
from mia_batch.evidence.request import Decoding, EngineSpec
from mia_batch.models.tokens import Tokenizer
from mia_batch.models.weights import quiet
from mia_batch.pipeline.custody import record_file
from mia_batch.pipeline.folder import AuditFolder
from mia_batch.pipeline.stages.questions import reopen_audit
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
"""Returns the probabilities of the next token after each of some texts, texts by vocabulary.

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
        """The row of the empty text."""
        places = np.arange(self.truth.size + 1, dtype=np.float64)[None]
        return places if self.edits else np.where(places, inf, 0.0)

    def add_tokens(self, rows: Floats, tokens: Ints) -> Floats:
        """Return rows of texts with one token more; -1 is one that ``truth`` does not have."""
        extended = np.full(rows.shape, inf)
        extended[:, 1:] = rows[:, :-1] + (self.truth != tokens[:, None])
        if not self.edits:
            return extended
        places = np.arange(rows.shape[1])
        gaps = np.minimum(extended, rows + 1) - places
        return np.asarray(np.minimum.accumulate(gaps, axis=1) + places)

    def can_come(self, rows: Floats, n: int) -> Flags:
        """Return which texts of ``n`` tokens some continuation brings near."""
        n_ahead = n - np.arange(rows.shape[1])
        fewest_edits = np.maximum(n_ahead, 0) if self.ends else np.abs(n_ahead)
        return np.asarray((rows + fewest_edits).min(1) <= self.within)

    def split(
        self, rows: Floats, n: int, mass: Floats, next_tokens: Floats
    ) -> tuple[Floats, Floats]:
        """Split the probability of texts of ``n`` tokens by their next token.

        Returns that of each text with each token, 0 where it cannot come near, and that
        of each text that ends here and is near.
        """
        unlike = np.full(len(rows), -1)
        can_come = self.can_come(self.add_tokens(rows, unlike), n + 1)
        continued: Floats = (mass * can_come)[:, None] * next_tokens
        reach = self.within if self.edits else 0
        for token in np.unique(self.truth[max(0, n - reach) : n + reach + 1]):
            extended = self.add_tokens(rows, np.full_like(unlike, token))
            can_come = self.can_come(extended, n + 1)
            continued[:, token] = mass * can_come * next_tokens[:, token]
        ends = list(self.ends)
        continued[:, ends] = 0.0
        n_missing = np.arange(rows.shape[1])[::-1]
        is_near = (rows + n_missing).min(1) <= self.within
        return continued, mass * is_near * next_tokens[:, ends].sum(1)


class _RandomTexts:
    """Texts drawn among those that the search left out; arrays have an entry for each draw."""

    def __init__(
        self,
        near: Nearness,
        n: int,
        rng: np.random.Generator,
    ) -> None:
        self._near = near
        self._rng = rng
        self._rows = np.zeros((n, near.truth.size + 1))
        self.weight = np.zeros(n)  # 0: there is no text
        self.ended_near = np.zeros(n)  # the probability of it
        self.parent = np.zeros(n, np.int64)
        self.token = np.zeros(n, np.int64)

    def split(self, n: int, next_tokens: Floats) -> tuple[Ints, Floats]:
        """Split by the next token; return which are live, and their probability with each."""
        live = np.flatnonzero(self.weight)
        continued, ended = self._near.split(
            self._rows[live], n, self.weight[live], next_tokens
        )
        self.ended_near[live] += ended
        self.weight[live] = continued.sum(1)
        return live, continued

    def add_tokens(
        self,
        live: Ints,
        continued: Floats,
        first_parent: int,
    ) -> None:
        self.parent[live] = first_parent + np.arange(live.size)
        tokens = [_choose(row, self._rng, 1)[0] for row in continued]
        self.token[live] = tokens
        rows = self._near.add_tokens(self._rows[live], self.token[live])
        self._rows[live] = rows

    def restart(
        self, rows: Floats, pruned: Floats, n_vocabulary: int, left_out: float
    ) -> None:
        """Begin some anew among texts that are pruned now, by their share in all left out."""
        lots = self._rng.random(self.weight.size)
        new = np.flatnonzero(lots * left_out < float(pruned.sum()))
        entries = _choose(pruned, self._rng, new.size)
        parents, tokens = np.divmod(entries, n_vocabulary)
        self.parent[new] = parents
        self.token[new] = tokens
        self._rows[new] = self._near.add_tokens(rows[parents], tokens)
        self.weight[new] = 1
        self.ended_near[new] = 0


class BoundedProbability(NamedTuple):
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
    model: NextTokens,
    near: Nearness,
    *,
    width: int,
    draws: int,
    seed: int = 0,
) -> BoundedProbability:
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
    rng = np.random.default_rng(seed)
    size = near.truth.size
    random_texts = _RandomTexts(near, draws, rng)
    rows, mass = near.first, np.ones(1)
    lower = left_out = 0.0
    tokens_asked = -1  # of the prompt alone no token is asked about
    parents: Ints | None = None
    tokens: Ints | None = None
    for n in range(size):
        next_tokens = model(parents, tokens)
        tokens_asked += len(next_tokens)
        continued, ended = near.split(rows, n, mass, next_tokens[: len(rows)])
        lower += float(ended.sum())
        live, live_continued = random_texts.split(n, next_tokens[len(rows) :])
        if n == size - 1:
            lower += float(continued.sum())
            break
        random_texts.add_tokens(live, live_continued, len(rows))
        pruned = continued.ravel()  # once the likeliest are taken out of it
        likeliest = _find_largest(pruned, width)
        mass = pruned[likeliest]
        pruned[likeliest] = 0.0
        # A draw is of all that was left out so far: it begins anew with the share of
        # what is new.
        left_out += float(pruned.sum())
        n_vocabulary = continued.shape[1]
        random_texts.restart(rows, pruned, n_vocabulary, left_out)
        parents, tokens = np.divmod(likeliest, n_vocabulary)
        rows = near.add_tokens(rows[parents], tokens)
        is_live = random_texts.weight > 0
        parents = np.append(parents, random_texts.parent[is_live])
        tokens = np.append(tokens, random_texts.token[is_live])
        if not parents.size:
            break
    near_share = random_texts.ended_near + random_texts.weight
    n_hits = int((rng.random(draws) < near_share).sum())
    likely_share = clopper_pearson(n_hits, draws).high if draws else 1.0
    mean_share = near_share.mean() if draws else 0.0
    down, up = (1 - ROUNDING) ** size, (1 + ROUNDING) ** size
    return BoundedProbability(
        lower=lower * down,
        upper=min((lower + left_out) * up, 1.0),
        likely_upper=min((lower + likely_share * left_out) * up, 1.0),
        estimate=lower + mean_share * left_out,
        tokens_asked=tokens_asked,
    )


def _find_largest(values: Floats, n: int) -> Ints:
    """Find the largest ``n`` values above 0."""
    threshold = np.partition(np.append(values, np.zeros(n)), -n)[-n]
    return np.flatnonzero((values > 0) & (values >= threshold))[:n]


def _choose(mass: Floats, rng: np.random.Generator, n: int) -> Ints:
    """Draw ``n`` entries by their mass."""
    sums = mass.cumsum()
    if not n or not sums[-1]:
        return np.zeros(n, np.int64)
    entries = sums.searchsorted(rng.random(n) * sums[-1], side="right")
    # Rounding may go beyond
    return np.asarray(np.minimum(entries, sums.searchsorted(sums[-1])))


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
    """Return what asks a model for next tokens under a decoding, and keeps what it has read."""
    import torch

    from mia_batch.evidence.engines.logits import keep_likeliest

    cache: Any = None
    n_tokens = len(prompt) - 1

    @torch.inference_mode()
    def compute_next_tokens(parents: Ints | None, tokens: Ints | None, /) -> Floats:
        nonlocal cache, n_tokens
        ids = torch.tensor([prompt])
        if tokens is not None:
            ids = torch.from_numpy(tokens)[:, None]
        n_tokens += 1
        if check is not None:
            check(len(ids), n_tokens)
        if parents is not None:
            if not hasattr(cache, "reorder_cache"):
                raise SettingsError(
                    "model: it keeps no cache of texts that bounds can branch"
                )
            cache.reorder_cache(torch.from_numpy(parents).to(model.device))
        output = model.model(
            ids.to(model.device), past_key_values=cache, use_cache=True
        )
        cache = output.past_key_values
        logits = output.logits[:, -1].float() / decoding.temperature
        likeliest = keep_likeliest(logits, decoding.top_k, decoding.top_p)
        return np.asarray(likeliest.double().softmax(-1).cpu().numpy())

    return compute_next_tokens


def _load(audit: Audit) -> Pretrained:
    from mia_batch.evidence.engines.transformers import Pretrained

    run = audit.run
    source = audit.find_source("target")
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
_ENTRY_BYTES = 44  # of a text's probabilities: as computed, split, and sorted
# Bytes of the smallest tensor that is given back when it is freed
_KEPT_BY_GLIBC = 32 << 20


class _TooWideError(SettingsError):
    pass


def memory_needed(model: Pretrained, texts: int, n_tokens: int) -> int:
    """Return the bytes of a search where the model is, measured by ``benches.bounds memory``."""
    from mia_batch.evidence.engines.transformers import count_keys_and_values

    config = model.model.config.get_text_config()
    cache_bytes = 4 * texts * n_tokens * count_keys_and_values(config)
    not_given_back = 2 * config.num_hidden_layers * _KEPT_BY_GLIBC
    if model.on_cpu and cache_bytes < not_given_back:
        cache_bytes *= 2
    return cache_bytes + _ENTRY_BYTES * texts * model.vocab_size


def memory_check(model: Pretrained, width: int) -> CheckMemory:
    """Return what refuses a search that is too wide for the memory that is free by now."""
    import torch

    free = available_memory()
    memory = "memory"
    if model.device.type == "cuda":
        free = torch.cuda.mem_get_info(model.device)[0]
        memory = "the GPU's memory"

    def check(texts: int, n_tokens: int) -> None:
        needed = memory_needed(model, texts, n_tokens)
        if needed > free:
            widest = width * free // memory_needed(model, 2 * width, n_tokens)
            raise _TooWideError(
                f"--width {width:,} takes {needed / 2**30:,.1f} GiB of {memory}, and "
                f"{free / 2**30:,.1f} GiB are free; give at most {max(1, widest):,}"
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
    audit = reopen_audit(run, observer, **changed)
    settings = audit.settings
    if not settings.temperature:
        raise SettingsError(
            "temperature= is 0, at which one sample is as all; give one above 0"
        )
    targets = rank_passages(run, passages).select("target_id")
    model = _load(audit)
    tokenizer = Tokenizer.load(settings.model, settings.revision)
    ends = _find_ends(model, tokenizer)
    n_tokens = settings.extraction_tokens
    most_context = settings.extraction_prefix_tokens
    check = memory_check(model, width)
    check(2 * width, most_context + 2)  # as many draws as texts: few passages need less
    decoding = {
        name: getattr(settings, name) for name in ("temperature", "top_k", "top_p")
    }
    labels = {
        **decoding,
        "distance": distance,
        "within": within,
        "n_tokens": n_tokens,
    }
    texts = _read_passages(run, targets)
    rows: list[dict[str, Any]] = []
    for number, (target_id, prefix, text) in enumerate(texts.iter_rows(), start=1):
        observer.step(f"bounding passage {number} of {texts.height}")
        row = {"target_id": target_id, **labels}
        rows.append(row)
        special, context, true_tokens = tokenizer.encode_after(prefix or "", text or "")
        prompt = special + context[-most_context:]
        has_room = len(prompt) + n_tokens <= model.max_model_len
        if len(true_tokens) < n_tokens or not prompt or not has_room:
            row["reason"] = (
                f"its prompt has {len(prompt)} tokens and its true text"
                f" {len(true_tokens)}; bounds need at least 1 and {n_tokens}, together"
                f" at most {model.max_model_len}"
            )
            continue
        near = Nearness(
            truth=np.array(true_tokens[:n_tokens]),
            within=within,
            edits=distance == "levenshtein",
            ends=ends,
        )
        next_tokens = reader(model, Decoding(**decoding), prompt, check)
        try:
            row |= bound(
                next_tokens, near, width=width, draws=width, seed=settings.seed
            )._asdict()
        except _TooWideError as error:  # other passages keep their bounds
            row["reason"] = str(error)
    table = pl.DataFrame(rows, schema=Bounds.create_empty().schema)
    with AuditFolder(run.folder).held():
        sink(table, run.path("bounds"), Bounds)
        record_file(run, "bounds.parquet")
    return table


def _find_ends(model: Pretrained, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Find the tokens at which a sample ends."""
    configs = model.model.config.get_text_config(), model.model.generation_config
    config_ends = [config and config.eos_token_id for config in configs]
    ends = end_token_ids(tokenizer.end, *config_ends)
    return tuple(end for end in sorted(ends) if end < model.vocab_size)


def _read_passages(run: Run, targets: pl.DataFrame) -> pl.DataFrame:
    """Read what stands before the true continuation of targets, and this, in their order."""
    is_wanted = pl.col("target_id").is_in(targets["target_id"].implode())
    rows = run.scan("targets").filter(is_wanted).collect(engine="streaming")
    text = extraction(rows)["text"].fill_null(rows["reference"])
    texts = rows.select("target_id", "prefix", text=text)
    return targets.join(texts, on="target_id", maintain_order="left")
