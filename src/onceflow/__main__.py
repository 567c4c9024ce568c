"""`python -m onceflow` is the command line, too."""

import sys

from onceflow.cli import main

if __name__ == "__main__":
    sys.exit(main())
