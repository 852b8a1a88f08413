"""`python -m tokscore`, the same as the command `tokscore`."""

from __future__ import annotations

from tokscore.cli.main import main

if __name__ == "__main__":
    main()
