"""Operations on a running pipeline: a stage's units are replaced, their number is changed, and it follows the queue by itself.

:class:`~omni_operations.operations.Operations` is what omni-core loads, :class:`~omni_operations.units.Units` starts and ends single
units, :mod:`~omni_operations.changes` makes the new configs, and :mod:`~omni_operations.autoscale` decides over numbers. Nothing is
imported here.
"""
