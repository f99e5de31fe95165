"""The `flashmesh` command, as `pip install` puts it beside Python."""

import signal
import sys

from flashmesh import _flashmesh


def main() -> None:
    """Runs the command line of this process and ends it."""
    # The command has its own way with Ctrl-C: it cancels the query and keeps the shell.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(_flashmesh.run_command(sys.argv))
