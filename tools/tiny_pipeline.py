"""Write a tiny, untrained SDXL pipeline without a network connection; diffusers and `tessera` read it like the real one.

python tools/tiny_pipeline.py DIR

Its weights are random: it is for tests of this package and of programs that use it.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from torch import nn

from _common import program
from tessera.console import print_json, say
from tessera.errors import UserError
from tessera.files import make_folder
from tessera.studies.text_to_image.pipeline import need_diffusers, quiet
from tessera.studies.text_to_image.prompts import _CATEGORIES, _SETS, COMPOSITES, IMAGE, concepts_of

Pair = tuple[str, str]
START, END = "<|startoftext|>", "<|endoftext|>"
PAD_2 = "!"  # the second tokenizer of SDXL pads with it; its number is 0
PIECES = {"hokusai": ("ho", "ku", "sai"), "chopsticks": ("chop", "sticks")}  # as CLIP's vocabulary cuts them
LONGEST = 77
NOISE = 0.3  # of a planted word around its category's vector


@dataclass(frozen=True)
class Shape:
    """Sizes of the parts; everything else is SDXL's."""

    channels: tuple[int, int, int] = (16, 32, 32)
    depth: tuple[int, int, int] = (1, 1, 2)  # transformer blocks at each of the three resolutions
    heads: tuple[int, int, int] = (2, 4, 4)
    groups: int = 8  # of the normalisations
    side: int = 16  # of the latent
    text: tuple[int, int] = (16, 24)  # widths of the two text encoders
    text_layers: tuple[int, int] = (3, 3)
    text_heads: tuple[int, int] = (2, 2)
    sizes: int = 8  # width of each embedded number about the image's size
    vae: tuple[int, int, int, int] = (16, 16, 16, 16)
    vae_groups: int = 8
    vae_layers: int = 1


TINY = Shape()
DEEP = Shape(channels=(32, 64, 64), depth=(1, 2, 10))  # all 70 transformer blocks

# -- parts -------------------------------------------------------------------------------------------------


def unet_config(shape: Shape) -> dict[str, Any]:
    """Of the UNet2DConditionModel."""
    return {
        "sample_size": shape.side,
        "block_out_channels": shape.channels,
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        "layers_per_block": 2,
        "transformer_layers_per_block": shape.depth,
        "attention_head_dim": shape.heads,  # a historical name: it is the number of heads
        "norm_num_groups": shape.groups,
        "use_linear_projection": True,
        "cross_attention_dim": sum(shape.text),
        "addition_embed_type": "text_time",
        "addition_time_embed_dim": shape.sizes,
        "projection_class_embeddings_input_dim": shape.text[1] + 6 * shape.sizes,
    }


def vae_config(shape: Shape) -> dict[str, Any]:
    """Of the AutoencoderKL."""
    blocks = len(shape.vae)
    return {
        "block_out_channels": shape.vae,
        "down_block_types": ("DownEncoderBlock2D",) * blocks,
        "up_block_types": ("UpDecoderBlock2D",) * blocks,
        "layers_per_block": shape.vae_layers,
        "norm_num_groups": shape.vae_groups,
        "latent_channels": 4,
        "sample_size": shape.side * 8,
        "scaling_factor": 0.13025,
        "force_upcast": False,
    }


def text_config(shape: Shape, which: int, vocabulary: Mapping[str, int]) -> dict[str, Any]:
    """Of one of the two CLIP text encoders."""
    width = shape.text[which]
    return {
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_hidden_layers": shape.text_layers[which],
        "num_attention_heads": shape.text_heads[which],
        "hidden_act": ("quick_gelu", "gelu")[which],
        "projection_dim": width,
        "vocab_size": len(vocabulary),
        "max_position_embeddings": LONGEST,
        "bos_token_id": vocabulary[START],
        "eos_token_id": vocabulary[END],  # never 2, which would choose an old rule for the pooled token
        "pad_token_id": vocabulary[END] if which == 0 else vocabulary[PAD_2],
    }


def make_encoders(shape: Shape, vocabulary: Mapping[str, int]) -> list[nn.Module]:
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

    kinds = (CLIPTextModel, CLIPTextModelWithProjection)
    return [kind(CLIPTextConfig(**text_config(shape, n, vocabulary))).eval() for n, kind in enumerate(kinds)]


# -- words -------------------------------------------------------------------------------------------------


def vocabulary_of(words: Sequence[str]) -> tuple[dict[str, int], list[Pair]]:
    """Numbers of all tokens, and the merges that make one token of each word; other words fall into letters.

    A word's merges start from what the earlier ones leave of it and rank after them, so they undo none.
    """
    letters = sorted(byte_letters(), key=lambda letter: letter != PAD_2)  # so that padding has number 0
    tokens = dict.fromkeys([*letters, *(letter + "</w>" for letter in letters)])
    merges: dict[Pair, int] = {}
    for piece in [piece for word in words for piece in pieces_of(word)]:
        grown, *others = merged(piece, merges)
        for other in others:
            merges[grown, other] = len(merges)
            grown += other
            tokens[grown] = None
    numbers = {token: number for number, token in enumerate([*tokens, START, END])}
    return numbers, list(merges)


def pieces_of(word: str) -> list[list[str]]:
    """The letters of each token a word becomes; the last letter knows that the word ends there."""
    cut = [list(piece) for piece in PIECES.get(word, (word,))]
    cut[-1][-1] += "</w>"
    return cut


def merged(parts: list[str], merges: Mapping[Pair, int]) -> list[str]:
    """Byte-pair encoding: the earliest merge first, until none applies."""
    while known := [pair for pair in pairwise(parts) if pair in merges]:
        first = min(known, key=lambda pair: merges[pair])
        position = list(pairwise(parts)).index(first)
        parts = [*parts[:position], "".join(first), *parts[position + 2 :]]
    return parts


def byte_letters() -> list[str]:
    """The 256 printable characters that stand for bytes in CLIP's vocabulary."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [byte for byte in range(256) if byte not in plain]
    return [chr(byte) for byte in plain] + [chr(256 + number) for number in range(len(hidden))]


def known_words(prompts: Sequence[str]) -> list[str]:
    """All words of some prompts, in lower case; those of several tokens first, while no merge can touch them."""
    found = {word for prompt in prompts for word in re.findall(r"[a-z]+", prompt.lower())}
    return sorted(found, key=lambda word: (word not in PIECES, word))


def make_tokenizers(words: Sequence[str]) -> list[Any]:
    from transformers import CLIPTokenizer

    vocabulary, merges = vocabulary_of(words)
    common: Any = {"vocab": vocabulary, "merges": merges, "model_max_length": LONGEST}
    return [CLIPTokenizer(**common), CLIPTokenizer(**common, pad_token=PAD_2)]


def texts() -> list[str]:
    """Every prompt that comes with Tessera."""
    prompts = [IMAGE]
    for name in _SETS:
        for concept in concepts_of(name):
            prompts += concept.prompts
    return prompts + [composite.prompt for composite in COMPOSITES]


# -- the whole ---------------------------------------------------------------------------------------------


def make_scheduler() -> Any:
    from diffusers import EulerDiscreteScheduler

    return EulerDiscreteScheduler(
        beta_start=0.00085,
        beta_end=0.012,
        beta_schedule="scaled_linear",
        steps_offset=1,
        timestep_spacing="leading",
        prediction_type="epsilon",
    )


def tiny_sdxl(
    folder: str | Path,
    words: Sequence[str] | None = None,
    depth: tuple[int, int, int] | None = None,
    seed: int = 0,
    *,
    shape: Shape = TINY,
    planted: Mapping[str, Sequence[str]] | None = None,
) -> Path:
    """Write an untrained SDXL pipeline to `folder`; `load_sdxl` and diffusers read it like the real one.

    `words` become single tokens, by default those of all prompts that come with Tessera. `planted` maps
    categories to words whose embeddings it makes alike, the positive control of every feature measurement.
    """
    need_diffusers()
    if depth is not None:
        shape = replace(shape, depth=depth)
    check_shape(shape)
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; a pipeline needs a new or empty folder.")
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty.")
    known = known_words(texts()) if words is None else known_words([" ".join(words)])
    pipe = make_pipeline(shape, known, seed, planted)
    with quiet():
        pipe.save_pretrained(str(make_folder(folder)), safe_serialization=True)
    return folder


def make_pipeline(
    shape: Shape, words: Sequence[str], seed: int, planted: Mapping[str, Sequence[str]] | None = None
) -> Any:
    """The same in memory."""
    need_diffusers()
    with quiet():
        from diffusers import AutoencoderKL, StableDiffusionXLPipeline, UNet2DConditionModel

    first, second = make_tokenizers(words)
    with torch.random.fork_rng(devices=[]), quiet():
        torch.manual_seed(seed % 2**64)
        encoders = make_encoders(shape, vocabulary_of(words)[0])
        unet = UNet2DConditionModel.from_config(unet_config(shape)).eval().requires_grad_(False)
        vae: Any = AutoencoderKL(**vae_config(shape))
        if planted:
            plant(encoders, first, planted)
        return StableDiffusionXLPipeline(
            vae=vae.eval().requires_grad_(False),
            text_encoder=encoders[0],
            text_encoder_2=encoders[1],
            tokenizer=first,
            tokenizer_2=second,
            unet=unet,
            scheduler=make_scheduler(),
            force_zeros_for_empty_prompt=True,
            add_watermarker=False,
        )


def check_shape(shape: Shape) -> None:
    if min(shape.depth) < 1:
        raise UserError(f"Every resolution needs at least one transformer block, not {shape.depth}.")


@torch.no_grad()
def plant(encoders: Sequence[nn.Module], tokenizer: Any, planted: Mapping[str, Sequence[str]]) -> None:
    """Words of a category share a vector, plus a little noise of their own, in both encoders' embeddings."""
    for encoder in encoders:
        table: torch.Tensor = encoder.get_input_embeddings().weight  # type: ignore[operator]
        for words in planted.values():
            center = torch.randn(table.shape[1]) * table.std()
            for word in words:
                numbers = tokenizer(word, add_special_tokens=False).input_ids
                if len(numbers) != 1:
                    raise UserError(f"Only words of one token can be planted, and `{word}` has {len(numbers)}.")
                table[numbers[0]] = center + NOISE * table.std() * torch.randn(table.shape[1])


@dataclass(frozen=True)
class TinyPipeline:
    """Write a tiny, untrained SDXL pipeline that diffusers and Tessera read like the real one; needs no network."""

    folder: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="DIR")]
    """Where to; a new or empty folder."""
    deep: bool = False
    """All 70 transformer blocks of SDXL instead of 17."""
    plant: bool = False
    """Give the words of one category similar embeddings: the positive control of feature studies."""
    seed: int = 0
    """Of the weights."""
    json: bool = False
    """Print one JSON object on stdout."""

    def run(self) -> None:
        shape = DEEP if self.deep else TINY
        tiny_sdxl(self.folder, shape=shape, seed=self.seed, planted=_CATEGORIES if self.plant else None)
        size = sum(file.stat().st_size for file in self.folder.rglob("*") if file.is_file())
        record = {"folder": str(self.folder), "bytes": size, "seed": self.seed, "planted": self.plant}
        if self.json:
            print_json(record | {"shape": asdict(shape)})
        say(f"An untrained pipeline of {size / 1e6:.1f} MB is in {self.folder}.")


main = program(TinyPipeline)

if __name__ == "__main__":
    main()
