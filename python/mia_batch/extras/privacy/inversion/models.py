"""Embedders, whose embeddings are asked for once, and the decoder that gives texts back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import polars as pl
import torch
import transformers
from numpy.typing import NDArray
from torch import nn

from mia_batch.errors import SettingsError, describe_error
from mia_batch.evidence.endpoint import ClientSettings
from mia_batch.extras.tune.jobs import TrainingConfig
from mia_batch.extras.tune.training import fit, pad_rows
from mia_batch.models import weights as checkpoints
from mia_batch.observer import Observer
from mia_batch.stats import Codes
from mia_batch.tables import READ_ERRORS, write_table

_TOKENS_AT_ONCE = 8192
_NO_LIMIT = 10**9

Vectors: TypeAlias = NDArray[np.float32]
Embedded: TypeAlias = Vectors | str
"""An embedding, or the reason why the text has none."""


@dataclass(frozen=True, slots=True)
class Embedder:
    """Embeds texts by a model."""

    identity: str  # of the model
    tokenizer: Any
    max_tokens: int  # of a text that it reads
    # Embeds texts, whose token ids come with them
    embed_rows: Callable[[list[str], list[list[int]]], Sequence[Vectors]]

    def embed(self, texts: Sequence[str]) -> list[Embedded]:
        rows = self.tokenizer(list(texts), truncation=False, verbose=False)["input_ids"]
        results: list[Embedded] = []
        fitting = []
        for place, row in enumerate(rows):
            reason = (
                f"the text has {len(row):,} tokens, more than the {self.max_tokens:,}"
                " that the embedder reads"
            )
            if not row:
                reason = "the embedder's tokenizer finds no token in the text"
            elif len(row) <= self.max_tokens:
                fitting.append(place)
            results.append(reason)
        if fitting:
            fitting_texts = [texts[place] for place in fitting]
            fitting_rows = [rows[place] for place in fitting]
            vectors = self.embed_rows(fitting_texts, fitting_rows)
            for place, vector in zip(fitting, vectors, strict=True):
                results[place] = np.asarray(vector, np.float32)
        return results


@checkpoints.quiet()
def open_embedder(model: str, revision: str | None = None) -> Embedder:
    if Path(model, "modules.json").is_file():
        return _open_sentence_transformer(model, revision)
    return _open_checkpoint(model, revision)


def _open_sentence_transformer(model: str, revision: str | None) -> Embedder:
    from sentence_transformers import SentenceTransformer

    try:
        loaded = SentenceTransformer(model, revision=revision, trust_remote_code=False)
    except Exception as error:  # every library behind it raises its own kind
        raise SettingsError(
            f"the embedder {model!r} cannot be loaded by sentence-transformers "
            f"({describe_error(error)})"
        ) from error
    top = Path(model)
    folders = [top, *sorted(path for path in top.rglob("*") if path.is_dir())]
    parts = (
        f"{folder.relative_to(top)}\0{checkpoints.digest_folder(str(folder))}"
        for folder in folders
    )
    identity = sha256("\n".join(parts).encode()).hexdigest()

    def embed_rows(texts: list[str], _: list[list[int]]) -> Sequence[Vectors]:
        vectors: Any = loaded.encode(texts, show_progress_bar=False)
        return list(vectors)

    # The library would cut texts that are too long without a word.
    max_tokens = loaded.max_seq_length or _NO_LIMIT
    return Embedder(identity, loaded.tokenizer, max_tokens, embed_rows)


def _open_checkpoint(model: str, revision: str | None) -> Embedder:
    """Embed by the mean of last hidden states over a text's tokens, never over padding."""
    # Special tokens that the tokenizer puts around a text count, as they do in
    # PrivLM-Bench and in sentence-transformers. Of causal models, too, it is the mean,
    # not the state of the last token.
    identity = checkpoints.identify_model(model, revision, "any").digest
    loaded = _load(model, revision)
    source, source_revision = checkpoints.tokenizer_source(model, revision)
    tokenizer = transformers.AutoTokenizer.from_pretrained(
        source, revision=source_revision, trust_remote_code=False
    )
    tokenizer.model_max_length = _NO_LIMIT  # lengths are checked against the context

    @torch.inference_mode()
    def mean_states(rows: list[list[int]]) -> Vectors:
        batch = pad_rows([{"input_ids": row, "labels": []} for row in rows])
        ids = batch["input_ids"].to(loaded.device)
        mask = batch["attention_mask"].to(loaded.device)
        outputs = loaded(input_ids=ids, attention_mask=mask, output_hidden_states=True)
        states = outputs.hidden_states[-1].float()
        weights = mask[:, :, None].to(torch.float32)
        means = (states * weights).sum(1) / weights.sum(1)
        return np.asarray(means.cpu().numpy())

    def embed_rows(_: list[str], rows: list[list[int]]) -> Sequence[Vectors]:
        # Those of one length together
        waiting = sorted(range(len(rows)), key=lambda place: len(rows[place]))
        vectors: dict[int, Vectors] = {}
        while waiting:
            longest = len(rows[waiting[-1]])
            at_once = max(1, _TOKENS_AT_ONCE // longest)
            batch = waiting[-at_once:]
            waiting = waiting[:-at_once]
            means = mean_states([rows[place] for place in batch])
            vectors.update(zip(batch, means, strict=True))
        return [vectors[place] for place in range(len(rows))]

    return Embedder(identity, tokenizer, _context(loaded), embed_rows)


def _load(model: str, revision: str | None) -> Any:
    """Load the part of a checkpoint that reads texts; an adapter is put on its base."""
    adapter = checkpoints.read_adapter(model)
    if adapter is not None:
        from mia_batch.evidence.engines.transformers import Pretrained
        from mia_batch.evidence.request import EngineSpec

        if adapter.virtual_tokens:
            raise SettingsError(
                f"the embedder {model!r} is an adapter of virtual tokens, whose states"
                " are no text's; give its base, or an adapter such as LoRA"
            )
        spec = EngineSpec(
            engine="transformers", kind="logprobs", model=model, revision=revision
        )
        return Pretrained(spec).model
    options = {"revision": revision, "trust_remote_code": False}
    try:
        config = transformers.AutoConfig.from_pretrained(model, **options)
        loaded = transformers.AutoModel.from_pretrained(
            model, dtype=torch.float32, **options
        )
    except Exception as error:  # of any library
        raise SettingsError(
            f"the embedder {model!r} cannot be loaded ({describe_error(error)})"
        ) from error
    reader = loaded.get_encoder() if config.is_encoder_decoder else loaded
    return reader.eval().to(_device())


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def _context(model: Any) -> int:
    """Count the tokens that a model reads; of RoBERTa's kind positions are numbered from 2."""
    length = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if length is None:
        return _NO_LIMIT
    embeddings = getattr(model, "embeddings", None)
    padding = getattr(embeddings, "padding_idx", None)
    n_unused = 0 if padding in (None, 0) else padding + 1
    return int(length) - n_unused


_TEXTS_OF_BLOCK = 64


def embed_all(
    texts: Sequence[str],
    embedder: Embedder | ClientSettings,
    folder: Path,
    observer: Observer,
) -> list[Embedded]:
    """Embed texts, equal ones once, or say why not; blocks of them are kept in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(embedder, ClientSettings):
        identity = f"{embedder.base_url.rstrip('/')}\0{embedder.model}"
    else:
        identity = embedder.identity
    results: dict[str, Embedded] = {}
    missing: list[list[str]] = []
    distinct = list(dict.fromkeys(texts))
    for start in range(0, len(distinct), _TEXTS_OF_BLOCK):
        block = distinct[start : start + _TEXTS_OF_BLOCK]
        embedded = _read_block(_block_path(folder, identity, block))
        if embedded is None:
            missing.append(block)
        else:
            results.update(zip(block, embedded, strict=True))

    def store(number: int, embedded: list[Embedded]) -> None:
        block = missing[number]
        _write_block(_block_path(folder, identity, block), embedded)
        results.update(zip(block, embedded, strict=True))
        observer.worked(len(block), 0)

    if missing:
        n_missing = sum(map(len, missing))
        with observer.progress(
            "embedding", done=len(results), left=n_missing, unit="text"
        ):
            if isinstance(embedder, ClientSettings):
                from mia_batch.evidence.endpoint.client import embed_at

                embed_at(embedder, missing, folder / "journal.sqlite", store)
            else:
                for number, block in enumerate(missing):
                    store(number, embedder.embed(block))
    return [results[text] for text in texts]


def _block_path(folder: Path, identity: str, block: Sequence[str]) -> Path:
    hashes = [sha256(part.encode()).hexdigest() for part in (identity, *block)]
    name = sha256("\0".join(hashes).encode()).hexdigest()[:32]
    return folder / f"{name}.parquet"


def _write_block(path: Path, embedded: Sequence[Embedded]) -> None:
    vectors: list[list[float] | None] = []
    reasons: list[str | None] = []
    for result in embedded:
        vectors.append(None if isinstance(result, str) else result.tolist())
        reasons.append(result if isinstance(result, str) else None)
    schema = pl.Schema({"embedding": pl.List(pl.Float32), "reason": pl.String()})
    write_table(pl.DataFrame([vectors, reasons], schema), path)


def _read_block(path: Path) -> list[Embedded] | None:
    """Read the embeddings of a block; None where they are missing or damaged."""
    try:
        rows = pl.read_parquet(path, glob=False).rows()
    except (*READ_ERRORS, OSError):
        return None
    return [
        reason if vector is None else np.array(vector, np.float32)
        for vector, reason in rows
    ]


# An inverter: how it is trained, and what it says that texts were.

_NAME = "inversion"  # of the layer within the decoder
_IGNORED = -100  # label of what is not learnt
_SMALLEST = 1e-6


class Projection(nn.Module):
    """Maps an embedding to where the decoder has the embedding of a first token."""

    # Numbers are first brought to mean 0 and spread 1, so that it learns at one rate
    # whatever the embedder: a linear map, too.

    mean: torch.Tensor
    spread: torch.Tensor

    def __init__(self, size: int, hidden: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("spread", torch.ones(size))
        self.linear = nn.Linear(size, hidden)

    def fit(self, embeddings: Vectors) -> None:
        vectors = torch.from_numpy(embeddings)
        self.mean.copy_(vectors.mean(0))
        self.spread.copy_(vectors.std(0).clamp_min(_SMALLEST))

    def forward(self, embeddings: torch.Tensor) -> torch.Tensor:
        scaled = (embeddings - self.mean) / self.spread
        return nn.functional.linear(scaled, self.linear.weight, self.linear.bias)


def attach_projection(decoder: Any, size: int) -> Projection:
    projection = Projection(size, decoder.get_input_embeddings().embedding_dim)
    setattr(decoder, _NAME, projection.to(decoder.device))
    return projection


def prepend_embedding(
    decoder: Any, inputs: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Put the projected embedding before the tokens of each text; it is no label itself.

    GEIA, Li et al. 2023 (arXiv:2305.03010), section 3.2.
    """
    first = getattr(decoder, _NAME)(inputs["embedding"])[:, None]
    tokens = decoder.get_input_embeddings()(inputs["input_ids"])
    mask = inputs["attention_mask"]
    ones = torch.ones_like(mask[:, :1])
    return {
        "inputs_embeds": torch.cat([first, tokens], 1),
        "attention_mask": torch.cat([ones, mask], 1),
        "labels": torch.cat([ones * _IGNORED, inputs["labels"]], 1),
    }


@checkpoints.quiet()
def load_inverter(folder: Path) -> Any:
    from safetensors.torch import load_file

    prefix = f"{_NAME}."
    weights = {}
    for path in sorted(folder.glob("*.safetensors")):
        for name, weight in load_file(path).items():
            if name.startswith(prefix):
                weights[name.removeprefix(prefix)] = weight
    decoder = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32
    )
    projection = attach_projection(decoder, weights["mean"].numel())
    projection.load_state_dict(weights)
    return decoder.eval().to(_device())


_TEXTS_AT_ONCE = 256


def recover(inverter: Path, embeddings: Vectors, max_tokens: int) -> list[str]:
    """Decode a text for each embedding: the most likely token each time, until one ends it."""
    # By hand, so that no setting that a decoder brings along changes how it decodes.
    decoder = load_inverter(inverter)
    tokenizer = transformers.AutoTokenizer.from_pretrained(inverter)
    texts: list[str] = []
    for start in range(0, len(embeddings), _TEXTS_AT_ONCE):
        batch = torch.from_numpy(embeddings[start : start + _TEXTS_AT_ONCE])
        rows = _decode_greedily(
            decoder, batch.to(decoder.device), max_tokens, tokenizer.eos_token_id
        )
        texts += tokenizer.batch_decode(
            rows, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
    return texts


@torch.inference_mode()
def _decode_greedily(
    decoder: Any, embeddings: torch.Tensor, max_tokens: int, end: int
) -> list[list[int]]:
    inputs = decoder.inversion(embeddings)[:, None]
    cache = None
    steps = []
    has_ended = torch.zeros(len(embeddings), dtype=torch.bool)
    for _ in range(max_tokens):
        outputs = decoder(inputs_embeds=inputs, past_key_values=cache, use_cache=True)
        cache = outputs.past_key_values
        token_ids = outputs.logits[:, -1].argmax(-1)
        steps.append(token_ids.cpu())
        has_ended |= steps[-1] == end
        if has_ended.all():
            break
        inputs = decoder.get_input_embeddings()(token_ids)[:, None]
    rows: list[list[int]] = torch.stack(steps, 1).tolist()
    return [row[: row.index(end)] if end in row else row for row in rows]


@dataclass(frozen=True, kw_only=True)  # without slots: digests are kept
class InverterConfig(TrainingConfig):
    """A decoder to start from, auxiliary texts and their embeddings, a row each."""

    embeddings: Vectors

    @cached_property
    def made_from(self) -> dict[str, Any]:
        content = np.ascontiguousarray(self.embeddings).tobytes()
        return {**super().made_from, "embeddings": sha256(content).hexdigest()}

    def train(
        self, work: Path, say: Callable[[str], None], observer: Observer | None = None
    ) -> dict[str, Any]:
        return train(self, work, say, observer)


def attack(
    inverter: Path, config: InverterConfig, embeddings: Vectors, cluster: Codes
) -> dict[str, list[str]]:
    """Return what each method of the table `Inversion` gives back, a text for each embedding."""
    # Decoding is greedy, so that the embedding of another text gives what that text
    # gave.
    from sklearn.metrics import pairwise_distances_argmin

    recipe = config.recipe
    auxiliary = config.embeddings
    inputs = np.vstack([embeddings, auxiliary.mean(0, keepdims=True)])
    *recovered, constant = recover(inverter, inputs, recipe.max_tokens)
    nearest = pairwise_distances_argmin(embeddings, auxiliary, metric="cosine")
    shuffled = permute_across_clusters(cluster, recipe.seed)
    return {
        "inverter": recovered,
        "nearest": [config.texts[place] for place in nearest],
        "shuffled": [recovered[place] for place in shuffled],
        "unconditional": [constant] * len(recovered),
    }


def infer_attributes(
    attributes: pl.Series,
    config: InverterConfig,
    embeddings: Vectors,
    cluster: Codes,
) -> dict[str, pl.Series]:
    """Infer an attribute from embeddings, by those of auxiliary texts whose attribute is known.

    Attribute inference as PrivLM-Bench names it in section 3.3 and does not measure it:
    Song and Raghunathan 2020 (arXiv:2004.00053). The classifier, a logistic regression,
    stands for the decoder; ``unconditional`` is the most frequent attribute.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import pairwise_distances_argmin
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    learnt = config.embeddings[attributes.is_not_null().to_numpy()]
    labels = attributes.drop_nulls()
    if labels.n_unique() < 2:
        raise SettingsError(
            "the auxiliary texts have fewer than two attributes to tell apart"
        )
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    model.fit(learnt, labels.to_list())
    predicted = pl.Series(model.predict(embeddings))
    nearest = pairwise_distances_argmin(embeddings, learnt, metric="cosine")
    most_frequent = labels.mode().sort()[0]
    return {
        "inverter": predicted,
        "nearest": labels[nearest],
        "shuffled": predicted[permute_across_clusters(cluster, config.recipe.seed)],
        "unconditional": pl.repeat(most_frequent, predicted.len(), eager=True),
    }


def permute_across_clusters(cluster: Codes, seed: int) -> Codes:
    """Draw for each text the number of a text of another cluster, as far as there are any."""
    names, codes = np.unique(cluster, return_inverse=True)
    ranks = np.random.default_rng(seed).permutation(len(names))
    order = np.argsort(ranks[codes], kind="stable")
    permuted = np.empty_like(order)
    # Shifted by the size of the largest cluster
    permuted[order] = np.roll(order, np.bincount(codes).max())
    return permuted


class _InverterTrainer(transformers.Trainer):  # type: ignore[misc]
    def compute_loss(
        self, model: Any, inputs: dict[str, torch.Tensor], **options: Any
    ) -> Any:
        return super().compute_loss(model, prepend_embedding(model, inputs), **options)


def train(
    config: InverterConfig,
    work: Path,
    say: Callable[[str], None],
    observer: Observer | None = None,
) -> dict[str, Any]:
    """Write the inverter to ``made`` in the work folder; return its losses."""
    transformers.set_seed(config.recipe.seed)
    options = {"revision": config.revision, "trust_remote_code": False}
    tokenizer = transformers.AutoTokenizer.from_pretrained(config.base, **options)
    decoder = transformers.AutoModelForCausalLM.from_pretrained(
        config.base, dtype=torch.float32, **options
    )
    embeddings = config.embeddings
    attach_projection(decoder, embeddings.shape[1]).fit(embeddings)
    encoded = tokenizer([*config.texts], add_special_tokens=False)["input_ids"]
    rows = []
    for text_ids, embedding in zip(encoded, embeddings, strict=True):
        ids = [*text_ids, tokenizer.eos_token_id]
        rows.append({"input_ids": ids, "labels": ids, "embedding": embedding})
    outcome = fit(
        decoder,
        rows,
        _collate,
        config.recipe,
        work,
        say,
        _InverterTrainer,
        observer,
    )
    tokenizer.save_pretrained(work / "made")
    return outcome


def _collate(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    embeddings = torch.from_numpy(np.stack([row["embedding"] for row in rows]))
    return {**pad_rows(rows), "embedding": embeddings}
