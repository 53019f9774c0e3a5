"""Our distributions: the folder of each, and of its tests."""

from __future__ import annotations

DISTRIBUTIONS = {
    "omni-core": "omni_core",
    "omni-cli": "plugins/omni_cli",
    "omni-media": "plugins/omni_media",
    "omni-torch": "plugins/omni_torch",
    "omni-testing": "plugins/omni_testing",
    "omni-launchers": "plugins/omni_launchers",
    "omni-planner": "plugins/omni_planner",
    "omni-diffusion": "plugins/omni_diffusion",
    "omni-demo": "plugins/omni_demo",
    "omni-serve": "plugins/omni_serve",
    "omni-relay-kit": "plugins/omni_relay_kit",
    "omni-relay-shm": "plugins/omni_relay_shm",
    "omni-relay-nixl": "plugins/omni_relay_nixl",
    "omni-relay-mooncake": "plugins/omni_relay_mooncake",
    "omni-relay-nccl": "plugins/omni_relay_nccl",
    "omni-kernels": "plugins/omni_kernels",
    "omni-kernels-cpu": "plugins/omni_kernels_cpu",
    "omni-qwen3": "omni_qwen3",
    "omni-qwen25": "plugins/omni_qwen25",
    "omni-fish-s2": "omni_fish_s2",
}
TESTS = {
    "omni-core": "tests/packaging/bare",
    "omni-cli": "tests/omni_cli",
    "omni-media": "tests/omni_media",
    "omni-torch": "tests/omni_torch",
    "omni-testing": "tests/omni_testing",
    "omni-launchers": "tests/omni_launchers",
    "omni-planner": "tests/omni_planner",
    "omni-diffusion": "tests/omni_diffusion",
    "omni-demo": "tests/omni_demo",
    "omni-serve": "tests/omni_serve",
    "omni-relay-kit": "tests/omni_relay_kit",
    "omni-relay-shm": "tests/omni_relay_shm",
    "omni-relay-nixl": "tests/end_to_end/runtime/test_relays_in_pipelines.py",
    "omni-relay-mooncake": "tests/omni_relay_mooncake",
    "omni-relay-nccl": "tests/omni_relay_nccl",
    "omni-kernels": "tests/omni_kernels",
    "omni-kernels-cpu": "tests/omni_kernels_cpu",
    "omni-qwen3": "tests/omni_qwen3",
    "omni-qwen25": "tests/omni_qwen25",
    "omni-fish-s2": "tests/omni_fish_s2",
}
"""The test folders of a distribution's own session; tests of the core that need a relay, an engine or torch run in `tests`."""
