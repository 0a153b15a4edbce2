"""Python files outside of packages as modules, each under a name of its own.

Files with the same name in different folders are different modules. The name of a module is that of this one
and the path of its file, so a worker process that needs a class of a file imports the same file again.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import final

from typing_extensions import override

__path__: list[str] = []
"""Makes Python look for modules below this one."""
PREFIX = f"{__name__}."


def import_file(file: Path) -> ModuleType:
    """Import a Python file; a symbolic link is not followed, because files beside the link may belong to
    it."""
    return importlib.import_module(PREFIX + os.fsencode(file.absolute()).hex())


@final
class FileFinder(MetaPathFinder):
    """Finds the file of a module that `import_file` names."""

    @override
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(PREFIX):
            return None
        try:
            file = os.fsdecode(bytes.fromhex(fullname.removeprefix(PREFIX)))
        except ValueError:
            return None
        return spec_from_file_location(fullname, file)


sys.meta_path.append(FileFinder())
