"""The stages from evidence to answers: scores, what the texts show alone, verdicts, summaries."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from hashlib import sha256
from itertools import chain
from typing import Any, Final, TypeAlias

import polars as pl

from mia_batch import schemas
from mia_batch.attacks import Attack, find_unscored, score, score_by
from mia_batch.attacks import attack as views
from mia_batch.attacks.from_samples import EXPECTED, with_expected
from mia_batch.diagnostics import preflight
from mia_batch.diagnostics.near_copies import near_copy_rows
from mia_batch.errors import SettingsError
from mia_batch.evidence.lot import lot_numbers
from mia_batch.evidence.parts import scan_parts
from mia_batch.features import feature_fields
from mia_batch.inference import findings as checks
from mia_batch.inference import memory, sets
from mia_batch.inference.comparison import author_findings, read_comparison_sets
from mia_batch.inference.conformal import score_errors
from mia_batch.inference.e_values import RoundsTest
from mia_batch.inference.findings import VerdictPlan, finding_rows, role_counts
from mia_batch.inference.order import by_time, order_findings
from mia_batch.inference.rollup import perplexities, rollup
from mia_batch.inference.verdicts import (
    placebo_findings,
    power_findings,
    verdicts,
    weight_findings,
)
from mia_batch.inference.yardstick import (
    YARDSTICK_CHECKS,
    null_audit_findings,
    yardstick_findings,
)
from mia_batch.kernels import count_words
from mia_batch.metrics import curves, measure
from mia_batch.pipeline.context import Audit
from mia_batch.pipeline.sessions import build_start_findings
from mia_batch.pipeline.stages import Stage
from mia_batch.pipeline.stages.extraction import find_passages, find_verbatim_runs
from mia_batch.pipeline.stages.features import (
    group_targets,
    digest_parts,
    fingerprint_dress,
)
from mia_batch.pipeline.stages.questions import (
    list_models,
    list_views,
    read_prompts,
)
from mia_batch.pipeline.stages.responses import write_responses
from mia_batch.report import preflight_sentences
from mia_batch.report.sentences import gate_sentence, power_sentences
from mia_batch.settings import VerdictSettings
from mia_batch.tables import digest, sink, sink_frames
from mia_batch.views import STAGE_VIEW_TYPES, RunModel, View

# What the model was given of the texts, and what kinds of answers came back.

Rows: TypeAlias = Iterator[dict[str, Any]]
_MOST = 1_000  # texts
_HELD_BACK = ("filtered", "refusal")


def _endpoint(audit: Audit) -> Rows:
    """Rows on whether it honours the fields that act on the draw."""
    said = audit.manifest.engines.get("samples of target", {}).get("capabilities", {})
    honours = {"n": said.get("n"), "seed": said.get("seed"), "top_k": said.get("top_k")}
    honours |= {"temperature 0": said.get("greedy"), **said.get("neutral", {})}
    honours |= dict.fromkeys(said.get("dialect", {}).get("withdrawn", ()), "refused")
    for name, word in honours.items():
        if word is not None:
            yield {"subject": name, "statistic": "honour", "verdict": word}


def _answers(audit: Audit) -> Rows:
    """Rows on how many answers of each kind came to each prompt; ``cut`` ones ended too early."""
    samples = audit.run.scan("samples").filter(pl.col("model") == "target")
    recorded = pl.col("answer").is_null() & pl.col("reason").is_null()
    counted = (
        samples.filter(~recorded)
        .group_by(
            "view", statistic=pl.col("answer").cast(pl.String).fill_null("failed")
        )
        .agg(
            value=pl.len(),
            cut=pl.col("short").sum(),
            reason=pl.col("reason").mode().min(),
        )
        .sort("view", "value", "statistic", descending=[False, True, False])
        .rename({"view": "subject"})
        .collect(engine="streaming")
    )
    cut = counted.group_by("subject", maintain_order=True).agg(
        value=pl.col("cut").sum()
    )
    yield from counted.drop("cut").to_dicts()
    yield from cut.with_columns(statistic=pl.lit("cut"), reason=None).to_dicts()


def _chance(audit: Audit) -> Rows:
    """Rows of the loss of each model here, and that of guessing (``high``)."""
    engines = audit.manifest.engines.items()
    named = {
        name.removeprefix("logprobs of "): engine.get("chance")
        for name, engine in engines
    }
    chances = {model: chance for model, chance in named.items() if chance is not None}
    read = audit.run.scan("logprobs").filter(view="text")
    loss = -pl.col("logprob").cast(pl.List(pl.Float64)).list.mean()
    for model, chance in sorted(chances.items()):
        texts = read.filter(loss.is_not_null(), model=model)
        mean = texts.select(loss.mean()).collect(engine="streaming").item()
        if mean is None:
            continue
        some = texts.bottom_k(_MOST, by="target_id").select("logprob", "token_ids")
        p_value, is_better = preflight.test_chance(
            some.collect(engine="streaming"), chance
        )
        row = {
            "statistic": "nats_per_token",
            "value": mean,
            "high": chance,
            "p_value": p_value,
        }
        yield {
            "subject": model,
            "verdict": "better" if is_better else "no_better",
            **row,
        }


def _held_back(audit: Audit) -> Rows:
    """Rows of answers ``filtered`` or refused more often about one class."""
    samples = audit.run.scan("samples").filter(pl.col("model") == "target")
    targets = audit.run.scan("targets").filter(
        pl.col("role").is_in(["target", "non_member"])
    )
    own, member = pl.col("role") == "target", pl.col("member")
    unknown, classes = (
        targets.select(
            (own & member.is_null()).any(), classes=member.fill_null(own).n_unique()
        )
        .collect(engine="streaming")
        .row(0)
    )
    name = "targets" if unknown else "members"
    labelled = targets.with_columns(member=member.fill_null(own))
    for kind in _HELD_BACK if classes == 2 else ():
        held = (
            samples.filter(pl.col("answer") == kind)
            .select("target_id", held=True)
            .unique()
        )
        if held.limit(1).collect().is_empty():
            continue
        rows = labelled.join(held, on="target_id", how="left", maintain_order="left")
        rows = rows.with_columns(
            pl.when(pl.col("held").is_null()).then(0.0).alias(kind)
        )
        found = preflight.find_uneven_scores(rows, pl.lit(value=True), [kind])
        if found is not None:
            of = {
                "statistic": kind,
                "value": found.difference,
                "p_value": found.p_value,
            }
            yield from (
                of | {"subject": name},
                *preflight.class_rows(found, (name, "non-members")),
            )


def _prompts(audit: Audit) -> Rows:
    """Rows of words given to the target model, by kind of prompt, of 1,000 audited texts."""
    run, settings = audit.run, audit.settings
    asked = run.scan("targets").filter(pl.col("reason").is_null(), role="target")
    some = asked.bottom_k(_MOST, by="target_id").collect(engine="streaming")
    for view in (
        view for view in list_views(audit, "samples") if view.model == "target"
    ):
        prompts = read_prompts(run, view, some)
        if prompts.is_empty():
            continue
        words = prompts.select(
            count_words("context", words=settings.word_rule)
        ).to_series()
        kind = "instruction_and_prefix" if settings.chat else "prefix_of_work"
        figures: dict[str, object] = {
            "n_prompts": words.len(),
            "words_given_mean": words.mean(),
            "words_given_least": words.min(),
            "words_given_most": words.max(),
        }
        if view.is_question:
            kind = "question_and_text"
            figures |= _answered(audit, view) if view.key == views.CHOICE else {}
        for name, value in figures.items():
            yield {
                "subject": view.name,
                "statistic": name,
                "value": value,
                "verdict": kind,
            }


def _answered(audit: Audit, view: View) -> dict[str, object]:
    answers = audit.run.scan("features").filter(
        pl.col("words_candidate").is_not_null(), model=view.model, view=view.name
    )
    counts = answers.select(n_answers=pl.len(), n_unread=pl.col("choice").null_count())
    found = counts.collect(engine="streaming").row(0, named=True)
    if found["n_unread"]:
        audit.observer.stage(
            f"{found['n_unread']:,} of {found['n_answers']:,} answers name no label, or"
            " several; they are left out"
        )
    return found


def _start_token(audit: Audit) -> Rows:
    yield from build_start_findings(audit.manifest.models).drop("check").to_dicts()


def _dress(audit: Audit) -> Rows:
    """Rows on what stands around answers: what is taken off, and whether the rest continues."""
    if not (found := audit.manifest.dress):
        return
    for layer in found["rule"]:
        yield {
            "subject": layer["kind"],
            "statistic": "taken_off",
            "reason": layer["text"] or None,
        }
    for name in ("n_prompts", "n_dressed", "n_alike", "n_repeating", "n_empty"):
        yield {"subject": "target", "statistic": name, "value": found[name]}
    verdict = "continues" if found["continues"] else "does_not_continue"
    example = found["example"] or None
    yield {
        "subject": "target",
        "statistic": "verdict",
        "verdict": verdict,
        "reason": example,
    }


_CHECKS: Final[dict[str, Callable[[Audit], Rows]]] = {
    "prompts": _prompts,
    "endpoint": _endpoint,
    "answers": _answers,
    "dress": _dress,
    "held_back": _held_back,
    "chance": _chance,
    "start_token": _start_token,
}
"""What the model was given, and what kinds of answers came back, by check."""


# What is found about all attacks together, and about all texts together.

SET_CHECKS = ("combination", "codec", "dataset_inference")  # names of the checks


def answer_about_sets(
    scores: pl.LazyFrame,
    attacks: Sequence[Attack],
    plan: VerdictPlan,
    found: pl.DataFrame,
    *,
    separable: bool,
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return verdicts and findings about the texts together; ``found`` are those before scores."""
    # Sets that are ``separable`` without the model close dataset inference.
    names = {attack.name for attack in attacks}
    verdicts: list[pl.DataFrame] = [schemas.Verdicts.create_empty()]
    findings: list[pl.DataFrame] = [schemas.Findings.create_empty()]
    has_nulls = bool(role_counts(found)["n_nulls"])
    if views.COMBINATION in names:
        findings.append(sets.combination_findings(scores))
    if views.CODEC in names and has_nulls:
        findings.append(sets.codec_findings(scores))
    weighed = [attack.name for attack in attacks if attack.evidence != "scores"]
    if plan.level == "collection" and has_nulls and len(weighed) > 1:
        inferred = sets.infer_dataset(scores, weighed, plan, separable=separable)
        verdicts.append(inferred.verdict())
        findings.append(inferred.findings())
    return pl.concat(verdicts), pl.concat(findings)


# From targets and scores to findings, metrics and verdicts.

_MOST_ERRORS = 20_000  # targets and non-members whose sampling error is measured
_FROM_SCORES = (
    *(
        "power",
        "gate",
        "order",
        "verbatim",
        "plan",
        "later",
        "reported",
        "placebo",
        "e_values",
    ),
    *("uneven_scores", "null_audits"),
    *sets.FEW_BOOKS,
    *_CHECKS,
    *SET_CHECKS,
    *YARDSTICK_CHECKS,
)


def forecast_power(targets: pl.LazyFrame, plan: VerdictPlan) -> pl.DataFrame:
    """Find what the planned test can show at best; nothing without texts to compare."""
    roles = role_counts(checks.role_findings(targets))
    if not (roles["n_unknown"] and roles["n_nulls"]):
        return finding_rows("power", [])
    columns = targets.collect_schema().names()
    wanted = (*schemas.Scores.column_names(), "author")
    keys = targets.select(name for name in wanted if name in columns)
    return power_findings(keys.collect(engine="streaming").lazy(), plan)


def _yardstick_runs(audit: Audit) -> pl.DataFrame:
    settings, run = audit.settings, audit.run
    own = run.scan("targets").filter(role="yardstick")
    n_words = count_words("reference", words=settings.word_rule)
    texts = own.select("target_id", reference_words=n_words).collect()
    if texts.is_empty():
        return texts.with_columns(longest_words=pl.lit(None, pl.UInt32))
    how = settings.continuations, settings.word_rule
    return texts.with_columns(
        memory.verbatim_runs(own, run.scan("features"), *how)["longest_words"]
    )


def _verdicts(
    audit: Audit, found: pl.DataFrame, blind: pl.DataFrame | None
) -> Iterator[pl.DataFrame]:
    attacks, plan, run = audit.attacks, audit.rule, audit.run
    yield schemas.Verdicts.create_empty()
    roles = role_counts(found)
    if not (roles["n_nulls"] or roles["n_canaries"]):
        return
    primary = next(attack for attack in attacks if attack.name == plan.primary)
    errors = None
    sampled = any(run.path("features").glob("*.parquet"))
    alone = primary.evidence == "samples" and not primary.logprobs
    if roles["n_nulls"] and alone and sampled:
        errors = _sampling_errors(audit, primary)
    names, warns = [attack.name for attack in attacks], _separable(found, "calibration")
    for rows in verdicts(
        run.scan("scores"), names, plan, blind_warns=warns, blind=blind
    ):
        # Frames are of one attack each.
        if (
            errors is not None
            and not rows.is_empty()
            and rows["attack"][0] == plan.primary
        ):
            own = rows.select(target_id="key").join(
                errors, on="target_id", how="left", maintain_order="left"
            )
            error = pl.when(pl.col("level") == "target").then(own["standard_error"])
            yield rows.with_columns(standard_error=error)
        else:
            yield rows


def _blind_of_targets(blind: pl.DataFrame) -> pl.DataFrame:
    return blind.select("target_id", pl.col("^targets_.*$")).drop_nulls()


def _separable(findings: pl.DataFrame, subject: str) -> bool:
    found = findings.filter(
        check="blind_baseline", subject=subject, verdict="separable"
    )
    return not found.is_empty()


def _sampling_errors(audit: Audit, attack: Attack) -> pl.DataFrame:
    """Measure the sampling error of the first targets and non-members by ``target_id``."""
    scores = (
        audit.run.scan("scores")
        .filter(pl.col("role").is_in(["target", "non_member"]))
        .select("target_id", score=attack.name)
        .bottom_k(_MOST_ERRORS, by="target_id")
        .collect(engine="streaming")
        .sort("target_id")
    )
    of_these = pl.col("target_id").is_in(scores["target_id"].implode())
    features = open_evidence(audit)["samples"]
    features = features.filter(
        of_these, pl.col("sample_index") < audit.settings.continuations
    )
    key = ("target_id", "sample_index")
    alone = score_by(features, attack, *key).sort(key).collect(engine="streaming")
    return score_errors(alone, scores)


class PreflightStage(Stage):
    """Look at the texts before any engine starts: what they tell alone, and the test's power."""

    name = "preflight"
    phase = "texts"
    activity = "checking what the texts show without the model"
    makes = ("findings", "blind", "blind_metrics")
    reads = ("targets",)
    extends = ("verdicts",)

    def fingerprint(self) -> dict[str, Any]:
        """Texts, and the plan less its attack: what is checked does not depend on scores."""
        plan = asdict(self.audit.rule)
        del plan["primary"]
        plan["length_edges"] = list(plan["length_edges"])  # as JSON gives them back
        return {
            "targets": self.audit.manifest.made.get("targets"),
            "plan": plan,
            "form": 3,
        }

    def run(self) -> None:
        super().run()
        audit = self.audit
        before = audit.run["findings"].filter(pl.col("check") != "gate")
        gate = checks.gate_findings(before, exploratory=audit.settings.exploratory)
        why = self._why_to_stop(
            found := pl.concat([before, gate]), audit.run.scan("targets")
        )
        for sentence in preflight_sentences(found):
            if sentence != why:
                audit.observer.stage(sentence)
        if why is not None:
            raise SettingsError(
                f"{why} Nothing was asked of the model; --anyway goes on"
            )

    def make(self) -> None:
        run, plan = self.audit.run, self.audit.rule
        targets = run.scan("targets")
        checked = preflight.check_targets(targets, seed=self.audit.settings.seed)
        blind = _blind_of_targets(checked.blind_scores)
        weights = weight_findings(targets, blind, checked.findings, plan)
        rows = [checks.role_findings(targets), checked.findings, weights]
        rows += [finding_rows("near_copies", near_copy_rows(targets))]
        rows += [author_findings(targets, plan), forecast_power(targets, plan)]
        sink(checked.blind_scores, run.path("blind"), schemas.Blind)
        sink(checked.blind_metrics, run.path("blind_metrics"), schemas.Metrics)
        sink(pl.concat(rows), run.path("findings"), schemas.Findings)

    def _why_to_stop(self, found: pl.DataFrame, targets: pl.LazyFrame) -> str | None:
        """Say why no answer can come of evidence that would cost something; None where one may."""
        decides = "together" if self.audit.rule.level == "collection" else "needed"
        power = found.filter(check="power", statistic=decides)
        is_withheld = checks.gate_verdict(found) == "withheld"
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
    phase = "answers"
    makes = ("metrics", "verdicts")
    reads = ("scores", "unscored")
    extends = ("summary",)
    activity = "measuring the attacks"

    def fingerprint(self) -> dict[str, Any]:
        """Scores, checks of the texts, the plan made before, and the settings of answers."""
        manifest = self.audit.manifest
        names = {*VerdictSettings.model_fields, "slice_by", "preset", "seed"}
        return {
            "scores": manifest.made.get("scores"),
            "preflight": manifest.made.get("preflight"),
            "form": 10,  # of what is found
            "plan": [
                manifest.plan.get(name) for name in ("sha256", "rests_on", "attacks")
            ],
            "settings": self.audit.settings.model_dump(mode="json", include=names),
        }

    def make(self) -> None:
        audit, plan, run = self.audit, self.audit.rule, self.audit.run
        settings, scores, preregistered = (
            audit.settings,
            run.scan("scores"),
            audit.manifest.plan,
        )
        planned_names = [attack.name for attack in audit.planned_attacks]
        given = [finding_rows(name, check(audit)) for name, check in _CHECKS.items()]
        before = (
            run.scan("findings").filter(~pl.col("check").is_in(_FROM_SCORES)).collect()
        )
        planned = checks.plan_findings(plan, preregistered, _rests_on(audit))
        gate = pl.concat(
            [
                checks.gate_findings(before, exploratory=settings.exploratory),
                _order(audit),
            ]
        )
        why_no_answer = checks.why_not_continued(pl.concat(given))
        withheld, blind = why_no_answer or checks.why_withheld(gate), None
        if why_no_answer is None and checks.gate_verdict(gate) == "weighted":
            # By which nulls are weighted
            blind = _blind_of_targets(run.scan("blind").collect())
        is_shown = withheld is None or blind is not None
        has_changed = checks.gate_verdict(gate) == "changed"
        # What is scored depends on scores: no other answer
        in_rounds = plan.adjustment == "e-bh"
        metrics = schemas.Metrics.create_empty() if in_rounds else self._metrics()
        sink(
            checks.withhold_all(metrics, why_no_answer),
            run.path("metrics"),
            schemas.Metrics,
        )
        is_exploratory = checks.gate_verdict(gate) == "exploratory"
        as_planned = planned["verdict"].item(0) == "as_planned" and not is_exploratory
        made = _verdicts(audit, before, blind)
        found = [forecast_power(scores, plan)]
        if not in_rounds:
            separable = withheld is not None or _separable(before, "members")
            of_sets, found_of_sets = answer_about_sets(
                scores, audit.planned_attacks, plan, before, separable=separable
            )
            made = chain(made, [of_sets])
            primary_first = sorted(planned_names, key=lambda name: name != plan.primary)
            uneven = preflight.uneven_findings(
                scores, primary_first, run.scan("unscored")
            )
            found += [
                uneven,
                found_of_sets if why_no_answer is None else found_of_sets.clear(),
            ]
            roles = role_counts(before)
            tested = bool(roles["n_unknown"] and roles["n_nulls"]) and withheld is None
            ladder = yardstick_findings(
                scores, plan, _yardstick_runs(audit), tested=tested
            )
            found.append(
                ladder.filter(pl.col("check") != "dose") if has_changed else ladder
            )
        if not is_shown and withheld is not None:
            made = (
                checks.withhold(rows, withheld, all_sets=has_changed) for rows in made
            )
            made = (checks.withhold_all(rows, why_no_answer) for rows in made)
        if not as_planned:
            made = (rows.with_columns(planned=False) for rows in made)
        sink_frames(made, run.path("verdicts"), schemas.Verdicts)
        if is_shown:
            reported = checks.reported_findings(run.scan("verdicts"), plan)
            test = RoundsTest(read_comparison_sets(scores), plan) if in_rounds else None
            by_test = (
                test.findings(scores)
                if test
                else placebo_findings(scores, plan, reported, blind)
            )
            found += [reported, by_test]
        if withheld is None and not in_rounds:
            recorded = preregistered.get("attacks") if as_planned else None
            found.append(sets.few_books_findings(scores, planned_names, plan, recorded))
            found.append(null_audit_findings(scores, plan))
        later = checks.later_findings(audit.later_attacks)
        rows = checks.behind_gate(
            pl.concat([before, *given, planned, later, gate, *found])
        )
        sink(rows, run.path("findings"), schemas.Findings)

    def _metrics(self) -> pl.DataFrame:
        audit, run = self.audit, self.audit.run
        return measure(
            run.scan("scores"),
            [attack.name for attack in audit.attacks],
            blind_scores=run.scan("blind"),
            blind_metrics=run.scan("blind_metrics").collect(),
            preset=audit.settings.preset,
            slice_by=audit.settings.slice_by,
            primary=audit.rule.primary,
            seed=audit.settings.seed,
            later=audit.later_attacks,
        )


def _order(audit: Audit) -> pl.DataFrame:
    """Rows on whether a service changed while it was asked; a model that runs here cannot."""
    settings, manifest = audit.settings, audit.manifest
    if manifest.evidence["engine"] != "openai":
        return finding_rows("order")
    by_lot, has_grown = (
        "order" in manifest.evidence,
        manifest.input.get("has_grown", False),
    )
    in_rounds = audit.rule.adjustment == "e-bh"
    write_responses(audit)
    cluster = pl.coalesce("group", "document_id", "target_id").alias("cluster")
    score = pl.col(audit.rule.primary).alias("score")
    texts = (
        audit.run.scan("scores")
        .select("target_id", "role", "member", cluster, score)
        .collect()
    )
    if texts["score"].count() == 0 and not audit.run.path("responses").exists():
        return finding_rows("order")  # nothing could be asked
    views = [view.name for view in list_views(audit) if view.model == "target"]
    of_scores = pl.col("target_id").is_null() | pl.col("view").is_in(views)
    responses = audit.run["responses"].filter(of_scores)
    in_order = texts[
        lot_numbers(texts["target_id"], settings.seed).argsort(kind="stable")
    ]
    if has_grown or not by_lot:
        in_order = texts.clear() if in_rounds else by_time(texts, responses)
    return order_findings(
        in_order,
        responses,
        settings.seed,
        by_lot=by_lot and not has_grown and not in_rounds,
        exploratory=settings.exploratory or settings.anyway,
    )


def _rests_on(audit: Audit) -> dict[str, int | str]:
    texts, rarity = (
        audit.manifest.made["targets"],
        audit.manifest.made.get("rarity", {}),
    )
    return {
        "samples": audit.settings.continuations,
        "probes": audit.settings.probes,
        **({"token_points": audit.settings.token_points} if audit.reads_tokens else {}),
        **({"rarity_from": rarity["from"]} if "from" in rarity else {}),
        "input": texts["input"],
        **{
            role: each
            for role, each in texts["reference_sets"].items()
            if role != "yardstick"
        },
    }


# From evidence to scores, and from verdicts to the tables that a report shows.

_MOST_LOST = 0.5  # of the answers about a target
_NOT_ASKED = (
    "not asked: its group was decided before, or has more windows than are compared"
)


class ScoresStage(Stage):
    """Apply the attacks, and say why scores are missing."""

    name = "scores"
    phase = "scores"
    activity = "scoring"
    makes = ("scores", "unscored")
    reads = ("samples", "features", "logprobs")

    def fingerprint(self) -> dict[str, Any]:
        audit, run = self.audit, self.audit.run
        formulas = b"".join(attack.expr.meta.serialize() for attack in audit.attacks)
        own = [
            name for name in list_models(audit) if RunModel.parse(name).is_trained_here
        ]
        made = {name: audit.find_source(name)["digest"] for name in own}
        parts = [
            p
            for name in ("features", "logprobs")
            for p in run.path(name).glob("*.parquet")
        ]
        parts = [
            part for part in parts if f".{'-'.join(views.RECITAL)}-" not in part.name
        ]
        return {
            "attacks": [attack.name for attack in audit.attacks],
            "formulas": sha256(formulas).hexdigest(),
            "samples": {
                view.name: [view.n, view.samples]
                for view in list_views(audit, "samples")
            },
            "logprobs": {
                "-".join(view.key): view.n for view in list_views(audit, "logprobs")
            },
            "targets": audit.manifest.made["targets"],
            **({"seed": audit.settings.seed} if _is_learned(audit) else {}),
            **({"made": made} if made else {}),
            **fingerprint_dress(audit),
            "parts": digest_parts(sorted(parts, key=lambda part: part.name)),
        }

    def run(self) -> None:
        self.audit.manifest.failed = _count_failures(self.audit)
        self.activity = (
            f"scoring {(n := len(self.audit.attacks))} attack{'s' * (n > 1)}"
        )
        super().run()

    def make(self) -> None:
        audit, run = self.audit, self.audit.run
        if not audit.manifest.plan:  # what comes after the first score is exploratory
            rests_on = None if run.path("scores").exists() else _rests_on(audit)
            names = [attack.name for attack in audit.attacks]
            audit.manifest.plan = checks.preregister(audit.rule, rests_on, names)
            audit.save()
        evidence = open_evidence(audit)
        logprobs = evidence.get("logprobs")
        targets = run.scan("targets")
        frames = score(evidence["samples"], targets, audit.attacks, logprobs=logprobs)
        sink_frames(frames, run.path("scores"), schemas.Scores)
        if _is_learned(audit):
            given = audit.planned_attacks
            names = [attack.name for attack in given if attack.evidence != "scores"]
            learned = sets.combine(run.scan("scores"), names, seed=audit.settings.seed)
            self._add(pl.Series(views.COMBINATION, learned, nan_to_null=True))
        self._score_placebo(evidence)
        samples, asked = (
            run.scan("samples").filter(_within(audit)),
            open_asked_targets(audit),
        )
        unscored = find_unscored(
            run.scan("scores"), samples, asked, audit.attacks, logprobs=logprobs
        )
        sink(unscored, run.path("unscored"), schemas.Unscored)

    def _add(self, column: pl.Series) -> None:
        run = self.audit.run
        sink(
            run.scan("scores").with_columns(column), run.path("scores"), schemas.Scores
        )

    def _score_placebo(self, evidence: Mapping[str, pl.LazyFrame]) -> None:
        audit, placebo = self.audit, self.audit.placebo
        if placebo is None:
            return
        primary = next(
            attack for attack in audit.attacks if attack.name == audit.rule.primary
        )
        other = {
            kind: rows.filter(model="reference").with_columns(model=pl.lit("target"))
            for kind, rows in evidence.items()
        }
        targets = audit.run.scan("targets")
        frames = score(
            other["samples"], targets, [primary], logprobs=other.get("logprobs")
        )
        self._add(
            pl.concat(frame[primary.name] for frame in frames).alias(placebo.name)
        )


def open_evidence(audit: Audit) -> dict[str, pl.LazyFrame]:
    """Open what the attacks read; a run may have more than its settings ask for."""
    # Where there is no sample the features have the columns that they would have.
    features = audit.run.scan("features")
    if not any(audit.run.path("features").glob("*.parquet")):
        features = features.with_columns(
            pl.lit(None, field.dtype).alias(field.name)
            for field in feature_fields(audit.manifest.made["features"]["groups"])
        )
    evidence = {"samples": features.filter(_within(audit))}
    if any(EXPECTED in attack.columns for attack in audit.attacks):
        evidence["samples"] = with_expected(evidence["samples"], group_targets(audit))
    if audit.list_attacks_on("logprobs"):
        wanted = [
            views.among([view.key]) & (pl.col("view_index") < view.n)
            for view in list_views(audit, "logprobs")
        ]
        rows = scan_parts(audit.run.path("logprobs"), schemas.LogProbs)
        evidence["logprobs"] = rows.filter(pl.any_horizontal(wanted))
    return evidence


def open_asked_targets(audit: Audit) -> pl.LazyFrame:
    """Open the targets; where groups stop when decided, with a reason for what was not asked."""
    targets = audit.run.scan("targets")
    if audit.rule.adjustment != "e-bh":
        return targets
    rows = [
        audit.run.scan(kind).select("target_id") for kind in ("samples", "logprobs")
    ]
    asked = pl.concat(rows).unique().collect(engine="streaming").to_series()
    reason = pl.when(~pl.col("target_id").is_in(asked.implode())).then(
        pl.lit(_NOT_ASKED)
    )
    return targets.with_columns(reason=pl.coalesce("reason", reason))


def _is_learned(audit: Audit) -> bool:
    return any(attack.evidence == "scores" for attack in audit.attacks)


def _within(audit: Audit) -> pl.Expr:
    wanted = [
        (pl.col("view") == view.name)
        & (pl.col("view_index") < view.n)
        & (pl.col("sample_index") < view.samples)
        for view in list_views(audit, "samples")
    ]
    return pl.any_horizontal(pl.lit(value=False), *wanted)


def _count_failures(audit: Audit) -> dict[str, Any]:
    """Count the ``targets`` with a failed request, or with more answers of no use than of use."""
    asked = pl.col("n_bytes").is_not_null()
    failed = pl.col("reason").is_not_null()
    drawn = audit.run.scan("samples").filter(
        ~pl.col("view").is_in(list(STAGE_VIEW_TYPES))
    )
    read = audit.run.scan("logprobs").filter(asked, failed)
    kinds = [
        drawn.filter(failed).select(
            "target_id", "reason", mends=pl.col("answer").is_null()
        ),
        read.select(
            "target_id",
            "reason",
            mends=~pl.col("reason").str.contains(", the context "),
        ),
    ]
    reasons = pl.concat(kinds).unique().collect(engine="streaming")
    again = reasons.filter("mends")["target_id"].unique()
    useless = pl.col("target_id").is_in(reasons["target_id"].unique().implode())
    shares = (
        drawn.filter(useless).group_by("target_id", "model", "view").agg(failed.mean())
    )
    few = shares.filter(pl.col("reason") > _MOST_LOST).collect(engine="streaming")[
        "target_id"
    ]
    unread = read.select("target_id").unique().collect(engine="streaming").to_series()
    targets = audit.manifest.targets
    askable = audit.run.scan("targets").filter(pl.col("reason").is_null())
    failures = pl.concat([again, few, unread]).unique().to_frame().lazy()
    return {
        "targets": failures.join(askable, on="target_id", how="semi").collect().height,
        "of": 2 * targets["total"] - sum(targets.values()),
        "again": again.len(),
        "reasons": preflight.count_reasons(reasons.lazy()),
    }


class SummaryStage(Stage):
    """Make the tables that a report shows as they are: of documents and groups, and curves."""

    name = "summary"
    phase = "answers"
    makes = ("rollup", "curves", "perplexities")
    reads = ("scores",)
    activity = "summing up documents and groups"

    def fingerprint(self) -> dict[str, Any]:
        made, path = self.audit.manifest.made, self.audit.run.path
        tables = {
            "extracted": path("extracted_documents"),
            "controls": path("controls"),
        }
        return {
            "form": 6,  # of both tables
            **{name: made.get(name) for name in ("verdicts", "features", "recitals")},
            **{
                name: digest(each) if each.exists() else None
                for name, each in tables.items()
            },
        }

    @property
    def required_tables(self) -> set[str]:
        without = views.TEXT not in {
            view.key for view in list_views(self.audit, "logprobs")
        }
        return {*self.makes} - ({"perplexities"} if without else set())

    def make(self) -> None:
        audit, run, plan = self.audit, self.audit.run, self.audit.rule
        controls = run.scan("controls") if run.path("controls").exists() else None
        runs = find_verbatim_runs(run, audit.settings)
        findings = self._roll_up(controls, runs)
        targets, scores = open_asked_targets(audit), run.scan("scores")
        # Passages that came out are named by their documents.
        name = pl.coalesce("document_id", "target_id")
        passages, settings = find_passages(audit, runs).lazy(), audit.settings
        named = passages.join(
            run.scan("targets").select("target_id", "prefix", name=name),
            on="target_id",
            maintain_order="left",
        ).with_columns(n_words=count_words("passage", words=settings.word_rule))
        run_words = memory.count_run_words(
            pl.col("prefix"), pl.col("passage"), pl.col("n_words"), settings.word_rule
        )
        named = named.with_columns(n_left=run_words.struct.field("n_left"))
        verbatim = memory.verbatim_findings(
            runs,
            read_comparison_sets(scores, named=False),
            named.collect(),
            None if controls is None else controls.collect(),
            all_continued=audit.continues_texts,
        )
        rows = pl.concat([findings.filter(pl.col("check") != "verbatim"), verbatim])
        rows = checks.behind_gate(rows)
        sink(rows, run.path("findings"), schemas.Findings)
        # Curves mean nothing where what is scored depends on scores, or no text is
        # continued.
        if plan.adjustment == "e-bh" or checks.why_not_continued(rows) is not None:
            sink(schemas.Curves.create_empty(), run.path("curves"), schemas.Curves)
        else:
            frames = curves(
                targets, scores, audit.attacks, plan.primary, open_evidence(audit)
            )
            sink_frames(frames, run.path("curves"), schemas.Curves)
        if "perplexities" in self.required_tables:
            reads = {view.key for view in list_views(audit, "logprobs")}
            folder = run.path("logprobs")
            reference: pl.LazyFrame = schemas.LogProbs.create_empty(lazy=True)
            if views.REFERENCE_TEXT in reads:
                reference = scan_parts(folder, schemas.LogProbs, views.REFERENCE_TEXT)
            table = perplexities(
                scan_parts(folder, schemas.LogProbs, views.TEXT), reference
            )
            sink(table, run.path("perplexities"), schemas.Perplexities)

    def _roll_up(
        self, controls: pl.LazyFrame | None, runs: pl.DataFrame
    ) -> pl.DataFrame:
        audit, run = self.audit, self.audit.run
        extracted: pl.LazyFrame = schemas.ExtractedDocuments.create_empty(lazy=True)
        if run.path("extracted_documents").exists():
            extracted = run.scan("extracted_documents")
        if controls is not None and run.path("extraction").exists():
            common = memory.common_targets(controls)
            extracted = memory.without_common(extracted, run.scan("extraction"), common)
        findings = run.scan("findings").collect()
        rows = rollup(
            open_asked_targets(audit),
            run.scan("scores"),
            runs,
            run.scan("verdicts"),
            audit.rule,
            extracted=extracted,
            candidates=run.scan("samples"),
            samples=audit.settings.continuations,
            words=audit.settings.word_rule,
            blind_warns=_separable(findings, "calibration"),
            findings=findings,
            controls=controls,
            all_continued=audit.continues_texts,
        )
        sink(rows, run.path("rollup"), schemas.Rollup)
        return findings
