from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from allrounder.config.fields import OneOf
from allrounder.inference.fold import folded_copy
from allrounder.models import MODELS
from allrounder.models.ensemble import Ensemble, EnsembleModel, OutputMix
from allrounder.models.small_cnn import SmallCnn
from tests.support.networks import Tiny

MIX = OutputMix(alpha=0.7, scale=2.0, power=2.0, shift=0.5)


def logits(seed: int, count: int = 6, classes: int = 4) -> torch.Tensor:
    return torch.randn(count, classes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def images(count: int = 5) -> torch.Tensor:
    return torch.rand(count, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def test_the_output_is_the_logarithm_of_the_mixed_probabilities():
    natural, robust = logits(1), logits(2)
    normalised = nn.functional.layer_norm(robust, (4,))
    transformed = 2.0 * (normalised + 0.5).clamp(min=0) ** 2
    expected = 0.3 * natural.softmax(1) + 0.7 * transformed.softmax(1)
    torch.testing.assert_close(MIX(natural, robust).exp(), expected)


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_with_all_weight_on_one_network_the_other_has_no_influence(alpha: float):
    natural, robust = logits(1).requires_grad_(), logits(2).requires_grad_()
    mixed = OutputMix(alpha=alpha, shift=2.0)(natural, robust)
    assert mixed.isfinite().all()
    used, unused = (robust, natural) if alpha else (natural, robust)
    assert torch.equal(mixed.argmax(1), used.argmax(1))
    gradients = torch.autograd.grad(mixed[:, 0].sum(), [used, unused])
    assert gradients[0].isfinite().all() and gradients[0].any() and not gradients[1].any()


def test_gradients_reach_the_images_through_both_networks():
    torch.manual_seed(0)
    ensemble = Ensemble(Tiny(), Tiny(), MIX)
    x = images().requires_grad_()
    (whole,) = torch.autograd.grad(ensemble(x)[:, 0].sum(), x)
    for name in ("natural", "robust"):
        other = Ensemble(ensemble.natural, ensemble.robust, MIX)
        part = getattr(other, name)
        setattr(other, name, Constant(part(x).detach()))
        (rest,) = torch.autograd.grad(other(x)[:, 0].sum(), x)
        assert rest.any() and not torch.allclose(rest, whole), name
    assert not any(parameter.requires_grad for parameter in ensemble.parameters())
    assert not ensemble.training


class Constant(nn.Module):
    """Returns the same logits for all images."""

    def __init__(self, value: torch.Tensor):
        super().__init__()
        self.value = value

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.value


def test_attacks_run_on_a_folded_copy_of_the_whole():
    torch.manual_seed(0)
    ensemble, x = Ensemble(Tiny(), Tiny(), MIX), images()
    folded = folded_copy(ensemble, x)
    assert folded is not None and len(folded.pairs) == 2
    torch.testing.assert_close(folded(x), ensemble(x))


def test_the_model_round_trips_and_counts_its_networks():
    spec = EnsembleModel(natural=SmallCnn(width=2), robust=SmallCnn(width=3), mix=MIX)
    table = OneOf(lambda: MODELS)
    assert table.decode(table.encode(spec)) == spec and MODELS["ensemble"] is EnsembleModel
    assert spec.num_networks == 2 and SmallCnn().num_networks == 1
    assert EnsembleModel(natural=spec, robust=SmallCnn(), mix=MIX).num_networks == 3
    network = spec.build(3, (1, 8, 8))
    assert isinstance(network, Ensemble) and network(images()).shape == (5, 3)


@pytest.mark.parametrize(
    "settings", [{"alpha": 1.5}, {"alpha": 0.5, "power": 0.5}, {"alpha": 0.5, "scale": 0.0}]
)
def test_a_mix_that_is_not_differentiable_or_no_mixture_is_refused(settings: dict[str, float]):
    with pytest.raises(ValidationError):
        OutputMix(**settings)
