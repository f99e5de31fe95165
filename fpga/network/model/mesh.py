"""A reference model of the storage network: traces, and what they must deliver.

It moves whole packets through bounded queues, one for each channel and endpoint, and knows no
clocks: an order of events is drawn from a seed. What a trace delivers does not depend on it. The
model is simple on purpose; the RTL and the software mesh are held against it.
"""

import random
from collections import deque
from dataclasses import dataclass, field

from topology import Routes, Topology

# The endpoints of the benches by index, with gaps: whether they have end-to-end flow control.
ENDPOINTS = {0: False, 1: False, 5: False, 9: True}
WINDOW = 16          # as in node.sv
CAPACITY = 63        # packets in the buffer behind a channel
FIFO = 16            # packets in an endpoint's FIFO


class Deadlock(Exception):
    """Packets are left and none can move."""


@dataclass
class Trace:
    topology: Topology
    routes: Routes
    # (node, endpoint, clock, destination, payload); in order for each (node, endpoint)
    sends: list = field(default_factory=list)
    # (node, endpoint, from, to); to is None: for ever
    stalls: list = field(default_factory=list)

    def text(self, without_deliveries=False):
        """The trace as a file, with the deliveries that the model finds; README.md, "Traces".
        Without a run of the model, for what deadlocks: what was sent."""
        lines = ["mesh-trace 1", f"# {self.topology.name}", f"nodes {self.topology.nodes}"]
        lines += [f"endpoint {index} {'end-to-end' if has else 'plain'}"
                  for index, has in ENDPOINTS.items()]
        lines += [f"cable {a} {p} {b} {q}" for (a, p), (b, q) in self.topology.cables]
        lines += [f"route {n} {e} {d} {p}" for (n, e, d), p in sorted(self.routes.ports.items())]
        lines += [f"stall {n} {e} {first} {'ever' if last is None else last}"
                  for n, e, first, last in self.stalls]
        lines += [f"send {n} {e} {clock} {d} {payload:x}" for n, e, clock, d, payload in self.sends]
        deliveries = self.sent() if without_deliveries else run(self)
        for (node, endpoint, source), payloads in sorted(deliveries.items()):
            lines += [f"deliver {node} {endpoint} {source} {payload:x}" for payload in payloads]
        return "\n".join(lines) + "\n"

    def sent(self):
        """{(destination, endpoint, source): payloads} as they were sent."""
        flows = {}
        for node, endpoint, _, destination, payload in self.sends:
            flows.setdefault((destination, endpoint, node), []).append(payload)
        return flows


def run(trace, seed=0):
    """{(node, endpoint, source): payloads in order}. Raises Deadlock."""
    return _Network(trace, seed).run()


class _Network:
    def __init__(self, trace, seed):
        self.trace = trace
        self.chance = random.Random(seed)
        nodes = range(trace.topology.nodes)
        self.sending = {(n, e): deque() for n in nodes for e in ENDPOINTS}
        for node, endpoint, _, destination, payload in trace.sends:
            self.sending[node, endpoint].append((node, endpoint, destination, payload))
        self.buffers = {channel: deque() for channel in trace.routes.across}
        self.receiving = {(n, e): deque() for n in nodes for e in ENDPOINTS}
        self.under_way = {}      # packets of (source, endpoint, destination) not yet taken
        self.never = {(n, e) for n, e, _, last in trace.stalls if last is None}
        self.delivered = {}

    def run(self):
        events = [(self.send, key) for key in self.sending]
        events += [(self.forward, key) for key in self.buffers]
        events += [(self.receive, key) for key in self.receiving]
        is_moving = True
        while is_moving:
            self.chance.shuffle(events)
            is_moving = any([event(key) for event, key in events])
        left = [p for queue in self.sending.values() for p in queue if not self.is_held(p)]
        left += [p for queue in self.buffers.values() for p in queue]
        if left:
            raise Deadlock(f"{self.trace.topology.name}: {len(left)} packets can't move, "
                           f"the first from {left[0][0]} to {left[0][2]}")
        return self.delivered

    def is_held(self, packet):
        """Whether it waits for a place at a receiver that will never take anything."""
        _, endpoint, destination, _ = packet
        return ENDPOINTS[endpoint] and (destination, endpoint) in self.never

    def send(self, key):
        queue = self.sending[key]
        if not queue:
            return False
        source, endpoint, destination, _ = queue[0]
        flow = source, endpoint, destination
        if ENDPOINTS[endpoint] and self.under_way.get(flow, 0) == WINDOW:
            return False
        if not self.move(source, queue):
            return False
        self.under_way[flow] = self.under_way.get(flow, 0) + 1
        return True

    def forward(self, channel):
        """Moves the first packet of the buffer behind a channel."""
        node, _ = self.trace.routes.across[channel]
        return bool(self.buffers[channel]) and self.move(node, self.buffers[channel])

    def move(self, node, queue):
        _, endpoint, destination, _ = queue[0]
        if node == destination:
            following = self.receiving[node, endpoint]
            # With end-to-end flow control there is a place for all that is sent.
            is_full = not ENDPOINTS[endpoint] and len(following) == FIFO
        else:
            following = self.buffers[node, self.trace.routes.ports[node, endpoint, destination]]
            is_full = len(following) == CAPACITY
        if is_full:
            return False
        following.append(queue.popleft())
        return True

    def receive(self, key):
        queue = self.receiving[key]
        if not queue or key in self.never:
            return False
        source, endpoint, destination, payload = queue.popleft()
        self.under_way[source, endpoint, destination] -= 1
        self.delivered.setdefault((destination, endpoint, source), []).append(payload)
        return True
