"""Which row is next, as a task of Inspect: the same questions and the same p-value.

    inspect eval .../inspect_task.py@next_row -T place=rows.jsonl --model openai/gpt-4o-mini

Nothing else of the package needs Inspect (``pip install inspect_ai``), which asks the
model here in place of `asking`.
"""

from __future__ import annotations

from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import GenerateConfig
from inspect_ai.scorer import Metric, SampleScore, Score, Scorer, Target, metric, scorer
from inspect_ai.solver import TaskState, generate

from mia_batch.extras.benchmark.answers import compute_p_value, count_right
from mia_batch.extras.benchmark.orders import Design, build_units
from mia_batch.extras.benchmark.sets import find_record, read_benchmark

_MOST_TOKENS = 8  # as `mia-batch benchmark` takes


@task
def next_row(
    place: str,
    name: str | None = None,
    most_rows: int = 500,
    context_rows: int = 1,
    seed: int = 0,
) -> Task:
    """Ask which row of a set comes next.

    ``place`` is a file, and ``name`` that of a set with a record, if it is one.
    """
    record = find_record(name or place, place if name else None)
    design = Design(most_rows=most_rows, context_rows=context_rows, seed=seed)
    units = build_units(read_benchmark(record, place), "next-row", design)
    samples = []
    for row in units.table.iter_rows(named=True):
        labels = dict(zip(row["candidates"], "ABCD", strict=True))
        question = {key: row[key] for key in ("unit", "candidates")} | {"seed": seed}
        samples.append(
            Sample(
                id=f"{row['unit']}-{row['alternative']}",
                input=row["text"],
                target=labels[0],
                metadata=question,
            )
        )
    return Task(
        dataset=MemoryDataset(samples),
        solver=generate(),
        scorer=named_row(),
        config=GenerateConfig(temperature=0.0, max_tokens=_MOST_TOKENS),
        epochs=1,
    )


@metric
def p_value() -> Metric:
    """Compute the exact p-value over places; not a number where there is none."""

    def compute(scores: list[SampleScore]) -> float:
        answers = [item.score.metadata or {} for item in scores]
        return compute_p_value(answers, answers[0]["seed"])

    return compute


@metric
def share_right() -> Metric:
    """Compute how many answers name the published next row; a guess is right in a quarter."""

    def compute(scores: list[SampleScore]) -> float:
        values: list[float] = [item.score.as_float() for item in scores]
        return sum(values) / len(values)

    return compute


@scorer(metrics=[p_value(), share_right()])
def named_row() -> Scorer:
    """Record what an answer says, from which the p-value is computed."""

    async def score(state: TaskState, target: Target) -> Score:
        answer = state.output.completion
        question = {**state.metadata, "candidate": answer}
        value = count_right(question)
        return Score(
            value=value, answer=answer, metadata=question, explanation=target.text
        )

    return score
