"""A small decoder of Llama's shape in plain torch, for the time to a first token."""
from __future__ import annotations

from typing import Any, NamedTuple

import peers_files
from peers_files import Shape

HEAD = 64
PROMPT = 32


class Llama(NamedTuple):
    """Sizes of the decoder, in elements."""

    width: int
    inner: int
    heads: int
    key_heads: int
    vocabulary: int
    layers: int


def llama_of(nbytes: int) -> Llama:
    """One whose weights have about that many bytes; small sizes get a narrow one."""
    width = 2560 if nbytes >= 1 << 30 else 256
    heads = width // HEAD
    fixed = Llama(width, width * 11 // 4 // 64 * 64, heads, heads // 4, width * 25 // 2, 1)
    shapes = shapes_of(fixed)
    layer = sum(shape.nbytes for shape in shapes if ".layers." in shape.name)
    rest = sum(shape.nbytes for shape in shapes) - layer
    return fixed._replace(layers=max(1, (nbytes - rest) // layer))


def shapes_of(llama: Llama) -> list[Shape]:
    """Its tensors, under Llama's names."""
    width, keys = llama.width, llama.key_heads * HEAD
    shapes = [Shape("model.embed_tokens.weight", (llama.vocabulary, width))]
    for number in range(llama.layers):
        for name, shape in {
                "input_layernorm": (width,), "self_attn.q_proj": (width, width),
                "self_attn.k_proj": (keys, width), "self_attn.v_proj": (keys, width),
                "self_attn.o_proj": (width, width), "post_attention_layernorm": (width,),
                "mlp.gate_proj": (llama.inner, width), "mlp.up_proj": (llama.inner, width),
                "mlp.down_proj": (width, llama.inner)}.items():
            shapes.append(Shape(f"model.layers.{number}.{name}.weight", shape))
    return shapes + [Shape("model.norm.weight", (width,)),
                     Shape("lm_head.weight", (llama.vocabulary, width))]


def make(folder: str, llama: Llama) -> peers_files.Model:
    """Writes its weights, of a normal distribution."""
    import numpy
    import torch

    shapes = shapes_of(llama)
    torch.manual_seed(1)
    count = max(shape.nbytes for shape in shapes)
    values = torch.empty(count, dtype=torch.bfloat16).normal_(0, 0.02)
    return peers_files.make(folder, shapes, 1, values.view(torch.int64).numpy().view(numpy.int64))


def _norm(hidden: Any, weight: Any) -> Any:
    import torch

    return torch.nn.functional.rms_norm(hidden, weight.shape, 1 + weight, 1e-5)


def _rotate(heads: Any, cosine: Any, sine: Any) -> Any:
    import torch

    left, right = heads.chunk(2, -1)
    return heads * cosine + torch.cat((-right, left), -1) * sine


def forward(llama: Llama, weights: dict[str, Any], tokens: Any) -> Any:
    """The logits after the last token."""
    import torch
    from torch.nn.functional import linear, scaled_dot_product_attention, silu

    length = len(tokens)
    powers = torch.arange(0, HEAD, 2, device=tokens.device) / HEAD
    angles = torch.arange(length, device=tokens.device)[:, None] / 10000 ** powers
    angles = torch.cat((angles, angles), -1)
    cosine, sine = angles.cos().bfloat16(), angles.sin().bfloat16()
    hidden = weights["model.embed_tokens.weight"][tokens]
    for number in range(llama.layers):

        def layer(name: str) -> Any:
            return weights[f"model.layers.{number}.{name}.weight"]

        normed = _norm(hidden, layer("input_layernorm"))
        query, key, value = (
            linear(normed, layer(f"self_attn.{part}_proj")).view(length, -1, HEAD).transpose(0, 1)
            for part in "qkv")
        group = llama.heads // llama.key_heads
        key = _rotate(key, cosine, sine).repeat_interleave(group, 0)
        attended = scaled_dot_product_attention(
            _rotate(query, cosine, sine), key, value.repeat_interleave(group, 0), is_causal=True)
        attended = attended.transpose(0, 1).reshape(length, llama.width)
        hidden = hidden + linear(attended, layer("self_attn.o_proj"))
        normed = _norm(hidden, layer("post_attention_layernorm"))
        inner = silu(linear(normed, layer("mlp.gate_proj"))) * linear(normed, layer("mlp.up_proj"))
        hidden = hidden + linear(inner, layer("mlp.down_proj"))
    last = _norm(hidden[-1], weights["model.norm.weight"])
    return linear(last.float(), weights["lm_head.weight"].float())


def first_token(nbytes: int, weights: dict[str, Any], device: Any) -> tuple[int, float]:
    """The token after a fixed prompt, and the sum of the magnitudes of its logits.

    Parameters
    ----------
    nbytes : int
        By which the decoder was made, as `llama_of` takes it.
    weights : dict of str to tensor
    device : peers_child.Device
    """
    import torch

    with torch.inference_mode():
        prompt = torch.arange(1, PROMPT + 1, device=device.name)
        logits = forward(llama_of(nbytes), weights, prompt)
        return int(logits.argmax()), float(logits.abs().sum())
