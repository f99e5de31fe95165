"""`flashmesh rack`: rack files and their routes."""

import importlib.util
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest


def flashmesh(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = Path(sys.executable).with_name("flashmesh")
    return subprocess.run([command, "rack", *arguments], capture_output=True, text=True)


@pytest.fixture(scope="module")
def topology() -> ModuleType:
    """The model of the RTL's tests, which has a check of routes of its own."""
    path = Path(__file__).parents[2] / "fpga/network/model/topology.py"
    spec = importlib.util.spec_from_file_location("mesh_topology", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("nodes, shape", [(2, "line"), (6, "ring"), (12, "grid"), (20, "torus"), (9, "full")])
def test_routes_of_a_new_rack_arrive_and_can_not_deadlock(
    tmp_path: Path, topology: ModuleType, nodes: int, shape: str
) -> None:
    folder = tmp_path / "rack"
    made = flashmesh("init", str(folder), "--nodes", str(nodes), "--shape", shape, "--replicas", "2")
    assert made.returncode == 0, made.stderr
    file = made.stdout.strip()
    assert Path(file) == folder / "rack.toml"
    assert len([*folder.glob("n??")]) == nodes
    described = tomllib.loads((folder / "rack.toml").read_text())
    assert described["head"] == "n00"
    ports = [int(node["flight"].removeprefix("127.0.0.1:")) for node in described["node"]]
    assert ports == [*range(ports[0], ports[0] + nodes)]
    checked = flashmesh("check", file)
    assert checked.returncode == 0, checked.stderr
    assert f"nodes      {nodes}, with {nodes} cards" in checked.stdout

    lines = [line.split() for line in flashmesh("routes", file).stdout.splitlines()]
    assert lines[0] == ["mesh-trace", "1"] and lines[1] == ["nodes", str(nodes)]
    endpoints = [int(words[1]) for words in lines if words[0] == "endpoint"]
    rack = topology.Topology(shape, nodes)
    for a, p, b, q in (map(int, words[1:]) for words in lines if words[0] == "cable"):
        rack.cables.append(((a, p), (b, q)))
    routes = topology.Routes(rack, {})
    for node, endpoint, destination, port in (map(int, words[1:]) for words in lines if words[0] == "route"):
        routes.ports[node, endpoint, destination] = port
    assert len(routes.ports) == nodes * (nodes - 1) * len(endpoints)
    # It follows each route to its end, and raises where that is nowhere.
    assert routes.cycle() is None


def test_what_is_there_is_not_written_over(tmp_path: Path) -> None:
    assert flashmesh("init", str(tmp_path)).returncode == 0
    before = (tmp_path / "rack.toml").read_text()
    again = flashmesh("init", str(tmp_path), "--nodes", "9")
    assert again.returncode == 1 and "rack.toml is there already" in again.stderr
    assert (tmp_path / "rack.toml").read_text() == before
    # What a key has sealed goes with it.
    key = (tmp_path / "rack.key").read_text()
    (tmp_path / "rack.toml").unlink()
    assert flashmesh("init", str(tmp_path)).returncode == 0
    assert (tmp_path / "rack.key").read_text() == key


def test_paths_of_sockets_are_short_enough(tmp_path: Path) -> None:
    refused = flashmesh("init", str(tmp_path / ("deep" * 25)))
    assert refused.returncode == 1 and "107 bytes" in refused.stderr


def test_routes_that_can_deadlock_are_refused(tmp_path: Path) -> None:
    made = flashmesh("init", str(tmp_path), "--nodes", "5", "--shape", "ring")
    file = Path(made.stdout.strip())
    # Everybody goes round to the right: each link waits for the next one.
    ports = {0: 0, 1: 1, 2: 1, 3: 1, 4: 1}
    routes = [
        f'\n[[route]]\nnode = "n{node:02}"\ndestination = "n{(node + hops) % 5:02}"\nport = {ports[node]}\n'
        for node in range(5)
        for hops in range(1, 5)
    ]
    file.write_text(file.read_text() + "".join(routes))
    for command in ("check", "routes"):
        refused = flashmesh(command, str(file))
        assert refused.returncode == 1
        assert "deadlock" in refused.stderr and "n03/1 → n04/0" in refused.stderr


def test_contradictions_are_named(tmp_path: Path) -> None:
    refused = flashmesh("init", str(tmp_path / "a"), "--nodes", "12", "--shape", "full")
    assert refused.returncode == 1 and "11 ports of a node" in refused.stderr
    assert not (tmp_path / "a").exists()
    refused = flashmesh("init", str(tmp_path / "b"), "--nodes", "2", "--replicas", "3")
    assert refused.returncode == 1 and "replicas = 3" in refused.stderr
    missing = flashmesh("check", str(tmp_path / "c.toml"))
    assert missing.returncode == 1 and "c.toml" in missing.stderr
