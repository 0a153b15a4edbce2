"""Every test runs on one thread, with the shape and type annotations of the package checked at run time."""

from __future__ import annotations

from jaxtyping import install_import_hook

install_import_hook("allrounder", "beartype.beartype")

import torch  # noqa: E402
from hypothesis import settings  # noqa: E402

torch.set_num_threads(1)
settings.register_profile("allrounder", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("allrounder")
