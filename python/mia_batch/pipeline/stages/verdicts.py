"""The stages from evidence to answers: scores, what the texts show alone, verdicts, summaries."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any, Final, TypeAlias, get_args

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
from mia_batch.evidence.request import EvidenceKind
from mia_batch.features import feature_fields
from mia_batch.inference import findings as checks
from mia_batch.inference import memory, sets
from mia_batch.inference.comparison import author_findings, read_comparison_sets
from mia_batch.inference.conformal import score_errors
from mia_batch.inference.e_values import RoundsTest
from mia_batch.inference.findings import (
    DecisionRule,
    finding_rows,
    number_rows,
    role_counts,
)
from mia_batch.inference.known_share import (
    KNOWN_SHARE,
    VERBATIM_SHARE,
    draw_findings,
    known_share_findings,
    verbatim_share_findings,
)
from mia_batch.inference.order import order_findings, sort_by_time
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
    digest_parts,
    fingerprint_dress,
    group_targets,
)
from mia_batch.pipeline.stages.questions import (
    list_models,
    list_views,
    read_prompts,
)
from mia_batch.pipeline.stages.responses import write_responses
from mia_batch.report import preflight_sentences
from mia_batch.report.sentences import gate_sentence, power_sentences
from mia_batch.schemas import FILTERED
from mia_batch.settings import VerdictSettings
from mia_batch.tables import digest, sink, sink_frames
from mia_batch.views import STAGE_VIEW_TYPES, View

# What the model was given of the texts, and what kinds of answers came back.

Rows: TypeAlias = Iterator[dict[str, Any]]
_MOST_TEXTS = 1_000
_HELD_BACK = ("filtered", "refusal")


def _find_honoured(audit: Audit) -> Rows:
    """Iterate over rows on whether the endpoint honours the fields that act on the draw."""
    engine = audit.manifest.engines.get("samples of target", {})
    capabilities = engine.get("capabilities", {})
    words = {name: capabilities.get(name) for name in ("n", "seed", "top_k")}
    words["temperature 0"] = capabilities.get("greedy")
    words |= capabilities.get("neutral", {})
    withdrawn = capabilities.get("dialect", {}).get("withdrawn", ())
    words |= dict.fromkeys(withdrawn, "refused")
    for name, word in words.items():
        if word is not None:
            yield {"subject": name, "statistic": "honour", "verdict": word}


def _count_answers(audit: Audit) -> Rows:
    """Iterate over counts of kinds of answers to each prompt; ``cut`` ones ended too early."""
    samples = audit.run.scan("samples").filter(pl.col("model") == "target")
    recorded = pl.col("answer").is_null() & pl.col("reason").is_null()
    kind = pl.col("answer").cast(pl.String).fill_null("failed")
    counts = (
        samples.filter(~recorded)
        .group_by("view", statistic=kind)
        .agg(
            value=pl.len(),
            cut=pl.col("short").sum(),
            reason=pl.col("reason").mode().min(),
        )
        .sort("view", "value", "statistic", descending=[False, True, False])
        .rename({"view": "subject"})
        .collect(engine="streaming")
    )
    by_view = counts.group_by("subject", maintain_order=True)
    n_cut = by_view.agg(value=pl.col("cut").sum())
    yield from counts.drop("cut").to_dicts()
    yield from n_cut.with_columns(statistic=pl.lit("cut"), reason=None).to_dicts()


def _compare_with_chance(audit: Audit) -> Rows:
    """Iterate over rows of the loss of each model here, and that of guessing (``high``)."""
    chances: dict[str, float] = {}
    for name, engine in audit.manifest.engines.items():
        if engine.get("chance") is not None:
            chances[name.removeprefix("logprobs of ")] = engine["chance"]
    logprobs = audit.run.scan("logprobs").filter(view="text")
    loss = -pl.col("logprob").cast(pl.List(pl.Float64)).list.mean()
    for model, chance in sorted(chances.items()):
        texts = logprobs.filter(loss.is_not_null(), model=model)
        mean = texts.select(loss.mean()).collect(engine="streaming").item()
        if mean is None:
            continue
        first = texts.bottom_k(_MOST_TEXTS, by="target_id")
        first_texts = first.select("logprob", "token_ids").collect(engine="streaming")
        p_value, is_better = preflight.test_chance(first_texts, chance)
        yield {
            "subject": model,
            "verdict": "better" if is_better else "no_better",
            "statistic": "nats_per_token",
            "value": mean,
            "high": chance,
            "p_value": p_value,
        }


def _find_held_back(audit: Audit) -> Rows:
    """Iterate over rows of answers ``filtered`` or refused more often about one class."""
    samples = audit.run.scan("samples").filter(pl.col("model") == "target")
    is_of_class = pl.col("role").is_in(["target", "non_member"])
    targets = audit.run.scan("targets").filter(is_of_class)
    is_target = pl.col("role") == "target"
    member = pl.col("member")
    classes = targets.select(
        (is_target & member.is_null()).any(),
        n_classes=member.fill_null(is_target).n_unique(),
    )
    has_unknown, n_classes = classes.collect(engine="streaming").row(0)
    if n_classes != 2:
        return
    name = "targets" if has_unknown else "members"
    labelled = targets.with_columns(member=member.fill_null(is_target))
    for kind in _HELD_BACK:
        answers = samples.filter(pl.col("answer") == kind)
        held_back = answers.select("target_id", held=True).unique()
        if held_back.limit(1).collect().is_empty():
            continue
        rows = labelled.join(
            held_back, on="target_id", how="left", maintain_order="left"
        )
        share = pl.when(pl.col("held").is_null()).then(0.0).alias(kind)
        uneven = preflight.find_uneven_scores(
            rows.with_columns(share), pl.lit(value=True), [kind]
        )
        if uneven is None:
            continue
        yield {
            "statistic": kind,
            "value": uneven.difference,
            "p_value": uneven.p_value,
            "subject": name,
        }
        yield from preflight.class_rows(uneven, (name, "non-members"))


def _count_prompt_words(audit: Audit) -> Rows:
    """Iterate over rows of words put to the target, by kind of prompt, of 1,000 audited texts."""
    run = audit.run
    settings = audit.settings
    targets = run.scan("targets").filter(pl.col("reason").is_null(), role="target")
    first = targets.bottom_k(_MOST_TEXTS, by="target_id").collect(engine="streaming")
    for view in list_views(audit, "samples"):
        if view.model != "target":
            continue
        prompts = read_prompts(run, view, first)
        if prompts.is_empty():
            continue
        n_words = count_words("context", words=settings.word_rule)
        words = prompts.select(n_words).to_series()
        figures: dict[str, object] = {
            "n_prompts": words.len(),
            "words_given_mean": words.mean(),
            "words_given_least": words.min(),
            "words_given_most": words.max(),
        }
        if view.is_question:
            kind = "question_and_text"
        elif settings.chat:
            kind = "instruction_and_prefix"
        else:
            kind = "prefix_of_work"
        if view.is_question and view.key == views.CHOICE:
            figures |= _count_choices(audit, view)
        for name, value in figures.items():
            yield {
                "subject": view.name,
                "statistic": name,
                "value": value,
                "verdict": kind,
            }


def _count_choices(audit: Audit, view: View) -> dict[str, object]:
    """Count answers to a question of choice, and those that choose nothing."""
    answers = audit.run.scan("features").filter(
        pl.col("words_candidate").is_not_null(), model=view.model, view=view.name
    )
    table = answers.select(n_answers=pl.len(), n_unread=pl.col("choice").null_count())
    counts = table.collect(engine="streaming").row(0, named=True)
    if counts["n_unread"]:
        audit.observer.stage(
            f"{counts['n_unread']:,} of {counts['n_answers']:,} answers name no label, or"
            " several; they are left out"
        )
    return counts


def _find_start_tokens(audit: Audit) -> Rows:
    yield from build_start_findings(audit.manifest.models).drop("check").to_dicts()


def _find_quantised(audit: Audit) -> Rows:
    """Iterate over a row for each model whose weights are rounded to fewer bits than halves."""
    for model, record in sorted(audit.manifest.models.items()):
        for kind in get_args(EvidenceKind):
            number_format = record.get(f"{kind} dtype", "float32")
            if number_format.lower() not in _FLOATS:
                yield {"subject": model, "statistic": "dtype", "reason": number_format}
                break


def _describe_dress(audit: Audit) -> Rows:
    """Iterate over rows on what is taken off answers, and whether the rest continues."""
    dress = audit.manifest.dress
    if not dress:
        return
    for layer in dress["rule"]:
        yield {
            "subject": layer["kind"],
            "statistic": "taken_off",
            "reason": layer["text"] or None,
        }
    for name in ("n_prompts", "n_dressed", "n_alike", "n_repeating", "n_empty"):
        yield {"subject": "target", "statistic": name, "value": dress[name]}
    yield {
        "subject": "target",
        "statistic": "verdict",
        "verdict": "continues" if dress["continues"] else "does_not_continue",
        "reason": dress["example"] or None,
    }


_FLOATS = ("float32", "float16", "bfloat16", "f32", "f16", "bf16")
"""Number formats of weights that are not quantised, as engines name them."""

_CHECKS: Final[dict[str, Callable[[Audit], Rows]]] = {
    "prompts": _count_prompt_words,
    "endpoint": _find_honoured,
    "answers": _count_answers,
    "dress": _describe_dress,
    "held_back": _find_held_back,
    "chance": _compare_with_chance,
    "start_token": _find_start_tokens,
    "quantisation": _find_quantised,
}
"""What the model was given, and what kinds of answers came back, by check."""


# What is found about all attacks together, and about all texts together.

SET_CHECKS = ("combination", "codec", "dataset_inference")  # names of the checks


def answer_about_sets(
    scores: pl.LazyFrame,
    attacks: Sequence[Attack],
    rule: DecisionRule,
    earlier_findings: pl.DataFrame,
    *,
    separable: bool,
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return verdicts and findings about the texts together, after the findings before scores."""
    # Sets that are ``separable`` without the model close dataset inference.
    names = {attack.name for attack in attacks}
    verdicts: list[pl.DataFrame] = [schemas.Verdicts.create_empty()]
    findings: list[pl.DataFrame] = [schemas.Findings.create_empty()]
    has_nulls = bool(role_counts(earlier_findings)["n_nulls"])
    if views.COMBINATION in names:
        findings.append(sets.combination_findings(scores))
    if views.CODEC in names and has_nulls:
        findings.append(sets.codec_findings(scores))
    weighed = [attack.name for attack in attacks if attack.evidence != "scores"]
    if rule.level == "collection" and has_nulls and len(weighed) > 1:
        inferred = sets.infer_dataset(scores, weighed, rule, separable=separable)
        verdicts.append(inferred.verdict())
        findings.append(inferred.findings())
    return pl.concat(verdicts), pl.concat(findings)


# From targets and scores to findings, metrics and verdicts.

_MOST_ERRORS = 20_000  # targets and non-members whose sampling error is measured
_FROM_SCORES = (
    "power",
    "gate",
    "order",
    "verbatim",
    "continued",
    "plan",
    "later",
    "reported",
    "placebo",
    "e_values",
    "uneven_scores",
    "null_audits",
    KNOWN_SHARE,
    VERBATIM_SHARE,
    *sets.FEW_BOOKS,
    *_CHECKS,
    *SET_CHECKS,
    *YARDSTICK_CHECKS,
)


def forecast_power(targets: pl.LazyFrame, rule: DecisionRule) -> pl.DataFrame:
    """Compute what the test can show at best; nothing without texts to compare."""
    roles = role_counts(checks.role_findings(targets))
    if not (roles["n_unknown"] and roles["n_nulls"]):
        return finding_rows("power", [])
    columns = targets.collect_schema().names()
    key_columns = (*schemas.Scores.column_names(), "author")
    keys = targets.select(name for name in key_columns if name in columns)
    return power_findings(keys.collect(engine="streaming").lazy(), rule)


def _find_yardstick_runs(audit: Audit) -> pl.DataFrame:
    """Return the longest run of each text of the yardstick that comes back."""
    settings = audit.settings
    targets = audit.run.scan("targets").filter(role="yardstick")
    n_words = count_words("reference", words=settings.word_rule)
    texts = targets.select("target_id", reference_words=n_words).collect()
    if texts.is_empty():
        return texts.with_columns(longest_words=pl.lit(None, pl.UInt32))
    features = audit.run.scan("features")
    runs = memory.verbatim_runs(
        targets, features, settings.continuations, settings.word_rule
    )
    return texts.with_columns(runs["longest_words"])


def _iterate_verdicts(
    audit: Audit, findings: pl.DataFrame, blind: pl.DataFrame | None
) -> Iterator[pl.DataFrame]:
    """Iterate over the verdicts of each attack, with the sampling errors of the primary one."""
    rule = audit.rule
    run = audit.run
    yield schemas.Verdicts.create_empty()
    roles = role_counts(findings)
    if not (roles["n_nulls"] or roles["n_canaries"]):
        return
    names = [attack.name for attack in audit.attacks]
    primary = audit.attacks[names.index(rule.primary)]
    errors = None
    has_features = any(run.path("features").glob("*.parquet"))
    reads_samples_alone = primary.evidence == "samples" and not primary.logprobs
    if roles["n_nulls"] and reads_samples_alone and has_features:
        errors = _measure_sampling_errors(audit, primary)
    blind_warns = _is_separable(findings, "calibration")
    for rows in verdicts(
        run.scan("scores"), names, rule, blind_warns=blind_warns, blind=blind
    ):
        # Frames are of one attack each.
        is_primary = not rows.is_empty() and rows["attack"][0] == rule.primary
        if errors is None or not is_primary:
            yield rows
            continue
        keys = rows.select(target_id="key")
        joined = keys.join(errors, on="target_id", how="left", maintain_order="left")
        is_target = pl.col("level") == "target"
        error = pl.when(is_target).then(joined["standard_error"])
        yield rows.with_columns(standard_error=error)


def _select_blind_targets(blind: pl.DataFrame) -> pl.DataFrame:
    return blind.select("target_id", pl.col("^targets_.*$")).drop_nulls()


def _is_separable(findings: pl.DataFrame, subject: str) -> bool:
    matches = findings.filter(
        check="blind_baseline", subject=subject, verdict="separable"
    )
    return not matches.is_empty()


def _measure_sampling_errors(audit: Audit, attack: Attack) -> pl.DataFrame:
    """Measure the sampling error of the first targets and non-members by ``target_id``."""
    scores = (
        audit.run.scan("scores")
        .filter(pl.col("role").is_in(["target", "non_member"]))
        .select("target_id", score=attack.name)
        .bottom_k(_MOST_ERRORS, by="target_id")
        .collect(engine="streaming")
        .sort("target_id")
    )
    has_score = pl.col("target_id").is_in(scores["target_id"].implode())
    is_sampled = pl.col("sample_index") < audit.settings.continuations
    features = open_evidence(audit)["samples"].filter(has_score, is_sampled)
    key = ("target_id", "sample_index")
    sample_scores = score_by(features, attack, *key).sort(key)
    return score_errors(sample_scores.collect(engine="streaming"), scores)


class PreflightStage(Stage):
    """Look at the texts before any engine starts: what they tell alone, and the test's power."""

    name = "preflight"
    phase = "texts"
    activity = "checking what the texts show without the model"
    makes = ("findings", "blind", "blind_metrics")
    reads = ("targets",)
    extends = ("verdicts",)

    def fingerprint(self) -> dict[str, Any]:
        """Return the texts, and the rule less its attack: the checks do not depend on scores."""
        rule = asdict(self.audit.rule)
        del rule["primary"]
        rule["length_edges"] = list(rule["length_edges"])  # as JSON gives them back
        return {
            "targets": self.audit.manifest.made.get("targets"),
            "plan": rule,
        }

    def run(self) -> None:
        super().run()
        audit = self.audit
        text_findings = audit.run["findings"].filter(pl.col("check") != "gate")
        gate = checks.gate_findings(
            text_findings, exploratory=audit.settings.exploratory
        )
        findings = pl.concat([text_findings, gate])
        reason = self._find_reason_to_stop(findings, audit.run.scan("targets"))
        for sentence in preflight_sentences(findings):
            if sentence != reason:
                audit.observer.stage(sentence)
        if reason is not None:
            raise SettingsError(
                f"{reason} Nothing was asked of the model; --anyway goes on"
            )

    def make(self) -> None:
        run = self.audit.run
        rule = self.audit.rule
        targets = run.scan("targets")
        checked = preflight.check_targets(targets, seed=self.audit.settings.seed)
        blind = _select_blind_targets(checked.blind_scores)
        rows = [
            checks.role_findings(targets),
            draw_findings(self.audit.manifest.input.get("draw")),
            checked.findings,
            weight_findings(targets, blind, checked.findings, rule),
            finding_rows("near_copies", near_copy_rows(targets)),
            author_findings(targets, rule),
            forecast_power(targets, rule),
        ]
        sink(checked.blind_scores, run.path("blind"), schemas.Blind)
        sink(checked.blind_metrics, run.path("blind_metrics"), schemas.Metrics)
        sink(pl.concat(rows), run.path("findings"), schemas.Findings)

    def _find_reason_to_stop(
        self, findings: pl.DataFrame, targets: pl.LazyFrame
    ) -> str | None:
        """Return why no answer can come of evidence that would cost something, if none can."""
        audit = self.audit
        if audit.settings.anyway or audit.recording is not None:
            return None
        decides = "together" if audit.rule.level == "collection" else "needed"
        power = findings.filter(check="power", statistic=decides)
        if "draw" in audit.manifest.input:  # whose share needs no text that stands out
            power = power.clear()
        is_withheld = checks.gate_verdict(findings) == "withheld"
        if not is_withheld and "impossible" not in power["verdict"]:
            return None
        if role_counts(findings)["n_canaries"]:
            return None
        labelled = targets.filter("member", pl.col("role") == "target").head(1)
        if not labelled.collect().is_empty():
            return None
        sentences = gate_sentence if is_withheld else power_sentences
        return next(iter(sentences(findings)))


class VerdictsStage(Stage):
    """Measure the attacks, and say of which texts the model knows."""

    name = "verdicts"
    phase = "answers"
    makes = ("metrics", "verdicts")
    reads = ("scores", "unscored")
    extends = ("summary",)
    adds_to = ("findings",)
    activity = "measuring the attacks"

    def fingerprint(self) -> dict[str, Any]:
        """Return scores, checks of the texts, the plan made before, and the settings of answers."""
        manifest = self.audit.manifest
        names = {*VerdictSettings.model_fields, "slice_by", "preset", "seed"}
        plan = [manifest.plan.get(name) for name in ("sha256", "rests_on", "attacks")]
        return {
            "scores": manifest.made.get("scores"),
            "preflight": manifest.made.get("preflight"),
            "plan": plan,
            "settings": self.audit.settings.model_dump(mode="json", include=names),
        }

    def make(self) -> None:
        audit = self.audit
        run = audit.run
        answers = [finding_rows(name, check(audit)) for name, check in _CHECKS.items()]
        is_from_scores = pl.col("check").is_in(_FROM_SCORES)
        text_findings = run.scan("findings").filter(~is_from_scores).collect()
        plan = checks.plan_findings(audit.rule, audit.manifest.plan, _rests_on(audit))
        gate = pl.concat(
            [
                checks.gate_findings(
                    text_findings, exploratory=audit.settings.exploratory
                ),
                _find_changes(audit),
            ]
        )
        gate_verdict = checks.gate_verdict(gate)
        why_no_answer = checks.why_not_continued(pl.concat(answers))
        withheld = why_no_answer or checks.why_withheld(gate)
        blind = None
        if why_no_answer is None and gate_verdict == "weighted":
            # By which nulls are weighted
            blind = _select_blind_targets(run.scan("blind").collect())
        is_exploratory = gate_verdict == "exploratory"
        state = _State(
            text_findings=text_findings,
            why_no_answer=why_no_answer,
            withheld=withheld,
            blind=blind,
            has_changed=gate_verdict == "changed",
            is_as_planned=plan["verdict"].item(0) == "as_planned"
            and not is_exploratory,
            in_rounds=audit.rule.adjustment == "e-bh",
        )
        # What is scored depends on scores: no other answer
        metrics: pl.DataFrame = schemas.Metrics.create_empty()
        if not state.in_rounds:
            metrics = self._measure()
        metrics = checks.withhold_all(metrics, why_no_answer)
        sink(metrics, run.path("metrics"), schemas.Metrics)
        findings = self._write_verdicts(state)
        findings += self._test_verdicts(state)
        later = checks.later_findings(audit.later_attacks)
        rows = pl.concat([text_findings, *answers, plan, later, gate, *findings])
        sink(checks.apply_gate(rows), run.path("findings"), schemas.Findings)

    def _write_verdicts(self, state: "_State") -> list[pl.DataFrame]:
        """Write the verdicts, some of them withheld; return what is found with them."""
        audit = self.audit
        frames = _iterate_verdicts(audit, state.text_findings, state.blind)
        findings = [forecast_power(audit.run.scan("scores"), audit.rule)]
        if not state.in_rounds:
            set_verdicts, set_findings = self._answer_about_sets(state)
            frames = chain(frames, [set_verdicts])
            findings += set_findings
        if not state.is_shown and state.withheld is not None:
            withheld = state.withheld
            frames = (
                checks.withhold(rows, withheld, all_sets=state.has_changed)
                for rows in frames
            )
            frames = (checks.withhold_all(rows, state.why_no_answer) for rows in frames)
        if not state.is_as_planned:
            frames = (rows.with_columns(planned=False) for rows in frames)
        sink_frames(frames, audit.run.path("verdicts"), schemas.Verdicts)
        return findings

    def _answer_about_sets(
        self, state: "_State"
    ) -> tuple[pl.DataFrame, list[pl.DataFrame]]:
        """Return verdicts about the texts together, and findings about all attacks."""
        audit = self.audit
        rule = audit.rule
        scores = audit.run.scan("scores")
        is_withheld = state.withheld is not None
        verdicts, findings = answer_about_sets(
            scores,
            audit.planned_attacks,
            rule,
            state.text_findings,
            separable=is_withheld or _is_separable(state.text_findings, "members"),
        )
        names = [attack.name for attack in audit.planned_attacks]
        names.sort(key=lambda name: name != rule.primary)
        uneven = preflight.uneven_findings(scores, names, audit.run.scan("unscored"))
        if state.why_no_answer is not None:
            findings = findings.clear()
        roles = role_counts(state.text_findings)
        has_both_sides = bool(roles["n_unknown"] and roles["n_nulls"])
        runs = _find_yardstick_runs(audit)
        ladder = yardstick_findings(
            scores, rule, runs, tested=has_both_sides and not is_withheld
        )
        if state.has_changed:
            ladder = ladder.filter(pl.col("check") != "dose")
        return verdicts, [uneven, findings, ladder]

    def _test_verdicts(self, state: "_State") -> list[pl.DataFrame]:
        """Return what tests of the written verdicts find."""
        audit = self.audit
        rule = audit.rule
        scores = audit.run.scan("scores")
        findings: list[pl.DataFrame] = []
        if state.is_shown:
            reported = checks.reported_findings(audit.run.scan("verdicts"), rule)
            findings.append(reported)
            if state.in_rounds:
                test = RoundsTest(read_comparison_sets(scores), rule)
                findings.append(test.findings(scores))
            else:
                findings.append(placebo_findings(scores, rule, reported, state.blind))
        if state.withheld is None and not state.in_rounds:
            planned_names = [attack.name for attack in audit.planned_attacks]
            lodged_names = None
            if state.is_as_planned:
                lodged_names = audit.manifest.plan.get("attacks")
            few_books = sets.few_books_findings(
                scores, planned_names, rule, lodged_names
            )
            findings.append(few_books)
            findings.append(null_audit_findings(scores, rule))
            known_share = known_share_findings(
                audit.run.scan("targets"),
                scores,
                rule,
                state.text_findings,
                blind_warns=_is_separable(state.text_findings, "calibration"),
            )
            findings.append(known_share)
        return findings

    def _measure(self) -> pl.DataFrame:
        audit = self.audit
        run = audit.run
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """What the checks before the verdicts say of these."""

    text_findings: pl.DataFrame  # that do not depend on scores
    why_no_answer: str | None
    withheld: str | None  # the reason why verdicts are withheld
    blind: pl.DataFrame | None  # scores without the model, by which nulls are weighted
    has_changed: bool  # the service, while it was asked
    is_as_planned: bool
    in_rounds: bool

    @property
    def is_shown(self) -> bool:
        return self.withheld is None or self.blind is not None


def _find_changes(audit: Audit) -> pl.DataFrame:
    """Return rows on whether a service changed while it was asked; a local model cannot."""
    settings = audit.settings
    manifest = audit.manifest
    if manifest.source != "endpoint":
        return finding_rows("order")
    has_order = "order" in manifest.evidence
    by_lot = has_order and not manifest.input.get("has_grown", False)
    in_rounds = audit.rule.adjustment == "e-bh"
    write_responses(audit)
    cluster = pl.coalesce("group", "document_id", "target_id").alias("cluster")
    score = pl.col(audit.rule.primary).alias("score")
    scores = audit.run.scan("scores")
    texts = scores.select("target_id", "role", "member", cluster, score).collect()
    if texts["score"].count() == 0 and not audit.run.path("responses").exists():
        return finding_rows("order")  # nothing could be asked
    names = [view.name for view in list_views(audit) if view.model == "target"]
    is_of_scores = pl.col("target_id").is_null() | pl.col("view").is_in(names)
    responses = audit.run["responses"].filter(is_of_scores)
    if by_lot:
        numbers = lot_numbers(texts["target_id"], settings.seed)
        ordered = texts[numbers.argsort(kind="stable")]
    elif in_rounds:
        ordered = texts.clear()
    else:
        ordered = sort_by_time(texts, responses)
    return order_findings(
        ordered,
        responses,
        settings.seed,
        by_lot=by_lot and not in_rounds,
        exploratory=settings.exploratory or settings.anyway,
    )


def _rests_on(audit: Audit) -> dict[str, int | str]:
    """Return what scores rest on: how much is asked, and about which texts."""
    texts = audit.manifest.made["targets"]
    rarity = audit.manifest.made.get("rarity", {})
    rests_on: dict[str, int | str] = {
        "samples": audit.settings.continuations,
        "probes": audit.settings.probes,
    }
    if audit.reads_tokens:
        rests_on["token_points"] = audit.settings.token_points
    if "from" in rarity:
        rests_on["rarity_from"] = rarity["from"]
    rests_on["input"] = texts["input"]
    if "draw" in texts:
        rests_on["draw"] = texts["draw"]["rows_sha256"]
    reference_sets = texts["reference_sets"].items()
    return rests_on | {
        role: content for role, content in reference_sets if role != "yardstick"
    }


# From evidence to scores, and from verdicts to the tables that a report shows.

_MOST_LOST = 0.5  # of the answers about a target, of no use or failed
_MOST_FAILED = 0.1  # of them, that another try may bring
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
        audit = self.audit
        formulas = b"".join(attack.expr.meta.serialize() for attack in audit.attacks)
        sample_views = list_views(audit, "samples")
        logprob_views = list_views(audit, "logprobs")
        fingerprint = {
            "attacks": [attack.name for attack in audit.attacks],
            "formulas": sha256(formulas).hexdigest(),
            "samples": {view.name: [view.n, view.samples] for view in sample_views},
            "logprobs": {"-".join(view.key): view.n for view in logprob_views},
            "targets": audit.manifest.made["targets"],
        }
        if _is_learned(audit):
            fingerprint["seed"] = audit.settings.seed
        trained_models = {
            name: audit.find_source(name)["digest"]
            for name in list_models(audit)
            if name.is_trained_here
        }
        if trained_models:
            fingerprint["made"] = trained_models
        fingerprint |= fingerprint_dress(audit)
        fingerprint["parts"] = digest_parts(self._list_parts())
        return fingerprint

    def _list_parts(self) -> list[Path]:
        """List the parts that are scored; recitals come after the scores."""
        recital = f".{'-'.join(views.RECITAL)}-"
        parts: list[Path] = []
        for name in ("features", "logprobs"):
            parts += self.audit.run.path(name).glob("*.parquet")
        parts = [part for part in parts if recital not in part.name]
        return sorted(parts, key=lambda part: part.name)

    def run(self) -> None:
        self.audit.manifest.failed = _count_failures(self.audit)
        n = len(self.audit.attacks)
        self.activity = f"scoring {n} {'attacks' if n > 1 else 'attack'}"
        super().run()

    def make(self) -> None:
        audit = self.audit
        run = audit.run
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
            attacks = audit.planned_attacks
            names = [attack.name for attack in attacks if attack.evidence != "scores"]
            learned = sets.combine(run.scan("scores"), names, seed=audit.settings.seed)
            self._add(pl.Series(views.COMBINATION, learned, nan_to_null=True))
        self._score_placebo(evidence)
        unscored = find_unscored(
            run.scan("scores"),
            run.scan("samples").filter(_is_read(audit)),
            open_asked_targets(audit),
            audit.attacks,
            logprobs=logprobs,
        )
        sink(unscored, run.path("unscored"), schemas.Unscored)

    def _add(self, column: pl.Series) -> None:
        run = self.audit.run
        scores = run.scan("scores").with_columns(column)
        sink(scores, run.path("scores"), schemas.Scores)

    def _score_placebo(self, evidence: Mapping[str, pl.LazyFrame]) -> None:
        """Add scores of the primary attack on the reference model's answers."""
        audit = self.audit
        placebo = audit.placebo
        if placebo is None:
            return
        names = [attack.name for attack in audit.attacks]
        primary = audit.attacks[names.index(audit.rule.primary)]
        as_target = pl.lit("target")
        reference = {
            kind: rows.filter(model="reference").with_columns(model=as_target)
            for kind, rows in evidence.items()
        }
        frames = score(
            reference["samples"],
            audit.run.scan("targets"),
            [primary],
            logprobs=reference.get("logprobs"),
        )
        scores = pl.concat(frame[primary.name] for frame in frames)
        self._add(scores.alias(placebo.name))


def build_continued_findings(audit: Audit) -> pl.DataFrame:
    """Rows of check ``continued``: nothing where all were continued that should be."""
    record = audit.manifest.continued
    if not record.get("left"):
        return finding_rows("continued")
    n_asked = record["wanted"] - record["left"]
    numbers = {"n_continued": n_asked, "n_highest": record["wanted"]}
    verdict = "not_asked" if not audit.settings.continue_strongest else "too_costly"
    rows = number_rows(numbers, verdict=verdict, reason=record["cost"])
    return finding_rows("continued", rows, subject="targets")


def open_evidence(audit: Audit) -> dict[str, pl.LazyFrame]:
    """Open what the attacks read; a run may have more than its settings ask for."""
    # Where there is no sample the features have the columns that they would have.
    features = audit.run.scan("features")
    if not any(audit.run.path("features").glob("*.parquet")):
        fields = feature_fields(audit.manifest.made["features"]["groups"])
        features = features.with_columns(
            pl.lit(None, field.dtype).alias(field.name) for field in fields
        )
    evidence = {"samples": features.filter(_is_read(audit))}
    if any(EXPECTED in attack.columns for attack in audit.attacks):
        evidence["samples"] = with_expected(evidence["samples"], group_targets(audit))
    if audit.list_attacks_on("logprobs"):
        is_read = [
            views.matches_views([view.key]) & (pl.col("view_index") < view.n)
            for view in list_views(audit, "logprobs")
        ]
        rows = scan_parts(audit.run.path("logprobs"), schemas.LogProbs)
        evidence["logprobs"] = rows.filter(pl.any_horizontal(is_read))
    return evidence


def open_asked_targets(audit: Audit) -> pl.LazyFrame:
    """Open the targets; where groups stop when decided, with a reason for what was not asked."""
    targets = audit.run.scan("targets")
    if audit.rule.adjustment != "e-bh":
        return targets
    rows = [
        audit.run.scan(kind).select("target_id") for kind in ("samples", "logprobs")
    ]
    asked_ids = pl.concat(rows).unique().collect(engine="streaming").to_series()
    was_asked = pl.col("target_id").is_in(asked_ids.implode())
    reason = pl.when(~was_asked).then(pl.lit(_NOT_ASKED))
    return targets.with_columns(reason=pl.coalesce("reason", reason))


def _is_learned(audit: Audit) -> bool:
    return any(attack.evidence == "scores" for attack in audit.attacks)


def _is_read(audit: Audit) -> pl.Expr:
    """Return whether a row of samples is one that the attacks read."""
    conditions = [
        (pl.col("view") == view.name)
        & (pl.col("view_index") < view.n)
        & (pl.col("sample_index") < view.samples)
        for view in list_views(audit, "samples")
    ]
    return pl.any_horizontal(pl.lit(value=False), *conditions)


def _read_answers(audit: Audit) -> pl.LazyFrame:
    """Open the answers that were asked for, and whether another try may mend a failed one."""
    is_of_stage = pl.col("view").is_in(list(STAGE_VIEW_TYPES))
    was_asked = pl.col("n_bytes").is_not_null()
    is_final = pl.col("reason").str.contains(", the context ")
    is_final |= pl.col("reason").str.starts_with(FILTERED)
    columns = ("target_id", "model", "view", "reason")
    samples = audit.run.scan("samples").filter(~is_of_stage)
    logprobs = audit.run.scan("logprobs").filter(was_asked)
    return pl.concat(
        [
            samples.select(*columns, mends=pl.col("answer").is_null()),
            logprobs.select(*columns, mends=~is_final),
        ]
    )


def _count_failures(audit: Audit) -> dict[str, Any]:
    """Count the ``targets`` that lack too many answers, and those that are ``incomplete``."""
    # A failed request costs its own answer. A text has failed where more than a tenth
    # of a view's answers failed, or more than half are of no use. A mean over 9 of 10
    # points spreads 5 % more, so that what chance brings in 1 of 100 texts comes in 1.4
    # at most.
    rows = _read_answers(audit)
    has_failed = pl.col("reason").is_not_null()
    reasons = (
        rows.filter(has_failed)
        .select("target_id", "reason", "mends")
        .unique()
        .collect(engine="streaming")
    )
    has_reason = pl.col("target_id").is_in(reasons["target_id"].unique().implode())
    by_view = (
        rows.filter(has_reason)
        .group_by("target_id", "model", "view")
        .agg(
            n_rows=pl.len(),
            n_lost=has_failed.sum(),
            n_failed=(has_failed & pl.col("mends")).sum(),
        )
        .collect(engine="streaming")
    )
    is_lost = pl.col("n_lost") > _MOST_LOST * pl.col("n_rows")
    is_lost |= pl.col("n_failed") > _MOST_FAILED * pl.col("n_rows")
    failed = by_view.filter(is_lost).select("target_id").unique()
    others = by_view.filter(pl.col("n_lost") > 0).join(
        failed, on="target_id", how="anti"
    )
    askable = audit.run.scan("targets").filter(pl.col("reason").is_null())
    counts = audit.manifest.targets
    of_failed = reasons.join(failed, on="target_id", how="semi")
    of_others = reasons.join(others, on="target_id", how="semi")
    return {
        "targets": failed.lazy()
        .join(askable, on="target_id", how="semi")
        .collect()
        .height,
        "of": 2 * counts["total"] - sum(counts.values()),
        "again": reasons.filter("mends")["target_id"].n_unique(),
        "reasons": preflight.count_reasons(of_failed.lazy()),
        "incomplete": {
            "targets": others["target_id"].n_unique(),
            "missing": others["n_lost"].sum(),
            "asked": others["n_rows"].sum(),
            "reasons": preflight.count_reasons(of_others.lazy()),
        },
    }


class SummaryStage(Stage):
    """Make the tables that a report shows as they are: of documents and groups, and curves."""

    name = "summary"
    phase = "answers"
    makes = ("rollup", "curves", "perplexities")
    adds_to = ("findings",)
    reads = ("scores",)
    activity = "summing up documents and groups"

    def fingerprint(self) -> dict[str, Any]:
        made = self.audit.manifest.made
        paths = {
            "extracted": self.audit.run.path("extracted_documents"),
            "controls": self.audit.run.path("controls"),
        }
        fingerprint: dict[str, Any] = {}
        for name in ("verdicts", "features", "recitals"):
            fingerprint[name] = made.get(name)
        for name, path in paths.items():
            fingerprint[name] = digest(path) if path.exists() else None
        return fingerprint

    @property
    def required_tables(self) -> set[str]:
        tables = {*self.makes}
        keys = {view.key for view in list_views(self.audit, "logprobs")}
        if views.TEXT not in keys:
            tables.remove("perplexities")
        return tables

    def make(self) -> None:
        audit = self.audit
        run = audit.run
        controls = run.scan("controls") if run.path("controls").exists() else None
        runs = find_verbatim_runs(run, audit.settings)
        findings = self._roll_up(controls, runs)
        verbatim = memory.verbatim_findings(
            runs,
            read_comparison_sets(run.scan("scores"), with_names=False),
            self._describe_passages(runs),
            None if controls is None else controls.collect(),
            self._describe_stretches(controls),
            all_continued=audit.continues_texts,
        )
        verbatim_share = verbatim_share_findings(
            run.scan("targets"),
            runs,
            None if controls is None else controls.collect(),
            findings,
            all_continued=audit.continues_texts,
        )
        made_here = [verbatim, verbatim_share, build_continued_findings(audit)]
        names = ["verbatim", VERBATIM_SHARE, "continued"]
        rows = pl.concat([findings.filter(~pl.col("check").is_in(names)), *made_here])
        rows = checks.apply_gate(rows)
        sink(rows, run.path("findings"), schemas.Findings)
        # Curves mean nothing where what is scored depends on scores, or no text is
        # continued.
        in_rounds = audit.rule.adjustment == "e-bh"
        if in_rounds or checks.why_not_continued(rows) is not None:
            sink(schemas.Curves.create_empty(), run.path("curves"), schemas.Curves)
        else:
            targets = open_asked_targets(audit)
            evidence = open_evidence(audit)
            frames = curves(
                targets,
                run.scan("scores"),
                audit.attacks,
                audit.rule.primary,
                evidence,
            )
            sink_frames(frames, run.path("curves"), schemas.Curves)
        if "perplexities" in self.required_tables:
            self._write_perplexities()

    def _describe_passages(self, runs: pl.DataFrame) -> pl.DataFrame:
        """Return the passages that came out with the names of their documents."""
        audit = self.audit
        words = audit.settings.word_rule
        passages = find_passages(audit, runs).lazy()
        name = pl.coalesce("document_id", "target_id")
        texts = audit.run.scan("targets").select("target_id", "prefix", name=name)
        joined = passages.join(texts, on="target_id", maintain_order="left")
        passages = joined.with_columns(n_words=count_words("passage", words=words))
        run_words = memory.count_run_words(
            pl.col("prefix"), pl.col("passage"), pl.col("n_words"), words
        )
        n_left = run_words.struct.field("n_left")
        return passages.with_columns(n_left=n_left).collect()

    def _describe_stretches(self, controls: pl.LazyFrame | None) -> pl.DataFrame:
        """Return the longest passage that walks said of each document, with its name."""
        run, words = self.audit.run, self.audit.settings.word_rule
        extraction: pl.LazyFrame = schemas.Extraction.create_empty(lazy=True)
        if run.path("extraction").exists():
            extraction = run.scan("extraction")
        extracted = self._read_extracted(controls)
        stretches = memory.longest_stretches(extraction, extracted)
        return stretches.drop_nulls("passage").select(
            "passage",
            "n_left",
            name="document_id",
            n_words=count_words("passage", words=words),
        )

    def _write_perplexities(self) -> None:
        run = self.audit.run
        folder = run.path("logprobs")
        keys = {view.key for view in list_views(self.audit, "logprobs")}
        texts = scan_parts(folder, schemas.LogProbs, views.TEXT)
        reference: pl.LazyFrame = schemas.LogProbs.create_empty(lazy=True)
        if views.REFERENCE_TEXT in keys:
            reference = scan_parts(folder, schemas.LogProbs, views.REFERENCE_TEXT)
        table = perplexities(texts, reference)
        sink(table, run.path("perplexities"), schemas.Perplexities)

    def _read_extracted(self, controls: pl.LazyFrame | None) -> pl.LazyFrame:
        """Read what walks gave of each document, without what is common."""
        run = self.audit.run
        extracted: pl.LazyFrame = schemas.ExtractedDocuments.create_empty(lazy=True)
        if run.path("extracted_documents").exists():
            extracted = run.scan("extracted_documents")
        if controls is None or not run.path("extraction").exists():
            return extracted
        common = memory.common_targets(controls)
        return memory.without_common(extracted, run.scan("extraction"), common)

    def _roll_up(
        self, controls: pl.LazyFrame | None, runs: pl.DataFrame
    ) -> pl.DataFrame:
        """Write the table of documents and groups; return the findings so far."""
        audit = self.audit
        run = audit.run
        findings = run.scan("findings").collect()
        rows = rollup(
            open_asked_targets(audit),
            run.scan("scores"),
            runs,
            run.scan("verdicts"),
            audit.rule,
            extracted=self._read_extracted(controls),
            candidates=run.scan("samples"),
            samples=audit.settings.continuations,
            words=audit.settings.word_rule,
            blind_warns=_is_separable(findings, "calibration"),
            findings=findings,
            controls=controls,
            all_continued=audit.continues_texts,
        )
        sink(rows, run.path("rollup"), schemas.Rollup)
        return findings
