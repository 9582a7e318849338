import numpy as np
import pytest


@pytest.fixture
def random():
    return np.random.default_rng(7)


@pytest.fixture
def blobs(random):
    """2,000 rows of 16 columns around 8 centers."""
    centers = 4 * random.standard_normal((8, 16))
    rows = centers[random.integers(8, size=2000)]
    rows = rows + random.standard_normal((2000, 16))
    return rows.astype(np.float32)
