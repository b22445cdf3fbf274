"""Models in GGUF files, asked with llama.cpp: the engine's abilities, the files' form."""

from mia_batch.errors import SettingsError
from mia_batch.evidence.engines.registry import EngineType, find_missing_package
from mia_batch.evidence.request import EngineSpec
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


_ARGUMENTS = {"max_model_len": 1, "max_num_seqs": 1, "n_gpu_layers": -1, "n_threads": 1}
"""Arguments that ``engine_args`` may have, each with its least value."""


def check_settings(spec: EngineSpec) -> None:
    """Refuse settings that no GGUF file can be opened with; the library is not needed."""
    for name, value in spec.engine_args.items():
        if name not in _ARGUMENTS:
            raise SettingsError(
                f"engine_arg: engine llama-cpp has no argument {name!r}; known are"
                f" {', '.join(_ARGUMENTS)}"
            )
        if not isinstance(value, int) or value < _ARGUMENTS[name]:
            raise SettingsError(
                f"engine_arg: {name} is {value!r}; give a whole number from"
                f" {_ARGUMENTS[name]} on"
            )
    if spec.dtype != "auto":
        raise SettingsError(
            f"dtype: {spec.model!r} is a GGUF file, which has its own number format;"
            " leave the setting at auto"
        )
    if spec.tensor_parallel_size != 1:
        raise SettingsError(
            "tensor_parallel_size: llama.cpp spreads a model over GPUs by itself; leave"
            " the setting at 1"
        )


GGUF = ModelFormat(
    name="GGUF files",
    matches=header.is_gguf,
    identify=header.identify,
    load_codec=_load_codec,
    find_files=header.find_files,
)

LLAMA_CPP = EngineType(
    name="llama-cpp",
    start="mia_batch.extras.llama_cpp.engine:start",
    opens=GGUF.name,
    kinds=frozenset({"samples", "logprobs"}),
    columns=_COLUMNS,
    arguments=frozenset(_ARGUMENTS),
    obstacle=_find_obstacle,
    check=check_settings,
    on_cpu=lambda: False,  # its threads are its own, so no other library's are set
)
