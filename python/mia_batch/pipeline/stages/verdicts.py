"""What the texts show before a model is asked, and verdicts from scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import chain
from typing import Any

import polars as pl

from mia_batch.attacks import Attack, score_by
from mia_batch.attacks.attack import CODEC, COMBINATION
from mia_batch.diagnostics.preflight import check_targets, with_undeclared
from mia_batch.diagnostics.unscored import class_rows, find_uneven_scores, uneven_findings
from mia_batch.errors import SettingsError
from mia_batch.inference.comparison import read_comparison_sets
from mia_batch.inference.conformal import score_errors
from mia_batch.inference.e_values import RoundsTest
from mia_batch.inference.findings import (
    VerdictPlan,
    finding_rows,
    gate_findings,
    gate_verdict,
    plan_findings,
    preregister,
    reported_findings,
    role_counts,
    role_findings,
    why_withheld,
    withhold,
)
from mia_batch.inference.memory import verbatim_runs
from mia_batch.inference.sets import (
    FEW_BOOKS,
    codec_findings,
    combination_findings,
    few_books_findings,
    infer_dataset,
)
from mia_batch.inference.verdicts import (
    placebo_findings,
    power_findings,
    verdicts,
    weight_findings,
)
from mia_batch.inference.yardstick import YARDSTICK_CHECKS, null_audit_findings, yardstick_findings
from mia_batch.kernels import count_words
from mia_batch.metrics.measure import measure
from mia_batch.pipeline.choice import verdict_plan
from mia_batch.pipeline.context import Audit
from mia_batch.pipeline.run import Run
from mia_batch.pipeline.stages.stage import Stage
from mia_batch.pipeline.stages.views import prompts_of, views_of
from mia_batch.prompts.views import View
from mia_batch.report import preflight_sentences, sentences
from mia_batch.report.sentences import gate_sentence, power_sentences
from mia_batch.schemas import Blind, Findings, Metrics, Scores, Targets, Verdicts
from mia_batch.settings import Settings, VerdictSettings
from mia_batch.tables import sink, sink_frames

# What the model was given of the texts, and what kinds of answers came back.


GIVEN = ("prompts", "endpoint", "answers", "held_back", "chance")
"""Checks of these rows."""
_MOST = 1_000  # texts
_HELD_BACK = ("filtered", "refusal")


def _endpoint(audit: Audit) -> pl.DataFrame:
    """Rows of check ``endpoint``: whether it honours the fields that act on the draw."""
    said = audit.manifest.engines.get("samples of target", {}).get("capabilities", {})
    honours = {"n": said.get("n"), "seed": said.get("seed"), "top_k": said.get("top_k")}
    honours |= {"temperature 0": said.get("greedy"), **said.get("neutral", {})}
    honours |= dict.fromkeys(said.get("dialect", {}).get("withdrawn", ()), "refused")
    return finding_rows(
        "endpoint",
        (
            {"subject": name, "statistic": "honour", "verdict": word}
            for name, word in honours.items()
            if word is not None
        ),
    )


def _answers(audit: Audit) -> pl.DataFrame:
    """Rows of check ``answers``: how many answers of each kind came to each kind of prompt.

    ``failed`` ones have no answer; those ``cut`` ended before their reference's length.
    """
    samples = audit.run.scan("samples").filter(pl.col("model") == "target")
    kind = pl.col("answer").cast(pl.String).fill_null("failed")
    recorded = pl.col("answer").is_null() & pl.col("reason").is_null()
    counted = (
        samples.filter(~recorded)
        .group_by("view", kind=kind)
        .agg(n=pl.len(), cut=pl.col("short").sum(), reason=pl.col("reason").mode().min())
        .sort("view", "n", "kind", descending=[False, True, False])
        .collect(engine="streaming")
    )
    rows = [
        {"subject": row["view"], "statistic": row["kind"], "value": row["n"]}
        | {"reason": row["reason"]}
        for row in counted.iter_rows(named=True)
    ]
    cut = counted.group_by("view", maintain_order=True).agg(pl.col("cut").sum())
    rows += [
        {"subject": view, "statistic": "cut", "value": value, "reason": None}
        for view, value in cut.iter_rows()
    ]
    return finding_rows("answers", rows)


def _chance(audit: Audit) -> pl.DataFrame:
    """Rows of check ``chance``: the loss of each model here, beside that of guessing (``high``)."""
    engines = audit.manifest.engines.items()
    named = {name.removeprefix("logprobs of "): engine.get("chance") for name, engine in engines}
    chances = {model: chance for model, chance in named.items() if chance is not None}
    read = audit.run.scan("logprobs").filter(pl.col("model").is_in([*chances]), view="text")
    losses = read.group_by("model").agg(-pl.col("logprob").explode().mean()).sort("model")
    rows: list[dict[str, object]] = []
    for model, loss in losses.collect(engine="streaming").iter_rows():
        if loss is not None:
            verdict = "better" if loss < chances[model] else "no_better"
            row = {"statistic": "nats_per_token", "value": loss, "high": chances[model]}
            rows.append({"subject": model, "verdict": verdict, **row})
    return finding_rows("chance", rows)


def _held_back(audit: Audit) -> pl.DataFrame:
    """Rows of check ``held_back``: answers ``filtered`` or refused more often about one class.

    Texts of unknown membership are compared with the non-members, as ``targets``.
    """
    samples = audit.run.scan("samples").filter(pl.col("model") == "target")
    targets = audit.run.scan("targets").filter(pl.col("role").is_in(["target", "non_member"]))
    own, member = pl.col("role") == "target", pl.col("member")
    unknown, classes = (
        targets.select((own & member.is_null()).any(), classes=member.fill_null(own).n_unique())
        .collect(engine="streaming")
        .row(0)
    )
    name = "targets" if unknown else "members"
    labelled = targets.with_columns(member=member.fill_null(own))
    rows: list[dict[str, object]] = []
    for kind in _HELD_BACK if classes == 2 else ():
        held = samples.filter(pl.col("answer") == kind).select("target_id", held=True).unique()
        if held.limit(1).collect().is_empty():
            continue
        told = labelled.join(held, on="target_id", how="left", maintain_order="left")
        told = told.with_columns(pl.when(pl.col("held").is_null()).then(0.0).alias(kind))
        found = find_uneven_scores(told, pl.lit(value=True), [kind])
        if found is not None:
            of = {"statistic": kind, "value": found.difference, "p_value": found.p_value}
            rows += [of | {"subject": name}, *class_rows(found, (name, "non-members"))]
    return finding_rows("held_back", rows)


def _prompts(audit: Audit) -> pl.DataFrame:
    """Rows of check ``prompts``: words given to the target model, by kind of prompt.

    Of the first 1,000 audited texts by ``target_id``. Verdict ``prefix_of_work``, or in a chat
    ``instruction_and_prefix``, as the prompt's class; of questions ``question_and_text``, with the
    number of all answers, and of those that name no label or several.
    """
    run, chat = audit.run, audit.settings.chat
    asked = run.scan("targets").filter(pl.col("reason").is_null(), role="target")
    some = asked.bottom_k(_MOST, by="target_id").collect(engine="streaming")
    rows: list[dict[str, object]] = []
    for view in views_of(audit, "samples"):
        prompts = prompts_of(run, view, some) if view.model == "target" else some.clear()
        if prompts.is_empty():
            continue
        words = prompts.select(count_words("context", words=audit.settings.word_rule)).to_series()
        kind = "instruction_and_prefix" if chat else "prefix_of_work"
        kind = "question_and_text" if view.question else kind
        figures = {
            "n_prompts": words.len(),
            "words_given_mean": words.mean(),
            "words_given_least": words.min(),
            "words_given_most": words.max(),
            **(_answered(audit, view) if view.question else {}),
        }
        rows += [
            {"subject": view.name, "statistic": name, "value": value, "verdict": kind}
            for name, value in figures.items()
        ]
    return finding_rows("prompts", rows)


def _answered(audit: Audit, view: View) -> dict[str, object]:
    """Count the answers to questions, and tell of those that cannot be read."""
    answers = audit.run.scan("features").filter(
        pl.col("words_candidate").is_not_null(), model=view.model, view=view.name
    )
    counts = answers.select(n_answers=pl.len(), n_unread=pl.col("choice").null_count())
    found = counts.collect(engine="streaming").row(0, named=True)
    if found["n_unread"]:
        audit.observer.stage(
            f"{found['n_unread']:,} of {found['n_answers']:,} answers name no label, or several; "
            "they are left out"
        )
    return found


# What is found about all attacks together, and about all texts together.


OF_SETS = ("combination", "codec", "dataset_inference")
"""Names of the checks."""


def set_answers(
    scores: pl.LazyFrame,
    attacks: Sequence[Attack],
    plan: VerdictPlan,
    found: pl.DataFrame,
    *,
    told_apart: bool,
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return verdicts and findings; ``found`` are those made before scores.

    ``told_apart``: the sets can be told apart without the model, and that closes dataset inference.
    Dataset inference is made where the run is about all texts together.
    """
    names = {attack.name for attack in attacks}
    verdicts: list[pl.DataFrame] = [Verdicts.create_empty()]
    findings: list[pl.DataFrame] = [Findings.create_empty()]
    has_nulls = bool(role_counts(found)["n_nulls"])
    if COMBINATION in names:
        findings.append(combination_findings(scores))
    if CODEC in names and has_nulls:
        findings.append(codec_findings(scores))
    weighed = [attack.name for attack in attacks if attack.evidence != "scores"]
    if plan.level == "collection" and has_nulls and len(weighed) > 1:
        inferred = infer_dataset(scores, weighed, plan, separable=told_apart)
        verdicts.append(inferred.verdict())
        findings.append(inferred.findings())
    return pl.concat(verdicts), pl.concat(findings)


# From targets and scores to findings, metrics and verdicts.


_MOST_ERRORS = 20_000  # targets and non-members whose sampling error is measured
_FROM_SCORES = (
    "power",
    "gate",
    "verbatim",
    "plan",
    "reported",
    "placebo",
    "e_values",
    "uneven_scores",
    "null_audits",
    *FEW_BOOKS,
    *GIVEN,
    *OF_SETS,
    *YARDSTICK_CHECKS,
)


def plan_power(targets: pl.LazyFrame, plan: VerdictPlan) -> pl.DataFrame:
    """Find what the planned test can show at best; nothing without texts to compare."""
    roles = role_counts(role_findings(targets))
    if not (roles["n_unknown"] and roles["n_nulls"]):
        return finding_rows("power", [])
    keys = targets.select(name for name in Scores.column_names() if name in Targets.column_names())
    return power_findings(keys.collect(engine="streaming").lazy(), plan)


def evaluate(audit: Audit) -> None:
    """Write metrics, verdicts, and findings anew: those before any score and what scores add."""
    settings, attacks, plan, run = audit.settings, audit.attacks, audit.plan, audit.run
    preregistered = audit.manifest.plan
    given = [check(audit) for check in (_prompts, _endpoint, _answers, _held_back, _chance)]
    before = run.scan("findings").collect()
    before = before.filter(~pl.col("check").is_in(_FROM_SCORES))
    planned = plan_findings(plan, preregistered, _rests_on(audit))
    gate = gate_findings(before, exploratory=settings.exploratory)
    withheld, weighed_by = why_withheld(gate), None
    if gate_verdict(gate) == "weighted":
        weighed_by = _of_targets(run.scan("blind").collect())  # scores that nulls are weighted by
    scores, names = run.scan("scores"), [attack.name for attack in attacks]
    metrics: pl.DataFrame = Metrics.create_empty()
    in_rounds = plan.adjustment == "e-bh"  # what is scored depends on scores: no other answer
    if not in_rounds:
        metrics = measure(
            scores,
            names,
            blind_scores=run.scan("blind"),
            blind_metrics=run.scan("blind_metrics").collect(),
            preset=settings.preset,
            slice_by=settings.slice_by,
            primary=plan.primary,
            seed=settings.seed,
        )
    sink(metrics, run.path("metrics"), Metrics)
    as_planned = planned["verdict"].item(0) == "as_planned"
    as_planned &= gate_verdict(gate) != "exploratory"
    made = _verdicts(audit, before, weighed_by)
    found = [plan_power(scores, plan)]
    if not in_rounds:
        told_apart = withheld is not None or _separable(before, "members")
        of_sets, found_of_sets = set_answers(scores, attacks, plan, before, told_apart=told_apart)
        made = chain(made, [of_sets])
        primary_first = sorted(names, key=lambda name: name != plan.primary)
        uneven = uneven_findings(scores, primary_first, run.scan("unscored"))
        roles, runs = role_counts(before), _yardstick_runs(audit)
        tested = bool(roles["n_unknown"] and roles["n_nulls"]) and withheld is None
        known = yardstick_findings(scores, plan, runs, tested=tested)
        found += [uneven, found_of_sets, known]
    if withheld is not None and weighed_by is None:
        made = (withhold(rows, withheld) for rows in made)
    if not as_planned:
        made = (rows.with_columns(planned=False) for rows in made)
    sink_frames(made, run.path("verdicts"), Verdicts)
    if withheld is None or weighed_by is not None:
        reported = reported_findings(run.scan("verdicts"), plan)
        found.append(reported)
        if in_rounds:
            found.append(RoundsTest(read_comparison_sets(scores), plan).findings(scores))
        else:
            found.append(placebo_findings(scores, plan, reported, weighed_by))
    if withheld is None and not in_rounds:
        recorded = preregistered.get("attacks") if as_planned else None
        found.append(few_books_findings(scores, names, plan, recorded))
        found.append(null_audit_findings(scores, plan))
    rows = [before, *given, planned, gate, *found]
    sink(pl.concat(rows), run.path("findings"), Findings)


def _yardstick_runs(audit: Audit) -> pl.DataFrame:
    """Find the longest run of words that came out of each text of the yardstick."""
    settings, run = audit.settings, audit.run
    own = run.scan("targets").filter(role="yardstick")
    n_words = count_words("reference", words=settings.word_rule)
    texts = own.select("target_id", reference_words=n_words).collect()
    if texts.is_empty():
        return texts.with_columns(longest_words=pl.lit(None, pl.UInt32))
    runs = verbatim_runs(own, run.scan("features"), settings.continuations)
    return texts.with_columns(runs["longest_words"])


def conclusions(run: Run, settings: Settings, attacks: Sequence[str]) -> Iterator[str]:
    """Say what may be concluded from a run with scores of these attacks, warnings first."""
    plan = verdict_plan(settings, attacks)
    return sentences(run["metrics"], run.scan("verdicts"), run["findings"], plan)


def _verdicts(
    audit: Audit, found: pl.DataFrame, blind: pl.DataFrame | None
) -> Iterator[pl.DataFrame]:
    """Yield the verdicts table, the primary attack's targets with their sampling error."""
    attacks, plan, run = audit.attacks, audit.plan, audit.run
    yield Verdicts.create_empty()
    roles = role_counts(found)
    if not (roles["n_nulls"] or roles["n_canaries"]):
        return
    scores = run.scan("scores")
    primary = next(attack for attack in attacks if attack.name == plan.primary)
    errors = None
    sampled = any(run.path("features").glob("*.parquet"))
    alone = primary.evidence == "samples" and not primary.logprobs
    if roles["n_nulls"] and alone and sampled:
        errors = _sampling_errors(audit.settings.continuations, primary, run)
    names = [attack.name for attack in attacks]
    for rows in verdicts(scores, names, plan, blind_warns=blind_warns(found), blind=blind):
        if errors is None or rows.is_empty() or rows["attack"][0] != plan.primary:
            yield rows  # frames are of one attack each
        else:
            yield _with_errors(rows, errors)


def _of_targets(blind: pl.DataFrame) -> pl.DataFrame:
    """Keep the blind scores that tell targets from nulls."""
    return blind.select("target_id", pl.col("^targets_.*$")).drop_nulls()


def blind_warns(findings: pl.DataFrame) -> bool:
    """Whether the calibration labels can be told apart without the model."""
    return _separable(findings, "calibration")


def _separable(findings: pl.DataFrame, subject: str) -> bool:
    found = findings.filter(check="blind_baseline", subject=subject, verdict="separable")
    return not found.is_empty()


def _with_errors(rows: pl.DataFrame, errors: pl.DataFrame) -> pl.DataFrame:
    found = rows.select("key").join(
        errors, left_on="key", right_on="target_id", how="left", maintain_order="left"
    )
    is_target = pl.col("level") == "target"
    return rows.with_columns(standard_error=pl.when(is_target).then(found["standard_error"]))


def _sampling_errors(samples: int, attack: Attack, run: Run) -> pl.DataFrame:
    """Measure the sampling error of the first targets and non-members by ``target_id``."""
    table = run.scan("scores")
    scores = (
        table.filter(pl.col("role").is_in(["target", "non_member"]))
        .select("target_id", score=attack.name)
        .bottom_k(_MOST_ERRORS, by="target_id")
        .collect(engine="streaming")
        .sort("target_id")
    )
    of_these = pl.col("target_id").is_in(scores["target_id"].implode())
    features = run.scan("features").filter(of_these, pl.col("sample_index") < samples)
    key = ("target_id", "sample_index")
    alone = score_by(features, attack, *key).sort(key).collect(engine="streaming")
    return score_errors(alone, scores)


class PreflightStage(Stage):
    """Look at the texts before any engine starts: what they tell alone, and the test's power."""

    name = "preflight"
    part = "texts"
    makes = ("findings", "blind", "blind_metrics")
    reads = ("targets",)

    def fingerprint(self) -> dict[str, Any]:
        """Texts, and the plan less its attack: what is checked does not depend on scores."""
        plan = asdict(self.audit.plan)
        del plan["primary"]
        plan["length_edges"] = list(plan["length_edges"])  # as JSON gives them back
        return {"targets": self.audit.manifest.made.get("targets"), "plan": plan, "form": 2}

    def left(self) -> Iterator[tuple[str, str]]:
        """Say what the planned test can show, and whether the run would stop for it."""
        targets = with_undeclared(self.audit.target_table())
        found = pl.concat([role_findings(targets), plan_power(targets, self.audit.plan)])
        yield from (("power", sentence) for sentence in preflight_sentences(found))
        if self._why_to_stop(found, targets):
            yield "power", "So the run stops before anything is asked; --anyway goes on."

    def run(self) -> None:
        audit = self.audit
        if not self.is_fresh:
            audit.manifest.made.pop("verdicts", None)  # findings lose what these added
            audit.manifest.made.pop(self.name, None)
            audit.save()
            self._write()
            self.done()
        before = audit.run["findings"].filter(pl.col("check") != "gate")
        gate = gate_findings(before, exploratory=audit.settings.exploratory)
        for sentence in preflight_sentences(found := pl.concat([before, gate])):
            audit.observer.stage(sentence)
        if (why := self._why_to_stop(found, audit.run.scan("targets"))) is not None:
            raise SettingsError(f"{why} Nothing was asked of the model; --anyway goes on")

    def _write(self) -> None:
        run, plan = self.audit.run, self.audit.plan
        targets = run.scan("targets")
        checked = check_targets(targets, seed=self.audit.settings.seed)
        blind = _of_targets(checked.blind_scores)
        weights = weight_findings(targets, blind, checked.findings, plan)
        rows = [role_findings(targets), checked.findings, weights, plan_power(targets, plan)]
        sink(checked.blind_scores, run.path("blind"), Blind)
        sink(checked.blind_metrics, run.path("blind_metrics"), Metrics)
        sink(pl.concat(rows), run.path("findings"), Findings)

    def _why_to_stop(self, found: pl.DataFrame, targets: pl.LazyFrame) -> str | None:
        """Say why no answer can come of evidence that would cost something; None where one may."""
        decides = "together" if self.audit.plan.level == "collection" else "needed"
        power = found.filter(check="power", statistic=decides)
        is_withheld = gate_verdict(found) == "withheld"
        labelled = targets.filter("member", pl.col("role") == "target").head(1)
        if (
            self.audit.settings.anyway
            or self.audit.recording is not None
            or not (is_withheld or "impossible" in power["verdict"])
            or role_counts(found)["n_canaries"]
            or not labelled.collect().is_empty()
        ):
            return None
        return next(iter((gate_sentence if is_withheld else power_sentences)(found)))


class VerdictsStage(Stage):
    """Measure the attacks, and say of which texts the model knows."""

    name = "verdicts"
    part = "answers"
    makes = ("metrics", "verdicts")
    reads = ("scores", "unscored")

    def fingerprint(self) -> dict[str, Any]:
        """Scores, checks of the texts, the plan made before, and the settings of answers."""
        audit = self.audit
        names = {*VerdictSettings.model_fields, "slice_by", "preset", "seed"} - {"anyway"}
        made = audit.manifest.made
        return {
            "scores": made.get("scores"),
            "preflight": made.get("preflight"),
            "form": 8,  # of what is found
            "plan": [audit.manifest.plan.get(name) for name in ("sha256", "rests_on", "attacks")],
            "settings": audit.settings.model_dump(mode="json", include=names),
        }

    def run(self) -> None:
        audit = self.audit
        if self.is_fresh:
            return
        audit.observer.stage("measuring the attacks")
        audit.manifest.made.pop("summary", None)  # its findings go
        self.forget()
        evaluate(audit)
        self.done()


def record_plan(audit: Audit) -> None:
    """Record the plan before the first score is made; what comes later is exploratory."""
    if not audit.manifest.plan:
        seen = audit.run.path("scores").exists()
        names = [attack.name for attack in audit.attacks]
        audit.manifest.plan = preregister(audit.plan, None if seen else _rests_on(audit), names)
        audit.save()


def _rests_on(audit: Audit) -> dict[str, int | str]:
    texts, rarity = audit.manifest.made["targets"], audit.manifest.made.get("rarity", {})
    return {
        "samples": audit.settings.continuations,
        "probes": audit.settings.probes,
        **({"rarity_from": rarity["from"]} if "from" in rarity else {}),
        "input": texts["input"],
        **{role: each for role, each in texts["reference_sets"].items() if role != "yardstick"},
    }
