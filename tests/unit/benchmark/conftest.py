"""Small files with the columns that benchmarks have as they are published."""

import json
from pathlib import Path
from random import Random
from typing import Any

import polars as pl
import pytest

WORDS = [
    "amber",
    "basin",
    "cedar",
    "delta",
    "ember",
    "fjord",
    "grove",
    "haven",
    "inlet",
    "jetty",
    "kiosk",
    "ledge",
    "manor",
    "north",
    "olive",
    "pearl",
    "quarry",
    "ridge",
    "shore",
    "tower",
    "upland",
    "valley",
    "willow",
    "yard",
]


def invent(draw: Random, n_words: int) -> str:
    return " ".join(draw.choices(WORDS, k=n_words))


def invent_row(name: str, number: int, draw: Random) -> dict[str, Any]:
    """Invent a row with the columns of a benchmark."""
    question = f"{invent(draw, draw.randint(4, 9))}?"
    options = [invent(draw, draw.randint(2, 4)) for _ in range(4)]
    place = draw.randrange(4)
    years = f"{draw.randint(11, 99)} and {draw.randint(100, 999)}"
    rows: dict[str, dict[str, Any]] = {
        "gsm8k": {"question": f"{question} {years}", "answer": invent(draw, 3)},
        "mmlu": {
            "question": question,
            "subject": f"subject {number // 12}",
            "choices": options,
            "answer": place,
        },
        "arc": {
            "id": f"row_{draw.random()}",
            "question": question,
            "choices": {"text": options, "label": ["A", "B", "C", "D"]},
            "answerKey": "ABCD"[place],
        },
        "hellaswag": {
            "ind": number,
            "activity_label": invent(draw, 1),
            "ctx_a": question,
            "ctx_b": "",
            "ctx": question,
            "endings": options,
            "source_id": f"source~{number}",
            "split": "val",
            "label": str(place),
        },
        "truthfulqa": {
            "question": question,
            "mc1_targets": {"choices": options, "labels": [1, 0, 0, 0]},
            "mc2_targets": {"choices": options, "labels": [1, 1, 0, 0]},
        },
        "humaneval": {
            "task_id": f"HumanEval/{number}",
            "prompt": f"def {'_'.join(draw.choices(WORDS, k=2))}():\n",
            "canonical_solution": f"    return {draw.randrange(1000)}\n",
            "test": "assert True",
            "entry_point": f"function_{number}",
        },
        "boolq": {
            "question": question,
            "answer": bool(draw.randrange(2)),
            "passage": invent(draw, draw.randint(9, 15)),
        },
        "winogrande": {
            "sentence": f"{question} _",
            "option1": options[0],
            "option2": options[1],
            "answer": str(1 + place % 2),
        },
    }
    return rows[name]


def write_set(path: Path, name: str, n_rows: int = 48, seed: int = 5) -> Path:
    """Write a file with the columns of a named benchmark, by the ending of its name."""
    draw = Random(f"{name} {seed}")
    rows = [invent_row(name, number, draw) for number in range(n_rows)]
    if path.suffix == ".parquet":
        pl.DataFrame(rows).write_parquet(path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(autouse=True, scope="module")
def key():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", "sk-never-to-be-seen")
        yield
