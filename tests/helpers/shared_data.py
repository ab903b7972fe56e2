"""Real data, in `shared/data` of a directory above the repository; tests that need it skip where it is absent."""

from pathlib import Path

import pytest


def shared_data(name: str) -> Path:
    """A file or directory of it; skips the test where there is none."""
    places = (parent / "shared" / "data" / name for parent in Path(__file__).resolve().parents)
    found = next((path for path in places if path.exists()), None)
    if found is None:
        pytest.skip(f"shared/data/{name} is not on this machine")
    return found
