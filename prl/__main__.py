"""``python -m prl`` is ``prl``."""

import sys

from prl.cli import main

if __name__ == "__main__":
    sys.exit(main())
