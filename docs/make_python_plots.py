#!/usr/bin/env python3
"""Draws the figures of docs/python.md: takes a minute; needs matplotlib.

    docs/make_python_plots.py [FOLDER]
"""

import sys
from pathlib import Path

import faiss
import matplotlib
import numpy as np

import faiss_flashgmm as fg

ROOT = Path(__file__).resolve().parents[1]
FOLDER = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs"
NLIST = 256

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402

plt.rcParams.update(
    {
        "svg.fonttype": "none",
        "svg.hashsalt": "flashgmm",  # the same file every time
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "lines.markersize": 3,
    }
)


def save(figure, name):
    figure.tight_layout()
    figure.savefig(FOLDER / name, metadata={"Date": None})
    plt.close(figure)


def responsibilities_in_2d():
    random = np.random.default_rng(4)
    centers = np.array([[0, 0], [3, 0.5], [1.5, 2.6], [4.8, 2.8]])
    spread = np.array([0.6, 0.9, 0.5, 0.7])
    labels = random.integers(4, size=300)
    x = centers[labels] + spread[labels, None] * random.standard_normal((300, 2))
    gmm = fg.FlashGMM(4, random_state=0, tol=0, max_iter=50).fit(x)
    _, shares = gmm.responsibilities(x, m=2)
    two = shares[:, 1] > 1 / 4

    figure, axes = plt.subplots(figsize=(4.6, 3.4))
    axes.plot(*x[~two].T, "o", color="0.7", label="one list")
    axes.plot(*x[two].T, "o", color="tab:orange", label="two lists")
    for mean, variance in zip(gmm.means_, gmm.variances_):
        axes.add_patch(
            plt.Circle(mean, 2 * variance**0.5, fill=False, color="tab:blue")
        )
        axes.plot(*mean, "+", color="tab:blue", markersize=8)
    axes.set_aspect("equal")
    axes.legend(loc="lower right", frameon=False)
    axes.set_title("second responsibility above 1/K; circles: 2 sigma")
    save(figure, "python_responsibilities.svg")


def recall_curve(axes, index, q, truth, search, label):
    """Recall@10 over the vectors scanned, for growing nprobe."""
    sizes = np.array([index.invlists.list_size(i) for i in range(index.nlist)])
    order = index.quantizer.search(q, index.nlist)[1]
    scanned, recall = [], []
    for nprobe in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48):
        index.nprobe = nprobe
        ids = search(index, q, 10)[1]
        scanned.append(sizes[order[:, :nprobe]].sum(axis=1).mean())
        recall.append(
            np.mean([len(set(a) & set(b)) for a, b in zip(ids, truth)]) / 10
        )
    axes.plot(scanned, recall, "o-", label=label)
    return sizes


def indexes_over_words():
    base = fg.open_vectors(ROOT / "data/glove50k_base.f16bin")
    x = base.read(0, base.shape[0])
    queries = fg.open_vectors(ROOT / "data/glove50k_query.f16bin")
    q = queries.read(0, queries.shape[0])
    exact = faiss.IndexFlatL2(x.shape[1])
    exact.add(x)
    truth = exact.search(q, 10)[1]

    figure, axes = plt.subplots(figsize=(4.6, 3.4))
    sizes = {}

    kmeans = faiss.index_factory(x.shape[1], f"IVF{NLIST},Flat")
    kmeans.train(x)
    kmeans.add(x)
    sizes["k-means"] = recall_curve(
        axes, kmeans, q, truth, faiss.IndexIVFFlat.search, "k-means, one list"
    )
    for policy, options, label in (
        (None, {}, "mixture, one list"),
        ("posterior", {}, "posterior"),
        ("demand", {"max_inflation": 1.5}, "demand, 1.5 entries"),
    ):
        index = faiss.index_factory(x.shape[1], f"IVF{NLIST},Flat")
        mixture = fg.train_ivf(index, x)
        if policy is None:
            index.add(x)
        else:
            fg.add_multi(index, x, mixture=mixture, policy=policy, **options)
        found = recall_curve(axes, index, q, truth, fg.search, label)
        if policy is None:
            sizes["mixture"] = found
    axes.set_xscale("log")
    axes.set_xlabel("vectors scanned a query")
    axes.set_ylabel("recall@10")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    axes.set_title(f"50,000 GloVe vectors, {NLIST} lists, nprobe 1 to 48")
    save(figure, "python_recall.svg")

    index = faiss.index_factory(x.shape[1], f"IVF{NLIST},Flat")
    fg.train_ivf(
        index, x, variance_model="per_component", weight_model="free"
    )
    index.add(x)
    sizes["mixture, free variances and weights"] = np.array(
        [index.invlists.list_size(i) for i in range(NLIST)]
    )
    figure, axes = plt.subplots(figsize=(4.6, 3.0))
    for label, values in sizes.items():
        axes.plot(np.sort(values)[::-1], label=label)
    axes.axhline(len(x) / NLIST, color="0.7", linewidth=1)
    axes.set_yscale("log")
    axes.set_xlabel("lists, longest first")
    axes.set_ylabel("vectors in the list")
    axes.legend(frameon=False)
    save(figure, "python_list_sizes.svg")


responsibilities_in_2d()
indexes_over_words()
