from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from allrounder.errors import RecipeError
from allrounder.models import MODELS, CustomModel
from allrounder.models.base import Architecture
from allrounder.models.layers import MIN_STRIDED_CHANNELS, AdaptiveAvgPool, Normalise, StridedConv1x1, conv
from allrounder.models.resnet import PreActResNet18, ResNet18, ResNet34
from allrounder.models.resnet_imagenet import ResNet50, WideResNet50
from allrounder.models.small_cnn import SmallCnn
from allrounder.models.wide_resnet import WideResNet
from allrounder.rng import Rng

CIFAR = (3, 32, 32)
IMAGENET = (3, 224, 224)
RNG = Rng(1).fold_in("models")


def built(spec, classes=10, shape=CIFAR) -> Any:
    with RNG.seed_global():
        return spec.build(classes, shape)


def num_weights(spec, classes=10, shape=CIFAR):
    with torch.device("meta"):
        return sum(p.numel() for p in spec.build(classes, shape).parameters())


def images(count=2, shape=CIFAR):
    return RNG.fold_in("x").uniform(torch.empty(count, *shape))


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("classes", [1, 2, 13])
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 33, 20), (5, 64, 64)])
@pytest.mark.parametrize("spec", [SmallCnn, ResNet18, PreActResNet18, ResNet50])
def test_any_width_classes_channels_and_size_are_supported(spec, shape, classes, width):
    assert built(spec(width=width), classes, shape).eval()(images(1, shape)).shape == (1, classes)


@pytest.mark.parametrize(
    ("spec", "classes", "shape", "count"),
    [
        (ResNet18(), 10, CIFAR, 11_173_962),
        (ResNet18(), 100, CIFAR, 11_220_132),
        (ResNet34(), 10, CIFAR, 21_282_122),
        (PreActResNet18(), 10, CIFAR, 11_172_170),
        (PreActResNet18(final_norm=False), 10, CIFAR, 11_171_146),
        (WideResNet(depth=28), 10, CIFAR, 36_479_194),
        (WideResNet(), 10, CIFAR, 46_160_474),
        (ResNet50(), 1000, IMAGENET, 25_557_032),
        (WideResNet50(), 1000, IMAGENET, 68_883_240),
    ],
)
def test_the_number_of_weights_is_the_published_one(spec, classes, shape, count):
    assert num_weights(spec, classes, shape) == count


@pytest.mark.parametrize(
    ("spec", "some"),
    [
        (ResNet18, ["conv1.weight", "bn1.running_mean", "layer2.0.shortcut.1.bias", "layer4.1.conv2.weight"]),
        (
            PreActResNet18,
            ["conv1.weight", "layer2.0.shortcut.0.weight", "layer1.1.bn2.weight", "linear.bias"],
        ),
        (
            WideResNet,
            ["block1.layer.0.convShortcut.weight", "block3.layer.4.bn2.bias", "bn1.weight", "fc.bias"],
        ),
        (ResNet50, ["conv1.weight", "layer1.0.downsample.0.weight", "layer4.2.bn3.running_var", "fc.weight"]),
    ],
)
def test_parameters_have_their_public_names_whether_normalised_or_not(spec, some):
    with torch.device("meta"):
        plain, normalised = (spec(mean=m, std=m).build(10, CIFAR).state_dict() for m in ((), (0.5, 0.5, 0.5)))
    assert set(some) <= set(plain)
    assert list(plain) == list(normalised)


def test_small_images_are_averaged_as_in_the_public_code():
    model = built(ResNet18(width=4)).eval()
    x = images()
    stem = F.relu(model.bn1(model.conv1(x)))
    features = model.layer4(model.layer3(model.layer2(model.layer1(stem))))
    assert features.shape[2:] == (4, 4)
    expected = model.linear(F.avg_pool2d(features, 4).flatten(1))
    assert torch.allclose(model(x), expected, atol=1e-6)


def test_the_papers_wrn_32_10_is_the_usual_wrn_34_10():
    papers = WideResNet(depth=32, counting="papers")
    assert papers.num_blocks() == WideResNet(depth=34).num_blocks() == 5
    assert num_weights(papers) == num_weights(WideResNet(depth=34))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"depth": 32}, r"depth 32 gives \(depth - 4\) / 6 = 4.67 blocks .*use 28 or 34"),
        ({"depth": 34, "counting": "papers"}, r"\(depth - 2\) / 6 = 5.33 blocks .*use 32 or 38"),
        ({"depth": 4}, "use 10"),
        ({"depth": 1}, "use 10"),
    ],
)
def test_a_depth_without_a_whole_number_of_blocks_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        WideResNet(**fields)


def test_wide_convolutions_start_normal_and_the_linear_bias_at_zero():
    model = built(WideResNet(depth=10, widen=4))
    weight = model.block3.layer[0].conv2.weight
    assert weight.std().item() == pytest.approx(math.sqrt(2 / (9 * 256)), rel=0.01)
    assert not model.fc.bias.any()
    assert model.fc.weight.abs().max() <= 1 / math.sqrt(256)
    assert all(
        (m.weight == 1).all() and not m.bias.any() for m in model.modules() if isinstance(m, nn.BatchNorm2d)
    )


@pytest.mark.parametrize("spec", [SmallCnn, ResNet18, PreActResNet18])
def test_small_networks_start_uniform_as_torch_does(spec):
    for module in built(spec(width=16)).modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            bound = 1 / math.sqrt(module.weight[0].numel())
            assert 0.9 * bound < module.weight.abs().max() <= bound
            assert module.bias is None or 0 < module.bias.abs().max() <= bound


def test_dropout_acts_in_training_only():
    model = built(WideResNet(depth=10, widen=1, dropout=0.5))
    x = images()
    with RNG.seed_global():
        assert not torch.equal(model(x), model(x))
    model.eval()
    assert torch.equal(model(x), model(x))


def test_the_last_batch_norm_and_the_activation_of_preact_blocks_are_fields():
    specs = [
        PreActResNet18(width=4, final_norm=f, activation=a)
        for f in (True, False)
        for a in ("relu", "softplus")
    ]
    logits = [built(spec).eval()(images()) for spec in specs]
    assert all(not torch.equal(p, q) for i, p in enumerate(logits) for q in logits[:i])


def test_shortcuts_of_preact_blocks_may_start_before_the_batch_norm():
    both = [built(PreActResNet18(width=4, raw_shortcut=raw)).eval() for raw in (False, True)]
    assert list(both[0].state_dict()) == list(both[1].state_dict())
    block = both[1].layer2[0]
    x = RNG.normal(torch.empty(2, 4, 8, 8))
    inner = F.relu(block.bn2(block.conv1(F.relu(block.bn1(x)))))
    assert torch.allclose(block(x), block.conv2(inner) + block.shortcut(x), atol=1e-6)
    assert not torch.allclose(block(x), both[0].layer2[0](x), atol=1e-3)


@pytest.mark.parametrize("spec", [ResNet18(width=4), PreActResNet18(width=3), WideResNet(depth=10, widen=1)])
def test_narrow_networks_use_strided_conv_1x1(spec: Architecture):
    layers = [layer for layer in built(spec).modules() if isinstance(layer, nn.Conv2d)]
    strided = [layer for layer in layers if layer.kernel_size == (1, 1) and layer.stride != (1, 1)]
    assert strided and all(
        type(layer) is StridedConv1x1 or layer.in_channels >= MIN_STRIDED_CHANNELS for layer in strided
    )


def test_skipping_pixels_is_the_strided_convolution():
    thin, x = conv(4, 8, 1, 2), RNG.normal(torch.empty(2, 4, 7, 6))
    assert (
        type(thin) is StridedConv1x1 and type(conv(8, 8, 1, 2)) is nn.Conv2d and type(conv(4, 8)) is nn.Conv2d
    )
    assert torch.allclose(thin(x), F.conv2d(x, thin.weight, stride=2), atol=1e-6)


def test_the_documented_macs_of_the_small_network_are_right():
    macs = 0

    def count(module, inputs, output):
        nonlocal macs
        macs += module.weight[0].numel() * output[0].numel()

    model = built(SmallCnn(), 10, (1, 28, 28)).eval()
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.register_forward_hook(count)
    model(images(1, (1, 28, 28)))
    assert f"{macs / 1e6:.2f} million MACs" in (SmallCnn.__doc__ or "")


def test_normalisation_subtracts_and_divides_inside_the_network():
    mean, std = (0.4, 0.5, 0.6), (0.1, 0.2, 0.4)
    plain, normalised = built(SmallCnn(width=4)), built(SmallCnn(width=4, mean=mean, std=std))
    x = images()
    by_hand = torch.stack([(x[:, c] - mean[c]) / std[c] for c in range(3)], dim=1)
    assert torch.allclose(normalised(x), plain(by_hand), atol=1e-5)
    assert torch.allclose(Normalise(mean, std)(x), by_hand)


def test_half_a_normalisation_is_allowed():
    x = images()
    centred = built(SmallCnn(width=4, mean=(0.5, 0.5, 0.5)))
    assert torch.allclose(centred(x), built(SmallCnn(width=4))(x - 0.5), atol=1e-6)


@pytest.mark.parametrize("field", ["mean", "std"])
def test_a_normalisation_of_other_channels_is_refused(field):
    with pytest.raises(ValueError, match=f"model.{field}: has 3 numbers, but the images have 1 channels"):
        replace(SmallCnn(), **{field: (0.5, 0.5, 0.5)}).build(10, (1, 28, 28))


def test_a_zero_deviation_is_refused():
    with pytest.raises(ValueError, match="greater than 0"):
        SmallCnn(std=(0.0,))


@pytest.mark.parametrize(("classes", "shape"), [(0, CIFAR), (10, (3, 0, 32))])
def test_no_classes_and_empty_images_are_refused(classes, shape):
    with pytest.raises(ValueError, match="or more"):
        ResNet18().build(classes, shape)


def test_a_network_given_from_python_must_be_given_again():
    assert MODELS["python"] is CustomModel
    with pytest.raises(RecipeError, match=r'given from Python as "lab.net".*pass it again: load'):
        CustomModel(name="lab.net").build(10, CIFAR)


@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize("size", [(4, 4), (6, 9), (7, 7), (1, 1)])
def test_averages_and_their_gradients_are_those_of_torch_to_the_bit(
    layout: torch.memory_format, size: tuple[int, int]
):
    x = Rng(0).normal(torch.empty(3, 5, *size)).contiguous(memory_format=layout)
    direction = Rng(1).normal(torch.empty(3, 20))
    result: list[tuple[Tensor, Tensor]] = []
    for average in (partial(F.adaptive_avg_pool2d, output_size=2), AdaptiveAvgPool(2)):
        asked = x.clone(memory_format=torch.preserve_format).requires_grad_()
        y = average(asked)
        (slope,) = torch.autograd.grad((y.flatten(1) * direction).sum(), asked)
        result.append((y.detach(), slope))
    assert all(map(torch.equal, *result))
    assert result[0][1].stride() == result[1][1].stride()


def test_averages_can_be_differentiated_twice_and_mapped():
    x = Rng(0).normal(torch.empty(2, 3, 4, 4, dtype=torch.float64)).requires_grad_()
    assert torch.autograd.gradgradcheck(AdaptiveAvgPool(2), (x,))
    mapped = torch.func.vmap(lambda one: AdaptiveAvgPool(2)(one[None])[0])(x.detach())
    torch.testing.assert_close(mapped, AdaptiveAvgPool(2)(x.detach()))
