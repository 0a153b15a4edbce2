"""The errors a user can meet; each message says what, where, got, expected, and what to do."""

from __future__ import annotations


class RecipeError(ValueError):
    """A recipe, or an override of one, that cannot be run as written."""


class DataError(ValueError):
    """A dataset whose files cannot be fetched, written or read, or are not what they were said to be."""


class ThreatError(RuntimeError):
    """An attack handed out images outside the ball or the box, or that are not finite."""


class WorldError(RuntimeError):
    """The processes of a run do not fit together."""


class RunError(RuntimeError):
    """A run folder that cannot be used as asked."""


class Diverged(FloatingPointError):
    """A loss, or the weights after a step, are no longer finite; what was saved before that is intact."""


class Interrupted(RuntimeError):
    """A signal stopped the run after its state was saved; it can be resumed."""
