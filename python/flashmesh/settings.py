"""Settings of a connection as attributes and as a mapping."""

from __future__ import annotations

import re
from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING, Literal, cast

from ._flashmesh import Error

if TYPE_CHECKING:
    from .backend import Backend


def _checked(name: str) -> str:
    """The name of a setting, which is to stand in a statement."""
    if not re.fullmatch(r"\w+(\.\w+)*", name, re.ASCII):
        raise Error(f"there is no setting '{name}'")
    return name


class Settings(MutableMapping[str, str | None]):
    """Settings of a connection.

    flashmesh's own are attributes; all of them, DataFusion's too, are items by their full name,
    as in SQL's `SET`:

    >>> con.settings.pushdown = "never"
    >>> con.settings["datafusion.execution.batch_size"] = "4096"
    """

    _backend: Backend
    _progress: bool | None
    _replacement_scans: bool

    def __init__(self, backend: Backend) -> None:
        object.__setattr__(self, "_backend", backend)
        object.__setattr__(self, "_progress", None)
        object.__setattr__(self, "_replacement_scans", True)

    @property
    def pushdown(self) -> Literal["auto", "always", "never"]:
        """Whether filters, projections, aggregates and top-k run beside the pages: by cost,
        whenever possible, or not at all."""
        return cast(Literal["auto", "always", "never"], self["flashmesh.pushdown"])

    @pushdown.setter
    def pushdown(self, value: Literal["auto", "always", "never"]) -> None:
        self["flashmesh.pushdown"] = value

    @property
    def fallback(self) -> Literal["allow", "error"]:
        """When an accelerator can't run what was planned for it: the host does it, or an error."""
        return cast(Literal["allow", "error"], self["flashmesh.fallback"])

    @fallback.setter
    def fallback(self, value: Literal["allow", "error"]) -> None:
        self["flashmesh.fallback"] = value

    @property
    def approximate(self) -> bool:
        """Whether sorting by a distance may use an lsh index, and so miss some of the nearest."""
        return self["flashmesh.approximate"] == "on"

    @approximate.setter
    def approximate(self, value: bool) -> None:
        self["flashmesh.approximate"] = "on" if value else "off"

    @property
    def cache_size(self) -> str | None:
        """Capacity of the database's page cache, e.g. '512MB'; None: as it was opened."""
        return self["flashmesh.cache_size"]

    @cache_size.setter
    def cache_size(self, value: int | str) -> None:
        self["flashmesh.cache_size"] = str(value)

    @property
    def progress(self) -> bool | None:
        """Whether long queries draw a progress bar; None: in terminals and notebooks."""
        return self._progress

    @progress.setter
    def progress(self, value: bool | None) -> None:
        object.__setattr__(self, "_progress", value)

    @property
    def replacement_scans(self) -> bool:
        """Whether a name in FROM that no table has may be that of a variable with data."""
        return self._replacement_scans

    @replacement_scans.setter
    def replacement_scans(self, value: bool) -> None:
        object.__setattr__(self, "_replacement_scans", value)

    def __setattr__(self, name: str, value: object) -> None:
        # A misspelt name must not become an attribute that nobody reads.
        if not isinstance(getattr(type(self), name, None), property):
            known = [k for k, v in vars(type(self)).items() if isinstance(v, property)]
            raise AttributeError(f"there is no setting '{name}'; there are: {', '.join(known)}")
        super().__setattr__(name, value)

    def __getitem__(self, name: str) -> str | None:
        return self._backend.setting(name)

    def __setitem__(self, name: str, value: object) -> None:
        if isinstance(value, bool):
            value = str(value).lower()
        self._backend.set_setting(_checked(name), str(value))

    def __delitem__(self, name: str) -> None:
        self._backend.execute(f"RESET {_checked(name)}")

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self._backend.settings())

    def __len__(self) -> int:
        return len(self._backend.settings())

    def __repr__(self) -> str:
        own = ("pushdown", "fallback", "approximate", "cache_size", "progress", "replacement_scans")
        return f"Settings({', '.join(f'{name}={getattr(self, name)!r}' for name in own)})"
