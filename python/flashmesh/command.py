"""The `flashmesh` command, as `pip install` puts it beside Python."""

import os
import signal
import sys

from flashmesh import _flashmesh


def main() -> None:
    """Runs the command line of this process and ends it."""
    # The command has its own way with Ctrl-C: it cancels the query and keeps the shell.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # The process that holds a device's runtime is this command, not Python's program.
    os.environ.setdefault("FLASHMESH_XRT_HOST", os.path.abspath(sys.argv[0]))
    if sys.prefix != sys.base_prefix:
        # Where a compiler of kernels (ziglang) is looked for, also if nobody activated it.
        os.environ.setdefault("VIRTUAL_ENV", sys.prefix)
    sys.exit(_flashmesh.run_command(sys.argv))
