"""The stage that cuts the texts of a run into targets."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import polars as pl

from mia_batch.corpus.books import LEFT_OUT
from mia_batch.diagnostics.near_copies import with_near_copies
from mia_batch.diagnostics.preflight import with_undeclared
from mia_batch.errors import CorpusError, SettingsError
from mia_batch.evidence.lot import LOT, in_order_of_asking
from mia_batch.inference.authors import with_authors_of_folders
from mia_batch.kernels import count_words
from mia_batch.pipeline.context import Audit
from mia_batch.pipeline.folder import ORDER
from mia_batch.pipeline.stages import Stage
from mia_batch.schemas import SetAside, Targets
from mia_batch.settings import Settings
from mia_batch.tables import move, remove, scan, sink
from mia_batch.targets import COPY, MOST_MOVED
from mia_batch.views import may_cut

_NAMES_SHOWN = 3
_UNSPACED = (
    r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}]"
)
_CUT = ("cut_start", "cut_end")


class TargetsStage(Stage):
    """Bring the targets table up to the corpus."""

    name = "targets"
    phase = "texts"
    activity = "cutting the texts"
    makes = ("targets", "set_aside")

    def fingerprint(self) -> dict[str, Any]:
        """Return content and columns of the corpus; how it is cut cannot change within a run."""
        return self.audit.corpora.fingerprint(self.audit.settings)

    @property
    def required_tables(self) -> set[str]:
        return {"targets"}

    @property
    def is_fresh(self) -> bool:
        has_set_aside = self.audit.corpora.set_aside.height > 0
        table = self.audit.run.path("set_aside")
        return super().is_fresh and table.exists() == has_set_aside

    def remaining(self) -> Iterator[tuple[str, str]]:
        targets = self.audit.open_targets()
        counts = _count_by_reason(targets)
        yield "targets", f"{counts.pop('total'):,}{self._describe_share(targets)}"
        if self.audit.settings.has_yardstick:
            yardstick = targets.filter(role="yardstick")
            sums = yardstick.select(pl.len(), words=pl.col("n_words").sum())
            n, n_words = sums.collect(engine="streaming").row(0)
            option = "--no-yardstick leaves them out"
            yield "yardstick", f"{n:,} of these targets, {n_words:,} words; {option}"
        for reason, n in counts.items():
            yield "not sampled", f"{n:,}: {reason}"

    def run(self) -> None:
        audit = self.audit
        audit.manifest.inputs |= audit.corpora.digests
        for sentence in _list_changed(
            audit.manifest.addresses, audit.corpora.addresses
        ):
            audit.observer.stage(sentence)
        audit.manifest.addresses |= audit.corpora.addresses
        if not self.is_fresh:
            self.make()
        self._refuse_no_words()
        self._draw_order()
        for sentence in self._describe(scan(audit.run.path("targets"), Targets)):
            audit.observer.stage(sentence)

    def _refuse_no_words(self) -> None:
        """Refuse texts of which none has a word: an engine would start for nothing."""
        audit = self.audit
        targets = audit.run.scan("targets").filter(role="target")
        n_words = targets.select(pl.col("n_words").sum())
        if n_words.collect(engine="streaming").item():
            return
        name = audit.settings.dataset or audit.settings.input
        if audit.settings.conversations == "answers":
            raise CorpusError(
                f"{name}: no conversation has an answer with words, and answers are what"
                " is asked about; give conversations with answers, or --conversations"
                " text to read each as one text"
            )
        if audit.corpora.input.n_documents == 1:
            raise CorpusError(f"{name} has no words; give a file with text")
        raise CorpusError(
            f"{name}: none of the {audit.corpora.input.n_documents:,} texts has words;"
            " give files with text, or name their column with --text-column"
        )

    def _describe(self, targets: pl.LazyFrame) -> Iterator[str]:
        """Iterate over sentences about the targets."""
        audit = self.audit
        counts = audit.manifest.targets
        unsampled = "".join(
            f"; {n:,} cannot be sampled: {reason}"
            for reason, n in counts.items()
            if reason != "total"
        )
        noun = "target" if counts["total"] == 1 else "targets"
        share = self._describe_share(targets)
        yield f"{counts['total']:,} {noun}{share}{unsampled}"
        unspaced = audit.manifest.input.get("without_spaces")
        if audit.settings.word_rule in ("script", "folded") and unspaced:
            names = ", ".join(unspaced[:_NAMES_SHOWN])
            if len(unspaced) > _NAMES_SHOWN:
                names += ", ..."
            are = "document is" if len(unspaced) == 1 else "documents are"
            yield (
                f"{len(unspaced):,} {are} in a script without spaces between words, of"
                f" which a word is a character or a few ({names}); --word-rule sets"
                " another rule"
            )
        n_moved = audit.manifest.input.get("n_moved_cuts")
        if n_moved:
            yield (
                f"{n_moved:,} prompts end up to {MOST_MOVED} words earlier or later"
                " than --prefix-ratio says, because there they would end"
                f" {_describe_cut(audit.settings)}"
            )
        if audit.corpora.input.are_books:
            sentence = _describe_left_out(targets)
            if sentence:
                yield sentence

    def make(self) -> None:
        audit = self.audit
        run = audit.run
        path = run.path("targets")
        if path.exists():
            audit.refuse_other_shards("the texts are others than before")
        new = run.folder / "targets.new.parquet"
        self._write_new(new)
        has_grown = audit.manifest.input.get("has_grown", False)
        if path.exists():
            audit.observer.stage(_describe_changes(path, new))
            has_grown = has_grown or (self._has_answers and _adds_texts(path, new))
        self.mark_outdated()
        move(new, path)
        remove(run.path("set_aside"))
        set_aside = audit.corpora.set_aside
        if set_aside.height:
            sink(set_aside, run.path("set_aside"), SetAside)
        targets = scan(path, Targets)
        corpus = audit.corpora.input
        audit.manifest.targets = _count_by_reason(targets)
        audit.manifest.input = {
            "has_grown": has_grown,
            "files": [str(file.path) for file in corpus.files],
            "n_documents": corpus.n_documents,
            "n_set_aside": len(corpus.set_aside),
            "without_spaces": _list_unspaced(targets),
            "n_moved_cuts": _count_moved_cuts(audit, targets),
        }
        if corpus.draw is not None:
            audit.manifest.input["draw"] = corpus.draw.describe()
        self.mark_done()

    def _write_new(self, path: Path) -> None:
        """Write the targets of the corpus as it is now, with what is found among them."""
        corpora = self.audit.corpora
        sink(corpora.targets(self.audit.settings), path, Targets)
        targets = scan(path, Targets)
        described = with_near_copies(with_undeclared(targets))
        if corpora.input.are_books:
            described = with_authors_of_folders(described)
        if described is not targets:
            sink(described, path, Targets)
        if corpora.reference_sets:
            _refuse_two_roles(path)

    def _draw_order(self) -> None:
        """Draw by lot in which order the texts are asked, unless answers came in another one."""
        audit, run = self.audit, self.audit.run
        is_older = "order" not in audit.manifest.evidence and self._has_answers
        if audit.recording is not None or is_older:
            return
        audit.agree({"order": LOT})
        # No root covers the file, so it is drawn again; the same texts make the same
        # bytes.
        targets = scan(run.path("targets"), Targets)
        sink(in_order_of_asking(targets, audit.settings.seed), run.path(ORDER), Targets)

    @property
    def _has_answers(self) -> bool:
        folders = map(self.audit.run.path, ("samples", "logprobs"))
        return any(any(folder.glob("*.parquet")) for folder in folders)

    def _describe_share(self, targets: pl.LazyFrame) -> str:
        """Return of how many windows targets were chosen; nothing where all are targets."""
        most_windows = self.audit.settings.max_windows_per_document
        if most_windows is None:
            return ""
        # Of each document, as many rows are there as were chosen of its windows.
        chosen_windows = pl.col("n_windows").clip(upper_bound=most_windows)
        windows = pl.col("n_windows") / chosen_windows
        total = targets.select(windows.sum().round())
        n_windows = total.collect(engine="streaming").item()
        return f" of {int(n_windows):,} windows"


def _list_changed(
    recorded: Mapping[str, Mapping[str, Any]], present: Mapping[str, Mapping[str, Any]]
) -> Iterator[str]:
    """Iterate over files at addresses of which their server says other than at the beginning."""
    for setting, files in present.items():
        for name, facts in files.items():
            before = recorded.get(setting, {}).get(name, facts)
            if before != facts:
                yield (
                    f"{setting}: {facts['address']} is no longer as this run read it"
                    f" ({_describe_facts(before)}; now {_describe_facts(facts)})"
                )


def _describe_facts(facts: Mapping[str, Any]) -> str:
    stamps = ("revision", "version", "etag", "modified", "size")
    name = next((name for name in stamps if name in facts), "address")
    return f"{name} {facts[name]}"


def _count_moved_cuts(audit: Audit, targets: pl.LazyFrame) -> int:
    """Count the prompts that would have ended within a token."""
    settings = audit.settings
    is_cut = settings.preset != "samia" and settings.conversations != "answers"
    if not is_cut or may_cut(settings) is None:
        return 0
    n_prefix = count_words("prefix", words=settings.word_rule).cast(pl.Int64)
    planned = (pl.col("n_words") * settings.prefix_ratio).floor().cast(pl.Int64)
    moved = targets.select((n_prefix != planned).sum())
    n_moved = moved.collect(engine="streaming").item()
    if not n_moved:
        return 0
    has_prefix = pl.col("prefix").is_not_null()
    cut_documents = audit.corpora.input.documents.filter(has_prefix).limit(1)
    return n_moved if cut_documents.collect().is_empty() else 0


def _describe_cut(settings: Settings) -> str:
    if settings.tokenizer is None and settings.base_url is not None:
        return (
            "within a word of a script without spaces, and perhaps within a token,"
            " which hides memory; --tokenizer says where the endpoint's tokens end"
        )
    return "within a token of the text, which hides memory"


def _describe_left_out(targets: pl.LazyFrame) -> str:
    """Describe what was cut from books, and left out within them."""
    is_of_input = pl.col("role").is_in(["target", "copy"])
    columns = targets.collect_schema()  # of a run of an earlier version, they are fewer
    kinds = [name for name in LEFT_OUT if name in columns]
    by_book = targets.filter(is_of_input).group_by("document_id")
    books = by_book.agg(pl.col(*_CUT, *kinds).first())
    sums = books.select(
        pl.col(*_CUT, *kinds).cast(pl.Int64).sum(),
        n_cut=pl.any_horizontal(pl.col(*_CUT) > 0).sum(),
        n=pl.len(),
    )
    counts = sums.collect(engine="streaming").row(0, named=True)
    sentences: list[str] = []
    if counts["n_cut"]:
        sentences.append(
            "headers, licences, notes and tables of contents cut from"
            f" {counts['n_cut']:,} of {counts['n']:,} books: {counts['cut_start']:,}"
            f" characters before the text, {counts['cut_end']:,} after it"
        )
    left_out = [
        f"{name.replace('_', ' ')} ({counts[name]:,})" for name in kinds if counts[name]
    ]
    if left_out:
        sentences.append(f"left out within the text: {', '.join(left_out)}")
    return "; ".join(sentences)


def _list_unspaced(targets: pl.LazyFrame) -> list[str]:
    """List the documents, or else targets, that are mostly of characters of such scripts."""
    texts = targets.filter(role="target").select(
        name=pl.coalesce("document_id", "target_id"),
        n=pl.col("target").str.len_chars().cast(pl.Int64),
        unspaced=pl.col("target").str.count_matches(_UNSPACED).cast(pl.Int64),
    )
    sums = texts.group_by("name").agg(pl.col("n", "unspaced").sum())
    is_unspaced = 2 * pl.col("unspaced") > pl.col("n")
    names = sums.filter(is_unspaced).select("name").sort("name")
    return names.collect(engine="streaming")["name"].to_list()


def _refuse_two_roles(path: Path) -> None:
    """Refuse a text that is asked about and in a reference set, or in two of these."""
    texts = scan(path, Targets).select("target_id", "role", "document_id")
    is_target = pl.col("role") == "target"
    references = texts.filter(~is_target).collect(engine="streaming")
    repeated = references.filter(pl.col("target_id").is_duplicated())
    if repeated.is_empty():
        roles = references.lazy().select("target_id", other="role")
        targets = texts.filter(is_target)
        in_both = targets.join(roles, on="target_id", maintain_order="left")
        repeated = in_both.head(1).collect(engine="streaming")
    if repeated.is_empty():
        return
    remove(path)
    first = repeated.row(0, named=True)
    other_roles = references.filter(target_id=first["target_id"])["role"].to_list()
    roles_of_text = " and ".join(dict.fromkeys([first["role"], *other_roles]))
    name = first["document_id"] or first["target_id"]
    raise SettingsError(
        f"the text {name!r} is there as {roles_of_text}; a text has one role: remove it"
        " from one file"
    )


def _describe_changes(old: Path, new: Path) -> str:
    """Describe how many targets are new, and how many are gone; refuse what would mix samples."""
    # Windows that repeat another's text have no prefix; which ones do depends on the
    # whole corpus.
    is_window = pl.col("reason").ne_missing(pl.lit(COPY))
    cut_hash = pl.struct("prefix", "reference").hash()
    old_cuts, new_cuts = (  # by hashes, which take much less memory than names
        scan(path, Targets)
        .filter(is_window)
        .select(pl.col("target_id").hash(), cut=cut_hash)
        for path in (old, new)
    )
    is_moved = pl.col("cut") != pl.col("cut_right")
    shared = old_cuts.join(new_cuts, on="target_id").select(pl.len(), is_moved.sum())
    n_shared, n_moved = shared.collect(engine="streaming").row(0)
    n_old = old_cuts.select(pl.len()).collect(engine="streaming").item()
    n_new = new_cuts.select(pl.len()).collect(engine="streaming").item()
    fault = None
    if n_moved:
        fault = (
            f"the prefix or reference of {n_moved:,} targets differs from the run's own"
            " although their text is the same"
        )
    elif not n_shared and n_old:
        fault = (
            f"{old.parent} holds a run about other texts: none of its {n_old:,} targets"
            f" is among the {n_new:,} of this input"
        )
    if fault is not None:
        remove(new)
        raise SettingsError(f"{fault}; choose another --out")
    return (
        f"the input is not the run's earlier one: {n_new - n_shared:,} targets are new,"
        f" {n_old - n_shared:,} are gone, {n_shared:,} are kept; all are scored anew"
    )


def _adds_texts(old: Path, new: Path) -> bool:
    old_ids = scan(old, Targets).select("target_id")
    new_ids = scan(new, Targets).select("target_id")
    added = new_ids.join(old_ids, on="target_id", how="anti").head(1)
    return added.collect().height > 0


def _count_by_reason(targets: pl.LazyFrame) -> dict[str, int]:
    """Count the targets in total, and those that cannot be sampled by reason."""
    counts = targets.group_by("reason").len().sort("reason").collect(engine="streaming")
    unsampled = counts.drop_nulls("reason")
    return {"total": int(counts["len"].sum()), **dict(unsampled.iter_rows())}
