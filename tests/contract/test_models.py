from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from allrounder.config.field_docs import field_docs
from allrounder.config.fields import OneOf
from allrounder.inference.fold import folded_copy
from allrounder.models import MODELS, ModelSpec
from allrounder.rng import Rng
from tests.support.networks import small_model

SHAPES = [(3, 32, 32), (1, 28, 28), (2, 9, 17)]
RNG = Rng(0).fold_in("models")

pytestmark = pytest.mark.parametrize("kind", [kind for kind in MODELS if kind not in ("ensemble", "python")])


def build(spec: ModelSpec, classes: int = 5, shape: tuple[int, int, int] = SHAPES[0], rng: Rng = RNG):
    with rng.seed_global():
        return spec.build(classes, shape)


def images(count: int, shape: tuple[int, int, int] = SHAPES[0]) -> torch.Tensor:
    return RNG.fold_in("x").uniform(torch.empty(count, *shape))


def trained(kind: str, shape: tuple[int, int, int] = SHAPES[0]):
    """A network whose weights and running statistics differ from their initial values."""
    model = build(small_model(kind), shape=shape)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for t in range(3):
        F.cross_entropy(model(images(8, shape) * (t + 1)), torch.arange(8) % 5).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return model


@pytest.mark.parametrize("shape", SHAPES)
def test_logits_are_finite_and_of_the_right_shape(kind, shape):
    model = build(small_model(kind), 7, shape)
    logits = model(images(2, shape))
    assert logits.shape == (2, 7)
    assert logits.isfinite().all()


def test_images_and_every_weight_receive_a_gradient(kind):
    model = build(small_model(kind))
    x = images(4).requires_grad_()
    F.cross_entropy(model(x), torch.arange(4)).backward()
    gradients = {"images": x.grad, **{name: p.grad for name, p in model.named_parameters()}}
    for name, gradient in gradients.items():
        assert gradient is not None and gradient.isfinite().all() and gradient.any(), name


def test_eval_mode_is_deterministic_and_ignores_neighbours(kind):
    model = trained(kind).eval()
    x = images(3)
    assert torch.equal(model(x), model(x))
    assert torch.allclose(model(x)[1:2], model(x[1:2]), rtol=1e-4, atol=1e-5)


def test_the_state_dict_determines_the_logits(kind):
    model = trained(kind).eval()
    other = build(small_model(kind), rng=RNG.fold_in("other")).eval()
    assert not torch.equal(model(images(2)), other(images(2)))
    other.load_state_dict(model.state_dict())
    assert torch.equal(model(images(2)), other(images(2)))


def test_weights_depend_only_on_the_global_generator(kind):
    spec = small_model(kind)
    first, second, other = (build(spec, rng=rng).state_dict() for rng in (RNG, RNG, RNG.fold_in("other")))
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())
    assert any(not torch.equal(tensor, other[name]) for name, tensor in first.items())


def test_the_spec_round_trips_through_a_table(kind):
    tables = OneOf(lambda: MODELS)
    spec = small_model(kind)
    assert tables.decode(tables.encode(spec)) == spec
    assert hash(spec) == hash(small_model(kind))


def test_its_documentation_is_complete(kind):
    cls = MODELS[kind]
    first, _, rest = (cls.__doc__ or "").partition("\n")
    assert first.endswith(".")
    assert "Initialisation:" in rest
    fields = getattr(cls, "__pydantic_fields__")  # noqa: B009
    described = {name for name, field in fields.items() if field.description}
    assert not fields.keys() - described - field_docs(cls).keys()


@pytest.mark.parametrize("shape", SHAPES)
def test_the_folded_copy_agrees_in_logits_and_input_gradients(kind, shape):
    model = trained(kind, shape)
    has_batchnorm = any(isinstance(module, _BatchNorm) for module in model.modules())
    folded = folded_copy(model, images(1, shape))
    if folded is None and not has_batchnorm:
        pytest.skip(f"{kind} has no batch-norm to fold, and attacks run on the network itself")
    assert folded is not None and bool(folded.pairs) == has_batchnorm
    model.eval()
    for dtype, rtol in ((torch.float32, 1e-3), (torch.float64, 1e-9)):
        model = model.to(dtype)
        folded = folded_copy(model, images(1, shape))
        assert folded is not None
        outcomes = []
        for network in (model, folded):
            x = images(3, shape).to(dtype).requires_grad_()
            logits = network(x)
            outcomes.append((logits.detach(), *torch.autograd.grad(logits.pow(2).sum(), x)))
        for expected, actual in zip(*outcomes, strict=True):
            assert (expected - actual).abs().max() <= rtol * expected.abs().max()
