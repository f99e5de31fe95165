"""The 22 TPC-H queries on flashmesh and its peers, interleaved in one run.

Each query runs on all engines in turn, `--runs` times after one run that does
not count, with the results fetched to Arrow; the order of the engines rotates.
Figures are medians in milliseconds, warm: every engine may keep what it likes
in memory. Results are compared between the engines, and between flashmesh's
pushdown modes auto, always and never. The exit status is 1 if any differs.
"""

import argparse
import json
import sys

import common

# What engines may differ by: they round the average of decimals differently.
ENGINE_TOLERANCE = 2e-5
# What the modes of one engine may differ by: the order of float additions.
MODE_TOLERANCE = 1e-9


def main() -> int:
    arguments = parse_arguments()
    parquet = common.tpch_parquet(arguments.scale_factor)
    flashmesh = common.fresh_flashmesh(arguments.scale_factor)
    engines = [flashmesh, common.duckdb_tpch(arguments.scale_factor), common.DataFusion(parquet)]
    if arguments.vortex:
        import vortex_rival

        engines.append(vortex_rival.Vortex(parquet))
    queries = common.tpch_queries(arguments.query)

    print(common.describe_machine())
    print(f"TPC-H scale factor {arguments.scale_factor}, medians of {arguments.runs} warm runs, ms\n")
    differences = []
    figures = {engine.name: {} for engine in engines}
    print_row("", [engine.name for engine in engines], [f"/ {engine.name}" for engine in engines[1:]])
    for number, query in queries.items():
        seconds, results = measure(engines, query, arguments.runs)
        for engine in engines:
            figures[engine.name][number] = seconds[engine.name]
        print_figures(f"q{number:02}", engines, seconds)
        for engine in engines[1:]:
            difference = common.same_result(results["flashmesh"], results[engine.name], ENGINE_TOLERANCE)
            if difference:
                differences.append(f"q{number:02}: flashmesh and {engine.name}: {difference}")
    print_summary(engines, figures)

    if not arguments.skip_modes:
        differences += compare_modes(flashmesh, queries)
    for difference in differences:
        print(f"DIFFERENT {difference}")
    if not differences:
        modes = "" if arguments.skip_modes else " and pushdown modes auto, always, never"
        print(f"\nresults equal between the engines{modes}")
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump({"scale_factor": arguments.scale_factor, "seconds": figures}, file, indent=1)
    return 1 if differences else 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale-factor", default="1")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--query", type=int, action="append", help="only this query; may be repeated")
    parser.add_argument("--vortex", action="store_true", help="also DataFusion on Vortex files")
    parser.add_argument("--skip-modes", action="store_true", help="do not compare the pushdown modes")
    parser.add_argument("--json", help="also write the figures to this file")
    return parser.parse_args()


def measure(engines: list, query: str, runs: int) -> tuple[dict, dict]:
    """Median seconds and the result of each engine, by its name."""
    results = {engine.name: engine.run(query) for engine in engines}
    seconds = {engine.name: [] for engine in engines}
    for run in range(runs):
        first = run % len(engines)
        for engine in engines[first:] + engines[:first]:
            seconds[engine.name].append(common.timed(lambda: engine.run(query)))
    return {name: common.median(values) for name, values in seconds.items()}, results


def compare_modes(flashmesh: common.Flashmesh, queries: dict[int, str]) -> list[str]:
    """Differences between the results of auto, always and never."""
    differences = []
    for number, query in queries.items():
        results = {}
        for mode in ("auto", "always", "never"):
            flashmesh.execute(f"SET flashmesh.pushdown = '{mode}'")
            results[mode] = flashmesh.run(query)
        for mode in ("always", "never"):
            difference = common.same_result(results["auto"], results[mode], MODE_TOLERANCE)
            if difference:
                differences.append(f"q{number:02}: pushdown auto and {mode}: {difference}")
    flashmesh.execute("SET flashmesh.pushdown = 'auto'")
    return differences


def print_figures(label: str, engines: list, seconds: dict) -> None:
    ours = seconds["flashmesh"]
    milliseconds = [f"{seconds[engine.name] * 1000:.1f}" for engine in engines]
    print_row(label, milliseconds, [f"{ours / seconds[engine.name]:.2f}" for engine in engines[1:]])


def print_summary(engines: list, figures: dict) -> None:
    print_figures("total", engines, {name: sum(values.values()) for name, values in figures.items()})
    means = {name: common.geometric_mean(list(values.values())) for name, values in figures.items()}
    print_figures("geomean", engines, means)


def print_row(label: str, figures: list[str], ratios: list[str]) -> None:
    print(f"{label:8}" + "".join(f"{cell:>22}" for cell in figures + ratios), flush=True)


if __name__ == "__main__":
    sys.exit(main())
