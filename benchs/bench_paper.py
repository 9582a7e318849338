#!/usr/bin/env python3
"""Seconds and memory of 30 EM iterations, over the number of rows.

The table of the Flash-GMM paper (arXiv 2606.10896): 10 thousand to 10 million
rows of 128, 1024 components; this project on CPU and GPU and, in the same run,
from the same rows and the same first mixture:

    Flash-GMM        IBM's H100 kernels (--flash-gmm: a checkout), with the
                     M-step of their README
    torch            all n x k responsibilities in device memory, fp32
    flash-kmeans     hard assignment, fp16 (--flash-kmeans: a checkout)
    scikit-learn     GaussianMixture(covariance_type="spherical"), fp32
    NumPy            a matrix product and SciPy's logsumexp, fp32

    bench_paper.py --bench build/cuda/benchs/bench_paper [--json FILE]

Where 30 iterations would take minutes, fewer are timed, and the seconds are
scaled to 30; "measured" says how many. On the GPU the rows are there before
the clock starts, the first iterations are not counted, and the memory is all
that is taken, rows and their copies included; on the CPU it is what is taken
beside the rows.

OpenBLAS 0.3.21 takes processors that are newer than itself for very old ones:
OPENBLAS_CORETYPE=SkylakeX helps it (OPENBLAS_VERBOSE=2 prints what it uses).
"""

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ITERATIONS = 30

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("--bench", required=True, help="path of bench_paper")
parser.add_argument("--flash-gmm", help="checkout with flash_gmm_h100.py")
parser.add_argument("--flash-kmeans", help="checkout of flash-kmeans")
parser.add_argument("--rows", default="10000,100000,1000000,10000000")
parser.add_argument("--d", type=int, default=128)
parser.add_argument("--k", type=int, default=1024)
parser.add_argument("--threads", type=int, default=os.cpu_count())
parser.add_argument("--no-gpu", action="store_true")
parser.add_argument("--no-peers", action="store_true")
parser.add_argument(
    "--cpu-work",
    type=float,
    default=3.2e10,
    help="most rows x components x iterations of a fit on the CPU; its peers"
    " get a hundredth, and no more than 10 iterations",
)
parser.add_argument("--directory", help="for the rows; default: a temporary one")
parser.add_argument("--json", help="append the results to this file")
args = parser.parse_args()

# Read when the libraries are loaded.
os.environ["OMP_NUM_THREADS"] = str(args.threads)
os.environ["OPENBLAS_NUM_THREADS"] = str(args.threads)
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np  # noqa: E402
from scipy.special import logsumexp  # noqa: E402
from sklearn.mixture import GaussianMixture  # noqa: E402

gpu = not args.no_gpu
if gpu:
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False


def draw_rows(path, n):
    """Overlapping blobs near a space of few dimensions, as in bench_em."""
    latent, part = 16, 250_000
    random = np.random.default_rng(1)
    centers = random.standard_normal((args.k, latent), np.float32)
    basis = random.standard_normal((latent, args.d), np.float32)
    np.array((n, args.d), np.uint32).tofile(path)
    os.truncate(path, 8 + 4 * n * args.d)
    rows = np.memmap(path, np.float32, "r+", 8, (n, args.d))

    def draw(begin):
        own = np.random.default_rng((2, begin))
        to = rows[begin : begin + part]
        z = centers[own.integers(args.k, size=len(to))]
        z += own.standard_normal(z.shape, np.float32)
        own.standard_normal(to.shape, np.float32, to)
        to *= 0.3
        to += z @ basis

    with ThreadPoolExecutor(args.threads) as pool:
        list(pool.map(draw, range(0, n, part)))
    return rows


def first_mixture(x):
    """Rows as means; as variance that of a sample around its nearest means."""
    means = x[: args.k].copy()
    sample = x[args.k : args.k + 4096]
    squared = ((sample**2).sum(1)[:, None] + (means**2).sum(1)) - 2 * sample @ means.T
    variance = float(squared.min(1).mean()) / args.d
    return means, np.full(args.k, variance), np.full(args.k, 1 / args.k)


def cpu_name():
    for line in open("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.split(":")[1].strip()
    return platform.machine()


def report(name, n, seconds, measured, **more):
    row = {
        "bench": "paper",
        "name": name,
        "n": n,
        "d": args.d,
        "k": args.k,
        "iterations": ITERATIONS,
        "measured": measured,
        "seconds": round(seconds * ITERATIONS / measured, 5) if measured else None,
        **more,
        "hardware": torch.cuda.get_device_name() if gpu and "gpu" in name else cpu_name(),
        "threads": args.threads,
        "date": datetime.date.today().isoformat(),
    }
    shown = f"{row['seconds']:10.4f} s" if measured else "  no memory "
    memory = row.get("device_bytes", row.get("host_bytes"))
    memory = f"{memory / 1e6:10.1f} MB" if memory else ""
    print(f"{name:28} n {n:9} {shown} ({measured} measured) {memory}", flush=True)
    if args.json:
        with open(args.json, "a") as out:
            out.write(json.dumps(row) + "\n")


def ours(directory, n, device, iterations):
    command = [args.bench, directory / "rows.fbin", directory / "start.npy"]
    command += ["--n", str(n), "--iterations", str(iterations), "--device", device]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


# ----- peers on the GPU -----


def time_gpu(step, state, iterations=ITERATIONS):
    """Seconds of so many steps, each from the state that the last one left."""
    for _ in range(2):
        step(*state)  # compiles and tunes
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    for _ in range(iterations):
        state = step(*state)
    torch.cuda.synchronize()
    return time.perf_counter() - start, torch.cuda.max_memory_allocated()


def flash_gmm_step(x):
    sys.path.insert(0, args.flash_gmm)
    import flash_gmm_h100

    # The seven configurations that its authors' sweep favours here keep the
    # autotuner's time within reason.
    keep = {(128, 128, 8, 3), (128, 256, 8, 3), (256, 128, 8, 3), (256, 128, 16, 3),
            (128, 128, 8, 4), (64, 256, 8, 3), (128, 64, 8, 4)}
    for kernel in (flash_gmm_h100._gmm_lse_kernel, flash_gmm_h100._gmm_atomic_accum):
        kernel.configs = [
            c for c in kernel.configs
            if (c.kwargs["BLOCK_N"], c.kwargs["BLOCK_K"], c.num_warps, c.num_stages) in keep
        ]

    def step(means, log_variance, log_weight):
        _, counts, sums, squares = flash_gmm_h100.flash_gmm_estep(
            x, means, log_variance, log_weight)
        counts = counts.clamp_min(1e-6)
        return (sums / counts[:, None],
                (squares / (args.d * counts)).clamp_min(1e-6).log(),
                (counts / len(x)).log())

    return step


def torch_step(x):
    squared = (x * x).sum(1)

    def step(means, log_variance, log_weight):
        half_precision = 0.5 * torch.exp(-log_variance)
        logits = x @ means.T
        logits *= 2
        logits -= squared[:, None]
        logits -= (means * means).sum(1)
        logits *= half_precision
        logits += log_weight - 0.5 * args.d * log_variance
        r = torch.softmax(logits, 1)
        del logits
        counts = r.sum(0).clamp_min(1e-6)
        means = (r.T @ x) / counts[:, None]
        variance = (r.T @ squared) / counts - (means * means).sum(1)
        return means, (variance / args.d).clamp_min(1e-6).log(), (counts / len(x)).log()

    return step


def flash_kmeans_step(x):
    sys.path.insert(0, args.flash_kmeans)
    from flash_kmeans.assign_euclid_triton import euclid_assign_triton
    from flash_kmeans.centroid_update_triton import (
        triton_centroid_update_sorted_euclid as update,
    )

    rows = x.half()[None]
    squared = (rows.float() ** 2).sum(-1)

    def step(means):
        return (update(rows, euclid_assign_triton(rows, means, squared), means),)

    return step


def gpu_peers(x, start):
    n = len(x)
    x = torch.from_numpy(x).cuda()
    means, variances, weights = (
        torch.as_tensor(part, device="cuda", dtype=torch.float32) for part in start)
    mixture = (means, variances.log(), weights.log())
    peers = {"torch, gpu": (torch_step, mixture)}
    if args.flash_gmm:
        peers["Flash-GMM, gpu"] = (flash_gmm_step, mixture)
    if args.flash_kmeans:
        peers["flash-kmeans fp16, gpu"] = (flash_kmeans_step, (means.half()[None],))
    for name, (make, state) in peers.items():
        try:
            seconds, memory = time_gpu(make(x), state)
            report(name, n, seconds, ITERATIONS, device_bytes=memory)
        except torch.OutOfMemoryError:
            report(name, n, 0, 0)
        except Exception as error:  # the other peers are still worth their time
            print(f"{name}: {error}", file=sys.stderr)
        torch.cuda.empty_cache()


# ----- peers on the CPU -----


def peak_growth(work):
    """Result of work() and the resident memory that it took at its peak."""

    def field(name):
        for line in open("/proc/self/status"):
            if line.startswith(name):
                return int(line.split()[1]) * 1024

    before = field("VmRSS:")
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return work(), None
    result = work()
    return result, field("VmHWM:") - before


def sklearn_seconds(x, start, iterations):
    """Without set-up: the difference to a fit of one iteration."""
    means, variances, weights = start

    def fit(count):
        model = GaussianMixture(
            args.k, covariance_type="spherical", max_iter=count, tol=0,
            weights_init=weights.astype(x.dtype), means_init=means,
            precisions_init=(1 / variances).astype(x.dtype),
            init_params="random_from_data", random_state=1)
        begin = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "did not converge"
            model.fit(x)
        return time.perf_counter() - begin

    return fit(iterations + 1) - fit(1)


def numpy_seconds(x, start, iterations):
    means, variances, weights = (part.astype(x.dtype) for part in start)
    squared = (x * x).sum(1)
    begin = time.perf_counter()
    for _ in range(iterations):
        logits = 2 * (x @ means.T) - squared[:, None] - (means * means).sum(1)
        logits /= 2 * variances
        logits += np.log(weights) - 0.5 * args.d * np.log(variances)
        r = np.exp(logits - logsumexp(logits, axis=1, keepdims=True))
        counts = np.maximum(r.sum(0), 1e-6)
        means = (r.T @ x) / counts[:, None]
        variances = (r.T @ squared) / counts - (means * means).sum(1)
        variances = np.maximum(variances / args.d, 1e-6)
        weights = counts / len(x)
    return time.perf_counter() - begin


def affordable(n, work):
    return min(ITERATIONS, int(work / (n * args.k)))


def main():
    sizes = [int(n) for n in args.rows.split(",")]
    with tempfile.TemporaryDirectory(dir=args.directory) as directory:
        directory = Path(directory)
        rows = draw_rows(directory / "rows.fbin", max(sizes))
        start = first_mixture(np.asarray(rows[: args.k + 4096]))
        np.save(directory / "start.npy",
                np.column_stack([start[2], start[1], start[0].astype(np.float64)]))
        for n in sizes:
            x = np.array(rows[:n])
            if gpu:
                done = ours(directory, n, "cuda", ITERATIONS)
                report("faiss_flashgmm, gpu", n, done["seconds_iterations"], ITERATIONS,
                       device_bytes=done["device_bytes"],
                       seconds_fit_from_host=done["seconds_fit"],
                       seconds_first_fit_from_host=done["seconds_first_fit"],
                       log_likelihood=done["log_likelihood"])
                if not args.no_peers:
                    gpu_peers(x, start)
            measured = affordable(n, args.cpu_work)
            done = ours(directory, n, "cpu", measured)
            report("faiss_flashgmm, cpu", n, done["seconds_iterations"], measured,
                   host_bytes=done["peak_host_bytes"],
                   log_likelihood=done["log_likelihood"])
            measured = min(10, affordable(n, args.cpu_work / 100))
            for name, seconds_of in (("scikit-learn, cpu", sklearn_seconds),
                                     ("NumPy, cpu", numpy_seconds)):
                if measured and not args.no_peers:
                    seconds, memory = peak_growth(
                        lambda: seconds_of(x, start, measured))
                    report(name, n, seconds, measured, host_bytes=memory)


if __name__ == "__main__":
    main()
