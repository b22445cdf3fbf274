"""An inverter: how it is made and trained, and what it says that texts were."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, set_seed

from mia_batch.extras.tune.training import fit, padded
from mia_batch.models.weights import quiet

if TYPE_CHECKING:
    from mia_batch.extras.privacy.inversion.inverting import InverterMaking

_NAME = "inversion"  # of the layer within the decoder
_IGNORED = -100  # label of what is not learnt
_SMALLEST = 1e-6


class Projection(nn.Module):
    """Maps an embedding to where the decoder has the embedding of a first token.

    The embedding's numbers are first brought to mean 0 and spread 1 over the auxiliary texts, a
    linear map too, so that the layer learns at one rate whatever the embedder.
    """

    mean: torch.Tensor
    spread: torch.Tensor

    def __init__(self, size: int, hidden: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("spread", torch.ones(size))
        self.linear = nn.Linear(size, hidden)

    def fit(self, embeddings: NDArray[np.float32]) -> None:
        """Learn mean and spread."""
        given = torch.from_numpy(embeddings)
        self.mean.copy_(given.mean(0))
        self.spread.copy_(given.std(0).clamp_min(_SMALLEST))

    def forward(self, embeddings: torch.Tensor) -> torch.Tensor:
        scaled = (embeddings - self.mean) / self.spread
        return nn.functional.linear(scaled, self.linear.weight, self.linear.bias)


def attach(decoder: Any, size: int) -> Projection:  # noqa: ANN401 - models are of many types
    """Make a projection a part of a decoder, which is then saved and loaded with it."""
    projection = Projection(size, decoder.get_input_embeddings().embedding_dim)
    setattr(decoder, _NAME, projection.to(decoder.device))
    return projection


def prepared(decoder: Any, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:  # noqa: ANN401 - of torch and transformers
    """Put the projected embedding before the tokens of each text; it is no label itself.

    GEIA, Li et al. 2023 (arXiv:2305.03010), section 3.2: the decoder learns
    ``w1 ... wn eos`` after the aligned embedding, and w1 from it alone.
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


@quiet()
def load_inverter(folder: Path) -> Any:  # noqa: ANN401 - of torch and transformers
    """Load a decoder with the projection that was trained with it."""
    from safetensors.torch import load_file

    weights = {
        name.removeprefix(f"{_NAME}."): each
        for path in sorted(folder.glob("*.safetensors"))
        for name, each in load_file(path).items()
        if name.startswith(f"{_NAME}.")
    }
    decoder = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    attach(decoder, weights["mean"].numel()).load_state_dict(weights)
    return decoder.eval().to("cuda" if torch.cuda.is_available() else "cpu")


_TEXTS_AT_ONCE = 256


def recover(inverter: Path, embeddings: NDArray[np.float32], tokens: int) -> list[str]:
    """Decode a text for each embedding: the most likely token each time, until one ends it.

    At most ``tokens`` tokens. No setting that a decoder brings along changes how it decodes.
    """
    decoder, tokenizer = load_inverter(inverter), AutoTokenizer.from_pretrained(inverter)
    texts: list[str] = []
    for start in range(0, len(embeddings), _TEXTS_AT_ONCE):
        some = torch.from_numpy(embeddings[start : start + _TEXTS_AT_ONCE]).to(decoder.device)
        ids = _greedy(decoder, some, tokens, tokenizer.eos_token_id)
        texts += tokenizer.batch_decode(
            ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
    return texts


@torch.inference_mode()
def _greedy(decoder: Any, embeddings: torch.Tensor, tokens: int, end: int) -> list[list[int]]:  # noqa: ANN401 - of torch and transformers
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


class _InverterTrainer(Trainer):  # type: ignore[misc]
    def compute_loss(self, model: Any, inputs: dict[str, torch.Tensor], **how: Any) -> Any:  # noqa: ANN401 - of torch and transformers
        """Compute the language-modelling loss of texts after their embeddings."""
        return super().compute_loss(model, prepared(model, inputs), **how)


def train(making: InverterMaking, work: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Train a decoder to say the texts whose embeddings it is given, and return what `fit` does."""
    set_seed(making.recipe.seed)
    how = {"revision": making.revision, "trust_remote_code": False}
    tokenizer = AutoTokenizer.from_pretrained(making.base, **how)
    decoder = AutoModelForCausalLM.from_pretrained(making.base, dtype=torch.float32, **how)
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
