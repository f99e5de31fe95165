"""What is simulated. Each scenario raises Failure, or gives what is said of its success."""

import os

from shell.bench.simulator import KERNEL_BENCH, KERNEL_SOURCES
from shell.bench.simulator import Simulator  # noqa: F401: for fpga/rtl
from steps import Failure

# Seeds are those from FLASHMESH_TEST_SEED on, or fixed ones: the same run everywhere.
SEED = int(os.environ.get("FLASHMESH_TEST_SEED", "1"))


def _run(simulator, bench, wanted, *options, kernels=((), (), ())):
    """Runs a seed for each pair of kernels; each of the counts that are wanted must be above 0.
    What there was of them."""
    sums = dict.fromkeys(wanted, 0)
    seeds = tuple(range(SEED, SEED + len(kernels)))
    for seed, in_slots in zip(seeds, kernels):
        said = simulator.run(bench, *in_slots, "--seed", seed, *options)
        for name in wanted:
            if said[name] == 0:
                raise Failure(f"seed {seed}: nothing was {name}")
            sums[name] += said[name]
    return ", ".join(f"{count} {name}" for name, count in sums.items()) + f"; seeds {seeds}"


def everything(simulator, bench):
    """All units and users at once, some of whom want what they may not have."""
    return _run(simulator, bench,
                ["read", "written", "erased", "failed", "refused", "streamed", "out_of_bounds",
                 "outcomes", "taken", "overtaken"],
                "--reads", 1500, "--jobs", 30, "--pages", 500, "--raw", 150, "--hostile", "--fast",
                "--jitter", "--limit", 50_000)


def without_pauses(simulator, bench):
    """Users and cards that are always ready: other coincidences than with pauses."""
    return _run(simulator, bench, ["read", "written", "refused", "streamed", "outcomes", "taken"],
                "--reads", 1500, "--jobs", 30, "--pages", 500, "--raw", 150, "--hostile", "--fast",
                "--limit", 50_000)


def timing(simulator, bench):
    """With the paper's latencies and bandwidths."""
    return _run(simulator, bench, ["read", "written", "erased", "streamed", "taken", "overtaken"],
                "--reads", 200, "--jobs", 8, "--pages", 100, "--raw", 100, "--hostile")


def kernels(simulator, bench):
    """HLS kernels in C simulation in the slots, beside other users of the device; with pauses."""
    return _kernels(simulator, bench, ["read", "taken"], "--reads", 200, "--raw", 60, "--fast",
                    "--jitter", "--limit", 50_000)


def kernels_timing(simulator, bench):
    """The same alone, without pauses and with the paper's latencies and bandwidths."""
    return _kernels(simulator, bench, [])


def kernels_held_up(simulator, bench):
    """Nobody takes what the kernels find until that holds up what they are given."""
    return _run(simulator, bench, ["streamed", "held_up", "results", "at_once", "clocks"],
                "--pages", 200, "--length", 200, "--fast", "--hold", 150_000,
                kernels=[("fgrep8", "fgrep8"), ("fgrep8", "read_modify_write"),
                         ("read_modify_write", "read_modify_write")])


def _kernels(simulator, bench, wanted, *options):
    # Streamed are pages; out of order those that a card gave before others that it was asked for
    # earlier; results are packets; found are texts, and words for an operation. Parts share
    # commands, and lack pages between or behind others.
    # The clocks are simulated, and the kernels take none of them.
    return _run(simulator, bench,
                ["streamed", "refused", "out_of_bounds", "out_of_order", "outcomes", "results",
                 "found", "shared", "with_gaps", "at_once", *wanted, "clocks"],
                "--pages", 250, "--hostile", *options,
                kernels=[("hamming_nearest", "morris_pratt"), ("morris_pratt", "fgrep8"),
                         ("fgrep8", "read_modify_write"),
                         ("read_modify_write", "hamming_nearest")])


ALL = {"everything": everything, "without pauses": without_pauses, "timing": timing,
       "kernels in slots": kernels, "kernels in slots, timing": kernels_timing,
       "kernels in slots, held up": kernels_held_up}

# Scenarios on another bench: what builds it, and the files of it that mutants may change.
BENCHES = {name: ("build_kernels", KERNEL_BENCH) for name in ALL if "kernels" in name}
# What goes into simulations and lies elsewhere.
ALSO = [*KERNEL_BENCH, *KERNEL_SOURCES]

CLOCK_NS = 6.4
PAGE_BYTES = 8192

# Who reads, and how: figure 13 of BlueDBM has the first two.
BANDWIDTHS = {
    "in-store processors, pages as they come": ["--raw", 3000],
    "host": ["--reads", 4000],
    "host and in-store processors": ["--reads", 3000, "--raw", 3000],
    "slots, random pages in order": ["--pages", 2000],
    "slots, runs of 64 pages in order": ["--pages", 2048, "--length", 64],
    "host and slots, random pages": ["--reads", 2000, "--pages", 2000],
}


def figures(simulator, bench):
    """Bandwidth of reads of 8 KiB from two cards, and latency of one, alone."""
    rows = {}
    for name, options in BANDWIDTHS.items():
        said = simulator.run(bench, "--seed", 1, *options)
        rows[name] = {who: _rate(said[count], said["window"])
                      for who, count in (("host_gb_s", "host"), ("in_order_gb_s", "in_order"),
                                         ("raw_gb_s", "raw")) if said[count] > 0}
    slot = simulator.run(bench, "--seed", 1, "--one", "--pages", 1)
    host = simulator.run(bench, "--seed", 1, "--one", "--reads", 1)
    latency = {"slot, first word": slot["first_word"],
               "slot, last word": slot["last_word"],
               "host, completion": host["completion"]}
    return {"label": "simulated", "clock_ns": CLOCK_NS, "cards": 2, "bandwidth": rows,
            "latency_us": {name: round(clocks * CLOCK_NS / 1000, 2)
                           for name, clocks in latency.items()}}


def _rate(pages, clocks):
    return round(pages * PAGE_BYTES / (clocks * CLOCK_NS), 2)
