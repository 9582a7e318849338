"""A mixture, and an index, of more vectors than one would hold in memory.

Writes a file of vectors, fits a mixture to it where it lies, and adds it to an
index in pieces; says how large the file is and how much memory the fit took.

    python examples/python/from_disk.py [ROWS]
"""

import pathlib
import sys
import tempfile

import faiss
import faiss_flashgmm as fg
import numpy as np

COLUMNS = 64
LISTS = 128
PIECE = 50_000


def write_rows(path, rows):
    """Rows around 300 centers, written a piece at a time."""
    random = np.random.default_rng(0)
    centers = 2 * random.standard_normal((300, COLUMNS))
    out = np.lib.format.open_memmap(path, "w+", np.float32, (rows, COLUMNS))
    for begin in range(0, rows, PIECE):
        piece = out[begin : begin + PIECE]
        piece[:] = centers[random.integers(300, size=len(piece))]
        piece += random.standard_normal(piece.shape, dtype=np.float32)
    out.flush()


def memory_in_use():
    """Megabytes of this process that are no pages of files; 0: unknown."""
    status = pathlib.Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    sizes = [line.split()[1] for line in lines if line.startswith("RssAnon")]
    return int(sizes[0]) / 1024 if sizes else 0


def main(rows):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "rows.npy"
        write_rows(path, rows)
        x = np.load(path, mmap_mode="r")  # fit(path) would do as well

        before = memory_in_use()
        most = before

        def watch(progress):
            nonlocal most
            most = max(most, memory_in_use())

        gmm = fg.FlashGMM(
            LISTS,
            variance_model="tied",
            weight_model="uniform",
            max_iter=5,
            tol=0,
            random_state=0,
            callback=watch,
        ).fit(x)
        print(
            f"{gmm.n_iter_} iterations over {path.stat().st_size / 1e6:.0f} MB "
            f"took {most - before:.0f} MB of memory; "
            f"log-likelihood {gmm.lower_bound_:.2f} a row"
        )

        # The means are the centroids; nothing else of the index is trained.
        index = faiss.IndexIVFFlat(
            faiss.IndexFlatL2(COLUMNS), COLUMNS, LISTS
        )
        index.quantizer.add(gmm.means_)
        index.train(x[:1])
        copies = 0.0
        for begin in range(0, rows, PIECE):
            piece = x[begin : begin + PIECE]
            entries = fg.add_multi(index, piece, mixture=gmm)
            copies += (entries - 1) * len(piece)
        print(f"{index.ntotal} vectors, {copies:.0f} of them in two lists")

        probes = np.ascontiguousarray(x[:: rows // 100])
        ids = fg.search(index, probes, 1, nprobe=1)[1][:, 0]
        found = np.mean(ids == np.arange(0, rows, rows // 100))
        print(f"{found:.0%} of the vectors looked up find themselves")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 400_000)
