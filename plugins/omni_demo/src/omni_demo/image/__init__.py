"""A small trained model that draws coloured shapes by instruction, as the omni pipeline ``demo-image``."""
