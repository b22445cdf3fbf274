"""The settings of a run, all parts together, and what they need of each other."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Self

from pydantic import ValidationInfo, field_validator, model_validator

from mia_batch.settings.cluster import ClusterSettings
from mia_batch.settings.columns import ColumnSettings
from mia_batch.settings.finetuning import FinetuningSettings
from mia_batch.settings.logprobs import LogprobSettings
from mia_batch.settings.part import Mark, Part
from mia_batch.settings.sampling import SamplingSettings
from mia_batch.settings.source import EndpointSettings, RecordingSettings
from mia_batch.settings.verdict import NO_YARDSTICK, VerdictSettings
from mia_batch.storage import copy_of, is_url

__all__ = ["PARTS", "RESOURCES", "Settings"]

RESOURCES = frozenset(
    {
        "batch_size",
        "cpu_offload_gb",
        "gpu_memory_utilization",
        "kv_cache_memory_bytes",
        "max_num_batched_tokens",
        "max_num_seqs",
        "swap_space",
    }
)
"""Arguments of engines that decide how much memory they take, never what they sample."""


PARTS: tuple[type[Part], ...] = (
    SamplingSettings,
    LogprobSettings,
    FinetuningSettings,
    EndpointSettings,
    RecordingSettings,
    ClusterSettings,
    VerdictSettings,
    ColumnSettings,
)
"""The parts of the settings, in the order of the help."""
_EVIDENCE = {"samples", "logprobs"}
_OF_WHOLE_TEXTS = ("neighbours_column", "paraphrases_column")
_KEYS = {part.key: part.engine_of for part in PARTS if part.key and part.engine_of}


class Settings(
    ColumnSettings,
    ClusterSettings,
    RecordingSettings,
    EndpointSettings,
    VerdictSettings,
    FinetuningSettings,
    LogprobSettings,
    SamplingSettings,
):
    """Everything that decides what a run does; frozen, validated as a whole.

    Attributes are described by the fields of the parts; ``mia-batch --help`` prints the same
    sentences.
    """

    @model_validator(mode="before")
    @classmethod
    def _dependent_defaults(cls, values: object) -> object:
        if not isinstance(values, dict):
            return values
        values = _with_attacks_as_objects(dict(values))
        if values.get("preset") == "samia":
            values.setdefault("word_rule", "space")
        if values.get("preset") in ("min-k", "spv"):
            values.setdefault("evidence", "logprobs")
        if values.get("preset") == "spv":
            values.setdefault("top_k", 0)  # generations are to be the target's own distribution
        if values.get("temperature") in (0, "0", "0.0"):
            values.setdefault("samples", 1)
        if values.get("engine", "auto") == "auto":
            for setting, engine in _KEYS.items():
                if values.get(setting) is not None:
                    values["engine"] = engine
        if values.get("engine") == "replay":
            values.setdefault("model", "recorded")
        return values

    @field_validator("*", mode="before")
    @classmethod
    def _path_or_no_boolean(cls, value: object, info: ValidationInfo) -> object:
        field = cls.model_fields[str(info.field_name)]
        if Mark.PATH in field.metadata and isinstance(value, os.PathLike):
            return os.fspath(value)
        if Mark.PATH in field.metadata and info.field_name != "out" and is_url(value):
            msg = "only a run may be in an object store; copy this to a disk first"
            raise ValueError(msg)
        if isinstance(value, bool) and field.annotation is not bool:
            msg = "input must not be a boolean"
            raise ValueError(msg)
        return value

    @field_validator("engine")
    @classmethod
    def _known_engine(cls, name: str) -> str:
        from mia_batch.evidence.engines.registry import engine_types

        types = engine_types().items()
        known = ["auto", *(each for each, engine in types if engine.kinds & _EVIDENCE)]
        if name not in known:
            msg = f"known engines are {', '.join(known)}"
            raise ValueError(msg)
        return name

    @field_validator("attacks")
    @classmethod
    def _known_attacks(
        cls, names: tuple[str, ...] | None, info: ValidationInfo
    ) -> tuple[str, ...] | None:
        if names is None:
            return None
        if not names:
            msg = "name at least one attack; `mia-batch attacks` lists them"
            raise ValueError(msg)
        return tuple(_known(name, info) for name in dict.fromkeys(names))

    @model_validator(mode="after")
    def _consistent_engine(self) -> Self:
        for setting, engine in _KEYS.items():
            given = getattr(self, setting) is not None
            if given and self.engine != engine:
                msg = f"setting {setting!r} belongs to engine {engine!r}; leave one of the two out"
                raise ValueError(msg)
            if not given and self.engine == engine:
                msg = f"engine {engine!r} needs setting {setting!r} beside it"
                raise ValueError(msg)
        for part in PARTS:
            for setting, field in part.model_fields.items():
                changed = getattr(self, setting) != field.default
                if part.engine_of and changed and self.engine != part.engine_of:
                    msg = f"setting {setting!r} belongs to engine {part.engine_of!r}; leave it out"
                    raise ValueError(msg)
        return self

    @model_validator(mode="after")
    def _consistent_samples(self) -> Self:
        from mia_batch.prompts.seeds import SAMPLES_PER_TARGET

        if self.continuations > SAMPLES_PER_TARGET:
            msg = (
                f"setting 'samples' is {self.samples}: a target has seeds for "
                f"{SAMPLES_PER_TARGET} samples; ask for fewer"
            )
            raise ValueError(msg)
        if self.temperature == 0 and self.continuations > 1:
            msg = (
                f"setting 'samples' is {self.continuations}, but at temperature 0 all samples of a "
                "text are the same; ask for 1"
            )
            raise ValueError(msg)
        return self

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.folder.exists() and not self.folder.is_dir():
            msg = f"setting 'out' is {str(self.folder)!r}, which is a file; name a folder"
            raise ValueError(msg)
        for name in ("input", "model"):
            if os.path.realpath(self.folder) == os.path.realpath(getattr(self, name)):
                msg = f"setting 'out' is the {name} itself, {str(self.folder)!r}; choose another"
                raise ValueError(msg)
        if self.max_cost is not None and None in (self.price_in, self.price_out):
            msg = "setting 'max_cost' needs prices; give 'price_in' and 'price_out' beside it"
            raise ValueError(msg)
        if self.chat_instruction is not None and not self.chat:
            msg = "setting 'chat_instruction' belongs to 'chat'; set that too"
            raise ValueError(msg)
        windows = [self.window_words, self.window_characters]
        if self.stride is not None and windows == [None, None]:
            msg = "setting 'stride' needs 'window_words' or 'window_characters' beside it"
            raise ValueError(msg)
        if None not in windows:
            msg = "settings 'window_words' and 'window_characters' are two; leave out one of them"
            raise ValueError(msg)
        if self.preset == "samia" and self.word_rule != "space":
            msg = f"setting 'word_rule' is {self.word_rule!r}, but preset 'samia' needs 'space'"
            raise ValueError(msg)
        if self.text_length is not None and self.preset != "samia":
            msg = "setting 'text_length' belongs to preset 'samia'; leave it out or set the preset"
            raise ValueError(msg)
        if self.text_length is not None and self.window_words not in (None, self.text_length):
            msg = (
                f"settings 'window_words' ({self.window_words}) and 'text_length' "
                f"({self.text_length}) must be equal where both are given"
            )
            raise ValueError(msg)
        return self

    @model_validator(mode="after")
    def _consistent_views(self) -> Self:
        for setting in _OF_WHOLE_TEXTS:
            if getattr(self, setting) is not None and (self.window_words or self.window_characters):
                msg = f"setting {setting!r} is about whole texts; leave windows out"
                raise ValueError(msg)
        if self.member_shots is not None and self.nonmember_shots is None:
            msg = "setting 'member_shots' needs 'nonmember_shots' beside it"
            raise ValueError(msg)
        return self

    @field_validator("primary")
    @classmethod
    def _known_primary(cls, name: str | None, info: ValidationInfo) -> str | None:
        return None if name is None else _known(name, info)

    @model_validator(mode="after")
    def _consistent_verdict(self) -> Self:
        if self.non_members is not None and self.non_members_known is None:
            msg = (
                "setting 'non_members' needs 'non_members_known' beside it: say how it is known "
                "that these texts are not in the training data"
            )
            raise ValueError(msg)
        if self.primary is not None and self.primary not in (self.attacks or (self.primary,)):
            msg = f"setting 'primary' is {self.primary!r}, which 'attacks' does not name"
            raise ValueError(msg)
        alone = {"level": "group", "adjustment": "bh", "ties": "conservative"}
        for setting, value in alone.items():
            if self.stop_when_decided and getattr(self, setting) != value:
                msg = (
                    f"setting 'stop_when_decided' needs {setting!r} {value!r}, not "
                    f"{getattr(self, setting)!r}"
                )
                raise ValueError(msg)
        if list(self.length_edges) != sorted(set(self.length_edges)):
            msg = f"setting 'length_edges' is {self.length_edges}: each must exceed the one before"
            raise ValueError(msg)
        return self

    @property
    def has_yardstick(self) -> bool:
        """Whether texts of known exposure are asked about."""
        return self.yardstick not in (None, NO_YARDSTICK)

    @property
    def columns(self) -> dict[str, Any]:
        """The settings that name columns of the corpus."""
        names = [name for name in type(self).model_fields if name.endswith("_column")]
        return self.model_dump(include=set(names) - {"candidate_column", *_OF_WHOLE_TEXTS})

    @property
    def continuations(self) -> int:
        """Continuations sampled of each target's prefix."""
        return 10 if self.samples is None else self.samples

    @property
    def place(self) -> Path | str:
        """Where the run lies: its folder, or its address in an object store."""
        return self.folder if self.out is None else self.out

    @property
    def folder(self) -> Path:
        """The run folder: ``out``, or ``runs/<input>-<model>`` in the working directory.

        Of an address, the folder that is its working copy.
        """
        if is_url(self.out):
            return copy_of(self.out)
        if self.out is not None:
            return Path(self.out)
        return Path("runs") / f"{_file_name(self.input)}-{_file_name(self.model)}"

    @property
    def evidence_values(self) -> dict[str, Any]:
        """The settings that change a sample, by name, as JSON values."""
        values = self.model_dump(mode="json", include=set(self.marked(Mark.EVIDENCE)))
        arguments = values["engine_arg"].items()
        kept = {name: value for name, value in arguments if name not in RESOURCES}
        cut = "samia" if self.preset == "samia" else "default"  # presets that sample alike
        return values | {"engine_arg": kept, "preset": cut}


def _with_attacks_as_objects(values: dict[str, Any]) -> dict[str, Any]:
    """Register attacks that are objects, and put their names in."""
    from mia_batch.attacks import Attack, register

    named = values.get("attacks")
    if isinstance(named, Attack):
        named = [named]
    if isinstance(named, list | tuple):
        values["attacks"] = [
            register(each).name if isinstance(each, Attack) else each for each in named
        ]
    return values


def _known(name: str, info: ValidationInfo) -> str:
    """Look up an attack, unless the context says that its code has not been loaded."""
    from mia_batch.attacks import get

    return name if info.context and info.context["unknown attacks"] else get(name).name


def _file_name(path_or_name: str) -> str:
    """Last part of a path or hub name without its suffix; wildcards become ``_``."""
    path = Path(path_or_name)
    name = path.stem if path.suffix in {".parquet", ".jsonl", ".ndjson", ".csv"} else path.name
    return "".join("_" if letter in "*?[]" else letter for letter in name) or "here"
