"""The stage that cuts the texts of a run into targets."""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import polars as pl

from mia_batch.corpus.books import LEFT_OUT
from mia_batch.diagnostics.near_copies import with_near_copies
from mia_batch.diagnostics.preflight import with_undeclared
from mia_batch.errors import SettingsError
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
        """Content and columns of the corpus; how it is cut cannot change within a run."""
        return self.audit.corpora.fingerprint(self.audit.settings)

    @property
    def required_tables(self) -> set[str]:
        return {"targets"}

    @property
    def is_fresh(self) -> bool:
        left_out = self.audit.corpora.set_aside.height > 0
        return (
            super().is_fresh and self.audit.run.path("set_aside").exists() == left_out
        )

    def remaining(self) -> Iterator[tuple[str, str]]:
        table = self.audit.open_targets()
        counts = _count(table)
        yield "targets", f"{counts.pop('total'):,}{self._share(table)}"
        if self.audit.settings.has_yardstick:
            own = table.filter(role="yardstick").select(
                pl.len(), words=pl.col("n_words").sum()
            )
            n, n_words = own.collect(engine="streaming").row(0)
            more = "--no-yardstick leaves them out"
            yield "yardstick", f"{n:,} of these targets, {n_words:,} words; {more}"
        for reason, n in counts.items():
            yield "not sampled", f"{n:,}: {reason}"

    def run(self) -> None:
        audit, say = self.audit, self.audit.observer.stage
        audit.manifest.inputs |= audit.corpora.digests
        if not self.is_fresh:
            self.make()
        self._draw_order()
        table, counts = scan(audit.run.path("targets"), Targets), audit.manifest.targets
        refused = (
            f"{n:,} cannot be sampled: {why}"
            for why, n in counts.items()
            if why != "total"
        )
        left_out = "".join(f"; {each}" for each in refused)
        targets = "target" if counts["total"] == 1 else "targets"
        say(f"{counts['total']:,} {targets}{self._share(table)}{left_out}")
        unspaced = audit.manifest.input.get("without_spaces")
        if audit.settings.word_rule in ("script", "folded") and unspaced:
            more = ", ..." if len(unspaced) > _NAMES_SHOWN else ""
            shown = ", ".join(unspaced[:_NAMES_SHOWN]) + more
            are = "document is" if len(unspaced) == 1 else "documents are"
            say(
                f"{len(unspaced):,} {are} in a script without spaces between words, of"
                f" which a word is a character or a few ({shown}); --word-rule sets"
                " another rule"
            )
        if n_moved := audit.manifest.input.get("n_moved_cuts"):
            say(
                f"{n_moved:,} prompts end up to {MOST_MOVED} words earlier or later"
                " than --prefix-ratio says, because there they would end"
                f" {_inside(audit.settings)}"
            )
        if audit.corpora.input.are_books and (sentence := _cut_sentence(table)):
            say(sentence)

    def make(self) -> None:
        audit, run, path = self.audit, self.audit.run, self.audit.run.path("targets")
        if path.exists():
            audit.refuse_other_shards("the texts are others than before")
        new = run.folder / "targets.new.parquet"
        sink(audit.corpora.targets(audit.settings), new, Targets)
        table = scan(new, Targets)
        described = with_near_copies(with_undeclared(table))
        if audit.corpora.input.are_books:
            described = with_authors_of_folders(described)
        if described is not table:
            sink(described, new, Targets)
        if audit.corpora.reference_sets:
            _refuse_two_roles(new)
        has_grown = audit.manifest.input.get("has_grown", False)
        if path.exists():
            audit.observer.stage(_changes(path, new))
            has_grown = has_grown or (self._has_answers and _adds_texts(path, new))
        self.mark_outdated()
        move(new, path)
        remove(run.path("set_aside"))
        if (left_out := audit.corpora.set_aside).height:
            sink(left_out, run.path("set_aside"), SetAside)
        table, corpus = scan(path, Targets), audit.corpora.input
        audit.manifest.targets = _count(table)
        audit.manifest.input = {
            "has_grown": has_grown,
            "files": [str(file.path) for file in corpus.files],
            "n_documents": corpus.n_documents,
            "n_set_aside": len(corpus.set_aside),
            "without_spaces": _without_spaces(table),
            "n_moved_cuts": _n_moved_cuts(audit, table),
        }
        self.mark_done()

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
        paths = map(self.audit.run.path, ("samples", "logprobs"))
        return any(chain.from_iterable(path.glob("*.parquet") for path in paths))

    def _share(self, targets: pl.LazyFrame) -> str:
        """Say of how many windows targets were chosen; nothing where all are targets."""
        most = self.audit.settings.max_windows_per_document
        if most is None:
            return ""
        # Of each document, as many rows are there as were chosen of its windows.
        windows = pl.col("n_windows") / pl.col("n_windows").clip(upper_bound=most)
        n_windows = (
            targets.select(windows.sum().round()).collect(engine="streaming").item()
        )
        return f" of {int(n_windows):,} windows"


def _n_moved_cuts(audit: Audit, targets: pl.LazyFrame) -> int:
    """Count the prompts that would have ended within a token."""
    settings = audit.settings
    if settings.preset == "samia" or may_cut(settings) is None:
        return 0
    n_prefix = count_words("prefix", words=settings.word_rule).cast(pl.Int64)
    planned = (pl.col("n_words") * settings.prefix_ratio).floor().cast(pl.Int64)
    n_moved = (
        targets.select((n_prefix != planned).sum()).collect(engine="streaming").item()
    )
    given = audit.corpora.input.documents.filter(pl.col("prefix").is_not_null()).limit(
        1
    )
    return n_moved if n_moved and given.collect().is_empty() else 0


def _inside(settings: Settings) -> str:
    if settings.tokenizer is None and settings.base_url is not None:
        return (
            "within a word of a script without spaces, and perhaps within a token,"
            " which hides memory; --tokenizer says where the endpoint's tokens end"
        )
    return "within a token of the text, which hides memory"


def _cut_sentence(targets: pl.LazyFrame) -> str:
    asked = targets.filter(pl.col("role").is_in(["target", "copy"]))
    known = targets.collect_schema()  # of a run of an earlier version, they are fewer
    kinds = [name for name in LEFT_OUT if name in known]
    books = asked.group_by("document_id").agg(pl.col(*_CUT, *kinds).first())
    n_cut = pl.any_horizontal(pl.col(*_CUT) > 0).sum()
    sums = pl.col(*_CUT, *kinds).cast(pl.Int64).sum()
    found = (
        books.select(sums, n_cut=n_cut, n=pl.len())
        .collect(engine="streaming")
        .row(0, named=True)
    )
    said = list[str]()
    if found["n_cut"]:
        said.append(
            "headers, licences, notes and tables of contents cut from"
            f" {found['n_cut']:,} of {found['n']:,} books: {found['cut_start']:,}"
            f" characters before the text, {found['cut_end']:,} after it"
        )
    if inside := [
        f"{name.replace('_', ' ')} ({found[name]:,})" for name in kinds if found[name]
    ]:
        said.append(f"left out within the text: {', '.join(inside)}")
    return "; ".join(said)


def _without_spaces(targets: pl.LazyFrame) -> list[str]:
    """Name the documents, or else targets, that are mostly of characters of such scripts."""
    asked = targets.filter(role="target").select(
        name=pl.coalesce("document_id", "target_id"),
        n=pl.col("target").str.len_chars().cast(pl.Int64),
        unspaced=pl.col("target").str.count_matches(_UNSPACED).cast(pl.Int64),
    )
    sums = asked.group_by("name").agg(pl.col("n", "unspaced").sum())
    found = (
        sums.filter(2 * pl.col("unspaced") > pl.col("n")).select("name").sort("name")
    )
    return found.collect(engine="streaming")["name"].to_list()


def _refuse_two_roles(path: Path) -> None:
    """Refuse a text that is asked about and in a reference set, or in two of these."""
    named = scan(path, Targets).select("target_id", "role", "document_id")
    others = named.filter(pl.col("role") != "target").collect(engine="streaming")
    twice = others.filter(pl.col("target_id").is_duplicated())
    asked = named.filter(role="target").join(
        others.lazy().select("target_id", other="role"),
        on="target_id",
        maintain_order="left",
    )
    if (
        twice.is_empty()
        and (both := asked.head(1).collect(engine="streaming")).is_empty()
    ):
        return
    remove(path)
    first = (both if twice.is_empty() else twice).row(0, named=True)
    found = others.filter(target_id=first["target_id"])["role"].to_list()
    roles = " and ".join(dict.fromkeys([first["role"], *found]))
    name = first["document_id"] or first["target_id"]
    raise SettingsError(
        f"the text {name!r} is there as {roles}; a text has one role: remove it from"
        " one file"
    )


def _changes(old: Path, new: Path) -> str:
    """Say how many targets are new, and how many are gone; refuse what would mix samples."""
    # Windows that repeat another's text have no prefix; which ones do depends on the
    # whole corpus.
    cut = pl.struct("prefix", "reference").hash()
    before, now = (  # by hashes, which take much less memory than names
        scan(path, Targets)
        .filter(pl.col("reason").ne_missing(pl.lit(COPY)))
        .select(pl.col("target_id").hash(), cut=cut)
        for path in (old, new)
    )
    both = before.join(now, on="target_id")
    counts = both.select(pl.len(), (pl.col("cut") != pl.col("cut_right")).sum())
    (kept, moved), (n_old,), (n_new,) = (
        each.collect(engine="streaming").row(0)
        for each in (counts, before.select(pl.len()), now.select(pl.len()))
    )
    fault = None
    if moved:
        fault = (
            f"the prefix or reference of {moved:,} targets differs from the run's own"
            " although their text is the same"
        )
    elif not kept and n_old:
        fault = (
            f"{old.parent} holds a run about other texts: none of its {n_old:,} targets"
            f" is among the {n_new:,} of this input"
        )
    if fault is not None:
        remove(new)
        raise SettingsError(f"{fault}; choose another --out")
    return (
        f"the input is not the run's earlier one: {n_new - kept:,} targets are new, "
        f"{n_old - kept:,} are gone, {kept:,} are kept; all are scored anew"
    )


def _adds_texts(old: Path, new: Path) -> bool:
    before, now = (scan(path, Targets).select("target_id") for path in (old, new))
    return now.join(before, on="target_id", how="anti").head(1).collect().height > 0


def _count(targets: pl.LazyFrame) -> dict[str, int]:
    counts = targets.group_by("reason").len().sort("reason").collect(engine="streaming")
    refused = counts.drop_nulls("reason")
    return {"total": int(counts["len"].sum())} | dict(
        zip(*refused.get_columns(), strict=True)
    )
