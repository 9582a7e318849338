"""What a computation does while it runs: progress, interrupts, threads, memory.
"""

import os
import signal
import sys
import threading
import time

import numpy as np
import pytest

import faiss_flashgmm as fg


def fitted(x, k=8, **options):
    options = {"random_state": 3, "tol": 0, "max_iter": 5} | options
    return fg.FlashGMM(k, **options).fit(x)


@pytest.fixture
def many(random):
    return random.standard_normal((200000, 32), dtype=np.float32)


# --- progress ---


def test_callback_sees_progress_and_may_stop(blobs):
    seen = []
    fitted(blobs, callback=seen.append)
    assert {state["stage"] for state in seen} >= {"check_rows", "em"}
    last = [state["iteration"] for state in seen if state["stage"] == "em"][-1]
    assert last == 4

    class Enough(Exception):
        pass

    def stop(state):
        raise Enough

    gmm = fg.FlashGMM(8, callback=stop)
    with pytest.raises(Enough):
        gmm.fit(blobs)
    assert not hasattr(gmm, "means_")
    gmm.set_params(callback=None).fit(blobs)


def test_verbose_shows_a_bar(blobs, capsys):
    pytest.importorskip("tqdm")
    fitted(blobs, verbose=True, max_iter=20)
    shown = capsys.readouterr().err
    assert "FlashGMM" in shown and "/20 [" in shown  # done, time and time left
    assert "log_likelihood=-" in shown


def test_verbose_without_tqdm_shows_lines(blobs, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    fitted(blobs, verbose=True)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 4  # after the first iteration, and so on
    assert lines[0].startswith("iteration 1 of 5, log-likelihood -")
    assert lines[0].endswith("s left")


# --- interrupts and threads ---


def interrupted(work):
    """Seconds from Ctrl-C, half a second into the work, to its end."""
    sent = []

    def interrupt():
        time.sleep(0.5)
        sent.append(time.time())
        os.kill(os.getpid(), signal.SIGINT)

    # Where tests run in the background, the signal is ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            work()
    finally:
        thread.join()
        signal.signal(signal.SIGINT, before)
    return time.time() - sent[0]


def test_ctrl_c_stops_a_fit_within_a_second(many):
    gmm = fg.FlashGMM(256, tol=0, max_iter=100000)
    assert interrupted(lambda: gmm.fit(many)) < 3  # 1 on an idle machine
    assert not hasattr(gmm, "means_")


def test_ctrl_c_stops_predictions_and_indexes(many):
    gmm = fitted(many[:4000], 1024, max_iter=1)

    def predict():
        while True:
            gmm.predict(many)

    assert interrupted(predict) < 3
    index = fg.Index(32, "IVF512_GMM,PQ32,MA(soar)")
    assert interrupted(lambda: [index.train(many) for _ in range(100)]) < 3
    assert not index.is_trained
    flat = fg.Index(32, "IVF16_GMM,Flat")
    flat.train(many[:4000])
    flat.add(many)
    flat.nprobe = 16
    assert interrupted(lambda: [flat.search(many, 10) for _ in range(100)]) < 3
    assert flat.search(many[:1], 1)[1][0, 0] == 0


@pytest.mark.parametrize("work", ["fit", "predict", "train", "search"])
def test_other_threads_run_meanwhile(many, work):
    gmm = fitted(many[:4000], 256, max_iter=1)
    index = fg.Index(32, "IVF64_GMM,Flat")
    index.train(many[:8000])
    index.add(many[:50000])
    index.nprobe = 64
    done = []

    def run():
        {
            "fit": lambda: fitted(many, 64, max_iter=2),
            "predict": lambda: gmm.predict(many),
            "train": lambda: fg.Index(32, "IVF64_GMM,Flat").train(many),
            "search": lambda: index.search(many[:500], 10),
        }[work]()
        done.append(True)

    thread = threading.Thread(target=run)
    thread.start()
    ticks = 0
    while not done:
        time.sleep(0.002)
        ticks += 1
    thread.join()
    # Were the GIL held, there would be one.
    assert ticks >= 5


# --- memory ---


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="no /proc")
def test_fits_do_not_leak(blobs):
    """FLASHGMM_FITS=10000 for the whole of it."""
    fits = int(os.environ.get("FLASHGMM_FITS", 1500))
    x = blobs[:200]
    source = x.astype(np.float64)
    index = fg.Index(16, "IVF2_GMM,Flat,MA")
    index.train(x)

    def once():
        fitted(x, 2, max_iter=1).predict(x)
        fitted(source, 2, max_iter=1, callback=lambda state: None)
        index.add(x[:20])
        index.search(x[:20], 5)
        fg.Index.from_bytes(index.to_bytes()).mixture
        index.reset()

    for _ in range(200):
        once()
    before = resident_bytes()
    for _ in range(fits // 2):
        once()
    assert resident_bytes() - before < 4 << 20
