"""Admission by objectives: a request begins when the first outputs of all are expected in time; else it waits, or is refused.

:mod:`~omni_planner.admission.policy` decides, without IO, from what :mod:`~omni_planner.admission.estimates` has learnt;
:class:`omni_core.coordinator.turns.AdmittingMachine` asks it, in the runtime and in simulations.
"""
