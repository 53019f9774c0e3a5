"""Writes the pages of docs/reference from the code that they describe: Python interface, hookspecs, contracts, conformance suites,
config, commands, request parameters of models; and the list of decision records.

``python docs/generate.py`` writes them, ``--check`` only says which are not current. The pages are committed, so that they can be
read without building anything. Every distribution of this repository must be installed. This file says what is described;
the package ``generator`` beside it makes the pages.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from pathlib import Path

from generator.architectures import architectures_page
from generator.commands import cli_page
from generator.config import config_page
from generator.contracts import contracts_page
from generator.hooks import hooks_page
from generator.models import decisions_page, requests_page

from omni_core.launch.prepare import ENVIRONMENT

DOCS = Path(__file__).parent
REFERENCE = DOCS / "reference"
VARIABLES = {
    "OMNI_PLUGINS": "Plugins to load, as names or patterns with commas between; empty for none. Unset: all that are installed.",
    "OMNI_DISABLE_PLUGINS": "Plugins not to load, in the same form. It wins over `OMNI_PLUGINS`.",
    "OMNI_SET__": "Begins a variable that sets a value of the config, such as `OMNI_SET__STAGE__GPU=1`; "
    "see [deploy files](../deploy-files.md#layers).",
    "OMNI_PLATFORM": "The platform whose sections of deploy files apply, in place of the one that is found.",
    "OMNI_DEBUG": "`1`: `omni` shows the traceback of an error that is otherwise one line.",
    "OMNI_LOG_LEVEL": "The least level that is logged: of the `omni` command and of stage processes. By default `WARNING`.",
    "OMNI_LOG_FORMAT": "`text` or `json`: the log of the `omni` command. By default `text`.",
    "OMNI_PROCESS": "set in stage processes and what they start: by it their families are ended. Not to be set by hand.",
    "OMNI_CHECK_MUTATION": "`1`: look for changes of objects that stages of one process share by reference. Slow; needs omni-testing.",
    "OMP_NUM_THREADS": f"In stage processes `{ENVIRONMENT['OMP_NUM_THREADS']}`, unless it or `env_defaults` says otherwise.",
    "GOMP_SPINCOUNT": f"In stage processes `{ENVIRONMENT['GOMP_SPINCOUNT']}`, likewise: how long threads of PyTorch spin for more work.",
    "TOKENIZERS_PARALLELISM": f"In stage processes `{ENVIRONMENT['TOKENIZERS_PARALLELISM']}`, likewise.",
    "TMPDIR": "Where a run makes its private folder for sockets, unless `endpoints.base_path` says otherwise.",
    "CC": "The C compiler with which Triton builds the launchers of kernels; by default gcc or clang.",
    "CUDA_VISIBLE_DEVICES": "The GPUs that there are; `gpu` counts what is left.",
    "UCX_TLS": "The transports of the nixl relay; see [relays](../relays.md).",
    "RAY_ADDRESS": "The cluster of the launcher `ray`, where its `address` is `auto`; Ray's own variable.",
    "RAY_DEDUP_LOGS_SKIP_REGEX": "Lines that Ray does not print; `.*` where the launcher `ray` imports Ray first and it is not set.",
    "GLOO_SOCKET_IFNAME": "The network interface of gloo; ranks on several hosts take the one that leads to rank 0, where it is not set.",
    "MC_LOG_LEVEL": "How much Mooncake's engine writes; the mooncake relay sets it to `ERROR` where it is not set.",
    "XDG_STATE_HOME": "Where the history of `omni chat` is kept. By default `~/.local/state`.",
    "NO_COLOR": "Set: no colours in `omni chat`, `omni top` and `omni batch`.",
    "XDG_CACHE_HOME": "Where the random Qwen3-Omni checkpoint is kept that `omni run` makes without `--model`, and prepared weights. "
    "By default `~/.cache`.",
    "OMNI_WEIGHTS_CACHE": "How much prepared weights may have in that folder, by default `20GiB`; `off`: none are kept. "
    "See [prepared weights](../engine.md#prepared-weights).",
}
"""Every environment variable that means something here."""

PYTHON_TEXT = (
    "`import omni_core as omni`: open a pipeline by its name and ask it, from a script, a thread, a notebook or an event loop. "
    "[From Python](../python.md) shows the common uses."
)

PYTHON = {
    "Opening a pipeline": [
        "omni_core:open",
        "omni_core:open_async",
        "omni_core.client:OpenOptions",
        "omni_core:MediaPolicy",
        "omni_core:Recording",
    ],
    "Asking it": ["omni_core:Pipe", "omni_core:AsyncPipe", "omni_core:OmniRequest"],
    "Replies": [
        "omni_core:Reply",
        "omni_core:Audio",
        "omni_core:Usage",
        "omni_core:ReplyStream",
        "omni_core:AsyncReplyStream",
        "omni_core:TextPiece",
        "omni_core:AudioPiece",
        "omni_core:TranscriptPiece",
    ],
    "Errors": [
        "omni_core:OmniError",
        "omni_core:ConfigError",
        "omni_core:PluginError",
        "omni_core:StartupError",
        "omni_core:InvalidRequestError",
        "omni_core:OverloadedError",
        "omni_core:RequestFailedError",
        "omni_core:RequestTimeoutError",
        "omni_core:RequestAbortedError",
    ],
}
"""The reference page of the Python interface, by heading."""

CONTRACTS_TEXT = (
    "Every class and function that a plugin implements, is given or calls, with its methods. The pages about "
    "[stages](../stages.md), [models](../models.md), [relays](../first-relay.md), [launchers](../launchers.md) and "
    "[kernels](../kernels.md) show them in use."
)

CONTRACTS = {
    "Schedulers": [
        "omni_core.scheduling.base:Scheduler",
        "omni_core.scheduling.base:IncomingMessage",
        "omni_core.scheduling.base:OutgoingMessage",
        "omni_core.scheduling.base:MessageQueue",
        "omni_core.scheduling.loop:LoopScheduler",
        "omni_core.scheduling.simple:SimpleScheduler",
        "omni_core.scheduling.streaming:StreamingScheduler",
    ],
    "Requests and results": [
        "omni_core.protocol.messages:OmniRequest",
        "omni_core.protocol.messages:StagePayload",
        "omni_core.protocol.messages:text_of",
        "omni_core.protocol.outputs:TextChunk",
        "omni_core.protocol.outputs:ReasoningChunk",
        "omni_core.protocol.outputs:AudioChunk",
        "omni_core.protocol.outputs:TextResult",
        "omni_core.protocol.outputs:AudioResult",
        "omni_core.protocol.outputs:TranscriptChunk",
        "omni_core.protocol.outputs:Transcript",
        "omni_core.protocol.outputs:Segment",
        "omni_core.protocol.outputs:Word",
        "omni_core.protocol.outputs:TokenLogprob",
        "omni_core.interface:Interface",
        "omni_core.interface:ParameterGroup",
        "omni_core.interface:Parameter",
        "omni_core.interface:transcription_parameters",
    ],
    "Relays": [
        "omni_core.relay.base:Relay",
        "omni_core.relay.base:RelayOperation",
        "omni_core.relay.base:RelayOptions",
        "omni_relay_kit.bounded_pool:BoundedPool",
        "omni_relay_kit.pull_relay:PulledRelay",
    ],
    "Launchers": [
        "omni_core.machines.launcher:Launcher",
        "omni_core.machines.launcher:LauncherOptions",
        "omni_core.machines.launcher:Need",
        "omni_core.machines.launcher:Grant",
        "omni_core.machines.launcher:RunMachine",
    ],
    "Model runners": [
        "omni_core.model_runner:ModelRunner",
        "omni_core.model_runner:ARModel",
        "omni_core.model_runner:FeedbackStrategy",
        "omni_core.model_runner:ARRequest",
        "omni_core.model_runner:SamplingParams",
        "omni_core.model_runner:ForwardBatch",
        "omni_core.model_runner:ForwardOutput",
        "omni_core.model_runner:KVLayout",
        "omni_core.model_runner:AttentionForm",
        "omni_core.model_runner:PagedAttention",
        "omni_torch.runners.model_runner:ARModelRunner",
        "omni_torch.runners.model_runner:FeedbackARModelRunner",
        "omni_torch.loop.autoregressive:AutoregressiveLoop",
        "omni_torch.loop.autoregressive:LoopedScheduler",
        "omni_torch.loop.autoregressive:StepPolicy",
        "omni_torch.vocoder.deadlines:DeadlinePolicy",
        "omni_torch.vocoder.scheduler:VocoderScheduler",
        "omni_torch.vocoder.scheduler:Vocoder",
        "omni_torch.operations.kernels:Operation",
    ],
    "Services": [
        "omni_core.services:Fitting",
        "omni_core.services:ForkServer",
        "omni_core.services:Limits",
        "omni_core.services:MediaReader",
        "omni_core.services:Profiles",
        "omni_core.services:Ranks",
        "omni_core.services:ShellCompletion",
        "omni_core.services:StageProcess",
        "omni_core.coordinator.turns:AdmissionPolicy",
        "omni_core.launch.running:RunningOperations",
        "omni_core.observe.telemetry:Telemetry",
    ],
}
"""Reference pages by heading: what authors of plugins implement or call."""

CONFORMANCE_TEXT = (
    "The suites of `omni-testing`. Subclass one, set its attributes or override its methods, and pytest runs every test of the "
    "contract on your implementation. [Testing a plugin](../testing-plugins.md) shows how."
)

CONFORMANCE = {
    "Suites": [
        "omni_testing:RelayConformance",
        "omni_testing:SchedulerConformance",
        "omni_testing:ModelRunnerConformance",
        "omni_testing:FeedbackConformance",
        "omni_testing:PipelineStructureConformance",
        "omni_testing:PipelineConformance",
        "omni_testing:PresetConformance",
        "omni_testing:ProjectionConformance",
        "omni_testing:PluginConformance",
        "omni_testing:CheckpointConformance",
    ]
}

PIPELINES = ["qwen3-omni", "qwen25", "fish-s2", "qwen3-tts", "kokoro", "qwen-image"]
"""The pipelines whose requests are described."""


def pages() -> dict[Path, str]:
    """Every page by its file."""
    return {
        DOCS / "decisions.md": decisions_page(DOCS / "decisions"),
        REFERENCE / "python.md": contracts_page("Python interface", PYTHON_TEXT, PYTHON),
        REFERENCE / "hooks.md": hooks_page(),
        REFERENCE / "config.md": config_page(VARIABLES),
        REFERENCE / "cli.md": cli_page(),
        REFERENCE / "requests.md": requests_page(PIPELINES),
        REFERENCE / "architectures.md": architectures_page(),
        REFERENCE / "contracts.md": contracts_page("Contracts", CONTRACTS_TEXT, CONTRACTS),
        REFERENCE / "conformance.md": contracts_page("Conformance suites", CONFORMANCE_TEXT, CONFORMANCE),
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=textwrap.dedent(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page is not current")
    check = parser.parse_args(arguments).check
    written = pages()
    stale = [path for path, text in written.items() if not path.is_file() or path.read_text() != text]
    for path in stale:
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(written[path])
        print(f"{path.parent.name}/{path.name}: {'not current; run python docs/generate.py' if check else 'written'}")
    sys.exit(1 if check and stale else 0)


if __name__ == "__main__":
    main()
