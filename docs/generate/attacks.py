"""Every attack that comes with the package, family by family."""

from __future__ import annotations

import re
from os.path import commonprefix
from typing import TYPE_CHECKING

from docs.generate.markdown import code, table
from mia_batch.attacks import families
from mia_batch.attacks.attack import MEASURED
from mia_batch.cli.show import needs

if TYPE_CHECKING:
    from mia_batch.attacks import Attack

__all__ = ["sections"]


def sections() -> str:
    """One section per family: what it needs, its formulas, its sources."""
    return "\n".join(_section(title, attacks) for title, attacks in families().items())


def _section(title: str, attacks: tuple[Attack, ...]) -> str:
    """Say once what all attacks of a family share, else in their rows."""
    source = _shared([attack.source for attack in attacks])
    columns = {
        "attack": [code(attack.name) for attack in attacks],
        "formula": [code(attack.formula or str(attack.expr)) for attack in attacks],
        "needs": [_needs(attack) for attack in attacks],
        "source": [attack.source[len(source) :].lstrip(",; ") for attack in attacks],
        "measured here": [MEASURED.get(attack.name, "") for attack in attacks],
        "null where": [attack.undefined for attack in attacks],
    }
    lines = [f"### {title}", ""]
    if len(set(columns["needs"])) == 1:
        lines.append(f"Needs {columns.pop('needs')[0]}.\n")
    if source:
        lines.append(f"Source: {source}.")
    for name in ("source", "measured here"):
        if not any(columns[name]):
            del columns[name]
    return "\n".join(
        (*lines, "", table([*columns], zip(*columns.values(), strict=True)))
    )


def _shared(sources: list[str]) -> str:
    """Keep the whole clauses with which all sources begin."""
    if len(set(sources)) == 1:
        return sources[0]
    return re.sub(r"[^,;]*$", "", commonprefix(sources)).rstrip(",; ")  # noqa: RUF071 - of letters


def _needs(attack: Attack) -> str:
    """Name the evidence, the rows of it, and the settings that an attack cannot do without."""
    views = ", ".join(
        code(view) + ("" if model == "target" else f" of the {model} model")
        for model, view in attack.reads
    )
    settings = (
        " or ".join(map(_option, names.split("|"))) for names in attack.settings
    )
    evidence = (
        f"{needs(attack)} ({views})" if views else f"{needs(attack)} of other attacks"
    )
    return "; ".join((evidence, *settings))


def _option(setting: str) -> str:
    return code(f"--{setting.replace('_', '-')}")
