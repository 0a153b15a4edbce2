"""Recipes: TOML files and frozen values that describe a training."""
