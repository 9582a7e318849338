#!/usr/bin/env python3
"""One EM iteration of this project against one of scikit-learn.

The model is sklearn.mixture.GaussianMixture(covariance_type="spherical"), on
the same rows, from the same means, with the same number of threads, by turns
with bench_em. An iteration of scikit-learn is a fifth of the difference between
a fit of six iterations and a fit of one, so that its set-up does not count.

    bench_sklearn.py --bench-em build/release/benchs/bench_em --n 100000
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
import warnings
from pathlib import Path

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("--bench-em", required=True, help="path of bench_em")
parser.add_argument("--n", type=int, default=100_000)
parser.add_argument("--d", type=int, default=128)
parser.add_argument("--k", type=int, default=1024)
parser.add_argument("--threads", type=int, default=os.cpu_count())
parser.add_argument("--runs", type=int, default=7)
parser.add_argument(
    "--dtype",
    choices=("float32", "float64"),
    default="float32",
    help="of scikit-learn's rows and arithmetic; ours are float32",
)
parser.add_argument("--json", help="append the result to this file")
args = parser.parse_args()

# Read when the BLAS of NumPy is loaded.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[variable] = str(args.threads)

import numpy as np  # noqa: E402
import sklearn  # noqa: E402
from sklearn.mixture import GaussianMixture  # noqa: E402


def draw_blobs(n, d, k):
    """As in bench_em: k overlapping blobs near a space of few dimensions."""
    random = np.random.default_rng(1)
    latent = min(d, 16)
    centers = random.standard_normal((k, latent), np.float32)
    basis = random.standard_normal((latent, d), np.float32)
    z = centers[random.integers(k, size=n)]
    z += random.standard_normal((n, latent), np.float32)
    x = z @ basis
    x += 0.3 * random.standard_normal((n, d), np.float32)
    return x.astype(np.float16)


def seconds_of_fit(x, means, iterations):
    model = GaussianMixture(
        n_components=args.k,
        covariance_type="spherical",
        max_iter=iterations,
        tol=0,
        weights_init=np.full(args.k, 1 / args.k, x.dtype),
        means_init=means,
        precisions_init=np.full(args.k, 1 / x.var(axis=0).mean(), x.dtype),
        init_params="random_from_data",
        random_state=1,
    )
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "did not converge"
        model.fit(x)
    return time.perf_counter() - start


def time_sklearn(x, means):
    return (seconds_of_fit(x, means, 6) - seconds_of_fit(x, means, 1)) / 5


def time_bench_em(rows_file, directory):
    result = directory / "result.jsonl"
    result.unlink(missing_ok=True)
    subprocess.run(
        [
            args.bench_em,
            *("--data", rows_file),
            *("--n", str(args.n)),
            *("--k", str(args.k)),
            *("--threads", str(args.threads)),
            *("--runs", "1"),
            *("--json", result),
        ],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return json.loads(result.read_text())


def main():
    half = draw_blobs(args.n, args.d, args.k)
    x = half.astype(args.dtype)
    means = x[np.random.default_rng(2).choice(args.n, args.k, replace=False)]
    theirs, ours, ratios = [], [], []
    with tempfile.TemporaryDirectory() as directory:
        directory = Path(directory)
        rows_file = directory / "rows.f16bin"
        with rows_file.open("wb") as file:
            np.array(half.shape, np.uint32).tofile(file)
            half.tofile(file)
        print("run   EM, s   scikit-learn, s   times faster")
        for run in range(args.runs):
            theirs.append(time_sklearn(x, means))
            line = time_bench_em(rows_file, directory)
            ours.append(line["seconds_per_iteration"])
            ratios.append(theirs[-1] / ours[-1])
            print(
                f"{run + 1:3} {ours[-1]:7.4f} {theirs[-1]:17.3f}"
                f" {ratios[-1]:14.1f}",
                flush=True,
            )
    print(f"median: {statistics.median(ratios):.1f} times faster")
    result = {
        "bench": "em_iteration_sklearn",
        "backend": line["backend"],
        "data": "blobs",
        "n": args.n,
        "d": args.d,
        "k": args.k,
        "threads": args.threads,
        "runs": args.runs,
        "seconds_per_iteration": statistics.median(ours),
        "sklearn_seconds_per_iteration": statistics.median(theirs),
        "times_faster_than_sklearn": statistics.median(ratios),
        "times_faster_min": min(ratios),
        "times_faster_max": max(ratios),
        "pairs_per_row": line["pairs_per_row"],
        "sklearn": sklearn.__version__,
        "numpy": np.__version__,
        "sklearn_dtype": str(x.dtype),
        "command": f"OMP_WAIT_POLICY={os.environ.get('OMP_WAIT_POLICY', 'unset')}"
        f" bench_sklearn.py --n {args.n} --d {args.d} --k {args.k}"
        f" --threads {args.threads} --runs {args.runs} --dtype {args.dtype}",
        **{key: line[key] for key in ("hardware", "cores", "date")},
    }
    if args.json:
        with open(args.json, "a") as file:
            print(json.dumps(result), file=file)
    else:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
