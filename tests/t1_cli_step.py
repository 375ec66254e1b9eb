"""Where `redoxfs mount` warns that its daemon ends with a job step of Slurm; t7_slurm runs it in one."""

import pytest

from redoxfs.cli.mount import step_notice

BATCH = {"SLURM_JOB_ID": "7", "SLURM_NODEID": "0"}


def test_a_step_is_named_in_one_line() -> None:
    line = step_notice(BATCH | {"SLURM_STEP_ID": "0"})
    assert line is not None
    assert line.startswith("this mount ends with step 7.0 of Slurm")
    assert "\n" not in line


@pytest.mark.parametrize("step", [None, "", "4294967290", "4294967291", "x"])
def test_a_batch_script_and_an_interactive_shell_are_no_steps(step: str | None) -> None:
    assert step_notice(BATCH if step is None else BATCH | {"SLURM_STEP_ID": step}) is None
    assert step_notice({}) is None
