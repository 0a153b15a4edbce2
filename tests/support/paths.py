"""Folders that tests read from."""

from __future__ import annotations

from pathlib import Path

PROJECT = Path(__file__).parents[2]
SHARED_DATA = PROJECT.parent / "shared" / "data"
"""Real datasets beside the project; users do not have them."""
