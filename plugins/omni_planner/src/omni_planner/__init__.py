"""What a load needs: estimates by FLOPs and bytes, a simulation of stages in one clock, a search of placements over it; and admission.

``omni simulate`` is :mod:`~omni_planner.simulate`, ``omni plan --optimize`` :mod:`~omni_planner.optimize`; the coordinator uses
:mod:`~omni_planner.admission`.
"""
