"""A folded copy that is compiled, for attacks of training steps; what does not agree with it is not used.

A compiled copy is made for one shape of images and reads its numbers where the folded copy keeps them, so
refreshing the one refreshes the other. Whether there is one depends on the network and on that shape alone,
never on numbers that were trained or on what was crafted before: a training that goes on after a stop would
otherwise craft other images than one that was not stopped.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Generator, Iterator
from contextlib import contextmanager, nullcontext
from typing import TypeAlias, cast, final
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from allrounder.inference.fold import Folded, shake_
from allrounder.rng import Draws
from allrounder.types import Classifier, Images, Logits

LOG = logging.getLogger("allrounder")
DRAWS = Draws(0).at("compiling")
TINY = 1e-30
TOLERANCES, HALF = (1e-3, 2e-2), (5e-2, 2e-1)
"""How far logits and input gradients may differ, by their lengths: in float32, and in half precision, where a
compiler leaves out roundings between operations. A ReLU that rounding turns on changes the gradient more."""
ADVICE = "Set TORCHDYNAMO"
"""Where the messages of torch's compiler go on to how to look into it."""
Form: TypeAlias = tuple[torch.Size, torch.dtype, torch.device, torch.dtype | None]


@final
class Disagrees(Exception):
    """How far a compiled copy is from the folded one."""


@final
class Compiled:
    """A folded copy that passes images through its compiled form where a gradient is wanted of them."""

    def __init__(self, folded: Folded, network: Classifier, shape: torch.Size):
        self.folded, self.network, self.shape = folded, network, shape

    def __call__(self, x: Images) -> Logits:
        """Images to logits. Other shapes, and passes without a gradient, would have to be compiled anew."""
        wanted = x.shape == self.shape and x.requires_grad and torch.is_grad_enabled()
        return self.folded.through(self.network, x) if wanted else self.folded(x)


KNOWN: WeakKeyDictionary[Folded, dict[Form, Classifier | None]] = WeakKeyDictionary()
"""The compiled forms of every folded copy; None where it has to do without."""


def compiled(folded: Folded, like: Images, dtype: torch.dtype | None = None) -> Compiled | Folded:
    """The folded copy with a compiled form for images of this shape, under autocast to `dtype` if any.

    Compiling happens once and takes many seconds. A copy that cannot be compiled, or that disagrees then, is
    used as it is, and the log says why.
    """
    form, known = (like.shape, like.dtype, like.device, dtype), KNOWN.setdefault(folded, {})
    if form not in known:
        known[form] = _form(folded, like, dtype)
    network = known[form]
    return folded if network is None else Compiled(folded, network, like.shape)


def _form(folded: Folded, like: Images, dtype: torch.dtype | None) -> Classifier | None:
    try:
        with warnings.catch_warnings(), torch.inference_mode(False), DRAWS.ambient():
            # Torch warns of its own use of itself while it loads its compiler.
            warnings.filterwarnings("ignore", module=r"torch\.")
            network = cast(Classifier, torch.compile(folded.network, dynamic=False, fullgraph=True))
            _check_agreement(folded, network, like, dtype)
    except Exception as error:  # A compiler has many ways to fail, and few of them are worth a training.
        # But a full disk passes, and after a resume the same training would craft other images.
        if any(isinstance(cause, OSError | MemoryError) for cause in _causes(error)):
            raise
        said = " ".join(f"{type(error).__name__}: {error}".split(ADVICE)[0].split())[:300]
        LOG.info("attacks on %s use the folded copy, not a compiled one: %s", tuple(like.shape), said)
        return None
    return network


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _check_agreement(folded: Folded, network: Classifier, like: Images, dtype: torch.dtype | None) -> None:
    x = DRAWS.at("x").uniform(like)
    with _other_numbers(folded.network):
        answers = [_answer(folded, form, x, dtype) for form in (folded.network, network)]
    tolerances = TOLERANCES if dtype is None else HALF
    for what, one, other, most in zip(("logits", "input gradients"), *answers, tolerances, strict=True):
        gap = math.sqrt(float((one - other).square().sum()) / max(float(one.square().sum()), TINY))
        if not gap <= most:
            raise Disagrees(f"its {what} differ by {gap:.1e} relatively, expected {most:.0e} at most")


def _answer(folded: Folded, form: Classifier, x: Images, dtype: torch.dtype | None) -> tuple[Tensor, Tensor]:
    """Logits and a gradient, asked for as an attack does."""
    asked = x.clone().requires_grad_()
    with torch.enable_grad():
        with nullcontext() if dtype is None else torch.autocast(x.device.type, dtype=dtype):
            logits = folded.through(form, asked)
        (slope,) = torch.autograd.grad(logits.float().square().sum(), asked)
    return logits.detach().float(), slope


@contextmanager
def _other_numbers(network: nn.Module) -> Generator[None]:
    """Lend a network numbers that are the same whenever it is asked; its own are back after."""
    tensors = [*network.parameters(), *network.buffers()]
    kept = [tensor.clone() for tensor in tensors]
    with torch.no_grad():
        try:
            for name, tensor in network.named_parameters():
                inputs = tensor[0].numel() if tensor.dim() > 1 else 32
                tensor.copy_(DRAWS.at(name).normal(tensor) * math.sqrt(2 / inputs))
            shake_(network)
            yield
        finally:
            for tensor, own in zip(tensors, kept, strict=True):
                tensor.copy_(own)
