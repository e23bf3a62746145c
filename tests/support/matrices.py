"""Random matrices of edge weights."""

import numpy as np
import scipy.sparse


def random_matrix(n: int, m: int, symmetric: bool, seed: int = 0) -> scipy.sparse.sparray:
    """Hubs, nodes without an edge, self-loops, and pairs that occur more than once."""
    rng = np.random.default_rng(seed)
    a, b = (rng.zipf(1.5, m) - 1) % n, rng.integers(0, n - n // 10, m)
    matrix = scipy.sparse.coo_array((rng.choice([0.5, 1.0, 2.0], m), (a, b)), (n, n)).tocsr()
    return (matrix + matrix.T).tocsr() if symmetric else matrix
