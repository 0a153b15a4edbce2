"""Grad-CAM: where in an image the evidence for a class lies."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from allrounder.nn.amp import bare
from allrounder.nn.modes import gradients_off, modes_restored
from allrounder.types import Images, Passes

NAMED = "last_stage"
"""The attribute by which a network says which of its modules is its last convolutional stage."""
PASSES = Passes(1, 1)
"""What a map takes, although the backward pass ends at the last stage."""


def grad_cam(model: nn.Module, x: Images) -> Float[Tensor, "n h w"]:
    """The map of every image for its predicted class, in evaluation mode, at the size of the images.

    With A_k the maps of the last convolutional stage and z the logit of the predicted class:
        w_k = mean over pixels of dz / dA_k,    cam = relu(sum_k w_k A_k)
    shifted and scaled to [0, 1] for every image (zero where it is flat), then resized by bicubic
    interpolation, which may leave [0, 1] by a few hundredths. No parameter gets a gradient, and modes,
    gradient flags and hooks are as before. Our networks name the stage; of others it is the module that last
    gave maps of more than one pixel.
    Selvaraju et al., 2017, Grad-CAM: visual explanations from deep networks.
    """
    with torch.inference_mode(False), torch.enable_grad(), modes_restored(model), gradients_off(model):
        model.eval()
        with _maps(model) as given:
            # Asked for by the images, as no parameter may; it goes no further down than the last stage.
            logits = model((x.clone() if x.is_inference() else x.detach()).requires_grad_())
        if not given:
            raise ValueError(
                f"{type(model).__name__} has no module that gives maps (n, k, h, w) of more than one pixel, "
                f'so there is nothing to look at; give it an attribute {NAMED} = "name of a module"'
            )
        (maps,) = given
        top = logits.gather(1, logits.argmax(dim=1, keepdim=True))
        slopes = torch.autograd.grad(top.sum(), maps)[0]
        # A network may compute in half precision, in which not every device can resize.
        maps, slopes = maps.to(x.dtype), slopes.to(x.dtype)
    with torch.no_grad():
        cam = F.relu((slopes.mean(dim=(2, 3), keepdim=True) * maps).sum(dim=1))
        cam = cam - cam.amin(dim=(1, 2), keepdim=True)
        cam = cam / cam.amax(dim=(1, 2), keepdim=True).clamp(min=torch.finfo(cam.dtype).tiny)
        # With antialias the kernel is that of the usual image libraries; nothing is smoothed when enlarging.
        size = (x.shape[2], x.shape[3])
        return F.interpolate(cam[:, None].contiguous(), size, mode="bicubic", antialias=True)[:, 0]


@contextmanager
def _maps(model: nn.Module) -> Generator[list[Tensor]]:
    """Holds what the last stage gives: the one that is named, or the last of all that gives maps."""
    given: list[Tensor] = []
    network = bare(model)
    name = getattr(network, NAMED, None)
    stages = [network.get_submodule(name)] if isinstance(name, str) else list(network.modules())
    least = 1 if isinstance(name, str) else 2

    def keep(module: nn.Module, inputs: object, output: object) -> None:
        if isinstance(output, Tensor) and output.dim() == 4 and output.shape[2:].numel() >= least:
            given[:] = [output]

    hooks = [stage.register_forward_hook(keep) for stage in stages]
    try:
        yield given
    finally:
        for hook in hooks:
            hook.remove()
