"""What stands around continuations is found without their texts, and taken off all of them."""

# ruff: noqa: RUF001 - marks of all scripts

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mia_batch import second
from mia_batch.evidence.dress import (
    AnsweredPrompt,
    Layer,
    count_echoed,
    examine,
    known_openings,
    learn,
    parse_rule,
    recorded_rule,
    undress,
)

Wearing = Callable[[str, str, int], str]
"""Puts something around a text, given its prompt and a number."""
_SOUNDS = [
    f"{first}{second_}{last}"
    for first in "bdfgklmnprst"
    for second_ in "aeiou"
    for last in "lnrst"
]


def words(seed: str, n: int = 30) -> str:
    dice = Random(seed)
    return " ".join(
        dice.choice(_SOUNDS) + dice.choice(["", "", "", ",", "."]) for _ in range(n)
    )


def answers(wear: Wearing, n: int = 24) -> list[AnsweredPrompt]:
    """Half of the texts are known by heart, all answers are dressed alike."""
    prompts = []
    for number in range(n):
        prompt, true = words(f"prompt {number}"), words(f"text {number}")
        answer = true if number % 2 else words(f"other {number}")
        prompts.append(AnsweredPrompt(prompt, wear(prompt, answer, number), true))
    return prompts


def plainly(_prompt: str, text: str, _number: int) -> str:
    return text


def last_words(prompt: str, n: int) -> str:
    return " ".join(prompt.split()[-n:])


DRESSES: dict[str, Wearing] = {
    "lead-in and line ends": lambda _, text, __: (
        f"Sure! Here is how it goes on:\n\n{text}"
    ),
    "lead-in on the same line": lambda _, text, __: f"Gerne! So geht es weiter. {text}",
    "lead-in without spaces": lambda _, text, __: f"以下是续写：{text}",
    "lead-in without an end": lambda _, text, __: (
        f"the words that come after these are {text}"
    ),
    "lead-ins of many wordings": lambda _, text, n: (
        f"{['Sure,', 'Of course,', 'Certainly,'][n % 3]} {['this', 'it'][n % 2]}"
        f" follows:\n{text}"
    ),
    "lead-in that quotes the prompt": lambda prompt, text, _: (
        f'After "{last_words(prompt, 3)}" comes:\n\n{text}'
    ),
    "straight quotes": lambda _, text, __: f'"{text}"',
    "curly quotes": lambda _, text, __: f"\u201c{text}\u201d",
    "guillemets": lambda _, text, __: f"« {text} »",
    "three dots": lambda _, text, __: f"...{text}",
    "an ellipsis": lambda _, text, __: f"… {text}",
    "code fence": lambda _, text, __: f"```text\n{text}\n```",
    "bold label": lambda _, text, __: f"**Continuation:** {text}",
    "bullet": lambda _, text, __: f"- {text}",
    "block quote": lambda _, text, __: "> " + text.replace(" ", " \n> "),
    "heading": lambda _, text, __: f"## What comes next\n\n{text}",
    "heading mark": lambda _, text, __: f"# {text}",
    "last words of the prompt": lambda prompt, text, _: (
        f"{last_words(prompt, 3)} {text}"
    ),
    "last sentence of the prompt": lambda prompt, text, _: (
        f"{last_words(prompt, 9)}\n{text}"
    ),
    "whole prompt": lambda prompt, text, _: f"{prompt} {text}",
    "closing remark": lambda _, text, __: (
        f"{text}\n\nLet me know if you want more of it!"
    ),
    "thoughts": lambda _, text, n: (
        f"<think>\nThe text has number {n}.\n</think>\n\n{text}"
    ),
    "lead-in and fence and remark": lambda _, text, __: (
        f"Here it is:\n```\n{text}\n```\nI hope that this helps."
    ),
    "label and quotes": lambda _, text, __: f'The text continues: "{text}"',
    "dots and last words": lambda prompt, text, _: f"...{last_words(prompt, 4)} {text}",
    "lead-in for a part": lambda _, text, n: (
        f"Voici la suite :\n{text}" if n % 3 else text
    ),
    "quotes for a part": lambda _, text, n: f'"{text}"' if n % 3 else text,
}


@pytest.mark.parametrize("name", DRESSES)
def test_a_dress_is_taken_off_and_the_words_are_left(name):
    plain, worn = answers(plainly), answers(DRESSES[name])
    rule = learn(worn)
    bare = [undress(answered.answer, answered.prompt, rule) for answered in worn]
    assert [text.split() for text in bare] == [
        answered.answer.split() for answered in plain
    ]
    examination = examine(worn, rule)
    changed = [
        answered.answer != text for answered, text in zip(worn, bare, strict=True)
    ]
    assert (examination.n_prompts, examination.n_dressed, examination.continues) == (
        24,
        sum(changed),
        True,
    )
    assert parse_rule(recorded_rule(rule)) == rule


def test_texts_that_are_not_known_may_all_be_answered_alike():
    lead = "Sure! Here is how it goes on:\n\n"
    refusal = "nothing of that kind here"
    worn = [
        answered._replace(
            answer=lead
            + (answered.answer[:9] if number % 4 == 0 else refusal[: 7 + number])
        )
        for number, answered in enumerate(answers(plainly))
    ]
    assert learn(worn) == (Layer("lead", lead.strip()),)
    assert examine(worn, ()).n_alike == len(worn)
    refusing = [
        answered._replace(answer=lead + refusal[: 7 + len(answered.answer) % 9])
        for answered in worn
    ]
    # Cut at different words, it is one and the same answer
    assert learn(refusing) == ()


def test_a_plain_answer_stays_as_it_is_to_the_character():
    prompts = answers(lambda _, text, __: f" {text}\n")
    assert learn(prompts) == ()
    assert undress(" \n a", "b", (Layer("quote"),)) == " \n a"
    assert examine(prompts, ()) == (24, 0, 0, 0, 0, "")


REFRAIN = "O sailor of the sea, come home again to me;\n"
LICENCE = "Permission is granted to use, copy and change these words. " * 4
GENUINE: dict[str, Callable[[int], tuple[str, str]]] = {
    "poems with a refrain": lambda n: (words(f"a {n}"), f"{REFRAIN}{words(f'b {n}')}"),
    "a refrain in a part of them": lambda n: (
        words(f"a {n}"),
        f"{REFRAIN * (n % 2)}{words(f'b {n}')}",
    ),
    "a licence with names": lambda n: (
        f"Copyright {1990 + n} {words(f'a {n}', 2)}\n{LICENCE[:90]}",
        f"{LICENCE[90:]}{words(f'b {n}')}",
    ),
    "modules": lambda n: (
        f'"""{words(f"a {n}", 4)}"""\n',
        f"import os\nimport sys\n\n{words(f'b {n}')}",
    ),
    "speech": lambda n: (
        words(f"a {n}"),
        f'"{words(f"b {n}", 8)}" he said. {words(f"c {n}")}',
    ),
    "lists": lambda n: (
        words(f"a {n}"),
        f"- {words(f'b {n}', 8)}\n- {words(f'c {n}', 8)}",
    ),
}
"""Texts that begin alike where an answer begins, and are continued by a plain model."""


@pytest.mark.parametrize("name", GENUINE)
def test_texts_that_begin_alike_themselves_keep_their_beginnings(name):
    texts = [GENUINE[name](number) for number in range(24)]
    guessed = [GENUINE[name](number)[1] for number in range(100, 124)]
    prompts = [
        AnsweredPrompt(prompt, true if number % 2 else guessed[number], true)
        for number, (prompt, true) in enumerate(texts)
    ]
    assert learn(prompts) == ()
    assert examine(prompts, ()).continues


def test_answers_that_are_no_continuations_are_counted_and_refused():
    starts = [
        f"these are the {first} words of it" for first in ("next", "last", "best")
    ]
    shuffled = answers(lambda _, text, n: f"{starts[n % 3]} {'and' if n % 2 else 'or'}")
    # The same few answers: whether they may be is asked elsewhere
    assert learn(shuffled) == ()
    repeating = answers(lambda prompt, _, __: last_words(prompt, 5))
    examination = examine(repeating, learn(repeating))
    assert (examination.n_repeating, examination.continues) == (24, False)
    lead = "Of course, I will go on with it. "
    worn = answers(lambda _, text, n: lead + text * (n % 4 > 0))
    examination = examine(worn, learn(worn))
    assert (examination.n_dressed, examination.n_empty, examination.continues) == (
        24,
        6,
        False,
    )


def test_lead_ins_that_fill_the_limit_of_tokens_are_no_continuations():
    dressed = [
        answered._replace(answer="Sure! Here is", is_cut=True)
        for answered in answers(plainly)[::3]
    ]
    plain = answers(plainly)[1::3] + answers(plainly)[2::3]
    examination = examine([*dressed, *plain], learn([*dressed, *plain]))
    assert (examination.n_alike, examination.example, examination.continues) == (
        8,
        "Sure! Here is",
        False,
    )
    short = [
        answered._replace(is_cut=False) for answered in dressed
    ]  # a model may stop there
    assert examine([*short, *plain], ()).continues


def test_without_a_rule_answers_that_begin_alike_are_refused():
    worn = answers(lambda _, text, __: f"Sure! Here is how it goes on:\n\n{text}")
    examination = examine(worn, ())
    assert (examination.n_alike, examination.continues) == (24, False)
    assert (
        examination.example
        == "Sure! Here is how it goes on:\n\n" + worn[0].answer[31:40]
    )


def test_a_rule_that_the_probe_gave_is_kept_unless_the_texts_begin_so():
    quote, dots = Layer("quote"), Layer("dots")
    plain = answers(plainly)
    assert learn(plain, (dots,)) == (dots,)
    spoken = [
        AnsweredPrompt(
            answered.prompt, f'"{answered.answer}"', f'"{answered.reference}"'
        )
        for answered in plain
    ]
    assert learn(spoken, (quote, dots)) == (dots,)


def test_openings_are_of_several_classics():
    openings = dict(known_openings())
    assert len(openings) == 9
    assert openings[
        "It is a truth universally acknowledged, that a single man in possession of a "
        "good fortune, must be in want"
    ].startswith(" of a wife.")


@pytest.mark.parametrize(
    ("text", "prompt", "n"),
    [
        ("b c d", "a b  c", 3),
        ("b\nc d", "a b c", 3),
        ("c d", "a b c", 0),  # one short word
        ("continued d", "to be continued", 9),
        ("一二三四", "零一二三", 3),
        ("", "a", 0),
        ("a", "", 0),
    ],
)
def test_the_end_of_a_prompt_is_found_whatever_the_white_space(text, prompt, n):
    assert count_echoed(text, prompt) == second.count_repeated(text, prompt) == n


PIECES = st.lists(
    st.sampled_from(
        [
            '"',
            "“",
            "”",
            "...",
            "…",
            "*",
            "**",
            "- ",
            "# ",
            "1. ",
            "```\n",
            "```",
            "\n",
            " ",
            ":",
            "</think>",
            "<think>",
            "one",
            "two",
            "three words long",
            "sentences.",
            "一二三",
            "[",
            "]",
        ]
    ),
    max_size=8,
).map("".join)
KINDS = ("thoughts", "fence", "echo", "line", "dots", "mark", "quote")
LAYERS = st.one_of(
    st.sampled_from([Layer(kind) for kind in KINDS]),
    st.sampled_from(
        [Layer("lead", "one"), Layer("close", "two"), Layer("lead", "**two:**")]
    ),
)


@settings(max_examples=300)
@given(PIECES, PIECES, st.lists(LAYERS, max_size=4, unique=True))
def test_the_second_program_leaves_the_same_text(answer, prompt, layers):
    rule = tuple(layers)
    assert undress(answer, prompt, rule) == second.without_dress(
        answer, prompt, recorded_rule(rule)
    )
