from __future__ import annotations

import copy
import gc
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from allrounder.inference import fold as folding
from allrounder.inference.attack_view import attack_view
from allrounder.inference.fold import Folded, folded_copy
from allrounder.rng import Rng

RNG = Rng(2).fold_in("folding")
SHAPE = (3, 8, 8)


def images(count=4, dtype=torch.float32):
    return RNG.fold_in("x").uniform(torch.empty(count, *SHAPE, dtype=dtype))


def worn(model):
    """The same network with other weights and statistics than those of its first day."""
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if tensor.is_floating_point():
                tensor.add_(RNG.fold_in(name).uniform(tensor) / 2)
    return model


def answers(network, dtype=torch.float32):
    x = images(dtype=dtype).requires_grad_()
    logits = network(x)
    return logits.detach(), *torch.autograd.grad(logits.pow(2).sum(), x)


def assert_agrees(model, folded):
    assert folded is not None
    for one, two in zip(answers(copy.deepcopy(model).eval()), answers(folded), strict=True):
        assert (one - two).abs().max() <= 1e-4 * one.abs().max()


class Net(nn.Module):
    """Convolution, batch-norm, ReLU, linear; the subclasses below each change one thing."""

    def __init__(self, conv=None, norm=None):
        super().__init__()
        self.conv = conv or nn.Conv2d(3, 6, 3, padding=1, bias=False)
        self.norm = norm or nn.BatchNorm2d(6)
        self.linear = nn.Linear(6, 4)

    def features(self, x):
        return F.relu(self.norm(self.conv(x)))

    def forward(self, x):
        return self.linear(self.features(x).mean((2, 3)))


class NormFirst(Net):
    def __init__(self):
        super().__init__(norm=nn.BatchNorm2d(3))

    def features(self, x):
        return self.conv(self.norm(x))


class TwoUsers(Net):
    def features(self, x):
        out = self.conv(x)
        return F.relu(self.norm(out)) + out


class CalledTwice(Net):
    def __init__(self):
        super().__init__(nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3))
        self.linear = nn.Linear(3, 4)

    def features(self, x):
        return self.norm(self.conv(F.relu(self.conv(x))))


class SharedNorm(Net):
    def __init__(self):
        super().__init__()
        self.second = nn.Conv2d(6, 6, 1)

    def features(self, x):
        return self.norm(self.second(F.relu(self.norm(self.conv(x)))))


class TiedWeights(SharedNorm):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(6, 6, 1)
        self.conv.weight = self.second.weight

    def features(self, x):
        return self.second(F.relu(self.norm(self.conv(torch.cat([x, x], 1)))))


class LinearNorm(Net):
    def __init__(self):
        super().__init__()
        self.hidden, self.norm1 = nn.Linear(6 * 64, 6), nn.BatchNorm1d(6)

    def forward(self, x):
        out = self.features(x)
        return self.linear(F.relu(self.norm1(self.hidden(out.view(out.size(0), -1)))))


class Dropping(Net):
    def __init__(self):
        super().__init__()
        self.dropout = nn.Dropout2d(0.5)

    def features(self, x):
        return F.dropout(self.dropout(super().features(x)), 0.5, self.training)


class MoreArguments(Net):
    def forward(self, x, feature=False, *rest):
        out = self.features(x)
        return out if feature else self.linear(out.mean((2, 3)))


class BufferArithmetic(Net):
    shift: torch.Tensor

    def __init__(self):
        super().__init__()
        self.register_buffer("shift", torch.tensor([0.1, 0.2, 0.3]), persistent=False)

    def features(self, x):
        return super().features(x - (2 * self.shift)[None, :, None, None])


class PlainTensor(Net):
    def __init__(self):
        super().__init__()
        self.shift = torch.tensor(0.25)

    def features(self, x):
        return super().features(x - self.shift)


def groups():
    return Net(nn.Conv2d(3, 6, 3, groups=3, padding_mode="reflect", padding=1))


FOLDED = {
    "plain": (Net, 1),
    "bias": (lambda: Net(nn.Conv2d(3, 6, 3, stride=2, bias=True)), 1),
    "groups": (groups, 1),
    "no affine": (lambda: Net(norm=nn.BatchNorm2d(6, affine=False, eps=0.1)), 1),
    "norm first": (NormFirst, 0),
    "two users": (TwoUsers, 0),
    "called twice": (CalledTwice, 0),
    "shared norm": (SharedNorm, 2),
    "tied weights": (TiedWeights, 1),
    "linear": (LinearNorm, 2),
    "dropout": (Dropping, 1),
    "more arguments": (MoreArguments, 1),
    "buffer arithmetic": (BufferArithmetic, 1),
    "plain tensor": (PlainTensor, 1),
    "no norm at all": (lambda: Net(norm=nn.GroupNorm(2, 6)), 0),
}


@pytest.mark.parametrize("name", FOLDED)
def test_the_copy_agrees_before_and_after_its_numbers_are_refreshed(name):
    make, num_pairs = FOLDED[name]
    model = make()
    folded = folded_copy(model, images(1))
    assert folded is not None
    assert len(folded.pairs) == num_pairs
    assert_agrees(model, folded)
    assert_agrees(worn(model), folded_copy(model, images(1)))
    assert folding.CACHED_FOLDS[model].traces == 1


def test_a_double_network_is_folded_to_double_precision():
    model = worn(Net().double()).eval()
    folded = folded_copy(model, images(dtype=torch.float64))
    assert folded is not None
    for one, two in zip(answers(model, torch.float64), answers(folded, torch.float64), strict=True):
        assert (one - two).abs().max() <= 1e-12 * one.abs().max()


def test_the_model_is_not_touched():
    model = worn(Dropping())
    model.norm.eval()
    model.linear.weight.requires_grad_(False)
    model(images()).sum().backward()
    before = {name: (t.clone(), t.requires_grad, t.grad) for name, t in model.named_parameters()}
    buffers = {name: t.clone() for name, t in model.named_buffers()}
    modes, state = [m.training for m in model.modules()], torch.get_rng_state()
    for _ in range(2):
        folded = folded_copy(model, images(1))
        assert folded is not None
        answers(folded)
    assert torch.equal(state, torch.get_rng_state())
    assert modes == [m.training for m in model.modules()]
    for name, parameter in model.named_parameters():
        value, flag, gradient = before[name]
        assert (
            torch.equal(parameter, value) and parameter.requires_grad == flag and parameter.grad is gradient
        )
    assert all(torch.equal(t, buffers[name]) for name, t in model.named_buffers())


def test_the_copy_has_no_parameter_gradients_and_shares_no_memory():
    model = Net()
    folded = folded_copy(model, images(1))
    assert folded is not None
    logits = folded(images())
    assert not logits.requires_grad
    assert not any(p.requires_grad for p in folded.network.parameters())
    answers(folded)
    assert all(p.grad is None for p in folded.network.parameters())
    ours = {t.data_ptr() for t in [*folded.network.parameters(), *folded.network.buffers()]}
    assert not ours & {t.data_ptr() for t in [*model.parameters(), *model.buffers()]}


def test_the_copy_works_in_channels_last_and_the_gradient_comes_back_as_the_images_were():
    folded = folded_copy(Net(), images(1))
    assert folded is not None
    weight = folded.network.get_parameter("conv.weight")
    assert weight.is_contiguous(memory_format=torch.channels_last)
    for layout in (torch.contiguous_format, torch.channels_last):
        x = images().contiguous(memory_format=layout).requires_grad_()
        (gradient,) = torch.autograd.grad(folded(x).sum(), x)
        assert gradient.is_contiguous(memory_format=layout)


def test_a_model_and_its_copy_are_freed_together():
    model = Net()
    folded_copy(model, images(1))
    gone = weakref.ref(model), weakref.ref(folding.CACHED_FOLDS[model].folded)
    count = len(folding.CACHED_FOLDS)
    del model
    gc.collect()
    assert [reference() for reference in gone] == [None, None]
    assert len(folding.CACHED_FOLDS) < count


def test_equal_models_have_separate_copies_with_equal_logits():
    model = worn(Net())
    other = copy.deepcopy(model)
    one, two = folded_copy(model, images(1)), folded_copy(other, images(1))
    assert one is not None and two is not None and one is not two
    assert all(torch.equal(p, q) for p, q in zip(answers(one), answers(two), strict=True))


def test_a_replaced_layer_is_noticed():
    model = Net()
    assert_agrees(model, folded_copy(model, images(1)))
    model.linear = nn.Linear(6, 9)
    assert_agrees(model, folded_copy(model, images(1)))
    model.norm = nn.BatchNorm2d(6, affine=False)
    assert_agrees(worn(model), folded_copy(model, images(1)))
    assert folding.CACHED_FOLDS[model].traces == 3


class Switching(Net):
    """Two batch-norms, chosen by an attribute."""

    def __init__(self):
        super().__init__()
        self.other, self.which = nn.BatchNorm2d(6), "norm"

    def features(self, x):
        return F.relu((self.norm if self.which == "norm" else self.other)(self.conv(x)))


def test_a_changed_setting_is_noticed():
    model = worn(Switching())
    for which in ("norm", "other", "norm"):
        model.which = which
        assert_agrees(model, folded_copy(model, images(1)))


def test_a_copy_made_in_inference_mode_can_be_refreshed_and_differentiated_later():
    model = Net()
    with torch.inference_mode():
        folded_copy(model, images(1))
    assert_agrees(worn(model), folded_copy(model, images(1)))


class Merging(Net):
    """A layer that adds a low-rank change to its weights in evaluation mode, as merged LoRA layers do."""

    def __init__(self) -> None:
        super().__init__()
        self.change = nn.Parameter(torch.randn_like(self.conv.weight))
        self.merged = False

    def train(self, mode: bool = True):
        with torch.no_grad():
            if self.merged == mode:
                self.conv.weight.add_(self.change, alpha=-1 if mode else 1)
                self.merged = not mode
        return super().train(mode)


def test_attacks_see_the_weights_of_evaluation_mode():
    model = Merging().train()
    expected = copy.deepcopy(model).eval()(images())
    with attack_view(model, images(), "eval") as view:
        assert isinstance(view, Folded)
        torch.testing.assert_close(view(images()), expected, rtol=1e-4, atol=1e-4)
    assert model.training


def test_a_shared_layer_that_gets_a_copy_of_its_own_is_noticed():
    shared = nn.Conv2d(3, 3, 3, padding=1)
    model = nn.Sequential(shared, nn.ReLU(), shared, nn.Flatten()).eval()
    assert_agrees(model, folded_copy(model, images()))
    model[2] = nn.Conv2d(3, 3, 3, padding=1)
    assert_agrees(model, folded_copy(model, images()))
