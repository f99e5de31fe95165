"""Racks: clients connect to any of the nodes that the rack file names."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

from ._flashmesh import Error

T = TypeVar("T")


def is_rack_file(path: object) -> bool:
    """Whether that is the path of a rack file, and not of a database's folder."""
    return isinstance(path, (str, os.PathLike)) and str(path).endswith(".toml") and os.path.isfile(path)


def addresses(path: str | os.PathLike[str]) -> list[str]:
    """Where the nodes of a rack wait for clients, as urls, in the order of the rack file."""
    import tomllib

    name = os.fspath(path)
    try:
        with open(path, "rb") as file:
            rack = tomllib.load(file)
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise Error(f"the rack file '{name}' can't be read: {error}") from None
    clients, nodes = rack.get("clients", {}), rack.get("node", [])
    if not isinstance(clients, dict) or not isinstance(nodes, list):
        raise Error(f"'{name}' is no rack file: [clients] is a table, and each node a [[node]]")
    scheme = "grpc+tls" if "tls" in clients else "grpc"
    found = [node.get("flight") for node in nodes if isinstance(node, dict)]
    urls = [f"{scheme}://{flight}" for flight in found if isinstance(flight, str)]
    if not urls:
        raise Error(f"no node of the rack file '{name}' has an address for clients (flight)")
    return urls


def first_that_answers(path: str | os.PathLike[str], connect: Callable[[str], T]) -> T:
    """What `connect` makes of the first node's url that answers. What a server answers is an
    answer, also that it does not take the login."""
    tried = []
    for url in addresses(path):
        try:
            return connect(url)
        except Error as error:
            if not str(error).startswith(f"{url} can't be reached"):
                raise
            tried.append(str(error))
    raise Error(f"no node of the rack '{os.fspath(path)}' answers:\n  " + "\n  ".join(tried))
