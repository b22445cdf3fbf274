"""One model of an audit of privacy: trained, attacked, measured."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING

import polars as pl

from mia_batch.attacks import get
from mia_batch.attacks.apply import score
from mia_batch.finetuning.making import Making
from mia_batch.inversion.inverting import invert
from mia_batch.metrics.evaluate import evaluate
from mia_batch.privacy.data import exposed, learnt_by
from mia_batch.privacy.measures import summary_of, utility
from mia_batch.privacy.plan import VIRTUAL
from mia_batch.schemas import Features, LogProbs
from mia_batch.tables import is_sound, replacing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from mia_batch.finetuning.making import Made, Wanted
    from mia_batch.finetuning.recipe import Form, Recipe
    from mia_batch.privacy.data import Inserted
    from mia_batch.privacy.plan import Plan, Variant


# What a model says of texts: the log-probability of each token that it was tuned on.


_AT_ONCE = 16


class Opened:
    """A model that was tuned, or its base, opened to be asked.

    Parameters
    ----------
    path
        Folder of the model or adapter, or the base's name.
    revision
        Hub revision of the base.
    recipe
        How it was tuned.
    """

    def __init__(self, path: str, revision: str | None, recipe: Recipe) -> None:
        import torch
        from transformers import AutoTokenizer

        from mia_batch.finetuning.recipe import longest_text
        from mia_batch.finetuning.training import encoder, model_class
        from mia_batch.models.weights import quiet, tokenizer_source, weights_source

        base, base_revision = weights_source(path, revision)
        head = {"num_labels": len(recipe.labels)} if recipe.form == "classifier" else {}
        with quiet():
            model = model_class(recipe.form).from_pretrained(
                base, revision=base_revision, dtype=torch.float32, trust_remote_code=False, **head
            )
            if base != path:
                from peft import PeftModel

                model = PeftModel.from_pretrained(model, path)
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.model = model.to(self.device).eval()
        name, revision = tokenizer_source(path, revision)
        tokenizer = AutoTokenizer.from_pretrained(name, revision=revision, trust_remote_code=False)
        most = longest_text(model.config, recipe)
        self._form = recipe.form
        self._row_of = encoder(recipe.form, tokenizer, most, recipe.labels)

    def logprobs(
        self, texts: Sequence[str], targets: Sequence[str | None]
    ) -> Iterator[list[float]]:
        """Yield the log-probabilities, in nats, of what is learnt of each text; empty: nothing."""
        import torch

        from mia_batch.finetuning.training import logprobs, padded

        for start in range(0, len(texts), _AT_ONCE):
            some = slice(start, start + _AT_ONCE)
            rows = [*map(self._row_of, texts[some], targets[some])]
            batch = {name: value.to(self.device) for name, value in padded(rows).items()}
            labels = batch.pop("labels")
            given = batch | ({"labels": labels.clamp(min=0)} if self._form == "seq2seq" else {})
            with torch.inference_mode():
                found = logprobs(self._form, self.model(**given).logits, labels)
            for row in found.cpu():
                yield row[~row.isnan()].tolist()

    def losses(self, texts: Sequence[str], targets: Sequence[str | None]) -> pl.Series:
        """Mean negative log-likelihood of each text, in nats a token; null where it has none."""
        return -self._lists(texts, targets).list.mean()

    def sums(self, texts: Sequence[str], targets: Sequence[str | None]) -> pl.Series:
        """Log-perplexity of each text: the sum over its tokens, in nats; null where it has none."""
        found = self._lists(texts, targets)
        return pl.select(pl.when(found.list.len() > 0).then(-found.list.sum())).to_series()

    def _lists(self, texts: Sequence[str], targets: Sequence[str | None]) -> pl.Series:
        return pl.Series([*self.logprobs(texts, targets)], dtype=pl.List(pl.Float64))


# Membership in what a variant's target learnt, by the attacks that audits have, too.


_WITH_SHADOWS = (
    "lira_online_fixed_v1",
    "lira_online_v1",
    "lira_offline_fixed_v1",
    "rmia_v1",
)
_RATIO = "reference_token_difference_v1"
_LISTS = pl.List(pl.Float32)


def attacks_of(form: Form, n_shadows: int) -> tuple[str, ...]:
    """Name the attacks, the primary one first: LiRA, or the ratio to the pre-trained model.

    The paper takes the first for encoders and the second for models that generate (appendix B.1);
    a pre-trained encoder has no head that could be asked.
    """
    with_shadows = _WITH_SHADOWS if n_shadows else ()
    ratio = () if form == "classifier" else (_RATIO,)
    first = with_shadows if form == "classifier" else ratio
    return tuple(dict.fromkeys((*first, *with_shadows, *ratio, "loss_v1")))


def scores_of(
    texts: pl.DataFrame,
    told: Mapping[str, Sequence[list[float]]],
    trained: Mapping[str, Sequence[bool]],
    attacks: Sequence[str],
) -> pl.DataFrame:
    """Score texts.

    ``told`` has by model (``target``, ``reference``, ``shadow-0``, ...) the log-probabilities of
    what it says of each text; of an encoder, that of the label alone, whose log-odds LiRA then
    takes, as in the paper. ``trained`` says of shadow models which texts they learnt.
    """
    ids = [blake2b(str(each).encode(), digest_size=16).hexdigest() for each in texts["id"]]
    targets = texts.select(
        "id",
        "member",
        "group",
        target_id=pl.Series(ids),
        role=pl.lit("target"),
        document_id=pl.lit(None, pl.String),
        window_index=pl.lit(0, pl.UInt32),
        n_words=pl.lit(None, pl.UInt32),
    )
    frames = [
        pl.DataFrame({"target_id": ids, "logprob": pl.Series(values, dtype=_LISTS)}).with_columns(
            model=pl.lit(name),
            view=pl.lit("text"),
            view_index=pl.lit(0, pl.UInt32),
            logprob=pl.when(pl.col("logprob").list.len() > 0).then("logprob"),
            trained=pl.Series(trained.get(name, [None] * len(ids)), dtype=pl.Boolean),
            token_ids=pl.col("logprob").list.eval(pl.int_range(0, pl.len())),
        )
        for name, values in told.items()
    ]
    logprobs = _completed(pl.concat(frames))
    wanted = [get(name) for name in attacks]
    found = score(Features.create_empty().lazy(), targets.lazy(), wanted, logprobs=logprobs.lazy())
    return pl.concat(found)


def _completed(rows: pl.DataFrame) -> pl.DataFrame:
    """Add the columns of the table that nothing is known of."""
    schema = LogProbs.create_empty().schema
    return rows.select(
        (pl.col(name) if name in rows.columns else pl.lit(None)).cast(dtype).alias(name)
        for name, dtype in schema.items()
    )


def metrics_of(scores: pl.DataFrame, attacks: Sequence[str], seed: int) -> pl.DataFrame:
    """Measure how well members are told from the others."""
    return evaluate(scores.lazy(), attacks, preset="default", primary=attacks[0], seed=seed)


# One way to tune a model: what is made of it, and how it is attacked.


_TARGET_SEED = 0
_CANARY_SEED = 1
_SHADOW_SEED = 2  # of the first shadow model


def write_table(table: pl.DataFrame, path: Path) -> None:
    """Write a table to Parquet, whole or not at all."""
    with replacing(path) as stream:
        table.write_parquet(stream)


@dataclass(frozen=True, kw_only=True)
class VariantAudit:
    """One way to tune, and all that is made of it."""

    base: str
    revision: str | None
    folder: Path
    texts: pl.DataFrame
    plan: Plan
    variant: Variant
    form: Form
    labels: Sequence[str]
    inserted: Sequence[Inserted]
    say: Callable[[str], None]

    def wanted(self) -> Iterator[Wanted]:
        """Name the models that the tables still need, and say what each is made of."""
        (self.folder / self.variant.name).mkdir(exist_ok=True)
        own = learnt_by(self.texts, None, self.plan.seed)
        yield self._wanted("target", own, _TARGET_SEED)
        if not self._has("scores"):
            for number in range(self.plan.shadows):
                learnt = learnt_by(self.texts, number, self.plan.seed)
                yield self._wanted(_shadow(number), learnt, _SHADOW_SEED + number)
        if self.inserted and not self._has("exposures"):
            rows = [row for each in self.inserted for row in each.rows()]
            yield self._wanted("canaries", own, _CANARY_SEED, rows)

    def tables(self, models: Mapping[str, Made]) -> dict[str, pl.DataFrame]:
        """Attack the models; tables that are there are read."""
        target = models[self._name("target")]
        attacks = attacks_of(self.form, self.plan.shadows)
        scores = self._kept("scores", lambda: self._scores(models, attacks))
        metrics = metrics_of(scores, attacks, self.plan.seed)
        used = self._kept("utility", lambda: self._utility(target))
        found = {}
        if self.inserted:
            found["exposures"] = self._kept("exposures", lambda: self._exposures(models))
        if self.plan.inverts and self.variant.tuning not in VIRTUAL:
            found["inversion"] = self._kept("inversion", lambda: self._inverted(target))
        found["metrics"] = metrics.select(pl.lit(self.variant.name).alias("variant"), pl.all())
        found["summary"] = summary_of(
            self.variant, self.plan, target, scores, metrics, used, found, attacks
        )
        return found

    def _name(self, model: str) -> str:
        """Name a model among those of all variants."""
        return f"{self.variant.name}: {model}"

    def _path(self, table: str) -> Path:
        return self.folder / self.variant.name / f"{table}.parquet"

    def _has(self, table: str) -> bool:
        path = self._path(table)
        return path.exists() and is_sound(path)

    def _kept(self, table: str, make: Callable[[], pl.DataFrame]) -> pl.DataFrame:
        if not self._has(table):
            write_table(make(), self._path(table))
        return pl.read_parquet(self._path(table))

    def _wanted(
        self, model: str, learnt: pl.DataFrame, seed: int, extra: Sequence[tuple[str, str]] = ()
    ) -> Wanted:
        """Say what a model learns: texts, and canaries where there are any."""
        is_seq2seq = self.form == "seq2seq"
        given = [question if is_seq2seq else sentence for question, sentence in extra]
        said = [sentence if is_seq2seq else None for _, sentence in extra]
        self.say(f"{self._name(model)}, {learnt.height + len(given):,} texts")
        making = Making(
            base=self.base,
            revision=self.revision,
            texts=[*learnt["text"], *given],
            targets=[*learnt["target"], *said],
            recipe=self.plan.recipe_of(self.variant, self.form, self.labels, seed),
        )
        return self._name(model), making, self.folder / self.variant.name / model

    def _opened(self, made: Made) -> Opened:
        recipe = self.plan.recipe_of(self.variant, self.form, self.labels, 0)
        return Opened(str(made.path), None, recipe)

    def _scores(self, models: Mapping[str, Made], attacks: Sequence[str]) -> pl.DataFrame:
        audited = self.texts.filter(part="audited")
        texts, targets = audited["text"].to_list(), audited["target"].to_list()

        def asked(model: str) -> list[list[float]]:
            return [*self._opened(models[self._name(model)]).logprobs(texts, targets)]

        told = {"target": asked("target")}
        trained = {}
        if self.form != "classifier":
            recipe = self.plan.recipe_of(self.variant, self.form, self.labels, 0)
            pretrained = Opened(self.base, self.revision, recipe)
            told["reference"] = [*pretrained.logprobs(texts, targets)]
        for number in range(self.plan.shadows):
            name, learnt = _shadow(number), learnt_by(self.texts, number, self.plan.seed)
            told[name] = asked(name)
            trained[name] = audited["id"].is_in(learnt["id"].implode()).to_list()
        return scores_of(audited, told, trained, attacks)

    def _utility(self, target: Made) -> pl.DataFrame:
        rest = self.texts.filter(part="auxiliary")
        return utility(self._opened(target), rest, self.plan.task, self.labels)

    def _inverted(self, target: Made) -> pl.DataFrame:
        """Train a decoder on embeddings of auxiliary texts, as in GEIA."""
        self.say(f"{self.variant.name}: inversion of embeddings")
        texts = self.folder / "texts.parquet"
        write_table(self.texts.select("text", "group"), texts)
        found = invert(
            data=texts,
            embedder=str(target.path),
            out=self.folder / self.variant.name / "inverted",
            share=1 - self.plan.audited,
            seed=self.plan.seed,
        )
        return found.figures.select(pl.lit(self.variant.name).alias("variant"), pl.all())

    def _exposures(self, models: Mapping[str, Made]) -> pl.DataFrame:
        opened = self._opened(models[self._name("canaries")])
        found = exposed(opened, self.inserted, is_seq2seq=self.form == "seq2seq")
        return found.select(pl.lit(self.variant.name).alias("variant"), pl.all())


def _shadow(number: int) -> str:
    return f"shadow-{number}"
