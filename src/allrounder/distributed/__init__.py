"""The processes of a run: who trains which learner, and what they tell each other."""

from __future__ import annotations

from allrounder.distributed.launch import default_threads as default_threads
from allrounder.distributed.launch import launch as launch
from allrounder.distributed.placement import Placement as Placement
from allrounder.distributed.placement import deal as deal
from allrounder.distributed.shard import Seat as Seat
from allrounder.distributed.world import World as World
