"""Fixtures that every test file may use."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

# Machines that run tests are busy: no random example has a deadline.
settings.register_profile("busy", deadline=None)
settings.load_profile("busy")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with reference files and datasets that are too large, or not ours, to keep in the repository."""
    folder = Path(os.environ.get("ELMO_SHARED", Path(__file__).resolve().parents[2] / "shared"))
    if not folder.is_dir():
        pytest.skip(f"{folder} not found; set ELMO_SHARED")
    return folder
