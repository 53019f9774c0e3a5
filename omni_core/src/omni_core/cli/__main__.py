"""``python -m omni_core.cli``."""

from omni_core.cli.main import main

if __name__ == "__main__":
    main()
