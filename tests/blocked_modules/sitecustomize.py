"""On PYTHONPATH: children find none of BLOCKED_MODULES, as if they were not installed."""

import os
import sys

for name in os.environ["BLOCKED_MODULES"].split():
    sys.modules[name] = None  # type: ignore[assignment] -- importing it raises then
