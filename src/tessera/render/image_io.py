"""Images between tensors and files: 8-bit color, 8-bit masks, 16-bit depth, and the one way we resize."""

import base64
import io
import warnings
from pathlib import Path

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor
from torch.nn import functional as F

from tessera.errors import UserError
from tessera.files import atomic, check_file, reading

# WebP is far smaller than PNG, with losses that hardly show.
COMPACT = ".webp"
_FORMATS: dict[str, dict] = {".png": {"format": "PNG", "compress_level": 4}, COMPACT: {"format": "WEBP", "quality": 80}}
_RESIZE_FILTER = "bicubic, antialiased"  # what `resize` does, for the record of a result
_DEPTH_STEP = 1e-3  # world units per gray level of a depth PNG
_LARGEST_SIDE = 16384  # pixels; a larger image fits into hardly any memory
_MOST_PIXELS = 1 << 26  # of an image that is read: the file may be tiny, and its pixels fill the memory
_READ_FORMATS = ("PNG", "WEBP", "JPEG", "BMP", "GIF", "TIFF", "PPM")  # and none that starts other programs
_DEPTH_NOWHERE = 65535  # gray level of a pixel that sees nothing


def to_uint8(images: Tensor) -> Tensor:
    """Values in [-1, 1] become 0..255; the shape stays."""
    return ((images.float() + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)


def to_float(images: Tensor) -> Tensor:
    """Values in 0..255 become [-1, 1]; the shape stays."""
    return images.float() / 127.5 - 1


def resize(images: Tensor, size: tuple[int, int]) -> Tensor:
    """8-bit images (..., 3, H, W) at (width, height), reduced with an antialiased bicubic filter."""
    width, height = size
    if images.shape[-2:] == (height, width):
        return images
    flat = images.reshape(-1, *images.shape[-3:]).float()
    small = F.interpolate(flat, (height, width), mode="bicubic", antialias=True, align_corners=False)
    return small.round().clamp(0, 255).to(torch.uint8).reshape(*images.shape[:-2], height, width)


def png_bytes(image: Tensor) -> bytes:
    """An image (3, H, W), float in [-1, 1] or 8-bit, as a PNG file."""
    return _image_bytes(image, ".png")


def _image_bytes(image: Tensor, suffix: str) -> bytes:
    image = to_uint8(image) if image.is_floating_point() else image
    return encode(Image.fromarray(image.permute(1, 2, 0).cpu().contiguous().numpy()), suffix)


def png_url(image: Tensor) -> str:
    """An image (3, H, W), float in [-1, 1] or 8-bit, as a page can show it, exact to the 8-bit value."""
    return "data:image/png;base64," + base64.b64encode(png_bytes(image)).decode()


def encode(image: Image.Image, suffix: str = ".png") -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, **_FORMATS[suffix])
    return buffer.getvalue()


def save_bytes(path: Path, content: bytes) -> None:
    with atomic(path) as temporary:
        temporary.write_bytes(content)


def save_png(path: Path, image: Tensor) -> None:
    """Write an image (3, H, W), float in [-1, 1] or 8-bit."""
    save_bytes(path, png_bytes(image))


def save_image(path: Path, image: Tensor) -> None:
    """Write an image (3, H, W) in the format its name asks for."""
    check_format(path)
    save_bytes(path, _image_bytes(image, path.suffix.lower()))


def check_format(path: Path) -> None:
    if path.suffix.lower() not in _FORMATS:
        raise UserError(f"Images are written as {' or '.join(_FORMATS)}, so {path.name} will not do.")


def save_mask(path: Path, mask: Tensor) -> None:
    """Write an instance mask (H, W): gray level k is object k, 0 the floor."""
    save_bytes(path, encode(Image.fromarray(mask.to(torch.uint8).cpu().numpy())))


def save_depth(path: Path, depth: Tensor) -> None:
    """Write depth (H, W) along the view axis as a 16-bit PNG, `_DEPTH_STEP` world units per level."""
    seen = depth.isfinite()
    levels = (torch.where(seen, depth, 0.0) / _DEPTH_STEP).round().clamp(0, _DEPTH_NOWHERE - 1)
    levels = torch.where(seen, levels, float(_DEPTH_NOWHERE))
    save_bytes(path, encode(Image.fromarray(levels.cpu().numpy().astype(np.uint16))))


def load_png(path: Path) -> Tensor:
    """An 8-bit image (3, H, W)."""
    return torch.from_numpy(np.array(open_image(path).convert("RGB"))).permute(2, 0, 1)


def load_mask(path: Path) -> Tensor:
    """An instance mask (H, W), long."""
    levels = np.array(open_image(path))
    if levels.ndim != 2:
        raise UserError(f"{path} is not a mask: it has {levels.shape[-1]} channels where one is expected.")
    return torch.from_numpy(levels.astype(np.int64))


def load_depth(path: Path) -> Tensor:
    """Depth (H, W) in world units; infinite where nothing is seen."""
    levels = torch.from_numpy(np.array(open_image(path)).astype(np.int64))
    return torch.where(levels == _DEPTH_NOWHERE, torch.inf, levels * _DEPTH_STEP)


def open_image(path: Path) -> Image.Image:
    """The decoded file, or one sentence that says why not."""
    check_file(path)
    with reading(path), warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            with Image.open(path, formats=_READ_FORMATS) as image:
                if image.width * image.height > _MOST_PIXELS:
                    raise Image.DecompressionBombError
                image.load()
                return image
        except UnidentifiedImageError as error:
            raise UserError(f"{path} is not an image.") from error
        except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
            raise UserError(f"{path} has more than {_MOST_PIXELS >> 20} million pixels.") from error


def parse_size(words: str) -> int | tuple[int, int]:
    """`128` is the 4:3 frame squeezed to a square, `320x240` is width x height in square pixels."""
    try:
        numbers = tuple(int(word) for word in words.lower().split("x"))
    except ValueError:
        numbers = ()
    if len(numbers) not in (1, 2):
        raise UserError(f"`{words}` is no size; write 128 or 320x240.")
    if min(numbers) < 1:
        raise UserError(f"An image needs at least one pixel in each direction, not {words}.")
    if max(numbers) > _LARGEST_SIDE:
        raise UserError(f"An image has at most {_LARGEST_SIDE} pixels in each direction, not {words}.")
    return numbers[0] if len(numbers) == 1 else (numbers[0], numbers[1])


def width_height(size: int | tuple[int, int]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else size
