"""Writes what runs a pipeline elsewhere: Kubernetes manifests, Helm charts, Dockerfiles, compose files and systemd units.

:mod:`omni_export.deployment` says what there is to run: a head (``omni serve``) and hosts (``omni hosts join``), with their files and
devices. Every format is written from that.
"""
