"""What holds for all tests."""

from __future__ import annotations

from hypothesis import settings

# no test depends on how fast the machine is
settings.register_profile("plait", deadline=None)
settings.load_profile("plait")
