"""Logits of any causal language model, a chunk of positions at a time.

The body of a model runs once over a batch, its head over one chunk after the other, so that the
logits of a whole batch never exist. Whether a model can be taken apart is tested on a short text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from mia_batch.errors import EngineError
from mia_batch.models.causes import cause_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from peft import PeftModel
    from torch import Tensor
    from transformers import PreTrainedConfig, PreTrainedModel

__all__ = ["ChunkedLogits"]

_TEST_TOKENS = 12
_TEST_CHUNK = 5
_LENGTH_DEPENDENT = {"dynamic", "longrope"}  # kinds of rotary embedding that see the longest text
_DIFFERENCE = {torch.float32: 1e-3}  # that rounding explains, of logits relative to the largest
_DIFFERENCE_OF_HALVES = 2e-2


class ChunkedLogits:
    """A causal language model whose logits come in chunks.

    No attention mask is given: a token looks only at those before it, and padding is on the right.

    Parameters
    ----------
    model
        The model, on its device.
    prompted
        The same with virtual tokens before every text, of which nothing is given.

    Raises
    ------
    EngineError
        If the model can only give all logits at once.
    """

    def __init__(self, model: PreTrainedModel, prompted: PeftModel | None = None) -> None:
        self._model = model
        self._whole = model if prompted is None else prompted
        self._virtual = 0  # positions before the first token's
        self._apart: _Apart | None = _Apart(model, prompted)
        with torch.inference_mode():
            self._test()

    @property
    def may_batch(self) -> bool:
        """Whether several texts may be in one batch."""
        return self._apart is not None

    @property
    def may_pad(self) -> bool:
        """Whether texts of different lengths may be in one batch."""
        return not _rope_types(self._model.config.get_text_config()) & _LENGTH_DEPENDENT

    def chunks(
        self, token_ids: Tensor, places: Tensor, most: int, embeddings: Tensor | None = None
    ) -> Iterator[Tensor]:
        """Logits at some positions of a batch.

        Parameters
        ----------
        token_ids
            Texts by tokens; one text where ``may_batch`` is false.
        places
            Positions in the flattened batch.
        most
            Most positions of a chunk.
        embeddings
            Of the texts' tokens, in place of the model's own.

        Yields
        ------
        Tensor
            Logits in float32, positions by vocabulary; the caller may overwrite them.
        """
        read = {"input_ids": token_ids} if embeddings is None else {"inputs_embeds": embeddings}
        if self._apart is not None:
            hidden = self._apart.hidden(read, token_ids.shape[1]).flatten(0, 1)[places]
            for rows in torch.split(hidden, most):
                yield self._apart.logits(rows).float()
        else:  # the body runs again for every chunk
            for chunk in torch.split(places, most):
                kept = chunk + self._virtual
                output = self._whole(**read, use_cache=False, logits_to_keep=kept)
                yield output.logits[0].float()

    def _test(self) -> None:
        """Compare with the model's own logits; take the next best way where they differ."""
        vocab_size = self._model.config.get_text_config().vocab_size
        text = torch.arange(5, 5 + 37 * _TEST_TOKENS, 37, device=self._model.device) % vocab_size
        own = self._whole(text[None], use_cache=False).logits[0].float()
        self._virtual = len(own) - _TEST_TOKENS
        own = own[self._virtual :]
        if self._why_wrong(text[None], own) is not None:
            self._apart = None
            if (reason := self._why_wrong(text[None], own)) is not None:
                msg = (
                    f"the transformers engine cannot compute the logits of a "
                    f"{type(self._model).__name__} in parts ({reason}); take engine vllm"
                )
                raise EngineError(msg)

    def _why_wrong(self, text: Tensor, own: Tensor) -> str | None:
        """Why chunks are not the model's own logits; None where they are."""
        places = torch.arange(_TEST_TOKENS, device=text.device)
        try:
            found = torch.cat(list(self.chunks(text, places, _TEST_CHUNK)))
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # whatever code of a stranger's model says
            return cause_of(error)
        if found.shape != own.shape:
            return "their shape is another"
        share = _DIFFERENCE.get(self._model.dtype, _DIFFERENCE_OF_HALVES)
        scale = own[own.isfinite()].abs().max().item() if own.isfinite().any() else 0.0
        same = torch.allclose(found, own, rtol=share, atol=share * scale, equal_nan=True)
        return None if same else "they differ from its own"


class _Apart:
    """Body and head of a model, one without the other."""

    def __init__(self, model: PreTrainedModel, prompted: PeftModel | None) -> None:
        self._model = model
        self._prompted = prompted
        self._body = model.get_decoder()
        self._run_body: Callable[..., object] = self._body.forward
        self._body.forward = self._forward
        self._given: Any = None
        self._kind: Any = None
        self._output: Any = None  # of the body, when peft has run it

    def hidden(self, read: dict[str, Tensor], n_tokens: int) -> Tensor:
        """Run the body: texts by tokens by features, as the head takes them."""
        if self._prompted is None:
            output: Any = self._body(**read, use_cache=False)
        else:
            self._prompted(**read, use_cache=False, logits_to_keep=1)
            output, self._output = self._output, None
        self._kind = type(output)
        hidden: Tensor = output.last_hidden_state[:, -n_tokens:]
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Run the head, with whatever the architecture does to logits."""
        self._given = self._kind(last_hidden_state=hidden[None])
        placeholders = torch.zeros((1, len(hidden)), dtype=torch.long, device=self._model.device)
        try:
            logits: Tensor = self._model(placeholders, use_cache=False).logits
        finally:
            self._given = None
        return logits[0]

    def _forward(self, *args: object, **kwargs: object) -> object:
        """Stand in for the body while the head is asked."""
        if self._given is not None:
            return self._given
        output = self._run_body(*args, **kwargs)
        self._output = None if self._prompted is None else output
        return output


def _rope_types(config: PreTrainedConfig) -> set[str]:
    """Kinds of rotary embedding, of which a model may have several."""
    parameters = getattr(config, "rope_parameters", None) or {}
    kinds = [parameters, *(each for each in parameters.values() if isinstance(each, dict))]
    return {str(each.get("rope_type")) for each in kinds}
