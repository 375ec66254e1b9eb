"""Everything around a daemon: opening SOURCE, finding the other nodes, the fork, and the paths it uses.

Nothing here parses a command line or prints a result; `cli` does both. Modules are imported by name, one by one,
because a short command such as `redoxfs umount` must not load numpy.
"""
