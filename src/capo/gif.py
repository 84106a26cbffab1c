"""A GIF of an agent playing: the environment's own picture where it has one, else its observation."""

from __future__ import annotations

import colorsys
import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from capo.errors import CapoError
from capo.files import atomic_file

CELL = 24  # pixels of a cell of a grid
STRIP = 28  # pixels of the strip with the score
WIDTH = 240  # least width in pixels, so that the score fits
BACKGROUND = (24, 24, 32)
INK = (235, 235, 235)

Picture = np.ndarray[Any, np.dtype[np.uint8]]


def check_target(path: Path) -> None:
    """Raises a CapoError if a GIF can't be written to ``path``."""
    if path.suffix.lower() != ".gif":
        raise CapoError(f"{path}: the animation is a GIF, so its name must end in .gif")
    if path.is_dir():
        raise CapoError(f"{path} is a folder; give the name of a .gif file")
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if not folder.is_dir():
        raise CapoError(f"{path}: {folder} is a file, so nothing can be written into it")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise CapoError(f"{path}: {folder} is read-only; choose another folder")
    if importlib.util.find_spec("PIL") is None:  # matplotlib brings it
        raise CapoError("drawing needs Pillow: pip install 'capo-rl[report]'")


def palette(channels: int) -> Picture:
    """A colour for each channel, (channels, 3): evenly spread hues, alternately lighter and darker."""
    colours = [
        colorsys.hsv_to_rgb((0.08 + i * 0.618) % 1.0, 0.65, 0.95 if i % 2 == 0 else 0.75) for i in range(channels)
    ]
    return (np.array(colours).reshape(channels, 3) * 255).astype(np.uint8)


def draw_grid(observation: Any) -> Picture:
    """A grid of on/off channels, such as MinAtar's, with one colour per channel.

    Args:
        observation: (H, W, C); nonzero is on. Where several channels are on, the last one is seen.

    Returns:
        (H * CELL, W * CELL, 3).
    """
    grid = np.asarray(observation) != 0
    cells = np.empty((*grid.shape[:2], 3), np.uint8)
    cells[:] = BACKGROUND
    for channel, colour in enumerate(palette(grid.shape[2])):
        cells[grid[..., channel]] = colour
    picture = cells.repeat(CELL, axis=0).repeat(CELL, axis=1)
    picture[::CELL] = picture[:, ::CELL] = BACKGROUND  # thin lines between the cells
    return picture


def draw_vector(observation: Any) -> Picture:
    """The numbers of an observation as bars, up for positive ones, each squashed by tanh."""
    values = np.tanh(np.nan_to_num(np.asarray(observation, float).reshape(-1)[:64]))
    half = 100
    step = max(4, WIDTH // max(len(values), 1))
    picture = np.empty((2 * half + 1, max(WIDTH, step * len(values)), 3), np.uint8)
    picture[:] = BACKGROUND
    for index, (value, colour) in enumerate(zip(values, palette(len(values)), strict=True)):
        end = half - round(float(value) * half)
        low, high = sorted((half, end))
        picture[low : high + 1, index * step + 1 : (index + 1) * step - 1] = colour
    picture[half] = INK
    return picture


def draw_observation(observation: Any) -> Picture:
    """A picture of an observation, for an environment that does not draw itself."""
    array = np.asarray(observation)
    if array.ndim == 3 and array.shape[2] in (1, 3) and array.dtype == np.uint8 and min(array.shape[:2]) > 32:
        return np.broadcast_to(array, (*array.shape[:2], 3)).copy()  # it is a picture already
    return draw_grid(array) if array.ndim == 3 else draw_vector(array)


def with_caption(picture: Picture, text: str) -> Picture:
    """The picture with ``text`` in a strip above it."""
    from PIL import Image, ImageDraw, ImageFont

    height, width = picture.shape[:2]
    canvas = Image.new("RGB", (max(width, WIDTH), height + STRIP), BACKGROUND)
    canvas.paste(Image.fromarray(picture), ((canvas.width - width) // 2, STRIP))
    ImageDraw.Draw(canvas).text((8, 7), text, fill=INK, font=ImageFont.load_default(size=13))
    return np.asarray(canvas)


def write_gif(path: Path, pictures: Sequence[Picture], per_second: float = 15.0) -> Path:
    """Write the pictures, all of one size, as a looping GIF; the last one stays for a second."""
    from PIL import Image

    if not pictures:
        raise CapoError(f"{path}: there is nothing to draw")
    images = [Image.fromarray(picture).quantize(64) for picture in pictures]
    durations = [round(1000 / per_second)] * (len(images) - 1) + [1000]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CapoError(f"{path}: cannot be written ({error.strerror or error})") from error
    more: dict[str, Any] = {"append_images": images[1:], "duration": durations, "loop": 0}
    with atomic_file(path) as file:
        images[0].save(file, "GIF", save_all=True, **more)
    return path
