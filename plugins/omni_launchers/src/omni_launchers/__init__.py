"""Launchers: hosts of one's own, hosts that are started by ssh or Slurm, and Ray clusters."""
