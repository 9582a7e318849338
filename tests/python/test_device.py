"""Arrays that are not NumPy's, and memory of GPUs.

What needs a GPU is skipped without one, or in a build without CUDA; it can be
run alone: pytest tests/python/test_device.py -rs
"""

import numpy as np
import pytest

import faiss_flashgmm as fg
from faiss_flashgmm._rows import device_name

FITTED = ("means_", "variances_", "weights_")

needs_gpu = pytest.mark.skipif(
    not fg.cuda_available(), reason="no CUDA device, or a build without CUDA"
)
without_cuda = pytest.mark.skipif(
    "built without" not in fg._core.why_no_cuda(), reason="a build with CUDA"
)


def fitted(x, device="cpu", sample_weight=None, k=8, **options):
    options = {"random_state": 3, "tol": 0, "max_iter": 5} | options
    gmm = fg.FlashGMM(k, device=device, **options)
    return gmm.fit(x, sample_weight=sample_weight)


def assert_close(a, b, tolerance=0):
    for name in FITTED:
        np.testing.assert_allclose(
            getattr(a, name), getattr(b, name), rtol=tolerance, atol=tolerance
        )


class Exported:
    """An array of another library: it has DLPack, and no more."""

    def __init__(self, array):
        self._array = array
        self.shape = array.shape

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


class OnlyCudaInterface:
    def __init__(self, array):
        self._array = array  # keeps it
        self.shape = tuple(array.shape)
        self.__cuda_array_interface__ = array.__cuda_array_interface__


# --- without a GPU ---


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8, np.float64])
def test_dlpack_arrays_are_read(blobs, dtype):
    x = np.round(blobs).astype(dtype)
    other = Exported(x)
    gmm = fitted(x)
    assert_close(fitted(other), gmm)
    np.testing.assert_array_equal(gmm.predict(other), gmm.predict(x))


def test_torch_tensors_on_the_cpu(blobs):
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(blobs)
    expected = fitted(blobs)
    assert_close(fitted(x), expected)
    assert_close(fitted(x.double()), expected, 1e-6)
    assert_close(fitted(x.T.contiguous().T), expected)
    bfloat16 = x.bfloat16()
    assert_close(fitted(bfloat16), fitted(bfloat16.float().numpy()))
    assert_close(fitted(x.clone().requires_grad_()), expected)
    with pytest.raises(ValueError, match="2D"):
        fitted(x[0])


def test_devices_have_many_names():
    class TorchDevice:
        def __str__(self):
            return "cuda:1"

    for device, name in {
        "cpu": "cpu",
        "cuda": "cuda",
        2: "cuda:2",
        TorchDevice(): "cuda:1",
        ("cuda:0",): "cuda:0",
        ("cuda", "cuda:3"): "cuda:0,3",
        (0, 1): "cuda:0,1",
    }.items():
        assert device_name(device) == name
    with pytest.raises(ValueError, match="not a list of CUDA devices"):
        device_name(["cpu", "cuda"])
    with pytest.raises(ValueError, match="not a list of CUDA devices"):
        device_name([])


@without_cuda
def test_a_build_without_cuda_says_how_to_get_one(blobs):
    for device in ("cuda", [0, 1]):
        with pytest.raises(ValueError, match="FLASHGMM_CUDA=ON"):
            fitted(blobs, device)
    with pytest.raises(ValueError, match="FLASHGMM_CUDA=ON"):
        fg.Kmeans(16, 8, gpu=2).train(blobs)

    class OnGpu:
        shape = (4, 2)
        __cuda_array_interface__ = {
            "shape": shape,
            "typestr": "<f4",
            "data": (1 << 40, True),
            "version": 3,
        }

    with pytest.raises(ValueError, match="memory of a GPU.*FLASHGMM_CUDA=ON"):
        fitted(OnGpu(), k=2)


# --- with one ---


def gpu_arrays(x):
    """The rows in memory of the GPU, by library."""
    arrays = {}
    try:
        import torch

        arrays["torch"] = torch.from_numpy(x).cuda()
        if x.dtype != np.float64:
            arrays["interface"] = OnlyCudaInterface(arrays["torch"])
    except ImportError:
        pass
    try:
        import cupy

        arrays["cupy"] = cupy.asarray(x)
    except ImportError:
        pass
    if not arrays:
        pytest.skip("neither torch nor cupy")
    return arrays


@needs_gpu
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8, np.uint8])
def test_gpu_arrays_give_the_fit_of_host_arrays(blobs, dtype):
    x = np.round(blobs - blobs.min()).astype(dtype)
    expected = fitted(x, "cuda")
    assert expected.lower_bound_ == pytest.approx(
        fitted(x).lower_bound_, rel=1e-3
    )
    for array in gpu_arrays(x).values():
        gmm = fitted(array, "cuda")
        assert_close(gmm, expected, 1e-4)
        for on_gpu, on_host in zip(
            gmm.responsibilities(array, 2), gmm.responsibilities(x, 2)
        ):
            np.testing.assert_allclose(on_gpu, on_host, atol=1e-5)
        assert gmm.score(array) == pytest.approx(gmm.score(x), 1e-5)


@needs_gpu
def test_bfloat16_and_weights_on_the_gpu(blobs, random):
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(blobs).cuda()
    half = x.bfloat16()
    assert_close(fitted(half, "cuda"), fitted(half.float(), "cuda"), 1e-4)
    weights = random.random(len(blobs), dtype=np.float32)
    assert_close(
        fitted(x, "cuda", torch.from_numpy(weights).cuda()),
        fitted(blobs, "cuda", weights),
        1e-4,
    )
    with pytest.raises(ValueError, match="not in the same memory"):
        fitted(x, "cuda", weights)


@needs_gpu
def test_gpu_arrays_are_not_copied():
    torch = pytest.importorskip("torch")
    x = torch.randn(1 << 21, 128, device="cuda")
    least = []

    def look(state):
        least[-1] = min(least[-1], torch.cuda.mem_get_info()[0])

    used = []
    for rows in (x.cpu().numpy(), x):
        torch.cuda.synchronize()
        least.append(torch.cuda.mem_get_info()[0])
        before = least[-1]
        fitted(rows, "cuda", k=64, init_params="random_rows", callback=look)
        used.append(before - least[-1])
    assert used[0] - used[1] > 0.8 * x.nbytes


@needs_gpu
def test_work_queued_for_the_rows_is_waited_for(blobs):
    torch = pytest.importorskip("torch")
    y = torch.from_numpy(blobs).cuda()
    expected = fitted(y, "cuda")
    x = torch.zeros_like(y)
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(1 << 30)  # about half a second
        x.copy_(y)
    assert_close(fitted(x, "cuda"), expected, 1e-4)


@needs_gpu
def test_gpu_arrays_that_cannot_be_read_are_named(blobs):
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(blobs).cuda()
    with pytest.raises(ValueError, match="memory of a GPU.*device='cuda'"):
        fitted(x)
    with pytest.raises(TypeError, match="float64"):
        fitted(x.double(), "cuda")
    with pytest.raises(TypeError, match="C order"):
        fitted(x[:, ::2], "cuda")
    bad = x.clone()
    bad[7, 2] = float("nan")
    with pytest.raises(ValueError, match="row 7.*column 2"):
        fitted(bad, "cuda")
    with pytest.raises(ValueError, match="row 7.*column 2"):
        fitted(x, "cuda").predict(bad)
    with pytest.raises(ValueError, match="device 99"):
        fitted(blobs, 99)


@needs_gpu
def test_indexes_train_from_gpu_arrays(blobs):
    faiss = pytest.importorskip("faiss")
    array = next(iter(gpu_arrays(blobs).values()))
    for factory in ("IVF8,Flat", "PCA8,IVF8,PQ4x4"):
        index = faiss.index_factory(16, factory)
        fg.train_ivf(index, array, device="cuda")
        expected = faiss.index_factory(16, factory)
        fg.train_ivf(expected, blobs, device="cuda")
        ours, theirs = (
            faiss.downcast_index(
                faiss.extract_index_ivf(i).quantizer
            ).reconstruct_n(0, 8)
            for i in (index, expected)
        )
        np.testing.assert_allclose(ours, theirs, atol=1e-3)
        assert index.is_trained
    kmeans = fg.Kmeans(16, 8, gpu=1)
    kmeans.train(array)
    assert kmeans.assign(array)[1].shape == (len(blobs),)


@needs_gpu
def test_several_gpus_share_a_fit(blobs):
    torch = pytest.importorskip("torch")
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    expected = fitted(blobs, "cuda")
    assert_close(fitted(blobs, ["cuda:0", "cuda:1"]), expected, 1e-4)


@needs_gpu
@pytest.mark.parametrize("transform", [False, True])
@pytest.mark.parametrize("kind", ["Flat", "PQ", "ScalarQuantizer"])
def test_gpu_indexes_of_faiss_train(blobs, kind, transform):
    faiss = pytest.importorskip("faiss")
    if not hasattr(faiss, "StandardGpuResources"):
        pytest.skip("a faiss without GPU")
    resources = faiss.StandardGpuResources()
    arguments = {
        "Flat": (16, 8, faiss.METRIC_L2),
        "PQ": (16, 8, 8, 8, faiss.METRIC_L2),
        "ScalarQuantizer": (
            *(16, 8),
            faiss.ScalarQuantizer.QT_8bit,
            faiss.METRIC_L2,
        ),
    }[kind]
    ivf = getattr(faiss, f"GpuIndexIVF{kind}")(resources, *arguments)
    ivf.nprobe = 8
    index = ivf
    if transform:
        matrix = faiss.RandomRotationMatrix(16, 16)
        index = faiss.IndexPreTransform(matrix, ivf)
    gmm = fg.train_ivf(index, blobs, device="cuda")
    assert index.is_trained and ivf.is_trained
    on_cpu = faiss.index_gpu_to_cpu(ivf)
    assert type(on_cpu).__name__ == f"IndexIVF{kind}"
    quantizer = faiss.downcast_index(on_cpu.quantizer)
    np.testing.assert_array_equal(quantizer.reconstruct_n(0, 8), gmm.means_)
    index.add(blobs)
    distances, ids = fg.search(index, blobs[:100], 200)
    assert (ids[:, 0] == np.arange(100)).mean() > 0.9
    assert (np.diff(distances, axis=1) >= 0).all()
    assert all(len(set(row)) == 200 for row in ids)
    with pytest.raises(NotImplementedError, match="on the CPU"):
        fg.add_multi(index, blobs, mixture=gmm)
