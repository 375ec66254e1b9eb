"""Draws the dataset of the demo: `demo_images.py FOLDER` makes FOLDER/{train,val}/CLASS/CLASS-NUMBER.png.

Ten shapes of random colour, place and size on a noisy ground: little enough to draw in seconds, enough for a small
network to have something to learn. Each image says in a PNG text chunk, which no training script looks at, what file
it was drawn for. That is how the demo knows whose bytes it was given.
"""

import math
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw
from PIL.PngImagePlugin import PngInfo

SIDE_PIXELS = 32
# First number and images per class. No name is used twice: equal names in two classes could be parts of one sample.
SPLITS = {"train": (0, 200), "val": (200, 40)}

Draw = ImageDraw.ImageDraw
Colour = tuple[int, int, int]
Shape = Callable[[Draw, float, float, float, Colour], None]
"""Draws on a canvas, around x and y, with a radius and a colour."""


def _polygon(corners: int, turn: float, *, star: float = 1.0) -> Shape:
    """A regular polygon; every second corner at ``star`` of the radius."""

    def draw(canvas: Draw, x: float, y: float, radius: float, colour: Colour) -> None:
        reaches = [radius if i % 2 == 0 else radius * star for i in range(corners)]
        angles = [turn + 2 * math.pi * i / corners for i in range(corners)]
        canvas.polygon(
            [(x + r * math.sin(a), y - r * math.cos(a)) for r, a in zip(reaches, angles, strict=True)], colour
        )

    return draw


def _strokes(*strokes: tuple[float, float, float, float]) -> Shape:
    """Lines, in units of the radius."""

    def draw(canvas: Draw, x: float, y: float, radius: float, colour: Colour) -> None:
        for x0, y0, x1, y1 in strokes:
            canvas.line((x + x0 * radius, y + y0 * radius, x + x1 * radius, y + y1 * radius), colour, width=3)

    return draw


def _disc(canvas: Draw, x: float, y: float, radius: float, colour: Colour) -> None:
    canvas.ellipse((x - radius, y - radius, x + radius, y + radius), colour)


def _ring(canvas: Draw, x: float, y: float, radius: float, colour: Colour) -> None:
    canvas.ellipse((x - radius, y - radius, x + radius, y + radius), outline=colour, width=2)


SHAPES: dict[str, Shape] = {
    "columns": _strokes((-0.8, -1, -0.8, 1), (0.8, -1, 0.8, 1)),
    "cross": _strokes((-0.8, -0.8, 0.8, 0.8), (-0.8, 0.8, 0.8, -0.8)),
    "diamond": _polygon(4, 0.0),
    "disc": _disc,
    "plus": _strokes((0, -1, 0, 1), (-1, 0, 1, 0)),
    "ring": _ring,
    "rows": _strokes((-1, -0.8, 1, -0.8), (-1, 0.8, 1, 0.8)),
    "square": _polygon(4, math.pi / 4),
    "star": _polygon(10, 0.0, star=0.4),
    "triangle": _polygon(3, 0.0),
}


def picture(shape: Shape, random: np.random.Generator) -> Image.Image:
    """One bright shape on a dark ground, with noise on both."""
    image = Image.new("RGB", (SIDE_PIXELS, SIDE_PIXELS), tuple(random.integers(0, 70, 3).tolist()))
    radius = random.uniform(6, 11)
    x, y = random.uniform(radius, SIDE_PIXELS - radius, 2)
    red, green, blue = random.integers(130, 256, 3).tolist()
    shape(ImageDraw.Draw(image), x, y, radius, (red, green, blue))
    noisy = np.asarray(image) + random.normal(0, 20, (SIDE_PIXELS, SIDE_PIXELS, 3))
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8))


def main() -> None:
    (folder,) = map(Path, sys.argv[1:])
    random = np.random.default_rng(0)
    for split, (first, count) in SPLITS.items():
        for name, shape in SHAPES.items():
            (folder / split / name).mkdir(parents=True)
            for number in range(count):
                path = f"{split}/{name}/{name}-{number + first:04}.png"
                note = PngInfo()
                note.add_text("path", path)
                picture(shape, random).save(folder / path, pnginfo=note, compress_level=1)


if __name__ == "__main__":
    main()
