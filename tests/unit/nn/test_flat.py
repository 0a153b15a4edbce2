from __future__ import annotations

import copy

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from allrounder.nn.flat import ALIGNMENT, flatten_, group_by_buffer, map_buffers, merge_by_buffer
from allrounder.nn.state import EmaUpdate, clone, weights_of, zeros_like
from allrounder.rng import Rng


def network() -> nn.Sequential:
    """Layers with parameters and buffers, some of whose sizes are no multiple of the alignment."""
    layers = [nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.Flatten(), nn.Linear(5 * 36, 7)]
    model = nn.Sequential(*layers).to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    for name, tensor in weights_of(model).items():
        if tensor.is_floating_point():
            tensor.copy_(Rng(0).fold_in(name).normal(tensor))
    return model


def floats(weights: dict[str, Tensor]) -> list[Tensor]:
    return [tensor for tensor in weights.values() if tensor.is_floating_point()]


def num_buffers(tensors: list[Tensor]) -> int:
    return len({tensor.untyped_storage().data_ptr() for tensor in tensors})


def test_flattening_keeps_values_strides_and_the_parameters_themselves():
    model = network()
    parameters, before = list(model.parameters()), copy.deepcopy(model)
    strides = [parameter.stride() for parameter in parameters]
    flatten_(model)
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    assert [parameter.stride() for parameter in parameters] == strides and strides[0][1] == 1
    for name, tensor in weights_of(model).items():
        assert torch.equal(tensor, weights_of(before)[name]) and tensor.data_ptr() % ALIGNMENT == 0
    x = torch.rand(2, 3, 8, 8)
    assert torch.equal(model(x), before(x))
    assert num_buffers(list(model.parameters())) == 1 and num_buffers(floats(weights_of(model))) == 2


def test_a_copy_of_a_flat_network_is_independent_and_holds_no_further_memory():
    model = network()
    flatten_(model)
    copied = copy.deepcopy(model)
    for parameter in copied.parameters():
        assert parameter.untyped_storage().nbytes() == parameter.nbytes
    # All buffers of a copy share memory, which holds the buffers only.
    memory = {b.untyped_storage().data_ptr(): b.untyped_storage().nbytes() for b in copied.buffers()}
    assert sum(memory.values()) <= 2 * ALIGNMENT + 8
    with torch.no_grad():
        for tensor in floats(weights_of(copied)):
            tensor.zero_()
    assert all(tensor.any() for tensor in floats(weights_of(model)) if tensor.numel() > 1)


def test_clones_and_zeros_have_the_same_layout():
    model = network()
    flatten_(model)
    weights = weights_of(model)
    for made in (clone(weights), zeros_like(weights)):
        assert num_buffers(floats(made)) == 2 and made.keys() == weights.keys()
        for name, tensor in made.items():
            assert tensor.stride() == weights[name].stride() and tensor.dtype == weights[name].dtype
            assert tensor.untyped_storage().data_ptr() != weights[name].untyped_storage().data_ptr()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in clone(weights).items())
    assert not any(tensor.any() for tensor in floats(zeros_like(weights)))
    plain = weights_of(network())
    assert num_buffers(floats(clone(plain))) == len(floats(plain))


def test_moving_averages_on_buffers_have_the_bits_of_those_tensor_by_tensor():
    flat, plain = network(), network()
    flatten_(flat)
    for decay, share in ((0.9, 1.0), (0.999, 0.3), (0.0, 1.0)):
        averages = [zeros_like(weights_of(model)) for model in (flat, plain)]
        updates = [EmaUpdate(a, weights_of(m)) for a, m in zip(averages, (flat, plain), strict=True)]
        assert len(updates[0].target_floats) == 2 < len(updates[1].target_floats)
        for _ in range(5):
            for update in updates:
                update(decay, share)
        for name, tensor in averages[0].items():
            assert torch.equal(tensor, averages[1][name]), name


def test_other_layouts_are_updated_tensor_by_tensor():
    model = network()
    flatten_(model)
    source = weights_of(model)
    contiguous = {name: tensor.contiguous().clone() for name, tensor in source.items()}
    partly = {name: tensor for name, tensor in clone(source).items() if name != "1.weight"}
    partly["1.weight"] = torch.ones(5)
    for target in (contiguous, partly):
        update = EmaUpdate(target, source)
        expected = {name: 0.5 * tensor + 0.5 * source[name] for name, tensor in target.items()}
        update(0.5)
        for name in ("0.weight", "1.weight", "1.running_var", "3.bias"):
            torch.testing.assert_close(target[name], expected[name])


class Statistics(nn.Module):
    """A custom layer with a view of its own buffer, and a registered one."""

    stats: Tensor
    first: Tensor
    sparse: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("stats", torch.ones(3))
        self.register_buffer("first", self.stats[:1])
        self.last = self.stats[2:]
        self.register_buffer("sparse", torch.eye(2).to_sparse(), persistent=False)


def test_tensors_of_custom_layers_stay_where_they_are():
    custom, norm = Statistics(), nn.BatchNorm1d(2)
    model = nn.Sequential(nn.Linear(2, 2), custom, norm)
    model.append(copy.deepcopy(custom))
    assert norm.running_var is not None
    model[0].register_buffer("view", norm.running_var[:1])
    model[0].register_buffer("sparse", torch.eye(2).to_sparse())
    addresses = {name: b.data_ptr() for name, b in model.named_buffers() if b.layout == torch.strided}
    flatten_(model)
    # The running variance shares its memory; the running mean does not, and moves.
    moved = {name for name, address in addresses.items() if model.get_buffer(name).data_ptr() != address}
    assert moved == {"2.running_mean"}
    custom.stats.zero_()
    assert custom.first == 0 and custom.last == 0 and num_buffers(list(model[0].parameters())) == 1
    kept = clone(weights_of(model))
    assert torch.equal(kept["0.sparse"].to_dense(), torch.eye(2)) and torch.equal(
        kept["1.stats"], torch.zeros(3)
    )


def test_tied_half_precision_and_empty_tensors_keep_their_values():
    tied = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    tied[1].weight = tied[0].weight
    half = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2).half())
    for model in (tied, half, nn.Sequential(nn.ReLU())):
        before = {name: tensor.clone() for name, tensor in weights_of(model).items()}
        flatten_(model)
        made = clone(weights_of(model))
        for name, tensor in before.items():
            assert torch.equal(weights_of(model)[name], tensor)
            assert torch.equal(made[name].to(tensor.dtype), tensor)
    assert tied[1].weight is tied[0].weight


@given(st.lists(st.integers(0, 40), min_size=1, max_size=6), st.permutations(range(6)))
def test_groups_contain_every_tensor_once_in_any_order(sizes: list[int], order: list[int]):
    model = nn.ParameterList([nn.Parameter(torch.rand(size)) for size in sizes])
    flatten_(model)
    tensors = [model[k].detach() for k in order if k < len(sizes)] + [torch.rand(3)]
    groups = list(group_by_buffer(tensors))
    assert sorted(position for positions, _ in groups for position in positions) == list(range(len(tensors)))
    doubled = map_buffers(lambda tensor: 2 * tensor, tensors)
    assert all(torch.equal(a, 2 * b) for a, b in zip(doubled, tensors, strict=True))
    targets, sources = merge_by_buffer(doubled, tensors)
    assert len(targets) == len(sources) <= len(tensors)
    assert all(a.shape == b.shape and torch.equal(a, 2 * b) for a, b in zip(targets, sources, strict=True))
