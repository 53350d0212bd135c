"""Shared by all tests: one thread, as parties have, and hypothesis without time limits on a busy machine."""

from __future__ import annotations

import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)
settings.register_profile("fedvisage", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fedvisage")
