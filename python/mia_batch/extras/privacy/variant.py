"""One way to tune a model: what is made of it, what it says of texts, and how it is attacked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import polars as pl

from mia_batch.attacks import get
from mia_batch.attacks.apply import score
from mia_batch.extras.privacy.data import Inserted, exposed, learnt_by
from mia_batch.extras.privacy.inversion.inverting import invert
from mia_batch.extras.privacy.measures import summary_of, utility
from mia_batch.extras.privacy.plan import VIRTUAL, Plan, Variant
from mia_batch.extras.tune.making import Made, Making, Wanted
from mia_batch.metrics.evaluate import evaluate
from mia_batch.recipes import Form, Recipe
from mia_batch.schemas import Features, LogProbs
from mia_batch.tables import is_sound, replacing

_AT_ONCE = 16
_LOGPROBS = pl.List(pl.Float64)


class Opened:
    """A base, or what was made of it, opened to be asked for log-probabilities."""

    def __init__(
        self, base: str, revision: str | None, recipe: Recipe, made: Path | None = None
    ) -> None:
        import torch
        from transformers import AutoTokenizer

        from mia_batch.extras.tune.recipe import longest_text
        from mia_batch.extras.tune.training import encoder, model_class
        from mia_batch.models.weights import quiet

        if is_whole := made is not None and recipe.method == "full":
            base, revision = str(made), None
        head = {"num_labels": len(recipe.labels)} if recipe.form == "classifier" else {}
        with quiet():
            model = model_class(recipe.form).from_pretrained(
                base, revision=revision, dtype=torch.float32, trust_remote_code=False, **head
            )
            if made is not None and not is_whole:
                from peft import PeftModel

                model = PeftModel.from_pretrained(model, made)
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.model = model.to(self.device).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(
            made or base, revision=None if made else revision, trust_remote_code=False
        )
        most = longest_text(model.config, recipe)
        self._form = recipe.form
        self._row_of = encoder(recipe.form, self.tokenizer, most, recipe.labels)

    def logprobs(
        self, texts: Sequence[str], targets: Sequence[str | None]
    ) -> Iterator[list[float]]:
        """Yield the log-probabilities, in nats, of what is learnt of each text; empty: nothing."""
        import torch

        from mia_batch.extras.tune.training import logprobs, padded

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
        return -pl.Series([*self.logprobs(texts, targets)], dtype=_LOGPROBS).list.mean()

    def sums(self, texts: Sequence[str], targets: Sequence[str | None]) -> pl.Series:
        """Log-perplexity of each text: the sum over its tokens, in nats; null where it has none."""
        found = pl.Series([*self.logprobs(texts, targets)], dtype=_LOGPROBS)
        return pl.select(pl.when(found.list.len() > 0).then(-found.list.sum())).to_series()


_WITH_SHADOWS = ("lira_online_fixed_v1", "lira_online_v1", "lira_offline_fixed_v1", "rmia_v1")
_RATIO = "reference_token_difference_v1"


def attacks_of(form: Form, n_shadows: int) -> tuple[str, ...]:
    """Name the attacks, the primary one first: LiRA, or the ratio to the pre-trained model.

    The paper takes the first for encoders and the second for models that generate (appendix B.1);
    a pre-trained encoder has no head that could be asked.
    """
    with_shadows = _WITH_SHADOWS if n_shadows else ()
    if form == "classifier":
        return (*with_shadows, "loss_v1")
    return (_RATIO, *with_shadows, "loss_v1")


def scores_of(
    texts: pl.DataFrame,
    logprobs: Mapping[str, Sequence[list[float]]],
    trained: Mapping[str, Sequence[bool]],
    attacks: Sequence[str],
) -> pl.DataFrame:
    """Score texts by the log-probabilities that each model gives to what is learnt of them.

    Models are ``target``, ``reference``, ``shadow-0``, ...; of an encoder it is the label alone,
    whose log-odds LiRA then takes, as in the paper. ``trained`` says of shadow models which texts
    they learnt.
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
    values = pl.col("logprob")
    frames = [
        pl.DataFrame(
            {"target_id": ids, "logprob": found, "trained": trained.get(name, [None] * len(ids))},
            schema_overrides={"logprob": pl.List(pl.Float32), "trained": pl.Boolean},
        ).with_columns(
            model=pl.lit(name),
            view=pl.lit("text"),
            view_index=pl.lit(0, pl.UInt32),
            logprob=pl.when(values.list.len() > 0).then(values),
            token_ids=values.list.eval(pl.int_range(0, pl.len())),
        )
        for name, found in logprobs.items()
    ]
    known = pl.concat(frames)
    rows = known.select(
        (pl.col(name) if name in known.columns else pl.lit(None)).cast(dtype).alias(name)
        for name, dtype in LogProbs.create_empty().schema.items()
    )
    wanted = [get(name) for name in attacks]
    features = Features.create_empty().lazy()
    return pl.concat(score(features, targets.lazy(), wanted, logprobs=rows.lazy()))


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
        self._path().mkdir(exist_ok=True)
        own = learnt_by(self.texts, None, self.plan.seed)
        yield self._wanted("target", own, _TARGET_SEED)
        if not self._has("scores"):
            for number in range(self.plan.shadows):
                learnt = learnt_by(self.texts, number, self.plan.seed)
                yield self._wanted(f"shadow-{number}", learnt, _SHADOW_SEED + number)
        if self.inserted and not self._has("exposures"):
            rows = [row for each in self.inserted for row in each.rows()]
            yield self._wanted("canaries", own, _CANARY_SEED, rows)

    def tables(self, models: Mapping[str, Made]) -> dict[str, pl.DataFrame]:
        """Attack the models; tables that are there are read."""
        target = models[self._name("target")]
        attacks = attacks_of(self.form, self.plan.shadows)
        scores = self._kept("scores", lambda: self._scores(attacks))
        metrics = evaluate(
            scores.lazy(), attacks, preset="default", primary=attacks[0], seed=self.plan.seed
        )
        rest, how = self.texts.filter(part="auxiliary"), (self.plan.task, self.labels)
        used = self._kept("utility", lambda: utility(self._opened("target"), rest, *how))
        found = {}
        if self.inserted:
            found["exposures"] = self._kept("exposures", self._exposures)
        if self.plan.inverts and self.variant.tuning not in VIRTUAL:
            found["inversion"] = self._kept("inversion", self._inverted)
        found["metrics"] = self._named(metrics)
        found["summary"] = summary_of(
            self.variant, self.plan, target, scores, metrics, used, found, attacks
        )
        return found

    def _name(self, model: str) -> str:
        return f"{self.variant.name}: {model}"

    def _named(self, table: pl.DataFrame) -> pl.DataFrame:
        return table.select(pl.lit(self.variant.name).alias("variant"), pl.all())

    def _path(self, *name: str) -> Path:
        return self.folder.joinpath(self.variant.name, *name)

    def _has(self, table: str) -> bool:
        path = self._path(f"{table}.parquet")
        return path.exists() and is_sound(path)

    def _kept(self, table: str, make: Callable[[], pl.DataFrame]) -> pl.DataFrame:
        path = self._path(f"{table}.parquet")
        if not self._has(table):
            write_table(make(), path)
        return pl.read_parquet(path)

    def _recipe(self, seed: int = 0) -> Recipe:
        return self.plan.recipe_of(self.variant, self.form, self.labels, seed)

    def _wanted(
        self, model: str, learnt: pl.DataFrame, seed: int, extra: Sequence[tuple[str, str]] = ()
    ) -> Wanted:
        """Say what a model learns: texts, and canaries where there are any."""
        is_seq2seq = self.form == "seq2seq"
        given = [question if is_seq2seq else sentence for question, sentence in extra]
        answers = [sentence if is_seq2seq else None for _, sentence in extra]
        self.say(f"{self._name(model)}, {learnt.height + len(given):,} texts")
        making = Making(
            base=self.base,
            revision=self.revision,
            texts=[*learnt["text"], *given],
            targets=[*learnt["target"], *answers],
            recipe=self._recipe(seed),
        )
        return self._name(model), making, self._path(model)

    def _opened(self, model: str | None = None) -> Opened:
        """Open a model that was made, or the base."""
        made = None if model is None else self._path(model)
        return Opened(self.base, self.revision, self._recipe(), made)

    def _scores(self, attacks: Sequence[str]) -> pl.DataFrame:
        audited = self.texts.filter(part="audited")
        asked = audited["text"].to_list(), audited["target"].to_list()
        found = {"target": [*self._opened("target").logprobs(*asked)]}
        trained = {}
        if self.form != "classifier":
            found["reference"] = [*self._opened().logprobs(*asked)]
        for number in range(self.plan.shadows):
            name, learnt = f"shadow-{number}", learnt_by(self.texts, number, self.plan.seed)
            found[name] = [*self._opened(name).logprobs(*asked)]
            trained[name] = audited["id"].is_in(learnt["id"].implode()).to_list()
        return scores_of(audited, found, trained, attacks)

    def _inverted(self) -> pl.DataFrame:
        """Train a decoder on embeddings of auxiliary texts, as in GEIA."""
        self.say(f"{self.variant.name}: inversion of embeddings")
        texts = self.folder / "texts.parquet"
        write_table(self.texts.select("text", "group"), texts)
        embedder = self._path("target")
        if self.variant.tuning == "lora" and self.form != "causal":
            embedder = self._path("merged")  # embedders know adapters of causal models alone
            opened = self._opened("target")
            for each in (opened.model.merge_and_unload(), opened.tokenizer):
                each.save_pretrained(embedder)
        found = invert(
            data=texts,
            embedder=str(embedder),
            out=self._path("inverted"),
            share=1 - self.plan.audited,
            seed=self.plan.seed,
        )
        return self._named(found.figures)

    def _exposures(self) -> pl.DataFrame:
        opened = self._opened("canaries")
        return self._named(exposed(opened, self.inserted, is_seq2seq=self.form == "seq2seq"))
