"""What the demo's corpus and model are made of."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DemoSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSettings:
    """Sizes of the demo; with the same settings a machine makes the same demo.

    The defaults train in under two minutes on two cores, to a memory that is good but not perfect.

    Attributes
    ----------
    seed
        Decides which passages are members, their order, and the model's training. With 256 texts
        one coin in twenty is told apart without the model by chance; the default is a seed, found
        by trying 0 to 8, with which differences above AUC 0.60 are excluded (such a choice is
        called rerandomisation: Morgan and Rubin 2012).
    n_passages
        Passages in the corpus, even; half of them are members.
    per_group
        Most passages of one group (module), even.
    n_words
        Words of a passage.
    vocabulary
        Tokens of the tokenizer, at most; at least the 256 bytes and two special tokens.
    hidden
        Width of the model.
    head
        Width of an attention head; divides the former.
    layers
        Layers of the model.
    context
        Most tokens that the model can read and write.
    epochs
        Times that the model sees each member.
    learning_rate
        Highest step size of AdamW.
    n_shots
        Texts to put before each text: so many members of the corpus, and so many passages more.
    helper_hidden
        Width of the reference model and of the masked one, which have a layer each.
    helper_epochs
        Times that these two see each passage of the corpus.
    """

    seed: int = 8
    n_passages: int = 256
    per_group: int = 8
    n_words: int = 128
    vocabulary: int = 4096
    hidden: int = 128
    head: int = 64
    layers: int = 2
    context: int = 1024
    epochs: int = 12
    learning_rate: float = 2e-3
    n_shots: int = 8
    helper_hidden: int = 64
    helper_epochs: int = 3
