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
from mia_batch.extras.tune.jobs import Making
from mia_batch.extras.tune.training import fit, padded
from mia_batch.models import weights as checkpoints
from mia_batch.observer import Observer
from mia_batch.tables import READ_ERRORS, write_table

_TOKENS_AT_ONCE = 8192
_NO_LIMIT = 10**9

# An embedding, or why the text has no embedding
Found: TypeAlias = NDArray[np.float32] | str


@dataclass(frozen=True, slots=True)
class Embedder:
    """Embeds texts, by ``means`` those of at most ``longest`` tokens; ``identity`` names it."""

    identity: str
    tokenizer: Any
    longest: int
    means: Callable[[list[str], list[list[int]]], Sequence[NDArray[np.float32]]]

    def embed(self, texts: Sequence[str]) -> list[Found]:
        rows = self.tokenizer(list(texts), truncation=False, verbose=False)["input_ids"]
        empty = "the embedder's tokenizer finds no token in the text"
        long = (
            f"the text has {{:,}} tokens, more than the {self.longest:,} that the"
            " embedder reads"
        )
        found: list[Found] = [long.format(len(row)) if row else empty for row in rows]
        fits = [i for i, row in enumerate(rows) if 0 < len(row) <= self.longest]
        means = (
            self.means([texts[i] for i in fits], [rows[i] for i in fits])
            if fits
            else []
        )
        for i, mean in zip(fits, means, strict=True):
            found[i] = np.asarray(mean, np.float32)
        return found


@checkpoints.quiet()
def open_embedder(model: str, revision: str | None = None) -> Embedder:
    saved = Path(model, "modules.json").is_file()
    return _sentences(model, revision) if saved else _hidden_states(model, revision)


def _sentences(model: str, revision: str | None) -> Embedder:
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
        f"{at.relative_to(top)}\0{checkpoints.digest_folder(str(at))}" for at in folders
    )

    def means(texts: list[str], _: list[list[int]]) -> Sequence[NDArray[np.float32]]:
        found: Any = loaded.encode(texts, show_progress_bar=False)
        return list(found)

    identity = sha256("\n".join(parts).encode()).hexdigest()
    # The library would cut texts that are too long without a word.
    return Embedder(
        identity, loaded.tokenizer, loaded.max_seq_length or _NO_LIMIT, means
    )


def _hidden_states(model: str, revision: str | None) -> Embedder:
    """Take the mean of the last hidden states over the tokens of a text, never over padding."""
    # Special tokens that the tokenizer puts around a text count, as they do in
    # PrivLM-Bench and in sentence-transformers. Of causal models, too, it is the mean,
    # not the state of the last token.
    identity = checkpoints.identify_model(model, revision, "any").digest
    loaded, (name, at) = (
        _load(model, revision),
        checkpoints.tokenizer_source(model, revision),
    )
    how: dict[str, Any] = {"revision": at, "trust_remote_code": False}
    tokenizer = transformers.AutoTokenizer.from_pretrained(name, **how)
    tokenizer.model_max_length = _NO_LIMIT  # lengths are checked against the context

    @torch.inference_mode()
    def pooled(rows: list[list[int]]) -> NDArray[np.float32]:
        batch = padded([{"input_ids": row, "labels": []} for row in rows])
        ids, mask = (
            batch[name].to(loaded.device) for name in ("input_ids", "attention_mask")
        )
        said = loaded(input_ids=ids, attention_mask=mask, output_hidden_states=True)
        weights = mask[:, :, None].to(torch.float32)
        means = (said.hidden_states[-1].float() * weights).sum(1) / weights.sum(1)
        return np.asarray(means.cpu().numpy())

    def means(_: list[str], rows: list[list[int]]) -> Sequence[NDArray[np.float32]]:
        # Those of one length together
        left = sorted(range(len(rows)), key=lambda i: len(rows[i]))
        found: dict[int, NDArray[np.float32]] = {}
        while left:
            at_once = max(1, _TOKENS_AT_ONCE // len(rows[left[-1]]))
            some, left = left[-at_once:], left[:-at_once]
            found.update(zip(some, pooled([rows[i] for i in some]), strict=True))
        return [found[i] for i in range(len(rows))]

    return Embedder(identity, tokenizer, _context(loaded), means)


def _load(model: str, revision: str | None) -> Any:
    """Load the part of a checkpoint that reads texts; an adapter is put on its base."""
    if (adapter := checkpoints.read_adapter(model)) is not None:
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
    reads = loaded.get_encoder() if config.is_encoder_decoder else loaded
    return reads.eval().to(_device())


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def _context(model: Any) -> int:
    """Most tokens that a model reads; of RoBERTa's kind positions are numbered from 2."""
    length = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if length is None:
        return _NO_LIMIT
    from_pad = getattr(getattr(model, "embeddings", None), "padding_idx", None)
    return int(length) - (0 if from_pad in (None, 0) else from_pad + 1)


_TEXTS_OF_BLOCK = 64


def embed_all(
    texts: Sequence[str],
    embedder: Embedder | ClientSettings,
    folder: Path,
    observer: Observer,
) -> list[Found]:
    """Embed texts, equal ones once, or say why not; blocks of them are kept in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(embedder, ClientSettings):
        identity = f"{embedder.base_url.rstrip('/')}\0{embedder.model}"
    else:
        identity = embedder.identity
    found, missing = dict[str, Found](), list[tuple[list[str], Path]]()
    distinct = list(dict.fromkeys(texts))
    for start in range(0, len(distinct), _TEXTS_OF_BLOCK):
        block = distinct[start : start + _TEXTS_OF_BLOCK]
        content = "\0".join(
            sha256(each.encode()).hexdigest() for each in (identity, *block)
        )
        path = folder / f"{sha256(content.encode()).hexdigest()[:32]}.parquet"
        if (known := _read(path)) is None:
            missing.append((block, path))
        else:
            found.update(zip(block, known, strict=True))

    def take(number: int, embedded: list[Found]) -> None:
        block, path = missing[number]
        vectors = [
            None if isinstance(each, str) else each.tolist() for each in embedded
        ]
        reasons = [each if isinstance(each, str) else None for each in embedded]
        schema = pl.Schema({"embedding": pl.List(pl.Float32), "reason": pl.String()})
        write_table(pl.DataFrame([vectors, reasons], schema), path)
        found.update(zip(block, embedded, strict=True))
        observer.worked(len(block), 0)

    blocks = [block for block, _ in missing]
    if blocks:
        left = sum(map(len, blocks))
        with observer.progress("embedding", done=len(found), left=left, unit="text"):
            if isinstance(embedder, ClientSettings):
                from mia_batch.evidence.endpoint.client import embed_at

                embed_at(embedder, blocks, folder / "journal.sqlite", take)
            else:
                for number, block in enumerate(blocks):
                    take(number, embedder.embed(block))
    return [found[text] for text in texts]


def _read(path: Path) -> list[Found] | None:
    try:
        rows = pl.read_parquet(path, glob=False).rows()
    except (*READ_ERRORS, OSError):
        return None
    return [
        reason if each is None else np.array(each, np.float32) for each, reason in rows
    ]


# An inverter: how it is made and trained, and what it says that texts were.

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

    def fit(self, embeddings: NDArray[np.float32]) -> None:
        given = torch.from_numpy(embeddings)
        self.mean.copy_(given.mean(0))
        self.spread.copy_(given.std(0).clamp_min(_SMALLEST))

    def forward(self, embeddings: torch.Tensor) -> torch.Tensor:
        scaled = (embeddings - self.mean) / self.spread
        return nn.functional.linear(scaled, self.linear.weight, self.linear.bias)


def attach(decoder: Any, size: int) -> Projection:
    projection = Projection(size, decoder.get_input_embeddings().embedding_dim)
    setattr(decoder, _NAME, projection.to(decoder.device))
    return projection


def prepared(decoder: Any, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Put the projected embedding before the tokens of each text; it is no label itself.

    GEIA, Li et al. 2023 (arXiv:2305.03010), section 3.2.
    """
    first = getattr(decoder, _NAME)(inputs["embedding"])[:, None]
    tokens = decoder.get_input_embeddings()(inputs["input_ids"])
    mask, labels = inputs["attention_mask"], inputs["labels"]
    ones = torch.ones_like(mask[:, :1])
    return {
        "inputs_embeds": torch.cat([first, tokens], 1),
        "attention_mask": torch.cat([ones, mask], 1),
        "labels": torch.cat([ones * _IGNORED, labels], 1),
    }


@checkpoints.quiet()
def load_inverter(folder: Path) -> Any:
    from safetensors.torch import load_file

    files = map(load_file, sorted(folder.glob("*.safetensors")))
    found = (
        (*name.partition(f"{_NAME}."), each)
        for of in files
        for name, each in of.items()
    )
    weights = {name: each for start, _, name, each in found if name and not start}
    decoder = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32
    )
    attach(decoder, weights["mean"].numel()).load_state_dict(weights)
    return decoder.eval().to(_device())


_TEXTS_AT_ONCE = 256


def recover(inverter: Path, embeddings: NDArray[np.float32], tokens: int) -> list[str]:
    """Decode a text for each embedding: the most likely token each time, until one ends it."""
    # By hand, so that no setting that a decoder brings along changes how it decodes.
    decoder = load_inverter(inverter)
    tokenizer = transformers.AutoTokenizer.from_pretrained(inverter)
    plain = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
    texts: list[str] = []
    for start in range(0, len(embeddings), _TEXTS_AT_ONCE):
        some = torch.from_numpy(embeddings[start : start + _TEXTS_AT_ONCE]).to(
            decoder.device
        )
        texts += tokenizer.batch_decode(
            _greedy(decoder, some, tokens, tokenizer.eos_token_id), **plain
        )
    return texts


@torch.inference_mode()
def _greedy(
    decoder: Any, embeddings: torch.Tensor, tokens: int, end: int
) -> list[list[int]]:
    states = decoder.inversion(embeddings)[:, None]
    past, found, ended = None, [], torch.zeros(len(embeddings), dtype=torch.bool)
    for _ in range(tokens):
        said = decoder(inputs_embeds=states, past_key_values=past, use_cache=True)
        past, chosen = said.past_key_values, said.logits[:, -1].argmax(-1)
        found.append(chosen.cpu())
        ended |= found[-1] == end
        if ended.all():
            break
        states = decoder.get_input_embeddings()(chosen)[:, None]
    rows: list[list[int]] = torch.stack(found, 1).tolist()
    return [row[: row.index(end)] if end in row else row for row in rows]


@dataclass(frozen=True, kw_only=True)  # without slots: digests are kept
class InverterMaking(Making):
    """A decoder to start from, auxiliary texts and their embeddings, a row each."""

    embeddings: NDArray[np.float32]

    @cached_property
    def made_from(self) -> dict[str, Any]:
        content = np.ascontiguousarray(self.embeddings)
        return {
            **super().made_from,
            "embeddings": sha256(content.tobytes()).hexdigest(),
        }

    def train(self, work: Path, say: Callable[[str], None]) -> dict[str, Any]:
        return train(self, work, say)


def attack(
    inverter: Path,
    making: InverterMaking,
    embeddings: NDArray[np.float32],
    cluster: NDArray[np.intp],
) -> dict[str, list[str]]:
    """Return what each method of the table `Inversion` gives back, a text for each embedding."""
    # Decoding is greedy, so that the embedding of another text gives what that text
    # gave.
    from sklearn.metrics import pairwise_distances_argmin

    recipe, known = making.recipe, making.embeddings
    asked = np.vstack([embeddings, known.mean(0, keepdims=True)])
    *recovered, constant = recover(inverter, asked, recipe.max_tokens)
    nearest = pairwise_distances_argmin(embeddings, known, metric="cosine")
    return {
        "inverter": recovered,
        "nearest": [making.texts[i] for i in nearest],
        "shuffled": [recovered[i] for i in of_others(cluster, recipe.seed)],
        "unconditional": [constant] * len(recovered),
    }


def infer(
    known: pl.Series,
    making: InverterMaking,
    embeddings: NDArray[np.float32],
    cluster: NDArray[np.intp],
) -> dict[str, pl.Series]:
    """Tell an attribute from embeddings, by those of auxiliary texts whose attribute is known.

    Attribute inference as PrivLM-Bench names it in section 3.3 and does not measure it:
    Song and Raghunathan 2020 (arXiv:2004.00053). The classifier, a logistic regression,
    stands for the decoder; ``unconditional`` is the most frequent attribute.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import pairwise_distances_argmin
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    there = known.is_not_null().to_numpy()
    labels, learnt = known.drop_nulls(), making.embeddings[there]
    if labels.n_unique() < 2:
        raise SettingsError(
            "the auxiliary texts have fewer than two attributes to tell apart"
        )
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    said = pl.Series(model.fit(learnt, labels.to_list()).predict(embeddings))
    return {
        "inverter": said,
        "nearest": labels[
            pairwise_distances_argmin(embeddings, learnt, metric="cosine")
        ],
        "shuffled": said[of_others(cluster, making.recipe.seed)],
        "unconditional": pl.repeat(labels.mode().sort()[0], said.len(), eager=True),
    }


def of_others(cluster: NDArray[np.intp], seed: int) -> NDArray[np.intp]:
    """Give each text the number of a text of another cluster, as far as there are any."""
    codes, place = np.unique(cluster, return_inverse=True)
    drawn = np.random.default_rng(seed).permutation(len(codes))
    order = np.argsort(drawn[place], kind="stable")
    other = np.empty_like(order)
    other[order] = np.roll(order, np.bincount(place).max())
    return other


class _InverterTrainer(transformers.Trainer):  # type: ignore[misc]
    def compute_loss(
        self, model: Any, inputs: dict[str, torch.Tensor], **how: Any
    ) -> Any:
        return super().compute_loss(model, prepared(model, inputs), **how)


def train(
    making: InverterMaking, work: Path, say: Callable[[str], None]
) -> dict[str, Any]:
    transformers.set_seed(making.recipe.seed)
    base, how = making.base, {"revision": making.revision, "trust_remote_code": False}
    tokenizer = transformers.AutoTokenizer.from_pretrained(base, **how)
    decoder = transformers.AutoModelForCausalLM.from_pretrained(
        base, dtype=torch.float32, **how
    )
    embeddings = making.embeddings
    attach(decoder, embeddings.shape[1]).fit(embeddings)
    rows = []
    given = tokenizer([*making.texts], add_special_tokens=False)["input_ids"]
    for ids, embedding in zip(given, embeddings, strict=True):
        said = [*ids, tokenizer.eos_token_id]
        rows.append({"input_ids": said, "labels": said, "embedding": embedding})
    done = fit(decoder, rows, _collated, making.recipe, work, say, _InverterTrainer)
    tokenizer.save_pretrained(work / "made")
    return done


def _collated(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    embeddings = torch.from_numpy(np.stack([row["embedding"] for row in rows]))
    return {**padded(rows), "embedding": embeddings}
