"""Networks of torchvision, diffusers and torchaudio other than image classifiers.

Video, detection, optical flow, image generation and speech, with the code of the packages; those of
diffusers and torchaudio in small sizes. Nothing is downloaded.
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from torch import Tensor, nn

from common import images
from networks.spec import import_torchvision
from zoo.modern import numbers
from zoo.nets import Inputs, Network, pictures, sound

torchvision = import_torchvision()


# -- torchvision -------------------------------------------------------------------------------


def video(name: str, frames: int, extent: int) -> Network:
    """Return a classifier of videos."""
    return Network(
        lambda: torchvision.models.get_model(name, weights=None),
        numbers((3, frames, extent, extent)),
    )


class Detector(nn.Module):
    """A detector of torchvision, called with one image instead of a list.

    Parameters
    ----------
    name : str
    extent : int
        Of the image; it is not resized.
    """

    def __init__(self, name: str, extent: int):
        super().__init__()
        _give_operators()
        self.body = torchvision.models.get_model(
            name, weights=None, weights_backbone=None, num_classes=11
        )
        self.body.transform.min_size, self.body.transform.max_size = (extent,), extent
        self.body.transform.fixed_size = None

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        found = self.body([x[0]])
        found = found[1][0] if isinstance(found, tuple) else found[0]
        return tuple(found.values())


def detector(name: str, extent: int) -> Network:
    """Return a detector; it takes one image, and has no batch."""
    draw = pictures(3, extent, extent)
    return Network(
        lambda: Detector(name, extent),
        lambda batch, seed: draw(1, seed),
        others=(("another image", lambda batch, seed: draw(1, seed + 5)),),
    )


def _give_operators() -> None:
    """Register Python versions of the box operators if torchvision's compiled ones do not load."""
    library = getattr(import_torchvision, "library", None)
    if library is None or getattr(_give_operators, "done", False):
        return
    torchvision.extension._has_ops = _yes
    sys.modules["torchvision.ops.roi_align"]._has_ops = _yes
    library.impl("nms", _nms, "CPU")
    library.impl("roi_align", _roi_align, "CPU")
    _give_operators.done = True


def _yes() -> bool:
    return True


def _nms(boxes: Tensor, scores: Tensor, threshold: float) -> Tensor:
    """Return the indices of boxes that no better box overlaps, best first."""
    order = scores.argsort(descending=True, stable=True)
    boxes = boxes[order]
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    low = torch.maximum(boxes[:, None, :2], boxes[None, :, :2])
    high = torch.minimum(boxes[:, None, 2:], boxes[None, :, 2:])
    common = (high - low).clamp(min=0).prod(-1)
    overlap = common / (areas[:, None] + areas[None] - common) > threshold
    kept = torch.ones(len(boxes), dtype=torch.bool)
    for i in range(len(boxes)):
        if kept[i]:
            kept[i + 1 :] &= ~overlap[i, i + 1 :]
    return order[kept]


def _roi_align(
    x: Tensor, rois: Tensor, scale: float, height: int, width: int, samples: int, aligned: bool
) -> Tensor:
    """Return means of bilinear samples of each bin of each region."""
    shift = 0.5 if aligned else 0.0
    results = []
    for roi in rois:
        image = x[int(roi[0])]
        left, top, right, bottom = (float(value) for value in roi[1:] * scale - shift)
        wide, high = right - left, bottom - top
        if not aligned:
            wide, high = max(wide, 1.0), max(high, 1.0)
        down = samples if samples > 0 else int(np.ceil(high / height))
        across = samples if samples > 0 else int(np.ceil(wide / width))
        ys = top + (torch.arange(height * down) + 0.5) * high / (height * down)
        xs = left + (torch.arange(width * across) + 0.5) * wide / (width * across)
        found = _bilinear(_bilinear(image, ys, 1), xs, 2)
        results.append(found.reshape(-1, height, down, width, across).mean((2, 4)))
    shape = (0, x.shape[1], height, width)
    return torch.stack(results) if results else x.new_zeros(shape)


def _bilinear(image: Tensor, points: Tensor, axis: int) -> Tensor:
    """Interpolate along one axis; points more than one pixel outside of the image give 0."""
    extent = image.shape[axis]
    inside = (points >= -1) & (points <= extent)
    points = points.clamp(0, extent - 1)
    low = points.floor().long()
    high = (low + 1).clamp(max=extent - 1)
    shape = [1, 1, 1]
    shape[axis] = -1
    part = (points - low).view(shape)
    found = image.index_select(axis, low) * (1 - part) + image.index_select(axis, high) * part
    return found * inside.view(shape)


class LastFlow(nn.Module):
    """Optical flow of two frames; returns the last refinement."""

    def __init__(self):
        super().__init__()
        self.body = torchvision.models.optical_flow.raft_small(weights=None)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        return self.body(first, second, num_flow_updates=3)[-1]


def two_frames(batch: int, seed: int) -> Inputs:
    """Draw two images, the second shifted a little."""
    x = images((batch, 3, 128, 136), seed)
    return x[..., :128].copy(), x[..., 3:131].copy()


VISION = {
    "r3d_18": video("r3d_18", 8, 64),
    "mc3_18": video("mc3_18", 8, 64),
    "r2plus1d_18": video("r2plus1d_18", 8, 64),
    "s3d": video("s3d", 16, 224),
    "mvit_v1_b": video("mvit_v1_b", 16, 224),
    "mvit_v2_s": video("mvit_v2_s", 16, 224),
    "swin3d_t": video("swin3d_t", 8, 96),
    "raft_small": Network(LastFlow, two_frames),
    "ssdlite320_mobilenet_v3_large": detector("ssdlite320_mobilenet_v3_large", 320),
    "ssd300_vgg16": detector("ssd300_vgg16", 300),
    "retinanet_resnet50_fpn": detector("retinanet_resnet50_fpn", 256),
    "fcos_resnet50_fpn": detector("fcos_resnet50_fpn", 256),
    "fasterrcnn_mobilenet_v3_large_320_fpn": detector("fasterrcnn_mobilenet_v3_large_320_fpn", 256),
    "fasterrcnn_resnet50_fpn": detector("fasterrcnn_resnet50_fpn", 256),
    "maskrcnn_resnet50_fpn": detector("maskrcnn_resnet50_fpn", 256),
    "keypointrcnn_resnet50_fpn": detector("keypointrcnn_resnet50_fpn", 256),
}


# -- diffusers ---------------------------------------------------------------------------------


class First(nn.Module):
    """The first tensor that a network of diffusers returns."""

    def __init__(self, body: nn.Module, names: tuple[str, ...]):
        super().__init__()
        self.body, self.names = body, names

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.body(**dict(zip(self.names, inputs, strict=True)), return_dict=False)[0]


class Mean(nn.Module):
    """Encodes images to the mean of a distribution, and decodes that."""

    def __init__(self, body: nn.Module):
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean = self.body.encode(x).latent_dist.mode()
        return mean, self.body.decode(mean, return_dict=False)[0]


def diffuser(kind: str, names: str, draw, **sizes) -> Network:
    """Return a network of diffusers, with the names of its inputs."""

    def build() -> nn.Module:
        import diffusers

        body = getattr(diffusers, kind)(**sizes).eval()
        return Mean(body) if kind.startswith("Autoencoder") else First(body, tuple(names.split()))

    return Network(build, draw)


def noisy(*shapes: tuple[int, ...], step: int = 1):
    """Return a function that draws numbers of these shapes, with time steps at one index."""

    def draw(batch: int, seed: int) -> Inputs:
        found = [*numbers(*shapes)(batch, seed)]
        steps = np.random.default_rng(seed + 7).integers(1, 900, (batch,))
        return (*found[:step], steps, *found[step:])

    return draw


def labelled(*shape: int):
    """Return a function that draws noise, time steps and classes."""
    return lambda batch, seed: (
        *noisy(shape)(batch, seed),
        np.random.default_rng(seed + 8).integers(0, 9, (batch,)),
    )


BLOCKS = {"block_out_channels": (32, 64), "layers_per_block": 1, "norm_num_groups": 8}
DIFFUSERS = {
    "unet_2d": diffuser(
        "UNet2DModel",
        "sample timestep",
        noisy((3, 32, 32)),
        sample_size=32,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        **BLOCKS,
    ),
    "unet_2d_condition": diffuser(
        "UNet2DConditionModel",
        "sample timestep encoder_hidden_states",
        noisy((4, 32, 32), (7, 24)),
        sample_size=32,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=24,
        attention_head_dim=4,
        **BLOCKS,
    ),
    "autoencoder_kl": diffuser(
        "AutoencoderKL",
        "sample",
        pictures(3, 32, 32),
        sample_size=32,
        down_block_types=("DownEncoderBlock2D", "DownEncoderBlock2D"),
        up_block_types=("UpDecoderBlock2D", "UpDecoderBlock2D"),
        **BLOCKS,
    ),
    "vq_model": diffuser(
        "VQModel",
        "sample",
        pictures(3, 32, 32),
        down_block_types=("DownEncoderBlock2D", "DownEncoderBlock2D"),
        up_block_types=("UpDecoderBlock2D", "UpDecoderBlock2D"),
        num_vq_embeddings=16,
        **BLOCKS,
    ),
    "dit": diffuser(
        "DiTTransformer2DModel",
        "hidden_states timestep class_labels",
        labelled(4, 16, 16),
        num_attention_heads=4,
        attention_head_dim=16,
        in_channels=4,
        num_layers=2,
        sample_size=16,
        patch_size=2,
        norm_num_groups=8,
        num_embeds_ada_norm=10,
    ),
    "sd3_transformer": diffuser(
        "SD3Transformer2DModel",
        "hidden_states timestep encoder_hidden_states pooled_projections",
        noisy((4, 16, 16), (7, 24), (20,)),
        sample_size=16,
        in_channels=4,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=4,
        joint_attention_dim=24,
        caption_projection_dim=64,
        pooled_projection_dim=20,
        out_channels=4,
        pos_embed_max_size=16,
    ),
    "pixart_transformer": diffuser(
        "PixArtTransformer2DModel",
        "hidden_states timestep encoder_hidden_states",
        noisy((4, 16, 16), (7, 24)),
        num_attention_heads=4,
        attention_head_dim=16,
        in_channels=4,
        out_channels=8,
        num_layers=2,
        cross_attention_dim=64,
        sample_size=16,
        caption_channels=24,
        use_additional_conditions=False,
    ),
    "unet_1d": diffuser(
        "UNet1DModel",
        "sample timestep",
        noisy((4, 64)),
        sample_size=64,
        in_channels=4,
        out_channels=4,
        use_timestep_embedding=True,
        time_embedding_type="positional",
        flip_sin_to_cos=False,
        block_out_channels=(16, 32),
        down_block_types=("DownResnetBlock1D", "DownResnetBlock1D"),
        up_block_types=("UpResnetBlock1D",),
        mid_block_type="MidResTemporalBlock1D",
        out_block_type="OutConv1DBlock",
        act_fn="mish",
        norm_num_groups=8,
        layers_per_block=1,
    ),
}


# -- torchaudio --------------------------------------------------------------------------------


def speech(kind: str, draw, *arguments, first: bool = True, method: str = "", **sizes) -> Network:
    """Return a network of torchaudio; only its first result, if `first`."""

    class Speech(nn.Module):
        def __init__(self, body: nn.Module):
            super().__init__()
            self.body = body

        def forward(self, *inputs: Tensor):
            given = [
                torch.full((inputs[0].shape[0],), inputs[0].shape[1]) if x is LENGTHS else x
                for x in arguments
            ]
            call = getattr(self.body, method) if method else self.body
            result = call(*inputs, *given)
            return result[0] if first and isinstance(result, tuple) else result

    def build() -> nn.Module:
        models = _torchaudio_models()
        return Speech(getattr(models, kind)(**sizes).eval())

    return Network(build, draw)


LENGTHS = "lengths"


def _torchaudio_models():
    """Return torchaudio's networks, even if its compiled part does not match this torch."""
    import sys
    import types

    try:
        import torchaudio
    except (OSError, AttributeError):
        for name in [name for name in sys.modules if name.startswith("torchaudio")]:
            del sys.modules[name]
        extension = types.ModuleType("torchaudio._extension")
        extension._IS_TORCHAUDIO_EXT_AVAILABLE = extension._IS_RIR_AVAILABLE = False
        extension._IS_ALIGN_AVAILABLE = False
        extension.lazy_import_sox_ext = extension._init_dll_path = lambda: None
        extension.fail_if_no_align = extension.fail_if_no_rir = lambda function: function
        sys.modules[extension.__name__] = extension
        import torchaudio
    return torchaudio.models


WAVE2VEC = {
    "extractor_mode": "group_norm",
    "extractor_conv_layer_config": [(32, 10, 5), (32, 3, 2), (32, 2, 2)],
    "extractor_conv_bias": False,
    "encoder_embed_dim": 48,
    "encoder_projection_dropout": 0.0,
    "encoder_pos_conv_kernel": 8,
    "encoder_pos_conv_groups": 4,
    "encoder_num_layers": 2,
    "encoder_num_heads": 4,
    "encoder_attention_dropout": 0.0,
    "encoder_ff_interm_features": 64,
    "encoder_ff_interm_dropout": 0.0,
    "encoder_dropout": 0.0,
    "encoder_layer_norm_first": False,
    "encoder_layer_drop": 0.0,
    "aux_num_out": 12,
}
TORCHAUDIO = {
    "conv_tasnet_base": speech(
        "ConvTasNet",
        sound(1, 3200),
        num_sources=2,
        enc_num_feats=32,
        msk_num_feats=16,
        msk_num_hidden_feats=32,
        msk_num_layers=3,
        msk_num_stacks=2,
    ),
    "hdemucs": speech(
        "HDemucs",
        sound(2, 16384),
        sources=["drums", "voice"],
        nfft=1024,
        depth=5,
        channels=8,
    ),
    "wav2vec2_model": speech("wav2vec2_model", sound(1600), **WAVE2VEC),
    "wav2vec2_layer_norm": speech(
        "wav2vec2_model",
        sound(1600),
        **{**WAVE2VEC, "extractor_mode": "layer_norm", "encoder_layer_norm_first": True},
    ),
    "conformer": speech(
        "Conformer",
        numbers((30, 48)),
        LENGTHS,
        input_dim=48,
        num_heads=4,
        ffn_dim=64,
        num_layers=2,
        depthwise_conv_kernel_size=7,
    ),
    "emformer": speech(
        "Emformer",
        numbers((20, 48)),
        LENGTHS,
        input_dim=48,
        num_heads=4,
        ffn_dim=64,
        num_layers=2,
        segment_length=4,
        right_context_length=4,
    ),
    "deepspeech": speech("DeepSpeech", numbers((1, 30, 40)), n_feature=40, n_hidden=48, n_class=12),
    "wav2letter": speech(
        "Wav2Letter", numbers((1, 16000)), num_classes=12, input_type="waveform", num_features=1
    ),
    "squim_objective": speech("squim_objective_base", sound(8000), first=False),
    "wave_rnn": speech(
        "WaveRNN",
        lambda batch, seed: (
            sound(1, 80)(batch, seed)[0],
            numbers((1, 20, 14))(batch, seed)[0],
        ),
        upsample_scales=[2, 4],
        n_classes=16,
        hop_length=8,
        n_res_block=2,
        n_rnn=32,
        n_fc=32,
        kernel_size=5,
        n_freq=20,
        n_hidden=24,
        n_output=24,
    ),
}
