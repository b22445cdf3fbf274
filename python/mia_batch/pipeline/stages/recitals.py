"""The stage that continues the texts of highest scores, where no attack asks for continuations."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import polars as pl

from mia_batch.attacks.attack import RECITAL
from mia_batch.errors import SettingsError
from mia_batch.evidence.collect import SampleTask
from mia_batch.evidence.endpoint.wire import NO_TOKENS, CostLimitError, Tokens
from mia_batch.evidence.engines.registry import engine_types, why_not
from mia_batch.evidence.parts import Block, FreshUnits, Missing, PromptUnits, scan_parts
from mia_batch.evidence.request import Workload, forecast
from mia_batch.pipeline import costs
from mia_batch.pipeline.sessions import (
    CONTINUING,
    Session,
    ask,
    build_sample_task,
    forecast_reading,
    open_session,
)
from mia_batch.pipeline.stages import Stage
from mia_batch.pipeline.stages.evidence import list_prompt_columns, write_prompts
from mia_batch.pipeline.stages.extraction import forecast_longest
from mia_batch.pipeline.stages.features import digest_parts, make_features
from mia_batch.pipeline.stages.questions import (
    list_models,
    prompt_parts,
    sample_parts,
)
from mia_batch.pipeline.stages.verdicts import ScoresStage
from mia_batch.schemas import Samples
from mia_batch.settings import N_STRONGEST
from mia_batch.views import TARGET, View, build_view


class RecitalsStage(Stage):
    """Ask for the likeliest continuation of the strongest texts: evidence that people can read."""

    # They are chosen by their scores alone, whether or not they are to compare with, so
    # that what comes out of both sides compares.

    name = "recitals"
    activity = CONTINUING
    model = TARGET
    kind = "samples"
    foreseen = Workload()  # of a dry run
    foreseen_views: frozenset[str] = frozenset()

    @property
    def _n(self) -> int:
        if self.audit.continues_texts:
            return 0
        return self.audit.settings.continue_strongest or 0

    def remaining(self) -> Iterator[tuple[str, str]]:
        """Iterate over what it costs to continue texts: at most as much as the longest would."""
        if not self._n:
            return
        audit = self.audit
        if ScoresStage(audit).is_fresh:
            ranked = self._rank_texts(self._n)
            n_texts = self._find_missing(ranked, fresh=True).count().left
            self.foreseen = self._forecast(ranked)
        else:
            roles = ("target", "non_member")
            self.foreseen = forecast_longest(audit, self._view, self._n, *roles)
            n_texts = min(self._n, self.foreseen.prompts)
        if not n_texts:
            return
        self.foreseen_views = frozenset({self._view.name})
        yield (
            "then",
            f"at most {n_texts:,} texts, those of highest scores, are continued",
        )
        lines = dict(self.foreseen.lines())
        yield "tokens to continue them", lines["tokens to decode"]
        if audit.asks_endpoint("target"):
            yield from costs.forecast_part_cost(audit, "continuations", self.foreseen)

    def fingerprint(self) -> dict[str, Any]:
        fingerprint: dict[str, Any] = {
            "parts": digest_parts(sample_parts(self.audit, self._view).paths())
        }
        if self.audit.manifest.continued:
            fingerprint["continued"] = self.audit.manifest.continued
        return fingerprint

    def prepare(self) -> None:
        """Let the engine of the log-probabilities stay, unless models are trained meanwhile."""
        audit = self.audit
        trains = any(model.is_trained_here for model in list_models(audit))
        is_here = audit.settings.source == "engine" and audit.settings.executor is None
        audit.awaits_engine = bool(self._n) and is_here and not trains

    def validate(self) -> None:
        if self._n and self.audit.recording is not None:
            raise SettingsError(
                "continue_strongest= needs a model to ask; a recording answers nothing"
                " further"
            )

    @property
    def _view(self) -> View:
        return build_view(self.audit.settings, *RECITAL)

    def run(self) -> None:
        try:
            self._continue()
        finally:
            self.audit.awaits_engine = False
            self.audit.kept_engine.close()

    def continue_some(self, names: list[str]) -> None:
        """Continue some texts whatever their scores, to see how long that takes."""
        if self._n:
            write_prompts(self.audit, self._view, self._find_missing_prompts(names))
            self._ask(names)

    def _continue(self) -> None:
        audit = self.audit
        settings = audit.settings
        if audit.recording is not None or audit.continues_texts:
            return
        if not self._n:
            was_left_open = settings.continue_strongest is None
            if settings.extract or (
                was_left_open and not audit.asks_endpoint("target")
            ):
                return
            self._record(self._rank_texts(N_STRONGEST))
            self.mark_done()
            return
        ranked = self._rank_texts(self._n)
        if self._find_missing(ranked, fresh=True).count().left:
            write_prompts(audit, self._view, self._find_missing_prompts(ranked))
            self._ask(ranked)
        self._record(ranked)
        make_features(audit, self._view)
        for sentence in self._describe_short():
            audit.observer.stage(sentence)
        self.mark_done()

    # What is asked, the strongest first, and as much as may be paid for.

    def _rank_texts(self, n: int) -> list[str]:
        """Return the best text of each document by its score, then the second, and so on."""
        score = pl.col(self.audit.rule.primary)
        is_of_set = pl.col("role").is_in(["target", "non_member"])
        owner = pl.coalesce("document_id", "target_id").hash()
        has_ending = pl.col("reason").is_null() & pl.col("reference").is_not_null()
        targets = self.audit.run.scan("targets").filter(has_ending)
        rows = (
            self.audit.run.scan("scores")
            .with_row_index("row")
            .filter(is_of_set, score.is_not_null())
            .join(targets.select("target_id"), on="target_id", how="semi")
            .sort("row")
            .select("row", score=score, owner=owner)
            .collect(engine="streaming")
        )
        place = pl.col("score").rank("ordinal", descending=True).over("owner")
        ordered = rows.with_columns(place=place).sort(
            "place", "score", descending=[False, True], maintain_order=True
        )
        strongest = ordered.head(n).select("row").with_row_index("rank")
        names = self.audit.run.scan("scores").select("target_id").with_row_index("row")
        ranked = names.join(strongest.lazy(), on="row").sort("rank")
        return ranked.collect(engine="streaming")["target_id"].to_list()

    def _find_missing_prompts(self, ranked: list[str]) -> Missing:
        units = self._open_targets(ranked)
        return Missing(units, prompt_parts(self.audit, self._view), self._view.n)

    def _find_missing(self, ranked: Iterable[str], *, fresh: bool = False) -> Missing:
        """Return which of some texts are not continued; ``fresh``: even where no prompt is."""
        audit = self.audit
        view = self._view
        among = pl.Series("target_id", ranked, dtype=pl.String)
        units: FreshUnits | PromptUnits = PromptUnits(
            audit.run.order, prompt_parts(audit, view), view, askable=True, among=among
        )
        if fresh:
            units = self._open_targets(ranked, view)
        return Missing(
            units,
            sample_parts(audit, view),
            view.samples,
            retry_failed=audit.settings.retry_failed,
        )

    def _open_targets(
        self, ranked: Iterable[str], view: View | None = None
    ) -> FreshUnits:
        targets = self.audit.open_targets_in_order()
        among = pl.Series("target_id", ranked, dtype=pl.String)
        columns = list_prompt_columns(self.audit, self._view, targets)
        return FreshUnits(targets, view, columns, among)

    def _ask(self, ranked: list[str]) -> None:
        audit = self.audit
        work = self._find_missing(ranked).count()
        if audit.batch is None:
            costs_left = (tokens for _, tokens in self._list_most_costs(ranked))
            if not self._count_payable(costs.compute_money_left(audit), costs_left):
                return  # else the endpoint would be probed for nothing
        tokens = self._forecast(ranked).first_tokens
        opening = open_session(
            audit, TARGET, "samples", started_engine=self._find_engine()
        )
        try:
            with opening as session:
                jobs = self._iterate_jobs(session, ranked)
                ask(audit, session, self.activity, work, jobs, tokens=tokens)
        except CostLimitError:  # the rest is counted and named
            pass

    def _iterate_jobs(self, session: Session, ranked: list[str]) -> Iterator[Any]:
        """Iterate over groups of texts, each as large as the money left pays for at most."""
        # What a group has cost is known before the next one is chosen.
        task = build_sample_task(self.audit, session, self._view)
        if self.audit.batch is not None:
            yield from self._iterate_file_jobs(session, task, ranked)
            return
        store = sample_parts(self.audit, self._view).store
        left = self._list_most_costs(ranked)
        while left:
            most = (tokens for _, tokens in left)
            n = self._count_payable(session.money_left(), most)
            if not n:
                return
            names = [name for name, _ in left[:n]]
            yield task, self._find_missing(names).blocks(), store
            left = left[n:]

    def _list_most_costs(self, ranked: list[str]) -> list[tuple[str, Tokens]]:
        """List the texts that are not continued, with what each can cost."""
        costs_by_text: dict[str, Tokens] = {}
        if not self.audit.asks_endpoint("target"):
            costs_by_text = dict.fromkeys(ranked, NO_TOKENS)
        else:
            for block in self._find_missing(ranked).blocks():
                for unit in block.units.iter_slices(1):
                    name = unit["target_id"][0]
                    work = self._measure([replace(block, units=unit)])
                    tokens = costs.count_most_tokens(self.audit.settings, work)
                    costs_by_text[name] = tokens
        return [(name, costs_by_text[name]) for name in ranked if name in costs_by_text]

    def _count_payable(
        self, money_left: float | None, costs_left: Iterable[Tokens]
    ) -> int:
        """Count how many of the first texts can be continued for the money that is left."""
        costs_left = [*costs_left]
        if money_left is None:
            return len(costs_left)
        spent = NO_TOKENS
        for n_payable, tokens in enumerate(costs_left):
            spent = spent.plus(tokens)
            if (costs.compute_cost(self.audit.settings, spent) or 0) > money_left:
                return n_payable
        return len(costs_left)

    def _iterate_file_jobs(
        self, session: Session, task: SampleTask, ranked: list[str]
    ) -> Iterator[Any]:
        """Iterate over one group of texts, chosen once: its answers come in a later call."""
        audit = self.audit
        limit = audit.settings.max_cost
        chosen = audit.manifest.continued.get("in_files", {})
        if chosen.get("max_cost") != limit or "n" not in chosen:
            left = self._list_most_costs(ranked)
            most = (tokens for _, tokens in left)
            n_payable = self._count_payable(session.money_left(), most)
            n = len(ranked) - len(left) + n_payable
            audit.manifest.continued["in_files"] = {"max_cost": limit, "n": n}
            audit.save()
        names = ranked[: audit.manifest.continued["in_files"]["n"]]
        store = sample_parts(audit, self._view).store
        yield task, self._find_missing(names).blocks(), store

    def _find_engine(self) -> str | None:
        """Return the engine of the log-probabilities: it has answered before vLLM starts."""
        engine = self.audit.manifest.models["target"].get("logprobs engine")
        if self.audit.settings.engine != "auto" or engine not in engine_types():
            return None
        obstacle = why_not(str(engine), "samples", frozenset())
        return engine if obstacle is None else None

    # What is said of it.

    def _measure(self, blocks: Iterable[Block]) -> Workload:
        measure, budget = forecast_reading(self.audit, TARGET)
        return forecast(blocks, measure, budget(self._view))

    def _forecast(self, ranked: Iterable[str]) -> Workload:
        return self._measure(self._find_missing(ranked, fresh=True).blocks())

    def _record(self, ranked: list[str]) -> None:
        """Record how many texts were continued, and what the others would cost."""
        audit = self.audit
        left = self._find_missing(ranked, fresh=True).count().left
        record: dict[str, Any] = {"wanted": len(ranked), "left": left}
        if left:
            work = self._forecast(ranked)
            record["cost"] = costs.describe_part_cost(audit, work)
        chosen = audit.manifest.continued.get("in_files")
        if chosen is not None:
            record["in_files"] = chosen
        audit.manifest.continued = record
        if left and self._n:
            audit.observer.stage(
                f"{len(ranked) - left:,} of {len(ranked):,} texts of highest scores are"
                f" continued: --max-cost leaves no more; the others cost {record['cost']}"
            )

    def _describe_short(self) -> Iterator[str]:
        """Describe how many continuations were cut before they had the words of the true text."""
        samples = scan_parts(self.audit.run.path("samples"), Samples, self._view.key)
        short = samples.filter("short").select("finish_reason")
        reasons = short.collect(engine="streaming")["finish_reason"].to_list()
        n_repeating = reasons.count("repeats")
        if n_repeating:
            yield f"{n_repeating:,} continuations repeat themselves, and end there"
        n_cut = reasons.count("length")
        if n_cut:
            yield (
                f"{n_cut:,} continuations were cut before they had as many words as the"
                " true text"
            )
