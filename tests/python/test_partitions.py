"""Racks whose nodes are in network namespaces of their own, and cut off from each other: one side has a head and
goes on, the other side answers nothing that is old. Needs root and `ip`."""

import os
import shutil
import subprocess
import threading
import time
import tomllib
from pathlib import Path

import pytest
from histories import Clients, Read, head, prepare, whole
from network_racks import write_rack
from running_racks import PATIENCE, SMALL, Rack, binary, eventually, flashmesh

#: How often a node is cut off.
CUTS = int(os.environ.get("FLASHMESH_CUTS", "3"))
NODES = 3
SUBNET = "10.78.11"
SPACES = [f"fm-cut{node}" for node in range(NODES)]
HUB = "fm-cut-hub"
#: The end of the wire to the hub that clients of these tests have.
HERE = "fm-cut"


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def clear() -> None:
    for space in [HUB, *SPACES]:
        subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)
    subprocess.run(["ip", "link", "del", HERE], check=False, capture_output=True)


@pytest.fixture
def network():
    """Namespaces of the nodes, joined by a bridge to which these tests have a wire, too."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and `ip` (Debian: iproute2)")
    clear()
    try:
        ip("netns", "add", HUB)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"this machine makes no network namespaces: {error.stderr.decode().strip()}")
    try:
        ip("-n", HUB, "link", "add", "bridge", "type", "bridge")
        ip("-n", HUB, "link", "set", "bridge", "up")
        for node, space in enumerate(SPACES):
            ip("netns", "add", space)
            ip("-n", space, "link", "set", "lo", "up")
            ip("-n", HUB, "link", "add", f"port{node}", "type", "veth", "peer", "name", "uplink", "netns", space)
            ip("-n", HUB, "link", "set", f"port{node}", "master", "bridge", "up")
            ip("-n", space, "addr", "add", f"{SUBNET}.{node + 1}/24", "dev", "uplink")
            ip("-n", space, "link", "set", "uplink", "up")
        ip("link", "add", HERE, "type", "veth", "peer", "name", "tests", "netns", HUB)
        ip("-n", HUB, "link", "set", "tests", "master", "bridge", "up")
        ip("addr", "add", f"{SUBNET}.100/24", "dev", HERE)
        ip("link", "set", HERE, "up")
        yield
    finally:
        clear()


class CutRack(Rack):
    """Three nodes with copies, each in its namespace; mesh links are TCP with mutual TLS."""

    def __init__(self, folder: Path) -> None:
        flashmesh("rack", "init", folder, "--nodes", NODES, "--replicas", "2")
        draft = tomllib.loads((folder / "rack.toml").read_text())
        (folder / "rack.key").unlink()
        self.folder = folder
        self.file = write_rack(
            folder,
            NODES,
            lambda node: f"{SUBNET}.{node + 1}",
            lambda node: f"{SUBNET}.{node + 1}:50051",
            [(endpoint["name"], endpoint["flow"]) for endpoint in draft["endpoint"]],
            "replicas = 2",
            "[mesh]",
            "deadline_ms = 1000",
            "[clients]",
            "allow_plaintext = true",
            "allow_anonymous = true",
        )
        self.nodes = {node["name"]: node for node in tomllib.loads(self.file.read_text())["node"]}
        self.processes = []
        for number, name in enumerate(self.nodes):
            with open(folder / name / "node.log", "w") as log:
                words = [binary(), "node", self.file, "--name", name, *SMALL]
                command = [*map(str, ["ip", "netns", "exec", SPACES[number], *words])]
                self.processes.append(subprocess.Popen(command, stdout=log, stderr=log))
        whole(self)

    def number(self, name: str) -> int:
        return [*self.nodes].index(name)

    def cut(self, name: str, is_cut: bool) -> None:
        ip("-n", HUB, "link", "set", f"port{self.number(name)}", "down" if is_cut else "up")

    def read_at(self, name: str, history) -> None:
        """Reads a register from within a node's namespace: what can't be read is not noted."""
        key, begun = 0, time.monotonic()
        shell = [binary(), "--connect", f"grpc://{self.nodes[name]['flight']}", "--format", "csv"]
        shell += ["-c", f"SELECT value FROM register WHERE id = {key}"]
        command = [*map(str, ["ip", "netns", "exec", SPACES[self.number(name)], *shell])]
        try:
            read = subprocess.run(command, capture_output=True, text=True, timeout=5)
        except subprocess.TimeoutExpired:
            return
        if read.returncode == 0:
            history.reads[key].append(Read(int(read.stdout.split()[-1]), begun, time.monotonic()))

    def end(self) -> None:
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait(timeout=PATIENCE)
        for log in self.folder.glob("*/node.log"):
            assert "panicked" not in log.read_text(), log.read_text()


def test_whoever_is_cut_off_tells_nothing_old(network, tmp_path) -> None:
    rack = CutRack(tmp_path / "r")
    try:
        prepare(rack)
        with Clients(rack) as clients:
            for _ in range(CUTS):
                now = head(rack)
                cut = now if clients.chance.random() < 0.75 else clients.chance.choice([n for n in rack.nodes if n != now])
                clients.avoided = cut
                clients.go_on_for(20)
                over = threading.Event()

                def read(cut=cut, over=over) -> None:
                    while not over.is_set():
                        rack.read_at(cut, clients.history)

                reading = threading.Thread(target=read)
                reading.start()
                rack.cut(cut, True)
                try:
                    others = [name for name in rack.nodes if name != cut]
                    is_head = lambda nodes, name: nodes[name]["is_head"] and nodes[name]["state"] == "up"  # noqa: E731

                    def another(others=others) -> bool:
                        nodes = rack.status()
                        return any(is_head(nodes, name) for name in others)

                    eventually(another, "the others have a head")
                    clients.go_on_for(20)
                finally:
                    rack.cut(cut, False)
                    over.set()
                    reading.join()
                whole(rack)
        assert clients.history.transfers > 0
    finally:
        rack.end()
