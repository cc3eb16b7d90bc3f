"""Einstein summation."""

from __future__ import annotations

import string

import numpy as np

from .registry import reference


@reference("torch.einsum")
def einsum(*operands, equation):
    """Sum of products over the indices that the result lacks.

    pnnx drops the ellipses of an equation of several operands, so there may be more axes than
    letters.
    """
    terms, arrow, result = equation.partition("->")
    terms = terms.split(",")
    if "." not in equation and any(
        len(term) < np.ndim(x) for term, x in zip(terms, operands, strict=True)
    ):
        terms = ["..." + term for term in terms]
        result = "..." + result
    used = "".join(terms).replace(".", "")
    if not arrow:
        once = [x for x in string.ascii_uppercase + string.ascii_lowercase if used.count(x) == 1]
        result = ("..." if "." in "".join(terms) else "") + "".join(once)
    return np.asarray(np.einsum(f"{','.join(terms)}->{result}", *operands))
