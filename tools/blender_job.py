"""Runs where `bpy` lives: builds the CLEVR stage in Blender and renders the scenes of a job file with Cycles.

`blender.py` calls it as `python blender_job.py job.json`, in a process of its own. It imports
nothing of Tessera: that Python needs only bpy, and a crash inside Blender takes nothing else down.
"""

import json
import math
import sys
from pathlib import Path

import bpy
import numpy as np
from mathutils import Vector

STAGE_SPAN = (-29.90, 26.58)  # how far the floor reaches along v
ALONG_U, ALONG_V = (-0.9032076597, 0.4292037785), (-0.4292037785, -0.9032076597)
STAGE_ALBEDO = 0.8

# name: (side of the square lamp, radiance, linear color)
AREA_LAMPS = {
    "key": (0.5, 100.0, (1.0, 0.932309, 0.816664)),
    "fill": (0.5, 30.0, (0.761666, 0.817720, 1.0)),
    "back": (1.0, 12.5, (1.0, 1.0, 1.0)),
}
SUN_DIRECTION, SUN_RADIUS, SUN_IRRADIANCE = (0.414496, -0.194583, 0.889005), 0.1, 0.45

# (radius, height) of the cylinder's rounded rim, in units of the half extent
RIM = (
    (1.0, 0.900),
    (0.9989, 0.937),
    (0.9961, 0.959),
    (0.9898, 0.977),
    (0.9848, 0.984),
    (0.9710, 0.993),
    (0.9529, 0.998),
    (0.9209, 1.000),
)
CYLINDER_SEGMENTS = 1024
CUBE_FLAT = 0.75  # the cube's faces are flat up to here, then round off
CUBE_ROUNDING_STEPS = 16
SPHERE_RADIUS = 0.9991
SPHERE_STEPS = 16  # each of the 60 quads of a split icosahedron is cut into this many squared

# The official asset files, and the names of objects and lamps inside them.
ASSET_SHAPES = {"cube": "SmoothCube_v2", "sphere": "Sphere", "cylinder": "SmoothCylinder"}
ASSET_MATERIALS = {"rubber": "Rubber", "metal": "MyMetal"}
ASSET_LAMPS = {"key": "Lamp_Key", "fill": "Lamp_Fill", "back": "Lamp_Back"}


# --- meshes -----------------------------------------------------------------------------------------------


def new_mesh(name, vertices, faces, smooth=False):
    mesh = bpy.data.meshes.new(name)
    mesh.from_pydata([tuple(map(float, v)) for v in vertices], [], [tuple(map(int, f)) for f in faces])
    mesh.polygons.foreach_set("use_smooth", [smooth] * len(mesh.polygons))
    mesh.update()
    return mesh


def weld(quads):
    """Corner points (Q, 4, 3) become unique vertices and index quads; neighbors then share their edges."""
    points = quads.reshape(-1, 3)
    _, first, index = np.unique(points.round(7), axis=0, return_index=True, return_inverse=True)
    return points[first], index.reshape(-1, 4)


def grid_quads(grid):
    """A grid of points (I, J, 3) as corner points of its quads (Q, 4, 3)."""
    corners = (grid[:-1, :-1], grid[1:, :-1], grid[1:, 1:], grid[:-1, 1:])
    return np.stack(corners, axis=2).reshape(-1, 4, 3)


def outward(quads):
    """Turn every quad so that its normal leaves the origin."""
    normal = np.cross(quads[:, 2] - quads[:, 0], quads[:, 3] - quads[:, 1])
    inward = (normal * quads.mean(1)).sum(-1) < 0
    quads[inward] = quads[inward][:, ::-1]
    return quads


def stage_mesh(profile):
    """The floor that sweeps up into a wall: the profile (u, z) drawn along v."""
    rows = [
        [u * ALONG_U[0] + v * ALONG_V[0], u * ALONG_U[1] + v * ALONG_V[1], z]
        for u, z in zip(profile["u"], profile["z"], strict=True)
        for v in STAGE_SPAN
    ]
    faces = [(2 * i, 2 * i + 1, 2 * i + 3, 2 * i + 2) for i in range(len(profile["u"]) - 1)]
    return new_mesh("stage", rows, faces)


def cube_mesh():
    """Flat faces to 0.75, then a rounding whose section is |a|^3 + |b|^3 = 1."""
    bend = np.linspace(CUBE_FLAT, 1, CUBE_ROUNDING_STEPS + 1)
    ticks = np.concatenate([-bend[::-1], bend])
    a, b = np.meshgrid(ticks, ticks, indexing="ij")
    faces = []
    for axis in range(3):
        for side in (-1.0, 1.0):
            box = np.insert(np.stack([a, b], -1), axis, side, axis=-1)  # (I, J, 3) on a sharp box
            faces.append(grid_quads(rounded(box)))
    vertices, quads = weld(outward(np.concatenate(faces)))
    mesh = new_mesh("cube", vertices, quads, smooth=True)
    mesh.normals_split_custom_set_from_vertices(cube_normals(vertices))
    return mesh


def rounded(box):
    """Points on a sharp box, moved onto the rounded cube."""
    bend = np.clip((np.abs(box) - CUBE_FLAT) / (1 - CUBE_FLAT), 0, None)
    bend /= np.cbrt((bend**3).sum(-1, keepdims=True))
    flat = np.clip(box, -CUBE_FLAT, CUBE_FLAT)
    return flat + np.sign(box) * bend * (1 - CUBE_FLAT)


def cube_normals(vertices):
    """The gradient of |a|^3 + |b|^3 + |c|^3."""
    bend = np.clip((np.abs(vertices) - CUBE_FLAT) / (1 - CUBE_FLAT), 0, None)
    normal = np.sign(vertices) * bend**2
    return (normal / np.linalg.norm(normal, axis=-1, keepdims=True)).tolist()


def cylinder_mesh():
    profile = [(r, -h) for r, h in reversed(RIM)] + list(RIM)  # from the lower rim to the upper
    turn = np.linspace(0, 2 * math.pi, CYLINDER_SEGMENTS, endpoint=False)
    vertices = [(r * math.cos(t), r * math.sin(t), h) for r, h in profile for t in turn]
    n = CYLINDER_SEGMENTS
    sides = [
        (k * n + i, k * n + (i + 1) % n, (k + 1) * n + (i + 1) % n, (k + 1) * n + i)
        for k in range(len(profile) - 1)
        for i in range(n)
    ]
    top = [(len(profile) - 1) * n + i for i in range(n)]
    bottom = list(range(n))[::-1]
    return new_mesh("cylinder", vertices, [*sides, top, bottom])


def sphere_mesh():
    """15,360 flat quads of nearly equal size: an icosahedron, each triangle split into three quads."""
    quads = np.concatenate([grid_quads(patch) for patch in sphere_patches()])
    vertices, index = weld(outward(quads))
    return new_mesh("sphere", vertices, index)


def sphere_patches():
    for a, b, c in icosahedron():
        middle = (a + b + c) / 3
        for corner, ahead, before in ((a, b, c), (b, c, a), (c, a, b)):
            yield sphere_patch(corner, (corner + ahead) / 2, middle, (corner + before) / 2)


def sphere_patch(a, b, c, d):
    s, t = np.meshgrid(*[np.linspace(0, 1, SPHERE_STEPS + 1)] * 2, indexing="ij")
    s, t = s[..., None], t[..., None]
    flat = (1 - s) * (1 - t) * a + s * (1 - t) * b + s * t * c + (1 - s) * t * d
    return SPHERE_RADIUS * flat / np.linalg.norm(flat, axis=-1, keepdims=True)


def icosahedron():
    """The corner points of its twenty triangles: triples of vertices at the edge distance from each other."""
    golden = (1 + math.sqrt(5)) / 2
    corners = [np.roll([0, s, t * golden], k) for k in range(3) for s in (-1, 1) for t in (-1, 1)]
    near = [[np.isclose(np.linalg.norm(a - b), 2) for b in corners] for a in corners]
    size = len(corners)
    for i in range(size):
        for j in range(i + 1, size):
            for k in range(j + 1, size):
                if near[i][j] and near[j][k] and near[i][k]:
                    yield corners[i], corners[j], corners[k]


MESHES = {"cube": cube_mesh, "sphere": sphere_mesh, "cylinder": cylinder_mesh}


# --- materials --------------------------------------------------------------------------------------------


class Shader:
    """A little grammar for node trees: every method adds a node and returns its output."""

    def __init__(self, tree):
        self.tree = tree

    def node(self, kind, **inputs):
        node = self.tree.nodes.new(f"ShaderNode{kind}")
        for name, value in inputs.items():
            socket = node.inputs[int(name[1:]) if name[1:].isdigit() else name]
            if isinstance(value, bpy.types.NodeSocket):
                self.tree.links.new(value, socket)
            else:
                socket.default_value = value
        return node

    def diffuse(self, color):
        return self.node("BsdfDiffuse", Color=color, Roughness=0.0).outputs[0]

    def velvet(self, color, sigma):
        node = self.node("BsdfSheen", Color=color, Roughness=sigma)
        node.distribution = "ASHIKHMIN"
        return node.outputs[0]

    def glossy(self, color, alpha, distribution, anisotropy=0.0):
        """Blender squares the roughness, so that alpha needs its root."""
        node = self.node("BsdfAnisotropic", Color=color, Roughness=math.sqrt(alpha), Anisotropy=anisotropy)
        node.distribution = distribution
        return node.outputs[0]

    def fresnel(self, ior):
        return self.node("Fresnel", IOR=ior).outputs[0]

    def mix(self, weight, first, second):
        return self.node("MixShader", _0=weight, _1=first, _2=second).outputs[0]

    def emission(self, strength):
        return self.node("Emission", Strength=strength).outputs[0]

    def view_depth(self):
        return self.node("CameraData").outputs["View Z Depth"]


def rubber(shader, color):
    sheen = shader.mix(shader.fresnel(1.4), shader.diffuse(color), shader.velvet(color, 0.6))
    coat = shader.glossy((0.8, 0.8, 0.8, 1.0), 0.35, "BECKMANN")
    return shader.mix(shader.fresnel(1.2), sheen, coat)


def metal(shader, color):
    broad, sharp = (shader.glossy(color, alpha, "GGX", anisotropy=0.25) for alpha in (0.2, 0.01))
    return shader.mix(0.6, broad, sharp)


MATERIALS = {"rubber": rubber, "metal": metal}


def new_material(name, surface):
    """A material whose surface is what `surface(shader)` returns."""
    material = bpy.data.materials.new(name)
    material.use_nodes = True
    tree = material.node_tree
    tree.nodes.clear()
    out = tree.nodes.new("ShaderNodeOutputMaterial")
    tree.links.new(surface(Shader(tree)), out.inputs["Surface"])
    return material


# --- the stage: our own, or the official one ----------------------------------------------------------------


class OwnStage:
    """Everything built from numbers."""

    def __init__(self, profile):
        bpy.ops.wm.read_factory_settings(use_empty=True)
        self.meshes = {}
        floor = add("Ground", stage_mesh(profile))
        gray = (STAGE_ALBEDO, STAGE_ALBEDO, STAGE_ALBEDO, 1.0)
        floor.data.materials.append(new_material("stage", lambda shader: shader.diffuse(gray)))
        self.floor = floor
        self.camera = add("Camera", bpy.data.cameras.new("Camera"))
        bpy.context.scene.camera = self.camera
        self.lamps = {name: area_lamp(name, *facts) for name, facts in AREA_LAMPS.items()}
        sun_lamp()

    def point_at(self, obj, add_object):
        """Put a camera or lamp at `location`, looking at the origin."""
        obj.location = add_object
        obj.rotation_mode = "QUATERNION"
        obj.rotation_quaternion = Vector(add_object).to_track_quat("Z", "Y")

    def shape(self, name):
        if name not in self.meshes:
            self.meshes[name] = MESHES[name]()
            self.meshes[name].use_fake_user = True  # kept when the objects of a scene are cleared away
        return add(name, self.meshes[name].copy())

    def material(self, name, color):
        return new_material(name, lambda shader: MATERIALS[name](shader, color))


class OfficialStage:
    """Everything taken from a folder of the generator's own .blend files."""

    def __init__(self, folder):
        self.folder = folder
        bpy.ops.wm.open_mainfile(filepath=str(folder / "base_scene.blend"))
        self.floor = bpy.data.objects["Ground"]
        self.camera = bpy.data.objects["Camera"]
        self.lamps = {name: bpy.data.objects[title] for name, title in ASSET_LAMPS.items()}

    def point_at(self, obj, add_object):
        """Their tracking constraints turn camera and lamps to the origin."""
        obj.location = add_object

    def shape(self, name):
        title = ASSET_SHAPES[name]
        with bpy.data.libraries.load(str(self.folder / "shapes" / f"{title}.blend")) as (_, wanted):
            wanted.objects = [title]
        obj = wanted.objects[0]
        bpy.context.scene.collection.objects.link(obj)
        return obj

    def material(self, name, color):
        title = ASSET_MATERIALS[name]
        if title not in bpy.data.node_groups:
            with bpy.data.libraries.load(str(self.folder / "materials" / f"{title}.blend")) as (_, wanted):
                wanted.node_groups = [title]

        def surface(shader):
            group = shader.tree.nodes.new("ShaderNodeGroup")
            group.node_tree = bpy.data.node_groups[title]
            group.inputs["Color"].default_value = color
            return group.outputs[0]

        return new_material(name, surface)


def add(name, data):
    obj = bpy.data.objects.new(name, data)
    bpy.context.scene.collection.objects.link(obj)
    return obj


def area_lamp(name, side, radiance, color):
    """Blender wants watts: a one-sided square of radiance L emits pi L side^2."""
    light = bpy.data.lights.new(name, "AREA")
    light.shape, light.size, light.color = "SQUARE", side, color
    light.energy = math.pi * radiance * side**2
    return add(name, light)


def sun_lamp():
    light = bpy.data.lights.new("sun", "SUN")
    light.energy, light.angle = SUN_IRRADIANCE, 2 * math.atan(SUN_RADIUS)
    sun = add("sun", light)
    sun.rotation_mode = "QUATERNION"
    sun.rotation_quaternion = Vector(SUN_DIRECTION).to_track_quat("Z", "Y")


# --- rendering ----------------------------------------------------------------------------------------------


def set_frame(stage, size, squeeze):
    """`squeeze`: pixels are wider than high, so that a square image shows the whole 4:3 frame."""
    render = bpy.context.scene.render
    render.resolution_x, render.resolution_y = size
    render.resolution_percentage = 100
    render.pixel_aspect_x, render.pixel_aspect_y = squeeze, 1.0
    lens = stage.camera.data
    lens.lens, lens.sensor_width, lens.sensor_fit = 35.0, 32.0, "HORIZONTAL"
    lens.clip_start, lens.clip_end = 0.1, 100.0


def set_light_paths(threads):
    """The generator's Cycles settings; nothing that newer versions switch on by themselves."""
    scene = bpy.context.scene
    scene.render.engine = "CYCLES"
    scene.render.threads_mode = "FIXED" if threads else "AUTO"
    scene.render.threads = threads or scene.render.threads
    cycles = scene.cycles
    cycles.device = "CPU"
    cycles.max_bounces, cycles.diffuse_bounces, cycles.glossy_bounces = 12, 4, 4
    cycles.caustics_reflective = cycles.caustics_refractive = True
    cycles.blur_glossy = 2.0
    cycles.sample_clamp_direct = cycles.sample_clamp_indirect = 0.0
    cycles.use_adaptive_sampling = cycles.use_denoising = False
    cycles.seed = 0
    black = scene.world = bpy.data.worlds.new("black")
    black.use_nodes = True
    black.node_tree.nodes["Background"].inputs["Strength"].default_value = 0.0
    scene.view_settings.look = "None"
    scene.view_settings.exposure, scene.view_settings.gamma = 0.0, 1.0
    scene.render.dither_intensity = 0.0


def render_rgb(path, samples):
    scene = bpy.context.scene
    scene.cycles.samples = samples
    scene.cycles.pixel_filter_type, scene.cycles.filter_width = "BLACKMAN_HARRIS", 1.5
    scene.view_settings.view_transform = "Standard"
    image = scene.render.image_settings
    image.file_format, image.color_mode, image.color_depth = "PNG", "RGB", "8"
    scene.render.filepath = str(path)
    bpy.ops.render.render(write_still=True)


def render_numbers(path):
    """One unfiltered sample per pixel center of whatever the materials emit, as a float array (H, W)."""
    scene = bpy.context.scene
    scene.cycles.samples = 1
    scene.cycles.pixel_filter_type, scene.cycles.filter_width = "BOX", 0.01
    scene.view_settings.view_transform = "Raw"
    image = scene.render.image_settings
    image.file_format, image.color_mode, image.color_depth = "OPEN_EXR", "RGB", "32"
    exact = path.with_suffix(".exr")
    scene.render.filepath = str(exact)
    bpy.ops.render.render(write_still=True)
    loaded = bpy.data.images.load(str(exact))
    width, height = loaded.size
    values = np.array(loaded.pixels[:], dtype=np.float32).reshape(height, width, -1)[::-1, :, 0]
    bpy.data.images.remove(loaded)
    exact.unlink()
    np.save(path, values)


def repaint(obj, material):
    obj.data.materials.clear()
    obj.data.materials.append(material)


def render_mask(path, stage, objects):
    """Object k glows with strength k; lamps give no light to what only emits, and the floor steps aside."""
    for k, obj in enumerate(objects, 1):
        repaint(obj, new_material("number", lambda shader, k=k: shader.emission(float(k))))
    stage.floor.hide_render = True
    render_numbers(path)
    stage.floor.hide_render = False


def render_depth(path, stage, objects):
    depth = new_material("depth", lambda shader: shader.emission(shader.view_depth()))
    floor_paint = list(stage.floor.data.materials)
    for obj in (*objects, stage.floor):
        repaint(obj, depth)
    render_numbers(path)
    stage.floor.data.materials.clear()
    for paint in floor_paint:
        stage.floor.data.materials.append(paint)


def add_object(stage, obj):
    """One object of the scene, standing on the floor."""
    body = stage.shape(obj["shape"])
    size = obj["size"]
    body.scale = (size, size, size)
    body.location = (*obj["xy"], size)
    body.rotation_mode = "XYZ"
    body.rotation_euler = (0.0, 0.0, obj["rotation"])
    repaint(body, stage.material(obj["material"], (*obj["color"], 1.0)))
    return body


def render_scene(stage, scene, stem, job):
    """All requested layers of one scene; `stem` is the path without layer and ending."""
    stage.point_at(stage.camera, scene["camera"])
    for name, lamp in stage.lamps.items():
        stage.point_at(lamp, scene["lights"][name])
    objects = [add_object(stage, obj) for obj in scene["objects"]]
    if "rgb" in job["layers"]:
        render_rgb(stem.with_name(f"{stem.name}_rgb.png"), job["samples"])
    if "mask" in job["layers"]:
        render_mask(stem.with_name(f"{stem.name}_mask.npy"), stage, objects)
    if "depth" in job["layers"]:
        render_depth(stem.with_name(f"{stem.name}_depth.npy"), stage, objects)
    for obj in objects:
        bpy.data.objects.remove(obj, do_unlink=True)
    bpy.ops.outliner.orphans_purge(do_recursive=True)


def main(path):
    job = json.loads(Path(path).read_text())
    stage = OfficialStage(Path(job["assets"])) if job["assets"] else OwnStage(job["profile"])
    set_light_paths(job["threads"])
    set_frame(stage, job["size"], job["squeeze"])
    for index, scene in enumerate(job["scenes"]):
        render_scene(stage, scene, Path(job["out"]) / f"{index:06d}", job)
        print(f"\ntessera: {index + 1}", flush=True)


if __name__ == "__main__":
    main(sys.argv[-1])
