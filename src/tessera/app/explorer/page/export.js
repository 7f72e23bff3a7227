// What is on the screen, to take away: a sheet, every number, and the commands that make it again.

import { download } from "./models.js";
import { inWords, state } from "./state.js";

const TILE = 384;
const PAD = 24;
const HEAD = 96;
const FOOT = 64;
const PAPER = "#ffffff";
const INK = "#1f2429";
const QUIET = "#5f666d";

export function commands(columns) {
  const drawn = columns.filter((column) => column.result);
  const lines = drawn.flatMap((column) => [column.result.command, ...(column.probeFits() ? [column.probed.command] : [])]);
  return lines.length ? lines.join("\n") : "Nothing has been drawn yet.";
}

export function saveJson(columns, drawn, facts) {
  const models = columns.map(modelRecord);
  const { image, step, probe } = state;
  const asked = { ...drawn, image, step, probe };
  const text = JSON.stringify({ asked, models, commands: commands(columns).split("\n"), provenance: facts.provenance }, null, 1);
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
    verdicts: result?.verdicts ?? null,
    images: result?.images ?? null,
    probe: probed && { ...probed, values: undefined, influence: Array.from(probed.values) },
  };
}

/** A white sheet whatever the theme: it is meant for papers and slides. */
export async function savePng(columns, drawn) {
  const sheet = document.createElement("canvas");
  sheet.width = PAD + columns.length * (TILE + PAD);
  sheet.height = HEAD + TILE + 92 + TILE * 0.66 + FOOT;
  const pen = sheet.getContext("2d");
  pen.fillStyle = PAPER;
  pen.fillRect(0, 0, sheet.width, sheet.height);
  title(pen, drawn, sheet.width);
  for (const [n, column] of columns.entries()) await drawColumn(pen, column, PAD + n * (TILE + PAD));
  sheet.toBlob((blob) => download("explored.png", URL.createObjectURL(blob)), "image/png");
}

function title(pen, drawn, width) {
  const wanted = drawn.colors?.join(", ") ?? inWords(drawn.locations);
  const repaired = drawn.how === "plain" ? "" : `, repaired by ${drawn.how}`;
  words(pen, `Asked for ${wanted || "nothing"}`, PAD, 30, 15, INK, 600, width - 2 * PAD);
  words(pen, `seed ${drawn.seed}, image ${state.image + 1}, ${drawn.steps} steps${repaired}`, PAD, 50, 12, QUIET, 400, width - 2 * PAD);
}

async function drawColumn(pen, column, left) {
  words(pen, column.card.name, left, HEAD - 12, 15, INK, 650, TILE);
  await view(pen, column.find(".image"), left, HEAD, TILE);
  const under = HEAD + TILE;
  words(pen, [...column.find(".sum").children].map((part) => part.textContent).join("   "), left, under + 22, 13, INK, 600, TILE);
  wrapped(pen, column.find(".reason").textContent, left, under + 42, TILE);
  const [top, large] = [under + 92, TILE * 0.66];
  await view(pen, column.find(".heat"), left, top, large);
  await view(pen, column.find(".noisy"), left + large + 8, top, large / 2 - 4);
  await view(pen, column.find(".clean"), left + large + 8, top + large / 2 + 4, large / 2 - 4);
  words(pen, column.find(".moved p").textContent, left, top + large + 20, 12, QUIET, 400, TILE);
  bar(pen, column, left, top + large + 30);
}

async function view(pen, figure, left, top, side) {
  pen.imageSmoothingEnabled = false;
  pen.fillStyle = "#eceae4";
  pen.fillRect(left, top, side, side);
  pen.drawImage(figure.querySelector("canvas"), left, top, side, side);
  pen.drawImage(await scores(figure.querySelector("svg")), left, top, side, side);
}

/** The scores above a view, with their looks written into them, as a image. */
async function scores(svg) {
  const copy = svg.cloneNode(true);
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("width", TILE);
  copy.setAttribute("height", TILE);
  const [from, to] = [svg, copy].map((root) => [...root.querySelectorAll("*")]);
  from.forEach((source, n) => {
    const look = getComputedStyle(source);
    for (const name of ["stroke", "fill", "opacity", "font", "paint-order"]) to[n].style.setProperty(name, look.getPropertyValue(name));
    to[n].style.setProperty("stroke-width", look.strokeWidth);
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
  conditions.forEach((told, n) => {
    const width = total > 0 ? (TILE * told) / total : 0;
    pen.fillStyle = column.ink(n);
    pen.fillRect(x, top, Math.max(0, width - 1), 14);
    x += width;
  });
}

function words(pen, text, x, y, size, ink, weight, most) {
  pen.font = `${weight} ${size}px system-ui, sans-serif`;
  pen.fillStyle = ink;
  pen.fillText(text, x, y, most);
}

function wrapped(pen, text, x, y, most) {
  pen.font = "400 12px system-ui, sans-serif";
  let [line, row] = ["", 0];
  for (const word of text.split(" ")) {
    if (pen.measureText(`${line} ${word}`).width > most && row < 2) {
      words(pen, line, x, y + 16 * row++, 12, QUIET, 400, most);
      line = word;
    } else line = line ? `${line} ${word}` : word;
  }
  words(pen, line, x, y + 16 * row, 12, QUIET, 400, most);
}
