"""A run as its users see it: the answer, the tables, the report."""

from pathlib import Path

import polars as pl

from mia_batch.pipeline.folder import RunFolder
from mia_batch.pipeline.results import (
    REPORT,
    build_answer,
    build_table,
    check_finished,
    list_attacks,
    list_books,
    load_results,
    render_for_notebook,
    write_report,
)
from mia_batch.report.drawn import list_shares


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
        Where everything lies.
    """

    __slots__ = ()

    @property
    def answer(self) -> str:
        """One sentence that answers the question the run was made for.

        Raises `RunFolderError` where the run is not finished, as all that follows.
        """
        return build_answer(self)

    @property
    def books(self) -> pl.DataFrame:
        """What was audited, strongest evidence first; see `mia_batch.report.answer`.

        Empty for texts that belong to no document: each is a row of ``run["scores"]``.
        """
        return list_books(self)

    @property
    def attacks(self) -> pl.DataFrame:
        """Figures of attacks, the best first; see `mia_batch.report.answer`."""
        return list_attacks(self)

    @property
    def shares(self) -> pl.DataFrame:
        """Shares of a corpus of which documents were drawn; see `mia_batch.report.drawn`."""
        return list_shares(load_results(self).findings)

    def table(self, kind: str = "md") -> str:
        """Write the attacks as the table of a paper: ``md``, ``latex``, ``csv`` or ``html``."""
        return build_table([self], kind)

    def report(self) -> Path:
        """Return the path of the report, one page of HTML, which is made where it is missing."""
        path = self.folder / REPORT
        if not path.exists():
            check_finished(self)  # only a run's folder is held
            with self.held():
                write_report(self)
        return path

    def _repr_html_(self) -> str:
        """Show the answer in a notebook."""
        return render_for_notebook(self)
