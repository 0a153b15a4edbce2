"""Grad-CAM: maps of the pixels that speak for the predicted class."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from allrounder.errors import InputError
from allrounder.nn.amp import unwrap
from allrounder.nn.modes import no_param_grads, preserve_mode
from allrounder.types import Images, Passes

STAGE_ATTRIBUTE = "last_stage"
"""The attribute of a network that names its last convolutional stage."""
GRAD_CAM_PASSES = Passes(1, 1)
"""The cost of one map, an upper bound: the backward pass ends at the last stage."""


def grad_cam(model: nn.Module, x: Images) -> Float[Tensor, "n h w"]:
    """The Grad-CAM map of every image for its predicted class, in evaluation mode, at image size.

    With A_k the feature maps of the last convolutional stage and z the logit of the predicted class:
        w_k = mean over pixels of dz / dA_k,    cam = relu(sum_k w_k A_k)
    Every map is shifted and scaled to [0, 1] (zero if it is constant), then resized by bicubic interpolation,
    which may leave [0, 1] by a few hundredths. No parameter gets a gradient; modes, gradient flags and hooks
    are restored. A network names its last stage in the attribute `last_stage`; without it, the stage is the
    last module whose output has more than one pixel.
    Selvaraju et al., 2017, Grad-CAM: visual explanations from deep networks.
    """
    with torch.inference_mode(False), torch.enable_grad(), preserve_mode(model), no_param_grads(model):
        model.eval()
        with _capture_features(model) as captured:
            # Parameters require no gradients here, so the images must: otherwise there is no graph.
            logits = model((x.clone() if x.is_inference() else x.detach()).requires_grad_())
        if not captured:
            raise InputError(
                f"{type(model).__name__} has no module with an output (n, k, h, w) of more than one pixel, "
                f'which Grad-CAM needs; give it an attribute {STAGE_ATTRIBUTE} = "name of a module"'
            )
        (features,) = captured
        top_logits = logits.gather(1, logits.argmax(dim=1, keepdim=True))
        grads = torch.autograd.grad(top_logits.sum(), features)[0]
        # Under autocast both may be in half precision, in which not every device can resize.
        features, grads = features.to(x.dtype), grads.to(x.dtype)
    with torch.no_grad():
        cam = F.relu((grads.mean(dim=(2, 3), keepdim=True) * features).sum(dim=1))
        cam = cam - cam.amin(dim=(1, 2), keepdim=True)
        cam = cam / cam.amax(dim=(1, 2), keepdim=True).clamp(min=torch.finfo(cam.dtype).tiny)
        # antialias selects the kernel of common image libraries; enlarging smooths nothing.
        size = (x.shape[2], x.shape[3])
        return F.interpolate(cam[:, None].contiguous(), size, mode="bicubic", antialias=True)[:, 0]


@contextmanager
def _capture_features(model: nn.Module) -> Generator[list[Tensor]]:
    """Within the context, keep the output of the named stage, or of the last module with feature maps."""
    captured: list[Tensor] = []
    network = unwrap(model)
    name = getattr(network, STAGE_ATTRIBUTE, None)
    stages = [network.get_submodule(name)] if isinstance(name, str) else list(network.modules())
    min_pixels = 1 if isinstance(name, str) else 2

    def capture(module: nn.Module, inputs: object, output: object) -> None:
        if isinstance(output, Tensor) and output.dim() == 4 and output.shape[2:].numel() >= min_pixels:
            captured[:] = [output]

    hooks = [stage.register_forward_hook(capture) for stage in stages]
    try:
        yield captured
    finally:
        for hook in hooks:
            hook.remove()
