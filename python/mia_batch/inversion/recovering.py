"""What an inverter says that a text was, of its embedding alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from mia_batch.inversion.projection import load_inverter

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

__all__ = ["recover"]

_TEXTS_AT_ONCE = 256


def recover(inverter: Path, embeddings: NDArray[np.float32], tokens: int) -> list[str]:
    """Decode a text for each embedding: the most likely token each time, until one ends it.

    At most ``tokens`` tokens. No setting that a decoder brings along changes how it decodes.
    """
    from transformers import AutoTokenizer

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
def _greedy(decoder: Any, embeddings: torch.Tensor, tokens: int, end: int) -> list[list[int]]:  # noqa: ANN401
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
