"""How many random cases a test tries: `FEDVISAGE_CASES=20 pytest tests/evaluation` tries twenty times as many."""

from __future__ import annotations

import os

from hypothesis import settings


def cases(count: int) -> settings:
    """So many random cases, times what the environment asks for."""
    return settings(max_examples=count * int(os.environ.get("FEDVISAGE_CASES", "1")))
