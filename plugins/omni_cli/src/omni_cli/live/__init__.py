"""Operations on a running pipeline: a stage's units are replaced, their number is changed, and it follows the queue by itself.

:class:`~omni_cli.live.operations.Operations` is what omni-core loads, :class:`~omni_cli.live.units.Units` starts and ends single
units, :mod:`~omni_cli.live.changes` makes the new configs, and :mod:`~omni_cli.live.autoscale` decides over numbers. Nothing is
imported here.
"""
