"""The errors that users see. Each message says what is wrong, where, what was expected, and what to do."""

from __future__ import annotations

RESUME_HINT = "continue with --resume (in Python: resume=True)"
"""What to do with an unfinished run; errors reach users of the command line and of Python."""


class AllrounderError(Exception):
    """The base of all errors of this package."""

    resumable: bool = False
    """Whether the same call continues the work later; the command line then exits with code 75."""


class InputError(AllrounderError, ValueError):
    """An argument of a call that has the wrong type, shape or range, or that names nothing."""


class RecipeError(InputError):
    """A recipe, or an override of one, that cannot be run."""


class DataError(AllrounderError, ValueError):
    """Images or labels that cannot be used, or files of a dataset that cannot be downloaded or read."""


class MissingDataError(DataError, FileNotFoundError):
    """Files of a dataset that are not where they are expected."""


class MissingLibraryError(AllrounderError, ImportError):
    """A library that an optional part of this package needs, and that is not installed."""


class ThreatError(AllrounderError, RuntimeError):
    """An attack returned images outside the ball or the box, or images that are not finite."""


class WorldError(AllrounderError, RuntimeError):
    """The processes of a run do not match, or one of them failed."""


class RunError(AllrounderError, RuntimeError):
    """A run folder, a result or another stored file that cannot be used."""


class StorageError(AllrounderError, OSError):
    """A file or folder that the system cannot write; what was saved before is intact."""

    def __init__(self, message: str, *, resumable: bool = False):
        super().__init__(message)
        self.resumable = resumable


class Diverged(AllrounderError, FloatingPointError):
    """A loss, or the weights after a step, are not finite; earlier checkpoints are intact."""


class Interrupted(AllrounderError, RuntimeError):
    """A signal stopped the run; its state was saved, and it can be resumed."""

    resumable = True


class PreflightError(AllrounderError, ValueError):
    """The evaluation of these images, labels or this network would be meaningless."""
