"""Traces: random traffic, saturation, and single streams."""

import random

from mesh import ENDPOINTS, Trace


def _payload(chance):
    return chance.getrandbits(128)


def uniform(routes, packets, seed, clocks=2000, stalls=6):
    """Packets from anywhere to anywhere, the sender's own node included, at random clocks, and
    receivers that stall for a while."""
    chance = random.Random(seed)
    nodes = routes.topology.nodes
    sends = [(chance.randrange(nodes), chance.choice([*ENDPOINTS]), chance.randrange(clocks),
              chance.randrange(nodes), _payload(chance)) for _ in range(packets)]
    trace = Trace(routes.topology, routes, sorted(sends, key=lambda send: send[2]))
    for _ in range(stalls):
        first = chance.randrange(clocks)
        trace.stalls.append((chance.randrange(nodes), chance.choice([*ENDPOINTS]), first,
                             first + chance.randrange(1, 1500)))
    return trace


def saturation(routes, packets, seed, endpoints=(0, 1, 5), farthest=True):
    """All nodes send at once, as fast as they can, to nodes far away (the worst for a ring) or to
    random ones: `packets` for each node and endpoint."""
    chance = random.Random(seed)
    nodes = routes.topology.nodes
    sends = []
    for node in range(nodes):
        for endpoint in endpoints:
            for _ in range(packets):
                to = (node + nodes // 2 - 1) % nodes if farthest else chance.randrange(nodes)
                sends.append((node, endpoint, 0, to, _payload(chance)))
    return Trace(routes.topology, routes, sends)


def isolated(routes, seed, packets=600):
    """One receiver with end-to-end flow control that never takes anything, to which all nodes send
    more than it has places for; all other traffic must arrive."""
    chance = random.Random(seed)
    trace = uniform(routes, packets, seed, stalls=0)
    with_places = next(index for index, has in ENDPOINTS.items() if has)
    trace.sends = [send for send in trace.sends if send[1] != with_places]
    nodes = routes.topology.nodes
    stuck = chance.randrange(nodes)
    trace.stalls.append((stuck, with_places, 0, None))
    for node in range(nodes):
        trace.sends += [(node, with_places, 0, stuck, _payload(chance)) for _ in range(120)]
    return trace


def stream(routes, source, destination, packets, endpoint=0):
    """One stream with nothing else on the network."""
    return Trace(routes.topology, routes, [(source, endpoint, 0, destination, i + 1)
                                           for i in range(packets)])


def paths(routes, packets, seed):
    """Random traffic of endpoints without end-to-end flow control, whose packets alone use the
    network."""
    trace = uniform(routes, packets, seed, stalls=0)
    trace.sends = [send for send in trace.sends if not ENDPOINTS[send[1]]]
    return trace
