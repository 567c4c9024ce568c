"""Real processes, killed and restarted under load."""

import sys
from pathlib import Path

PROGRAMS = Path(__file__).parent / "programs"
sys.path.append(str(PROGRAMS))  # a FILE.py imports what lies beside it, here as in a worker
