"""A training whose second rank dies in its fifth step, until the launcher restarts it."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from pathlib import Path

import torch

from tests.distributed.training_scenarios import TRIO
from tests.support.interruptions import STEP, Point, die, struck
from tests.support.trainings import go

if __name__ == "__main__":
    torch.set_num_threads(1)
    first, second = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0", os.environ["RANK"] == "1"
    with struck(Point(STEP, 5), die) if first and second else nullcontext():
        go(TRIO, Path(sys.argv[1]))
