#!/usr/bin/env python3
"""The peer of bench_neighbors: torch.topk of cuBLAS products, by chunks.

    bench_neighbors_peer.py BASE K RUNS [--tf32] [>> RESULTS]

BASE is a .u8bin file, or "1000000x128" for rows drawn around 256 centers. From
host memory to host memory, like bench_neighbors, in chunks of rows that make
2 GB of distances; fp32 products unless told otherwise.
"""

import argparse
import json
import statistics
import sys
import time

import torch


def rows_of(base):
    if base.endswith(".u8bin"):
        raw = torch.from_file(base, size=8, dtype=torch.uint8)
        n, d = raw.view(torch.int32).tolist()
        x = torch.from_file(base, size=8 + n * d, dtype=torch.uint8)[8:]
        return x.view(n, d).float()
    n, d = map(int, base.split("x"))
    generator = torch.Generator("cuda").manual_seed(1)
    centers = torch.randn(256, d, device="cuda", generator=generator)
    pick = torch.randint(256, (n,), device="cuda", generator=generator)
    x = centers[pick]
    x += 0.6 * torch.randn(n, d, device="cuda", generator=generator)
    return x.cpu()


def neighbors(host, k):
    x = host.cuda()
    norms = (x * x).sum(1)
    n = len(x)
    step = max(1, (1 << 29) // n)
    distances = torch.empty(n, k)
    ids = torch.empty(n, k, dtype=torch.int64)
    for begin in range(0, n, step):
        part = x[begin : begin + step]
        all_distances = torch.addmm(norms[None, :], part, x.T, alpha=-2)
        all_distances += norms[begin : begin + step, None]
        # Not the row itself.
        own = torch.arange(len(part), device="cuda")
        all_distances[own, own + begin] = float("inf")
        best, where = all_distances.topk(k, dim=1, largest=False)
        distances[begin : begin + step] = best.cpu()
        ids[begin : begin + step] = where.cpu()
    return distances, ids


def largest_error(host, k, distances):
    checked = torch.arange(50) * (len(host) // 50)
    x = host.cuda().double()
    worst = 0.0
    for i in checked.tolist():
        exact = ((x - x[i]) ** 2).sum(1)
        exact[i] = float("inf")
        exact = exact.topk(k, largest=False).values.cpu()
        error = (distances[i].double() - exact).abs() / exact.clamp_min(1e-30)
        worst = max(worst, error.max().item())
    return worst


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("base")
    parser.add_argument("k", type=int)
    parser.add_argument("runs", type=int)
    parser.add_argument("--tf32", action="store_true")
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = args.tf32
    host = rows_of(args.base)
    times = []
    for _ in range(args.runs):
        torch.cuda.synchronize()
        start = time.perf_counter()
        distances, _ = neighbors(host, args.k)
        times.append(time.perf_counter() - start)
    if len(times) > 1:
        times = times[1:]
    row = {
        "bench": "bench_neighbors_peer",
        "peer": "torch " + torch.__version__ + (", tf32" if args.tf32 else ", fp32"),
        "data": args.base.rsplit("/", 1)[-1],
        "n": host.shape[0],
        "d": host.shape[1],
        "k": args.k,
        "seconds": statistics.median(times),
        "largest_error": largest_error(host, args.k, distances),
    }
    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    sys.exit(main())
