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


def pytest_configure(config: pytest.Config) -> None:
    """Declare the markers of transformers' common suites, which tests/test_common.py runs."""
    names = (
        "accelerate_tests flash_attn_test flash_attn_3_test flash_attn_4_test is_pipeline_test is_training_test order"
    )
    for name in (*names.split(), "slow", "torch_compile_test"):
        config.addinivalue_line("markers", f"{name}: of transformers' common suites")
