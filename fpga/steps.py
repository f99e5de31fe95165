"""What the check commands of this folder share: tools from PyPI, and what passed before."""

import concurrent.futures
import hashlib
import os
import pathlib
import random
import signal
import subprocess
import time
import venv

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Far more than anything takes, on whatever machine.
HANGS_S = 3600
CACHE = pathlib.Path(os.environ.get("FLASHMESH_CACHE", pathlib.Path.home() / ".cache/flashmesh"))


class Failure(Exception):
    """A check that does not pass, and why."""


def run(command, limit_s=60, check=True, **options):
    """Runs a command; its output is the failure's text.

    The limit is of processor time: on a busy machine, beside builds, a command takes many times
    longer by the clock. What waits, for a lock or for ever, uses none and is ended after HANGS_S.
    """
    command = [str(word) for word in command]
    try:
        done = subprocess.run(["sh", "-c", 'ulimit -t "$0"; exec "$@"', str(limit_s), *command],
                              text=True, timeout=HANGS_S, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, **options)
    except subprocess.TimeoutExpired:
        raise Failure(f"still running after {HANGS_S} s: {' '.join(command)}") from None
    if check and done.returncode != 0:
        how = {-signal.SIGKILL: f"killed, perhaps after {limit_s} s of processor time; ",
               -signal.SIGXCPU: f"used more than {limit_s} s of processor time; "}
        raise Failure(f"{how.get(done.returncode, '')}{' '.join(command)}\n{done.stdout[-4000:]}")
    return done


def environment(name, packages):
    """The folder of a virtual environment with exactly these packages, without dependencies."""
    digest = hashlib.sha256("\n".join(packages).encode()).hexdigest()[:12]
    home = CACHE / f"{name}-{digest}"
    if not (home / "complete").exists():
        print(f"installing {', '.join(packages)}", flush=True)
        venv.create(home, with_pip=True, clear=True)
        for package in packages:
            run([home / "bin/python", "-m", "pip", "install", "-q", "--no-deps",
                 "--disable-pip-version-check", package], 600)
        (home / "complete").touch()
    return home


def add_sample(parser):
    """The options of `sampled`."""
    parser.add_argument("--one-in", type=int, default=1, metavar="N",
                        help="try one in N of the wrong versions; which, differs from run to run")
    parser.add_argument("--share", type=int, metavar="K",
                        help="which of the N shares, from 0 (default: any)")


def sampled(jobs, arguments):
    """The jobs without those of mutants that are not of the share that is tried."""
    if arguments.one_in < 2:
        yield from jobs
        return
    share = arguments.share
    if share is None:
        share = random.randrange(arguments.one_in)
    print(f"mutants: one in {arguments.one_in}, those of --share {share}", flush=True)
    number = 0
    for job in jobs:
        if "mutant" in job[0]:
            number += 1
            if number % arguments.one_in != share % arguments.one_in:
                continue
        yield job


class Remembered:
    """What passed, by the hash of everything that it depended on."""

    def __init__(self, name, is_used, *words):
        self.folder = CACHE / name
        self.folder.mkdir(parents=True, exist_ok=True)
        self.is_used = is_used
        self.words = words

    def key(self, step, files, *words):
        digest = hashlib.sha256()
        parts = [step, *map(str, words), *self.words]
        for path in sorted({*files, pathlib.Path(__file__).resolve()}):
            parts += [str(path.relative_to(ROOT)), path.read_bytes()]
        for part in parts:
            part = part if isinstance(part, bytes) else part.encode()
            digest.update(len(part).to_bytes(8, "little") + part)
        return self.folder / digest.hexdigest()


def run_all(jobs, remembered, threads):
    """Runs (label, key, function) and says what became of each; whether all passed."""
    started = time.monotonic()
    passed = failed = known = 0
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        running = {}
        for label, key, function in jobs:
            if key.exists() and remembered.is_used:
                known += 1
            else:
                running[pool.submit(function)] = label, key
        for job in concurrent.futures.as_completed(running):
            label, key = running[job]
            try:
                said = job.result()
                key.touch()
                passed += 1
                print(f"ok    {label}: {said}", flush=True)
            except Failure as problem:
                failed += 1
                print(f"FAIL  {label}: {problem}", flush=True)
            except BaseException:
                # A mistake of the checks' own is not waited for.
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    print(f"{passed} passed, {known} passed before, {failed} failed, "
          f"{time.monotonic() - started:.0f} s")
    return failed == 0
