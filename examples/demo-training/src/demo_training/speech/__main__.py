"""``python -m demo_training.speech FOLDER``: trains the checkpoint from scratch, and prints the speech recogniser's
results.
"""

from __future__ import annotations

from pathlib import Path

import click

from demo_training.speech import code2wav, talker, thinker


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--start",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Train the thinker of this checkpoint further.",
)
@click.option("--thinker-steps", default=thinker.STEPS, show_default=True)
@click.option("--talker-steps", default=talker.STEPS, show_default=True)
@click.option("--code2wav-steps", default=code2wav.STEPS, show_default=True)
def main(folder: Path, start: Path | None, thinker_steps: int, talker_steps: int, code2wav_steps: int) -> None:
    """Train the demo's checkpoint in FOLDER/checkpoint, in two processes of one thread each. Run it again to resume
    after an interruption.
    """
    from demo_training.speech.build import Steps, build
    from demo_training.speech.report import plot_losses, write_report

    checkpoint = build(folder, Steps(thinker_steps, talker_steps, code2wav_steps), start)
    if start is None:
        plot_losses(folder)
    click.echo(write_report(checkpoint, folder))


if __name__ == "__main__":
    main()
