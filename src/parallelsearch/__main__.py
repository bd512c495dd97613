"""`python -m parallelsearch` is `parallelsearch`, for where the script is not on the path."""

from __future__ import annotations

from parallelsearch.cli import main

if __name__ == "__main__":
    main()
