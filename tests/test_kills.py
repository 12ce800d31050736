"""Commands that are killed at any write: a sample of the points of tests/kills.py, which has them all."""

import os
from pathlib import Path

import pytest
from kills import COMMANDS, kill_everywhere, prepare

# Of the 100 to 600 of each command.
POINTS = int(os.environ.get("ELMO_KILL_POINTS", 2))


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kills")


@pytest.mark.parametrize("name", COMMANDS)
def test_what_is_killed_at_any_write_leaves_nothing_half_and_ends_the_same_later(name: str, scratch: Path) -> None:
    outcome = kill_everywhere(prepare(scratch)[name], scratch, POINTS)
    assert outcome.killed == POINTS
    assert not outcome.failures, outcome.failures[0]
