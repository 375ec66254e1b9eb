"""Imports DLIO once, and forks for each run: its imports take longer than many a run. dlio.py starts it with the Python
that has DLIO.

A line on stdin has a run's folder and DLIO's words, as JSON. The first answer is the pid of the fork. It runs when
another line has come, and the second answer is its exit code. What it says is in the file `log` of the folder.
"""

import importlib
import json
import os
import sys
import traceback
from typing import NoReturn


def run(folder: str, words: list[str], go: int) -> NoReturn:
    """In the fork: wait for a byte, and be DLIO."""
    code = 1
    try:
        os.setsid()
        os.read(go, 1)
        os.chdir(folder)
        log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        sys.argv = ["dlio_benchmark", *words]
        main()
        code = 0
    except SystemExit as ended:
        code = 1 if ended.code else 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


answers = os.fdopen(os.dup(1), "w", buffering=1)
# Nothing else that is imported may say something there.
os.dup2(2, 1)
# MPI has a thread, which a fork would not have.
importlib.import_module("mpi4py").rc.initialize = False
main = importlib.import_module("dlio_benchmark.main").main
# What a run would import.
for name in ("framework.torch_framework", "data_loader.torch_data_loader", "checkpointing.pytorch_checkpointing"):
    importlib.import_module(f"dlio_benchmark.{name}")
print("ready", file=answers)
for line in iter(sys.stdin.readline, ""):
    asked = json.loads(line)
    waiting, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(tell)
        run(asked["folder"], asked["words"], waiting)
    print(pid, file=answers)
    sys.stdin.readline()
    os.write(tell, b"\n")
    os.close(tell)
    os.close(waiting)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), file=answers)
