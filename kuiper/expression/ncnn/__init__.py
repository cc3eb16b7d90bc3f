"""ncnn's dialect of shape expressions, and its translation from and to PNNX's.

`language` reads, writes and evaluates the dialect; `translation` translates in both directions.
"""

from kuiper.expression.ncnn.language import (
    OPERATORS,
    BlobExtent,
    Extents,
    count_blobs,
    eval_list,
    parse,
    to_text,
)
from kuiper.expression.ncnn.translation import Source, Translation, from_ncnn, to_ncnn

__all__ = [
    "OPERATORS",
    "BlobExtent",
    "Extents",
    "Source",
    "Translation",
    "count_blobs",
    "eval_list",
    "from_ncnn",
    "parse",
    "to_ncnn",
    "to_text",
]
