from allrounder.data.augment import AUGMENTS
from allrounder.data.base import DataSpec
from allrounder.data.embedded import Embedded
from allrounder.data.npz import Given, Npz

DATASETS: dict[str, type[DataSpec]] = {"embedded": Embedded, "npz": Npz, "given": Given}

__all__ = ["AUGMENTS", "DATASETS", "Embedded", "Given", "Npz"]
