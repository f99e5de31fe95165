import secrets

import pytest
from serving import Server, binary


@pytest.fixture(scope="session", autouse=True)
def the_binary_is_there():
    if not binary().exists():
        pytest.exit(f"{binary()} is missing: cargo build --release --package flashmesh, or name one by FLASHMESH_BIN", returncode=1)


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """One server without users for all tests that do no harm to it."""
    server = Server(tmp_path_factory.mktemp("server"))
    yield server
    server.stop()


@pytest.fixture
def start(tmp_path):
    """Starts servers that only this test uses."""
    servers = []

    def start_one(*options, **keywords) -> Server:
        folder = tmp_path / f"server{len(servers)}"
        folder.mkdir()
        servers.append(Server(folder, *map(str, options), **keywords))
        return servers[-1]

    yield start_one
    for server in servers:
        server.stop()


@pytest.fixture
def connection(server):
    with server.connect() as connection:
        yield connection


@pytest.fixture
def table():
    """A name that no other test uses."""
    return f"t_{secrets.token_hex(6)}"
