"""What is simulated. Each scenario raises Failure, or gives what is said of its success."""

import os
import pathlib
import random
import sys

import mesh
import topology
import traffic
from network.bench.simulator import Simulator  # noqa: F401: for fpga/rtl
from steps import Failure, run

ENDPOINTS = [*mesh.ENDPOINTS]
TRACES = pathlib.Path(__file__).resolve().parent.parent / "traces"

# Seeds are those of FLASHMESH_TEST_SEED, or fixed ones: the same run everywhere.
SEED = int(os.environ.get("FLASHMESH_TEST_SEED", "1"))

# A line of 20 nodes, then what the paper's figure 5 shows; 1 to 8 ports in use.
RACKS = {
    "line": lambda: topology.line(20),
    "line of 8 lanes": lambda: topology.line(2, lanes=8),
    "ring": lambda: topology.ring(20),
    "ring of 4 lanes": lambda: topology.ring(6, lanes=4),
    "star": lambda: topology.star(9),
    "mesh": lambda: topology.mesh(4, 5),
    "torus": lambda: topology.torus(4, 5),
    "fat tree": topology.fat_tree,
}


def _routes(name, seed=SEED):
    rack = RACKS[name]()
    if name == "mesh":
        return topology.dimension_order(rack, 4, 5, ENDPOINTS)
    return topology.up_down(rack, ENDPOINTS, seed)


def hops(simulator, bench):
    """Each node of a line of 20 to each other: 1 to 19 hops, and 0."""
    routes = _routes("line")
    trace = mesh.Trace(routes.topology, routes)
    chance = random.Random(SEED)
    pairs = [(a, b) for a in range(20) for b in range(20)]
    chance.shuffle(pairs)
    for number, (source, destination) in enumerate(pairs):
        trace.sends.append((source, chance.choice(ENDPOINTS), 0, destination, number))
    said = simulator.run(bench, trace, "--seed", SEED)
    return f"{said['delivered']} packets over 0 to 19 hops"


def random_traffic(name):
    def scenario(simulator, bench):
        routes = _routes(name)
        if found := routes.cycle():
            raise Failure(f"the routes of the {name} can deadlock: {found}")
        delivered = 0
        for seed in (SEED, SEED + 1):
            trace = traffic.uniform(routes, 500, seed)
            delivered += simulator.run(bench, trace, "--seed", seed, "--jitter")["delivered"]
        return f"{delivered} packets, seeds {SEED} and {SEED + 1}"
    return scenario


def paths(simulator, bench):
    """Each channel carries just the packets whose route it is on."""
    routes = _routes("torus")
    trace = traffic.paths(routes, 1200, SEED)
    wanted = {}
    for source, endpoint, _, destination, _ in trace.sends:
        for node, port in routes.path(source, endpoint, destination):
            wanted[node, port] = wanted.get((node, port), 0) + 1
    said = simulator.run(bench, trace, "--seed", SEED)
    found = {(node, port): packets for node, port, packets in said["channels"] if packets > 0}
    if found != wanted:
        different = sorted(set(found.items()) ^ set(wanted.items()))
        raise Failure(f"packets on channels (node, port) are not those of the routes: {different}")
    return f"{sum(wanted.values())} hops of {len(trace.sends)} packets on {len(wanted)} channels"


def bit_errors(simulator, bench):
    """Lines so bad that many frames are lost: all is delivered, once and in order."""
    spoiled = repeats = 0
    for name in ("ring", "torus"):
        for errors in (20_000, 2_000):
            trace = traffic.uniform(_routes(name), 400, SEED)
            said = simulator.run(bench, trace, "--seed", SEED, "--errors", errors,
                                 "--limit", 60_000)
            spoiled += said["spoiled"]
            repeats += said["repeats"]
    if spoiled == 0 or repeats == 0:
        raise Failure("there were no errors to repair")
    return f"{spoiled} frames spoiled, {repeats} times sent again, all delivered; seed {SEED}"


def few_ports(simulator, bench):
    """Nodes that are built with 1 and with 3 ports."""
    delivered = 0
    for ports, rack in ((1, topology.line(2)), (3, topology.mesh(2, 3))):
        small = simulator.build(f"node-{ports}", ports=ports)
        trace = traffic.uniform(topology.up_down(rack, ENDPOINTS, SEED), 500, SEED)
        delivered += simulator.run(small, trace, "--seed", SEED, "--jitter")["delivered"]
    return f"{delivered} packets, seed {SEED}"


def isolation(simulator, bench):
    """A receiver with end-to-end flow control that never takes anything holds nobody up."""
    delivered = 0
    for name in ("ring", "torus"):
        delivered += simulator.run(bench, traffic.isolated(_routes(name), SEED))["delivered"]
    return f"{delivered} packets past it; seed {SEED}"


def saturation(name):
    def scenario(simulator, bench):
        routes = _routes(name)
        if found := routes.cycle():
            raise Failure(f"the routes of the {name} can deadlock: {found}")
        packets = 0
        for is_farthest in (True, False):
            trace = traffic.saturation(routes, 60, SEED, farthest=is_farthest)
            packets += simulator.run(bench, trace, "--seed", SEED)["delivered"]
        return f"{packets} packets at once; seed {SEED}"
    return scenario


def deadlock(simulator, bench):
    """Shortest paths around a ring: the check of the dependencies finds the cycle, and saturation
    does block. So neither of the two is blind."""
    routes = topology.shortest(topology.ring(6), ENDPOINTS, SEED)
    found = routes.cycle()
    if not found:
        raise Failure("no cycle found in the dependencies")
    trace = traffic.saturation(routes, 200, SEED)
    simulator.run(bench, trace, "--seed", SEED, is_deadlock=True)
    try:
        mesh.run(trace, SEED)
    except mesh.Deadlock:
        return f"found: {len(found)} channels in a circle, in the RTL and in the model"
    raise Failure("the model does not deadlock")


def traces(simulator, bench):
    """The traces that the software mesh replays too."""
    run([sys.executable, TRACES.parent / "model/generate.py", "--check"], 120)
    paths = sorted(TRACES.glob("*.trace"))
    for path in paths:
        simulator.run(bench, path)
        simulator.run(bench, path, "--seed", SEED, "--jitter", "--latency", "65")
    return f"{len(paths)} traces, with and without jitter"


def frames(simulator, bench):
    return run([simulator.build_frame(), "--seed", SEED], 120).stdout.strip()


ALL = {
    "frames": frames,
    "traces": traces,
    "hops": hops,
    **{f"random traffic, {name}": random_traffic(name) for name in RACKS},
    "paths": paths,
    "bit errors": bit_errors,
    "few ports": few_ports,
    "isolation": isolation,
    **{f"saturation, {name}": saturation(name)
       for name in ("ring", "mesh", "torus", "fat tree")},
    "deadlock": deadlock,
}

# Line latency in clocks with which a hop takes 75 clocks of 6.4 ns: the paper's 0.48 us.
PAPER_LATENCY = 65
CLOCK_NS = 6.4


def figures(simulator, bench):
    """Bandwidth of one stream of 128-bit packets, and latency of one packet, against hops."""
    rows = []
    for hops_ in (1, 2, 3, 4, 5, 10, 19):
        routes = topology.up_down(topology.line(hops_ + 1), ENDPOINTS)
        row = {"hops": hops_}
        # The bandwidth is that between two packets of the stream, far enough from its start.
        for name, endpoint, start, end in (("plain", 0, 200, 600), ("end_to_end", 9, 64, 192)):
            alone, short, long = (_stream(simulator, bench, routes, endpoint, packets)
                                  for packets in (1, start, end))
            clocks = (long - short) / (end - start)
            row[name] = {"latency_us": round(alone * CLOCK_NS / 1000, 3),
                         "gbit_s": round(128 / (clocks * CLOCK_NS), 2)}
        rows.append(row)
    return {"clock_ns": CLOCK_NS, "line_latency_clocks": PAPER_LATENCY, "rows": rows}


def _stream(simulator, bench, routes, endpoint, packets):
    """The clock in which the last packet of a stream to the far end of a line arrives."""
    trace = traffic.stream(routes, 0, routes.topology.nodes - 1, packets, endpoint)
    said = simulator.run(bench, trace, "--latency", PAPER_LATENCY)
    (*_, last), = said["flows"]
    return last
