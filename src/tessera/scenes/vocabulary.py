"""The words of a CLEVR scene, in the order in which tensors number them."""

SHAPES = ("cube", "sphere", "cylinder")
MATERIALS = ("rubber", "metal")
SIZES = {"small": 0.35, "large": 0.7}  # half extent in world units, for every shape

# 8-bit triples; the generator divides by 255 and uses them as scene-linear values, without sRGB decoding.
COLORS = {
    "blue": (42, 75, 215),
    "brown": (129, 74, 25),
    "cyan": (41, 208, 208),
    "gray": (87, 87, 87),
    "green": (29, 105, 20),
    "purple": (129, 38, 192),
    "red": (173, 35, 35),
    "yellow": (255, 238, 51),
}
COLOR_NAMES = tuple(COLORS)
WORDS = {"size": tuple(SIZES), "shape": SHAPES, "color": COLOR_NAMES, "material": MATERIALS}  # attribute -> its words

# The twelve locations of the length-generalization study, (x, y) in [0, 1], prompted in this order.
LOCATIONS = (
    (0.65, 0.65),
    (0.65, 0.25),
    (0.25, 0.65),
    (0.35, 0.35),
    (0.45, 0.65),
    (0.45, 0.25),
    (0.65, 0.45),
    (0.25, 0.45),
    (0.45, 0.45),
    (0.55, 0.55),
    (0.35, 0.55),
    (0.55, 0.35),
)
