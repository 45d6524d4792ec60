"""`python -m tilesieve` is the command `tilesieve`."""

import sys

from tilesieve.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
