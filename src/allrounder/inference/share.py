"""Parameters that two folded copies of one network have in common, in one place in memory."""

from __future__ import annotations

from allrounder.inference.fold import Folded


def share_parameters_(copied: Folded, original: Folded) -> None:
    """Let a copy of a folded network use the parameters of the original, which have the same names.

    The values must not change while both are used: what layers have computed from them would be out of date.
    """
    for name, parameter in copied.network.named_parameters():
        parameter.data = original.network.get_parameter(name).data
