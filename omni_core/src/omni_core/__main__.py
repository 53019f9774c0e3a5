"""``python -m omni_core``: the command ``omni`` where scripts are not on the PATH."""

from omni_core.cli.main import main

if __name__ == "__main__":
    main()
