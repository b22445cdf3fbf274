"""Settings from a TOML file, keywords and the environment."""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from mia_batch.errors import SettingsError
from mia_batch.places import is_url
from mia_batch.settings.model import CLASSICS, NO_YARDSTICK, PARTS, RESOURCES, Mark, Settings

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pydantic_core import ErrorDetails

    from mia_batch.evidence.endpoint import ClientSettings
    from mia_batch.models.tokens import Tokenizer
    from mia_batch.settings.model import Part


def endpoint_settings(settings: Settings) -> ClientSettings:
    """Return what the client follows; the key comes from the environment variable named."""
    from mia_batch.evidence.endpoint import CHAT_INSTRUCTION, ClientSettings

    key = os.environ.get(settings.api_key_env)
    default = Settings.model_fields["api_key_env"].default
    if key is None and settings.api_key_env != default:
        raise SettingsError(
            f"setting 'api_key_env' is {settings.api_key_env!r}, but there is no such environment "
            "variable; set it to the endpoint's key"
        )
    names = {each.name for each in fields(ClientSettings)} - {"api_key"}
    given: dict[str, Any] = {name: getattr(settings, name) for name in names}
    given["base_url"] = given["base_url"] or ""
    given["chat_instruction"] = given["chat_instruction"] or CHAT_INSTRUCTION
    return ClientSettings(**given, api_key=key)


def endpoint_tokenizer(settings: Settings) -> Tokenizer | None:
    """Load the tokenizer that is named for the endpoint; None where none is."""
    if settings.tokenizer is None:
        return None
    from mia_batch.models.tokens import Tokenizer

    return Tokenizer.load(settings.tokenizer, setting="tokenizer")


CONFIG_NAME = "mia-batch.toml"
"""Name of the settings file that is looked for in the working directory, never beside the input."""

_TABLES = {part.table: part for part in PARTS if part.table is not None}


def flattened(values: Mapping[str, object], where: str = "") -> dict[str, Any]:
    """Take settings out of their tables; outside a table stands what has none.

    A table is a mapping, or a part of the settings, of which what is set counts. ``engine``,
    ``tuning``, ``extract`` and ``report`` are names of a table and of a setting in it: a value that
    is no table is that setting. ``where`` follows the name of a setting in messages.
    """
    flat: dict[str, Any] = {}
    for key, value in values.items():
        name = key.replace("-", "_")
        part = _TABLES.get(name)
        if part is not None and isinstance(value, Mapping | part):
            inside = value if isinstance(value, Mapping) else value.model_dump(exclude_unset=True)
            for given, each in inside.items():
                flat[_inside(str(given).replace("-", "_"), part, where)] = each
        elif part is not None and name not in _HOMES and value is not None:
            names = ", ".join([*part.model_fields][:3])
            raise SettingsError(f"{name!r}{where} is a table of settings, such as {names}")
        elif name in _HOMES and _HOMES[name] not in (None, name) and value is not None:
            raise SettingsError(f"setting {name!r}{where} {_stands_in(name, where)}")
        else:
            flat[name] = value
    return flat


def _inside(name: str, part: type[Part], where: str) -> str:
    if name in part.model_fields:
        return name
    if name in _HOMES:
        raise SettingsError(f"setting {name!r}{where} {_stands_in(name, where)}")
    raise SettingsError(f"table [{part.table}]{where}: {_no_setting(name, part.model_fields)}")


def _stands_in(name: str, where: str) -> str:
    table = _HOMES[name]
    if table is None:
        return (
            f"stands in no table: {'write it above all tables' if where else f'write {name}=...'}"
        )
    place = f"write it below [{table}]" if where else f"write {table}={{{name!r}: ...}}"
    return f"stands in the table {table!r}: {place}"


def nested(flat: Mapping[str, object]) -> dict[str, Any]:
    """Put settings into their tables: what `flattened` undoes."""
    values: dict[str, Any] = {}
    for name, value in flat.items():
        table = _HOMES.get(name)
        (values if table is None else values.setdefault(table, {}))[name] = value
    return values


_HOMES = {name: part.table for part in PARTS for name in part.model_fields}
"""Of each setting its table."""

_SAFE_ARGUMENTS = RESOURCES | {
    *("block_size", "device_map", "enable_chunked_prefill", "enable_prefix_caching"),
    *("enforce_eager", "kv_cache_dtype", "max_model_len", "pipeline_parallel_size"),
    *("quantization", "seed"),
}
"""Arguments of engines that can load no code, whatever their value."""


def load_settings(options: Mapping[str, object], *, use_config: bool = True) -> Settings:
    """Join options and the settings file, options first, and validate the whole.

    Settings that are None count as missing. The file is the option ``config``, by default
    ``mia-batch.toml`` in the working directory, where there is one; paths in it are relative to its
    own folder, and it can name no code. Without ``use_config`` no file is read. The code that
    ``attacks_from`` names runs last, after all else was found right and the input was found.
    `SettingsError` has a line for each setting that is wrong: its name, what came, what is allowed.
    """
    given = {name: value for name, value in options.items() if value is not None}
    path = None
    if use_config:
        named = given.get("config") or (CONFIG_NAME if Path(CONFIG_NAME).is_file() else None)
        path = None if named is None else Path(str(named))
    if path is not None:
        given = _read_config(path) | given | {"config": path}
    settings = _validated(given, path, stored="attacks_from" in given)
    if settings.attacks_from is None:
        return settings
    from mia_batch.attacks import load_file
    from mia_batch.corpus import find_files

    if use_config:
        find_files(settings.input)
    own = load_file(settings.attacks_from)
    return _validated({"attacks": own} | given, path)


def stored_settings(stored: Mapping[str, object], **changed: object) -> Settings:
    """Take up the settings that a run stored, and validate them together with what has changed.

    A run may be a stranger's: no code that it names is loaded, and attacks that nobody here knows
    stay names.
    """
    values = {name: value for name, value in stored.items() if value is not None}
    return _validated(values | changed, None, stored=True)


def _validated(
    values: Mapping[str, object], path: Path | None, *, stored: bool = False
) -> Settings:
    try:
        return Settings.model_validate(values, context={"unknown attacks": stored})
    except ValidationError as error:
        lines = [_sentence(detail, path) for detail in error.errors()]
        raise SettingsError("\n".join(lines)) from None


def refuse_code(engine_arg: object, where: str, *, but: Iterable[str] = ()) -> None:
    """Refuse arguments of engines that may load code, since a file may be a stranger's.

    ``but`` names those that the user set as well.
    """
    pairs = engine_arg if isinstance(engine_arg, dict | list | tuple) else ()
    for name in (_name_of(pair) for pair in pairs):
        if name not in _SAFE_ARGUMENTS and name not in map(_name_of, but):
            raise SettingsError(
                f"setting 'engine_arg': {where} sets {name}, which may load code; give it on the "
                f"command line instead: --engine-arg {name}=VALUE"
            )


def _name_of(argument: object) -> str:
    return str(argument).partition("=")[0].replace("-", "_")


def _read_config(path: Path) -> dict[str, Any]:
    try:
        values = tomllib.loads(path.read_text("utf-8-sig"))
    except FileNotFoundError:
        raise SettingsError(f"setting 'config': there is no file {path}") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"setting 'config': {path} cannot be read as TOML: {error}") from None
    values = flattened(values, f" in {path}")
    for name in ("attacks_from", "config"):
        if name in values:
            what = "runs code" if name == "attacks_from" else "names this file"
            raise SettingsError(
                f"setting {name!r} {what} and cannot be set in {path}; give it as an option"
            )
    refuse_code(values.get("engine_arg"), str(path))
    paths = Settings.marked(Mark.PATH)
    for name in paths + Settings.marked(Mark.MODEL):
        value = values.get(name)
        if name == "yardstick" and value in (CLASSICS, NO_YARDSTICK):
            continue
        is_path = name in paths or (path.parent / str(value)).exists()
        if isinstance(value, str) and value and is_path and not is_url(value):
            values[name] = str(path.parent / value)
    return values


def _no_setting(name: str, known: Iterable[str], where: str = "") -> str:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else "`mia-batch --help` lists them all"
    return f"there is no setting {name!r}{where}; {hint}"


def _sentence(detail: ErrorDetails, path: Path | None) -> str:
    """One pydantic error as a sentence that names the setting."""
    name = str(detail["loc"][0]) if detail["loc"] else ""
    where = f" in {path}" if path else ""
    if detail["type"] == "extra_forbidden":
        return _no_setting(name, Settings.model_fields, where)
    if detail["type"] == "missing":
        option = name.replace("_", "-")
        return f"setting {name!r} is missing: give --{option}, or {name} = ... in {CONFIG_NAME}"
    message = detail["msg"].removeprefix("Value error, ")
    if not name:
        return message
    # An address may hold a password.
    given = "" if is_url(detail["input"]) else f" is {detail['input']!r}"
    return f"setting {name!r}{given}: {message[0].lower()}{message[1:]}"
