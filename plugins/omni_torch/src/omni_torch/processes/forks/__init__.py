"""Stage processes as forks of one interpreter that has imported PyTorch and what else they share, once for all of them.

``server`` is the parent's side, which launchers of this machine use where omni-torch is installed; ``main`` is the program of the
interpreter that is forked. Nothing is imported here.
"""
