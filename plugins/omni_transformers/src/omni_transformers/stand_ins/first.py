"""Imported before anything else by the modules of stages: transformers looks for packages once, when it is imported."""

from omni_transformers.stand_ins import stand_in

stand_in()
