"""The command that prints a resolved recipe: show."""

from __future__ import annotations

from allrounder.cli.echo import echo
from allrounder.cli.train import Overrides, RecipeName


def show(recipe: RecipeName, sets: Overrides = None) -> None:
    """Print a resolved recipe as TOML, with its files and warnings about settings that may surprise."""
    from allrounder.config.time import Clock
    from allrounder.data.batches import Batches
    from allrounder.errors import RecipeError
    from allrounder.recipe.inherit import Chain
    from allrounder.recipe.lint import warnings_for
    from allrounder.recipe.recipe import Recipe
    from allrounder.rng import Rng
    from allrounder.training.data import load_data, train_val_split

    resolved = Recipe.load(recipe, sets or ())
    echo(f"# {' '.join(resolved.name.split())}, fingerprint {resolved.fingerprint()}")
    echo(f"# from: {', '.join(layer.label for layer in Chain.read(recipe).layers)}")
    if resolved.pipeline is not None:
        for name, stage in resolved.stage_recipes().items():
            passes = f"{stage.passes()} forward/backward passes per step"
            echo(f"# stage {name}: {stage.epochs} epochs, {passes}")
    try:
        data = load_data(resolved)
    except RecipeError as error:
        echo(f"# number of steps unknown, exchanges not checked: {' '.join(str(error).split())}")
    else:
        split, _ = train_val_split(resolved, data)
        steps = Batches(split, resolved.batch_size, Rng(resolved.seed)).steps
        clock = Clock(resolved.epochs, steps, resolved.pace)
        echo(f"# {len(split)} training images, {steps} steps per epoch, {clock.total_steps} steps in total")
        for warning in warnings_for(resolved, clock):
            echo(f"# note: {warning}")
    echo(resolved.dumps().rstrip("\n"))
