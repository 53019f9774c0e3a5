"""The training: it makes its data, trains the three networks on one CPU core, and judges the result by another program."""
