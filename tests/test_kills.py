"""Commands that are killed at any write: a sample of the points of tests/kills.py, which has them all."""

import os
from pathlib import Path

import pytest
from kills import COMMANDS, Command, kill_everywhere, prepare

# Of the 50 to 450 of each command.
POINTS = int(os.environ.get("ELMO_KILL_POINTS", 2))


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Command]:
    return prepare(tmp_path_factory.mktemp("kills"))


@pytest.mark.parametrize("name", COMMANDS)
def test_what_is_killed_at_any_write_leaves_nothing_half_and_ends_the_same_later(
    name: str, commands: dict[str, Command], tmp_path: Path
) -> None:
    outcome = kill_everywhere(commands[name], tmp_path, POINTS)
    assert outcome.killed == min(POINTS, outcome.points)
    assert not outcome.failures, outcome.failures[0]
