// Pixels, and the annotations drawn over them.

const SVG = "http://www.w3.org/2000/svg";

export function image(url) {
  return new Promise((done, fail) => {
    const image = new Image();
    image.onload = () => done(image);
    image.onerror = fail;
    image.src = url;
  });
}

/** Draw `image` (or its n-th square from the top) pixel for pixel. */
export function show(canvas, image, n = 0) {
  const side = image.naturalWidth;
  if (canvas.width !== side || canvas.height !== side) canvas.width = canvas.height = side;
  canvas.getContext("2d").drawImage(image, 0, n * side, side, side, 0, 0, side, side);
}

export function blank(canvas) {
  canvas.getContext("2d").clearRect(0, 0, canvas.width, canvas.height);
}

/** Base64 of little-endian float32 numbers. */
export function floats(base64) {
  return new Float32Array(Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0)).buffer);
}

/** An influence map in the colors of the figures, the root of each value, its maximum brightest. */
export function showHeat(canvas, values, side, facts) {
  canvas.width = canvas.height = side;
  const pen = canvas.getContext("2d");
  const pixels = pen.createImageData(side, side);
  const most = values.reduce((a, b) => Math.max(a, b), 1e-30);
  values.forEach((value, n) => {
    const ink = facts.heat[Math.round(255 * (value / most) ** facts.gamma)];
    for (let c = 0; c < 3; c++) pixels.data[4 * n + c] = parseInt(ink.slice(1 + 2 * c, 3 + 2 * c), 16);
    pixels.data[4 * n + 3] = 255;
  });
  pen.putImageData(pixels, 0, 0);
}

/** Black or white, whichever is easier to read on `ink`. */
export function textOn(ink) {
  const [red, green, blue] = [1, 3, 5].map((n) => parseInt(ink.slice(n, n + 2), 16) / 255);
  return 0.3 * red + 0.59 * green + 0.11 * blue > 0.6 ? "#16191c" : "#ffffff";
}

export function element(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

/** A shape twice: a white rim, then the mark itself. */
function rimmed(name, shape, mark, width) {
  return [
    element(name, { ...shape, class: "rim", "stroke-width": width + 0.9 }),
    element(name, { ...shape, class: "mark", "stroke-width": width, ...mark }),
  ];
}

export function box([left, top, right, bottom], kind, number) {
  const shape = { x: 100 * left, y: 100 * top, width: 100 * (right - left), height: 100 * (bottom - top), rx: 1 };
  const label = element("text", { x: 100 * left + 1, y: Math.max(4.5, 100 * top - 1.2), class: kind }, number);
  return [...rimmed("rect", shape, { class: `mark ${kind}` }, 0.9), label];
}

export function ring([x, y], kind) {
  return rimmed("circle", { cx: 100 * x, cy: 100 * y, r: 2.2 }, { class: `mark ${kind}` }, 0.9);
}

export function cross([x, y], ink, strength) {
  const [cx, cy, r] = [100 * x, 100 * y, 2.6];
  const d = `M${cx - r} ${cy - r}L${cx + r} ${cy + r}M${cx - r} ${cy + r}L${cx + r} ${cy - r}`;
  const both = rimmed("path", { d, "stroke-linecap": "round" }, { stroke: ink }, 1.5);
  const group = element("g", { opacity: 0.25 + 0.75 * strength });
  group.append(...both);
  return [group];
}

/** The square of 90% of the energy around a probe, `side` pixels of `size`. */
export function square([x, y], side, size) {
  const half = (50 * side) / size;
  const shape = { x: 100 * x - half, y: 100 * y - half, width: 2 * half, height: 2 * half };
  return [element("rect", { ...shape, class: "mark", stroke: "#fff", "stroke-width": 0.7, "stroke-dasharray": "2 1.4" })];
}

/** The probed pixel. */
export function target([x, y], size) {
  const [cx, cy, half] = [100 * x, 100 * y, 50 / size];
  const lines = `M${cx} ${cy - half - 5}V${cy - half - 0.8}M${cx} ${cy + half + 0.8}V${cy + half + 5}M${cx - half - 5} ${cy}H${cx - half - 0.8}M${cx + half + 0.8} ${cy}H${cx + half + 5}`;
  const pixel = { x: cx - half, y: cy - half, width: 2 * half, height: 2 * half };
  return [
    element("path", { d: lines, class: "rim", "stroke-width": 1.5 }),
    element("path", { d: lines, class: "mark", stroke: "#1b1f23", "stroke-width": 0.7 }),
    element("rect", { ...pixel, class: "mark", stroke: "#fff", "stroke-width": 0.5 }),
  ];
}
