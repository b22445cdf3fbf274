"""How documents are cut into targets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from mia_batch.errors import SettingsError

if TYPE_CHECKING:
    from mia_batch.kernels import WordRule

__all__ = ["Preset", "TargetPlan"]

Preset = Literal["default", "matched", "samia", "min-k", "spv"]

_COUNTS = ("window_words", "window_characters", "stride", "max_windows_per_document", "text_length")


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetPlan:
    """How documents are cut into targets.

    Attributes
    ----------
    prefix_ratio
        Share of the words that the prefix gets, between 0 and 1: ``int(n_words * prefix_ratio)``.
    words
        What a word is: a word rule of `mia_batch.kernels`. The preset ``samia`` counts and cuts
        by ``whitespace`` whatever stands here.
    window_words
        Words of a window; None = the whole document is one target.
    window_characters
        The same in characters: as many whole words as it has room for.
    stride
        Words or characters from the start of a window to the start of the next; None = a window's.
    max_windows_per_document
        Most windows of a document that are targets: an evenly spread choice, which a larger number
        adds to; None = all.
    seed
        Decides the choice, together with the document and nothing else.
    preset
        ``default`` cuts so that prefix and reference join to the target; ``samia`` cuts as the
        authors' code does.
    text_length
        Nominal number of words of a text, for ``samia`` only; None = each text's own.

    Raises
    ------
    SettingsError
        If a value is out of range or two contradict each other.
    """

    prefix_ratio: float = 0.5
    words: WordRule = "whitespace"
    window_words: int | None = None
    window_characters: int | None = None
    stride: int | None = None
    max_windows_per_document: int | None = None
    seed: int = 0
    preset: Preset = "default"
    text_length: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.prefix_ratio < 1:
            msg = f"prefix_ratio is {self.prefix_ratio}; it must lie between 0 and 1"
            raise SettingsError(msg)
        for name in _COUNTS:
            value = getattr(self, name)
            if value is not None and value < 1:
                msg = f"{name} is {value}; it must be at least 1"
                raise SettingsError(msg)
        for name in ("stride", "max_windows_per_document"):
            value = getattr(self, name)
            if value is not None and self.window is None:
                msg = f"{name} is {value} without window_words; set window_words too"
                raise SettingsError(msg)
        self._check_window()
        self._check_text_length()

    @property
    def window(self) -> int | None:
        """Words or characters of a window."""
        return self.window_characters if self.window_words is None else self.window_words

    def _check_window(self) -> None:
        if self.window_words is None:
            return
        if self.window_characters is not None:
            msg = (
                f"window_words is {self.window_words} and window_characters is "
                f"{self.window_characters}; leave out one of them"
            )
            raise SettingsError(msg)
        if not 0 < int(self.window_words * self.prefix_ratio) < self.window_words:
            msg = (
                f"window_words is {self.window_words}, too few to split with prefix_ratio "
                f"{self.prefix_ratio}; make windows longer"
            )
            raise SettingsError(msg)

    def _check_text_length(self) -> None:
        if self.text_length is None:
            return
        if self.preset != "samia":
            msg = f"text_length is {self.text_length} without preset samia; leave it out"
            raise SettingsError(msg)
        if self.window_words not in (None, self.text_length):
            msg = (
                f"text_length is {self.text_length} but window_words is {self.window_words}; "
                "make them equal"
            )
            raise SettingsError(msg)
        if self.window_characters is not None:
            msg = "text_length is in words; set window_words instead of window_characters"
            raise SettingsError(msg)
