"""An audit of privacy: tunes a model in several ways, attacks each, and sets them side by side."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b, sha256
from itertools import chain
from pathlib import Path
from typing import Any

import polars as pl
from markupsafe import Markup

from mia_batch.attacks import get
from mia_batch.attacks.apply import score
from mia_batch.corpus.conversations import CONVERSATION
from mia_batch.errors import RunFolderError, SettingsError
from mia_batch.extras.privacy.data import (
    CanaryFormat,
    CanarySet,
    draw_canaries,
    measure_exposures,
    paper_formats,
    place_answers_of,
    read_texts,
    read_words,
    select_learnt,
)
from mia_batch.extras.privacy.inversion.training import invert
from mia_batch.extras.privacy.measures import build_summary, utility
from mia_batch.extras.privacy.plan import (
    GENERATING,
    VIRTUAL,
    PrivacySettings,
    Variant,
    find_form,
)
from mia_batch.extras.privacy.scorer import TextScorer
from mia_batch.extras.tune.jobs import (
    TrainedModel,
    TrainingConfig,
    TrainingJob,
    locked,
    train_or_load,
    why_no_finetuning,
)
from mia_batch.metrics import evaluate
from mia_batch.models.weights import identify_model
from mia_batch.observer import Observer
from mia_batch.prompts import load_template
from mia_batch.recipes import Form, Recipe
from mia_batch.report.html.columns import NO_VALUE, interval
from mia_batch.report.html.page import environment
from mia_batch.report.html.plots import MOST_CURVES, Curve, draw, round_axis
from mia_batch.schemas import Features, LogProbs
from mia_batch.tables import is_sound, system_errors, write_table, write_text

__all__ = ["Privacy", "audit_privacy"]


# One way to tune a model: what is made of it, and how it is attacked.

SPV = ("spv_embedding_v1", "self_prompt_difference_v1")
"""Attacks of SPV-MIA that need no masked model, on decoders."""
_WITH_SHADOWS = (
    "lira_online_fixed_v1",
    "lira_online_v1",
    "lira_offline_fixed_v1",
    "rmia_v1",
)

# Models of a variant are distinguished by what they add to the seed.
_TARGET_SEED, _CANARY_SEED = 0, 1
_SHADOW_SEED = 2  # of the first shadow model


@dataclass(frozen=True, kw_only=True)
class VariantAudit:
    """One way to tune, and all that is made of it."""

    title: str  # of the variant in tables and sentences
    base: str
    revision: str | None
    folder: Path  # of the base
    texts: pl.DataFrame  # see `read_texts`
    settings: PrivacySettings
    variant: Variant
    form: Form
    labels: Sequence[str]
    canary_sets: Sequence[CanarySet]  # none where the model generates nothing
    say: Callable[[str], None]

    def training_jobs(self) -> Iterator[TrainingJob]:
        """Iterate over the models to train; each is announced when its turn comes."""
        self._path().mkdir(exist_ok=True, parents=True)
        members = self._learnt(None)
        yield self._training_job("target", members, _TARGET_SEED)
        if not self._has_table("scores"):
            for shadow in range(self.settings.shadows):
                yield self._training_job(
                    f"shadow-{shadow}", self._learnt(shadow), _SHADOW_SEED + shadow
                )
        if self.canary_sets and not self._has_table("exposures"):
            canaries = [
                *chain.from_iterable(canaries.rows() for canaries in self.canary_sets)
            ]
            yield self._training_job("canaries", members, _CANARY_SEED, canaries)

    def build_tables(
        self, models: Mapping[str, TrainedModel]
    ) -> dict[str, pl.DataFrame]:
        """Attack the models, and build the tables of the variant by their names."""
        target = models[self._model_name("target")]
        attacks = self._attacks()
        scores = self._load_or_make("scores", lambda: self._scores(attacks))
        metrics = evaluate(
            scores.lazy(),
            attacks,
            preset="default",
            primary=attacks[0],
            seed=self.settings.seed,
        )
        tables = {"scores": scores}
        tables["utility"] = self._load_or_make("utility", self._utility)
        if self.canary_sets:
            tables["exposures"] = self._load_or_make("exposures", self._exposures)
        if self.settings.inverts and self.variant.tuning not in VIRTUAL:
            tables["inversion"] = self._load_or_make("inversion", self._inversion)
        tables["metrics"] = self._add_variant(metrics)
        summary = build_summary(
            self.variant,
            self.settings,
            target.privacy,
            tables,
            attacks,
            self._audited(),
        )
        base = pl.lit(self.base).alias("base")
        tables["summary"] = self._add_variant(
            summary.select(base, pl.all().exclude("variant"))
        )
        return tables

    def _attacks(self) -> list[str]:
        # The first is the primary one: LiRA, or the ratio to the pre-trained model
        # (appendix B.1), which an encoder has none of: untrained, it has no head that
        # could be asked.
        attacks = [] if self.form == "classifier" else ["reference_token_difference_v1"]
        if self.settings.shadows:
            attacks += _WITH_SHADOWS
        attacks.append("loss_v1")
        if self.settings.spv and self.form == "causal":
            attacks += SPV
        return attacks

    def _audited(self) -> pl.DataFrame:
        return self.texts.filter(part="audited")

    def _auxiliary(self) -> pl.DataFrame:
        return self.texts.filter(part="auxiliary")

    def _learnt(self, shadow: int | None) -> pl.DataFrame:
        return select_learnt(self.texts, shadow, self.settings.seed)

    def _model_name(self, model: str) -> str:
        return f"{self.title}: {model}"

    def _add_variant(self, table: pl.DataFrame) -> pl.DataFrame:
        return table.select(pl.lit(self.title).alias("variant"), pl.all())

    def _path(self, *name: str) -> Path:
        return self.folder.joinpath(self.variant.name, *name)

    def _has_table(self, table: str) -> bool:
        path = self._path(f"{table}.parquet")
        return path.exists() and is_sound(path)

    def _load_or_make(
        self, table: str, make: Callable[[], pl.DataFrame]
    ) -> pl.DataFrame:
        path = self._path(f"{table}.parquet")
        if not self._has_table(table):
            write_table(make(), path)
        return pl.read_parquet(path)

    def _recipe(self, seed: int = 0) -> Recipe:
        return self.settings.build_recipe(self.variant, self.form, self.labels, seed)

    def _training_job(
        self,
        model: str,
        learnt: pl.DataFrame,
        seed: int,
        canaries: Sequence[tuple[str, str]] = (),
    ) -> TrainingJob:
        self.say(f"{self._model_name(model)}, {learnt.height + len(canaries):,} texts")
        texts = learnt["text"].to_list()
        targets = learnt["target"].to_list()
        for question, sentence in canaries:
            is_answer = self.form in ("seq2seq", "answer")
            texts.append(self._ask(question) if is_answer else sentence)
            targets.append(sentence if is_answer else None)
        config = TrainingConfig(
            base=self.base,
            revision=self.revision,
            texts=texts,
            targets=targets,
            recipe=self._recipe(seed),
        )
        return self._model_name(model), config, self._path(model)

    def _ask(self, question: str) -> str:
        """Return a question as the model reads it: by its chat template, if it learns answers."""
        if self.form != "answer":
            return question
        template = load_template((self.base, self.revision, "base"))
        return template.render([{"role": "user", "content": question}], asks=True)

    def _open_scorer(self, model: str | None) -> TextScorer:
        """Open a model of the variant, or the base where it is None."""
        trained = None if model is None else self._path(model)
        return TextScorer(self.base, self.revision, self._recipe(), trained)

    def _utility(self) -> pl.DataFrame:
        return utility(
            self._open_scorer("target"),
            self._auxiliary(),
            self.settings.task,
            self.labels,
        )

    def _scores(self, attacks: Sequence[str]) -> pl.DataFrame:
        """Score texts by the log-probabilities that models give to what is learnt of them."""
        audited = self._audited()
        ids = [
            blake2b(str(number).encode(), digest_size=16).hexdigest()
            for number in audited["id"]
        ]
        targets = audited.select(
            *("id", "member", "group"),
            target_id=pl.Series(ids),
            role=pl.lit("target"),
            document_id=pl.lit(None, pl.String),
            window_index=pl.lit(0, pl.UInt32),
            n_words=pl.lit(None, pl.UInt32),
        )
        logprob_attacks = [get(attack) for attack in attacks if attack not in SPV]
        tables = score(
            Features.create_empty().lazy(),
            targets.lazy(),
            logprob_attacks,
            logprobs=self._logprobs(audited, ids).lazy(),
        )
        scores = pl.concat(tables)
        if len(logprob_attacks) == len(attacks):
            return scores
        return scores.join(self._spv_scores(audited, ids), on="target_id", how="left")

    def _logprobs(self, audited: pl.DataFrame, ids: Sequence[str]) -> pl.DataFrame:
        """Build the logprobs table of the target, the base and the shadow models."""
        # Of an encoder that is the label alone, whose log-odds LiRA then takes, as in
        # the paper.
        is_learnt: dict[str, pl.Series | None] = {"target": None}
        if self.form != "classifier":
            is_learnt["reference"] = None
        for shadow in range(self.settings.shadows):
            learnt_ids = self._learnt(shadow)["id"]
            is_learnt[f"shadow-{shadow}"] = audited["id"].is_in(learnt_ids.implode())
        texts = audited["text"].to_list()
        targets = audited["target"].to_list()
        frames = []
        for model, trained in is_learnt.items():
            trained_model = None if model == "reference" else model
            logprobs = self._open_scorer(trained_model).logprobs(texts, targets)
            columns = {"target_id": ids, "logprob": logprobs, "trained": trained}
            frames.append(pl.DataFrame(columns).with_columns(model=pl.lit(model)))
        values = pl.col("logprob")
        rows = pl.concat(frames, how="vertical_relaxed").with_columns(
            view=pl.lit("text"),
            view_index=pl.lit(0),
            logprob=pl.when(values.list.len() > 0).then(values),
            token_ids=values.list.eval(pl.int_range(0, pl.len())),
        )
        table = []
        for name, dtype in LogProbs.create_empty().schema.items():
            column = pl.col(name) if name in rows.columns else pl.lit(None)
            table.append(column.cast(dtype).alias(name))
        return rows.select(table)

    def _spv_scores(self, audited: pl.DataFrame, ids: Sequence[str]) -> pl.DataFrame:
        """Score texts by SPV-MIA, in an ordinary audit of the target in a folder next to it."""
        from mia_batch.extras.tune.training import LABEL_PREFIX
        from mia_batch.pipeline import run_audit
        from mia_batch.settings import load_settings

        self.say(f"{self.title}: SPV-MIA")
        # The label is learnt as text
        label = pl.format(f"{LABEL_PREFIX} {{}}", "target").fill_null("")
        texts = audited.select(
            "member", "group", pl.col("text") + label, document_id=pl.Series(ids)
        )
        texts_path = self._path("asked.parquet")
        public_path = self._path("public.parquet")
        write_table(texts, texts_path)
        write_table(self._auxiliary().select("text"), public_path)
        settings = {
            "input": str(texts_path),
            "out": self._path("spv"),
            "attacks": SPV,
            "report": False,
            "model": str(self._path("target")),
            "seed": self.settings.seed,
            "reference_model": self.base,
            "reference_revision": self.revision,
            # vLLM adds no noise to embeddings
            "engine": "transformers",
            # The target's own distribution is that of equation 7
            "top_k": 0,
            "prompts_from": str(public_path),
            "generations": max(2, texts["member"].sum()),
            "generation_tokens": self.settings.recipe.max_tokens,
            "tuning_tokens": self.settings.recipe.max_tokens,
        }
        run = run_audit(load_settings(settings, use_config=False), Observer())
        return run["scores"].select(pl.col("document_id").alias("target_id"), *SPV)

    def _inversion(self) -> pl.DataFrame:
        self.say(f"{self.title}: inversion of embeddings")
        texts_path = self.folder / "texts.parquet"
        texts = self.texts.select("text", "group", pl.col("^attribute$"))
        write_table(texts, texts_path)
        embedder = self._path("target")
        if self.variant.tuning == "lora" and self.form != "causal":
            # Embedders know adapters of causal models alone
            embedder = self._path("merged")
            scorer = self._open_scorer("target")
            scorer.model.merge_and_unload().save_pretrained(embedder)
            scorer.tokenizer.save_pretrained(embedder)
        inverted = invert(
            data=texts_path,
            embedder=str(embedder),
            out=self._path("inverted"),
            share=1 - self.settings.audited,
            seed=self.settings.seed,
            attribute_column="attribute" if "attribute" in texts.columns else None,
        )
        return self._add_variant(inverted.figures)

    def _exposures(self) -> pl.DataFrame:
        exposures = measure_exposures(
            self._open_scorer("canaries"),
            self.canary_sets,
            self._ask if self.form in ("seq2seq", "answer") else None,
        )
        return self._add_variant(exposures)


# The tables of all variants, and their page.

_GUESSING = 0.5  # its area under the curve
_TABLES = ("summary", "metrics", "exposures", "inversion")


def render_page(
    base: str, data: str, settings: PrivacySettings, tables: Mapping[str, pl.DataFrame]
) -> str:
    summary = tables["summary"]
    exposures = tables.get("exposures")
    template = environment().get_template("privacy.html.jinja")
    return template.render(
        base=base,
        data=data,
        settings=settings.to_json(),
        interval=interval,
        rows=summary.to_dicts(),
        conclusions=[*conclusions(summary)],
        plot=None if exposures is None else _plot(exposures),
    )


def conclusions(summary: pl.DataFrame) -> Iterator[str]:
    """Iterate over what may be concluded; a privacy that was not kept comes first."""
    rows = summary.to_dicts()
    for row in rows:
        if row["is_contradicted"]:
            bound = max(row["epsilon_bound"] or 0, row["epsilon_bound_by_rates"] or 0)
            yield (
                f"{row['variant']}: the accountant of the training gives epsilon"
                f" {row['epsilon']:.2f}, but an attack shows at least {bound:.2f}: the"
                " training does not keep what it promises."
            )
    for row in rows:
        yield f"{row['variant']}: {'; '.join(_clauses(row))}."


def _clauses(row: dict[str, Any]) -> Iterator[str]:
    if row["auc"] is None:
        yield "there are too few texts to say how well an attack finds members"
    else:
        finds = "finds" if (row["auc_low"] or 0) > _GUESSING else "is not shown to find"
        low, high = (
            NO_VALUE if limit is None else f"{limit:.3f}"
            for limit in (row["auc_low"], row["auc_high"])
        )
        yield f"the attack {finds} members (AUC {row['auc']:.3f}, {low} to {high})"
    if row["mean_exposure"] is not None:
        yield (
            f"canaries have a mean exposure of {row['mean_exposure']:.2f} bits, "
            f"{row['unlearnt_exposure']:.2f} without any memory"
        )
    if row["epsilon_reason"] is not None:
        yield f"no epsilon is given: {row['epsilon_reason']}"
    elif row["epsilon"] is not None and row["epsilon_bound"] is not None:
        yield (
            f"its accountant gives epsilon {row['epsilon']:.2f}; attacks show at least"
            f" {row['epsilon_bound']:.2f}, and could have shown at most"
            f" {row['epsilon_ceiling']:.2f}"
        )


def _plot(exposures: pl.DataFrame) -> Markup:
    """Draw mean exposure over repetitions, with the spread over formats, by variant."""
    bits = pl.col("exposure")
    half_width = 1.96 * bits.std().fill_null(0) / pl.len().sqrt()
    points = (
        exposures.drop_nulls("exposure")
        .group_by("variant", "repetitions")
        .agg(
            mean=bits.mean(),
            low=bits.mean() - half_width,
            high=bits.mean() + half_width,
        )
        .sort("variant", "repetitions")
    )
    curves = []
    for (variant,), rows in points.group_by("variant", maintain_order=True):
        line = rows.select("repetitions", "mean").rows()
        band = rows.select("repetitions", "low", "high").rows()
        curves.append(Curve(str(variant), line, band))
    unlearnt = exposures["unlearnt_exposure"].drop_nulls().unique().sort()
    x = round_axis("Times that a canary was learnt", [0, *points["repetitions"]])
    y = round_axis("Exposure, bits", [0, *points["low"], *points["high"], *unlearnt])
    chance = []
    if len(unlearnt) == 1:
        chance = [(x.low, unlearnt[0]), (x.high, unlearnt[0])]
    return draw(x, y, curves[:MOST_CURVES], chance)


@dataclass(frozen=True, slots=True, kw_only=True)
class Privacy:
    """What an audit of privacy found.

    Attributes
    ----------
    summary
        A row for each way in which the model was tuned; docs/privacy.md names the
        columns.
    metrics
        How well members are told from others: rows of the metrics table, with
        ``variant``.
    exposures
        A row for each canary that a model learnt; None where no canaries are asked for,
        or the model generates nothing.
    inversion
        Figures of the inversion of embeddings, with ``variant``; None where it is not
        asked for.
    page
        The report.
    """

    summary: pl.DataFrame
    metrics: pl.DataFrame
    exposures: pl.DataFrame | None
    inversion: pl.DataFrame | None
    page: Path


def audit_privacy(
    *,
    base: str | Sequence[str],
    data: Path | str,
    out: Path | str,
    settings: PrivacySettings,
    revision: str | None = None,
    text_column: str = "text",
    target_column: str | None = None,
    group_column: str | None = None,
    attribute_column: str | None = None,
    formats: Sequence[CanaryFormat] | None = None,
    observer: Observer | None = None,
) -> Privacy:
    """Tune a model with and without differential privacy, and attack each (PrivLM-Bench, table 3).

    Of each variant a target learns a random half of the audited texts, shadow models
    learn other halves, and one more model learns canaries with the target's texts.
    Everything made is kept in ``out``; the same request again goes on where it stopped.

    Parameters
    ----------
    base
        Model to tune, a folder or a hub name: an encoder, a decoder or an
        encoder-decoder; or several, whose models are in folders of their own in
        ``out``, and in one table.
    data
        Texts, in any format of an audit's input, or a task of GLUE, such as
        ``glue:sst2``; one text is one record whose privacy is asked about.
    out
        Folder of models and tables.
    settings
        How models are tuned, and attacked.
    revision
        Hub revision of the base, where there is one.
    text_column
        Column of the texts.
    target_column
        Column of what is said of a text: its label, which classification needs, or what
        an encoder-decoder answers.
    group_column
        Column of texts that belong together, such as one person's: all are learnt, or
        none.
    attribute_column
        Column of an attribute that is told from embeddings where the settings invert them.
    formats
        Formats of canaries; by default the paper's seven.
    observer
        Sees what is being done.

    Returns
    -------
    Privacy
        The tables, and where the report is.

    Raises
    ------
    RequestError
        If data, base or settings do not fit.
    RunFolderError
        If ``out`` is of another request, in use, or cannot be written.
    EngineError
        If a training fails; given again, the same request goes on.
    """
    is_private = any(epsilon is not None for epsilon in settings.epsilons)
    reason = why_no_finetuning(with_privacy=is_private)
    if reason is not None:
        raise SettingsError(reason)
    say = (observer or Observer()).stage
    columns = {"text": text_column, "target": target_column, "group": group_column}
    if attribute_column is not None:
        if not settings.inverts:
            raise SettingsError(
                "--attribute-column is told from embeddings; give --inversion, too"
            )
        columns["attribute"] = attribute_column
    texts = read_texts(data, columns, share=settings.audited, seed=settings.seed)
    if CONVERSATION in texts.columns:
        _check_conversations(settings, data)
    folder = Path(out).absolute()
    bases = [base] if isinstance(base, str) else [*base]
    shared: dict[str, Any] = {
        "texts": texts,
        "settings": settings,
        "say": say,
        "revision": revision,
        "labels": _labels(texts, settings, target_column),
    }
    audits: list[VariantAudit] = []
    for path, name in zip(bases, _folder_names(bases, revision), strict=True):
        audits += _variant_audits(path, name, folder / name, formats, shared)
    request = _build_request(bases, audits, shared)
    with _request_folder(folder, request):
        tables = _build_tables(audits, say)
        for name, table in tables.items():
            write_table(table, folder / f"{name}.parquet")
        page = folder / "privacy.html"
        write_text(page, render_page(", ".join(bases), str(data), settings, tables))
    return Privacy(
        summary=tables["summary"],
        metrics=tables["metrics"],
        exposures=tables.get("exposures"),
        inversion=tables.get("inversion"),
        page=page,
    )


def _folder_names(bases: Sequence[str], revision: str | None) -> list[str]:
    """Name the folders of several bases by their last parts; of one it is the whole folder."""
    names = [Path(base).name for base in bases]
    if len(bases) > 1 and revision is not None:
        raise SettingsError(
            "--revision is of one --base; leave it out, or audit one by one"
        )
    repeated = [name for name in names if names.count(name) > 1]
    if repeated:
        raise SettingsError(
            f"two bases are called {repeated[0]!r}; audit each in its own folder"
        )
    return names if len(bases) > 1 else [""]


def _variant_audits(
    base: str,
    name: str,
    folder: Path,
    formats: Sequence[CanaryFormat] | None,
    shared: Mapping[str, Any],
) -> list[VariantAudit]:
    """Prepare the audit of each way in which a base is tuned."""
    settings: PrivacySettings = shared["settings"]
    revision = shared["revision"]
    forms = {
        variant: find_form(base, revision, settings.task, variant.tuning)
        for variant in settings.variants()
    }
    if "seq2seq" in forms.values() and shared["texts"]["target"].has_nulls():
        raise SettingsError(
            f"{base!r} is an encoder-decoder; name the column of its answers with"
            " --target-column"
        )
    if CONVERSATION in shared["texts"].columns:
        texts = place_answers_of(shared["texts"], (base, revision, "base"))
        shared = {**shared, "texts": texts}
        forms = dict.fromkeys(forms, _check_decoder(base, forms.values()))
    canary_sets: list[CanarySet] = []
    if settings.canaries and any(form in GENERATING for form in forms.values()):
        if not formats:
            formats = paper_formats(read_words(base, revision), settings.seed)
        canary_sets = draw_canaries(formats, settings)
    return [
        VariantAudit(
            title=f"{name} {variant.name}".strip(),
            base=base,
            folder=folder,
            variant=variant,
            form=form,
            canary_sets=canary_sets if form in GENERATING else [],
            **shared,
        )
        for variant, form in forms.items()
    ]


def _build_tables(
    audits: Sequence[VariantAudit], say: Callable[[str], None]
) -> dict[str, pl.DataFrame]:
    """Train the models of all variants, attack them, and stack the tables."""

    def train(name: str, config: TrainingConfig, path: Path) -> TrainedModel:
        return train_or_load(config, path, lambda sentence: say(f"{name}: {sentence}"))

    models: dict[str, TrainedModel] = {}
    for audit in audits:
        for job in audit.training_jobs():
            models[job[0]] = train(*job)
    tables_by_audit = [audit.build_tables(models) for audit in audits]
    stacked = {}
    for name in _TABLES:
        frames = [tables[name] for tables in tables_by_audit if name in tables]
        if frames:
            stacked[name] = pl.concat(frames, how="diagonal_relaxed")
    return stacked


def _check_conversations(settings: PrivacySettings, data: Path | str) -> None:
    """Refuse what is about plain texts."""
    if settings.task != "generation":
        raise SettingsError(
            f"{data} holds conversations, whose answers are learnt; take task generation"
        )
    for option, is_given in (
        ("--spv", settings.spv),
        ("--inversion", settings.inverts),
    ):
        if is_given:
            raise SettingsError(
                f"{option} is about plain texts, and {data} holds conversations; leave it"
                " out, or name a column of texts with --text-column"
            )


def _check_decoder(base: str, forms: Iterable[Form]) -> Form:
    """Return the form of a base that learns answers; refuse a base that is no decoder."""
    if set(forms) != {"causal"}:
        raise SettingsError(
            f"{base!r} is no decoder, and conversations are answered by decoders; give"
            " one, or name columns with --text-column and --target-column"
        )
    return "answer"


def _build_request(
    bases: Sequence[str], audits: Sequence[VariantAudit], shared: Mapping[str, Any]
) -> dict[str, object]:
    """Return what a folder is of, as JSON."""
    revision = shared["revision"]
    digests = [identify_model(base, revision, "any").digest for base in bases]
    canary_sets = {audit.base: audit.canary_sets for audit in audits}
    canaries: list[str] = []
    for canary_set in chain.from_iterable(canary_sets.values()):
        canaries += map(canary_set.format.text, canary_set.numbers)
    return {
        "base": digests if len(bases) > 1 else digests[0],
        "texts": _hash_values(chain.from_iterable(shared["texts"].iter_rows())),
        "plan": shared["settings"].to_json(),
        "canaries": _hash_values(canaries),
    }


def _hash_values(values: Iterable[object]) -> str:
    digest = sha256()
    for value in values:
        digest.update(json.dumps(value).encode() + b"\n")
    return digest.hexdigest()


def _labels(
    texts: pl.DataFrame, settings: PrivacySettings, column: str | None
) -> tuple[str, ...]:
    """Return the labels of the texts where the model is to learn these."""
    if settings.task == "generation":
        return ()
    if column is None:
        raise SettingsError(
            "classification needs the labels: name their column with --target-column"
        )
    labels = tuple(sorted(texts["target"].unique()))
    if not 2 <= len(labels) <= 100:
        raise SettingsError(
            f"column {column!r} has {len(labels):,} different labels; give 2 to 100"
        )
    return labels


@contextmanager
def _request_folder(folder: Path, request: dict[str, object]) -> Iterator[None]:
    """Hold the folder of a request; check that it is of no other."""
    path = folder / "request.json"
    content = json.dumps(request, indent=2, sort_keys=True)
    with system_errors(folder):
        has_files = folder.is_dir() and any(folder.iterdir())
        if has_files and not (folder / ".lock").exists():
            raise RunFolderError(f"{folder} holds something else; name another folder")
        folder.mkdir(parents=True, exist_ok=True)
    busy = f"{folder} is in use by another process; wait for it, or name another folder"
    with locked(folder / ".lock", 0, busy):
        if path.exists():
            recorded = json.loads(path.read_text("utf-8"))
            differing = [
                name
                for name, value in json.loads(content).items()
                if recorded.get(name) != value
            ]
            if differing:
                raise RunFolderError(
                    f"{folder} is of another request: {' and '.join(differing)} differ;"
                    " name another folder, or delete it"
                )
        else:
            write_text(path, content)
        yield
