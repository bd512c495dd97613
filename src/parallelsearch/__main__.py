"""`python -m parallelsearch` is `parallelsearch`, for where the script is not on the path and for launchers of several
processes: `accelerate launch -m parallelsearch train RECIPE`."""

from __future__ import annotations

from parallelsearch.cli.app import main

if __name__ == "__main__":
    main()
