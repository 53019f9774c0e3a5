"""Admission by objectives: a request begins when the first outputs of all are expected in time; else it waits, or is refused.

:mod:`~omni_planner.admission.policy` decides, without IO, from what :mod:`~omni_planner.admission.estimates` has learnt;
:mod:`~omni_planner.admission.machine` is the state machine of the requests that asks it, in the runtime and in simulations.
"""

from omni_planner.admission.machine import machine_of as machine_of
