"""A run as its users see it: the answer, the tables, the report."""

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from mia_batch.errors import MiaBatchError
from mia_batch.pipeline.folder import AuditFolder, RunFolder
from mia_batch.pipeline.results import (
    REPORT,
    build_answer,
    build_table,
    check_finished,
    list_attacks,
    list_books,
    list_run_passages,
    load_results,
    render_for_notebook,
    write_report,
)
from mia_batch.report.drawn import list_shares
from mia_batch.report.paper import USUAL_FIGURES, Blind, Names, PaperTable


class Run(RunFolder):
    """A run's folder and its tables, each read from disk when it is asked for.

    Parameters
    ----------
    folder
        A folder, or an address such as ``s3://bucket/run``, whose files are fetched
        then.

    Attributes
    ----------
    folder
        The folder itself.
    """

    __slots__ = ()

    @property
    def answer(self) -> str:
        """One sentence that answers the question the run was made for.

        Identifiers in names of documents are masked, as in the report. Raises
        `RunFolderError` where the run is not finished, as all that follows.
        """
        return build_answer(self)

    @property
    def books(self) -> pl.DataFrame:
        """What was audited, strongest evidence first; see `mia_batch.report.answer`.

        Empty for texts that belong to no document: each is a row of ``run["scores"]``.
        """
        return list_books(self)

    @property
    def passages(self) -> pl.DataFrame:
        """Texts that came out word for word where they were continued, the longest run first.

        ``target_id``, ``role`` (``target``, or ``non_member`` to compare with),
        ``document_id``, ``group``, ``window_index``, ``n_words`` in a row, at least 20,
        less those that could be foreseen, and the ``passage``. What walks gave is in
        ``run["extracted_documents"]``.
        """
        return list_run_passages(self)

    @property
    def attacks(self) -> pl.DataFrame:
        """Figures of attacks, the best first; see `mia_batch.report.answer`."""
        return list_attacks(self)

    @property
    def shares(self) -> pl.DataFrame:
        """Shares of a corpus of which documents were drawn; see `mia_batch.report.drawn`."""
        return list_shares(load_results(self).findings)

    def table(
        self,
        kind: str = "md",
        *,
        names: Names = "paper",
        blind: Blind = "best",
        figures: Sequence[str] = USUAL_FIGURES,
    ) -> PaperTable:
        """Write the attacks as the table of a paper, which a notebook renders.

        Parameters
        ----------
        kind
            ``md``, ``latex``, ``csv`` or ``html``.
        names
            ``paper`` calls attacks as papers do, with a note of what each is here;
            ``registry`` as ``--attacks`` does. CSV has those of the registry.
        blind
            Which classifiers that see the texts alone have a row: the ``best``, ``all``
            or ``none``.
        figures
            Which stand there: ``auc``, ``tpr_5``, ``tpr_1``, ``tpr_01``, ``fpr_95``. CSV
            has all.

        Returns
        -------
        PaperTable
            The table's text, with a note of seeds, texts and what is missing.
        """
        return PaperTable(build_table([self], kind, names, blind, figures), kind)

    def report(self) -> Path:
        """Return the path of the report, one page of HTML, which is made where it is missing."""
        path = self.folder / REPORT
        if not path.exists():
            check_finished(self)  # only a run's folder is held
            with AuditFolder(self.folder).held():
                write_report(self)
        return path

    def __repr__(self) -> str:
        """Show the folder and the answer, or why there is none yet."""
        try:
            answer = self.answer
        except MiaBatchError as error:
            answer = str(error)
        return f"Run({str(self.folder)!r}): {answer}"

    def _repr_html_(self) -> str:
        """Show the answer in a notebook."""
        return render_for_notebook(self)
