"""Drawing scenes as one GPU kernel: the rules of `sampling`, `visibility` and `random`, a program per scene.

The plain PyTorch code says what is right and is followed operation by operation. With divisions and roots
rounded exactly, and products never fused with sums, both draw the same scenes.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from tessera.scenes import geometry, sampling, visibility
from tessera.scenes.batch import SceneBatch
from tessera.scenes.camera import BEHIND, CAMERA, RIGHT
from tessera.scenes.random import stream_key
from tessera.scenes.sampling import Effort, Scenes
from tessera.scenes.scene import BACK, FILL, KEY
from tessera.scenes.vocabulary import SHAPES, SIZES

COUNT_KEY, JITTER_KEY, LOOK_KEY, LOCATION_KEY = (tl.constexpr(address) for address in range(4))  # rows of `keys`
_STAGE = tl.constexpr(16)  # columns for the twelve numbers of camera and lamps
_CANDIDATES = tl.constexpr(triton.next_power_of_2(sampling.TRIES))
RAYS = tl.constexpr(64)  # traced together

REACH, TRIES = tl.constexpr(sampling.REACH), tl.constexpr(sampling.TRIES)
RIGHT_X, RIGHT_Y = (tl.constexpr(c) for c in RIGHT)
BEHIND_X, BEHIND_Y = (tl.constexpr(c) for c in BEHIND)
_FULL_TURN = tl.constexpr(2 * math.pi)
CUBE, SPHERE = tl.constexpr(SHAPES.index("cube")), tl.constexpr(SHAPES.index("sphere"))

WIDTH, HEIGHT = tl.constexpr(float(visibility.WIDTH)), tl.constexpr(float(visibility.HEIGHT))
MIDDLE_X, MIDDLE_Y = tl.constexpr(visibility.WIDTH / 2), tl.constexpr(visibility.HEIGHT / 2)
FOCAL_PIXELS = tl.constexpr(visibility.FOCAL_PIXELS)
ENOUGH, CLEAR = tl.constexpr(float(visibility.ENOUGH)), tl.constexpr(visibility.CLEAR)
COARSE, FINE = (tl.constexpr(net) for net in visibility.NETS)
DOUBT_RAYS, DOUBT_PIXELS = (tl.constexpr(float(part)) for part in visibility.DOUBT)
BALL = tl.constexpr(geometry.SPHERE_RADIUS**2)
_BALL_AREA = tl.constexpr(math.pi * (visibility.FOCAL_PIXELS * geometry.SPHERE_RADIUS) ** 2)
CUBE_CORE, CUBE_ROUNDING = tl.constexpr(geometry.CUBE_CORE), tl.constexpr(geometry.CUBE_ROUNDING)
RIM_RADIUS, RIM_HEIGHT = tl.constexpr(geometry.RIM_RADIUS), tl.constexpr(geometry.RIM_HEIGHT)
CORE_RADIUS, CORE_HEIGHT = tl.constexpr(1 - geometry.RIM_RADIUS), tl.constexpr(1 - geometry.RIM_HEIGHT)
HALVINGS = tl.constexpr(geometry.HALVINGS)
INF = tl.constexpr(float("inf"))


# --- small arithmetic: vectors are tuples of components ---------------------------------------------------------


@triton.jit
def _dot(a, b):
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


@triton.jit
def _sign(x):
    return tl.where(x > 0, 1.0, tl.where(x < 0, -1.0, 0.0))


@triton.jit
def _pick(values, column, wanted):
    """The value of one column as a scalar; a sum of zeros and one value is that value."""
    return tl.sum(tl.where(column == wanted, values, tl.zeros_like(values)), 0)


@triton.jit
def _pick3(vector, column, wanted):
    return (_pick(vector[0], column, wanted), _pick(vector[1], column, wanted), _pick(vector[2], column, wanted))


@triton.jit
def _pick4(box, column, wanted):
    left, right, top = _pick3(box, column, wanted)
    return left, right, top, _pick(box[3], column, wanted)


# --- random numbers ---------------------------------------------------------------------------------------------


@triton.jit
def _uniform4(key, scene, turn, block):
    """Numbers 4 * block .. 4 * block + 3 of a stream, as `random.uniform` has them."""
    zero = block * 0
    low, high = (scene & 0xFFFFFFFF).to(tl.uint32), ((scene >> 32) & 0xFFFFFFFF).to(tl.uint32)
    repeat = (zero + turn).to(tl.uint32)
    a, b, c, d = tl.philox(key, zero.to(tl.uint32) + low, zero.to(tl.uint32) + high, repeat, block.to(tl.uint32))
    return _fraction(a), _fraction(b), _fraction(c), _fraction(d)


@triton.jit
def _fraction(word):
    return (word >> 8).to(tl.float32) * (1.0 / 16777216.0)


@triton.jit
def _uniform2(key, scene, turn, column):
    """Numbers 2 * column and 2 * column + 1."""
    a, b, c, d = _uniform4(key, scene, turn, column // 2)
    even = column % 2 == 0
    return tl.where(even, a, c), tl.where(even, b, d)


@triton.jit
def _uniform1(key, scene, column):
    """Number `column` of the first attempt."""
    a, b, c, d = _uniform4(key, scene, 0, column // 4)
    word = column % 4
    return tl.where(word < 2, tl.where(word == 0, a, b), tl.where(word == 2, c, d))


# --- placing ----------------------------------------------------------------------------------------------------


@triton.jit
def _collides(dx, dy, reach, margin):
    """Which offsets of two centers break a spacing rule."""
    aside = tl.abs(dx * RIGHT_X + dy * RIGHT_Y)
    behind = tl.abs(dx * BEHIND_X + dy * BEHIND_Y)
    near = dx * dx + dy * dy < reach * reach
    return near | ((aside > 0) & (aside < margin)) | ((behind > 0) & (behind < margin))


@triton.jit
def _position_object(keys, scene, turn, slot, size, count, apart, margin):
    """Centers of the objects one after the other, candidates tried, and 1 if one of them found no room."""
    candidate = tl.arange(0, _CANDIDATES)
    x, y = size * 0.0, size * 0.0
    tries, crowded, obj = count * 0, count * 0, count * 0
    while (obj < count) & (crowded == 0):
        across, along = _uniform2(tl.load(keys + LOCATION_KEY + obj), scene, turn, candidate)
        across, along = (2.0 * across - 1.0) * REACH, (2.0 * along - 1.0) * REACH
        own = _pick(size, slot, obj)
        bad = candidate >= TRIES
        for other in range(obj):
            dx, dy = across - _pick(x, slot, other), along - _pick(y, slot, other)
            bad = bad | _collides(dx, dy, _pick(size, slot, other) + own + apart, margin)
        choice = tl.min(tl.where(bad, TRIES, candidate), 0)  # the earliest free one
        x = tl.where(slot == obj, _pick(across, candidate, choice), x)
        y = tl.where(slot == obj, _pick(along, candidate, choice), y)
        crowded = tl.where(choice < TRIES, 0, 1)
        tries += tl.minimum(choice + 1, TRIES)
        obj += 1
    return x, y, tries, crowded


# --- what the camera sees ---------------------------------------------------------------------------------------


@triton.jit
def _camera_axes(x, y, z):
    ground = tl.sqrt_rn(x * x + y * y)
    length = tl.sqrt_rn(x * x + y * y + z * z)
    right = (tl.div_rn(-y, ground), tl.div_rn(x, ground), z * 0.0)
    backward = (tl.div_rn(x, length), tl.div_rn(y, length), tl.div_rn(z, length))
    up = (-backward[2] * right[1], backward[2] * right[0], tl.div_rn(ground, length))
    return right, up, backward


@triton.jit
def _turned(vector, cos, sin):
    return vector[0] * cos + vector[1] * sin, vector[1] * cos - vector[0] * sin, vector[2] + cos * 0.0


@triton.jit
def _view(camera, x, y, size, rotation, shape):
    """The camera's axes and position in each object's own frame, and its power with respect to the camera."""
    right, up, backward = _camera_axes(camera[0], camera[1], camera[2])
    angle = rotation.to(tl.float64)
    cos = tl.where(shape == CUBE, tl.cos(angle).to(tl.float32), right[0])
    sin = tl.where(shape == CUBE, tl.sin(angle).to(tl.float32), right[1])
    offset = (camera[0] - x, camera[1] - y, camera[2] - size)
    ex, ey, ez = _turned(offset, cos, sin)
    eye = (tl.div_rn(ex, size), tl.div_rn(ey, size), tl.div_rn(ez, size))
    power = offset[0] * offset[0] + offset[1] * offset[1] - size * size
    axes = (_turned(right, cos, sin), _turned(up, cos, sin), _turned(backward, cos, sin))
    return axes, eye, power


@triton.jit
def _rectangle(axes, eye):
    """Left, right, top, bottom of the projected box around each object, within the frame."""
    low_x, low_y = eye[0] * 0.0 + WIDTH, eye[0] * 0.0 + HEIGHT
    high_x, high_y = eye[0] * 0.0, eye[0] * 0.0
    for corner in range(8):
        sx, sy, sz = 2.0 * (corner // 4) - 1.0, 2.0 * (corner // 2 % 2) - 1.0, 2.0 * (corner % 2) - 1.0
        away = (sx - eye[0], sy - eye[1], sz - eye[2])
        depth = _dot(axes[2], away)
        x = tl.div_rn(_dot(axes[0], away) * -FOCAL_PIXELS, depth) + MIDDLE_X
        y = tl.div_rn(_dot(axes[1], away) * FOCAL_PIXELS, depth) + MIDDLE_Y
        x, y = tl.minimum(tl.maximum(x, 0.0), WIDTH), tl.minimum(tl.maximum(y, 0.0), HEIGHT)
        low_x, low_y = tl.minimum(low_x, x), tl.minimum(low_y, y)
        high_x, high_y = tl.maximum(high_x, x), tl.maximum(high_y, y)
    return low_x, high_x, low_y, high_y


@triton.jit
def _shared_area(a, b):
    wide = tl.maximum(tl.minimum(a[1], b[1]) - tl.maximum(a[0], b[0]), 0.0)
    tall = tl.maximum(tl.minimum(a[3], b[3]) - tl.maximum(a[2], b[2]), 0.0)
    return wide * tall


@triton.jit
def _ball_area(axes, eye):
    depth, distance = _dot(axes[2], eye), _dot(eye, eye)
    flat = depth * depth - BALL
    stretch = tl.sqrt_rn(tl.div_rn(distance - BALL, flat))
    return tl.div_rn(1.0, flat) * _BALL_AREA * stretch


@triton.jit
def _is_clear(slot, count, axes, eye, power, box):
    """Which objects are known to show enough from rectangles alone."""
    area = _ball_area(axes, eye)
    for other in range(count):
        shared = _shared_area(box, _pick4(box, slot, other))
        area = area - tl.where(_pick(power, slot, other) < power, shared, 0.0)
    inside = (box[0] > 0) & (box[1] < WIDTH) & (box[2] > 0) & (box[3] < HEIGHT)
    return inside & (area >= CLEAR)


# --- rays against shapes ----------------------------------------------------------------------------------------


@triton.jit
def _slab(eye, ray):
    speed = tl.where(tl.abs(ray) < 1e-9, 1e-9, ray)
    middle, half = tl.div_rn(-eye, speed), tl.div_rn(1.0, tl.abs(speed))
    return middle - half, middle + half


@triton.jit
def _meets_sphere(eye, ray):
    along, rest = _dot(eye, ray), _dot(eye, eye) - BALL
    return along * along >= _dot(ray, ray) * rest


@triton.jit
def _cube_excess(x, ray):
    beyond = tl.div_rn(tl.maximum(tl.abs(x) - CUBE_CORE, 0.0), CUBE_ROUNDING)
    return beyond * beyond * beyond, beyond * beyond * _sign(x) * ray


@triton.jit
def _cube_height(eye, ray, t):
    """How far a point of a ray lies outside the core, and the slope of that along the ray."""
    hx, sx = _cube_excess(eye[0] + t * ray[0], ray[0])
    hy, sy = _cube_excess(eye[1] + t * ray[1], ray[1])
    hz, sz = _cube_excess(eye[2] + t * ray[2], ray[2])
    return hx + hy + hz, sx + sy + sz


@triton.jit
def _meets_cube(eye, ray):
    x0, x1 = _slab(eye[0], ray[0])
    y0, y1 = _slab(eye[1], ray[1])
    z0, z1 = _slab(eye[2], ray[2])
    enter, leave = tl.maximum(tl.maximum(x0, y0), z0), tl.minimum(tl.minimum(x1, y1), z1)
    crosses = enter <= leave
    for _ in range(HALVINGS):
        middle = (enter + leave) * 0.5
        _, slope = _cube_height(eye, ray, middle)
        enter, leave = tl.where(slope < 0, middle, enter), tl.where(slope < 0, leave, middle)
    height, _ = _cube_height(eye, ray, (enter + leave) * 0.5)
    return crosses & (height <= 1.0)


@triton.jit
def _cylinder_height(eye, ray, t):
    x, y, z = eye[0] + t * ray[0], eye[1] + t * ray[1], eye[2] + t * ray[2]
    radius = tl.maximum(tl.sqrt_rn(x * x + y * y), 1e-6)
    out = tl.div_rn(tl.maximum(radius - CORE_RADIUS, 0.0), RIM_RADIUS)
    up = tl.div_rn(tl.maximum(tl.abs(z) - CORE_HEIGHT, 0.0), RIM_HEIGHT)
    out3, up3 = out * out * out, up * up * up
    outward = tl.div_rn(tl.div_rn(out3 * (x * ray[0] + y * ray[1]), radius), RIM_RADIUS)
    return out3 * out + up3 * up, outward + tl.div_rn(up3 * _sign(z) * ray[2], RIM_HEIGHT)


@triton.jit
def _meets_cylinder(eye, ray):
    across = ray[0] * ray[0] + ray[1] * ray[1]
    along = eye[0] * ray[0] + eye[1] * ray[1]
    inside = along * along - across * (eye[0] * eye[0] + eye[1] * eye[1] - 1.0)
    reach = tl.sqrt_rn(tl.maximum(inside, 0.0))
    near, far = _slab(eye[2], ray[2])
    enter = tl.maximum(near, tl.div_rn(-along - reach, across))
    leave = tl.minimum(far, tl.div_rn(-along + reach, across))
    crosses = (inside >= 0) & (enter <= leave)
    for _ in range(HALVINGS):
        middle = (enter + leave) * 0.5
        _, slope = _cylinder_height(eye, ray, middle)
        enter, leave = tl.where(slope < 0, middle, enter), tl.where(slope < 0, leave, middle)
    height, _ = _cylinder_height(eye, ray, (enter + leave) * 0.5)
    return crosses & (height <= 1.0)


@triton.jit
def _covers(slot, obj, shape, axes, eye, x, y):
    """Which rays through pixels (x, y) meet one object."""
    right, up, back = _pick3(axes[0], slot, obj), _pick3(axes[1], slot, obj), _pick3(axes[2], slot, obj)
    aside, above = tl.div_rn(x - MIDDLE_X, FOCAL_PIXELS), tl.div_rn(y - MIDDLE_Y, -FOCAL_PIXELS)
    ray = (
        aside * right[0] + above * up[0] - back[0],
        aside * right[1] + above * up[1] - back[1],
        aside * right[2] + above * up[2] - back[2],
    )
    from_ = _pick3(eye, slot, obj)
    kind = _pick(shape, slot, obj)
    met = x < 0.0
    if kind == CUBE:
        met = _meets_cube(from_, ray)
    else:
        if kind == SPHERE:
            met = _meets_sphere(from_, ray)
        else:
            met = _meets_cylinder(from_, ray)
    return met


# --- visible pixels ---------------------------------------------------------------------------------------------


@triton.jit
def _steps(low, high, net, every):
    """Where along one side of a rectangle rays pass: start, step, how many, and what they must not reach."""
    start = tl.where(every, tl.floor(low), low)
    step = tl.where(every, 1.0, tl.div_rn(high - low, net * 1.0))
    number = tl.where(every, tl.ceil(high - start).to(tl.int32), net)
    return start, step, number, tl.where(every, high, INF)


@triton.jit
def _hits(obj, slot, count, shape, axes, eye, relevant, across, down):
    """How many rays of a grid meet the object before any other of the `relevant` ones."""
    x0, dx, columns, end_x = across
    y0, dy, rows, end_y = down
    hits = count * 0
    for first in range(0, columns * rows, RAYS):
        ray = first + tl.arange(0, RAYS)
        x = x0 + dx * ((ray % columns).to(tl.float32) + 0.5)
        y = y0 + dy * ((ray // columns).to(tl.float32) + 0.5)
        seen = (ray < columns * rows) & (x < end_x) & (y < end_y)
        for other in range(count):
            if _pick(relevant, slot, other) > 0:
                met = _covers(slot, other, shape, axes, eye, x, y)
                seen = seen & (met.to(tl.int32) == tl.where(other == obj, 1, 0))
        hits += tl.sum(seen.to(tl.int32), 0)
    return hits


@triton.jit
def _shows_enough(obj, slot, count, shape, axes, eye, power, box):
    """1 if an object shows enough pixels: two nets of rays, and where they leave a doubt, every pixel."""
    own = _pick4(box, slot, obj)
    before = (power < _pick(power, slot, obj)) & (_shared_area(box, own) > 0)
    relevant = tl.where((slot < count) & (before | (slot == obj)), 1, 0)
    area = (own[1] - own[0]) * (own[3] - own[2])
    level, sure, enough = count * 0, count * 0, count * 0
    while sure == 0:
        every, net = level == 2, tl.where(level == 0, COARSE, FINE)
        across, down = _steps(own[0], own[1], net, every), _steps(own[2], own[3], net, every)
        hits = _hits(obj, slot, count, shape, axes, eye, relevant, across, down)
        cell = tl.where(every, 1.0, tl.div_rn(area, net * net * 1.0))  # pixels per ray
        pixels = hits.to(tl.float32) * cell
        enough = tl.where(pixels >= ENOUGH, 1, 0)
        sure = tl.where(every | (tl.abs(pixels - ENOUGH) > cell * DOUBT_RAYS + DOUBT_PIXELS), 1, 0)
        level += 1
    return enough


@triton.jit
def _hides(camera, slot, count, x, y, size, rotation, shape):
    """1 if some object shows too little of itself."""
    axes, eye, power = _view(camera, x, y, size, rotation, shape)
    box = _rectangle(axes, eye)
    doubtful = (slot < count) & (_is_clear(slot, count, axes, eye, power, box) == 0)
    hides = count * 0
    obj = tl.min(tl.where(doubtful, slot, count), 0)
    while (obj < count) & (hides == 0):
        hides = 1 - _shows_enough(obj, slot, count, shape, axes, eye, power, box)
        obj = tl.min(tl.where(doubtful & (slot > obj), slot, count), 0)
    return hides


# --- whole scenes -----------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["scenes", "slots", "low", "choices", "looks", "last_turn"])
def _draw_scenes(
    index, keys, resting, jitter, kinds, extents,
    stage_out, kind_out, size_out, xy_out, rotation_out, effort_out,
    scenes, slots, low, choices, looks, apart, margin, last_turn, block: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    scene = tl.load(index + row)

    column = tl.arange(0, _STAGE)
    share = _pick(_uniform1(tl.load(keys + COUNT_KEY), scene, column), column, 0)
    count = low + (share * choices.to(tl.float32)).to(tl.int32)
    offset = 2.0 * _uniform1(tl.load(keys + JITTER_KEY), scene, column) - 1.0
    stage = tl.load(resting + column) + offset * tl.load(jitter + column)
    tl.store(stage_out + (column // 3 * scenes + row) * 3 + column % 3, stage, mask=column < 12)
    camera = (_pick(stage, column, 0), _pick(stage, column, 1), _pick(stage, column, 2))

    slot = tl.arange(0, block)
    present = slot < count
    spot = row * slots + slot
    turn, done = count * 0, count * 0
    tries, crowded, unseen = count * 0, count * 0, count * 0
    while (done == 0) & (turn < last_turn):
        number, angle = _uniform2(tl.load(keys + LOOK_KEY), scene, turn, slot)
        look = (number * looks.to(tl.float32)).to(tl.int32)
        size, rotation = tl.load(extents + look), angle * _FULL_TURN
        shape = tl.load(kinds + 3 * look).to(tl.int32)
        x, y, tried, failed = _position_object(keys, scene, turn, slot, size, count, apart, margin)
        hides = count * 0
        if failed == 0:
            hides = _hides(camera, slot, count, x, y, size, rotation, shape)
        done = 1 - failed - hides
        if done == 1:
            for kind in range(3):
                value = tl.load(kinds + 3 * look + kind)
                address = kind_out + (kind * scenes + row) * slots + slot
                tl.store(address, tl.where(present, value, 0), mask=slot < slots)
            tl.store(size_out + spot, tl.where(present, size, 1.0), mask=slot < slots)
            tl.store(xy_out + 2 * spot, tl.where(present, x, 0.0), mask=slot < slots)
            tl.store(xy_out + 2 * spot + 1, tl.where(present, y, 0.0), mask=slot < slots)
            tl.store(rotation_out + spot, tl.where(present, rotation, 0.0), mask=slot < slots)
        tries += tried
        crowded += failed
        unseen += hides
        turn += 1

    tl.store(effort_out + row, turn.to(tl.int64))
    tl.store(effort_out + scenes + row, tries.to(tl.int64))
    tl.store(effort_out + 2 * scenes + row, crowded.to(tl.int64))
    tl.store(effort_out + 3 * scenes + row, unseen.to(tl.int64))
    tl.store(effort_out + 4 * scenes + row, count.to(tl.int64))


def draw_scenes(rules: Scenes, seed: int, index: Tensor) -> tuple[SceneBatch, Effort]:
    """The scenes with these numbers (B,), and what they took."""
    low, high = sampling.checked_range(rules.objects)
    count, last_turn = len(index), sampling.LAST_TURN

    def made(*shape: int, dtype=torch.float32) -> Tensor:
        return torch.empty(*shape, dtype=dtype, device=index.device)

    stage, size, xy, rotation = made(4, count, 3), made(count, high), made(count, high, 2), made(count, high)
    kind, effort = made(3, count, high, dtype=torch.long), made(5, count, dtype=torch.long)
    given = (_stream_keys(seed, high), *_resting_stage(rules), *_look_table(rules))
    _draw_scenes[(count,)](
        index.contiguous(), *(tensor.to(index.device, non_blocking=True) for tensor in given),
        stage, kind, size, xy, rotation, effort,
        count, high, low, high - low + 1, len(sampling.looks(rules)), *sampling.SPACINGS[rules.spacing], last_turn,
        block=max(2, triton.next_power_of_2(high)), num_warps=1, enable_fp_fusion=False,
    )  # fmt: skip
    attempts, _, crowded, unseen, objects = effort
    if (attempts == crowded + unseen).any():
        raise sampling.gave_up(rules, last_turn)
    present = torch.arange(high, device=index.device) < objects[:, None]
    shape, color, material = kind
    drawn = SceneBatch(present, shape, color, material, size, xy, rotation, *stage.unbind())
    return drawn, Effort(*effort[:4])


def _stream_keys(seed: int, slots: int) -> Tensor:
    """Philox keys of all streams, both words in one int64."""
    streams = ["count", "jitter", "look", *(f"place {k}" for k in range(slots))]
    words = torch.tensor([stream_key(seed, column) for column in streams])  # (streams, 2)
    return words[:, 0] | words[:, 1] << 32


def _resting_stage(rules: Scenes) -> tuple[Tensor, Tensor]:
    """Where camera and lamps rest, and how far they move; padded to the kernel's columns."""
    resting = [*CAMERA, *KEY, *FILL, *BACK]
    reach = [sampling.CAMERA_JITTER] * 3 + [sampling.LAMP_JITTER] * 9
    padding = [0.0] * (_STAGE.value - len(resting))
    return torch.tensor(resting + padding), torch.tensor(reach + padding) * float(rules.jitter)


def _look_table(rules: Scenes) -> tuple[Tensor, Tensor]:
    """Shape, color and material of every allowed look (A, 3), and its size (A,)."""
    table = torch.tensor(sampling.looks(rules))
    return table[:, 1:].contiguous(), torch.tensor(list(SIZES.values()))[table[:, 0]]
