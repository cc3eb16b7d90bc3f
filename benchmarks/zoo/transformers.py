"""Networks of the package transformers, small ones with seeded weights.

The code is the package's, so the exporter meets its real operators: masks, rotary positions,
experts, state spaces, detection and segmentation heads, speech. Only the sizes are small. Needs
the package transformers; downloads nothing. The module is long because it is one table.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import transformers
from torch import nn

from common import images
from zoo.nets import Network, sound, tokens

transformers.logging.set_verbosity_error()

Draw = Callable[[int, int], np.ndarray]
VOCABULARY = 120


class Named(nn.Module):
    """A network that takes its inputs in order and returns only tensors.

    Parameters
    ----------
    body : nn.Module
    names : tuple of str
        The keywords of its inputs.
    wanted : tuple of str
        The results to return; all tensors by default.
    """

    def __init__(self, body: nn.Module, names: tuple[str, ...], wanted: tuple[str, ...]):
        super().__init__()
        self.body, self.names, self.wanted = body, names, wanted

    def forward(self, *inputs: torch.Tensor):
        result = self.body(**dict(zip(self.names, inputs, strict=True)))
        if isinstance(result, torch.Tensor):
            return result
        found = tuple(
            value
            for key, value in result.items()
            if isinstance(value, torch.Tensor) and (not self.wanted or key in self.wanted)
        )
        return found[0] if len(found) == 1 else found


def ids(length: int) -> Draw:
    """Return a function that draws token ids."""
    return lambda batch, seed: tokens(length, VOCABULARY)(batch, seed)[0]


def mask(length: int) -> Draw:
    """Return a function that draws masks, 0 after the end of each sequence."""

    def draw(batch: int, seed: int) -> np.ndarray:
        ends = np.random.default_rng(seed + 9).integers(length // 2, length + 1, (batch, 1))
        return (np.arange(length) < ends).astype(np.int64)

    return draw


def noise(*shape: int) -> Draw:
    """Return a function that draws normally distributed numbers."""
    return lambda batch, seed: (
        np.random.default_rng(seed + 3).standard_normal((batch, *shape)).astype(np.float32)
    )


def picture(*shape: int) -> Draw:
    """Return a function that draws images."""
    return lambda batch, seed: images((batch, *shape), seed)


def picture_of_frames(frames: int, *shape: int) -> Draw:
    """Return a function that draws videos."""
    return lambda batch, seed: images((batch * frames, *shape), seed).reshape(batch, frames, *shape)


def points_in_pictures(groups: int, points: int) -> Draw:
    """Return a function that draws points in pictures of 64 by 64."""
    return lambda batch, seed: (
        np.random.default_rng(seed + 4)
        .uniform(4, 60, (batch, groups, points, 2))
        .astype(np.float32)
    )


def signs(groups: int, points: int) -> Draw:
    """Return a function that draws labels of points: 1 on the object, 0 off it."""
    return lambda batch, seed: np.random.default_rng(seed + 5).integers(
        0, 2, (batch, groups, points)
    )


def wave(*shape: int) -> Draw:
    """Return a function that draws sound."""
    return lambda batch, seed: sound(*shape)(batch, seed)[0]


def net(kind: str, sizes, inputs: dict[str, Draw], wanted: tuple[str, ...] = (), config: str = ""):
    """Return a network of a class of the package transformers.

    Parameters
    ----------
    kind : str
        The class.
    sizes : dict or callable
        Arguments of its configuration, or a function that returns them.
    inputs : dict of str to callable
        For each keyword, the function that draws the input.
    wanted : tuple of str
        The results to compare; all by default.
    config : str, optional
        The class of its configuration, if it differs from the network's `config_class`.
    """

    def build() -> nn.Module:
        network = getattr(transformers, kind)
        configuration = getattr(transformers, config) if config else network.config_class
        torch.manual_seed(0)
        made = network(configuration(**(sizes() if callable(sizes) else sizes)))
        for name, buffer in made.named_buffers():
            if name.endswith("codebook.embed"):  # zeros until it is trained
                buffer.normal_()
        return Named(made.eval(), tuple(inputs), wanted)

    return Network(build, lambda batch, seed: tuple(draw(batch, seed) for draw in inputs.values()))


L = 18
IDS = {"input_ids": ids(L)}
IM = {"input_ids": ids(L), "attention_mask": mask(L)}
PIX = {"pixel_values": picture(3, 64, 64)}
BOTH = dict(IM, decoder_input_ids=ids(11))
LOGITS, LAST = ("logits",), ("last_hidden_state",)

# Sizes that several configurations share.
HEADS = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
LAYERS = dict(HEADS, intermediate_size=96)
T = dict(
    LAYERS,
    vocab_size=VOCABULARY,
    max_position_embeddings=64,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
)
V = dict(LAYERS, image_size=64, patch_size=16)
SMALL_TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
}
GPT = {
    "vocab_size": VOCABULARY,
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 64,
    "use_cache": False,
}
DECODER = {
    "d_model": 64,
    "decoder_layers": 2,
    "decoder_attention_heads": 4,
    "decoder_ffn_dim": 96,
}
PAIR = dict(DECODER, encoder_layers=2, encoder_attention_heads=4, encoder_ffn_dim=96)
QUERIES = dict(
    PAIR,
    num_queries=12,
    num_labels=7,
    backbone=None,
    use_timm_backbone=False,
    use_pretrained_backbone=False,
)
SAM = dict(
    HEADS,
    output_channels=32,
    image_size=64,
    patch_size=8,
    window_size=3,
    global_attn_indexes=[1],
    mlp_dim=96,
)
SPEECH = dict(
    LAYERS,
    conv_dim=[32, 32, 32],
    conv_stride=[5, 2, 2],
    conv_kernel=[10, 3, 2],
    num_conv_pos_embeddings=16,
    num_conv_pos_embedding_groups=4,
)
SERIES = {
    "num_input_channels": 3,
    "context_length": 32,
    "patch_length": 8,
    "patch_stride": 8,
    "d_model": 32,
}


def dec(**more) -> dict:
    """Return the sizes of a decoder without cache."""
    return {**T, "use_cache": False, **more}


TRANSFORMERS = {
    "bert": net("BertForMaskedLM", T, IM),
    "distilbert": net(
        "DistilBertModel",
        {
            "vocab_size": VOCABULARY,
            "dim": 64,
            "n_layers": 2,
            "n_heads": 4,
            "hidden_dim": 96,
            "max_position_embeddings": 64,
        },
        IM,
    ),
    "roberta": net("RobertaModel", T, IM),
    "albert": net("AlbertModel", dict(T, embedding_size=32), IM),
    "electra": net("ElectraModel", T, IM),
    "deberta_v2": net(
        "DebertaV2Model",
        dict(
            T,
            relative_attention=True,
            position_buckets=8,
            max_relative_positions=16,
            pos_att_type=["c2p", "p2c"],
            norm_rel_ebd="layer_norm",
            share_att_key=True,
        ),
        IM,
    ),
    "mpnet": net("MPNetModel", T, IM),
    "modernbert": net("ModernBertModel", dict(T, cls_token_id=3, sep_token_id=4), IM),
    "fnet": net("FNetModel", T, IDS),
    "xlnet": net(
        "XLNetModel",
        {"vocab_size": VOCABULARY, "d_model": 64, "n_layer": 2, "n_head": 4, "d_inner": 96},
        IDS,
    ),
    "roformer": net("RoFormerModel", T, IM),
    "convbert": net("ConvBertModel", T, IM),
    "funnel": net(
        "FunnelModel",
        {
            "vocab_size": VOCABULARY,
            "d_model": 64,
            "n_head": 4,
            "d_head": 16,
            "d_inner": 96,
            "block_sizes": [1, 1],
            "num_decoder_layers": 1,
        },
        IM,
    ),
    "longformer": net(
        "LongformerModel",
        dict(T, attention_window=8),
        {"input_ids": ids(16), "attention_mask": mask(16)},
    ),
    "t5": net(
        "T5Model",
        {
            "vocab_size": VOCABULARY,
            "d_model": 64,
            "d_kv": 16,
            "d_ff": 96,
            "num_layers": 2,
            "num_heads": 4,
            "decoder_start_token_id": 0,
            "use_cache": False,
        },
        BOTH,
        LAST,
    ),
    "bart": net(
        "BartModel",
        dict(PAIR, vocab_size=VOCABULARY, max_position_embeddings=64, use_cache=False),
        BOTH,
        LAST,
    ),
    "marian": net(
        "MarianMTModel",
        dict(
            PAIR,
            vocab_size=VOCABULARY,
            pad_token_id=119,
            max_position_embeddings=64,
            use_cache=False,
            decoder_start_token_id=0,
        ),
        BOTH,
        LOGITS,
    ),
    "gpt2": net("GPT2LMHeadModel", GPT, IM, LOGITS),
    "gpt_neo": net(
        "GPTNeoForCausalLM",
        {
            "vocab_size": VOCABULARY,
            "hidden_size": 64,
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 8,
            "max_position_embeddings": 64,
            "use_cache": False,
        },
        IM,
        LOGITS,
    ),
    "gptj": net("GPTJForCausalLM", dict(GPT, rotary_dim=8), IDS, LOGITS),
    "gpt_neox": net("GPTNeoXForCausalLM", dec(), IM, LOGITS),
    "opt": net(
        "OPTForCausalLM",
        dict(
            HEADS,
            vocab_size=VOCABULARY,
            ffn_dim=96,
            max_position_embeddings=64,
            word_embed_proj_dim=64,
            use_cache=False,
        ),
        IM,
        LOGITS,
    ),
    "mpt": net(
        "MptForCausalLM",
        {
            "vocab_size": VOCABULARY,
            "d_model": 64,
            "n_layers": 2,
            "n_heads": 4,
            "max_seq_len": 64,
            "use_cache": False,
        },
        IM,
        LOGITS,
    ),
    "falcon": net(
        "FalconForCausalLM", dict(HEADS, vocab_size=VOCABULARY, use_cache=False), IM, LOGITS
    ),
    "llama": net("LlamaForCausalLM", dec(num_key_value_heads=2), IM, LOGITS),
    "llama_without_mask": net("LlamaForCausalLM", dec(num_key_value_heads=2), IDS, LOGITS),
    "mistral": net("MistralForCausalLM", dec(num_key_value_heads=2, sliding_window=8), IM, LOGITS),
    "qwen2": net("Qwen2ForCausalLM", dec(num_key_value_heads=2), IM, LOGITS),
    "qwen3": net("Qwen3ForCausalLM", dec(num_key_value_heads=2, head_dim=16), IM, LOGITS),
    "gemma2": net(
        "Gemma2ForCausalLM", dec(num_key_value_heads=2, head_dim=16, sliding_window=8), IM, LOGITS
    ),
    "gemma3": net(
        "Gemma3ForCausalLM",
        dec(num_key_value_heads=2, head_dim=16, sliding_window=8),
        IM,
        LOGITS,
        config="Gemma3TextConfig",
    ),
    "phi": net("PhiForCausalLM", dec(num_key_value_heads=2), IM, LOGITS),
    "phi3": net("Phi3ForCausalLM", dec(num_key_value_heads=2), IM, LOGITS),
    "olmo2": net("Olmo2ForCausalLM", dec(num_key_value_heads=2), IM, LOGITS),
    "cohere": net("CohereForCausalLM", dec(num_key_value_heads=2), IM, LOGITS),
    "granite": net("GraniteForCausalLM", dec(num_key_value_heads=2), IM, LOGITS),
    "stablelm": net("StableLmForCausalLM", dec(num_key_value_heads=2), IM, LOGITS),
    "starcoder2": net("Starcoder2ForCausalLM", dec(num_key_value_heads=2), IM, LOGITS),
    "glm4": net("Glm4ForCausalLM", dec(num_key_value_heads=2, head_dim=16), IM, LOGITS),
    "smollm3": net("SmolLM3ForCausalLM", dec(num_key_value_heads=2), IM, LOGITS),
    "mixtral": net(
        "MixtralForCausalLM",
        dec(num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2),
        IM,
        LOGITS,
    ),
    "qwen3_moe": net(
        "Qwen3MoeForCausalLM",
        dec(
            num_key_value_heads=2,
            head_dim=16,
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=48,
        ),
        IM,
        LOGITS,
    ),
    "deepseek_v3": net(
        "DeepseekV3ForCausalLM",
        dec(
            num_key_value_heads=4,
            n_routed_experts=4,
            num_experts_per_tok=2,
            n_group=2,
            topk_group=1,
            moe_intermediate_size=48,
            first_k_dense_replace=1,
            kv_lora_rank=24,
            q_lora_rank=32,
            qk_rope_head_dim=8,
            v_head_dim=16,
            qk_nope_head_dim=16,
        ),
        IM,
        LOGITS,
    ),
    "gpt_oss": net(
        "GptOssForCausalLM",
        dec(
            num_key_value_heads=2,
            head_dim=16,
            num_local_experts=4,
            num_experts_per_tok=2,
            sliding_window=8,
        ),
        IM,
        LOGITS,
    ),
    "mamba": net(
        "MambaForCausalLM",
        {
            "vocab_size": VOCABULARY,
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "state_size": 8,
            "use_cache": False,
        },
        IDS,
        LOGITS,
    ),
    "mamba2": net(
        "Mamba2ForCausalLM",
        {
            "vocab_size": VOCABULARY,
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "state_size": 16,
            "num_heads": 8,
            "head_dim": 16,
            "n_groups": 2,
            "chunk_size": 8,
            "use_cache": False,
        },
        IDS,
        LOGITS,
    ),
    "rwkv": net(
        "RwkvForCausalLM",
        {
            "vocab_size": VOCABULARY,
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "attention_hidden_size": 64,
            "use_cache": False,
        },
        IDS,
        LOGITS,
    ),
    "xlstm": net(
        "xLSTMForCausalLM",
        {
            "vocab_size": VOCABULARY,
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "num_heads": 4,
            "chunk_size": 16,
            "use_cache": False,
        },
        {"input_ids": ids(16)},
        LOGITS,
    ),
    "vit": net("ViTModel", V, PIX),
    "deit": net("DeiTModel", V, PIX),
    "beit": net("BeitModel", dict(V, use_relative_position_bias=True), PIX),
    "dinov2": net(
        "Dinov2Model", dict(V, patch_size=14, image_size=56), {"pixel_values": picture(3, 56, 56)}
    ),
    "dinov3_vit": net("DINOv3ViTModel", V, PIX),
    "swin": net(
        "SwinModel",
        {
            "image_size": 64,
            "patch_size": 4,
            "embed_dim": 24,
            "depths": [2, 2],
            "num_heads": [2, 4],
            "window_size": 4,
        },
        PIX,
    ),
    "swin2sr": net(
        "Swin2SRForImageSuperResolution",
        {
            "image_size": 32,
            "patch_size": 1,
            "embed_dim": 24,
            "depths": [2, 2],
            "num_heads": [2, 2],
            "window_size": 4,
            "upscale": 2,
        },
        {"pixel_values": picture(3, 32, 32)},
    ),
    "pvt": net(
        "PvtModel",
        {
            "image_size": 64,
            "depths": [1, 1, 1, 1],
            "hidden_sizes": [16, 32, 40, 48],
            "num_attention_heads": [1, 2, 4, 4],
        },
        PIX,
    ),
    "segformer": net(
        "SegformerForSemanticSegmentation",
        {
            "hidden_sizes": [16, 32, 40, 48],
            "depths": [1, 1, 1, 1],
            "num_attention_heads": [1, 2, 4, 4],
            "decoder_hidden_size": 32,
            "num_labels": 5,
        },
        PIX,
    ),
    "focalnet": net(
        "FocalNetModel",
        {
            "image_size": 64,
            "embed_dim": 24,
            "depths": [1, 1, 1, 1],
            "focal_levels": [2, 2, 2, 2],
            "focal_windows": [3, 3, 3, 3],
            "hidden_sizes": [24, 48, 96, 192],
        },
        PIX,
    ),
    "hiera": net(
        "HieraModel",
        {
            "image_size": [64, 64],
            "embed_dim": 16,
            "depths": [1, 1, 2, 1],
            "num_heads": [1, 2, 4, 8],
        },
        PIX,
    ),
    "yolos": net(
        "YolosForObjectDetection",
        dict(V, image_size=[64, 64], num_detection_tokens=10),
        PIX,
        ("logits", "pred_boxes"),
    ),
    "dpt": net(
        "DPTForDepthEstimation",
        dict(
            V,
            num_hidden_layers=4,
            is_hybrid=False,
            backbone_out_indices=[0, 1, 2, 3],
            neck_hidden_sizes=[16, 24, 32, 40],
            fusion_hidden_size=32,
            reassemble_factors=[4, 2, 1, 0.5],
        ),
        PIX,
    ),
    "depth_anything": net(
        "DepthAnythingForDepthEstimation",
        lambda: {
            "backbone_config": transformers.Dinov2Config(
                image_size=56,
                patch_size=14,
                hidden_size=64,
                num_hidden_layers=4,
                num_attention_heads=4,
                out_indices=[1, 2, 3, 4],
                apply_layernorm=True,
                reshape_hidden_states=False,
            ),
            "reassemble_hidden_size": 64,
            "neck_hidden_sizes": [16, 24, 32, 40],
            "fusion_hidden_size": 24,
            "head_hidden_size": 16,
        },
        {"pixel_values": picture(3, 56, 56)},
    ),
    "zoedepth": net(
        "ZoeDepthForDepthEstimation",
        lambda: {
            "backbone_config": transformers.BeitConfig(
                image_size=64,
                patch_size=16,
                hidden_size=64,
                num_hidden_layers=4,
                num_attention_heads=4,
                intermediate_size=96,
                out_indices=[1, 2, 3, 4],
                reshape_hidden_states=False,
                use_relative_position_bias=True,
            ),
            "neck_hidden_sizes": [16, 24, 32, 40],
            "fusion_hidden_size": 32,
            "bottleneck_features": 32,
            "num_relative_features": 16,
            "bin_embedding_dim": 32,
            "num_attractors": [4, 2, 2, 1],
            "readout_type": "project",
            "bin_configurations": [
                {"n_bins": 16, "min_depth": 0.001, "max_depth": 10.0, "name": "nyu"}
            ],
        },
        PIX,
        ("predicted_depth",),
    ),
    "glpn": net(
        "GLPNForDepthEstimation",
        {
            "hidden_sizes": [16, 32, 40, 48],
            "depths": [1, 1, 1, 1],
            "num_attention_heads": [1, 2, 4, 4],
            "decoder_hidden_size": 32,
        },
        PIX,
    ),
    "vitpose": net(
        "VitPoseForPoseEstimation",
        lambda: {
            "backbone_config": transformers.VitPoseBackboneConfig(
                image_size=[64, 48],
                patch_size=[16, 16],
                hidden_size=64,
                num_hidden_layers=2,
                num_attention_heads=4,
                mlp_ratio=2,
                out_indices=[2],
                num_labels=17,
            ),
            "num_labels": 17,
        },
        {"pixel_values": picture(3, 64, 48)},
    ),
    "upernet": net(
        "UperNetForSemanticSegmentation",
        lambda: {
            "backbone_config": transformers.ConvNextConfig(
                hidden_sizes=[16, 24, 32, 40],
                depths=[1, 1, 1, 1],
                out_features=["stage1", "stage2", "stage3", "stage4"],
            ),
            "hidden_size": 32,
            "auxiliary_in_channels": 32,
            "num_labels": 5,
            "auxiliary_channels": 16,
        },
        PIX,
        LOGITS,
    ),
    "detr": net(
        "DetrForObjectDetection",
        lambda: dict(
            QUERIES,
            backbone_config=transformers.ResNetConfig(
                embedding_size=16,
                hidden_sizes=[16, 24, 32, 48],
                depths=[1, 1, 1, 1],
                out_features=["stage4"],
            ),
        ),
        PIX,
        ("logits", "pred_boxes"),
    ),
    "conditional_detr": net(
        "ConditionalDetrForObjectDetection",
        lambda: dict(
            QUERIES,
            backbone_config=transformers.ResNetConfig(
                embedding_size=16,
                hidden_sizes=[16, 24, 32, 48],
                depths=[1, 1, 1, 1],
                out_features=["stage4"],
            ),
        ),
        PIX,
        ("logits", "pred_boxes"),
    ),
    "deformable_detr": net(
        "DeformableDetrForObjectDetection",
        lambda: dict(
            QUERIES,
            backbone_config=transformers.ResNetConfig(
                embedding_size=16,
                hidden_sizes=[16, 24, 32, 48],
                depths=[1, 1, 1, 1],
                out_features=["stage2", "stage3", "stage4"],
            ),
        ),
        {"pixel_values": picture(3, 128, 128)},
        ("logits", "pred_boxes"),
    ),
    "rt_detr": net(
        "RTDetrForObjectDetection",
        lambda: {
            "backbone_config": transformers.RTDetrResNetConfig(
                embedding_size=16,
                hidden_sizes=[16, 24, 32, 48],
                depths=[1, 1, 1, 1],
                out_features=["stage2", "stage3", "stage4"],
                layer_type="basic",
            ),
            "encoder_hidden_dim": 32,
            "encoder_in_channels": [24, 32, 48],
            "encoder_ffn_dim": 48,
            "encoder_attention_heads": 2,
            "feat_strides": [8, 16, 32],
            "d_model": 32,
            "num_queries": 12,
            "decoder_in_channels": [32, 32, 32],
            "decoder_ffn_dim": 48,
            "decoder_layers": 2,
            "decoder_attention_heads": 2,
            "num_labels": 7,
            "anchor_image_size": None,
        },
        {"pixel_values": picture(3, 128, 128)},
        ("logits", "pred_boxes"),
    ),
    "rt_detr_v2": net(
        "RTDetrV2ForObjectDetection",
        lambda: {
            "backbone_config": transformers.RTDetrResNetConfig(
                embedding_size=16,
                hidden_sizes=[16, 24, 32, 48],
                depths=[1, 1, 1, 1],
                out_features=["stage2", "stage3", "stage4"],
                layer_type="basic",
            ),
            "encoder_hidden_dim": 32,
            "encoder_in_channels": [24, 32, 48],
            "encoder_ffn_dim": 48,
            "encoder_attention_heads": 2,
            "feat_strides": [8, 16, 32],
            "d_model": 32,
            "num_queries": 12,
            "decoder_in_channels": [32, 32, 32],
            "decoder_ffn_dim": 48,
            "decoder_layers": 2,
            "decoder_attention_heads": 2,
            "num_labels": 7,
            "anchor_image_size": None,
        },
        {"pixel_values": picture(3, 128, 128)},
        ("logits", "pred_boxes"),
    ),
    "owlvit": net(
        "OwlViTForObjectDetection",
        lambda: {
            "text_config": dict(SMALL_TEXT, max_position_embeddings=16),
            "vision_config": V,
            "projection_dim": 32,
        },
        {"input_ids": ids(8), "pixel_values": picture(3, 64, 64), "attention_mask": mask(8)},
        ("logits", "pred_boxes"),
    ),
    "sam_encoder": net("SamVisionModel", SAM, PIX),
    "sam": net(
        "SamModel",
        lambda: {
            "vision_config": dict(SAM, num_pos_feats=16),
            "prompt_encoder_config": {"hidden_size": 32, "image_size": 64, "patch_size": 8},
            "mask_decoder_config": {
                "hidden_size": 32,
                "mlp_dim": 48,
                "num_attention_heads": 4,
                "iou_head_hidden_dim": 40,
            },
        },
        {**PIX, "input_points": points_in_pictures(1, 3), "input_labels": signs(1, 3)},
        ("iou_scores", "pred_masks"),
    ),
    "maskformer": net(
        "MaskFormerForInstanceSegmentation",
        lambda: {
            "backbone_config": transformers.SwinConfig(
                image_size=64,
                embed_dim=16,
                depths=[1, 1, 1, 1],
                num_heads=[1, 2, 4, 4],
                window_size=4,
                out_features=["stage1", "stage2", "stage3", "stage4"],
            ),
            "decoder_config": transformers.DetrConfig(
                d_model=64,
                decoder_layers=2,
                decoder_attention_heads=4,
                decoder_ffn_dim=96,
                num_queries=12,
                use_timm_backbone=False,
                use_pretrained_backbone=False,
                backbone=None,
                backbone_config=transformers.ResNetConfig(),
            ),
            "fpn_feature_size": 32,
            "mask_feature_size": 32,
            "num_labels": 7,
        },
        PIX,
        ("class_queries_logits", "masks_queries_logits"),
    ),
    "timesformer": net(
        "TimesformerForVideoClassification",
        {**V, "num_frames": 4, "num_labels": 7},
        {"pixel_values": picture_of_frames(4, 3, 64, 64)},
    ),
    "encodec": net(
        "EncodecModel",
        {
            "num_filters": 8,
            "hidden_size": 16,
            "upsampling_ratios": [4, 2],
            "num_lstm_layers": 1,
            "codebook_size": 32,
            "target_bandwidths": [60.0],
        },
        {"input_values": wave(1, 512)},
        ("audio_values",),
    ),
    "sam2_encoder": net(
        "Sam2VisionModel",
        lambda: {
            "backbone_config": transformers.Sam2HieraDetConfig(
                hidden_size=16,
                num_attention_heads=1,
                image_size=[64, 64],
                blocks_per_stage=[1, 1, 2, 1],
                embed_dim_per_stage=[16, 32, 64, 128],
                num_attention_heads_per_stage=[1, 2, 4, 8],
                window_size_per_stage=[8, 4, 2, 1],
                global_attention_blocks=[3],
                window_positional_embedding_background_size=[4, 4],
            ),
            "backbone_channel_list": [128, 64, 32, 16],
            "backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]],
            "fpn_hidden_size": 32,
        },
        PIX,
        LAST,
    ),
    "clip": net(
        "CLIPModel",
        lambda: {
            "text_config": dict(SMALL_TEXT, max_position_embeddings=32, eos_token_id=2),
            "vision_config": V,
            "projection_dim": 32,
        },
        {"input_ids": ids(L), "pixel_values": picture(3, 64, 64), "attention_mask": mask(L)},
        ("logits_per_image", "text_embeds", "image_embeds"),
    ),
    "siglip": net(
        "SiglipModel",
        lambda: {
            "text_config": dict(LAYERS, vocab_size=VOCABULARY, max_position_embeddings=32),
            "vision_config": V,
        },
        {"input_ids": ids(L), "pixel_values": picture(3, 64, 64)},
        ("logits_per_image", "text_embeds", "image_embeds"),
    ),
    "clipseg": net(
        "CLIPSegForImageSegmentation",
        lambda: {
            "text_config": dict(SMALL_TEXT, max_position_embeddings=32, eos_token_id=2),
            "vision_config": {
                "hidden_size": 64,
                "intermediate_size": 96,
                "num_hidden_layers": 4,
                "num_attention_heads": 4,
                "image_size": 64,
                "patch_size": 16,
            },
            "projection_dim": 32,
            "reduce_dim": 16,
            "extract_layers": [1, 2, 3],
            "decoder_num_attention_heads": 2,
            "decoder_intermediate_size": 32,
        },
        {"input_ids": ids(L), "pixel_values": picture(3, 64, 64)},
        LOGITS,
    ),
    "blip_caption": net(
        "BlipForConditionalGeneration",
        lambda: {
            "text_config": dict(
                LAYERS,
                vocab_size=VOCABULARY,
                encoder_hidden_size=64,
                max_position_embeddings=32,
                use_cache=False,
            ),
            "vision_config": V,
            "projection_dim": 32,
        },
        {"pixel_values": picture(3, 64, 64), "input_ids": ids(L)},
        LOGITS,
    ),
    "vilt": net(
        "ViltModel",
        dict(V, vocab_size=VOCABULARY, max_position_embeddings=40),
        {"input_ids": ids(L), "pixel_values": picture(3, 64, 64)},
    ),
    "trocr": net(
        "TrOCRForCausalLM",
        dict(
            DECODER,
            vocab_size=VOCABULARY,
            max_position_embeddings=64,
            use_cache=False,
            cross_attention_hidden_size=48,
        ),
        {"input_ids": ids(L), "encoder_hidden_states": noise(10, 48)},
        LOGITS,
    ),
    "whisper": net(
        "WhisperModel",
        dict(
            PAIR,
            vocab_size=VOCABULARY,
            num_mel_bins=16,
            max_source_positions=50,
            max_target_positions=32,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            decoder_start_token_id=1,
            use_cache=False,
        ),
        {"input_features": noise(16, 100), "decoder_input_ids": ids(9)},
        LAST,
    ),
    "moonshine": net(
        "MoonshineModel",
        {
            "vocab_size": VOCABULARY,
            "hidden_size": 64,
            "intermediate_size": 96,
            "encoder_num_hidden_layers": 2,
            "decoder_num_hidden_layers": 2,
            "encoder_num_attention_heads": 4,
            "decoder_num_attention_heads": 4,
            "use_cache": False,
        },
        {"input_values": wave(4000), "decoder_input_ids": ids(9)},
        LAST,
    ),
    "wav2vec2": net(
        "Wav2Vec2ForCTC", dict(SPEECH, vocab_size=32), {"input_values": wave(3200)}, LOGITS
    ),
    "hubert": net("HubertModel", SPEECH, {"input_values": wave(3200)}),
    "wavlm": net(
        "WavLMModel",
        dict(SPEECH, num_buckets=32, max_bucket_distance=64),
        {"input_values": wave(3200)},
        LAST,
    ),
    "wav2vec2_conformer": net(
        "Wav2Vec2ConformerModel",
        dict(SPEECH, position_embeddings_type="rotary"),
        {"input_values": wave(3200)},
        LAST,
    ),
    "ast": net(
        "ASTModel", dict(LAYERS, max_length=64, num_mel_bins=32), {"input_values": noise(64, 32)}
    ),
    "speecht5_hifigan": net(
        "SpeechT5HifiGan",
        {
            "model_in_dim": 20,
            "upsample_initial_channel": 32,
            "upsample_rates": [4, 4],
            "upsample_kernel_sizes": [8, 8],
            "resblock_kernel_sizes": [3, 5],
            "resblock_dilation_sizes": [[1, 3], [1, 3]],
        },
        {"spectrogram": noise(21, 20)},
    ),
    "univnet": net(
        "UnivNetModel",
        {
            "model_in_channels": 16,
            "model_hidden_channels": 8,
            "num_mel_bins": 20,
            "resblock_kernel_sizes": [3, 3],
            "resblock_stride_sizes": [4, 4],
            "resblock_dilation_sizes": [[1, 3], [1, 3]],
            "kernel_predictor_num_blocks": 1,
            "kernel_predictor_hidden_channels": 16,
        },
        {"input_features": noise(10, 20), "noise_sequence": noise(10, 16)},
        ("waveforms",),
    ),
    "dac": net(
        "DacModel",
        {
            "encoder_hidden_size": 8,
            "downsampling_ratios": [2, 4],
            "decoder_hidden_size": 64,
            "upsampling_ratios": [4, 2],
            "n_codebooks": 3,
            "codebook_size": 32,
            "codebook_dim": 8,
        },
        {"input_values": wave(1, 512)},
        ("audio_values",),
    ),
    "perceiver": net(
        "PerceiverModel",
        {
            "num_latents": 8,
            "d_latents": 32,
            "d_model": 40,
            "num_blocks": 1,
            "num_self_attends_per_block": 2,
            "num_self_attention_heads": 4,
            "num_cross_attention_heads": 4,
        },
        {"inputs": noise(30, 40)},
        LAST,
    ),
    "patchtst": net(
        "PatchTSTModel",
        dict(SERIES, num_hidden_layers=2, num_attention_heads=4, ffn_dim=48),
        {"past_values": noise(32, 3)},
        LAST,
    ),
    "patchtsmixer": net(
        "PatchTSMixerModel", dict(SERIES, num_layers=2), {"past_values": noise(32, 3)}, LAST
    ),
    "levit": net(
        "LevitModel",
        {
            "image_size": 64,
            "hidden_sizes": [32, 48, 64],
            "num_attention_heads": [2, 3, 4],
            "depths": [1, 1, 1],
            "key_dim": [8, 8, 8],
        },
        PIX,
    ),
    "esm": net(
        "EsmModel",
        dict(
            T,
            pad_token_id=1,
            mask_token_id=5,
            position_embedding_type="rotary",
            token_dropout=True,
            emb_layer_norm_before=False,
        ),
        IM,
    ),
    "ctrl": net("CTRLModel", dict(GPT, dff=96), IDS, LAST),
}

__all__ = ["TRANSFORMERS"]
