"""Racks, their routing tables, and whether the tables can deadlock.

A channel is one direction of a cable. A packet holds a place in the buffer behind one channel
while it waits for the next one on its route: the second depends on the first. All endpoints share
the buffers, so a rack is free of deadlock if the dependencies of all its routes together have no
cycle (Dally and Seitz, 1987). `flashmesh rack` will make the same check of the rack file.
"""

import random
from dataclasses import dataclass, field


@dataclass
class Topology:
    """Nodes and cables; a cable is ((node, port), (node, port))."""
    name: str
    nodes: int
    cables: list = field(default_factory=list)

    def __post_init__(self):
        self.used = [0] * self.nodes

    def join(self, a, b):
        """A cable between the next free ports of two nodes."""
        ends = []
        for node in (a, b):
            ends.append((node, self.used[node]))
            self.used[node] += 1
        self.cables.append(tuple(ends))

    def neighbours(self, node):
        """(port, neighbour) for each cable of a node, in the order of its ports."""
        ends = self.cables + [(b, a) for a, b in self.cables]
        return sorted((port, other) for (n, port), (other, _) in ends if n == node)


def line(nodes, lanes=1):
    topology = Topology(f"line of {nodes}" + (f", {lanes} lanes" if lanes > 1 else ""), nodes)
    for node in range(nodes - 1):
        for _ in range(lanes):
            topology.join(node, node + 1)
    return topology


def ring(nodes, lanes=1):
    topology = line(nodes, lanes)
    topology.name = topology.name.replace("line", "ring")
    for _ in range(lanes):
        topology.join(nodes - 1, 0)
    return topology


def mesh(rows, columns):
    topology = Topology(f"mesh of {rows} x {columns}", rows * columns)
    for row in range(rows):
        for column in range(columns):
            node = row * columns + column
            if column + 1 < columns:
                topology.join(node, node + 1)
            if row + 1 < rows:
                topology.join(node, node + columns)
    return topology


def torus(rows, columns):
    topology = mesh(rows, columns)
    topology.name = topology.name.replace("mesh", "torus")
    for row in range(rows):
        topology.join(row * columns + columns - 1, row * columns)
    for column in range(columns):
        topology.join((rows - 1) * columns + column, column)
    return topology


def fat_tree():
    """Two roots, four nodes below both, eight leaves: as BlueDBM's figure 5 has it, all nodes
    store."""
    topology = Topology("fat tree of 14", 14)
    for middle in range(2, 6):
        for root in (0, 1):
            topology.join(root, middle)
    for leaf in range(6, 14):
        group = (leaf - 6) // 4
        topology.join(2 + 2 * group, leaf)
        topology.join(3 + 2 * group, leaf)
    return topology


def star(nodes):
    topology = Topology(f"star of {nodes}", nodes)
    for node in range(1, nodes):
        topology.join(0, node)
    return topology


class Routes:
    """The port for each (node, endpoint, destination)."""

    def __init__(self, topology, ports):
        self.topology = topology
        self.ports = ports
        self.across = {}
        for a, b in topology.cables:
            self.across[a] = b
            self.across[b] = a

    def path(self, source, endpoint, destination):
        """The channels, (node, port), that packets take."""
        channels = []
        node = source
        while node != destination:
            channel = node, self.ports[node, endpoint, destination]
            if channel in channels or channel not in self.across:
                raise ValueError(f"{self.topology.name}: the route from {source} to {destination} "
                                 f"goes in circles or nowhere")
            channels.append(channel)
            node = self.across[channel][0]
        return channels

    def cycle(self):
        """Channels that wait for each other in a circle, or None."""
        after = {}
        for source, endpoint, destination in self.ports:
            path = self.path(source, endpoint, destination)
            for held, wanted in zip(path, path[1:]):
                after.setdefault(held, set()).add(wanted)
        done, on_path = set(), []

        def search(channel):
            if channel in on_path:
                return on_path[on_path.index(channel):]
            if channel in done:
                return None
            on_path.append(channel)
            for following in sorted(after.get(channel, ())):
                if found := search(following):
                    return found
            done.add(on_path.pop())
            return None

        return next(filter(None, map(search, sorted(after))), None)


def shortest(topology, endpoints, seed=0):
    """Shortest paths; endpoints choose among them by themselves. On a ring they can deadlock."""
    def choices(destination):
        hops = _hops(topology, destination, lambda node, other: True)
        for node in hops:
            if node != destination:
                yield node, [port for port, other in topology.neighbours(node)
                             if hops[other] == hops[node] - 1]
    return _choose(topology, endpoints, seed, choices)


def up_down(topology, endpoints, seed=0):
    """Shortest of the paths that go up, towards node 0, and then down, never up again (Autonet,
    Schroeder et al., 1991). A dependency is then from up to up, from up to down or from down to
    down, so no cycle is possible, whatever endpoints choose.

    A table does not know where a packet came from: a node from which a way down leads to the
    destination uses it, all others go up.
    """
    level = _hops(topology, 0, lambda node, other: True)
    rank = {node: (level[node], node) for node in level}

    def choices(destination):
        hops = _hops(topology, destination, lambda node, other: rank[node] < rank[other])
        below = set(hops)
        for node in sorted(rank, key=rank.get):
            if node == destination:
                continue
            ways = [(hops[other], port) for port, other in topology.neighbours(node)
                    if (other in below and rank[node] < rank[other] if node in below
                        else rank[other] < rank[node])]
            fewest = min(ways)[0]
            hops[node] = fewest + 1
            yield node, [port for length, port in ways if length == fewest]
    return _choose(topology, endpoints, seed, choices)


def _hops(topology, destination, is_allowed):
    """How far nodes are from a destination over the channels (node, other) that are allowed."""
    hops = {destination: 0}
    queue = [destination]
    for other in queue:
        for _, node in topology.neighbours(other):
            if node not in hops and is_allowed(node, other):
                hops[node] = hops[other] + 1
                queue.append(node)
    return hops


def _choose(topology, endpoints, seed, choices):
    """For each endpoint, one of the ports that are as good as each other."""
    chance = random.Random(seed)
    ports = {}
    for destination in range(topology.nodes):
        for node, equal in choices(destination):
            for endpoint in endpoints:
                ports[node, endpoint, destination] = chance.choice(equal)
    return Routes(topology, ports)


def dimension_order(topology, rows, columns, endpoints):
    """Along the row, then along the column: free of deadlock in a mesh."""
    ports = {}
    for node in range(rows * columns):
        by_neighbour = {other: port for port, other in topology.neighbours(node)}
        row, column = divmod(node, columns)
        for destination in range(rows * columns):
            to_row, to_column = divmod(destination, columns)
            if to_column != column:
                following = node + (1 if to_column > column else -1)
            elif to_row != row:
                following = node + (columns if to_row > row else -columns)
            else:
                continue
            for endpoint in endpoints:
                ports[node, endpoint, destination] = by_neighbour[following]
    return Routes(topology, ports)
