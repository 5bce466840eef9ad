"""torchrun, that ends with the process that started it.

A signal for the death of the parent is forgotten when a process changes its credentials, as on entering a user
namespace; so it is asked for here, after that, and by every rank for itself
(:mod:`densing.efficiency.parallel.distributed.rank`).
"""

from __future__ import annotations

import os
import sys

from densing.efficiency.parallel.distributed.processes import die_with_parent, orphaned

LAUNCHER = "DENSING_LAUNCHER"
"""Environment variable: process id of who started the agents."""
AGENT = "DENSING_AGENT"
"""Environment variable: process id of the agent of a rank."""


def main() -> None:
    """Run torchrun with this process's arguments."""
    die_with_parent()
    if orphaned(int(os.environ[LAUNCHER])):
        sys.exit(1)
    os.environ[AGENT] = str(os.getpid())
    from torch.distributed.run import main as torchrun

    torchrun(sys.argv[1:])


if __name__ == "__main__":
    main()
