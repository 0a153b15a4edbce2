"""Pipelines that run in a second, of the pieces of `trainings`."""

from __future__ import annotations

from allrounder.recipe.recipe import Recipe
from tests.support.trainings import HEAD, LINF, NATURAL

SHORT = HEAD.replace("epochs = 3", "epochs = 2").replace("train_images = 6", "train_images = 0")
L2 = LINF.replace('"linf"', '"l2"').replace("Linf:0.1", "L2:0.5")


def below(place: str, task: str) -> str:
    """A task of a stage."""
    return task.replace("[[task]]", f"[[pipeline.{place}.task]]")


CURVE = f"""
{SHORT.replace('threats = ["Linf:0.1"]', 'threats = ["Linf:0.1", "L2:0.5"]')}
[pipeline]
kind = "curve"
points = 3
[[pipeline.end]]
name = "one"
length = 0.5
{below("end", LINF)}
[[pipeline.end]]
name = "two"
length = 0.5
{below("end", L2)}
{LINF.replace("lr = 0.05", "lr = 0.05" + chr(10) + "update = { kind = 'curve', weight_decay = 0.01 }")}
"""
SOUP = f"""
{SHORT}
[pipeline]
kind = "soup"
[pipeline.base]
name = "base"
length = 0.5
{below("base", NATURAL)}
{LINF}
{NATURAL}
"""
SELF = f"""
{SHORT.replace("batch_size = 16", "batch_size = 8")}
[pipeline]
kind = "self-training"
hidden = 0.5
[pipeline.teacher]
name = "teacher"
threats = []
{below("teacher", NATURAL)}
{LINF.replace('"adversarial"', '"rst", natural_weight = 0.9, robust_weight = 0.5')}
"""
PIPELINES = {"curve": CURVE, "soup": SOUP, "self-training": SELF}


def pipeline(kind: str, *sets: tuple[str, str]) -> Recipe:
    """A pipeline with some of its text replaced; every replacement must find its place."""
    text = PIPELINES[kind]
    for old, new in sets:
        assert old in text, old
        text = text.replace(old, new)
    return Recipe.loads(text)
