"""An endpoint that embeds: what a text's vector is, and what it refuses."""

from tests.hostile_server import Asked, Reply, failure
from tests.unit.evidence.endpoint.asking import KEY


def vector(text: str) -> list[float]:
    return [float(len(text)), float(ord(text[0])) / 7]


class EmbeddingServer:
    """Gives vectors, in the reverse order; the first replies are those given."""

    def __init__(self, *replies: Reply, refuses: str | None = None) -> None:
        self._replies = iter(replies)
        self._refuses = refuses

    def __call__(self, asked: Asked) -> Reply:
        if (
            asked.path != "/v1/embeddings"
            or asked.headers["authorization"] != f"Bearer {KEY}"
        ):
            return failure(404, "nothing is here")
        if (reply := next(self._replies, None)) is not None:
            return reply
        texts = asked.fields["input"]
        if self._refuses in texts:
            return failure(400, "maximum context length exceeded")
        data = [{"index": i, "embedding": vector(text)} for i, text in enumerate(texts)]
        usage = {"prompt_tokens": 3 * len(texts), "total_tokens": 3 * len(texts)}
        return Reply(content={"data": data[::-1], "usage": usage})
