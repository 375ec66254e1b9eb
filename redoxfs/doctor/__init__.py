"""What is wrong on a machine, under SOURCE or with a mount, and what to do about it: `doctor` and `debug`.

Each check is a function that returns a `redoxfs.doctor.result.Result`; `cli` prints them. A check that touches a
filesystem or the network runs in a child with a deadline (`redoxfs.launch.deadline`), since either may never answer.
Modules are imported by name, one by one, as in `launch`.
"""
