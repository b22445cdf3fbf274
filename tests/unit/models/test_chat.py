"""Chat templates: what stands before an answer, and the answer as a template writes it."""

import pytest

from mia_batch.corpus.conversations import Conversation
from mia_batch.models.chat import ChatTemplate, PlacedAnswer, TemplateError
from tests.checkpoints import CHAT_TEMPLATE

PLAIN = ChatTemplate(source=CHAT_TEMPLATE, tokens={"bos_token": "<s>"})
USER = {"role": "user", "content": "Hello"}
HELLO = Conversation([USER], [], {})
BEFORE = "<s><|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
AFTER = "<|im_end|>\n"

# As Llama 3's: spaces around messages go, and the date stands first
TRIMMING = ChatTemplate(
    source=(
        "{% if strftime_now is defined %}{{ strftime_now('%d %b %Y') }}\n{% endif %}"
        "{% for message in messages %}[{{ message.role }}] {{ message.content | trim }}"
        "<end>{% endfor %}"
    )
)
# As Qwen 3's: an answer gets an empty block of thoughts; earlier ones lose theirs
THINKING = ChatTemplate(
    source=(
        "{% for message in messages %}[{{ message.role }}]"
        "{% if message.role == 'assistant' and loop.last %}<think>\n\n</think>\n\n"
        "{% endif %}{{ message.content.split('</think>')[-1] }}<end>{% endfor %}"
    )
)
# As Qwen 3's in full: thoughts of the last answer stand before it
KEEPING = ChatTemplate(
    source=(
        "{% for message in messages %}[{{ message.role }}]"
        "{% set said = message.content.split('</think>')[-1].lstrip() %}"
        "{% set thoughts = message.reasoning_content or"
        " message.content.split('</think>')[0].split('<think>')[-1].strip() %}"
        "{% if message.role == 'assistant' and thoughts != said %}"
        "<think>\n{{ thoughts }}\n</think>\n\n{% endif %}"
        "{{ said }}<end>{% endfor %}"
    )
)
# As Gemma's: only pairs of user and model
STRICT = ChatTemplate(
    source=(
        "{% if messages[0].role == 'system' %}"
        "{{ raise_exception('System role not supported') }}{% endif %}"
        "{% for message in messages %}{{ message.content }}{% endfor %}"
    )
)


def test_an_answer_stands_after_the_mark_of_the_assistant():
    assert PLAIN.place(HELLO, " Good day. ") == PlacedAnswer(
        BEFORE, " Good day. ", AFTER
    )


def test_a_short_answer_is_not_taken_for_a_mark():
    assert PLAIN.place(HELLO, "im") == PlacedAnswer(BEFORE, "im", AFTER)
    assert THINKING.place(HELLO, "think") == PlacedAnswer(
        "[user]Hello<end>[assistant]<think>\n\n</think>\n\n", "think", "<end>"
    )


def test_what_a_template_removes_is_not_scored():
    assert TRIMMING.place(HELLO, "\n Good day. ") == PlacedAnswer(
        "26 Jul 2024\n[user] Hello<end>[assistant] ", "Good day.", "<end>"
    )
    thoughts = "<think>A greeting.</think>\nGood day."
    assert THINKING.place(HELLO, thoughts).text == "\nGood day."


@pytest.mark.parametrize(
    ("conversation", "answer"),
    [
        (HELLO, "<think>A greeting.</think>\n\nGood day."),
        (Conversation([USER], [], {"reasoning_content": "A greeting."}), "Good day."),
    ],
)
def test_thoughts_that_a_template_writes_stand_before_the_answer(conversation, answer):
    assert KEEPING.place(conversation, answer) == PlacedAnswer(
        "[user]Hello<end>[assistant]<think>\nA greeting.\n</think>\n\n",
        "Good day.",
        "<end>",
    )


def test_the_date_of_the_day_is_not_written():
    assert TRIMMING.writes_date
    assert not PLAIN.writes_date
    assert TRIMMING.render([USER]) == "26 Jul 2024\n[user] Hello<end>"


def test_a_template_may_refuse():
    system = {"role": "system", "content": "Be brief."}
    with pytest.raises(TemplateError, match="refuses it: System role not supported"):
        STRICT.place(Conversation([system, USER], [], {}), "Good day.")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ messages[0].content }}", "does not show the answer once"),
        (CHAT_TEMPLATE.replace("message.content", "message.content | upper"), "once"),
        ("{% for m in messages %}{{ m.content * 2 }}{% endfor %}", "once"),
        (
            "{% for m in messages %}{{ m.content | replace('long', 'short') }}"
            "{% endfor %}",
            "changes the answer",
        ),
        ("{{ 1 / 0 }}", "refuses it: division by zero"),
        ("{{ messages[0].content.missing.more }}", "refuses it"),
    ],
)
def test_a_template_that_changes_answers_gives_no_prompt(source, reason):
    with pytest.raises(TemplateError, match=reason):
        ChatTemplate(source=source).place(HELLO, "A long answer. " * 9)


def test_tools_are_written_by_the_template_for_tools():
    template = ChatTemplate(
        source=CHAT_TEMPLATE, source_with_tools="{{ tools | length }}:" + CHAT_TEMPLATE
    )
    assert template.render([USER], [{"name": "clock"}]).startswith("1:")
    assert template.render([USER]).startswith("<|im_start|>user")


def test_another_template_has_another_digest():
    digests = {
        template.digest
        for template in (
            PLAIN,
            ChatTemplate(source=CHAT_TEMPLATE),
            ChatTemplate(source=CHAT_TEMPLATE + " "),
            ChatTemplate(source=CHAT_TEMPLATE, source_with_tools="x"),
        )
    }
    assert len(digests) == 4
