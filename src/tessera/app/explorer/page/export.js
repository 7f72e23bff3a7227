// Exports of what is on the screen: an image, every number, and the commands that make them.

import { download } from "./models.js";
import { locationText, state } from "./state.js";

const TILE = 384;
const PAD = 24;
const HEAD = 96;
const FOOT = 64;
const PAPER = "#ffffff";
const INK = "#1f2429";
const QUIET = "#5f666d";

export function commands(columns) {
  const ready = columns.filter((column) => column.result);
  const lines = ready.flatMap((column) => [column.result.command, ...(column.probeFits() ? [column.probed.command] : [])]);
  return lines.length ? lines.join("\n") : "Nothing has been sampled yet.";
}

export function saveJson(columns, sampled, facts) {
  const models = columns.map(modelRecord);
  const { image, step, probe } = state;
  const request = { ...sampled, image, step, probe };
  const text = JSON.stringify({ request, models, commands: commands(columns).split("\n"), provenance: facts.provenance }, null, 1);
  download("explored.json", URL.createObjectURL(new Blob([text], { type: "application/json" })));
}

function modelRecord(column) {
  const { card, result, sentence } = column;
  const probed = column.probeFits() ? column.probed : null;
  return {
    name: card.name,
    refused: sentence,
    seeds: result?.seeds ?? null,
    sigmas: result?.sigmas ?? null,
    seconds: result?.seconds ?? null,
    scores: result?.scores ?? null,
    images: result?.images ?? null,
    probe: probed && { ...probed, values: undefined, influence: Array.from(probed.values) },
  };
}

/** On white whatever the theme: it is meant for papers and slides. */
export async function savePng(columns, sampled) {
  const canvas = document.createElement("canvas");
  canvas.width = PAD + columns.length * (TILE + PAD);
  canvas.height = HEAD + TILE + 92 + TILE * 0.66 + FOOT;
  const pen = canvas.getContext("2d");
  pen.fillStyle = PAPER;
  pen.fillRect(0, 0, canvas.width, canvas.height);
  title(pen, sampled, canvas.width);
  for (const [n, column] of columns.entries()) await drawColumn(pen, column, PAD + n * (TILE + PAD));
  canvas.toBlob((blob) => download("explored.png", URL.createObjectURL(blob)), "image/png");
}

function title(pen, sampled, width) {
  const wanted = sampled.colors?.join(", ") ?? locationText(sampled.locations);
  const composed = sampled.compose === "plain" ? "" : `, composed by ${sampled.compose}`;
  write(pen, `Prompt: ${wanted || "no condition"}`, PAD, 30, 15, INK, 600, width - 2 * PAD);
  write(pen, `seed ${sampled.seed}, image ${state.image + 1}, ${sampled.steps} steps${composed}`, PAD, 50, 12, QUIET, 400, width - 2 * PAD);
}

async function drawColumn(pen, column, left) {
  write(pen, column.card.name, left, HEAD - 12, 15, INK, 650, TILE);
  await view(pen, column.find(".image"), left, HEAD, TILE);
  const under = HEAD + TILE;
  write(pen, [...column.find(".sum").children].map((part) => part.textContent).join("   "), left, under + 22, 13, INK, 600, TILE);
  wrapped(pen, column.find(".reason").textContent, left, under + 42, TILE);
  const [top, large] = [under + 92, TILE * 0.66];
  await view(pen, column.find(".heat"), left, top, large);
  await view(pen, column.find(".noisy"), left + large + 8, top, large / 2 - 4);
  await view(pen, column.find(".denoised"), left + large + 8, top + large / 2 + 4, large / 2 - 4);
  write(pen, column.find(".influence p").textContent, left, top + large + 20, 12, QUIET, 400, TILE);
  bar(pen, column, left, top + large + 30);
}

async function view(pen, figure, left, top, side) {
  pen.imageSmoothingEnabled = false;
  pen.fillStyle = "#eceae4";
  pen.fillRect(left, top, side, side);
  pen.drawImage(figure.querySelector("canvas"), left, top, side, side);
  pen.drawImage(await annotations(figure.querySelector("svg")), left, top, side, side);
}

/** The annotations over a view as an image, with their computed styles. */
async function annotations(svg) {
  const copy = svg.cloneNode(true);
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("width", TILE);
  copy.setAttribute("height", TILE);
  const [from, to] = [svg, copy].map((root) => [...root.querySelectorAll("*")]);
  from.forEach((source, n) => {
    const style = getComputedStyle(source);
    for (const name of ["stroke", "fill", "opacity", "font", "paint-order"]) to[n].style.setProperty(name, style.getPropertyValue(name));
    to[n].style.setProperty("stroke-width", style.strokeWidth);
  });
  const image = new Image();
  image.src = "data:image/svg+xml," + encodeURIComponent(new XMLSerializer().serializeToString(copy));
  await image.decode();
  return image;
}

function bar(pen, column, left, top) {
  const conditions = column.probed?.conditions ?? [];
  const total = conditions.reduce((a, b) => a + b, 0);
  let x = left;
  conditions.forEach((influence, n) => {
    const width = total > 0 ? (TILE * influence) / total : 0;
    pen.fillStyle = column.ink(n);
    pen.fillRect(x, top, Math.max(0, width - 1), 14);
    x += width;
  });
}

function write(pen, text, x, y, size, ink, weight, most) {
  pen.font = `${weight} ${size}px system-ui, sans-serif`;
  pen.fillStyle = ink;
  pen.fillText(text, x, y, most);
}

function wrapped(pen, text, x, y, most) {
  pen.font = "400 12px system-ui, sans-serif";
  let [line, row] = ["", 0];
  for (const word of text.split(" ")) {
    if (pen.measureText(`${line} ${word}`).width > most && row < 2) {
      write(pen, line, x, y + 16 * row++, 12, QUIET, 400, most);
      line = word;
    } else line = line ? `${line} ${word}` : word;
  }
  write(pen, line, x, y + 16 * row, 12, QUIET, 400, most);
}
