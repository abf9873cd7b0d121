"""`python -m fullattention`: the command line."""

import sys

from fullattention.cli import main

if __name__ == "__main__":
    sys.exit(main())
