"""TPC-H with little memory: every query at scale factor 10, a small page cache and a memory limit.

Loading and querying run in a process each; the peak of its resident memory is
printed. A query that fails, for want of memory or otherwise, is named, and the
exit status is 1.
"""

import argparse
import multiprocessing
import resource
import sys
import time

import common


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale-factor", default="10")
    parser.add_argument("--cache-size", default="512MB")
    parser.add_argument("--memory-limit", default="4GB")
    arguments = parser.parse_args()

    common.tpch_parquet(arguments.scale_factor)
    options = {"cache_size": arguments.cache_size, "memory_limit": arguments.memory_limit}
    print(common.describe_machine())
    print(
        f"TPC-H scale factor {arguments.scale_factor}, cache {arguments.cache_size}, "
        f"memory limit {arguments.memory_limit}, one run each\n"
    )
    context = multiprocessing.get_context("spawn")
    failures = 0
    for task in (load, query):
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=task, args=(arguments.scale_factor, options, sender))
        process.start()
        sender.close()
        try:
            failures += receiver.recv()
        except EOFError:
            failures += 1
        process.join()
        if process.exitcode != 0:
            print(f"{task.__name__}: the process ended with {process.exitcode}")
            failures += 1
    return 1 if failures else 0


def load(scale_factor: str, options: dict[str, str], result) -> None:
    started = time.perf_counter()
    common.fresh_flashmesh(scale_factor, **options).close()
    print(f"load    {time.perf_counter() - started:8.1f} s   peak RSS {peak_rss_mb():6.0f} MB", flush=True)
    result.send(0)


def query(scale_factor: str, options: dict[str, str], result) -> None:
    engine = common.Flashmesh(common.bench_dir() / f"flashmesh-sf{scale_factor}", **options)
    failures, seconds = 0, {}
    for number, text in common.tpch_queries().items():
        started = time.perf_counter()
        try:
            rows = engine.run(text).num_rows
        except Exception as error:  # noqa: BLE001: whatever a query fails with is the finding
            failures += 1
            print(f"q{number:02}     FAILED {error}", flush=True)
            continue
        seconds[number] = time.perf_counter() - started
        print(f"q{number:02}     {seconds[number]:8.2f} s   {rows} rows   peak RSS so far {peak_rss_mb():6.0f} MB", flush=True)
    print(f"total   {sum(seconds.values()):8.1f} s   peak RSS {peak_rss_mb():6.0f} MB   {len(seconds)} of 22 completed")
    engine.close()
    result.send(failures)


def peak_rss_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    sys.exit(main())
