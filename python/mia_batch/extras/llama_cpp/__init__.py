"""Models in GGUF files, asked with llama.cpp: the engine's abilities, the files' form."""

from mia_batch.evidence.engines.registry import EngineType, find_missing_package
from mia_batch.extras.llama_cpp import header
from mia_batch.models.formats import Codec, ModelFormat

_EXTRA = "llama-cpp"
_COLUMNS = frozenset(
    {
        "vocabulary_mean",
        "vocabulary_variance",
        "rank",
        "top_logprob",
        "support_mass",
        "question",
        "nudge",
    }
)


def _load_codec(model: str, revision: str | None, setting: str) -> Codec:
    """Load the tokenizer of a GGUF file; its library is imported here, at use."""
    from mia_batch.extras.llama_cpp.tokens import load_codec

    return load_codec(model, revision, setting)


def _find_obstacle(elsewhere: bool) -> str | None:  # noqa: FBT001 - as every engine's
    missing_package = None
    if not elsewhere:
        missing_package = find_missing_package(_EXTRA, "llama_cpp", "torch")
    if missing_package is None:
        return None
    return (
        f"{missing_package}; or start llama-server or Ollama with the file and give its"
        " address with --base-url"
    )


GGUF = ModelFormat(
    name="GGUF files",
    matches=header.is_gguf,
    identify=header.identify,
    load_codec=_load_codec,
)

LLAMA_CPP = EngineType(
    name="llama-cpp",
    start="mia_batch.extras.llama_cpp.engine:start",
    opens=GGUF.name,
    kinds=frozenset({"samples", "logprobs"}),
    columns=_COLUMNS,
    obstacle=_find_obstacle,
    on_cpu=lambda: False,  # its threads are its own, so no other library's are set
)
