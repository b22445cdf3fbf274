"""Settings from options and a TOML file, and a sentence for each that is wrong."""

from __future__ import annotations

import difflib
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from mia_batch.errors import SettingsError
from mia_batch.settings.model import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic_core import ErrorDetails

__all__ = ["CONFIG_NAME", "NAMES_OR_PATHS", "PATHS", "load_settings"]

CONFIG_NAME = "mia-batch.toml"
"""Name of the settings file that is looked for beside the input, then in the working directory."""

NAMES_OR_PATHS = ("model", "reference_model", "masked_model", "tokenizer")
"""Settings that name a model, at a hub or by its folder."""

PATHS = (
    "input",
    "out",
    "samples_from",
    "nonmember_shots",
    "member_shots",
    "frequencies_from",
    "non_members",
    "calibration",
    "canaries",
)
"""Settings that name a file or folder."""


def load_settings(options: Mapping[str, object], config: Path | None = None) -> Settings:
    """Join options and the settings file, options first, and validate the whole.

    Parameters
    ----------
    options
        Settings by name; those that are None count as not given.
    config
        A TOML file of settings; by default ``mia-batch.toml`` beside the input, else in the
        working directory, where there is one. Paths in it are relative to its own folder.

    Returns
    -------
    Settings
        The validated settings, defaults filled in.

    Raises
    ------
    SettingsError
        If the file cannot be read, or a setting is unknown, missing, malformed or contradicts
        another; one line per setting: its name, what came, what is allowed.
    """
    given = {name: value for name, value in options.items() if value is not None}
    path = config or _find_config(given.get("input"))
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
    for name in PATHS + NAMES_OR_PATHS:
        value = values.get(name)
        is_path = name in PATHS or (path.parent / str(value)).exists()
        if isinstance(value, str) and value and is_path:
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
    return f"setting {name!r} is {detail['input']!r}: {message[0].lower()}{message[1:]}"
