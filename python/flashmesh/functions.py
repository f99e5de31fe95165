"""Functions for expressions: all of `datafusion.functions`, and distances between vectors.

Vectors are columns of fixed-size binary (bit codes, for `hamming_distance`) or of lists of
floats. Sorting by a distance and taking the first k runs beside the pages:

>>> from flashmesh import col, functions as f
>>> nearest = con.table("images").sort(f.hamming_distance(col("code"), code)).limit(10)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from datafusion import Expr, ScalarUDF, lit
from datafusion.functions import *  # noqa: F403
from datafusion.functions import __all__ as _upstream

from ._flashmesh import scalar_functions

# DataFusion has two of them for lists; ours take bytes and NumPy arrays as well.
__all__ = sorted({*_upstream, "cosine_distance", "dot_product", "hamming_distance", "l2_distance"})

#: Distances as functions of DataFusion's, by name.
DISTANCES = {function.name: ScalarUDF.from_pycapsule(function) for function in scalar_functions()}

Vector = Expr | bytes | Sequence[float] | Any


def hamming_distance(left: Vector, right: Vector) -> Expr:
    """Bits in which two codes differ."""
    return _distance("hamming_distance", left, right)


def l2_distance(left: Vector, right: Vector) -> Expr:
    """Euclidean distance of two vectors."""
    return _distance("l2_distance", left, right)


def cosine_distance(left: Vector, right: Vector) -> Expr:  # type: ignore[no-redef]
    """1 minus the cosine of the angle between two vectors."""
    return _distance("cosine_distance", left, right)


def dot_product(left: Vector, right: Vector) -> Expr:  # type: ignore[no-redef]
    """Dot product of two vectors; the greater, the nearer."""
    return _distance("dot_product", left, right)


def _distance(name: str, left: Vector, right: Vector) -> Expr:
    return DISTANCES[name](_vector(left), _vector(right))


def _vector(value: Vector) -> Expr:
    """A vector as an expression: constants may be bytes, a sequence of numbers, a NumPy array."""
    if isinstance(value, Expr):
        return value
    if isinstance(value, (bytes, bytearray, memoryview)):
        return lit(pa.scalar(bytes(value)))
    return lit(pa.scalar([float(number) for number in value], pa.list_(pa.float32())))
