"""Seeded weights that keep the signal neither vanishing nor exploding."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["SEED", "keep_alive", "outputs"]

SEED = 20
WEIGHTED = (nn.Conv1d, nn.Conv2d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.Linear)
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
NORMS = (*BATCH_NORMS, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


def keep_alive(
    module: nn.Module, x: Tensor | tuple[Tensor, ...], seed: int, calm: bool = False
) -> None:
    """Give `module` random weights that keep the signal neither vanishing nor exploding.

    A freshly built network is a bad test: the outputs of a MobileNet are about 1e-9, a ViT's head
    is zero, a ConvNeXt scales its branches by 1e-6, and batch norms are the identity. Here every
    parameter is random, each convolution and linear layer is scaled to an output deviation of
    1 on `x` (layer-sequential unit variance), and each batch norm stores roughly the
    statistics of its input. Its bias is about 1, one deviation: with 0, a following ReLU would
    discard so much of the signal, which the next batch norm scales up again, that rounding
    errors would grow by a fifth in every layer, and correct runtimes would differ after sixty.

    Parameters
    ----------
    module : nn.Module
        Changed in place and left in evaluation mode.
    x : Tensor or tuple of Tensor
        Images for the calibration, (n, c, h, w), or whatever the module takes.
    seed : int
        Seed of the random parameters.
    calm : bool
        For networks that need it: biases of layers are about 1, for ReLUs before a batch norm;
        those of batch norms about 0 and their weights less than 1, for attention after them; gains
        (numbers that scale a whole layer) are 1.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(parameter: Tensor, deviation: float) -> None:
        parameter.copy_(torch.randn(parameter.shape, generator=generator) * deviation)

    def uniform(parameter: Tensor, low: float, high: float) -> None:
        parameter.copy_(torch.rand(parameter.shape, generator=generator) * (high - low) + low)

    def initialise(owner: nn.Module, name: str, parameter: Tensor) -> None:
        if isinstance(owner, NORMS):
            if name == "weight":
                uniform(parameter, 0.7, 1.3)
                if calm and isinstance(owner, BATCH_NORMS):
                    parameter.mul_(0.4)
            else:
                normal(parameter, 0.2)
                parameter.add_(isinstance(owner, nn.BatchNorm2d) and not calm)
        elif name == "layer_scale":
            uniform(parameter, 0.1, 0.5)
        elif parameter.dim() > 1 and (name.endswith("weight") or name.startswith("weight_")):
            fan_in = parameter[0].numel()
            normal(parameter, fan_in**-0.5)
        elif name.endswith("bias"):
            normal(parameter, 0.1)
            if calm:
                parameter.add_(1)
        elif calm and (parameter.dim() == 0 or "gain" in name):
            parameter.fill_(1)
        else:  # tokens, position embeddings, tables of relative positions
            normal(parameter, 0.5)

    def scale_weight(layer: nn.Module, inputs: tuple[Tensor], output: Tensor) -> Tensor:
        layer.weight.div_(output.std())
        return layer.forward(*inputs)

    def set_statistics(layer: nn.Module, inputs: tuple[Tensor]) -> None:
        axes = [axis for axis in range(inputs[0].dim()) if axis != 1]
        variance, mean = torch.var_mean(inputs[0], axes)
        jitter = torch.randn(mean.shape, generator=generator)
        variance.clamp_(min=1e-2 * float(variance.mean()))
        if calm:  # do not amplify a small difference between two images
            variance.clamp_(min=0.05 * float(inputs[0].square().mean()))
        layer.running_mean.copy_(mean + 0.1 * variance.sqrt() * jitter)
        layer.running_var.copy_(variance)

    module.eval()
    handles = []
    with torch.no_grad():
        for owner in module.modules():
            for name, parameter in owner.named_parameters(recurse=False):
                initialise(owner, name, parameter)
            if isinstance(owner, WEIGHTED):
                handles.append(owner.register_forward_hook(scale_weight))
            elif isinstance(owner, BATCH_NORMS):
                handles.append(owner.register_forward_pre_hook(set_statistics))
        module(*x) if isinstance(x, tuple) else module(x)
    for handle in handles:
        handle.remove()


def outputs(result: Tensor | tuple[Tensor, ...]) -> list[Tensor]:
    """Return a module's result as a list of tensors."""
    return list(result) if isinstance(result, tuple | list) else [result]
