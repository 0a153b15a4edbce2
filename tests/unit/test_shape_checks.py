"""The tests check annotated shapes, and leave other functions as they are."""

from __future__ import annotations

import inspect

import pytest
import torch
from jaxtyping import TypeCheckError

from allrounder.recipe.recipe import Recipe
from allrounder.threats.norms import Linf
from allrounder.types import Batch


def test_a_wrong_shape_of_an_argument_is_an_error():
    with pytest.raises(TypeCheckError):
        Linf().project(torch.zeros(2, 3), torch.zeros(2, 3), 0.1)


def test_a_wrong_type_of_a_field_is_an_error():
    with pytest.raises(TypeCheckError):
        Batch(x=torch.zeros(2, 3, 4, 4), y=torch.zeros(2), index=torch.arange(2))


def test_functions_without_shapes_are_not_wrapped():
    assert Recipe.dumps.__code__.co_filename == inspect.getfile(Recipe)
    assert Linf.project.__code__.co_filename != inspect.getfile(Linf)
