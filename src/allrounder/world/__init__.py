"""The processes of a run: who trains which learner, and what they tell each other."""

from __future__ import annotations

from allrounder.world.base import World as World
from allrounder.world.launching import default_threads as default_threads
from allrounder.world.launching import launch as launch
from allrounder.world.placement import Placement as Placement
from allrounder.world.placement import deal as deal
from allrounder.world.seat import Seat as Seat
