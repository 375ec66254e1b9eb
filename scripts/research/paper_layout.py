"""The paper's own data organization (§3.3): samples in the order in which they are stored, without classes.

Comparisons with the paper's figures use this layout, not the aligned layout that keeps labels safe.
"""

import numpy as np
import numpy.typing as npt

Int32 = npt.NDArray[np.int32]


def plain_layout(samples: int, *, chunk_size: int, chunks_per_vc: int) -> tuple[Int32, Int32]:
    """Cells int32[F / K, K] of consecutive samples, and vc_start int32[M + 1] over consecutive chunks.

    Which chunks share a VC does not matter where requests are random. The last chunk and the last VC may be short.
    """
    chunks = -(-samples // chunk_size)
    cells = np.arange(chunks * chunk_size, dtype=np.int32)
    cells[samples:] = -1
    return cells.reshape(chunks, chunk_size), np.append(np.arange(0, chunks, chunks_per_vc), chunks).astype(np.int32)
