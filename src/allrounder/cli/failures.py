"""Errors as one sentence and an exit code."""

from __future__ import annotations

import errno
import traceback
from pathlib import Path

from allrounder import errors
from allrounder.cli.verbs import EXIT_FAILED, EXIT_USAGE
from allrounder.system.signals import EXIT_RESUMABLE

ADVICE = {
    errno.ENOSPC: "free some space and call again",
    errno.EDQUOT: "free some space and call again",
    errno.EACCES: "choose another folder, or change its permissions",
    errno.EPERM: "choose another folder, or change its permissions",
    errno.EROFS: "choose a folder that can be written",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ENOENT: "check that it exists and that its drive is connected",
    errno.EIO: "check that its drive is connected and works",
    errno.ESTALE: "check that its drive is connected and works",
}


def explain(error: Exception) -> tuple[str, int]:
    """Return the message of an error and the exit code."""
    if isinstance(error, errors.Interrupted):
        return str(error), EXIT_RESUMABLE
    if isinstance(error, errors.RecipeError):
        return str(error), EXIT_USAGE
    if isinstance(error, errors.AllrounderError):
        return f"error: {error}", EXIT_RESUMABLE if error.resumable else EXIT_FAILED
    if isinstance(error, OSError):
        return f"error: {describe_os_error(error)}", EXIT_FAILED
    if isinstance(error, ModuleNotFoundError) and (name := _missing_module(error)):
        return f"error: the module {name} is not installed; install the package that has it", EXIT_FAILED
    if isinstance(error, MemoryError):
        return "error: not enough memory; allrounder plan RECIPE estimates what a training needs", EXIT_FAILED
    return f"error: {_describe_bug(error)}", EXIT_FAILED


def describe_os_error(error: OSError) -> str:
    """Return the file, the reason, and what to do."""
    if error.errno is None:
        return str(error)
    reason = error.strerror or str(error)
    place = "" if error.filename is None else f"{error.filename}: "
    advice = f"; {ADVICE[error.errno]}" if error.errno in ADVICE else ""
    return f"{place}{reason}{advice}"


def _missing_module(error: ModuleNotFoundError) -> str | None:
    """The module of others that is not installed; None if a module of ours is missing, which is a bug."""
    name = (error.name or "").partition(".")[0]
    return None if name in ("", "allrounder") else name


def _describe_bug(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    place = f" in {Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""
    message = " ".join(str(error).split())
    return f"unexpected {type(error).__name__}{place}: {message}; this is a bug, --debug prints its traceback"
