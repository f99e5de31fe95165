"""Rack files for nodes that reach each other by TCP with mutual TLS, for tests and benchmarks."""

import secrets
from collections.abc import Callable, Sequence
from pathlib import Path

import trustme


def write_rack(
    folder: Path,
    nodes: int,
    address: Callable[[int], str],
    flight: Callable[[int], str],
    endpoints: Sequence[tuple[str, str]],
    *settings: str,
) -> Path:
    """Writes `rack.toml`, its key and certificates: each node has a cable to each other one, a card, an address on
    the mesh, one for clients, and a folder. `endpoints` are names and their flow control, `settings` lines that come
    first."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    key = folder / "rack.key"
    key.write_text(secrets.token_hex(32))
    key.chmod(0o600)
    lines = ['key = "rack.key"', *settings, "[tls]", 'authorities = "ca.pem"']
    for index, (name, flow) in enumerate(endpoints):
        lines += ["[[endpoint]]", f"index = {index}", f'name = "{name}"', f'flow = "{flow}"']
    for node in range(nodes):
        name = f"n{node:02}"
        certificate = authority.issue_cert(name)
        certificate.private_key_pem.write_to_path(folder / f"{name}.key")
        (folder / f"{name}.key").chmod(0o600)
        for part, blob in enumerate(certificate.cert_chain_pems):
            blob.write_to_path(folder / f"{name}.pem", append=part > 0)
        (folder / name).mkdir(exist_ok=True)
        lines += ["[[node]]", f"id = {node}", f'name = "{name}"', f'address = "tcp://{address(node)}:7000"']
        lines += [f'tls = {{ certificate = "{name}.pem", key = "{name}.key" }}', f'folder = "{name}"']
        lines += [f'flight = "{flight(node)}"', "[[node.card]]", "id = 0", f'path = "{name}.flash"']
    for left in range(nodes):
        for right in range(left + 1, nodes):
            lines += ["[[cable]]", f'from = "n{left:02}/{right}"', f'to = "n{right:02}/{left}"']
    file = folder / "rack.toml"
    file.write_text("\n".join(lines) + "\n")
    return file
