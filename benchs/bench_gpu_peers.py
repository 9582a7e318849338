#!/usr/bin/env python3
"""Peers of bench_gpu on the same device: one iteration each, median time.

    bench_gpu_peers.py [--flash-gmm DIR] [--flash-kmeans DIR] [--json FILE]
                       [--faiss] [--cuvs libcuvs_c.so] [--fits-only]

DIR holds a checkout of IBM's Flash-GMM (flash_gmm_h100.py), respectively of
flash-kmeans. Always measured: the matrix ceiling (a large fp16 product), the
copy ceiling, and a cuBLAS product followed by torch's softmax, by chunks.
--faiss and --cuvs time whole k-means fits from host memory, those of the GPU
wheel of FAISS and of the C library of cuVS. Needs torch and Triton.
"""

import argparse
import ctypes
import datetime
import json
import statistics
import sys
import time

import torch

SHAPES = [
    (1_000_000, 128, 1024),
    (1_000_000, 128, 4096),
    (10_000_000, 96, 4096),
    (10_000_000, 96, 16384),
]
# Products k * n beyond which the slower peers take too long.
MOST = 5e10


def median_ms(function, repeats=10, warm_up=3):
    for _ in range(warm_up):
        function()
    times = []
    for _ in range(repeats):
        begin = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        begin.record()
        function()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def clustered(n, d, k):
    """Rows around k / 4 centres, as bench_gpu draws them; means are rows."""
    generator = torch.Generator("cuda").manual_seed(1)
    centres = torch.randn(k // 4, d, device="cuda", generator=generator)
    x = torch.empty(n, d, device="cuda")
    for begin in range(0, n, 1 << 20):
        part = x[begin : begin + (1 << 20)]
        pick = torch.randint(k // 4, (len(part),), device="cuda", generator=generator)
        part.normal_(0, 0.6, generator=generator).add_(centres[pick])
    means = x[torch.randperm(n, device="cuda", generator=generator)[:k]].clone()
    return x, means


def softmax_iteration(x, means):
    """Responsibilities and sums by chunks: what a framework user writes."""
    sums = torch.zeros_like(means, dtype=torch.float32)
    counts = torch.zeros(len(means), device="cuda")
    norms = (means.float() ** 2).sum(1)
    for begin in range(0, len(x), 65536):
        part = x[begin : begin + 65536]
        logits = 2 * (part @ means.T).float() - norms
        r = torch.softmax(logits, 1)
        counts += r.sum(0)
        sums += (r.half().T @ part).float()
    return counts, sums


FIT = (1_000_000, 128, 1024)
FIT_ITERATIONS = 25


def fit_seconds(fit, repeats=4):
    """Median without the first, which makes contexts and allocates."""
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        fit()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return statistics.median(times[1:])


def faiss_fit(x, k):
    import faiss

    kmeans = faiss.Kmeans(
        x.shape[1], k, niter=FIT_ITERATIONS, gpu=True, seed=1,
        max_points_per_centroid=len(x))
    return lambda: kmeans.train(x)


class CuvsKmeansParams(ctypes.Structure):
    """cuvsKMeansParams_v2 of cuVS 26.06."""

    _fields_ = [
        ("metric", ctypes.c_int),
        ("n_clusters", ctypes.c_int),
        ("init", ctypes.c_int),
        ("max_iter", ctypes.c_int),
        ("tol", ctypes.c_double),
        ("n_init", ctypes.c_int),
        ("oversampling_factor", ctypes.c_double),
        ("batch_samples", ctypes.c_int),
        ("batch_centroids", ctypes.c_int),
        ("hierarchical", ctypes.c_bool),
        ("hierarchical_n_iters", ctypes.c_int),
        ("streaming_batch_size", ctypes.c_int64),
        ("init_size", ctypes.c_int64),
    ]


def cuvs_fit(library, x, k, on_device):
    cuvs = ctypes.CDLL(library)
    cuvs.cuvsGetLastErrorText.restype = ctypes.c_char_p
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype = ctypes.c_void_p
    pointer_of.argtypes = [ctypes.py_object, ctypes.c_char_p]

    def check(status):
        if status != 1:  # CUVS_SUCCESS
            raise RuntimeError(cuvs.cuvsGetLastErrorText())

    resources = ctypes.c_size_t()
    check(cuvs.cuvsResourcesCreate(ctypes.byref(resources)))
    params = ctypes.POINTER(CuvsKmeansParams)()
    check(cuvs.cuvsKMeansParamsCreate_v2(ctypes.byref(params)))
    params.contents.n_clusters = k
    params.contents.init = 2  # the given centroids
    params.contents.max_iter = FIT_ITERATIONS
    params.contents.tol = 1e-30  # more than 0 is asked for
    first = torch.from_numpy(x[:k].copy())

    def fit():
        rows = torch.from_numpy(x)
        if on_device:
            rows = rows.cuda()
        means = first.cuda()
        capsules = [torch.utils.dlpack.to_dlpack(t) for t in (rows, means)]
        rows_pointer, means_pointer = (
            ctypes.c_void_p(pointer_of(c, b"dltensor")) for c in capsules)
        inertia, iterations = ctypes.c_double(), ctypes.c_int()
        check(cuvs.cuvsKMeansFit_v2(
            resources, params, rows_pointer, None, means_pointer,
            ctypes.byref(inertia), ctypes.byref(iterations)))
        check(cuvs.cuvsStreamSync(resources))
        if iterations.value != FIT_ITERATIONS:
            print(f"cuVS stopped after {iterations.value} iterations")

    return fit


def time_fits(args, report):
    n, d, k = FIT
    x = clustered(n, d, k)[0].cpu().numpy()
    fits = {}
    if args.faiss:
        fits["FAISS GPU k-means, fit"] = lambda: faiss_fit(x, k)
    if args.cuvs:
        fits["cuVS k-means, fit, copied rows"] = lambda: cuvs_fit(args.cuvs, x, k, True)
        fits["cuVS k-means, fit, host rows"] = lambda: cuvs_fit(args.cuvs, x, k, False)
    for name, make in fits.items():
        try:
            report(name, n, d, k, 1e3 * fit_seconds(make()), iterations=FIT_ITERATIONS)
        except Exception as error:  # the other peers are still worth their time
            print(f"{name}: {str(error)[:200]}", file=sys.stderr)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flash-gmm")
    parser.add_argument("--flash-kmeans")
    parser.add_argument("--json")
    parser.add_argument("--faiss", action="store_true")
    parser.add_argument("--cuvs", metavar="LIBRARY")
    parser.add_argument("--fits-only", action="store_true")
    args = parser.parse_args()

    def report(name, n, d, k, ms, **more):
        row = {
            "bench": "bench_gpu_peers",
            "date": datetime.date.today().isoformat(),
            "device": torch.cuda.get_device_name(),
            "name": name,
            "n": n,
            "d": d,
            "k": k,
            "ms": round(ms, 4),
            **more,
        }
        print(f"{name:28} n {n:9} d {d:4} k {k:6} {ms:9.3f} ms {more or ''}", flush=True)
        if args.json:
            with open(args.json, "a") as out:
                out.write(json.dumps(row) + "\n")

    time_fits(args, report)
    if args.fits_only:
        return
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.float16)
    b = torch.randn(8192, 8192, device="cuda", dtype=torch.float16)
    ms = median_ms(lambda: a @ b, 20)
    report("matrix ceiling fp16", 8192, 8192, 8192, ms, tflops=round(2e-9 * 8192**3 / ms, 1))
    a = torch.empty(1 << 30, device="cuda", dtype=torch.uint8).random_()
    b = torch.empty_like(a)
    ms = median_ms(lambda: b.copy_(a), 20)
    report("copy ceiling", 1 << 30, 1, 1, ms, tb_per_s=round(2 * (1 << 30) / ms / 1e9, 2))
    del a, b

    for n, d, k in SHAPES:
        x, means = clustered(n, d, k)
        half, half_means = x.half(), means.half()
        if args.flash_kmeans:
            sys.path.insert(0, args.flash_kmeans)
            from flash_kmeans.assign_euclid_triton import euclid_assign_triton
            from flash_kmeans.centroid_update_triton import (
                triton_centroid_update_sorted_euclid as update,
            )

            rows, centroids = half[None], half_means[None]
            squared = (rows.float() ** 2).sum(-1)
            ids = euclid_assign_triton(rows, centroids, squared)
            report(
                "flash-kmeans fp16 iteration", n, d, k,
                median_ms(lambda: update(
                    rows, euclid_assign_triton(rows, centroids, squared), centroids)),
                ms_assign=round(median_ms(
                    lambda: euclid_assign_triton(rows, centroids, squared)), 4),
            )
            del ids, squared, rows
        if n * k <= MOST:
            report("cuBLAS + softmax fp16", n, d, k,
                   median_ms(lambda: softmax_iteration(half, half_means), 10, 1))
        if args.flash_gmm and n * k <= MOST:
            sys.path.insert(0, args.flash_gmm)
            import flash_gmm_h100

            # The seven configurations that its authors' sweep favours here
            # keep the autotuner's time within reason.
            keep = {(128, 128, 8, 3), (128, 256, 8, 3), (256, 128, 8, 3), (256, 128, 16, 3),
                    (128, 128, 8, 4), (64, 256, 8, 3), (128, 64, 8, 4)}
            for kernel in (flash_gmm_h100._gmm_lse_kernel, flash_gmm_h100._gmm_atomic_accum):
                kernel.configs = [
                    c for c in kernel.configs
                    if (c.kwargs["BLOCK_N"], c.kwargs["BLOCK_K"], c.num_warps, c.num_stages) in keep
                ]
            log_variance = torch.full((k,), 0.36, device="cuda").log()
            log_weight = torch.full((k,), 1 / k, device="cuda").log()
            report("Flash-GMM H100 E-step", n, d, k, median_ms(
                lambda: flash_gmm_h100.flash_gmm_estep(x, means, log_variance, log_weight), 10, 2))
        del x, half
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
