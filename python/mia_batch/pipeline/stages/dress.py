"""The stage that finds how the target model dresses its answers, and takes the dress off."""

from collections.abc import Sequence
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
from mia_batch.pipeline.stages.features import parts_digest
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

_MOST_PROMPTS, _MOST_SAMPLES = 2_000, 2  # of a view, of which a rule is learned
_KEY = ["target_id", "view_index"]


# A model that runs here goes on with the tokens it is given
_MAY_DRESS = (
    "openai",
    "replay",
)


def dressed_views(audit: Audit) -> list[View]:
    """Return the views whose answers should go on with a text, and may begin otherwise."""
    if audit.manifest.evidence["engine"] not in _MAY_DRESS:
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
        audit = self.audit
        paths = [
            path
            for view in dressed_views(audit)
            for path in sample_parts(audit, view).paths()
        ]
        return {"parts": parts_digest(sorted(paths)), "form": 1}

    def make(self) -> None:
        audit = self.audit
        views = dressed_views(audit)
        asked = [each for view in views for each in _asked(audit, view)]
        if not asked:
            return
        known = audit.manifest.dress.get("rule")
        rule = (
            dress.learn(asked, _probed(audit))
            if known is None
            else dress.parse_rule(known)
        )
        found = dress.examine(asked, rule)
        recorded = {"rule": dress.recorded_rule(rule), **found._asdict()}
        audit.manifest.dress = recorded | {"continues": found.continues}
        audit.save()
        if rule:
            wearing = describe_layers((layer.kind, layer.text) for layer in rule)
            audit.observer.stage(f"taken off the answers, the same off all: {wearing}")
        for view in views if rule else ():
            self._take_off(view, rule)

    def _take_off(self, view: View, rule: dress.Rule) -> None:
        audit = self.audit
        writer = _Undressing.of(audit, view, rule)
        features = audit.run.path("features")
        changed = [path for path in sample_parts(audit, view).paths() if writer(path)]
        self.remove(
            [path for part in changed if (path := features / part.name).exists()]
        )


def _probed(audit: Audit) -> dress.Rule:
    """Read what the probe of the endpoint saw around continuations that every model knows."""
    engine = audit.manifest.engines.get("samples of target", {})
    return dress.parse_rule(engine.get("capabilities", {}).get("dress", ()))


def _asked(audit: Audit, view: View) -> list[dress.AnsweredPrompt]:
    """Take answers to up to 2,000 prompts."""
    run = audit.run
    own = run.scan("targets").filter(pl.col("reason").is_null())
    most = -(-_MOST_PROMPTS // view.n)
    targets = own.bottom_k(most, by="target_id").collect(engine="streaming")
    prompts = read_prompts(run, view, targets).select(*_KEY, "context", "text")
    samples = scan_parts(run.path("samples"), Samples, view.key)
    answers = samples.filter(pl.col("sample_index") < _MOST_SAMPLES).select(
        *_KEY,
        "sample_index",
        answer=pl.coalesce("raw", "candidate"),
        is_cut=(pl.col("finish_reason") == "length").fill_null(value=False),
    )
    # In one order wherever they were asked and kept: of equal beginnings the first is
    # the example.
    rows = (
        prompts.lazy().join(answers, on=_KEY).drop_nulls().sort(*_KEY, "sample_index")
    )
    columns = rows.select("context", "answer", "text", "is_cut").collect(
        engine="streaming"
    )
    return [dress.AnsweredPrompt(*row) for row in columns.iter_rows()]


@dataclass(frozen=True, kw_only=True)  # without slots: the targets are looked up once
class _Undressing:
    """Rewrites parts of samples: the bare answers, and next to them what the model said."""

    rule: dress.Rule
    samples: Parts
    prompts: PromptUnits
    words: WordRule

    @classmethod
    def of(cls, audit: Audit, view: View, rule: dress.Rule) -> "_Undressing":
        prompts = PromptUnits(
            audit.run.path("targets"), prompt_parts(audit, view), view
        )
        samples, words = sample_parts(audit, view), audit.settings.word_rule
        return cls(rule=rule, samples=samples, prompts=prompts, words=words)

    def __call__(self, part: Path) -> bool:
        """Tell whether anything was taken off; done twice, it changes nothing more."""
        rows = scan(part, Samples).collect()
        places = [self.samples.target_rows(part)]
        targets = self._targets.find(rows["target_id"], places)
        prompts = self.prompts.find_prompts(targets, places).select(
            *_KEY, "context", "text"
        )
        joined = rows.join(prompts, on=_KEY, how="left", maintain_order="left")
        changed = undressed(joined, self.rule, self.words).select(rows.columns)
        if changed.equals(rows):
            return False
        sink(changed, part, Samples)
        return True

    @cached_property
    def _targets(self) -> TargetLookup:
        columns = ["target_id", "n_words", "role", "member", *self.prompts.view.columns]
        return TargetLookup(self.prompts.targets, columns)


def undressed(rows: pl.DataFrame, rule: dress.Rule, words: WordRule) -> pl.DataFrame:
    """Take the dress off samples that still wear it, next to ``context`` and ``text``."""
    answers: Sequence[str | None] = rows["candidate"].to_list()
    contexts, raw = rows["context"].to_list(), rows["raw"].to_list()
    bare = [
        (
            answer
            if None in (answer, context) or before is not None
            else dress.undress(answer or "", context, rule)
        )
        for answer, context, before in zip(answers, contexts, raw, strict=True)
    ]
    said, left = pl.col("candidate"), pl.col("bare")
    is_changed = (said != left).fill_null(value=False)
    is_empty = is_changed & (left.str.strip_chars() == "")
    fewer_words = count_words(left, words=words) < count_words("text", words=words)
    short = (pl.col("finish_reason") != "stop").fill_null(value=False) & fewer_words
    return rows.with_columns(pl.Series("bare", bare, dtype=pl.String)).with_columns(
        candidate=pl.when(~is_empty).then(left),
        raw=pl.when(is_changed).then(said).otherwise("raw"),
        short=pl.when(is_changed & ~is_empty).then(short).otherwise("short"),
        reason=pl.when(is_empty).then(pl.lit(dress.NOTHING_LEFT)).otherwise("reason"),
    )
