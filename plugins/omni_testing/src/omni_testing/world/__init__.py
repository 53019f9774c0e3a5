"""A simulated world: the runtime's coordinator, supervisors, workers and stages in simulated time, without threads and sockets.

A seed decides a pipeline, its requests, how long everything takes and what goes wrong; :mod:`omni_testing.world.judge` says what must
hold all the same. ``python -m omni_testing.world SEED`` runs one again.
"""

from omni_testing.world.simulation import Broken, World

__all__ = ["Broken", "World"]
