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
from mia_batch.errors import RunFolderError, SettingsError
from mia_batch.extras.privacy import data as texts_of
from mia_batch.extras.privacy.data import CanaryFormat, Inserted, learnt_by
from mia_batch.extras.privacy.inversion.training import invert
from mia_batch.extras.privacy.measures import summary_of, utility
from mia_batch.extras.privacy.plan import GENERATING, VIRTUAL, Plan, Variant, form_of
from mia_batch.extras.privacy.scorer import Opened
from mia_batch.extras.tune.jobs import (
    Made,
    Making,
    Wanted,
    locked,
    made_of,
    why_no_finetuning,
)
from mia_batch.metrics import evaluate
from mia_batch.models.weights import identify_model
from mia_batch.observer import Observer
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

    title: str
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
        self._path().mkdir(exist_ok=True, parents=True)
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
        target = models[self._name("target")]
        # The first is the primary one: LiRA, or the ratio to the pre-trained model
        # (appendix B.1), which an encoder has none of: untrained, it has no head that
        # could be asked.
        attacks = [] if self.form == "classifier" else ["reference_token_difference_v1"]
        attacks += [*(_WITH_SHADOWS if self.plan.shadows else ()), "loss_v1"]
        attacks += SPV if self.plan.spv and self.form == "causal" else ()
        scores = self._kept("scores", lambda: self._scores(attacks))
        metrics = evaluate(
            scores.lazy(),
            attacks,
            preset="default",
            primary=attacks[0],
            seed=self.plan.seed,
        )
        rest, how = self.texts.filter(part="auxiliary"), (self.plan.task, self.labels)
        used = self._kept(
            "utility", lambda: utility(self._opened("target"), rest, *how)
        )
        found = {}
        if self.inserted:
            found["exposures"] = self._kept("exposures", self._exposures)
        if self.plan.inverts and self.variant.tuning not in VIRTUAL:
            found["inversion"] = self._kept("inversion", self._inverted)
        found["metrics"] = self._named(metrics)
        audited = self.texts.filter(part="audited")
        summary = summary_of(
            *(self.variant, self.plan, target, scores, metrics, used, found, attacks),
            audited,
        )
        base = pl.lit(self.base).alias("base")
        found["summary"] = self._named(
            summary.select(base, pl.all().exclude("variant"))
        )
        return found

    def _name(self, model: str) -> str:
        return f"{self.title}: {model}"

    def _named(self, table: pl.DataFrame) -> pl.DataFrame:
        return table.select(pl.lit(self.title).alias("variant"), pl.all())

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
        self,
        model: str,
        learnt: pl.DataFrame,
        seed: int,
        extra: Sequence[tuple[str, str]] = (),
    ) -> Wanted:
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
        made = None if model is None else self._path(model)
        return Opened(self.base, self.revision, self._recipe(), made)

    def _scores(self, attacks: Sequence[str]) -> pl.DataFrame:
        """Score texts by the log-probabilities that models give to what is learnt of them."""
        # Of an encoder that is the label alone, whose log-odds LiRA then takes, as in
        # the paper.
        audited = self.texts.filter(part="audited")
        ids = [
            blake2b(str(each).encode(), digest_size=16).hexdigest()
            for each in audited["id"]
        ]
        trained: dict[str, Any] = {"target": None}
        if self.form != "classifier":
            trained["reference"] = None
        for number in range(self.plan.shadows):
            learnt = learnt_by(self.texts, number, self.plan.seed)["id"]
            trained[f"shadow-{number}"] = audited["id"].is_in(learnt.implode())
        asked = audited["text"].to_list(), audited["target"].to_list()
        values, frames = pl.col("logprob"), []
        for model, each in trained.items():
            found = self._opened(None if model == "reference" else model).logprobs(
                *asked
            )
            known = pl.DataFrame({"target_id": ids, "logprob": found, "trained": each})
            frames.append(known.with_columns(model=pl.lit(model)))
        known = pl.concat(frames, how="vertical_relaxed").with_columns(
            view=pl.lit("text"),
            view_index=pl.lit(0),
            logprob=pl.when(values.list.len() > 0).then(values),
            token_ids=values.list.eval(pl.int_range(0, pl.len())),
        )
        rows = known.select(
            (pl.col(name) if name in known.columns else pl.lit(None))
            .cast(dtype)
            .alias(name)
            for name, dtype in LogProbs.create_empty().schema.items()
        )
        targets = audited.select(
            *("id", "member", "group"),
            target_id=pl.Series(ids),
            role=pl.lit("target"),
            document_id=pl.lit(None, pl.String),
            window_index=pl.lit(0, pl.UInt32),
            n_words=pl.lit(None, pl.UInt32),
        )
        features = Features.create_empty().lazy()
        wanted = [get(attack) for attack in attacks if attack not in SPV]
        scores = pl.concat(
            score(features, targets.lazy(), wanted, logprobs=rows.lazy())
        )
        if len(wanted) == len(attacks):
            return scores
        return scores.join(self._spv_scores(audited, ids), on="target_id", how="left")

    def _spv_scores(self, audited: pl.DataFrame, ids: Sequence[str]) -> pl.DataFrame:
        """Score texts by SPV-MIA, in an ordinary audit of the target in a folder next to it."""
        from mia_batch.extras.tune.training import BETWEEN
        from mia_batch.pipeline import run_audit
        from mia_batch.settings import load_settings

        self.say(f"{self.title}: SPV-MIA")
        label = pl.format(f"{BETWEEN} {{}}", "target").fill_null("")  # learnt as text
        known = audited.select(
            "member", "group", pl.col("text") + label, document_id=pl.Series(ids)
        )
        own, public = (self._path(f"{name}.parquet") for name in ("asked", "public"))
        write_table(known, own)
        write_table(self.texts.filter(part="auxiliary").select("text"), public)
        settings = {
            "input": str(own),
            "out": self._path("spv"),
            "attacks": SPV,
            "report": False,
        }
        settings |= {"model": str(self._path("target")), "seed": self.plan.seed}
        settings |= {"reference_model": self.base, "reference_revision": self.revision}
        # vLLM adds no noise to embeddings; the target's own distribution is that of
        # equation 7
        settings |= {"engine": "transformers", "top_k": 0}
        settings |= {
            "prompts_from": str(public),
            "generations": max(2, known["member"].sum()),
        }
        lengths = ("generation_tokens", "tuning_tokens")
        settings |= dict.fromkeys(lengths, self.plan.recipe.max_tokens)
        run = run_audit(load_settings(settings, use_config=False), Observer())
        return run["scores"].select(pl.col("document_id").alias("target_id"), *SPV)

    def _inverted(self) -> pl.DataFrame:
        self.say(f"{self.title}: inversion of embeddings")
        texts = self.folder / "texts.parquet"
        known = self.texts.select("text", "group", pl.col("^attribute$"))
        write_table(known, texts)
        embedder = self._path("target")
        if self.variant.tuning == "lora" and self.form != "causal":
            # Embedders know adapters of causal models alone
            embedder = self._path("merged")
            opened = self._opened("target")
            for each in (opened.model.merge_and_unload(), opened.tokenizer):
                each.save_pretrained(embedder)
        how: dict[str, Any] = {"share": 1 - self.plan.audited, "seed": self.plan.seed}
        how["attribute_column"] = "attribute" if "attribute" in known.columns else None
        found = invert(
            data=texts, embedder=str(embedder), out=self._path("inverted"), **how
        )
        return self._named(found.figures)

    def _exposures(self) -> pl.DataFrame:
        opened, is_seq2seq = self._opened("canaries"), self.form == "seq2seq"
        return self._named(
            texts_of.exposed(opened, self.inserted, is_seq2seq=is_seq2seq)
        )


# The tables of all variants, and their page.

_GUESSING = 0.5  # its area under the curve
_TABLES = ("summary", "metrics", "exposures", "inversion")


def page_of(
    base: str, data: str, plan: Plan, tables: Mapping[str, pl.DataFrame]
) -> str:
    summary, exposures = tables["summary"], tables.get("exposures")
    known = {"base": base, "data": data, "plan": plan.described(), "interval": interval}
    known |= {"rows": summary.to_dicts(), "conclusions": [*conclusions(summary)]}
    plot = None if exposures is None else _plot(exposures)
    return environment().get_template("privacy.html.jinja").render(known, plot=plot)


def conclusions(summary: pl.DataFrame) -> Iterator[str]:
    """Yield what may be concluded; a privacy that was not kept comes first."""
    rows = summary.to_dicts()
    for row in rows:
        if row["is_contradicted"]:
            shown = max(row["epsilon_bound"] or 0, row["epsilon_bound_by_rates"] or 0)
            yield (
                f"{row['variant']}: the accountant of the training gives epsilon"
                f" {row['epsilon']:.2f}, but an attack shows at least {shown:.2f}: the"
                " training does not keep what it promises."
            )
    for row in rows:
        yield f"{row['variant']}: {'; '.join(_parts(row))}."


def _parts(row: dict[str, Any]) -> Iterator[str]:
    if row["auc"] is None:
        yield "there are too few texts to say how well an attack finds members"
    else:
        finds = "finds" if (row["auc_low"] or 0) > _GUESSING else "is not shown to find"
        limits = [row["auc_low"], row["auc_high"]]
        low, high = (NO_VALUE if each is None else f"{each:.3f}" for each in limits)
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
    """Mean exposure over repetitions, with the spread over formats, of each variant."""
    bits = pl.col("exposure")
    half = 1.96 * bits.std().fill_null(0) / pl.len().sqrt()
    points = (
        exposures.drop_nulls("exposure")
        .group_by("variant", "repetitions")
        .agg(mean=bits.mean(), low=bits.mean() - half, high=bits.mean() + half)
        .sort("variant", "repetitions")
    )
    lines, bands = (["repetitions", *names] for names in (["mean"], ["low", "high"]))
    curves = [
        Curve(str(name), rows[lines].rows(), rows[bands].rows())
        for (name,), rows in points.group_by("variant", maintain_order=True)
    ]
    unlearnt = exposures["unlearnt_exposure"].drop_nulls().unique().sort()
    x = round_axis("Times that a canary was learnt", [0, *points["repetitions"]])
    y = round_axis("Exposure, bits", [0, *points["low"], *points["high"], *unlearnt])
    chance = [(x.low, unlearnt[0]), (x.high, unlearnt[0])] if len(unlearnt) == 1 else []
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
    plan: Plan,
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
    plan
        What is made.
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
        Column of an attribute that is told from embeddings where the plan inverts them.
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
        If data, base or plan do not fit.
    RunFolderError
        If ``out`` is of another request, in use, or cannot be written.
    EngineError
        If a training fails; given again, the same request goes on.
    """
    if reason := why_no_finetuning(
        with_privacy=any(each is not None for each in plan.epsilons)
    ):
        raise SettingsError(reason)
    say = (observer or Observer()).stage
    columns = {"text": text_column, "target": target_column, "group": group_column}
    if attribute_column is not None:
        if not plan.inverts:
            raise SettingsError(
                "--attribute-column is told from embeddings; give --inversion, too"
            )
        columns["attribute"] = attribute_column
    texts = texts_of.read_texts(data, columns, share=plan.audited, seed=plan.seed)
    folder, bases = Path(out).absolute(), [base] if isinstance(base, str) else [*base]
    shared: dict[str, Any] = {
        "texts": texts,
        "plan": plan,
        "say": say,
        "revision": revision,
    }
    shared["labels"] = _labels(texts, plan, target_column)
    audits = [
        audit
        for each, name in zip(bases, _names(bases, revision), strict=True)
        for audit in _variants(each, name, folder / name, formats, shared)
    ]
    digests = [identify_model(each, revision, "any").digest for each in bases]
    canaries = chain.from_iterable(
        {each.base: each.inserted for each in audits}.values()
    )
    request: dict[str, object] = {
        "base": digests if len(bases) > 1 else digests[0],
        "texts": _digest(value for row in texts.iter_rows() for value in row),
        "plan": plan.described(),
        "canaries": _digest(
            each.format.text(n) for each in canaries for n in each.numbers
        ),
    }
    with _of_request(folder, request):
        tables = _tables(audits, say)
        for name, table in tables.items():
            write_table(table, folder / f"{name}.parquet")
        page = folder / "privacy.html"
        write_text(page, page_of(", ".join(bases), str(data), plan, tables))
    further: dict[str, Any] = {
        name: tables.get(name) for name in ("exposures", "inversion")
    }
    return Privacy(
        summary=tables["summary"], metrics=tables["metrics"], page=page, **further
    )


def _names(bases: Sequence[str], revision: str | None) -> list[str]:
    """Name the folders of several bases by their last parts; of one it is the whole folder."""
    names = [Path(each).name for each in bases]
    if len(bases) > 1 and revision is not None:
        raise SettingsError(
            "--revision is of one --base; leave it out, or audit one by one"
        )
    if twice := [name for name in names if names.count(name) > 1]:
        raise SettingsError(
            f"two bases are called {twice[0]!r}; audit each in its own folder"
        )
    return names if len(bases) > 1 else [""]


def _variants(
    base: str,
    name: str,
    folder: Path,
    formats: Sequence[CanaryFormat] | None,
    shared: Mapping[str, Any],
) -> list[VariantAudit]:
    plan, revision = shared["plan"], shared["revision"]
    forms = {
        each: form_of(base, revision, plan.task, each.tuning)
        for each in plan.variants()
    }
    if "seq2seq" in forms.values() and shared["texts"]["target"].has_nulls():
        raise SettingsError(
            f"{base!r} is an encoder-decoder; name the column of its answers with"
            " --target-column"
        )
    inserted: list[Inserted] = []
    if plan.canaries and any(form in GENERATING for form in forms.values()):
        own = formats or texts_of.paper_formats(
            texts_of.words_of(base, revision), plan.seed
        )
        inserted = texts_of.draw(own, plan)
    return [
        VariantAudit(
            title=f"{name} {variant.name}".strip(),
            base=base,
            folder=folder,
            variant=variant,
            form=form,
            inserted=inserted if form in GENERATING else [],
            **shared,
        )
        for variant, form in forms.items()
    ]


def _tables(
    audits: Sequence[VariantAudit], say: Callable[[str], None]
) -> dict[str, pl.DataFrame]:
    def made(name: str, making: Making, path: Path) -> Made:
        return made_of(making, path, lambda said: say(f"{name}: {said}"))

    models = {each[0]: made(*each) for audit in audits for each in audit.wanted()}
    found = [audit.tables(models) for audit in audits]
    return {
        name: pl.concat(some, how="diagonal_relaxed")
        for name in _TABLES
        if (some := [each[name] for each in found if name in each])
    }


def _digest(values: Iterable[object]) -> str:
    found = sha256()
    for value in values:
        found.update(json.dumps(value).encode() + b"\n")
    return found.hexdigest()


def _labels(texts: pl.DataFrame, plan: Plan, column: str | None) -> tuple[str, ...]:
    if plan.task == "generation":
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
def _of_request(folder: Path, request: dict[str, object]) -> Iterator[None]:
    path = folder / "request.json"
    wanted = json.dumps(request, indent=2, sort_keys=True)
    with system_errors(folder):
        if (
            folder.is_dir()
            and any(folder.iterdir())
            and not (folder / ".lock").exists()
        ):
            raise RunFolderError(f"{folder} holds something else; name another folder")
        folder.mkdir(parents=True, exist_ok=True)
    busy = f"{folder} is in use by another process; wait for it, or name another folder"
    with locked(folder / ".lock", 0, busy):
        there = json.loads(path.read_text("utf-8") if path.exists() else wanted)
        asked = json.loads(wanted)
        if differing := [
            name for name, value in asked.items() if there.get(name) != value
        ]:
            raise RunFolderError(
                f"{folder} is of another request: {' and '.join(differing)} differ;"
                " name another folder, or delete it"
            )
        if not path.exists():
            write_text(path, wanted)
        yield
