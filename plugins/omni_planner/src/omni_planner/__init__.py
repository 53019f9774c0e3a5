"""Answers of what a load needs: estimates by FLOPs and bytes, a simulation of stages, a search of placements; and admission.

``omni simulate`` is :mod:`~omni_planner.simulate`, ``omni plan --optimize`` :mod:`~omni_planner.optimize`; the coordinator uses
:mod:`~omni_planner.admission`.
"""
