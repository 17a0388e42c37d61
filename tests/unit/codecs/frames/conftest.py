"""Frames find their code by module name:

these programs must be importable by theirs, here and in a fresh process.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = str(Path(__file__).parent)
if HERE not in sys.path:
    sys.path.insert(0, HERE)
