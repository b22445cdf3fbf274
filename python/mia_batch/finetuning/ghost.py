"""Gradients of texts that are cut without being had: ghost clipping.

Norms come first, then the gradient of a weighted sum of losses (Li et al. 2022, arXiv:2110.05679,
section 4; Lee & Kifer 2021, arXiv:2009.03106). The gradient of a text by the weight of a linear
layer is a sum over its tokens of outer products, of the slope l of what comes out with what goes
in, r. The inner product of two such sums is that of all pairs of tokens: (l_t . l_s) (r_t . r_s).
An embedding is a linear layer of one-hot vectors, so that a weight that is tied to both has its
norm from the same sum. Gradients that are smaller than that, and those of other layers, which have
few weights, are had for each text, of one layer at a time.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import nn
from torch.func import functional_call, vjp, vmap
from transformers.pytorch_utils import Conv1D

from mia_batch.finetuning.clipping import losses_of, per_text, shares_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mia_batch.finetuning.clipping import Batch, Gradients
    from mia_batch.finetuning.recipe import Form

__all__ = ["ghost", "why_no_ghost"]

_Use: TypeAlias = tuple[torch.Tensor, torch.Tensor]
_OFF = 1e-3  # of the clip, by which both ways may differ in float32
_TINY = 1e-6  # a clip that cuts any gradient
_MOVED = 0.02  # of weights, since some are 0 before they are trained


class _NoRuleError(RuntimeError):
    """A layer is used in a way whose gradients of texts are not known."""


def why_no_ghost(
    model: Any,  # noqa: ANN401 - models are of many types
    form: Form,
    batch: Batch,
) -> str | None:
    """Say why a model's gradients cannot be had so; None if they come out as text by text.

    Both ways cut the gradients of the batch, without dropout, at weights that are moved a little.
    """
    generator = torch.Generator().manual_seed(0)

    def moved(weight: torch.Tensor) -> torch.Tensor:
        noise = torch.randn(weight.shape, generator=generator)
        return weight.detach() + _MOVED * noise.to(weight)

    weights = {name: moved(each) for name, each in model.named_parameters() if each.requires_grad}
    was_trained = model.training
    model.eval()
    try:
        found, _ = ghost(model, weights, form, batch, _TINY)
    except RuntimeError as error:  # libraries know of no hooks
        return str(error).partition("\n")[0]
    else:
        wanted, _ = per_text(model, weights, form, batch, _TINY)
    finally:
        model.train(was_trained)
    off = torch.stack([(found[name] - each).norm() for name, each in wanted.items()]).norm()
    return None if off <= _OFF * _TINY else "both ways differ"


def ghost(
    model: Any,  # noqa: ANN401
    weights: Gradients,
    form: Form,
    batch: Batch,
    clip: float,
) -> tuple[Gradients, torch.Tensor]:
    """Sum the gradients of texts, each cut, in memory for one of them.

    Raises `_NoRuleError`, a RuntimeError, if a layer is used in a way that is not known.
    """
    weights = {name: each.detach().requires_grad_() for name, each in weights.items()}
    uses = _Uses(weights, batch["labels"].shape[0])
    with uses.seen_in(model):
        loss = losses_of(model, weights, form, batch)
    share = shares_of(uses.norms(loss), clip)
    total = (share * loss).sum()
    found = torch.autograd.grad(total, [*weights.values()], materialize_grads=True)
    return dict(zip(weights, found, strict=True)), loss.detach()


class _Uses:
    """Uses of weights in one forward pass, and what they come to in the norm of each text."""

    def __init__(self, weights: Gradients, n_rows: int) -> None:
        self._names = {id(each): name for name, each in weights.items()}
        self._n_rows = n_rows
        device = next(iter(weights.values())).device
        self._root = torch.zeros((), device=device, requires_grad=True)
        self._squares = torch.zeros(n_rows, device=device)
        self._n_uses: Counter[str] = Counter()
        self._factors: defaultdict[str, list[tuple[torch.Tensor, torch.Tensor]]] = defaultdict(list)
        self._whole: dict[str, torch.Tensor] = {}  # gradients of texts
        self._is_done = False

    @contextmanager
    def seen_in(self, model: nn.Module) -> Iterator[None]:
        """See the uses in layers of a model: modules with weights of their own, and none within."""
        with ExitStack() as hooks:
            for module in model.modules():
                own = module.parameters(recurse=False)
                if any(each.requires_grad for each in own) and not any(module.children()):
                    hooks.enter_context(module.register_forward_pre_hook(self._widen))
                    hooks.enter_context(module.register_forward_hook(self._see))
            yield

    def _widen(self, module: nn.Module, given: Any) -> Any:  # noqa: ANN401 - as torch has it
        """Give each text positions of its own where they share them."""
        if type(module) is nn.Embedding and given and given[0].shape[0] == 1:
            return given[0].expand(self._n_rows, *given[0].shape[1:])
        return None

    def _see(self, module: nn.Module, given: Any, output: Any) -> Any:  # noqa: ANN401
        """Note a use; what comes out leads to the root, and tells its slope on the way there."""
        own: Gradients = {
            part: each
            for part, each in module.named_parameters(recurse=False)
            if id(each) in self._names
        }
        sizes = [each.shape[:1] for each in (*given, output) if isinstance(each, torch.Tensor)]
        if len(given) != 1 or sizes != [(self._n_rows,)] * 2:
            msg = f"a layer of the type {type(module).__name__} has no axis of texts"
            raise _NoRuleError(msg)
        self._n_uses.update(self._names[id(each)] for each in own.values())
        watched = output + self._root
        watched.register_hook(partial(self._take, module, own, given[0].detach()))
        return watched

    def norms(self, loss: torch.Tensor) -> torch.Tensor:
        """Norm of the gradient of each text's loss."""
        torch.autograd.grad(loss.sum(), [self._root], retain_graph=True)
        self._is_done = True
        if mixed := self._factors.keys() & self._whole.keys():
            msg = f"the weight {min(mixed)} is used in layers of several types"
            raise _NoRuleError(msg)
        for name in [*self._factors]:  # one of whose uses has no part in the loss
            self._square(name)
        for each in self._whole.values():
            self._squares += each.flatten(1).square().sum(1)
        return self._squares.clamp(min=0).sqrt()

    def _take(
        self, module: nn.Module, own: Gradients, given: torch.Tensor, slope: torch.Tensor
    ) -> None:
        """Take a use into account."""
        if self._is_done:
            return
        names = {part: self._names[id(each)] for part, each in own.items()}
        if (rule := _FACTORS.get(type(module))) is None:
            whole = _by_text(module, own, given, slope)
        else:
            whole = {"bias": _tokens(slope).sum(1)} if "bias" in own else {}
        for part, each in whole.items():
            self._whole[names[part]] = self._whole.get(names[part], 0) + each
        if rule is not None and (name := names.get("weight")) is not None:
            self._factors[name].append(rule(module, given, slope))
            if len(self._factors[name]) == self._n_uses[name]:
                self._square(name)

    def _square(self, name: str) -> None:
        """Add the squared norm of the gradient by a weight, of all its uses together."""
        uses = self._factors.pop(name)
        if len(uses) == 1 and _is_smaller_whole(*uses[0]):
            left, right = uses[0]
            self._squares += (left.mT @ right).square().sum((1, 2))
            return
        for one, other in product(uses, repeat=2):
            left, right = map(_dots, one, other)
            self._squares += (left * right).sum((1, 2))


def _is_smaller_whole(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether a text's gradient has fewer numbers than pairs of its tokens (Bu et al. 2022)."""
    n_tokens = right.shape[1]
    return left.is_floating_point() and left.shape[2] * right.shape[2] < n_tokens**2


def _linear(_: nn.Module, given: torch.Tensor, slope: torch.Tensor) -> _Use:
    return _tokens(slope), _tokens(given)


def _conv1d(_: nn.Module, given: torch.Tensor, slope: torch.Tensor) -> _Use:
    return _tokens(given), _tokens(slope)


def _embedding(module: Any, given: torch.Tensor, slope: torch.Tensor) -> _Use:  # noqa: ANN401
    if module.padding_idx is not None:
        slope = slope.masked_fill((given == module.padding_idx)[..., None], 0)
    return given.flatten(1), _tokens(slope)


_FACTORS: dict[type, Callable[..., _Use]] = {
    nn.Linear: _linear,
    Conv1D: _conv1d,
    nn.Embedding: _embedding,
}
"""Layers whose weight has as gradient a sum of outer products: factors of its rows and columns."""


def _tokens(values: torch.Tensor) -> torch.Tensor:
    """Vectors of the tokens of each text; shape (texts, tokens, size)."""
    return values.float().reshape(values.shape[0], -1, values.shape[-1])


def _dots(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Multiply vectors of the tokens of two uses, each with each; whole numbers are one-hot."""
    if other.is_floating_point():
        if one.is_floating_point():
            return one @ other.mT
        places = one[:, None].expand(-1, other.shape[1], -1)
        return other.gather(2, places).mT
    if one.is_floating_point():
        return _dots(other, one).mT
    return (one[:, :, None] == other[:, None]).float()


def _by_text(
    module: nn.Module, own: Gradients, given: torch.Tensor, slope: torch.Tensor
) -> Gradients:
    """Differentiate one layer for each text, with the slopes of what comes out."""

    def output(weights: Gradients, row: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = functional_call(module, weights, (row[None],))
        return found

    def one(row: torch.Tensor, direction: torch.Tensor) -> Gradients:
        back: Any = vjp(partial(output, row=row), own)[1]
        found: Gradients = back(direction[None])[0]
        return found

    own = {part: each.detach() for part, each in own.items()}
    by_text: Gradients = vmap(one)(given, slope)
    return by_text
