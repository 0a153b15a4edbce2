"""Tests of one fact for many names, as one test that lists the names that fail."""

from __future__ import annotations

from collections.abc import Callable, Iterable


def check_each(names: Iterable[str], check: Callable[[str], None]) -> None:
    """Run a check for every name; fail with the list of those that do not pass."""
    checked = list(names)
    rows: list[str] = []
    for name in checked:
        try:
            check(name)
        except Exception as error:
            rows.append(f"{name}: {type(error).__name__}: {str(error).splitlines()[:1]}")
    assert not rows, "\n".join([f"{len(rows)} of {len(checked)} fail:", *rows])
    assert checked, "nothing to check"


def for_each(names: Iterable[str]) -> Callable[[Callable[[str], None]], Callable[[], None]]:
    """Make one test of a check that takes a name."""
    checked = list(names)

    def decorate(check: Callable[[str], None]) -> Callable[[], None]:
        def test() -> None:
            check_each(checked, check)

        test.__name__ = check.__name__
        test.__qualname__ = check.__qualname__
        test.__doc__ = check.__doc__
        return test

    return decorate
