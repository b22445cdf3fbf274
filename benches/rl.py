"""Self-Critique where the truth is known: a small model trained by GRPO on half of some sums.

    python -m benches.rl [--steps N ...] [--problems N]

A decoder made here learns to add four numbers in three steps, in any order, and to
answer in another order than that of an answer which it is shown. Then GRPO (Shao et
al. 2024, arXiv:2402.03300, section 4.1) rewards right sums of half of the problems,
which are drawn by coin; no written answer is learnt. After so many steps the model is
audited: do attacks tell the problems that it was rewarded for from the others?
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import polars as pl
import torch
from benches.real_tuned import compute_auc
from benches.results import append_results, versions
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from torch import Tensor
from torch.nn.functional import log_softmax
from torch.nn.utils import clip_grad_norm_
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import mia_batch
from mia_batch.prompts import ask_for_another
from mia_batch.settings import nested

ATTACKS = (
    "self_critique_v1",
    "answer_entropy_v1",
    "loss_v1",
    "min_k_plus_plus_20_v1",
    "entropy_v1",
)
MOST_TOKENS = 64
LARGEST, N_NUMBERS = 12, 4
FIRST_STEPS, FIRST_RATE, FIRST_BATCH = 600, 3e-3, 32
RATE, PROBLEMS_A_STEP, GROUP = 5e-4, 8, 8
LEAST_DEVIATION = 1e-4  # of rewards in a group, so that equal ones teach nothing
START, END, PAD, UNKNOWN = "<|im_start|>", "<|im_end|>", "<pad>", "<unk>"
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }} "
    "{{ message.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant {% endif %}"
)


class Problem(NamedTuple):
    """Numbers to be added."""

    numbers: tuple[int, ...]

    @property
    def terms(self) -> tuple[int, ...]:
        """The numbers in whatever order they come."""
        return tuple(sorted(self.numbers))

    @property
    def question(self) -> str:
        return " + ".join(map(str, self.numbers))

    def write_answer(self, draw: Random) -> str:
        """Write the steps of a sum: which two numbers come next is drawn."""
        left = [*self.numbers]
        steps = []
        while len(left) > 1:
            first = left.pop(draw.randrange(len(left)))
            second = left.pop(draw.randrange(len(left)))
            left.append(first + second)
            steps.append(f"{first} + {second} = {first + second}")
        return " ; ".join(steps)

    def is_right(self, answer: str) -> bool:
        return answer.split()[-1:] == [str(sum(self.numbers))]


def draw_problem(draw: Random) -> Problem:
    return Problem(tuple(draw.randint(1, LARGEST) for _ in range(N_NUMBERS)))


def draw_audited(n_problems: int, seed: int = 0) -> tuple[list[Problem], list[bool]]:
    """Draw problems of different numbers; half of them, by coin, are members."""
    draw = Random(seed)
    problems: dict[tuple[int, ...], Problem] = {}
    while len(problems) < n_problems:
        problem = draw_problem(draw)
        problems.setdefault(problem.terms, problem)
    members = [True, False] * (n_problems // 2)
    draw.shuffle(members)
    return [*problems.values()], members


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Build a tokenizer of whole words and numbers."""
    splitting = pre_tokenizers.Whitespace()
    words = splitting.pre_tokenize_str(f"user assistant {ask_for_another('', '+ = ;')}")
    numbers = map(str, range(N_NUMBERS * LARGEST + 1))
    special = (PAD, START, END, UNKNOWN)
    names = dict.fromkeys([*special, *(word for word, _ in words), *numbers])
    numbered = {name: number for number, name in enumerate(names)}
    tokenizer = Tokenizer(models.WordLevel(numbered, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = splitting
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in special])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        unk_token=UNKNOWN,
        chat_template=TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def ask(question: str) -> str:
    return f"{START}user {question}{END}{START}assistant "


def train_first(
    tokenizer: PreTrainedTokenizerFast, audited: list[Problem], seed: int = 0
) -> LlamaForCausalLM:
    """Train a model on sums that are not audited: half of its lessons ask for another way."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=96,
        intermediate_size=288,
        num_hidden_layers=3,
        num_attention_heads=4,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        initializer_range=0.05,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.0, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=FIRST_RATE, total_steps=FIRST_STEPS, cycle_momentum=False
    )
    draw = Random(seed)
    audited_terms = {problem.terms for problem in audited}
    for step in range(FIRST_STEPS):
        asks_again = step % 2 == 1  # all lessons of a step have the same length
        contexts: list[str] = []
        answers: list[str] = []
        while len(contexts) < FIRST_BATCH:
            problem = draw_problem(draw)
            if problem.terms in audited_terms:
                continue
            question, answer = problem.question, problem.write_answer(draw)
            if asks_again:
                question = ask_for_another(question, problem.write_answer(draw))
            contexts.append(ask(question))
            answers.append(answer + END)
        loss = -score_answers(model, tokenizer, contexts, answers).mean()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call] # torch gives it no types
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0:
            print(f"step {step} of {FIRST_STEPS}: loss {loss.item():.3f}", flush=True)
    return model


def score_answers(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    contexts: list[str],
    answers: list[str],
) -> Tensor:
    """Return the log-probability of each token of answers, after contexts of one length."""
    context_ids = tokenizer(contexts, return_tensors="pt").input_ids
    answer_ids = tokenizer(answers, return_tensors="pt").input_ids
    ids = torch.cat([context_ids, answer_ids], dim=1)
    return score_tokens(model, ids, context_ids.shape[1])


def score_tokens(model: LlamaForCausalLM, ids: Tensor, start: int) -> Tensor:
    logits = model(input_ids=ids).logits[:, start - 1 : -1]
    chosen = ids[:, start:, None]
    return log_softmax(logits, dim=-1).gather(2, chosen)[..., 0]


def reinforce(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    members: list[Problem],
    until: list[int],
    seed: int = 0,
) -> Iterator[tuple[int, float]]:
    """Take steps of GRPO; yield the number of steps, and the share of right answers of late."""
    # Each group is learnt from once, so the ratio of equation 3 is 1 and is not
    # clipped; there is no term that holds the model to where it began.
    torch.manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)
    draw = Random(seed)
    waiting: list[Problem] = []
    right: list[float] = []
    for step in range(max(until) + 1):
        if step in until:
            recent = right[-max(1, len(members) // PROBLEMS_A_STEP) :]
            yield step, sum(recent) / max(1, len(recent))
        if not waiting:
            waiting = draw.sample(members, len(members))
        problems, waiting = waiting[:PROBLEMS_A_STEP], waiting[PROBLEMS_A_STEP:]
        ids, start = sample_groups(model, tokenizer, problems)
        rewards = reward_answers(tokenizer, problems, ids[:, start:])
        right.append(rewards.mean().item())
        deviation = rewards.std(dim=1, keepdim=True) + LEAST_DEVIATION
        advantages = (rewards - rewards.mean(dim=1, keepdim=True)) / deviation
        is_answer = ids[:, start:] != tokenizer.pad_token_id
        gains = score_tokens(model, ids, start) * advantages.reshape(-1, 1)
        lengths = is_answer.sum(dim=1).clamp(min=1)  # the first token may be padding
        per_answer = (gains * is_answer).sum(dim=1) / lengths
        optimizer.zero_grad()
        (-per_answer.mean()).backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def sample_groups(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    problems: list[Problem],
) -> tuple[Tensor, int]:
    """Draw a group of answers to each problem; return tokens, and where answers start."""
    contexts = [ask(problem.question) for problem in problems]
    context_ids = tokenizer(contexts, return_tensors="pt").input_ids
    ids = model.generate(
        context_ids.repeat_interleave(GROUP, dim=0),
        attention_mask=torch.ones(len(problems) * GROUP, context_ids.shape[1]),
        do_sample=True,
        top_k=0,
        max_new_tokens=24,
    )
    return ids, context_ids.shape[1]


def reward_answers(
    tokenizer: PreTrainedTokenizerFast, problems: list[Problem], answer_ids: Tensor
) -> Tensor:
    """Return 1 for each answer that ends with the right sum, a row a problem."""
    answers = tokenizer.batch_decode(answer_ids, skip_special_tokens=True)
    rewards = [
        float(problems[number // GROUP].is_right(answer))
        for number, answer in enumerate(answers)
    ]
    return torch.tensor(rewards).reshape(len(problems), GROUP)


def audit(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    corpus: Path,
    folder: Path,
) -> mia_batch.Run:
    """Audit a model, which is saved in a folder that the run lies in, too."""
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    settings = {
        "input": str(corpus),
        "model": str(folder / "model"),
        "out": str(folder / "run"),
        "engine": "transformers",
        "attacks": ATTACKS,
        "answer_tokens": MOST_TOKENS,
        "continue_strongest": 0,
        "report": False,
    }
    return mia_batch.audit(**nested(settings))


def measure(run: mia_batch.Run, problems: list[Problem]) -> dict[str, Any]:
    """Return the AUC of each attack with its interval, and what the answers are like."""
    scores = run["scores"]
    negated_entropies = scores["answer_entropy_v1"].drop_nulls().to_numpy()
    aucs = {name: compute_auc(scores, name) for name in ATTACKS}
    by_question = {problem.question: problem for problem in problems}
    samples = run["samples"].join(run["targets"], on="target_id")
    answers = samples.select("view", "prefix", "candidate", "member")
    right = [
        by_question[question].is_right(answer or "")
        for question, answer in answers.select("prefix", "candidate").iter_rows()
    ]
    shares = answers.with_columns(right=pl.Series(right)).group_by("view", "member")
    pairs = samples.pivot("view", index="target_id", values="candidate")
    same = pairs["first_answer"] == pairs["second_answer"]
    return {
        "aucs": aucs,
        "unscored": {name: scores[name].null_count() for name in ATTACKS},
        "entropy_of_own_answers": round(-float(negated_entropies.mean()), 4),
        "right": [
            {**row, "right": round(row["right"], 3)}
            for row in shares.agg(pl.col("right").mean())
            .sort("view", "member")
            .to_dicts()
        ],
        "second_equal_to_first": round(same.sum() / same.len(), 3),
    }


def measure_all(
    steps: list[int], n_problems: int, folder: Path
) -> Iterator[dict[str, Any]]:
    """Train, and audit after so many steps of GRPO; yield a row for each."""
    torch.set_num_threads(1)
    problems, members = draw_audited(n_problems)
    draw = Random(0)
    corpus = folder / "problems.parquet"
    pl.DataFrame(
        {
            "question": [problem.question for problem in problems],
            "answer": [problem.write_answer(draw) for problem in problems],
            "member": members,
        }
    ).write_parquet(corpus)
    tokenizer = build_tokenizer()
    model = train_first(tokenizer, problems)
    rewarded = [
        problem
        for problem, is_member in zip(problems, members, strict=True)
        if is_member
    ]
    start = time.monotonic()
    for step, share in reinforce(model, tokenizer, rewarded, steps):
        run = audit(model, tokenizer, corpus, folder / f"after-{step}")
        yield {
            "steps": step,
            "rewarded_answers": step * PROBLEMS_A_STEP * GROUP // len(rewarded),
            "right_of_late": round(share, 3),
            **measure(run, problems),
            "problems": n_problems,
            "seconds": round(time.monotonic() - start),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, nargs="+", default=[0, 150, 300, 600])
    parser.add_argument("--problems", type=int, default=240)
    arguments = parser.parse_args()
    libraries = versions("torch", "transformers")
    with TemporaryDirectory() as folder:
        for row in measure_all(arguments.steps, arguments.problems, Path(folder)):
            print(json.dumps(row), flush=True)
            append_results("rl", {**row, "versions": libraries})


if __name__ == "__main__":
    main()
