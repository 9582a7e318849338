#!/usr/bin/env python3
"""A fit through Python against the same fit by the program flashgmm.

Both read the same .npy file, and Python the array in memory as well; by turns,
with the same threads and seed, and the results must be equal. CPU seconds are
given beside the time because they depend less on what else runs; those of the
program contain its start, about 10 ms.

    bench_python.py --flashgmm build/release/faiss_flashgmm/tools/flashgmm
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("--flashgmm", required=True, help="path of the program")
parser.add_argument("--n", type=int, default=100_000)
parser.add_argument("--d", type=int, default=128)
parser.add_argument("--k", type=int, default=1024)
parser.add_argument("--iterations", type=int, default=10)
parser.add_argument("--threads", type=int, default=os.cpu_count())
parser.add_argument("--runs", type=int, default=7)
parser.add_argument("--json", help="append the result to this file")
args = parser.parse_args()

os.environ["OMP_NUM_THREADS"] = str(args.threads)

import numpy as np  # noqa: E402
from faiss_flashgmm import FlashGMM  # noqa: E402


def by_program(path, folder):
    """Seconds, CPU seconds and log-likelihood."""
    command = [
        *(args.flashgmm, "fit", path, "-o", folder / "mixture.npy"),
        *("-k", args.k, "--iterations", args.iterations, "--sample", 0),
        *("--seed", 1, "--threads", args.threads, "--json"),
    ]
    before = os.times()
    output = subprocess.run(
        list(map(str, command)), check=True, capture_output=True, text=True
    ).stdout
    after = os.times()
    result = json.loads(output)
    cpu = (
        after.children_user
        + after.children_system
        - before.children_user
        - before.children_system
    )
    return result["seconds"], cpu, result["log_likelihood"]


def by_python(rows):
    cpu, begin = time.process_time(), time.perf_counter()
    gmm = FlashGMM(
        args.k,
        variance_model="tied",
        weight_model="uniform",
        max_iter=args.iterations,
        tol=0,
        random_state=1,
    ).fit(rows)
    seconds = time.perf_counter() - begin
    return seconds, time.process_time() - cpu, gmm.lower_bound_


random = np.random.default_rng(1)
centers = random.standard_normal((args.k, args.d), np.float32)
x = centers[random.integers(args.k, size=args.n)]
x += random.standard_normal((args.n, args.d), np.float32)

with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    path = folder / "rows.npy"
    np.save(path, x)
    runs = {"program": [], "python_file": [], "python_array": []}
    for _ in range(args.runs):
        runs["program"].append(by_program(path, folder))
        runs["python_file"].append(by_python(path))
        runs["python_array"].append(by_python(x))

result = {
    "bench": "fit_python",
    "n": args.n,
    "d": args.d,
    "k": args.k,
    "iterations": args.iterations,
    "threads": args.threads,
    "runs": args.runs,
}
for who, measured in runs.items():
    result[f"{who}_seconds"] = statistics.median(m[0] for m in measured)
    result[f"{who}_cpu_seconds"] = statistics.median(m[1] for m in measured)
for who in ("python_file", "python_array"):
    for what, at in (("seconds", 0), ("cpu_seconds", 1)):
        result[f"{who}_{what}_over_program"] = statistics.median(
            ours[at] / theirs[at]
            for ours, theirs in zip(runs[who], runs["program"])
        )
likelihoods = {f"{m[2]:.6g}" for measured in runs.values() for m in measured}
assert len(likelihoods) == 1, likelihoods

line = json.dumps(result)
print(line)
if args.json:
    with open(args.json, "a") as file:
        file.write(line + "\n")
