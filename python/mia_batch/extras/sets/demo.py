"""An audit whose truth is known: real texts, half of which a small model is trained on here.

Membership is random within each group, so nothing but the model's memory separates the
classes. The passages are real text that every Python carries: the documentation of the
standard library. Sources are parsed, never imported. The same Python gives the same
passages on every machine.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import platform
import re
import shutil
import sysconfig
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl
from filelock import FileLock, Timeout

from mia_batch.errors import RunFolderError, SettingsError
from mia_batch.models.weights import quiet
from mia_batch.tables import digest, write_text

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from torch import Tensor
    from transformers import LlamaForCausalLM, PreTrainedModel

SHARED_RUN = 13  # no two passages share so many words in a row: members would leak into non-members

_CHARACTERS_PER_WORD = 9  # at most; tables and drawings have more, prose about 6
_NOT_DOCUMENTATION = frozenset(
    {
        "__pycache__",
        "dist-packages",
        "idlelib",
        "lib2to3",
        "site-packages",
        "test",
        "tests",
    }
)
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_PACKAGES = ("tokenizers", "torch", "transformers")
_RECORD = "demo.json"
_LOCK = ".demo.lock"
_STAGING = ".making-"
_MADE_BY = "mia-batch demo"
_COLUMNS = ("document_id", "text", "member", "group")
_RECIPE = 4  # increase it when the same settings come to mean another demo


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSettings:
    """Sizes of the demo; with the same settings a machine makes the same demo."""

    # They train in under two minutes on two cores, to a memory that is good but not
    # perfect. With 256 texts, one seed in twenty separates the classes without the
    # model by chance; this one, found by trying 0 to 8, excludes differences above AUC
    # 0.60 (rerandomisation: Morgan and Rubin 2012).

    seed: int = 8  # of membership, order and training
    n_passages: int = 256  # in the corpus, even; half of them are members
    per_group: int = 8  # most passages of one group (module), even
    n_words: int = 128  # of a passage
    vocabulary: int = 4096  # most tokens; at least the 256 bytes and two special tokens
    hidden: int = 128  # width of the model
    head: int = 64  # width of an attention head; divides both widths
    layers: int = 2
    context: int = 1024  # most tokens that the model can read and write
    epochs: int = 12  # times that the model sees each member
    learning_rate: float = 2e-3  # highest step size of AdamW
    n_shots: int = (
        8  # texts to put before each text: members of the corpus, and so many others
    )
    helper_hidden: int = (
        64  # width of the reference and the masked model, of one layer each
    )
    helper_epochs: int = 3  # times that these two see each passage of the corpus


class DemoFolder(NamedTuple):
    """Where the files of a demo are."""

    corpus: Path  # Parquet: document_id, text, member, group
    nonmember_shots: Path  # texts to put before others: not in the corpus
    member_shots: Path  # the same, from among its members
    model: Path  # checkpoint that was trained on the members
    reference: (
        Path  # checkpoint of a smaller model, trained on members and others alike
    )
    masked: Path  # the same of a model that fills gaps
    config: Path  # settings of the audit

    @classmethod
    def at(cls, folder: Path) -> DemoFolder:
        return cls(
            corpus=folder / "corpus.parquet",
            nonmember_shots=folder / "nonmember-shots.parquet",
            member_shots=folder / "member-shots.parquet",
            model=folder / "model",
            reference=folder / "reference",
            masked=folder / "masked",
            config=folder / "mia-batch.toml",
        )

    def models(self) -> tuple[Path, Path, Path]:
        return self.model, self.reference, self.masked


def read_modules(library: Path | None = None) -> Iterator[tuple[str, str]]:
    """Iterate over name and documentation of the modules of ``library``, None: this Python's."""
    root = Path(sysconfig.get_path("stdlib")) if library is None else library
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = sorted(set(subfolders) - _NOT_DOCUMENTATION)
        for name in sorted(names):
            if not name.endswith(".py"):
                continue
            path = Path(folder, name)
            parts = path.relative_to(root).with_suffix("").parts
            module = ".".join(parts).removesuffix(".__init__")
            text = _read_documentation(path, topics=module == "pydoc_data.topics")
            if text:
                yield module, text


def _read_documentation(path: Path, *, topics: bool) -> str:
    """Read the docstrings of a module, or of ``topics`` the strings of its dictionaries."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in old sources
        try:
            tree = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError):
            return ""
    texts = [*(_find_topics(tree) if topics else _find_docstrings(tree))]
    # Without lone surrogates
    return "\n\n".join(texts).encode(errors="ignore").decode()


def _find_topics(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            for value in node.values:
                text = getattr(value, "value", None)
                if isinstance(text, str):
                    yield text


def _find_docstrings(node: ast.AST) -> Iterator[str]:
    if isinstance(node, _DOCUMENTED):
        docstring = ast.get_docstring(node)
        if docstring:
            yield docstring
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield from _find_docstrings(child)


def cut_passages(text: str, n_words: int) -> Iterator[tuple[int, str]]:
    """Iterate over passages, with their numbers, without tables and drawings."""
    words = list(re.finditer(r"\S+", text))
    for index in range(len(words) // n_words):
        first = words[index * n_words]
        last = words[(index + 1) * n_words - 1]
        passage = text[first.start() : last.end()]
        if len(passage) <= _CHARACTERS_PER_WORD * n_words:
            yield index, passage


@cache
def build_passages(library: Path | None, n_words: int) -> pl.DataFrame:
    """Cut all documentation into passages, none of which shares a long run of words with others."""
    rows: list[tuple[str, str, str]] = []
    seen_runs: set[tuple[str, ...]] = set()
    n_runs = n_words - SHARED_RUN + 1
    for module, text in read_modules(library):
        for index, passage in cut_passages(text, n_words):
            words = passage.split()
            runs = {tuple(words[i : i + SHARED_RUN]) for i in range(n_runs)}
            if seen_runs.isdisjoint(runs):
                seen_runs |= runs
                rows.append((f"{module}-{index:03}", passage, module))
    schema = dict.fromkeys(("document_id", "text", "group"), pl.String)
    return pl.DataFrame(rows, schema, orient="row")


def hash_order(passages: pl.DataFrame, *salt: object) -> pl.DataFrame:
    """Sort by a hash of salt and text: the same on all machines, random to all else."""
    hashes = [
        blake2b(f"{salt} {text}".encode()).hexdigest() for text in passages["text"]
    ]
    hashed = passages.with_columns(hash=pl.Series(hashes, dtype=pl.String))
    return hashed.sort("hash").drop("hash")


def build_corpus(settings: DemoSettings, library: Path | None = None) -> pl.DataFrame:
    """Choose passages of the documentation in ``library``, None: this Python's own.

    An even number of each module, from the largest modules first; half of them are
    members. The order of the rows tells nothing of that.
    """
    passages = build_passages(library, settings.n_words)
    modules = passages.partition_by("group", maintain_order=True)
    documents, members = [], []
    n_missing = settings.n_passages
    for module in sorted(modules, key=len, reverse=True):
        n = min(settings.per_group, n_missing, module.height) // 2 * 2
        module_documents = hash_order(module, "choice").head(n)
        drawn_order = hash_order(module_documents, "member", settings.seed)
        documents.append(module_documents)
        members.append(drawn_order.head(n // 2))
        n_missing -= n
    if n_missing:
        raise SettingsError(
            f"the demo needs {settings.n_passages} passages of documentation, but the"
            f" standard library in {sysconfig.get_path('stdlib')} gives"
            f" {settings.n_passages - n_missing}; use a Python that is installed with its"
            " sources"
        )
    member_ids = pl.concat(members)["document_id"].implode()
    ordered = hash_order(pl.concat(documents), "order", settings.seed)
    is_member = pl.col("document_id").is_in(member_ids)
    return ordered.with_columns(member=is_member).select(_COLUMNS)


def build_shots(
    settings: DemoSettings, corpus: pl.DataFrame, library: Path | None = None
) -> pl.DataFrame:
    """Build non-members to put before other texts, of passages outside the corpus."""
    passages = build_passages(library, settings.n_words)
    outside = passages.join(corpus, on="document_id", how="anti")
    shots = hash_order(outside, "shots", settings.seed).head(settings.n_shots)
    return shots.with_columns(member=pl.lit(False)).select(_COLUMNS)


def read_record(folder: Path) -> dict[str, Any] | None:
    try:
        record = json.loads((folder / _RECORD).read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    if not isinstance(record, dict) or record.get("made_by") != _MADE_BY:
        return None
    return record if {"recipe", "files"} <= record.keys() else None


def _write_record(folder: Path, recipe: str, files: dict[str, str]) -> None:
    record = {
        "recipe": recipe,
        "files": files,
        "python": platform.python_version(),  # whose documentation it is
        "packages": {name: metadata.version(name) for name in _PACKAGES},
        "made_by": _MADE_BY,
    }
    write_text(folder / _RECORD, json.dumps(record, indent=2) + "\n")


def prepare(
    folder: Path,
    *,
    fresh: bool = False,
    notify: Callable[[str], None] | None = None,
    settings: DemoSettings | None = None,
    library: Path | None = None,
) -> DemoFolder:
    """Make corpus, models and settings of the demo, or find those that were made before.

    The folder must be new, empty or an earlier demo's; other files in it stay. The texts
    are the documentation in ``library``, None: this Python's own.
    """
    folder = Path(folder)
    settings = settings or DemoSettings()
    notify = notify or (lambda _line: None)
    try:
        names = {path.name for path in folder.iterdir()} if folder.exists() else set()
        if names and _LOCK not in names and read_record(folder) is None:
            raise SettingsError(
                f"the folder {folder} holds other things than a demo; name a new or an"
                " empty folder"
            )
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / _LOCK)
        try:
            holding = lock.acquire(blocking=False)
        except Timeout:
            notify(f"waiting for another mia-batch demo that works in {folder}")
            holding = lock.acquire()
        with holding:
            if fresh or not _is_complete(folder, settings, notify):
                _make(folder, settings, library, notify)
            elif not DemoFolder.at(folder).config.exists():
                _write_config(folder)
    except OSError as error:
        reason = error.strerror or error
        raise RunFolderError(
            f"the demo's folder {folder} cannot be used: {reason}; name another folder"
        ) from error
    return DemoFolder.at(folder)


def _is_complete(
    folder: Path, settings: DemoSettings, notify: Callable[[str], None]
) -> bool:
    """Check that a demo of these settings is in the folder as it was made."""
    record = read_record(folder)
    if record is None:
        return False
    digests = record["files"]
    is_complete = record["recipe"] == _compute_recipe(settings) and bool(digests)
    for name, expected in digests.items():
        path = folder / name
        is_complete = is_complete and path.is_file() and digest(path) == expected
    state = "unfinished, changed or of another version"
    if is_complete:
        state = "kept from before; --fresh makes them anew"
    notify(f"corpus and model in {folder} are {state}")
    return is_complete


def _compute_recipe(settings: DemoSettings) -> str:
    """Compute a digest of what decides a demo, except Python and the packages."""
    return hashlib.sha256(repr((_RECIPE, settings)).encode()).hexdigest()


def _make(
    folder: Path,
    settings: DemoSettings,
    library: Path | None,
    notify: Callable[[str], None],
) -> None:
    """Make a demo in a locked folder; an earlier one stays until the new one is complete."""
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        raise SettingsError(
            f"the demo needs {', '.join(missing)}; run pip install 'mia-batch[demo]'"
        )
    for leftover in folder.glob(f"{_STAGING}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    staging = Path(tempfile.mkdtemp(prefix=_STAGING, dir=folder))
    new, old = DemoFolder.at(staging), DemoFolder.at(folder)
    try:
        start = time.monotonic()
        corpus = build_corpus(settings, library)
        corpus.write_parquet(new.corpus)
        members = corpus.filter("member")
        members.head(settings.n_shots).write_parquet(new.member_shots)
        build_shots(settings, corpus, library).write_parquet(new.nonmember_shots)
        notify(
            f"cut the documentation of {corpus['group'].n_unique()} standard modules"
            f" into {corpus.height} passages, {corpus['member'].sum()} of them members"
            f" ({time.monotonic() - start:.0f} s)"
        )
        start = time.monotonic()
        make_models(corpus, staging, settings, notify)
        notify(f"made the models ({time.monotonic() - start:.0f} s)")
        # Replaced file by file, so that nothing but the demo's files is lost.
        paths = [new.corpus, new.nonmember_shots, new.member_shots]
        for model in new.models():
            paths += sorted(model.iterdir())
        digests = {path.relative_to(staging).as_posix(): digest(path) for path in paths}
        recipe = _compute_recipe(settings)
        _write_record(folder, recipe, {})
        for model in old.models():
            model.mkdir(exist_ok=True)
        for name in digests:
            (staging / name).replace(folder / name)
        _write_record(folder, recipe, digests)
        _write_config(folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _write_config(folder: Path) -> None:
    record = read_record(folder) or {"files": {}}
    files = json.dumps(record["files"], sort_keys=True)
    short_digest = hashlib.sha256(files.encode()).hexdigest()[:8]
    text = Path(__file__).with_name("demo.toml").read_text("utf-8")
    write_text(DemoFolder.at(folder).config, text.format(digest=short_digest))


# The training of the models; torch is loaded only here.

_BOS, _EOS, _MASK = "<|begin_of_text|>", "<|end_of_text|>", "<|mask|>"
_MASKED_SHARE = 0.15  # Devlin et al. 2019, section 3.1
_REPORTS = 6  # lines about the training, roughly


def make_models(
    corpus: pl.DataFrame,
    folder: Path,
    settings: DemoSettings,
    notify: Callable[[str], None],
) -> None:
    import torch
    from transformers import BertConfig, BertForMaskedLM

    def teach(
        model: PreTrainedModel, texts: pl.DataFrame, epochs: int, noun: str, name: str
    ) -> None:
        rows = [tokenizer.encode(f"{text}{_EOS}").ids for text in texts["text"]]
        n_tokens = sum(map(len, rows))
        n_millions = model.num_parameters() / 1e6
        kind, _, head = type(model).__name__.partition("For")
        notify(
            f"training a {kind} of {n_millions:.1f} million"
            f" parameters on {len(rows)} {noun} ({n_tokens:,} tokens),"
            f" {epochs} times each"
        )
        mask = tokenizer.token_to_id(_MASK) if head == "MaskedLM" else None
        train(model, rows, settings, epochs, mask, notify)
        save(model, tokenizer, folder / name)

    with ExitStack() as restored:
        restored.enter_context(quiet())
        restored.enter_context(warnings.catch_warnings())
        restored.enter_context(torch.random.fork_rng(devices=[]))
        restored.callback(torch.set_num_threads, torch.get_num_threads())
        warnings.simplefilter("ignore")
        tokenizer = train_tokenizer(corpus["text"].sort(), settings.vocabulary)
        notify(
            f"trained a tokenizer of {tokenizer.get_vocab_size():,} tokens on all"
            " passages"
        )
        model = new_model(
            tokenizer, settings, hidden=settings.hidden, layers=settings.layers
        )
        teach(model, corpus.filter("member"), settings.epochs, "members", "model")
        reference = new_model(
            tokenizer, settings, hidden=settings.helper_hidden, layers=1
        )
        teach(reference, corpus, settings.helper_epochs, "passages", "reference")
        tokenizer.add_special_tokens([_MASK])
        torch.manual_seed(settings.seed)
        sizes = _choose_sizes(tokenizer, settings, settings.helper_hidden, 1)
        masked = BertForMaskedLM(BertConfig(**sizes))
        teach(masked, corpus, settings.helper_epochs, "passages", "masked")


def train_tokenizer(texts: Iterable[str], vocabulary: int) -> Tokenizer:
    """Train a byte-level BPE on members and non-members alike, so that it separates nothing."""
    from tokenizers import (
        Tokenizer,
        decoders,
        models,
        pre_tokenizers,
        processors,
        trainers,
    )

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[_BOS, _EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{_BOS} $A", special_tokens=[(_BOS, tokenizer.token_to_id(_BOS))]
    )
    return tokenizer


def new_model(
    tokenizer: Tokenizer, settings: DemoSettings, *, hidden: int, layers: int
) -> LlamaForCausalLM:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(settings.seed)
    return LlamaForCausalLM(
        LlamaConfig(
            **_choose_sizes(tokenizer, settings, hidden, layers),
            tie_word_embeddings=True,
            initializer_range=0.1,  # narrow layers learn slowly from the usual 0.02
            bos_token_id=tokenizer.token_to_id(_BOS),
            eos_token_id=tokenizer.token_to_id(_EOS),
        )
    )


def _choose_sizes(
    tokenizer: Tokenizer, settings: DemoSettings, hidden: int, layers: int
) -> dict[str, Any]:
    return {
        "vocab_size": tokenizer.get_vocab_size(),
        "max_position_embeddings": settings.context,
        "hidden_size": hidden,
        "intermediate_size": 3 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": hidden // settings.head,
    }


def train(
    model: PreTrainedModel,
    rows: list[list[int]],
    settings: DemoSettings,
    epochs: int,
    mask: int | None,
    notify: Callable[[str], None] = lambda _line: None,
) -> None:
    """Take one step per text and epoch, so that the model is the same however long it takes."""
    # Single texts need no padding, and many small steps memorise in fewer epochs. One
    # thread adds up in one order, and other processes cannot slow it down by more than
    # their share.
    import torch
    from torch.nn.utils import clip_grad_norm_

    torch.set_num_threads(1)
    start = time.monotonic()
    optimizer = torch.optim.AdamW(
        model.parameters(), betas=(0.9, 0.99), weight_decay=0.0, fused=True
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer,
        max_lr=settings.learning_rate,
        total_steps=epochs * len(rows),
        pct_start=0.05,
        cycle_momentum=False,
    )
    order_random = Random(settings.seed)
    gap_random = Random(settings.seed)
    epochs_between_reports = -(-epochs // _REPORTS)
    for epoch in range(1, epochs + 1):
        order_random.shuffle(rows)
        loss = 0.0
        for row in rows:
            tokens, labels = row, row
            if mask:
                tokens, labels = _hide_tokens(row, mask, gap_random)
            token_ids, label_ids = torch.tensor([[tokens, labels]]).unbind(1)
            row_loss: Tensor = model(input_ids=token_ids, labels=label_ids).loss
            optimizer.zero_grad()
            row_loss.backward()  # type: ignore[no-untyped-call] # torch gives it no types
            clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            loss += row_loss.item() / len(rows)
        if (epochs - epoch) % epochs_between_reports == 0:
            seconds = time.monotonic() - start
            notify(f"epoch {epoch} of {epochs}: loss {loss:.2f} ({seconds:.0f} s)")


def _hide_tokens(
    row: list[int], mask: int, random: Random
) -> tuple[list[int], list[int]]:
    """Replace some tokens by the mask; return all, and labels of those alone."""
    is_hidden = [random.random() < _MASKED_SHARE for _ in row]
    if not any(is_hidden):
        is_hidden[random.randrange(len(row))] = True
    tokens, labels = [], []
    for token, hidden in zip(row, is_hidden, strict=True):
        tokens.append(mask if hidden else token)
        labels.append(token if hidden else -100)  # which torch does not count
    return tokens, labels


def save(model: PreTrainedModel, tokenizer: Tokenizer, folder: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    model.save_pretrained(folder)
    special = {"bos_token": _BOS, "eos_token": _EOS}
    PreTrainedTokenizerFast(
        **special,
        tokenizer_object=tokenizer,
        mask_token=_MASK if tokenizer.token_to_id(_MASK) else None,
        model_max_length=model.config.max_position_embeddings,
        clean_up_tokenization_spaces=False,
    ).save_pretrained(folder)
