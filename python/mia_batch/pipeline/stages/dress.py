"""The stage that finds how the target model dresses its answers, and takes the dress off."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from mia_batch.evidence import dress
from mia_batch.evidence.parts import Parts, PromptUnits, scan_parts
from mia_batch.kernels import WordRule, count_words
from mia_batch.pipeline.context import Audit
from mia_batch.pipeline.stages import Stage
from mia_batch.pipeline.stages.features import digest_parts
from mia_batch.pipeline.stages.questions import (
    list_views,
    prompt_parts,
    read_prompts,
    sample_parts,
)
from mia_batch.report.sentences import describe_layers
from mia_batch.schemas import Samples
from mia_batch.tables import scan, sink
from mia_batch.targets import TargetLookup
from mia_batch.views import View

_MOST_PROMPTS = 2_000  # of a view, of which a rule is learned
_MOST_SAMPLES = 2  # of a prompt
_KEY = ["target_id", "view_index"]


def list_dressed_views(audit: Audit) -> list[View]:
    """List the views whose answers should go on with a text, and may begin otherwise."""
    if audit.manifest.source == "engine":  # which goes on with the tokens it is given
        return []
    views = list_views(audit, "samples")
    return [view for view in views if view.model == "target" and view.continues_texts]


class DressStage(Stage):
    """Learn one rule for all answers of the run, once, and keep what it takes off."""

    name = "dress"
    phase = "scores"
    activity = "looking at how the model begins its answers"
    reads = ("samples",)

    def fingerprint(self) -> dict[str, Any]:
        paths: list[Path] = []
        for view in list_dressed_views(self.audit):
            paths += sample_parts(self.audit, view).paths()
        return {"parts": digest_parts(sorted(paths)), "form": dress.VERSION}

    def make(self) -> None:
        audit = self.audit
        views = list_dressed_views(audit)
        answers: list[dress.AnsweredPrompt] = []
        for view in views:
            answers += _read_answers(audit, view)
        if not answers:
            return
        recorded_rule = audit.manifest.dress.get("rule")
        if recorded_rule is None:
            rule = dress.learn(answers, _read_endpoint_rule(audit))
        else:
            rule = dress.parse_rule(recorded_rule)
        examination = dress.examine(answers, rule)
        record = {"rule": dress.recorded_rule(rule), **examination._asdict()}
        audit.manifest.dress = record | {"continues": examination.continues}
        audit.save()
        if not rule:
            return
        layers = describe_layers((layer.kind, layer.text) for layer in rule)
        audit.observer.stage(f"taken off the answers, the same off all: {layers}")
        for view in views:
            self._take_off(view, rule)

    def _take_off(self, view: View, rule: dress.Rule) -> None:
        """Remove the dress from a view's samples; the features of changed parts are removed."""
        audit = self.audit
        undress = _PartUndresser.build(audit, view, rule)
        folder = audit.run.path("features")
        parts = sample_parts(audit, view).paths()
        features = [folder / part.name for part in parts if undress(part)]
        self.remove([path for path in features if path.exists()])


def _read_endpoint_rule(audit: Audit) -> dress.Rule:
    """Return what probing the endpoint saw around continuations that every model knows."""
    engine = audit.manifest.engines.get("samples of target", {})
    return dress.parse_rule(engine.get("capabilities", {}).get("dress", ()))


def _read_answers(audit: Audit, view: View) -> list[dress.AnsweredPrompt]:
    """Read answers to up to 2,000 prompts of a view."""
    run = audit.run
    askable = run.scan("targets").filter(pl.col("reason").is_null())
    n_targets = -(-_MOST_PROMPTS // view.n)
    targets = askable.bottom_k(n_targets, by="target_id").collect(engine="streaming")
    prompts = read_prompts(run, view, targets).select(*_KEY, "context", "text")
    samples = scan_parts(run.path("samples"), Samples, view.key)
    answers = samples.filter(pl.col("sample_index") < _MOST_SAMPLES).select(
        *_KEY,
        "sample_index",
        answer=pl.coalesce("raw", "candidate"),
        is_cut=(pl.col("finish_reason") == "length").fill_null(value=False),
    )
    joined = prompts.lazy().join(answers, on=_KEY).drop_nulls()
    # In one order wherever they were asked and stored: of equal beginnings the first is
    # the example.
    rows = joined.sort(*_KEY, "sample_index")
    columns = rows.select("context", "answer", "text", "is_cut")
    return [
        dress.AnsweredPrompt(*row)
        for row in columns.collect(engine="streaming").iter_rows()
    ]


@dataclass(frozen=True, kw_only=True)  # without slots: the targets are looked up once
class _PartUndresser:
    """Rewrites parts of samples: the bare answers, and next to them the model's own words."""

    rule: dress.Rule
    samples: Parts
    prompts: PromptUnits
    words: WordRule

    @classmethod
    def build(cls, audit: Audit, view: View, rule: dress.Rule) -> "_PartUndresser":
        targets = audit.run.path("targets")
        return cls(
            rule=rule,
            samples=sample_parts(audit, view),
            prompts=PromptUnits(targets, prompt_parts(audit, view), view),
            words=audit.settings.word_rule,
        )

    def __call__(self, part: Path) -> bool:
        """Return whether anything was taken off; done twice, it changes nothing more."""
        rows = scan(part, Samples).collect()
        places = [self.samples.target_rows(part)]
        targets = self._targets.find(rows["target_id"], places)
        prompts = self.prompts.find_prompts(targets, places).select(
            *_KEY, "context", "text"
        )
        joined = rows.join(prompts, on=_KEY, how="left", maintain_order="left")
        bare = undress_samples(joined, self.rule, self.words).select(rows.columns)
        if bare.equals(rows):
            return False
        sink(bare, part, Samples)
        return True

    @cached_property
    def _targets(self) -> TargetLookup:
        columns = ["target_id", "n_words", "role", "member", *self.prompts.view.columns]
        return TargetLookup(self.prompts.targets, columns)


def undress_samples(
    rows: pl.DataFrame, rule: dress.Rule, words: WordRule
) -> pl.DataFrame:
    """Remove the dress from samples that still wear it, next to ``context`` and ``text``."""
    bare_answers: list[str | None] = []
    for answer, context, raw in rows.select("candidate", "context", "raw").iter_rows():
        if answer is None or context is None or raw is not None:
            bare_answers.append(answer)
        else:
            bare_answers.append(dress.undress(answer, context, rule))
    worn = pl.col("candidate")
    bare = pl.col("bare")
    is_changed = (worn != bare).fill_null(value=False)
    is_empty = is_changed & (bare.str.strip_chars() == "")
    fewer_words = count_words(bare, words=words) < count_words("text", words=words)
    ended_early = (pl.col("finish_reason") != "stop").fill_null(value=False)
    short = ended_early & fewer_words
    rows = rows.with_columns(pl.Series("bare", bare_answers, dtype=pl.String))
    return rows.with_columns(
        candidate=pl.when(~is_empty).then(bare),
        raw=pl.when(is_changed).then(worn).otherwise("raw"),
        short=pl.when(is_changed & ~is_empty).then(short).otherwise("short"),
        reason=pl.when(is_empty).then(pl.lit(dress.NOTHING_LEFT)).otherwise("reason"),
    )
