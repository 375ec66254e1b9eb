"""Imported before gRPC, which reads this when it is: what its core says for its own developers, such as that a peer
ended, would come between the lines of a node in the foreground. Whoever sets the variable is not overruled."""

import os

os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
