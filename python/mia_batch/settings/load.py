"""Settings from options and a TOML file, and a sentence for each that is wrong."""

from __future__ import annotations

import difflib
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from mia_batch.errors import SettingsError
from mia_batch.settings.model import Settings
from mia_batch.settings.part import Mark
from mia_batch.storage import is_url

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic_core import ErrorDetails

__all__ = ["CONFIG_NAME", "load_settings"]

CONFIG_NAME = "mia-batch.toml"
"""Name of the settings file that is looked for beside the input, then in the working directory."""


def load_settings(
    options: Mapping[str, object], config: Path | None = None, *, use_config: bool = True
) -> Settings:
    """Join options and the settings file, options first, and validate the whole.

    Settings that are None count as not given. The file is ``config``, by default
    ``mia-batch.toml`` beside the input, else in the working directory, where there is one; paths in
    it are relative to its own folder. Without ``use_config`` none is looked for. `SettingsError`
    has a line for each setting that is wrong: its name, what came, what is allowed.
    """
    given = {name: value for name, value in options.items() if value is not None}
    path = config or (_find_config(given.get("input")) if use_config else None)
    values = (_read_config(path) if path else {}) | given
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        lines = [_sentence(detail, path) for detail in error.errors()]
        raise SettingsError("\n".join(lines)) from None


def _find_config(source: object) -> Path | None:
    folders = [Path()] if source is None else [Path(str(source)).parent, Path()]
    if source is not None and Path(str(source)).is_dir():
        folders.insert(0, Path(str(source)))
    return next((found for folder in folders if (found := folder / CONFIG_NAME).is_file()), None)


def _read_config(path: Path) -> dict[str, Any]:
    try:
        values = tomllib.loads(path.read_text("utf-8-sig"))
    except FileNotFoundError:
        msg = f"setting 'config': there is no file {path}"
        raise SettingsError(msg) from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        msg = f"setting 'config': {path} cannot be read as TOML: {error}"
        raise SettingsError(msg) from None
    values = {name.replace("-", "_"): value for name, value in values.items()}
    paths = Settings.marked(Mark.PATH)
    for name in paths + Settings.marked(Mark.MODEL):
        value = values.get(name)
        is_path = name in paths or (path.parent / str(value)).exists()
        if isinstance(value, str) and value and is_path and not is_url(value):
            values[name] = str(path.parent / value)
    return values


def _sentence(detail: ErrorDetails, path: Path | None) -> str:
    """One pydantic error as a sentence that names the setting."""
    name = str(detail["loc"][0]) if detail["loc"] else ""
    where = f" in {path}" if path else ""
    if detail["type"] == "extra_forbidden":
        near = difflib.get_close_matches(name, Settings.model_fields, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else "; `mia-batch --help` lists them all"
        return f"there is no setting {name!r}{where}{hint}"
    if detail["type"] == "missing":
        option = name.replace("_", "-")
        return f"setting {name!r} is missing: give --{option}, or {name} = ... in {CONFIG_NAME}"
    message = detail["msg"].removeprefix("Value error, ")
    if not name:
        return message
    # An address may hold a password.
    given = "" if is_url(detail["input"]) else f" is {detail['input']!r}"
    return f"setting {name!r}{given}: {message[0].lower()}{message[1:]}"
