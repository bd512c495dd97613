"""The vector files of a dense index folder: what they are called and how they are mapped into memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from parallelsearch.errors import IndexDamagedError, UsageError
from parallelsearch.files import PathLike
from parallelsearch.retrieval.store import Manifest, open_manifest
from parallelsearch.retrieval.text_encoder import Vectors
from parallelsearch.retrieval.vectors import check_dtype

KIND = "dense"
VECTORS, SCALES = "vectors.bin", "scales.bin"


def open_vectors(folder: PathLike, manifest: Manifest | None = None) -> tuple[npt.NDArray[Any], Vectors | None]:
    """The vectors of a dense index, memory-mapped (rows x dim), and the scales if they are int8."""
    folder = Path(folder)
    manifest = manifest or open_manifest(folder, KIND)
    try:
        dtype, dim = check_dtype(manifest.settings["dtype"]), int(manifest.settings["encoder"]["dim"])
    except (KeyError, TypeError, UsageError) as error:
        raise IndexDamagedError(f"the manifest of '{folder}' does not say what its vectors are ({error})") from error
    shape = (manifest.num_passages, dim)
    # Mode "c" (a private copy of what is written, and nothing is): torch warns about an array it may not write to.
    try:
        vectors = np.memmap(folder / VECTORS, dtype=np.dtype(dtype).newbyteorder("<"), mode="c", shape=shape)
        scales = np.memmap(folder / SCALES, dtype="<f4", mode="c", shape=shape[:1]) if dtype == "int8" else None
    except (OSError, ValueError) as error:
        raise IndexDamagedError(f"the vectors of '{folder}' do not fit its manifest: {error}") from error
    return vectors, scales
