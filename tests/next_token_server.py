"""An endpoint that knows a checkpoint's log-probabilities of the next token, and tells some."""

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from mia_batch.models.tokens import Tokenizer
from tests.hostile_server import MODEL, Asked, Reply, failure

NAMED, BY_ID, BIAS = "logprob_token_ids", "return_tokens_as_token_ids", "logit_bias"


class NextTokenModel:
    """Says the likeliest token, lists others or named ones; what it does not honour, it ignores.

    ``most``: it refuses to list more; 0: it lists nothing.
    """

    def __init__(
        self,
        checkpoint: Path,
        *,
        honours: Iterable[str] = (NAMED, BY_ID, BIAS),
        refuses: Iterable[str] = (),
        most: int = 20,
    ) -> None:
        self.tokenizer = Tokenizer.load(str(checkpoint))
        self.honours = frozenset(honours)
        self.refuses = frozenset(refuses)
        self.most = most
        self._model = AutoModelForCausalLM.from_pretrained(checkpoint)
        self.logprobs = cache(self._logprobs)

    def __call__(self, asked: Asked) -> Reply:
        if asked.method == "GET":
            return Reply(content={"data": [{"id": MODEL, "max_model_len": 256}]})
        fields = asked.fields
        if refused := self.refuses & fields.keys():
            return failure(400, f"unknown field {sorted(refused)}")
        chat = asked.path.endswith("/chat/completions")
        n = fields.get("top_logprobs" if chat else "logprobs", 0)
        if 0 < self.most < n:
            return failure(400, f"at most {self.most}")
        values = self.logprobs(asked.prompt)
        raised = {int(token): nats for token, nats in fields.get(BIAS, {}).items()}
        if BIAS not in self.honours:
            raised = {}
        drawn = max(values, key=lambda token: values[token] + raised.get(token, 0.0))
        listed = sorted(values, key=values.__getitem__, reverse=True)[:n]
        if NAMED in fields and NAMED in self.honours:
            listed = [drawn, *fields[NAMED]]
        by_id = bool(fields.get(BY_ID)) and BY_ID in self.honours
        pairs = self.pairs(values, listed, by_id=by_id)
        choice = self._choice(self.tokenizer.token_text(drawn), pairs, chat=chat)
        usage = {"prompt_tokens": len(asked.prompt.split()), "completion_tokens": 1}
        return Reply(content={"choices": [choice], "usage": usage})

    def pairs(
        self, values: dict[int, float], listed: list[int], *, by_id: bool
    ) -> dict[str, float]:
        """Name tokens as vLLM does."""
        return {
            f"token_id:{token}" if by_id else self.tokenizer.token_text(token): values[
                token
            ]
            for token in listed
        }

    def _choice(
        self, text: str, pairs: dict[str, float], *, chat: bool
    ) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "finish_reason": "length", "text": text}
        if chat:
            choice["message"] = {"role": "assistant", "content": choice.pop("text")}
        if not (self.most and pairs):
            return choice | {"logprobs": None}
        entries = [{"token": name, "logprob": value} for name, value in pairs.items()]
        content = {"content": [{"token": text, "top_logprobs": entries}]}
        return choice | {"logprobs": content if chat else {"top_logprobs": [pairs]}}

    def _logprobs(self, prompt: str) -> dict[int, float]:
        ids = torch.tensor(self.tokenizer.encode_prompts([prompt]))
        with torch.no_grad():
            logits = self._model(ids).logits[0, -1].double()
        return dict(enumerate(logits.log_softmax(-1).tolist()))
