"""Draws the dataset of the demo: `demo_images.py FOLDER [IMAGES]` makes FOLDER/{train,val}/CLASS/CLASS-NUMBER.png.

IMAGES is the number of training images of each class, by default 200. Validation gets a fifth of that.

Ten shapes of random color, place and size on a noisy ground: quick to draw, and enough for a small network to learn
something. Each image records the path that it was drawn for in a PNG text chunk, which no training script reads. So
demo_check.py can tell which file it was given.
"""

import math
import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw
from PIL.PngImagePlugin import PngInfo

SIDE_PIXELS = 32
TRAINING_IMAGES = 200
VALIDATION_SHARE = 5

Draw = ImageDraw.ImageDraw
Color = tuple[int, int, int]
Shape = Callable[[Draw, float, float, float, Color], None]
"""Draws on a canvas, around x and y, with a radius and a color."""


def _polygon(corners: int, turn: float, *, star: float = 1.0) -> Shape:
    """A regular polygon, with every second corner at ``star`` times the radius."""

    def draw(canvas: Draw, x: float, y: float, radius: float, color: Color) -> None:
        reaches = [radius if i % 2 == 0 else radius * star for i in range(corners)]
        angles = [turn + 2 * math.pi * i / corners for i in range(corners)]
        canvas.polygon(
            [(x + r * math.sin(a), y - r * math.cos(a)) for r, a in zip(reaches, angles, strict=True)], color
        )

    return draw


def _strokes(*strokes: tuple[float, float, float, float]) -> Shape:
    """Lines with coordinates in units of the radius."""

    def draw(canvas: Draw, x: float, y: float, radius: float, color: Color) -> None:
        for x0, y0, x1, y1 in strokes:
            canvas.line((x + x0 * radius, y + y0 * radius, x + x1 * radius, y + y1 * radius), color, width=3)

    return draw


def _disc(canvas: Draw, x: float, y: float, radius: float, color: Color) -> None:
    canvas.ellipse((x - radius, y - radius, x + radius, y + radius), color)


def _ring(canvas: Draw, x: float, y: float, radius: float, color: Color) -> None:
    canvas.ellipse((x - radius, y - radius, x + radius, y + radius), outline=color, width=2)


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
    folder = Path(sys.argv[1])
    images = int(sys.argv[2]) if len(sys.argv) > 2 else TRAINING_IMAGES
    splits = {"train": images, "val": images // VALIDATION_SHARE}
    random = np.random.default_rng(0)
    for split, count in splits.items():
        # Numbers run through the classes in mixed order. In order, equal ones could be parts of one sample.
        numbers = iter(random.permutation(count * len(SHAPES)).tolist())
        for name, shape in SHAPES.items():
            (folder / split / name).mkdir(parents=True)
            for number in islice(numbers, count):
                path = f"{split}/{name}/{name}-{number:04}.png"
                note = PngInfo()
                note.add_text("path", path)
                picture(shape, random).save(folder / path, pnginfo=note, compress_level=1)


if __name__ == "__main__":
    main()
