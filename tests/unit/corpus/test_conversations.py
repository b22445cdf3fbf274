"""Rows of conversations become answers, each with what came before it."""

import json
from typing import Any

import polars as pl
import pytest

from mia_batch.corpus import ColumnNames, read_documents
from mia_batch.corpus.conversations import find_question, read_conversation
from mia_batch.errors import CorpusError

HELLO = [
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Good day."},
    {"role": "user", "content": "Who are you?"},
    {"role": "assistant", "content": "A clerk."},
]
SHARED = [
    {"from": "system", "value": "Be brief."},
    {"from": "human", "value": "Hello"},
    {"from": "gpt", "value": "Good day."},
]


def write_rows(folder, *rows, name="corpus.jsonl"):
    path = folder / name
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


def read(path, conversations="answers", **options):
    return read_documents(path, conversations=conversations, **options)


def list_answers(corpus):
    """List messages before each answer, and the answer."""
    rows = corpus.documents.select("conversation", "text").collect().iter_rows()
    return [
        ([(m["role"], m["content"]) for m in read_conversation(content).messages], text)
        for content, text in rows
    ]


SYSTEM = ("system", "Be brief.")
ASKED = ("user", "Hello")
ANSWERED = ("assistant", "Good day.")
PARTS = [
    {"role": "user", "content": [{"type": "text", "text": "Hello"}]},
    {"role": "model", "content": [{"type": "text", "text": "Good day."}]},
]
FORMS: dict[str, Any] = {
    "messages": (
        [{"messages": HELLO}],
        [
            ([ASKED], "Good day."),
            ([ASKED, ANSWERED, ("user", "Who are you?")], "A clerk."),
        ],
        "column 'messages': 1 conversation, 2 answers; each answer is asked about after"
        " what came before it",
    ),
    "ShareGPT": (
        [{"conversations": SHARED}],
        [([SYSTEM, ASKED], "Good day.")],
        "column 'conversations': 1 conversation, 1 answer; each answer is asked about"
        " after what came before it",
    ),
    "prompt and completion": (
        [{"prompt": "Hello", "completion": "Good day."}],
        [([ASKED], "Good day.")],
        "columns 'prompt' and 'completion': 1 prompt, 1 answer; each answer is asked"
        " about after its prompt",
    ),
    "prompt and completion as messages": (
        [{"prompt": HELLO[:1], "completion": HELLO[1:2]}],
        [([ASKED], "Good day.")],
        "columns 'prompt' and 'completion': 1 prompt, 1 answer; each answer is asked"
        " about after its prompt",
    ),
    "instruction, input, output": (
        [
            {"instruction": "Greet", "input": "the clerk", "output": "Good day."},
            {"instruction": "Hello", "input": "", "output": "Good day."},
        ],
        [([("user", "Greet\n\nthe clerk")], "Good day."), ([ASKED], "Good day.")],
        "columns 'instruction' and 'input' and 'output': 2 prompts, 2 answers; each"
        " answer is asked about after its prompt",
    ),
    "question and answer with a system prompt": (
        [{"system": "Be brief.", "question": "Hello", "answer": "Good day."}],
        [([SYSTEM, ASKED], "Good day.")],
        "columns 'question' and 'answer' and 'system': 1 prompt, 1 answer; each answer"
        " is asked about after its prompt",
    ),
    "parts of a message": (
        [{"messages": PARTS}],
        [([("user", PARTS[0]["content"])], "Good day.")],
        "column 'messages': 1 conversation, 1 answer; each answer is asked about after"
        " what came before it",
    ),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_every_form_is_recognised_and_said(form, kind, tmp_path):
    rows, answers, note = FORMS[form]
    path = write_rows(tmp_path, *rows)
    if kind == "parquet":
        path = tmp_path / "corpus.parquet"
        pl.DataFrame(rows).write_parquet(path)
    corpus = read(path)
    assert list_answers(corpus) == answers
    assert corpus.has_conversations
    assert corpus.notes[0] == note


def test_answers_keep_label_group_and_identifier(tmp_path):
    rows = [
        {"messages": HELLO, "id": "a", "member": 1, "source": "x"},
        {"messages": HELLO[:2], "id": "b", "member": 0, "source": "y"},
    ]
    table = read(write_rows(tmp_path, *rows)).documents.collect()
    assert table.select("document_id", "group", "member", "source").rows() == [
        ("a, answer 1", "a", True, "x"),
        ("a, answer 2", "a", True, "x"),
        ("b", "b", False, "y"),
    ]


def test_a_conversation_without_a_name_is_named_by_what_is_said(tmp_path):
    first = read(write_rows(tmp_path, {"messages": HELLO}, {"messages": HELLO[:2]}))
    other_order = write_rows(
        tmp_path, {"messages": HELLO[:2]}, {"messages": HELLO}, name="other.jsonl"
    )
    groups = first.documents.collect()["group"].to_list()
    assert groups[0] == groups[1] != groups[2]
    assert read(other_order).documents.collect()["group"].to_list() == [
        groups[2],
        groups[0],
        groups[0],
    ]


def test_a_conversation_without_an_answer_has_no_text(tmp_path):
    corpus = read(write_rows(tmp_path, {"messages": HELLO[:1]}, {"messages": HELLO}))
    assert corpus.documents.collect()["text"].to_list() == [
        None,
        "Good day.",
        "A clerk.",
    ]
    assert corpus.notes[0].startswith("column 'messages': 2 conversations, 2 answers;")


def test_calls_of_tools_and_their_results_stand_before_the_answer(tmp_path):
    call = {"type": "function", "function": {"name": "clock", "arguments": {}}}
    messages = [
        {"role": "user", "content": "What time is it?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "noon"},
        {
            "role": "assistant",
            "content": "It is noon.",
            "reasoning_content": "The clock says so.",
        },
    ]
    tools = [{"type": "function", "function": {"name": "clock"}}]
    corpus = read(write_rows(tmp_path, {"messages": messages, "tools": tools}))
    ((content, text),) = (
        corpus.documents.select("conversation", "text").collect().rows()
    )
    before, kept_tools, answer_fields = read_conversation(content)
    assert text == "It is noon."
    assert answer_fields == {"reasoning_content": "The clock says so."}
    assert before[1] == {"role": "assistant", "content": "", "tool_calls": [call]}
    assert before[2] == {"role": "tool", "content": "noon"}
    assert kept_tools == tools
    assert find_question(content) == "noon"


def test_as_text_a_row_is_one_document(tmp_path):
    path = write_rows(tmp_path, {"messages": HELLO, "member": 1})
    corpus = read(path, "text")
    assert corpus.documents.select("text", "member").collect().rows() == [
        ("Hello\n\nGood day.\n\nWho are you?\n\nA clerk.", True)
    ]
    assert not corpus.has_conversations
    assert corpus.notes == (
        "columns 'messages': 1 conversation, each read as one plain text",
    )


def test_a_column_of_texts_comes_first(tmp_path):
    path = write_rows(tmp_path, {"text": "A text.", "messages": HELLO})
    assert read(path).documents.collect()["text"].to_list() == ["A text."]
    answers = write_rows(tmp_path, {"prompt": "Hello", "response": "Good day."})
    corpus = read(answers, columns=ColumnNames(text="response"))
    assert corpus.documents.collect()["text"].to_list() == ["Good day."]
    assert not corpus.has_conversations


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (
            {"messages": [{"role": "narrator", "content": "x"}]},
            "message 1 of column 'messages' has the role 'narrator'",
        ),
        ({"messages": ["Hello"]}, "message 1 of column 'messages' is no object"),
        (
            {"messages": [{"role": "user", "content": {"a": 1}}]},
            "the content of message 1 of column 'messages' is no text",
        ),
        ({"prompt": " ", "response": "x"}, "column 'prompt' holds no prompt"),
    ],
)
def test_what_is_no_conversation_is_refused_or_set_aside(row, problem, tmp_path):
    good = (
        {"messages": HELLO} if "messages" in row else {"prompt": "a", "response": "b"}
    )
    path = write_rows(tmp_path, good, row)
    with pytest.raises(CorpusError, match="line 2") as refusal:
        read(path, bad_input="refuse")
    assert problem in str(refusal.value)
    corpus = read(path, bad_input="set-aside")
    assert list(corpus.set_aside) == [f"{path}, line 2"]
    assert problem in corpus.set_aside[f"{path}, line 2"]
    assert corpus.documents.collect()["text"].null_count() == 0


def test_a_wrong_label_is_found_in_the_row_of_its_conversation(tmp_path):
    path = write_rows(
        tmp_path, {"messages": HELLO, "label": 1}, {"messages": HELLO, "label": 7}
    )
    with pytest.raises(
        CorpusError, match=r"corpus\.jsonl, line 2: column 'label' is 7"
    ):
        read(path)


def test_a_conversation_that_would_fill_the_memory_is_refused(tmp_path):
    turn = [{"role": "user", "content": "a" * 200}, HELLO[1]]
    path = write_rows(tmp_path, {"messages": turn * 1000})
    with pytest.raises(CorpusError, match=r"1,000 answers after up to .* split it"):
        read(path)


def test_who_needs_texts_does_not_take_answers_for_them(tmp_path):
    path = write_rows(tmp_path, {"messages": HELLO})
    with pytest.raises(
        CorpusError, match=r"holds conversations .*'messages'.*text_column="
    ):
        read_documents(path)
