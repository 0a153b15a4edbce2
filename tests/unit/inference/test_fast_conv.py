from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from allrounder.inference.fast_conv import StemConv, stem_input_grad, with_fast_convs
from allrounder.inference.fold import folded_copy
from allrounder.inference.winograd_layer import WinogradConv
from allrounder.models.base import Architecture
from allrounder.models.resnet import ResNet18
from allrounder.models.small_cnn import SmallCnn
from allrounder.rng import Rng


def network() -> nn.Module:
    """A block of 128 channels and one of fewer, with batch-norm that matters."""
    with Rng(0).seed_global():
        layers = nn.Sequential(
            *(nn.Conv2d(3, 128, 3, padding=1), nn.ReLU(), nn.Conv2d(128, 128, 3, padding=1, bias=False)),
            *(nn.BatchNorm2d(128), nn.ReLU(), nn.Conv2d(128, 8, 3), nn.Flatten(), nn.Linear(8 * 36, 5)),
        )
        bn = layers[3]
        assert isinstance(bn, nn.BatchNorm2d)
        for tensor in (bn.running_mean, bn.running_var, bn.weight, bn.bias):
            assert tensor is not None
            tensor.data.uniform_(0.5, 1.5)
    return layers.eval().requires_grad_(False)


@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-4), (torch.float64, 1e-11)])
def test_the_copy_with_fast_layers_gives_the_same_logits(dtype: torch.dtype, close: float):
    model, x = network().to(dtype), Rng(0).uniform(torch.empty(4, 3, 8, 8, dtype=dtype))
    folded = folded_copy(model, x)
    assert folded is not None
    before = folded(x)
    quick = with_fast_convs(folded, x)
    kinds = [type(layer) for layer in quick.network.modules()]
    assert (kinds.count(WinogradConv), kinds.count(StemConv)) == (1, 1)
    assert not {WinogradConv, StemConv} & set(map(type, folded.network.modules()))
    torch.testing.assert_close(quick(x), model(x), rtol=close, atol=close)
    assert torch.equal(folded(x), before)


def test_without_such_layers_or_agreement_nothing_changes(monkeypatch: pytest.MonkeyPatch):
    x = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    more = torch.rand(2, 4, 8, 8, generator=torch.Generator().manual_seed(0))
    small = folded_copy(nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.Flatten()), more)
    assert small is not None and with_fast_convs(small, more) is small
    folded = folded_copy(network(), x)
    assert folded is not None
    convolve = WinogradConv.convolve
    monkeypatch.setattr(WinogradConv, "convolve", lambda layer, x: 1.1 * convolve(layer, x))
    assert with_fast_convs(folded, x) is folded
    monkeypatch.undo()
    assert with_fast_convs(folded, x) is not folded
    monkeypatch.setattr(
        "allrounder.inference.fast_conv.stem_input_grad",
        lambda g, layer, size: 1.1 * stem_input_grad(g, layer, size),
    )
    assert with_fast_convs(folded, x) is folded


@pytest.mark.parametrize(
    ("spec", "shape", "kinds"),
    [(ResNet18(width=32), (3, 32, 32), {WinogradConv, StemConv}), (SmallCnn(), (1, 28, 28), {StemConv})],
)
def test_an_image_does_not_depend_on_its_position_or_the_other_images(
    spec: Architecture, shape: tuple[int, int, int], kinds: set[type[nn.Module]]
):
    x = torch.rand(16, *shape, generator=torch.Generator().manual_seed(0))
    with Rng(0).seed_global():
        folded = folded_copy(spec.build(10, shape), x)
    assert folded is not None
    quick = with_fast_convs(folded, x)
    assert kinds <= set(map(type, quick.network.modules()))

    def answers(x: Tensor) -> tuple[Tensor, Tensor]:
        asked = x.clone().requires_grad_()
        logits = quick(asked)
        return logits.detach(), torch.autograd.grad(logits[:, 0].sum(), asked)[0]

    whole = answers(x)
    for seed in range(3):
        order = Rng(seed).permutation(16)
        others = torch.where(torch.arange(16)[:, None, None, None] % 2 == 0, x[order], 1 - x[order])
        for shown, rows in ((x[order], torch.arange(16)), (others, torch.arange(0, 16, 2))):
            for one, other in zip(whole, answers(shown), strict=True):
                assert torch.equal(other[rows], one[order][rows])
