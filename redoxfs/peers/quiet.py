"""Silences gRPC's own messages. Imported before gRPC, which reads the variable at import.

Its core logs for its developers, such as that a peer ended, between the lines of a node in the foreground. A value
that the user has set stays.
"""

import os

os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
