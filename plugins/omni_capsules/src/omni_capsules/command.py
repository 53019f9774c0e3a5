"""``omni replay``: runs one stage again from the capsule of a request, in this process."""

from __future__ import annotations

import faulthandler
import json
import pdb
import sys
from pathlib import Path

import click

from omni_capsules import report
from omni_capsules.capsule import Capsule, CapsuleError, load
from omni_capsules.environment import describe, differences
from omni_capsules.rebuild import Rebuilt, chosen, enter, rebuild
from omni_core.errors import OmniError, message_of

DIFFERENT = 3
"""The exit status if the outputs are not those that were recorded."""


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--stage", metavar="NAME", help="By default the stage that failed, else the one that computed longest.")
@click.option("--show", is_flag=True, help="Say what the capsule holds, and run nothing.")
@click.option("--debug", is_flag=True, help="Open a debugger where the stage raises; breakpoint() works in any case.")
@click.option("--paced", is_flag=True, help="Give each input when it came then, and not as fast as possible.")
@click.option("--model", metavar="FOLDER", help="The checkpoint, where it is not where it was then.")
@click.option("--device", metavar="DEVICE", help="cpu or cuda:N, in place of the device that was used.")
@click.option("--trust", is_flag=True, help="Run whatever FILE names, also what no installed plugin registers.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def replay(
    file: Path,
    stage: str | None,
    show: bool,
    debug: bool,
    paced: bool,
    model: str | None,
    device: str | None,
    trust: bool,
    as_json: bool,
) -> None:
    """Run one stage again, alone and in this process, from what it was given in the request of which FILE is the capsule.

    Its outputs are compared with those of then, byte by byte. The exit status is 0 if they are equal (an error: if it is the same), and 3
    if not. What differs between this environment and that of then is said first.
    """
    capsule = load(file)
    if show:
        click.echo("\n".join(report.lines(capsule)))
        return
    record = chosen(capsule, stage)
    rebuilt = rebuild(capsule, record, model=model, device=device, trust=trust)
    faulthandler.enable()  # a stage that ended its process may end this one
    gone = enter(rebuilt)
    sys.exit(_replay(capsule, rebuilt, gone, debug=debug, paced=paced, as_json=as_json))


def _replay(capsule: Capsule, rebuilt: Rebuilt, gone: list[str], *, debug: bool, paced: bool, as_json: bool) -> int:
    from omni_capsules.replay import compare
    from omni_capsules.replay import replay as run
    from omni_core.processes.main import limit_torch_threads
    from omni_core.stage.assembly import build_scheduler

    try:
        scheduler = build_scheduler(rebuilt.spec)
    except OmniError:
        raise
    except Exception as error:
        if debug:
            pdb.post_mortem(error.__traceback__)
        raise CapsuleError(
            f"stage {rebuilt.spec.name!r} cannot be built: {message_of(error, with_type=True)}"
        ) from error
    limit_torch_threads()
    then = capsule.environments.get(rebuilt.record.process)
    apart = gone + (
        ["its process has not said what it used"] if then is None else differences(then, describe([rebuilt.spec], then))
    )
    if not as_json:
        for line in (
            map(report.printable, apart) if apart else ["versions, sources, processor and checkpoint are those of then"]
        ):
            click.echo(line)
    outcome = run(rebuilt, scheduler, paced=paced)
    comparison = compare(rebuilt, outcome)
    if as_json:
        click.echo(
            json.dumps(
                {
                    "stage": rebuilt.spec.name,
                    "ended": outcome.ended,
                    "seconds": outcome.seconds,
                    "error": outcome.error,
                    "recorded": comparison.recorded,
                    "equal": comparison.equal,
                    "difference": comparison.difference,
                    "environment": apart,
                },
                indent=2,
            )
        )
    else:
        if outcome.error is not None and outcome.error.get("traceback"):
            click.echo(outcome.error["traceback"].rstrip())
        click.echo(report.verdict(rebuilt, outcome, comparison))
    if debug and outcome.exception is not None:
        pdb.post_mortem(outcome.exception.__traceback__)
    return DIFFERENT if comparison.difference else 0
