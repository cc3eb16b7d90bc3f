"""Advice on operator types without a record: the reason, a remedy, or similar types."""

from __future__ import annotations

import difflib
import re

from kuiper.ops.core.record import registered_types

__all__ = ["STAYS_OUT", "advice"]

# Types, or prefixes that end in a star; the reason; the remedy.
STAYS_OUT: tuple[tuple[str, str, str], ...] = (
    (
        "nn.quantized.cat nn.intrinsic.quantized.*",
        "modules of converted networks; PyTorch can no longer export them through pnnx",
        "export the float model and call kuiper.quantize, or the one with fake quantization",
    ),
    (
        "prim::If prim::Loop",
        "pnnx does not write what their branches and bodies compute",
        "export a module in which the branch is decided and the loop written out",
    ),
    (
        "aten::linalg_inv aten::inverse aten::linalg_inv_ex aten::linalg_solve "
        "aten::linalg_solve_ex aten::linalg_solve_triangular aten::linalg_lstsq aten::linalg_pinv "
        "aten::det aten::linalg_det aten::linalg_slogdet aten::slogdet aten::linalg_cholesky "
        "aten::linalg_cholesky_ex aten::linalg_qr aten::linalg_svd aten::linalg_svdvals "
        "aten::linalg_eig aten::linalg_eigh aten::linalg_eigvals aten::linalg_eigvalsh "
        "aten::linalg_lu aten::linalg_lu_factor aten::linalg_lu_factor_ex aten::linalg_matrix_exp "
        "aten::linalg_matrix_rank aten::linalg_cond aten::linalg_ldl_factor "
        "aten::linalg_ldl_factor_ex aten::linalg_ldl_solve aten::linalg_lu_solve "
        "aten::linalg_householder_product aten::linalg_tensorinv aten::linalg_tensorsolve "
        "aten::lu_unpack aten::lu_solve aten::triangular_solve aten::cholesky "
        "aten::cholesky_inverse aten::cholesky_solve aten::svd aten::pinverse aten::logdet "
        "aten::qr aten::geqrf aten::ormqr aten::orgqr",
        "solving and decomposing matrices: a matter for LAPACK, not for an inference engine",
        "compute it before or after the model, or supply it with @kuiper.operator",
    ),
    (
        "aten::bernoulli aten::multinomial aten::dropout aten::poisson aten::exponential "
        "aten::geometric aten::cauchy aten::log_normal aten::random aten::uniform "
        "aten::fractional_max_pool2d aten::fractional_max_pool3d aten::rrelu_with_noise "
        "aten::rrelu aten::randint aten::randint_like aten::randperm",
        "random choices, which differ between runtimes",
        "export in eval mode, or give the random numbers to the model as an input",
    ),
    (
        "aten::mse_loss aten::l1_loss aten::smooth_l1_loss aten::huber_loss "
        "aten::cross_entropy_loss aten::nll_loss aten::nll_loss_nd aten::nll_loss2d aten::kl_div "
        "aten::binary_cross_entropy aten::binary_cross_entropy_with_logits aten::ctc_loss "
        "aten::poisson_nll_loss aten::soft_margin_loss aten::margin_ranking_loss "
        "aten::cosine_embedding_loss aten::triplet_margin_loss aten::hinge_embedding_loss "
        "aten::multi_margin_loss aten::multilabel_margin_loss aten::gaussian_nll_loss",
        "losses belong to training",
        "export the module without its loss",
    ),
    (
        "aten::digamma aten::polygamma aten::igamma aten::igammac aten::i0 aten::special_* "
        "aten::erfinv aten::mvlgamma aten::histogram aten::histogramdd aten::nonzero_static",
        "rare functions without a record",
        "supply it with @kuiper.operator",
    ),
    (
        "aten::_softmax_backward_data aten::max_pool2d_with_indices_backward",
        "gradients, which belong to training",
        "export the forward pass",
    ),
    (
        "aten::native_layer_norm aten::native_group_norm aten::native_batch_norm "
        "aten::_native_batch_norm_legit aten::_batch_norm_with_update aten::_safe_softmax "
        "aten::_unsafe_masked_index aten::_unsafe_masked_index_put_accumulate aten::_chunk_cat "
        "aten::native_dropout_backward aten::segment_reduce aten::hash_tensor "
        "aten::new_empty_strided aten::empty_strided aten::empty_permuted aten::resize_as",
        "an internal function of PyTorch; no traced module calls it by this name",
        "call the public function, such as F.layer_norm",
    ),
    (
        "prim::Constant prim::NumToTensor aten::Int aten::ScalarImplicit aten::size Tensor.size "
        "aten::add aten::sub aten::rsub aten::mul aten::div aten::floor_divide aten::remainder "
        "aten::pow aten::neg aten::abs aten::sqrt aten::exp aten::log",
        "raw TorchScript, which pnnx converts to expressions and literal arguments",
        "export with the default optlevel=2",
    ),
)

_EXACT: dict[str, str] = {}
_PREFIXES: list[tuple[str, str]] = []
for _types, _reason, _remedy in STAYS_OUT:
    for _type in _types.split():
        if _type.endswith("*"):
            _PREFIXES.append((_type[:-1], _remedy))
        else:
            _EXACT[_type] = _remedy


def advice(type: str) -> str:
    """Return advice on a type without a record: a remedy, or the names of similar types.

    Parameters
    ----------
    type : str

    Returns
    -------
    str
        Empty if no type is similar.
    """
    if type in _EXACT:
        return _EXACT[type]
    for prefix, remedy in _PREFIXES:
        if type.startswith(prefix):
            return remedy
    known = [name for name in registered_types() if not name.startswith("pnnx.")]
    plain = _plain(type)
    same = [name for name in known if _plain(name) == plain]
    if not same:
        words = {_plain(name): name for name in reversed(known)}
        same = [words[word] for word in difflib.get_close_matches(plain, words, 2, 0.8)]
    return f"nearest {' or '.join(same[:2])}" if same else ""


def _plain(type: str) -> str:
    """Return the last word of a type in lower case and without underscores."""
    return re.split(r"\.|::", type)[-1].replace("_", "").lower()
