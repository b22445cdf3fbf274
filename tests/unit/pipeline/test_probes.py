"""Audits at points: what is asked and added, rarity, the true token's log-probability."""

from __future__ import annotations

import math
from statistics import fmean
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
import torch
from polars.testing import assert_frame_equal
from transformers import AutoModelForCausalLM

from mia_batch.attacks.from_samples import PROBE_LOGPROB_ATTACKS
from mia_batch.errors import EngineError, SettingsError
from mia_batch.models.tokens import Tokenizer
from mia_batch.pipeline import plan
from mia_batch.pipeline.context import chosen_attacks
from mia_batch.settings import load_settings
from tests import runs
from tests.checkpoints import save_checkpoint
from tests.hostile_server import MODEL, HostileServer
from tests.next_token_server import BY_ID, NAMED, NextTokenModel
from tests.runs import PROBES, rescore
from tests.unit.evidence.endpoint.test_logprobs import echo
from tests.unit.pipeline.conftest import Listener

if TYPE_CHECKING:
    from tests.hostile_server import Asked, Reply


@pytest.fixture
def probed(probes, tmp_path):
    base = {name: probes.settings[name] for name in ("input", "model", "engine")}

    def audit(out="run", **settings):
        usual = {"attacks": PROBES, "probes": 4, "report": False}
        return runs.audit(**base | usual | settings, out=str(tmp_path / out))

    return audit


def test_answers_are_the_most_likely_ones_and_are_scored(probes):
    run = probes.run
    asked = run["prompts"].filter(pl.col("reason").is_null())
    assert run["samples"].height == asked.height == 6 * 4  # of eight texts, one null and one short
    assert run["samples"]["sample_index"].unique().to_list() == [0]
    whole = pl.col("candidate").str.split(by=" ").list.eval(pl.element().filter(pl.element() != ""))
    assert run["samples"].select((whole.list.len() >= 1).all()).item()
    first = run["features"]["leading_words"] >= 1
    wanted = (
        run["features"]
        .select("target_id", hit=first)
        .group_by("target_id")
        .agg(pl.col("hit").mean())
    )
    scores = run["scores"].join(wanted, on="target_id").select("probe_first_word_v1", "hit")
    assert scores.height == 6
    assert scores["probe_first_word_v1"].to_list() == pytest.approx(scores["hit"].to_list())
    own = run["targets"].filter(pl.col("reason").is_not_null()).select("target_id", "reason")
    assert (
        run["unscored"]
        .select("target_id", "reason")
        .unique()
        .sort("reason")
        .equals(own.sort("reason"))
    )


def test_more_points_are_no_longer_planned(probes, copied_of):
    settings, _, _ = copied_of(probes)
    assert not runs.audit(**settings | {"probes": 7})["verdicts"]["planned"].any()


def test_words_given_at_points_are_those_before_them(probes):
    run = probes.run
    given = run["findings"].filter(check="prompts", subject="probe")
    figures = dict(given.select("statistic", "value").iter_rows())
    prompts = run["prompts"].filter(pl.col("reason").is_null(), view="probe", model="target")
    texts = prompts.join(run["targets"].select("target_id", "target"), on="target_id")
    before = [
        len(text.encode()[:cut].decode().split())
        for text, cut in texts.select("target", "cut").iter_rows()
    ]
    assert figures == {
        "n_prompts": len(before),
        "words_given_mean": pytest.approx(sum(before) / len(before)),
        "words_given_least": min(before),
        "words_given_most": max(before),
    }


def test_each_text_is_weighed_as_a_group_where_groups_are_not_compared(probes, probed, tmp_path):
    """One book alone has no elsewhere but its other texts; unlabelled books have no p-values."""
    whole = pl.read_parquet(probes.settings["input"], glob=False)
    shelves = (pl.col("shelf") // 4).cast(pl.String)
    unknown = pl.lit(None, pl.Boolean)
    found = {"none": probes.run.scan("rarity").collect()}
    for name, texts in {
        "one": whole.with_columns(group=pl.lit("one")),
        "unlabelled": whole.with_columns(group=shelves, member=unknown),
        "labelled": whole.with_columns(group=shelves),
    }.items():
        texts.write_parquet(tmp_path / f"{name}.parquet")
        found[name] = probed(name, input=str(tmp_path / f"{name}.parquet")).scan("rarity").collect()
    assert found["none"].equals(found["one"])
    assert found["none"].equals(found["unlabelled"])
    n_groups = {name: set(rarity["n_groups"]) for name, rarity in found.items()}
    assert (n_groups["none"], n_groups["labelled"]) == ({6}, {2})


def test_a_runs_own_answers_are_replayed(probes, tmp_path):
    run = probes.run
    again = runs.audit(
        input=run.manifest.settings["input"],
        samples_from=str(run.path("samples")),
        attacks=PROBES,
        probes=4,
        out=tmp_path / "again",
    )
    assert again["scores"].equals(run["scores"])
    assert again["samples"].drop("answer").equals(run["samples"].drop("answer"))


def test_another_runs_table_of_rarity_is_looked_at_before_sampling(
    probes, copied_of, probed, small_audit, tmp_path
):
    _, other, _ = copied_of(probes)
    table = other.path("rarity")
    whole = table.read_bytes()
    table.write_bytes(whole[:100])
    for place, said in {
        small_audit[1].folder: "no run with a table",
        tmp_path / "nothing": "no run with a table",
        tmp_path / "own": "the run itself.*name another",
        other.folder: "is damaged; give that run's own",
    }.items():
        with pytest.raises(SettingsError, match=rf"rarity_from.*{said}"):
            probed("own", rarity_from=place)
    assert not list((tmp_path / "own" / "samples").glob("*"))
    table.write_bytes(whole)
    of_others = probed("own", rarity_from=other.folder)
    assert of_others.manifest.plan["rests_on"].keys() > {"rarity_from", "probes"}


def test_what_cannot_be_probed_is_refused(probes, copied_of, checkpoint, small_audit):
    settings, run, _ = copied_of(probes)
    with pytest.raises(SettingsError, match=r"probe_answers.*greedy.*drawn"):
        runs.audit(**settings | {"samples": 2})
    recorded: dict[str, Any] = {"samples_from": str(run.path("samples"))}
    recorded["reference_model"] = str(checkpoint)
    with pytest.raises(SettingsError, match="needs answers of another model"):
        runs.audit(input=settings["input"], attacks="probe_rarity_difference_v1", **recorded)
    before = {path: path.read_bytes() for path in small_audit[1].folder.rglob("*.*")}
    with pytest.raises(SettingsError, match=r"probe_first_word_v1 cannot be scored.*collects"):
        rescore(small_audit[1].folder, attacks="probe_first_word_v1")
    assert {path: path.read_bytes() for path in small_audit[1].folder.rglob("*.*")} == before


@pytest.mark.parametrize("attack", ["probe_leading_rarity_v1", "probe_first_word_v1"])
def test_texts_that_are_all_too_short_have_no_score(probed, tmp_path, attack):
    answers = pl.DataFrame({"prefix": ["never asked"], "view": ["probe"], "candidate": ["x"]})
    answers.write_parquet(tmp_path / "answers.parquet")
    short = {"model": "recorded", "engine": "auto", "samples_from": tmp_path / "answers.parquet"}
    run = probed(attacks=attack, probe_words=64, **short)
    assert run["scores"][attack].null_count() == 8
    assert run["unscored"]["reason"].value_counts(sort=True)["count"].to_list() == [6, 1, 1]


def test_a_reference_model_answers_the_same_points(probes, probed, tmp_path):
    other = save_checkpoint(tmp_path / "reference")
    names = "probe_rarity_difference_v1,petal_v1,probe_rarity_loss_v1"
    run = probed(reference_model=str(other), attacks=f"{PROBES},{names}")
    by_model = run["samples"].group_by("model").len().sort("model").rows()
    assert by_model == [("reference", 24), ("target", 24)]
    assert set(run["logprobs"].select("model", "view").unique().rows()) == {
        ("reference", "probe"),
        ("target", "text"),
    }
    assert run["scores"].select(pl.col(names.split(",")).null_count()).row(0) == (2, 2, 2)
    assert run["scores"]["n_samples"].max() == 4
    weighed = pl.read_parquet(run.path("rarity"))
    assert weighed["model"].unique().sort().to_list() == ["reference", "target"]
    alone = probes.run
    assert run["scores"].select(alone["scores"].columns).equals(alone["scores"])


# The true next token's log-probability.

NAMES = [attack.name for attack in PROBE_LOGPROB_ATTACKS]


KEY = ("target_id", "view_index")


@pytest.fixture(scope="module")
def usual(small_audit):
    """Settings of an audit by the engine of this machine."""
    given, _ = small_audit
    same = {name: given[name] for name in ("input", "model", "engine")}
    return same | {"evidence": "probe-logprobs", "probes": 4, "report": False}


@pytest.fixture(scope="module")
def ours(usual, tmp_path_factory):
    """Such an audit."""
    return runs.audit(**usual, out=str(tmp_path_factory.mktemp("ours")))


@pytest.fixture
def here(usual, tmp_path):
    """Another such audit."""

    def audit(out="here", **changed):
        settings = {**usual, **changed, "out": str(tmp_path / out)}
        return runs.audit(**{name: x for name, x in settings.items() if x is not None})

    return audit


@pytest.fixture
def there(small_audit, tmp_path):
    """Settings of an audit of a server."""
    given, _ = small_audit

    def settings(server: HostileServer, out: str = "there", **changed: Any) -> dict[str, Any]:
        return {
            "input": given["input"],
            "model": MODEL,
            "base_url": server.url,
            "tokenizer": given["model"],
            "evidence": "probe-logprobs",
            "probes": 4,
            "max_concurrency": 1,
            "report": False,
            "out": str(tmp_path / out),
        } | changed

    return settings


@pytest.fixture(scope="module")
def model(checkpoint):
    return NextTokenModel(checkpoint)


def test_the_engine_here_gives_what_is_worked_out_slowly(ours, checkpoint):
    run = ours
    targets = dict(run["targets"].select("target_id", "target").iter_rows())
    tokenizer = Tokenizer.load(str(checkpoint))
    network = AutoModelForCausalLM.from_pretrained(checkpoint)
    wanted: dict[str, list[float]] = {}
    for prompt in run["prompts"].filter(pl.col("reason").is_null()).iter_rows(named=True):
        context = targets[prompt["target_id"]].encode()[: prompt["cut"]].decode()
        before = tokenizer.encode_prompts([context])[0]
        token = tokenizer.encode_prompts([context + prompt["text"]])[0][len(before)]
        with torch.no_grad():
            logits = network(torch.tensor([before])).logits[0, -1]
        value = float(logits.log_softmax(-1)[token])
        row = run["logprobs"].row(by_predicate=same(prompt), named=True)
        assert row["token_ids"] == [token]
        assert row["logprob"] == pytest.approx([value], abs=1e-4)
        assert row["bounded"] is False
        wanted.setdefault(prompt["target_id"], []).append(row["logprob"][0])
    assert [len(found) for found in wanted.values()] == [4] * 6
    for row in run["scores"].iter_rows(named=True):
        found = wanted.get(row["target_id"])
        lowest = sorted(found)[: max(1, int(0.2 * len(found)))] if found else []
        assert row["probe_loss_v1"] == (found and pytest.approx(fmean(found)))
        assert row["probe_min_k_20_v1"] == (found and pytest.approx(fmean(lowest)))
    reasons = run["unscored"].filter(attack="probe_loss_v1")["reason"]
    assert sorted(reasons) == ["the text has no further point", "the text is null"]


def same(prompt: dict[str, Any]) -> pl.Expr:
    return pl.all_horizontal(pl.col(name) == prompt[name] for name in KEY)


def test_more_points_ask_only_for_what_is_missing_and_fewer_for_nothing(here, ours):
    def parts():
        return {path.name: path.read_bytes() for path in run.path("logprobs").iterdir()}

    run = here(probes=2)
    few, before = run["scores"], parts()
    run = here(probes=4)
    after = parts()
    assert before.items() <= after.items()
    assert run["logprobs"].filter(pl.col("reason").is_null()).height == 6 * 4
    assert_frame_equal(run["scores"], ours["scores"], abs_tol=1e-5)
    fewer = here(probes=2)
    assert parts() == after
    assert fewer["scores"].equals(few)


def test_samples_and_log_probabilities_are_of_the_same_prompts(here, ours):
    run = here(evidence=None, attacks="probe_first_word_v1,probe_loss_v1")
    assert run["prompts"].equals(ours["prompts"])
    assert run["samples"].height == run["logprobs"].filter(pl.col("reason").is_null()).height == 24
    names = ["target_id", "probe_loss_v1"]
    assert_frame_equal(run["scores"].select(names), ours["scores"].select(names), abs_tol=1e-5)


def test_tables_of_runs_that_knew_no_bounds_are_read(here, ours):
    run = here(probes=2)
    (part,) = run.path("logprobs").iterdir()
    pl.read_parquet(part).drop("bounded").write_parquet(part)
    run = here(probes=4)
    assert len(list(run.path("logprobs").iterdir())) == 2
    assert run["logprobs"].filter(pl.col("bounded").not_()).height == 6 * 2
    assert_frame_equal(run["scores"], ours["scores"], abs_tol=1e-5)


@pytest.mark.parametrize("honours", [(NAMED, BY_ID), (NAMED,)], ids=["ids", "texts"])
def test_an_endpoint_that_honours_names_has_the_tables_of_the_engine_here(
    ours, there, checkpoint, honours
):
    listener = Listener()
    with HostileServer(NextTokenModel(checkpoint, honours=honours)) as server:
        run = runs.audit(**there(server), observer=listener)
    assert_frame_equal(run["logprobs"], ours["logprobs"], abs_tol=1e-4)
    assert_frame_equal(run["scores"], ours["scores"], abs_tol=1e-4)
    assert "it honours 'logprob_token_ids': log-probabilities are exact" in listener.sentences
    capabilities = run.manifest.engines["probe-logprobs of target"]["capabilities"]
    assert capabilities["named_token"] == "honoured"
    assert run.manifest.models["target"]["probe-logprobs"] == "exact"
    assert run.manifest.passes == {"target probe": 24}


@pytest.mark.parametrize(("how", "verb"), [("ignored", "ignores"), ("refused", "refuses")])
def test_bounds_are_above_the_true_values_and_said_to_be_bounds(ours, there, checkpoint, how, verb):
    listener = Listener()
    refuses = [NAMED] if how == "refused" else []
    bounding = NextTokenModel(checkpoint, honours=[BY_ID], refuses=refuses)
    with HostileServer(bounding) as server:
        run = runs.audit(**there(server), observer=listener)
    rows = run["logprobs"].join(ours["logprobs"], on=KEY, suffix="_true")
    both = rows.select(
        "bounded", value=pl.col("logprob").list[0], true=pl.col("logprob_true").list[0]
    ).drop_nulls()
    assert both["bounded"].sum() > 0
    for bounded, value, true in both.iter_rows():
        assert value >= true - 1e-4 if bounded else value == pytest.approx(true, abs=1e-4)
    told = [sentence for sentence in listener.sentences if NAMED in sentence]
    assert [sentence.startswith(f"it {verb} ") for sentence in told] == [True]
    assert "not among the 20 most likely" in told[0]
    capabilities = run.manifest.engines["probe-logprobs of target"]["capabilities"]
    assert (capabilities["named_token"], capabilities["top_logprobs"]) == (how, 20)
    assert run["scores"]["probe_loss_v1"].null_count() == 2


def test_without_log_probabilities_a_run_is_refused(there, checkpoint):
    for number, refuses in enumerate([("logprobs",), ()]):
        silent = NextTokenModel(checkpoint, refuses=refuses, most=0)
        with (
            HostileServer(silent) as server,
            pytest.raises(SettingsError, match=r"no log-probabilities of the next token"),
        ):
            runs.audit(**there(server, out=f"there{number}"))
        assert server.asked == []


def test_a_chat_is_asked_for_the_first_token_of_its_reply(there, model):
    with HostileServer(model) as server:
        settings = there(server, chat=True, chat_instruction="Go on:")
        run = runs.audit(**settings)
        prompts = run["prompts"].filter(pl.col("reason").is_null())
        with pytest.raises(SettingsError, match="'probe-logprobs chat_instruction' of model"):
            runs.audit(**settings | {"chat_instruction": "Else", "probes": 5})
    assert {asked.path for asked in server.asked} == {"/v1/chat/completions"}
    texts = dict(run["targets"].select("target_id", "target").iter_rows())
    for prompt in prompts.iter_rows(named=True):
        context = texts[prompt["target_id"]].encode()[: prompt["cut"]].decode()
        (token, *_), *_ = model.tokenizer.encode([prompt["text"].lstrip()])
        row = run["logprobs"].row(by_predicate=same(prompt), named=True)
        value = model.logprobs(f"Go on:\n\n{context}")[token]
        assert (row["token_ids"], row["bounded"]) == ([token], False)
        assert row["logprob"] == pytest.approx([value], abs=1e-4)


def test_exact_values_and_bounds_are_never_in_one_run(there, model, checkpoint):
    with HostileServer(model) as server:
        run = runs.audit(**there(server))
        server._answer = NextTokenModel(checkpoint, honours=[BY_ID])
        message = "'probe-logprobs' of model 'target' was 'exact', is now 'top 20, or bounds'"
        with pytest.raises(SettingsError, match=message):
            runs.audit(**there(server, probes=6))
        assert len(server.asked) == 24
    assert not run["logprobs"]["bounded"].any()


def test_a_run_that_stopped_asks_nothing_twice(there, model):
    prices = {"price_in": 0.0, "price_out": 1e6}  # a token, a coin
    with HostileServer(model) as server:
        with pytest.raises(EngineError, match=r"'max_cost' is 26.* higher"):
            runs.audit(**there(server, **prices, max_cost=26.0))
        stopped = len(server.asked)
        run = runs.audit(**there(server, **prices, max_cost=1e6))
        asked = [(each.prompt, *each.fields[NAMED]) for each in server.asked]
        whole = runs.audit(**there(server, out="whole"))
    assert 0 < stopped < 24
    assert len(asked) == len(set(asked)) == 24
    assert run["logprobs"].equals(whole["logprobs"])
    assert run["scores"].equals(whole["scores"])


def test_the_cost_is_told_before_the_first_request(there, model):
    listener = Listener()
    prices = {"price_in": 1000.0, "price_out": 10_000.0}
    with HostileServer(model) as server:
        settings = there(server, **prices)
        planned = dict(plan(load_settings(settings)))
        assert (server.asked, server.probes) == ([], [])
        runs.audit(observer=listener, **settings)
        left = dict(plan(load_settings(settings)))
    told = dict(line.partition(": ")[::2] for line in listener.sentences)
    name = "target probe, at most"
    assert told[name] == planned[name]
    n_bytes = sum(len(asked.prompt.encode()) for asked in server.asked)
    requests, tokens_in, _, _ = (part.strip() for part in planned[name].split(", "))
    assert requests == "24 requests"
    assert int(tokens_in.split()[0].replace(",", "")) >= n_bytes + 24 * 16
    assert planned[name].endswith(f"cost {math.fsum(_costs(planned[name])):,.2f}")
    assert planned["target probe"] == "24 forward passes"
    assert left["target probe"] == "0 forward passes"
    assert name not in left


def _costs(text: str) -> list[float]:
    counts = [int(part.split()[0].replace(",", "")) for part in text.split(", ")[1:3]]
    return [counts[0] / 1000, counts[1] / 100]


def test_an_endpoint_without_a_tokenizer_is_refused_before_it_is_asked(there, model, tmp_path):
    with HostileServer(model) as server:
        settings = there(server)
        del settings["tokenizer"]
        with pytest.raises(SettingsError, match=r"probe_loss_v1 needs setting 'tokenizer' at an"):
            runs.audit(**settings)
        assert (server.asked, server.probes) == ([], [])
    assert not (tmp_path / "there").exists()


def test_whole_texts_beside_points_are_asked_for_in_their_own_way(there, model):
    def answer(asked: Asked) -> Reply:
        return echo(asked) if asked.fields.get("echo") else model(asked)

    with HostileServer(answer) as server:
        settings = there(server, evidence=None, attacks="loss_v1,probe_loss_v1")
        run = runs.audit(**settings)
        alone = runs.audit(**there(server, out="alone"))
        n_asked = len(server.asked)
        runs.audit(**settings)
        assert len(server.asked) == n_asked
    assert run["scores"]["loss_v1"].null_count() == 1
    assert run["scores"]["probe_loss_v1"].equals(alone["scores"]["probe_loss_v1"])
    assert run.manifest.passes == {"target text": 7, "target probe": 24}


@pytest.mark.parametrize(
    ("evidence", "attacks", "computed"),
    [
        ("probe-logprobs", None, NAMES),
        ("logprobs", "loss_v1,probe_loss_v1", ["loss_v1", "probe_loss_v1"]),
        (None, "probe_min_k_20_v1", ["probe_min_k_20_v1"]),
    ],
)
def test_attacks_at_points_are_computed_where_they_are_asked_for(
    usual, evidence, attacks, computed
):
    settings = load_settings(usual | {"evidence": evidence, "attacks": attacks})
    assert [attack.name for attack in chosen_attacks(settings)] == computed


def test_a_preset_without_an_attack_on_the_evidence_is_refused(usual):
    settings = load_settings(usual | {"preset": "min-k", "evidence": "samples", "attacks": None})
    with pytest.raises(SettingsError, match=r"'min-k' has no attack on samples; leave it out"):
        chosen_attacks(settings)


def test_with_both_kinds_of_evidence_attacks_on_both_are_computed(usual):
    settings = load_settings(usual | {"evidence": "both", "attacks": None})
    computed = [attack.name for attack in chosen_attacks(settings)]
    assert computed[0] == "probe_leading_rarity_v1"
    assert computed[-1] == "probe_rarity_loss_v1"
    with pytest.raises(SettingsError, match="needs evidence 'logprobs'"):
        chosen_attacks(
            load_settings(usual | {"evidence": "samples", "attacks": "probe_rarity_loss_v1"})
        )
