"""`python -m maskzoo` is the command `maskzoo`."""

import sys

from maskzoo.cli import main

if __name__ == "__main__":
    sys.exit(main())
