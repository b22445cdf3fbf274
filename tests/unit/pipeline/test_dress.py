"""Chat servers that know texts by heart and put something around them: the same figures."""

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import polars as pl
import pytest
from click.testing import CliRunner

from mia_batch import Run, second
from mia_batch.cli.main import command
from mia_batch.evidence.dress import known_openings
from mia_batch.pipeline.results import build_answer
from tests import runs
from tests.hostile_server import MODEL, Asked, HostileServer, TinyModel
from tests.runs import found, said_of, written

_dice = Random(7)
TEXTS = [" ".join(f"w{_dice.randrange(500)}" for _ in range(60)) for _ in range(12)]
"""Too few for a blind baseline, which has nothing to do with an endpoint."""
MEMBERS = TEXTS[::2]
SCORE = "samia_matched_v1"
Wearing = Callable[[str, str], str]


class Memoriser(TinyModel):
    """Knows members and classics by heart, and puts something around whatever it says."""

    def __init__(
        self, wear: Wearing = lambda _, text: text, *, chat: bool = True
    ) -> None:
        super().__init__()
        self._wear = wear
        self._chat = chat

    def text(self, prompt: Any, seed: int) -> str:
        prompted = prompt.partition("\n\n")[2] if self._chat else prompt
        known_texts = [*MEMBERS, *("".join(opening) for opening in known_openings())]
        rests = (
            text.partition(prompted)[2] for text in known_texts if prompted in text
        )
        return self._wear(prompted, next(rests, "") or super().text(prompted, seed))


class Limited(Memoriser):
    """Says no more words than tokens were asked for."""

    def _choice(self, request: Asked, index: int, number: int) -> dict[str, Any]:
        choice = super()._choice(request, index, number)
        answer_words = choice["message"]["content"].split(" ")
        choice["message"]["content"] = " ".join(
            answer_words[: request.fields["max_tokens"]]
        )
        return choice


def lead(_: str, text: str) -> str:
    return f"Sure! Here's the continuation of the text:\n\n{text.strip()}"


def for_some(prompt: str, text: str) -> str:
    return (
        f"Voilà la suite :\n« {text.strip()} »"
        if Random(prompt).random() < 0.6
        else text
    )


def echoing(prompt: str, text: str) -> str:
    return f"...{' '.join(prompt.split()[-3:])} {text.strip()}\n\nShall I go on?"


def fenced(_: str, text: str) -> str:
    return (
        f"**Continuation:**\n\n```\n{text.strip()}\n```\nLet me know if you want more."
    )


def settings_in(folder: Path, server: HostileServer, **changed: Any) -> dict[str, Any]:
    members = [text in MEMBERS for text in TEXTS]
    corpus = written(folder, pl.DataFrame({"text": TEXTS, "member": members}))
    own_settings = {
        "model": MODEL,
        "base_url": server.url,
        "report": False,
        "samples": 2,
        "chat": True,
    }
    return (
        own_settings
        | {"preset": "matched", "input": corpus, "out": str(folder / "run")}
        | changed
    )


def audit_answers(folder: Path, answer: Memoriser, **changed: Any) -> Run:
    with HostileServer(answer) as server:
        return runs.audit(**settings_in(folder, server, **changed))


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Run:
    return audit_answers(tmp_path_factory.mktemp("plain"), Memoriser())


@pytest.mark.parametrize("wear", [lead, for_some, echoing, fenced])
def test_scores_are_those_of_a_plain_server_and_both_forms_are_kept(
    wear, plain, tmp_path
):
    run = audit_answers(tmp_path, Memoriser(wear))
    assert run["scores"].drop("n_short").equals(plain["scores"].drop("n_short"))
    auc_row = {"metric": "roc_auc", "attack": SCORE, "slice": "all"}
    assert run["metrics"].filter(**auc_row)["value"].to_list() == [1.0]
    pairs = run["samples"].select("raw", "candidate")
    bare = [text.split() for text in pairs["candidate"]]
    assert bare == [text.split() for text in plain["samples"]["candidate"]]
    changed = pairs.filter(pl.col("raw").is_not_null())
    assert changed.height == found(run, "dress")["n_dressed"] * 2 > 0
    assert all(candidate.strip() in raw for raw, candidate in changed.iter_rows())
    lines, equal = second.compare(run.folder, 20)
    assert equal, lines


def test_a_plain_server_keeps_its_answers_as_they_are(plain):
    assert plain.manifest.dress["rule"] == []
    assert plain["samples"]["raw"].null_count() == 24
    assert found(plain, "dress") == {
        **dict.fromkeys(("n_dressed", "n_alike", "n_repeating", "n_empty"), 0),
        "n_prompts": 12,
        "verdict": None,
    }


def test_the_rule_is_said_shown_and_kept_for_later_samples(tmp_path):
    with HostileServer(Memoriser(lead)) as server:
        run = runs.audit(**settings_in(tmp_path, server))
        rule = run.manifest.dress["rule"]
        extended = runs.audit(**settings_in(tmp_path, server, samples=3))
    assert rule == extended.manifest.dress["rule"]
    assert rule == [
        {"kind": "lead", "text": "Sure! Here's the continuation of the text:"}
    ]
    capabilities = run.manifest.engines["samples of target"]["capabilities"]
    assert capabilities["dress"] == rule
    assert capabilities["dialect"]["lead"] == 44 // 2 + 8
    assert extended["samples"]["raw"].str.starts_with("Sure!").all()
    assert not extended["samples"]["candidate"].str.contains("Sure!").any()
    sentence = (
        "The answers to 12 of 12 prompts that were looked at have more than a"
        ' continuation: a lead-in ("Sure! Here\'s the continuation of the text:"). One'
        " rule takes it off all answers before they are compared; the table of samples"
        " keeps both forms."
    )
    assert sentence in said_of(run)
    shown_text = CliRunner().invoke(command, ["show", str(run.folder)]).output
    assert sentence in " ".join(shown_text.split())


def test_there_is_room_for_the_lead_in_where_few_words_are_asked_for(tmp_path):
    few_texts = {
        "preset": "default",
        "samples": None,
        "attacks": "probe_first_word_v1",
        "probes": 4,
    }
    run = audit_answers(tmp_path, Limited(lead), **few_texts)
    hits = run["scores"].group_by("member").agg(pl.col("probe_first_word_v1").mean())
    assert dict(hits.iter_rows()) == {True: 1.0, False: 0.0}


class Parrot(Memoriser):
    """Says the last words of every prompt, and nothing else."""

    def text(self, prompt: Any, seed: int) -> str:
        return " ".join(prompt.split()[-seed % 3 - 6 :])


def test_a_model_that_does_not_continue_texts_has_no_area(tmp_path):
    with HostileServer(Parrot()) as server:
        settings = settings_in(tmp_path, server)
        names = ("input", "model", "base_url", "preset", "samples", "out")
        flags = [f"--{name.replace('_', '-')}={settings[name]}" for name in names]
        result = CliRunner().invoke(command, [*flags, "--chat", "--no-report"])
    run = Run(Path(settings["out"]))
    reason = "this model does not continue texts when asked so"
    assert (
        build_answer(run)
        == f"No answer: {reason}: the answers to 12 of 12 prompts repeat the end of the"
        " prompt."
    )
    assert result.exit_code == 1, result.output
    metrics = run["metrics"].filter(~pl.col("attack").str.starts_with("blind_"))
    assert metrics.height > 0
    assert (
        metrics.select("value", "low", "high").null_count().row(0)
        == (metrics.height,) * 3
    )
    assert metrics["reason"].str.starts_with(reason).all()
    assert "No sign of memory" not in result.output
    assert run["curves"].is_empty()


def test_completions_and_recordings_are_looked_at_too(plain, tmp_path):
    run = audit_answers(tmp_path, Memoriser(fenced, chat=False), chat=False)
    candidate = pl.coalesce("raw", "candidate").alias("candidate")
    recorded = run["samples"].select("target_id", "sample_index", candidate)
    recording = written(tmp_path, recorded, "recorded")
    settings = {
        "input": str(tmp_path / "corpus.parquet"),
        "out": str(tmp_path / "again"),
    }
    again = runs.audit(samples_from=recording, report=False, **settings)
    for run_of_answers in (run, again):
        assert run_of_answers["scores"][SCORE].equals(plain["scores"][SCORE])
        assert [layer["kind"] for layer in run_of_answers.manifest.dress["rule"]][
            :1
        ] == ["lead"]
