"""What stands between an embedding and a decoder: one trainable linear layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from mia_batch.models.quiet import quiet

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Projection", "attach", "load_inverter", "prepared"]

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
        """Return one vector of the decoder's size for each embedding."""
        scaled = (embeddings - self.mean) / self.spread
        return nn.functional.linear(scaled, self.linear.weight, self.linear.bias)


def attach(decoder: Any, size: int) -> Projection:  # noqa: ANN401 - models are of many types
    """Make a projection a part of a decoder, which is then saved and loaded with it."""
    projection = Projection(size, decoder.get_input_embeddings().embedding_dim)
    setattr(decoder, _NAME, projection.to(decoder.device))
    return projection


def prepared(decoder: Any, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:  # noqa: ANN401
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
def load_inverter(folder: Path) -> Any:  # noqa: ANN401
    """Load a decoder with the projection that was trained with it."""
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    weights = {
        name.removeprefix(f"{_NAME}."): each
        for path in sorted(folder.glob("*.safetensors"))
        for name, each in load_file(path).items()
        if name.startswith(f"{_NAME}.")
    }
    decoder = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    attach(decoder, weights["mean"].numel()).load_state_dict(weights)
    return decoder.eval().to("cuda" if torch.cuda.is_available() else "cpu")
