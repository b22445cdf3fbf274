"""Audits at points: what is asked and added, rarity, the true token's log-probability."""

from statistics import fmean
from typing import Any

import polars as pl
import pytest
import torch
from polars.testing import assert_frame_equal
from transformers import AutoModelForCausalLM

from mia_batch import Run, second
from mia_batch.attacks.from_samples import PROBE_LOGPROB_ATTACKS
from mia_batch.errors import SettingsError
from mia_batch.models.tokens import Tokenizer
from mia_batch.observer import Observer
from mia_batch.pipeline.request import choose_attacks
from mia_batch.settings import load_settings
from tests import runs
from tests.checkpoints import save_checkpoint
from tests.hostile_server import MODEL, Asked, HostileServer, Reply
from tests.next_token_server import BIAS, BY_ID, NAMED, NextTokenModel
from tests.runs import PROBES, planned, rescore, written
from tests.unit.evidence.endpoint.test_logprobs import echo
from tests.unit.pipeline.conftest import Listener

ASKED = {"attacks": PROBES, "probes": 4, "report": False}


@pytest.fixture
def probed(probes, tmp_path):
    """Audit the same texts by the same engine."""
    base = {name: probes.settings[name] for name in ("input", "model", "engine")}
    return lambda out="run", **settings: runs.audit(
        **base | ASKED | settings, out=str(tmp_path / out)
    )


@pytest.fixture
def replayed(probes, tmp_path):
    """Audit the answers of the finished run."""
    recording_settings = {
        "input": probes.settings["input"],
        "samples_from": str(probes.run.path("samples")),
    }
    return lambda out="run", **settings: runs.audit(
        **recording_settings | ASKED | settings, out=str(tmp_path / out)
    )


def test_answers_are_the_most_likely_ones_and_words_given_those_before_them(probes):
    run = probes.run
    answerable = run["prompts"].filter(pl.col("reason").is_null())
    # Of eight texts, one null and one short
    assert run["samples"].height == answerable.height == 6 * 4
    assert run["samples"]["sample_index"].unique().to_list() == [0]
    ended = run["samples"].filter(~pl.col("candidate").str.contains(r"[^ ]"))
    assert ended.height <= run["samples"].height / 4
    assert set(ended["finish_reason"]) <= {"stop"}
    hit = pl.col("leading_words") >= 1
    hits_of_target = run["features"].group_by("target_id").agg(wanted=hit.mean())
    scores = (
        run["scores"]
        .join(hits_of_target, on="target_id")
        .select("probe_first_word_v1", "wanted")
    )
    assert scores.height == 6
    assert scores["probe_first_word_v1"].to_list() == pytest.approx(
        scores["wanted"].to_list()
    )
    reasons = [
        run[name]
        .drop_nulls("reason")
        .select("target_id", "reason")
        .unique()
        .sort("reason")
        for name in ("targets", "unscored")
    ]
    assert reasons[0].equals(reasons[1])
    prompts = run["prompts"].filter(
        pl.col("reason").is_null(), view="probe", model="target"
    )
    texts = prompts.join(run["targets"].select("target_id", "target"), on="target_id")
    texts_and_cuts = texts.select("target", "cut").iter_rows()
    n_words_before = [
        len(text.encode()[:n_bytes].decode().split())
        for text, n_bytes in texts_and_cuts
    ]
    assert runs.found(run, "prompts", subject="probe") == {
        "n_prompts": len(n_words_before),
        "words_given_mean": pytest.approx(fmean(n_words_before)),
        "words_given_least": min(n_words_before),
        "words_given_most": max(n_words_before),
    }


def test_each_text_is_weighed_as_a_group_where_groups_are_not_compared(
    probes, replayed, tmp_path
):
    """One book alone has no elsewhere but its other texts; unlabelled books have no p-values."""
    whole = pl.read_parquet(probes.settings["input"], glob=False)
    shelves = (pl.col("shelf") // 4).cast(pl.String)
    columns = {
        "one": {"group": pl.lit("one")},
        "unlabelled": {"group": shelves, "member": pl.lit(None, pl.Boolean)},
        "labelled": {"group": shelves},
    }
    rarity_of_input = {"none": probes.run.scan("rarity").collect()}
    for name, changed in columns.items():
        path = written(tmp_path, whole.with_columns(**changed), name)
        rarity_of_input[name] = replayed(name, input=path).scan("rarity").collect()
    assert rarity_of_input["none"].equals(rarity_of_input["one"])
    assert rarity_of_input["none"].equals(rarity_of_input["unlabelled"])
    n_groups = {
        name: set(rarity["n_groups"]) for name, rarity in rarity_of_input.items()
    }
    assert (n_groups["none"], n_groups["labelled"]) == ({6}, {2})


def test_a_runs_own_answers_are_replayed(probes, replayed):
    again, run = replayed(), probes.run
    assert again["scores"].equals(run["scores"])
    replayed_samples, samples = (
        run_of_pair["samples"]
        .drop("answer")
        .sort("target_id", "view_index", "sample_index")
        for run_of_pair in (again, run)
    )
    # A recording is read in the order of the corpus
    assert replayed_samples.equals(samples)


def test_another_runs_table_of_rarity_is_looked_at_before_sampling(
    probes, copied_of, probed, replayed, small_audit, tmp_path
):
    _, other_run, _ = copied_of(probes)
    table = other_run.path("rarity")
    whole = table.read_bytes()
    table.write_bytes(whole[:100])
    for place, message in {
        small_audit[1].folder: "no run with a table",
        tmp_path / "nothing": "no run with a table",
        tmp_path / "own": "the run itself.*name another",
        other_run.folder: "is damaged; give that run's own",
    }.items():
        with pytest.raises(SettingsError, match=rf"rarity_from.*{message}"):
            probed("own", rarity_from=place)
    assert not list((tmp_path / "own" / "samples").glob("*"))
    table.write_bytes(whole)
    of_others = replayed("other", rarity_from=other_run.folder)
    assert of_others.manifest.plan["rests_on"].keys() > {"rarity_from", "probes"}


def test_what_a_recording_or_a_run_misses_is_refused(checkpoint, replayed, small_audit):
    with pytest.raises(SettingsError, match="needs answers of another model"):
        replayed(attacks="probe_rarity_difference_v1", reference_model=str(checkpoint))
    folder = small_audit[1].folder
    tables_before = runs.tables_of(folder)
    with pytest.raises(
        SettingsError, match=r"probe_first_word_v1 cannot be scored.*collects"
    ):
        rescore(folder, attacks="probe_first_word_v1")
    assert runs.tables_of(folder) == tables_before


@pytest.mark.parametrize("attack", ["probe_leading_rarity_v1", "probe_first_word_v1"])
def test_texts_that_are_all_too_short_have_no_score(replayed, tmp_path, attack):
    answers = pl.DataFrame(
        {"prefix": ["never asked"], "view": ["probe"], "candidate": ["x"]}
    )
    recorded = written(tmp_path, answers, "answers")
    run = replayed(attacks=attack, probe_words=64, samples_from=recorded)
    assert run["scores"][attack].null_count() == 8
    assert run["unscored"]["reason"].value_counts(sort=True)["count"].to_list() == [
        6,
        1,
        1,
    ]


def test_a_reference_model_answers_the_same_points(probes, probed, tmp_path):
    names = ["probe_rarity_difference_v1", "petal_v1", "probe_rarity_loss_v1"]
    reference_model = str(save_checkpoint(tmp_path / "reference"))
    run = probed(reference_model=reference_model, attacks=",".join([PROBES, *names]))
    by_model = run["samples"].group_by("model").len().sort("model").rows()
    assert by_model == [("reference", 24), ("target", 24)]
    views = set(run["logprobs"].select("model", "view").unique().rows())
    assert views == {("reference", "probe"), ("target", "text")}
    assert run["scores"].select(pl.col(names).null_count()).row(0) == (2, 2, 2)
    assert run["scores"]["n_samples"].max() == 4
    weighed = run.scan("rarity").collect()["model"].unique().sort()
    assert weighed.to_list() == ["reference", "target"]
    alone = probes.run["scores"]
    assert run["scores"].select(alone.columns).equals(alone)


# The true next token's log-probability.

NAMES = [attack.name for attack in PROBE_LOGPROB_ATTACKS]
KEY = ("target_id", "view_index")


@pytest.fixture(scope="module")
def usual(texts):
    shared_settings = {
        name: texts.settings[name] for name in ("input", "model", "engine")
    }
    return shared_settings | {
        "evidence": "probe-logprobs",
        "probes": 4,
        "report": False,
    }


@pytest.fixture(scope="module")
def ours(usual, tmp_path_factory):
    return runs.audit(**usual, out=str(tmp_path_factory.mktemp("ours")))


@pytest.fixture
def here(usual, tmp_path):
    return lambda **changed: runs.audit(**usual | changed, out=str(tmp_path / "here"))


@pytest.fixture
def settings_there(usual, tmp_path):
    def settings(
        server: HostileServer, out: str = "there", **changed: Any
    ) -> dict[str, Any]:
        endpoint_settings: dict[str, Any] = usual | {
            "engine": "auto",
            "model": MODEL,
            "tokenizer": usual["model"],
        }
        endpoint_settings |= {
            "base_url": server.url,
            "max_concurrency": 1,
            "out": str(tmp_path / out),
        }
        return endpoint_settings | changed

    return settings


@pytest.fixture(scope="module")
def model(checkpoint):
    return NextTokenModel(checkpoint)


def is_point(prompt: dict[str, Any]) -> pl.Expr:
    return pl.all_horizontal(pl.col(name) == prompt[name] for name in KEY)


def test_the_engine_here_gives_what_is_worked_out_slowly(ours, checkpoint):
    run = ours
    targets = dict(run["targets"].select("target_id", "target").iter_rows())
    tokenizer = Tokenizer.load(str(checkpoint))
    network = AutoModelForCausalLM.from_pretrained(checkpoint)
    expected_logprobs: dict[str, list[float]] = {}
    for prompt in (
        run["prompts"].filter(pl.col("reason").is_null()).iter_rows(named=True)
    ):
        context = targets[prompt["target_id"]].encode()[: prompt["cut"]].decode()
        context_ids = tokenizer.encode_prompts([context])[0]
        token = tokenizer.encode_prompts([context + prompt["text"]])[0][
            len(context_ids)
        ]
        with torch.no_grad():
            logits = network(torch.tensor([context_ids])).logits[0, -1]
        value = float(logits.log_softmax(-1)[token])
        row = run["logprobs"].row(by_predicate=is_point(prompt), named=True)
        assert (row["token_ids"], row["bounded"]) == ([token], False)
        assert row["logprob"] == pytest.approx([value], abs=1e-4)
        expected_logprobs.setdefault(prompt["target_id"], []).append(row["logprob"][0])
    assert [
        len(logprobs_of_text) for logprobs_of_text in expected_logprobs.values()
    ] == [4] * 6
    for row in run["scores"].iter_rows(named=True):
        logprobs_of_text = expected_logprobs.get(row["target_id"])
        lowest = (
            sorted(logprobs_of_text)[: max(1, int(0.2 * len(logprobs_of_text)))]
            if logprobs_of_text
            else []
        )
        assert row["probe_loss_v1"] == (
            logprobs_of_text and pytest.approx(fmean(logprobs_of_text))
        )
        assert row["probe_min_k_20_v1"] == (
            logprobs_of_text and pytest.approx(fmean(lowest))
        )
    reasons = run["unscored"].filter(attack="probe_loss_v1")["reason"]
    assert sorted(reasons) == ["the text has no further point", "the text is null"]


class Progress(Observer):
    """Keeps what is counted, and how far it came."""

    def working(self, what: str, *, done: int, total: int, unit: str) -> None:
        self.said: list[object] = [(unit, done, total)]
        self._done = done

    def worked(self, units: int, tokens: int) -> None:
        self._done += units

    def work_ended(self) -> None:
        self.said.append(self._done)


def test_more_points_ask_only_for_what_is_missing_and_fewer_for_nothing(here, ours):
    """The first points are of a version that knew no bounds."""
    run = here(probes=2)
    few_scores = run["scores"]
    (part,) = run.path("logprobs").iterdir()
    pl.read_parquet(part).drop("bounded").write_parquet(part)
    part_before, heard = part.read_bytes(), Progress()
    run = here(probes=4, observer=heard)
    # Those that are asked, of texts that have some
    assert heard.said == [
        ("point", 12, 24),
        24,
    ]
    parts = {path: path.read_bytes() for path in run.path("logprobs").iterdir()}
    assert (len(parts), parts[part]) == (2, part_before)
    assert run["logprobs"].filter(pl.col("reason").is_null()).height == 6 * 4
    assert run["logprobs"].filter(pl.col("bounded").not_()).height == 6 * 2
    assert_frame_equal(run["scores"], ours["scores"], abs_tol=1e-5)
    assert here(probes=2)["scores"].equals(few_scores)
    assert {path: path.read_bytes() for path in run.path("logprobs").iterdir()} == parts


def test_samples_and_log_probabilities_are_of_the_same_prompts(here, ours):
    run = here(evidence=None, attacks="probe_first_word_v1,probe_loss_v1")
    assert run["prompts"].equals(ours["prompts"])
    assert (
        run["samples"].height
        == run["logprobs"].filter(pl.col("reason").is_null()).height
        == 24
    )
    names = ["target_id", "probe_loss_v1"]
    assert_frame_equal(
        run["scores"].select(names), ours["scores"].select(names), abs_tol=1e-5
    )


def texts_asked_about(run: Run) -> list[str]:
    """Each point with what stands before it."""
    targets = dict(run["targets"].select("target_id", "target").iter_rows())
    prompts = run["prompts"].filter(pl.col("reason").is_null())
    return [
        targets[target_id].encode()[:n_bytes].decode() + text
        for target_id, n_bytes, text in prompts.select(
            "target_id", "cut", "text"
        ).iter_rows()
    ]


def test_an_endpoint_that_honours_names_has_the_tables_of_the_engine_here(
    ours, settings_there, model
):
    """Its cost is said before the first request."""
    listener = Listener()
    with HostileServer(model) as server:
        settings = settings_there(server, price_in=1000.0, price_out=10_000.0)
        foreseen = planned(settings)
        assert (server.asked, server.probes) == ([], [])
        run = runs.audit(**settings, observer=listener)
        plan_left = planned(settings)
    # It bounds the first only
    means = (
        "vocabulary_mean",
        "vocabulary_variance",
        "probe_centred_v1",
    )
    for table in ("logprobs", "scores"):
        both_tables = [
            run_of_pair[table].drop(means, strict=False) for run_of_pair in (run, ours)
        ]
        assert_frame_equal(*both_tables, abs_tol=1e-4)
    bounds, exact = (
        run_of_pair["logprobs"][means[0]].list.first().drop_nulls()
        for run_of_pair in (run, ours)
    )
    assert exact.len() == 24
    assert (bounds > exact - 1e-4).all()
    assert (bounds < 0).all()
    assert (
        "it honours 'logprob_token_ids': log-probabilities are exact"
        in listener.sentences
    )
    capabilities = run.manifest.engines["probe-logprobs of target"]["capabilities"]
    assert capabilities["named_token"] == "honoured"
    assert run.manifest.models["target"]["probe-logprobs"] == "exact"
    assert run.manifest.passes == {"target probe": 24}
    most_cost = foreseen["target probe, at most"]
    assert f"target probe, at most: {most_cost}" in listener.sentences
    n_requests, n_in, n_out = (
        int(part.split()[0].replace(",", "")) for part in most_cost.split(", ")[:3]
    )
    assert n_requests == 24
    assert (
        n_in >= sum(len(request.prompt.encode()) for request in server.asked) + 24 * 16
    )
    assert most_cost.endswith(f"cost: USD {n_in / 1000 + n_out / 100:,.2f}")
    n_tokens = sum(map(len, model.tokenizer.encode_prompts(texts_asked_about(run))))
    passes = [run_of_pair.get("target probe") for run_of_pair in (foreseen, plan_left)]
    assert passes == [
        f"24 forward passes, {n_tokens:,} tokens to read",
        None,
    ]
    assert "target probe, at most" not in plan_left


@pytest.mark.parametrize(
    ("how_asked", "verb"), [("ignored", "ignores"), ("refused", "refuses")]
)
def test_bounds_are_above_the_true_values_and_said_to_be_bounds(
    ours, settings_there, checkpoint, how_asked, verb
):
    listener = Listener()
    refuses = [NAMED] if how_asked == "refused" else []
    bounding = NextTokenModel(checkpoint, honours=[BY_ID], refuses=refuses)
    with HostileServer(bounding) as server:
        run = runs.audit(**settings_there(server), observer=listener)
    rows = run["logprobs"].join(ours["logprobs"], on=KEY, suffix="_true")
    names = ("logprob", "logprob_true", "vocabulary_mean", "vocabulary_mean_true")
    bounds_and_truth = rows.select(
        "bounded", *(pl.col(name).list[0] for name in names)
    ).drop_nulls()
    assert bounds_and_truth["bounded"].sum() > 0
    for bounded, value, true, mean, true_mean in bounds_and_truth.iter_rows():
        assert true_mean - 1e-4 <= mean < 0
        assert (
            value >= true - 1e-4 if bounded else value == pytest.approx(true, abs=1e-4)
        )
    (sentence_said,) = (
        sentence for sentence in listener.sentences if NAMED in sentence
    )
    assert sentence_said.startswith(f"it {verb} ")
    assert "not among the 20 most likely" in sentence_said
    capabilities = run.manifest.engines["probe-logprobs of target"]["capabilities"]
    assert (capabilities["named_token"], capabilities["top_logprobs"]) == (
        how_asked,
        20,
    )
    assert run["scores"]["probe_loss_v1"].null_count() == 2


def test_a_chat_is_asked_for_the_first_token_of_its_reply(settings_there, model):
    with HostileServer(model) as server:
        settings = settings_there(server, chat=True, chat_instruction="Go on:")
        run = runs.audit(**settings)
        prompts = run["prompts"].filter(pl.col("reason").is_null())
        with pytest.raises(
            SettingsError, match="'probe-logprobs chat_instruction' of model"
        ):
            runs.audit(**settings | {"chat_instruction": "Else", "probes": 5})
    assert {request.path for request in server.asked} == {"/v1/chat/completions"}
    texts = dict(run["targets"].select("target_id", "target").iter_rows())
    for prompt in prompts.iter_rows(named=True):
        context = texts[prompt["target_id"]].encode()[: prompt["cut"]].decode()
        (token, *_), *_ = model.tokenizer.encode([prompt["text"].lstrip()])
        row = run["logprobs"].row(by_predicate=is_point(prompt), named=True)
        value = model.logprobs(f"Go on:\n\n{context}")[token]
        assert (row["token_ids"], row["bounded"]) == ([token], False)
        assert row["logprob"] == pytest.approx([value], abs=1e-4)


def test_exact_values_and_bounds_are_never_in_one_run(
    settings_there, model, checkpoint
):
    with HostileServer(model) as server:
        run = runs.audit(**settings_there(server))
        server._answer = NextTokenModel(checkpoint, honours=[BY_ID])
        message = (
            "'probe-logprobs' of model 'target' was 'exact', is now 'top 20, or bounds'"
        )
        with pytest.raises(SettingsError, match=message):
            runs.audit(**settings_there(server, probes=6))
        assert len(server.asked) == 24
    assert not run["logprobs"]["bounded"].any()


def test_whole_texts_next_to_points_are_asked_for_in_their_own_way(
    settings_there, model
):
    def answer(request: Asked) -> Reply:
        return echo(request) if request.fields.get("echo") else model(request)

    with HostileServer(answer) as server:
        settings = settings_there(
            server, evidence=None, attacks="loss_v1,probe_loss_v1"
        )
        run = runs.audit(**settings)
        alone = runs.audit(**settings_there(server, out="alone"))
    assert run["scores"]["loss_v1"].null_count() == 1
    assert run["scores"]["probe_loss_v1"].equals(alone["scores"]["probe_loss_v1"])
    assert run.manifest.passes == {"target text": 7, "target probe": 24}


@pytest.mark.parametrize(
    ("changed", "computed"),
    [
        ({}, NAMES),
        (
            {"evidence": "logprobs", "attacks": "loss_v1,probe_loss_v1"},
            ["loss_v1", "probe_loss_v1"],
        ),
        ({"evidence": None, "attacks": "probe_min_k_20_v1"}, ["probe_min_k_20_v1"]),
        ({"evidence": "both"}, ["probe_leading_rarity_v1", "probe_rarity_loss_v1"]),
        (
            {"evidence": "samples", "preset": "min-k"},
            "'min-k' has no attack on samples; leave it",
        ),
        (
            {"evidence": "samples", "attacks": "probe_rarity_loss_v1"},
            "needs evidence 'logprobs'",
        ),
    ],
)
def test_attacks_at_points_are_computed_where_they_are_asked_for(
    usual, changed, computed
):
    """Of both kinds of evidence, the first and the last."""
    settings = load_settings(usual | changed)
    if isinstance(computed, str):
        with pytest.raises(SettingsError, match=computed):
            choose_attacks(settings)
    else:
        attack_names = [attack.name for attack in choose_attacks(settings)]
        assert (
            attack_names[:: len(attack_names) - 1]
            if changed == {"evidence": "both"}
            else attack_names
        ) == computed


# The next token alone, with a nudge towards the true one.

TOKENS = {"evidence": "samples", "attacks": "token_hits_v1", "token_points": 6}


@pytest.mark.parametrize("nudge", [0.0, 6.0])
def test_next_tokens_are_the_likeliest_with_the_nudge(
    here, settings_there, checkpoint, model, nudge
):
    """Here, worked out slowly, and at an endpoint."""
    run = here(**TOKENS, nudge=nudge)
    targets = dict(run["targets"].select("target_id", "target").iter_rows())
    network, hits = (
        AutoModelForCausalLM.from_pretrained(checkpoint),
        dict[str, list[bool]](),
    )
    answers = run["samples"].rows_by_key(KEY, named=True, unique=True)
    for prompt in (
        run["prompts"].filter(pl.col("reason").is_null()).iter_rows(named=True)
    ):
        context = targets[prompt["target_id"]].encode()[: prompt["cut"]].decode()
        *ids_before, token = model.tokenizer.encode_prompts([context + prompt["text"]])[
            0
        ]
        with torch.no_grad():
            logits = network(torch.tensor([ids_before])).logits[0, -1]
        logits[token] += nudge
        row_said = answers[prompt["target_id"], prompt["view_index"]]
        assert (
            row_said["candidate"]
            == model.tokenizer.decode_candidates(ids_before, [[int(logits.argmax())]])[
                1
            ][0]
        )
        assert (row_said["n_tokens"], row_said["short"]) == (1, False)
        hits.setdefault(prompt["target_id"], []).append(int(logits.argmax()) == token)
    scores = dict(run["scores"].select("target_id", "token_hits_v1").iter_rows())
    assert {name: score for name, score in scores.items() if score is not None} == {
        name: pytest.approx(fmean(hits_of_name)) for name, hits_of_name in hits.items()
    }
    assert nudge == 0 or 0 < fmean(scores[name] for name in hits) < 1
    with HostileServer(model) as server:
        far = runs.audit(**settings_there(server, **TOKENS, nudge=nudge))
        assert {BIAS in request.fields for request in server.asked[-6:]} == {nudge > 0}
    assert_frame_equal(far["scores"], run["scores"])


def test_what_is_expected_of_next_tokens_is_recomputed(here):
    name = "token_hits_less_expected_v1"
    run = here(**TOKENS | {"attacks": name, "token_points": 64}, nudge=6.0)
    scores = dict(run["scores"].drop_nulls(name).select("target_id", name).iter_rows())
    files = second.RunFiles(run.folder)
    assert len(scores) > 1
    for target_id, score in scores.items():
        assert second.recompute_score(files, name, {"key": target_id}) == {
            "score": pytest.approx(score, rel=1e-9)
        }


def test_an_endpoint_that_does_not_raise_logits_is_refused_or_asked_without(
    settings_there, checkpoint
):
    for model_options, verb_said in (
        ({"honours": []}, "ignores"),
        ({"refuses": [BIAS]}, "refuses"),
    ):
        with HostileServer(NextTokenModel(checkpoint, **model_options)) as server:
            with pytest.raises(
                SettingsError, match=f"{verb_said} 'logit_bias'.*give nudge= 0"
            ):
                runs.audit(**settings_there(server, **TOKENS, out=verb_said, nudge=5.0))
            assert not list(server.asked)
            usual = settings_there(server, **TOKENS, out=f"{verb_said} by default")
            # It goes on without, twice
            for run in (
                runs.audit(**usual),
                runs.audit(**usual),
            ):
                assert (
                    run.manifest.evidence["nudge"]
                    == run.manifest.settings["nudge"]
                    == 0
                )
            assert run["samples"]["candidate"].drop_nulls().len() > 0
            assert [BIAS in request.fields for request in server.asked] == [
                False
            ] * len(server.asked)
    plain = {
        "engine": "openai",
        "base_url": "http://127.0.0.1:1",
        "evidence": "samples",
    }
    for changed, first in (
        ({}, "token_hits_less_expected_v1"),
        ({"tokenizer": None}, "probe_leading_rarity_v1"),
        ({"chat": True}, "probe_leading_rarity_v1"),
        ({"reference_model": "x"}, "probe_leading_rarity_v1"),
    ):
        settings_given = (
            {"input": "x", "model": "m", "tokenizer": "t"} | plain | changed
        )
        names = [
            attack.name for attack in choose_attacks(load_settings(settings_given))
        ]
        assert names[0] == first
        assert ("token_hits_v1" in names) is (first == "token_hits_less_expected_v1")
