"""Training and evaluation in several processes: which rank trains which learner, how ranks communicate."""

from __future__ import annotations

from allrounder.distributed.launch import default_threads as default_threads
from allrounder.distributed.launch import launch_processes as launch_processes
from allrounder.distributed.placement import BatchShard as BatchShard
from allrounder.distributed.placement import Placement as Placement
from allrounder.distributed.placement import assign_ranks as assign_ranks
from allrounder.distributed.world import World as World
