"""Grad-CAM: the equation, the stage it looks at, and what it leaves as it was."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from allrounder.models import MODELS
from allrounder.nn.amp import AutocastModule
from allrounder.nn.gradcam import STAGE_ATTRIBUTE, grad_cam
from allrounder.rng import Rng
from tests.support.networks import Tiny, same, small_model

RESNETS = ("resnet18", "resnet34", "preactresnet18", "resnet50", "wrn-50-2")
LAST_STAGES = {"small-cnn": "bn4", "wrn": "block3", **dict.fromkeys(RESNETS, "layer4")}


def images(n: int = 5, channels: int = 3, side: int = 32) -> Tensor:
    return Rng(0).fold_in("x").uniform(torch.empty(n, channels, side, side))


def built(kind: str) -> nn.Module:
    with Rng(0).seed_global():
        return small_model(kind, width=8).build(4, (3, 32, 32))


def literal(maps: Tensor, slopes: Tensor, side: int) -> Tensor:
    """One image after the other, from the maps of a stage and the slopes of the logit in them."""
    result: list[Tensor] = []
    for a, g in zip(maps, slopes, strict=True):
        cam = sum((g[k].mean() * a[k] for k in range(len(a))), torch.zeros_like(a[0])).clamp(min=0)
        cam = (cam - cam.min()) / (cam.max() - cam.min()) if cam.max() > cam.min() else torch.zeros_like(cam)
        result.append(F.interpolate(cam[None, None], (side, side), mode="bicubic", antialias=True)[0, 0])
    return torch.stack(result)


def test_the_map_equals_the_equation():
    with Rng(0).seed_global():
        model = Tiny().double().eval()
    x = images(5, 1, 8).double()
    maps = model.bn(model.conv(x)).detach().requires_grad_()  # pyright: ignore[reportCallIssue]
    logits = model.linear(maps.tanh().flatten(1))  # pyright: ignore[reportCallIssue]
    (slopes,) = torch.autograd.grad(logits.max(dim=1).values.sum(), maps)
    torch.testing.assert_close(grad_cam(model, x), literal(maps.detach(), slopes, 8))


@pytest.mark.parametrize("kind", [kind for kind in MODELS if kind not in ("ensemble", "python")])
def test_every_network_declares_its_last_stage(kind: str):
    model, x = built(kind).eval(), images()
    stage = getattr(model, STAGE_ATTRIBUTE, None)
    if stage is None and kind not in LAST_STAGES:
        pytest.skip(f"{kind} declares no {STAGE_ATTRIBUTE}: it has no feature maps for Grad-CAM")
    assert isinstance(stage, str) and stage == LAST_STAGES.get(kind, stage)
    maps: list[Tensor] = []
    hook = model.get_submodule(stage).register_forward_hook(
        lambda module, inputs, output: maps.append(output)  # pyright: ignore[reportArgumentType]
    )
    logits = model(x.requires_grad_())
    hook.remove()
    assert maps[0].dim() == 4
    (slopes,) = torch.autograd.grad(logits.max(dim=1).values.sum(), maps[0])
    expected = literal(maps[0].detach(), slopes, 32)
    torch.testing.assert_close(grad_cam(model, x.detach()), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", ["wrn", "preactresnet18", "small-cnn"])
def test_the_declared_stage_is_used_under_autocast(kind: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch, "autocast", lambda *given, **more: torch.enable_grad())
    model, x = built(kind), images()
    assert torch.equal(grad_cam(AutocastModule(model, torch.bfloat16), x), grad_cam(model, x))


class Halved(Tiny):
    """Gives its maps in half precision."""

    last_stage = "stage"

    def __init__(self) -> None:
        super().__init__()
        self.stage = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        maps = self.stage(self.bn(self.conv(x)).bfloat16())
        return self.linear(maps.float().tanh().flatten(1))


def test_feature_maps_in_half_precision_are_converted_to_the_type_of_the_images():
    with Rng(0).seed_global():
        half, full = Halved(), Tiny()
    full.load_state_dict(half.state_dict())
    x = images(5, 1, 8)
    result = grad_cam(half, x)
    assert result.dtype == torch.float32
    torch.testing.assert_close(result, grad_cam(full, x), rtol=0, atol=0.05)


def test_a_map_does_not_depend_on_the_other_images():
    model, x = built("resnet18"), images()
    together = grad_cam(model, x)
    assert torch.equal(grad_cam(model, x), together)
    torch.testing.assert_close(grad_cam(model, x[2:3])[0], together[2], rtol=1e-3, atol=1e-4)
    assert together.amin() > -0.3 and together.amax() < 1.3
    assert not together.requires_grad


def test_the_network_is_left_as_it_was_also_after_an_error():
    model = built("resnet18").train()
    model.get_submodule("layer1").eval()
    next(model.parameters()).requires_grad_(False)
    modes = [module.training for module in model.modules()]
    flags = [p.requires_grad for p in model.parameters()]
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    x = images()
    grad_cam(model, x)
    with pytest.raises(RuntimeError):
        grad_cam(model, images(2, 7))
    with torch.no_grad():
        grad_cam(model, x)
    with torch.inference_mode():
        grad_cam(model, x.clone())
    assert [module.training for module in model.modules()] == modes
    assert [p.requires_grad for p in model.parameters()] == flags
    assert all(p.grad is None for p in model.parameters()) and not x.requires_grad
    assert not any(module._forward_hooks for module in model.modules())
    assert same(dict(model.state_dict()), state)


def test_without_a_declared_stage_the_last_maps_of_more_than_one_pixel_are_used():
    with Rng(0).seed_global():
        body = nn.Conv2d(3, 4, 3, stride=2), nn.ReLU(inplace=True), nn.Conv2d(4, 6, 3)
        model = nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3)).eval()
    x = images()
    maps = model[2](model[1](model[0](x))).detach().requires_grad_()
    (slopes,) = torch.autograd.grad(model[3:](maps).max(dim=1).values.sum(), maps)
    torch.testing.assert_close(grad_cam(model, x), literal(maps.detach(), slopes, 32), rtol=1e-3, atol=1e-4)


def test_a_network_without_feature_maps_is_refused():
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 3))
    with pytest.raises(ValueError, match=r"no module with an output .*last_stage"):
        grad_cam(model, images())


def test_a_flat_map_is_zero():
    model = built("small-cnn")
    nn.init.zeros_(model.linear.weight)  # pyright: ignore[reportArgumentType, reportAttributeAccessIssue]
    assert not grad_cam(model, images()).any()
