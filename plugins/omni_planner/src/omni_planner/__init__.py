"""Measured profiles of pipelines, and a simulator that runs the runtime's own state machines in simulated time.

:mod:`~omni_planner.calibrate` (``omni calibrate``) loads a running pipeline and makes a :class:`~omni_planner.profile.PipelineProfile`;
:mod:`~omni_planner.simulate` (``omni simulate``) predicts from it what another placement or load does.
"""
