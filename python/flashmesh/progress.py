"""A progress bar for queries that take long."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

#: Seconds before a bar appears: most queries never show one.
DELAY = 1.0
#: Cells of the bar that is drawn without tqdm.
WIDTH = 30


def wanted(setting: bool | None) -> bool:
    """Whether to draw bars: as set, otherwise where somebody looks on."""
    if setting is not None:
        return setting
    return sys.stderr.isatty() or _in_notebook()


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return shell is not None and hasattr(shell, "kernel")


class Bar:
    """A bar of segments done, with the bytes that came from flash; tqdm's if it is installed."""

    def __init__(self) -> None:
        self._begin = time.monotonic()
        self._tqdm: Any = None
        self._line = ""

    def __call__(self, done: int, total: int, bytes_from_flash: int) -> None:
        """What the query reports while it runs."""
        if total == 0 or time.monotonic() - self._begin < DELAY:
            return
        flash = f"{bytes_from_flash / 1e6:,.0f} MB from flash"
        if self._tqdm is None and not self._line:
            try:
                from tqdm.auto import tqdm
            except ImportError:
                pass
            else:
                self._tqdm = tqdm(total=total, unit="segment", leave=False)
        if self._tqdm is not None:
            self._tqdm.total = total
            self._tqdm.set_postfix_str(flash, refresh=False)
            self._tqdm.update(done - self._tqdm.n)
            return
        cells = WIDTH * done // total
        line = f"{100 * done // total:3d} % |{'█' * cells}{' ' * (WIDTH - cells)}| {flash}"
        sys.stderr.write("\r" + line.ljust(len(self._line)))
        sys.stderr.flush()
        self._line = line

    def __enter__(self) -> Bar:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._tqdm is not None:
            self._tqdm.close()
        elif self._line:
            sys.stderr.write("\r" + " " * len(self._line) + "\r")
            sys.stderr.flush()
