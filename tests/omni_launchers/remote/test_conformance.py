"""Both launchers pass the suite of launchers."""

from __future__ import annotations

from omni_testing.ours.remote import SlurmConformance, SshConformance


class TestSsh(SshConformance):
    pass


class TestSlurm(SlurmConformance):
    pass
