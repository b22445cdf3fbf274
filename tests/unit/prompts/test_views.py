"""Prompts of each view: wording, places, order, what cannot be asked, and seeds of samples."""

from functools import partial
from hashlib import blake2b
from itertools import pairwise, permutations

import polars as pl
import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from mia_batch import prompts
from mia_batch.errors import SettingsError
from mia_batch.models.tokens import Tokenizer
from mia_batch.schemas import Prompts
from mia_batch.views import SHADOW, SHADOW_NUMBER, TARGET, RunModel, View
from tests import frames
from tests.checkpoints import TEXTS

TARGETS = frames.targets(
    {"target": "äh so on", "prefix": "äh so", "reference": " on"},
    {"target": "one two", "prefix": "eins", "reference": "zwei"},
    {"target": "x", "reason": "too short"},
)
SHOTS = prompts.Shots(
    context="one two\n\n", texts=frozenset({"one two"}), n_shots=1, n_tokens=3
)
SHOT = "the text is one of those that are put before others"
TOO_SHORT = (None, None, "too short")


def test_a_model_is_its_name_and_knows_its_role_and_number():
    names = ["target", "reference", "masked", "candidate", "shadow-0", "shadow-12"]
    models = [*map(RunModel, names)]
    roles = ["target", "reference", "masked", "candidate", SHADOW, SHADOW]
    assert [model.role for model in models] == roles
    assert [model.number for model in models] == [0, 0, 0, 0, 0, 12]
    assert [model.is_trained_here for model in models] == [False] * 3 + [True] * 3
    assert RunModel.shadow(12) == models[-1]
    assert models[0] == TARGET
    table = pl.Series("model", models)
    assert table.equals(pl.Series("model", names))
    numbers = table.str.extract(SHADOW_NUMBER).to_list()
    assert numbers == [None] * 4 + ["0", "12"]


@pytest.mark.parametrize(
    ("make", "columns", "resolved"),
    [
        (
            prompts.continuation,
            ("prefix", "reference"),
            [("äh so", " on", None), ("eins", "zwei", None), TOO_SHORT],
        ),
        (
            prompts.extraction,  # a space between parts that do not join
            ("prefix", "reference"),
            [("äh so", " on", None), ("eins", " zwei", None), TOO_SHORT],
        ),
        (
            lambda targets: prompts.text(targets).with_columns(cut=pl.lit(3)),  # bytes
            ("target",),
            [("äh", " so on", None), ("one", " two", None), ("x", "", None)],
        ),
        (
            lambda targets: prompts.after_shots(targets, shots=SHOTS),
            ("target",),
            [
                ("one two\n\n", "äh so on", None),
                (None, None, SHOT),
                ("one two\n\n", "x", None),
            ],
        ),
    ],
)
def test_what_is_cut_from_a_target(make, columns, resolved):
    view = View(model=TARGET, name="any", make=make, columns=columns)
    rows = Prompts.validate(view.fill_prompts(make(TARGETS)))
    if make is prompts.continuation:  # which stores no text
        assert rows.select("cut", "context", "text").null_count().row(0) == (3, 3, 3)
    whole = view.resolve(rows, TARGETS.select("target_id", *columns))
    assert whole.select("context", "text", "reason").rows() == resolved


def test_whole_texts_are_lowered_repeated_and_taken_for_pairs():
    made = prompts.lowercase(
        frames.targets({"target": "Straße in ÅRHUS, 12 Ж."}, {"target": ""})
    )
    assert made["text"].to_list() == ["straße in århus, 12 ж.", ""]
    assert made["context"].to_list() == ["", ""]
    two = frames.targets({"target": "a"}, {"target": "b"})
    assert prompts.text(two)["cut"].to_list() == [0, 0]
    assert prompts.repeated(two).select("context", "cut").rows() == [
        ("a\n\n", 0),
        ("b\n\n", 0),
    ]
    made = prompts.pairs(two, n=2)
    expected = [(name, index) for name in two["target_id"] for index in range(4)]
    assert made.select("target_id", "view_index").rows() == expected
    assert made["cut"].to_list() == [0] * 8
    assert [row for row in made.rows() if row[2] < 2] == prompts.pairs(two, n=1).rows()


def test_pairs_of_words_are_swapped_at_random():
    made = swapped_with(0)(TARGETS)
    by_row = made.group_by("target_id", maintain_order=True).agg("text", "reason")
    assert set(by_row["text"][1]) == {"two one"}
    assert (
        by_row["reason"][2].to_list()
        == ["the text has fewer than two words to swap"] * 5
    )
    orders = set(by_row["text"][0])  # of three words one swap each
    assert orders <= {"so äh on", "on so äh", "äh on so"}
    many = frames.targets(*({"target": f"a b {n}"} for n in range(300)))
    moved = (
        swapped_with(0)(many)["text"]
        .str.split(" ")
        .list.eval(pl.element().is_in(["a"]))
    )
    places = moved.list.arg_max().value_counts().sort("text")["count"]
    # A swap moves ``a`` to each of the other places in a third of all cases.
    assert places.to_list() == pytest.approx([500, 500, 500], abs=100)
    long = frames.targets({"target": " ".join(map(str, range(100)))})
    first, other = (swapped_with(seed)(long)["text"] for seed in (0, 1))
    assert first.n_unique() == 5
    assert set(first).isdisjoint(other)
    assert first.equals(swapped_with(0)(long)["text"])
    for words in first.str.split(" "):
        assert sorted(map(int, words)) == [*range(100)]
        assert 30 <= sum(word != str(place) for place, word in enumerate(words)) <= 60


def swapped_with(seed):
    return partial(prompts.swapped, seed=seed)


def test_variants_of_a_column_are_numbered_and_missing_ones_have_a_reason():
    targets = TARGETS.head(2).with_columns(mine=pl.Series([["a", "b", "c"], None]))
    rows = prompts.neighbours(targets, column="mine", n=2)
    assert rows.select("view_index", "text").rows() == [
        (0, "a"),
        (1, "b"),
        (0, None),
        (1, None),
    ]
    assert rows["reason"].to_list() == [
        None,
        None,
        *["the text has no further neighbour"] * 2,
    ]
    assert [
        row["reason"] for row in prompts.number_texts("t", (), range(1, 3), "why")
    ] == [
        "why",
        "why",
    ]


PASSAGE, OTHERS = "the true one", ["one", "two", "three"]


def orders(paraphrases, n=prompts.MOST_ORDERS, **row):
    targets = frames.targets({"target": PASSAGE} | row)
    column = pl.Series([paraphrases], dtype=pl.List(pl.String))
    return prompts.choices(targets.with_columns(others=column), column="others", n=n)


def test_the_wording_is_that_of_the_paper_with_the_group_as_the_work():
    first = orders(OTHERS, group="Moby-Dick by Herman Melville")["context"][0]
    assert (
        first
        == "Answer the question with the letter of the right option alone.\n\nQuestion:"
        ' Which of the following passages is verbatim from "Moby-Dick by Herman'
        ' Melville"?\nOptions:\nA. the true one\nB. one\nC. two\nD. three\n\nAnswer:'
    )
    assert "verbatim from an existing text?" in orders(OTHERS)["context"][0]


def test_every_order_is_asked_once_and_label_k_modulo_4_is_right():
    def shown(context):
        options = context.split("Options:\n")[1].removesuffix("\n\nAnswer:").split("\n")
        assert [line[:3] for line in options] == [
            f"{label}. " for label in prompts.LABELS
        ]
        return tuple(line[3:] for line in options)

    found = orders(OTHERS)
    all_orders = [shown(context) for context in found["context"]]
    assert {*all_orders} == {*permutations([PASSAGE, *OTHERS])}
    assert [order.index(PASSAGE) for order in all_orders] == [
        index % 4 for index in range(24)
    ]
    assert found["view_index"].to_list() == [*range(24)]
    assert {*found["text"]} == {" A B C D"}
    for n in (4, 8, 20):
        assert orders(OTHERS, n).equals(found[:n])
    assert orders([*OTHERS, "four"]).equals(found)  # three are shown


@pytest.mark.parametrize(
    ("paraphrases", "reason"),
    [
        (None, "fewer than three paraphrases"),
        ([], "fewer than three paraphrases"),
        (["one", "two"], "fewer than three paraphrases"),
        (["one", None, "three"], "fewer than three paraphrases"),
        (["one", " \n", "three"], "fewer than three paraphrases"),
        (["one", "two", "one"], "are equal"),
        (["one", PASSAGE, "three"], "are equal"),
    ],
)
def test_choices_that_cannot_be_asked_have_a_reason(paraphrases, reason):
    found = orders(paraphrases)
    assert found.height == 24
    assert all(reason in each for each in found["reason"])
    assert found.select("context", "text").null_count().row(0) == (24, 24)


ANSWERS = {
    0: [" A", "Option A is", "A is verbatim", "A. It was the"],
    1: ["B.", "The answer is B.", "B B"],
    2: ["(C)", "A careful reading suggests C"],
    3: ["**D**"],
    None: [
        *(
            "A careful reading",
            "B or C",
            "D'Artagnan rode",
            "b",
            "ABCD",
            "I cannot tell",
            "",
            None,
        ),
        "D\N{RIGHT SINGLE QUOTATION MARK}Artagnan",
    ],
}


@pytest.mark.parametrize(("label", "answers"), ANSWERS.items())
def test_an_answer_is_the_one_label_that_it_names(label, answers):
    frame = pl.DataFrame({"answer": answers}, schema={"answer": pl.String})
    read = frame.select(prompts.read_choice(pl.col("answer"))).unnest("choice")[
        "choice"
    ]
    assert read.to_list() == [label] * len(answers)


CUT = [" ".join(each.split()[:30]) for each in TEXTS[:20]]


@pytest.fixture(scope="module")
def tokenizer(checkpoint):
    return Tokenizer.load(str(checkpoint))


def public(texts, tokenizer=None, n=100, n_tokens=5):
    frame = pl.LazyFrame({"text": texts}, schema={"text": pl.String})
    return prompts.first_tokens(frame, n=n, n_tokens=n_tokens, tokenizer=tokenizer)


def test_first_tokens_are_of_every_text_once_and_more_are_added_to_those_there_are(
    tokenizer,
):
    found = public([*CUT, None, "", " \n"], tokenizer)
    assert found.height == len(CUT)
    assert found["text"].unique().to_list() == [""]
    for context in found["context"]:
        (whole,) = (each for each in CUT if each.startswith(context))
        assert tokenizer.encode([context])[0] == tokenizer.encode([whole])[0][:5]
    few = public(CUT, tokenizer, n=7)
    assert_frame_equal(public(CUT[::-1] + CUT[3:9], tokenizer, n=7), few)
    ids = [set(public(CUT, tokenizer, n=n)["target_id"]) for n in (3, 4, 11, 20, 50)]
    assert [len(each) for each in ids] == [3, 4, 11, 20, 20]
    assert all(fewer < more for fewer, more in pairwise(ids[:-1]))


def test_without_a_tokenizer_they_are_words_and_a_short_text_is_whole():
    found = public(["one two  three four", "one"], n_tokens=3)
    assert sorted(found["context"]) == ["one", "one two three"]
    assert public([]).is_empty()


def points(*texts, n=4, every=4, n_words=1, words="whitespace"):
    targets = frames.targets(*({"target": each} for each in texts))
    return prompts.probes(targets, n=n, every=every, n_words=n_words, words=words)


def contexts(whole, found):
    return [whole.encode()[:cut].decode() for cut in found["cut"].drop_nulls()]


def test_points_of_one_text_by_hand_and_the_last_row_says_that_there_are_no_more():
    # Points behind word 8, 12, .., 28
    whole = " ".join(f"é{number}" for number in range(30))
    found = points(whole, n_words=2)
    assert found["view_index"].to_list() == [0, 1, 2, 3]
    assert found["text"].to_list() == [" é8 é9", " é24 é25", " é16 é17", " é12 é13"]
    assert [each.split()[-1] for each in contexts(whole, found)] == [
        "é7",
        "é23",
        "é15",
        "é11",
    ]
    assert found["reason"].to_list() == [None] * 4
    found = points("a " * prompts.LEAST_CONTEXT + "b", "too short", "")
    assert found["target_id"].to_list() == [
        frames.target_id(number) for number in (0, 0, 1, 2)
    ]
    assert found["view_index"].to_list() == [0, 3, 3, 3]
    assert found["reason"].to_list() == [None, *["the text has no further point"] * 3]
    assert found["text"].to_list() == [" b", None, None, None]


LETTERS = st.text(st.sampled_from("aé漢.😀"), min_size=1, max_size=3)
WORDS = st.lists(LETTERS, max_size=40).map("  ".join)


@drawn(
    WORDS, st.integers(1, 12), st.integers(1, 6), st.integers(1, 3), st.integers(0, 8)
)
def test_every_prompt_ends_with_a_word_and_asks_for_the_next(
    whole, n, every, n_words, further
):
    found = points(whole, n=n, every=every, n_words=n_words).drop_nulls("cut")
    words = whole.split()
    possible = range(prompts.LEAST_CONTEXT, len(words) - n_words + 1, every)
    assert found.height == min(len(possible), n)
    places = []
    for context, next_words in zip(contexts(whole, found), found["text"], strict=True):
        places.append(len(context.split()))
        assert context.split() + next_words.split() == words[: places[-1] + n_words]
        assert whole.startswith(context + next_words)
    assert len({*places} & {*possible}) == found.height
    many = points(whole, n=n + further, every=every, n_words=n_words)
    assert found.equals(many.drop_nulls("cut").head(found.height))


def test_the_first_points_are_spread_over_the_text():
    whole = " ".join(f"w{number}" for number in range(8 + 64))
    found = points(whole, n=16, every=1)
    for n in (2, 4, 8, 16):
        places = sorted(
            len(each.split()) - 8 for each in contexts(whole, found.head(n))
        )
        assert places == [64 // n * number for number in range(n)]


@pytest.mark.parametrize(
    ("rule", "whole", "next_words"),
    [("unicode", "你好我" * 8, "我"), ("rouge", "a-" * 7 + "a b", " b")],
)
def test_words_are_those_of_the_rule(rule, whole, next_words):
    assert points(whole, words=rule, every=100)["text"][0] == next_words


def count(texts):
    """A word is a token, and so is the end of a shot."""
    return [len(each.replace("\n\n", " end ").split()) for each in texts]


def choose(texts, room):
    return prompts.choose_shots(
        texts, room=room, count_tokens=count, setting="nonmember_shots"
    )


@pytest.mark.parametrize(
    ("room", "n_shots"), [(3, 1), (4, 1), (5, 2), (8, 2), (9, 3), (99, 3)]
)
def test_as_many_shots_as_fit_from_the_first_on(room, n_shots):
    found = choose(["a b", " ", "c", "d e f"], room)
    assert found.n_shots == n_shots
    assert found.context == "".join(
        f"{each}\n\n" for each in ["a b", "c", "d e f"][:n_shots]
    )
    assert found.n_tokens == count([found.context])[0] <= room


@pytest.mark.parametrize(
    ("texts", "room", "said"),
    [
        (["a b", "c"], 2, "3 tokens.*2 before"),
        (["a b", "c"], 0, "3 tokens.*0 before"),
        (["a b", "c"], -5, "3 tokens.*0 before"),
        ([], 99, "no text"),
        (["", " \n"], 99, "no text"),
    ],
)
def test_without_room_or_texts_there_are_no_shots(texts, room, said):
    with pytest.raises(SettingsError, match=f"nonmember_shots.*{said}"):
        choose(texts, room)


@drawn(st.integers(-(2**70), 2**70), st.text(max_size=64))
def test_a_seed_is_the_top_of_a_hash_of_run_and_target(run_seed, target_id):
    """So that it fits 62 bits, and seeds of 65,536 samples of two targets never overlap."""
    digest = blake2b(
        f"{run_seed}:{target_id}".encode(), digest_size=8, person=b"mia-batch"
    )
    bits = f"{int(digest.hexdigest(), 16):064b}"
    assert prompts.sample_seed(run_seed, target_id) == int(bits[:46] + "0" * 16, 2)
    # Of every release
    assert prompts.sample_seed(0, "9f86d081884c7d65") == 0x120AFF3C7C3C0000


@drawn(
    st.lists(
        st.sampled_from([*TEXTS, " ", "\n", "\u00e9", "\U0001f600", "x"]), max_size=6
    )
)
def test_points_of_tokens_stand_between_tokens_that_a_prompt_alone_has(
    checkpoint, pieces
):
    whole, n = "".join(pieces), 12
    tokenizer = Tokenizer.load(str(checkpoint))
    found = prompts.tokens(
        frames.targets({"target": whole}),
        n=n,
        tokenizer=(str(checkpoint), None, "model"),
    )
    (ids,) = tokenizer.encode_prompts([whole])
    asked = found.drop_nulls("cut")
    assert asked["view_index"].to_list() == list(range(asked.height))
    for cut, following in asked.select("cut", "text").iter_rows():
        before = tokenizer.encode_prompts([whole.encode()[:cut].decode()])[0]
        *same, _ = tokenizer.encode_prompts(
            [whole.encode()[:cut].decode() + following]
        )[0]
        assert before == same == ids[: len(before)]
        assert len(same) >= prompts.LEAST_CONTEXT
    reasons = found["reason"].drop_nulls().to_list()
    assert reasons == (["the text has no further point"] if asked.height < n else [])


def test_names_are_hidden_first_then_the_longest_words_that_stand_once():
    passage = (
        "The rabbit ran. Then Alice saw the Dormouse sleeping near Al; the rabbit"
        " laughed."
    )
    table = frames.targets({"target": passage}, {"target": "a b c"})
    made = prompts.cloze(table, n=4, words="script")
    words = ["Dormouse", "Alice", "sleeping", "laughed", None]
    assert made["text"].to_list() == words
    assert made["view_index"].to_list() == [0, 1, 2, 3, 3]
    for word, context in made.head(4).select("text", "context").iter_rows():
        assert passage.replace(word, "[MASK]") in context
        assert word not in context
    assert made["reason"].null_count() == 4
    assert "no further word" in made["reason"][4]
    assert_frame_equal(prompts.cloze(table, n=2, words="script").head(2), made.head(2))
