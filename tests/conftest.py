"""Settings that every tier shares."""

import os
from collections.abc import Iterator
from pathlib import Path

import ports
import pytest
from hypothesis import HealthCheck, settings
from machine import Machine

# `thorough` is for a night or a change of the protocol: REDOXFS_TEST_PROFILE=thorough scripts/test
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("thorough", parent=settings.get_profile("default"), max_examples=10_000)
settings.load_profile(os.environ.get("REDOXFS_TEST_PROFILE", "default"))


@pytest.fixture(autouse=True)
def own_ports() -> Iterator[None]:
    """What a test reserves is its own until it is over."""
    yield
    ports.release()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """The program, and nothing of it left after the test, whatever happened in it."""
    machine = Machine(tmp_path)
    try:
        yield machine
    finally:
        machine.clear()
