// The page: input becomes state, state becomes requests, answers become images.

import { Board } from "./board.js";
import { commands, saveJson, savePng } from "./export.js";
import { Column, formatSigma } from "./models.js";
import * as paint from "./paint.js";
import { locationText, parseLocations, parseWhole, remember, restore, state, store, undo } from "./state.js";
import { hello, job, Lost, pulse, Refused } from "./wire.js";

const $ = (id) => document.getElementById(id);
const HINTS = {
  plain: "One call of the network with all conditions.",
  sum: "The scores of single conditions are added up.",
  project: "Each region from a call with its own condition only (Lemma 1).",
  localize: "Each cell from a call with only the conditions near it.",
};
const NAMES = { plain: "Off", sum: "Sum", project: "Project", localize: "Localize" };
const BUSY = { sample: "Sampling", trajectory: "Sampling", probe: "Probing" };
const MODES = { locations: "Locations", colors: "Colors", none: "None" };

const middling = matchMedia("(min-width: 560px) and (max-width: 820px)");
const wide = matchMedia("(min-width: 821px)");

let facts = null;
let columns = [];
let boot = null;
let connected = false;
let sampled = null; // the request whose images are on the screen; without "after every change" it is not the state's
let interrupted = false; // whether the server went away while it sampled
const running = { sample: null, trajectory: null, probe: null };
const board = new Board($("board"), { onToggle: toggle });

// --- the prompt -------------------------------------------------------------------------------------------

const shown = () => columns.filter((column) => column.card.condition_kind === state.mode && !state.hidden.includes(column.card.name));

function request() {
  const { seed, each, steps, compose, radius } = state;
  const wanted = state.mode === "colors" ? { colors: state.colors } : { locations: state.locations };
  return { models: shown().map((column) => column.card.name), ...wanted, seed, each, steps, compose, radius };
}

function toggle(cell) {
  remember();
  const kept = state.locations.filter((location) => board.cellOf(location).join() !== cell.join());
  if (kept.length < state.locations.length) state.locations = kept;
  else if (kept.length < facts.limits.objects) state.locations = [...state.locations, board.center(cell)];
  changed();
}

function setLocations(locations) {
  remember();
  state.locations = locations;
  changed();
}

function setColor(name, by) {
  remember();
  const counts = Object.keys(facts.colors).map((color) => {
    const now = state.colors.filter((one) => one === color).length;
    return [color, Math.max(0, now + (color === name ? by : 0))];
  });
  const colors = counts.flatMap(([color, count]) => Array(count).fill(color));
  if (colors.length <= facts.limits.objects) state.colors = colors;
  changed();
}

let timer = null;

/** After a change of the prompt or of the sampling. */
function changed() {
  store();
  render();
  if (state.auto) sampleSoon();
  else rest();
}

function sampleSoon() {
  clearTimeout(timer);
  timer = setTimeout(sample, 200);
  for (const one of shown()) one.begin();
  status("busy", "Sampling");
}

// --- jobs ------------------------------------------------------------------------------------------------------

/** Run a job in place of an older one of its kind, which the server then drops. */
async function run(kind, path, body, answer) {
  running[kind]?.abort();
  const stop = (running[kind] = new AbortController());
  try {
    if (!body.models.length) return false;
    for await (const event of job(path, body, stop.signal)) {
      if (stop.signal.aborted) return false;
      if (event.event === "queue") status("busy", queueText(event.ahead));
      else if (event.event === "started") status("busy", BUSY[kind]);
      else if (event.event === "refused") column(event.model)?.refused(event.sentence);
      else await answer(event);
    }
    return true;
  } catch (error) {
    if (stop.signal.aborted) return false;
    failed(error, kind);
    return false;
  } finally {
    if (running[kind] === stop) running[kind] = null;
    setTimeout(rest); // after the caller has started what follows
  }
}

/** The status when no job runs and none is about to. */
function rest() {
  if (!timer && !probeTimer && !Object.values(running).some(Boolean)) status(connected ? "well" : "lost");
}

function failed(error, kind) {
  if (error instanceof Refused) notice(error.message);
  else if (error instanceof Lost) interrupted = true;
  else throw error;
  if (kind === "sample") for (const one of shown()) one.progress(1);
}

const column = (name) => columns.find((one) => one.card.name === name);

const queueText = (ahead) =>
  ahead === 0 ? "Your job is next" : ahead === 1 ? "One job is ahead of yours" : `${ahead} jobs are ahead of yours`;

async function sample() {
  clearTimeout(timer);
  timer = null;
  stopMeasuring();
  for (const one of shown()) one.begin();
  status("busy", "Sampling");
  sampled = request();
  const whole = await run("sample", "/api/sample", sampled, async (event) => {
    if (event.event === "step") await column(event.model)?.step(event);
    if (event.event === "done") await column(event.model)?.done(event);
  });
  if (!whole) return;
  announce();
  renderMethods();
  renderBackdrop();
  renderLevels();
  measure();
}

/** The first image behind the grid, to show where a location is. */
function renderBackdrop() {
  const first = shown().find((one) => one.images);
  if (first) paint.show($("backdrop"), first.images[first.number]);
}

/** Scores in the status line, for screen readers. */
function announce() {
  const found = shown().filter((one) => one.score).map((one) => `${one.card.name} ${one.score.num_found} of ${one.score.wanted}`);
  scoreText = found.length ? `Found by the detector: ${found.join(", ")}` : "";
}

let scoreText = "";

function stopMeasuring() {
  for (const kind of ["trajectory", "probe"]) running[kind]?.abort();
}

/** The trajectories of the images on the screen, and the probe if there is one. */
async function measure() {
  const ready = shown().filter((one) => one.result);
  const body = { ...sampled, models: ready.map((one) => one.card.name), image: state.image };
  const whole = await run("trajectory", "/api/trajectory", body, (event) => event.event === "trajectory" && column(event.model)?.showTrajectory(event));
  if (whole) probe();
}

let probeTimer = null;

function probeSoon() {
  clearTimeout(probeTimer);
  probeTimer = setTimeout(probe, 120);
  if (state.probe && sigmas().length) status("busy", "Probing");
}

async function probe() {
  clearTimeout(probeTimer);
  probeTimer = null;
  const ready = shown().filter((one) => one.result && !one.probeFits());
  if (!state.probe || state.step === null || !ready.length || running.sample) return rest();
  const body = { ...sampled, models: ready.map((one) => one.card.name), image: state.image, step: state.step, at: state.probe };
  status("busy", "Probing");
  await run("probe", "/api/probe", body, (event) => event.event === "probe" && column(event.model)?.showProbe(event));
}

function setProbe(location, now) {
  state.probe = location;
  store();
  for (const one of shown()) one.render();
  renderProbeText();
  if (now) probe();
  else probeSoon();
}

function pick(number, model) {
  state.image = number;
  store();
  for (const one of shown()) one.render();
  renderBackdrop();
  column(model)?.find(".thumbs [aria-pressed=true]")?.focus();
  measure();
}

// --- noise levels ------------------------------------------------------------------------------------------------

const sigmas = () => shown().find((one) => one.result)?.result.sigmas ?? [];

function setLevel(step) {
  state.step = step;
  store();
  renderLevels();
  for (const one of shown()) {
    one.renderTrajectory();
    one.renderProbe();
  }
  probeSoon();
}

function renderLevels() {
  const levels = sigmas();
  const none = levels.length === 0;
  $("level").disabled = $("play").disabled = none;
  if (none) return;
  if (state.step === null) state.step = nearestTo(1, levels);
  state.step = Math.min(state.step, levels.length - 1);
  $("level").max = levels.length - 1;
  $("level").value = state.step;
  const [sigma, step] = [formatSigma(levels[state.step]), `step ${state.step + 1} of ${levels.length}`];
  $("level-value").querySelector("b").textContent = `σ = ${sigma}`;
  $("level-value").querySelector("span").textContent = step;
  $("level").setAttribute("aria-valuetext", `sigma ${sigma}, ${step}`);
  renderTicks(levels);
}

function nearestTo(sigma, levels) {
  const apart = levels.map((level) => Math.abs(Math.log(level / sigma)));
  return apart.indexOf(Math.min(...apart));
}

/** Round noise levels at the steps nearest to them, as far as they do not crowd. */
function renderTicks(levels) {
  const share = (sigma) => nearestTo(sigma, levels) / Math.max(levels.length - 1, 1);
  const kept = [];
  for (const sigma of [80, 20, 5, 1, 0.2, 0.02]) {
    if (!kept.length || share(sigma) - share(kept.at(-1)) > 0.11) kept.push(sigma);
  }
  const spans = kept.map((sigma) => {
    const span = document.createElement("span");
    span.textContent = sigma;
    span.style.left = `${100 * share(sigma)}%`;
    return span;
  });
  $("ticks").replaceChildren(...spans);
}

let playing = null;

function play() {
  if (playing) return void stopPlaying();
  if (state.step >= sigmas().length - 1) setLevel(0);
  playing = setInterval(() => (state.step < sigmas().length - 1 ? setLevel(state.step + 1) : stopPlaying()), 160);
  $("play").textContent = "❚❚";
  $("play").setAttribute("aria-label", "Stop");
}

function stopPlaying() {
  clearInterval(playing);
  playing = null;
  $("play").textContent = "▶";
  $("play").setAttribute("aria-label", "Play the denoising");
}

// --- what is shown ---------------------------------------------------------------------------------------------

function status(kind, message) {
  const resting = connected ? restingText() : "The server cannot be reached; trying again";
  $("status").dataset.kind = kind;
  const text = message ?? resting;
  if ($("status").lastElementChild.textContent !== text) $("status").lastElementChild.textContent = text;
}

function restingText() {
  if (sampled && JSON.stringify(request()) !== JSON.stringify(sampled)) return "Changed but not sampled yet: press Sample";
  return scoreText || `Connected, computing on ${facts?.device ?? "…"}`;
}

function notice(sentence) {
  $("notice").hidden = !sentence;
  $("notice").firstElementChild.textContent = sentence ?? "";
}

function showError(id, fields, sentence) {
  $(id).hidden = !sentence;
  $(id).textContent = sentence ?? "";
  for (const [field, wrong] of Object.entries(fields)) $(field).setAttribute("aria-invalid", String(wrong));
}

function render() {
  for (const mode of Object.keys(MODES)) $(`prompt-${mode}`).hidden = state.mode !== mode;
  renderLocations();
  renderColors();
  renderMethods();
  renderChoice($("modes"), state.mode);
  for (const name of ["seed", "each", "steps"]) if (document.activeElement !== $(name)) $(name).value = state[name];
  $("auto").checked = state.auto;
  $("boxes").checked = state.boxes;
  renderColumns();
  renderLevels();
  renderProbeText();
}

function renderLocations() {
  const cells = shown().map((one) => one.card.cells).find(Boolean) ?? board.cells;
  board.build(cells || 16, facts.locations);
  board.render(state.locations, (n) => facts.conditions[n % facts.conditions.length]);
  $("k").textContent = `K = ${state.locations.length}`;
  if (document.activeElement !== $("locations-text")) {
    $("locations-text").value = locationText(state.locations);
    showError("locations-error", { "locations-text": false });
  }
  const studied = facts.locations.slice(0, state.locations.length);
  const isStudy = JSON.stringify(studied) === JSON.stringify(state.locations);
  $("study").value = isStudy ? state.locations.length : 0;
  $("study-value").textContent = isStudy ? state.locations.length : "–";
}

function renderColors() {
  $("k-colors").textContent = `K = ${state.colors.length}`;
  for (const row of $("swatches").children) {
    const count = state.colors.filter((one) => one === row.dataset.color).length;
    row.querySelector("output").textContent = count;
    row.querySelector("button").disabled = count === 0;
  }
}

function renderMethods() {
  const possible = new Set(shown().flatMap((one) => one.card.compose_methods));
  for (const button of $("methods").children) button.disabled = !possible.has(button.dataset.value) && possible.size > 0;
  renderChoice($("methods"), state.compose);
  $("method-hint").textContent = HINTS[state.compose] + costText();
  $("radius-dial").hidden = !["project", "localize"].includes(state.compose);
  $("radius").value = state.radius;
  $("radius-value").textContent = state.radius;
}

/** The cost of the composition, once it is known. */
function costText() {
  const costs = shown().map((one) => one.result?.cost ?? 1).filter((cost) => cost > 1);
  return costs.length ? ` It takes ${Math.max(...costs).toFixed(1)} times as many network evaluations.` : "";
}

function renderChoice(group, value) {
  for (const button of group.children) {
    const chosen = button.dataset.value === value;
    button.setAttribute("aria-checked", String(chosen));
    button.tabIndex = chosen ? 0 : -1;
  }
}

function renderColumns() {
  const wanted = shown();
  const present = [...$("models").children];
  const roots = wanted.map((one) => one.root);
  if (present.length !== roots.length || present.some((root, n) => root !== roots[n])) $("models").replaceChildren(...roots);
  $("models").style.setProperty("--count", wanted.length);
  $("models").classList.toggle("pairs", middling.matches || (wanted.length === 1 && wide.matches));
  for (const one of wanted) one.render();
}

function renderProbeText() {
  const at = state.probe && state.probe.map((c) => c.toFixed(2)).join(", ");
  $("probe-text").textContent = at ? `Probe at (${at}); click another pixel to move it.` : "Click a pixel of any image to measure its pixel and condition influence.";
}

// --- building ----------------------------------------------------------------------------------------------------

function choice(group, values, names, onChoose) {
  const buttons = values.map((value) => {
    const button = document.createElement("button");
    Object.assign(button, { type: "button", textContent: names[value] });
    button.setAttribute("role", "radio");
    button.dataset.value = value;
    button.addEventListener("click", () => onChoose(value));
    return button;
  });
  group.replaceChildren(...buttons);
  group.onkeydown = (event) => {
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    const possible = buttons.filter((button) => !button.disabled);
    const next = possible[(possible.indexOf(document.activeElement) + by + possible.length) % possible.length];
    next.focus();
    next.click();
  };
}

function swatch(name, ink) {
  const row = document.createElement("li");
  row.dataset.color = name;
  const [tile, text, less, count, more] = ["i", "span", "button", "output", "button"].map((tag) => document.createElement(tag));
  tile.style.background = ink;
  text.textContent = name;
  for (const [button, sign, by] of [[less, "−", -1], [more, "+", 1]]) {
    Object.assign(button, { type: "button", textContent: sign });
    button.setAttribute("aria-label", `${by > 0 ? "One more" : "One less"} ${name}`);
    button.addEventListener("click", () => setColor(name, by));
  }
  row.append(tile, text, less, count, more);
  return row;
}

function switchFor(card) {
  const label = document.createElement("label");
  label.className = "check";
  const box = document.createElement("input");
  box.type = "checkbox";
  box.checked = !state.hidden.includes(card.name);
  box.addEventListener("change", () => {
    state.hidden = box.checked ? state.hidden.filter((name) => name !== card.name) : [...state.hidden, card.name];
    changed();
  });
  label.append(box, card.name);
  return label;
}

function renderSwitches() {
  const cards = facts.models.filter((card) => card.condition_kind === state.mode);
  $("shown").replaceChildren(...cards.map(switchFor));
}

function setMode(mode) {
  state.mode = mode;
  if (!shown().some((one) => one.card.compose_methods.includes(state.compose))) state.compose = "plain";
  renderSwitches();
  changed();
}

/** Build what depends on the server's facts. */
function build() {
  const kinds = Object.keys(MODES).filter((mode) => facts.models.some((card) => card.condition_kind === mode));
  if (!kinds.includes(state.mode)) state.mode = kinds[0];
  columns = facts.models.map((card) => new Column(card, facts, { onProbe: setProbe, onPick: pick }));
  choice($("modes"), kinds, MODES, setMode);
  $("modes").hidden = kinds.length < 2;
  choice($("methods"), facts.compose_methods, NAMES, (method) => ((state.compose = method), changed()));
  $("swatches").replaceChildren(...Object.entries(facts.colors).map(([name, ink]) => swatch(name, ink)));
  $("study").max = facts.locations.length;
  renderSwitches();
  render();
}

// --- input --------------------------------------------------------------------------------------------

function readDials() {
  const { limits } = facts;
  const read = {
    seed: parseWhole($("seed").value, 0, limits.seed, "The seed"),
    each: parseWhole($("each").value, 1, limits.each, "The number of images"),
    steps: parseWhole($("steps").value, 1, limits.steps, "The number of steps"),
  };
  const wrong = Object.fromEntries(Object.entries(read).map(([name, found]) => [name, "sentence" in found]));
  showError("dial-error", wrong, Object.values(read).find((found) => found.sentence)?.sentence);
  const before = [state.seed, state.each, state.steps].join();
  for (const [name, found] of Object.entries(read)) if ("value" in found) state[name] = found.value;
  if (state.image >= state.each) state.image = 0;
  if (before !== [state.seed, state.each, state.steps].join()) changed();
}

function readLocations() {
  const found = parseLocations($("locations-text").value, facts.limits.objects);
  showError("locations-error", { "locations-text": "sentence" in found }, found.sentence);
  if (found.locations && JSON.stringify(found.locations) !== JSON.stringify(state.locations)) setLocations(found.locations);
}

function reroll() {
  state.seed = (state.seed + 1) % (facts.limits.seed + 1);
  $("seed").value = state.seed;
  changed();
}

function takeBack() {
  if (undo()) changed();
}

const THEMES = ["auto", "light", "dark"];

function theme(name) {
  localStorage.setItem("tessera-theme", name);
  document.documentElement.style.colorScheme = name === "auto" ? "light dark" : name;
  $("theme").textContent = name[0].toUpperCase() + name.slice(1);
  $("theme").setAttribute("aria-label", `Colors: ${name === "auto" ? "as the system" : name}`);
}

function openExport() {
  $("commands").textContent = commands(shown());
  $("copied").textContent = "";
  $("export").showModal();
}

async function copy() {
  try {
    await navigator.clipboard.writeText($("commands").textContent);
    $("copied").textContent = "Copied.";
  } catch {
    getSelection().selectAllChildren($("commands"));
    $("copied").textContent = "Selected; press Ctrl-C.";
  }
}

function pressed(event) {
  const typing = event.target.closest("input[type=text], dialog");
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  const keys = {
    s: sample, r: reroll, u: takeBack, e: openExport, "?": () => $("help").showModal(),
    b: () => $("boxes").click(), "[": () => setLevel(Math.max(0, state.step - 1)), "]": () => setLevel(Math.min(sigmas().length - 1, state.step + 1)),
  };
  if (!keys[event.key] || (["[", "]"].includes(event.key) && !sigmas().length)) return;
  event.preventDefault();
  keys[event.key]();
}

function listen() {
  const on = (id, what, then) => $(id).addEventListener(what, then);
  on("study", "input", () => setLocations(facts.locations.slice(0, Number($("study").value))));
  on("locations-text", "input", readLocations);
  on("locations-text", "blur", renderLocations);
  on("undo", "click", takeBack);
  on("undo-colors", "click", takeBack);
  on("clear", "click", () => setLocations([]));
  on("clear-colors", "click", () => (remember(), (state.colors = []), changed()));
  on("radius", "input", () => ((state.radius = Number($("radius").value)), changed()));
  for (const name of ["seed", "each", "steps"]) on(name, "input", readDials);
  on("reroll", "click", reroll);
  on("sample", "click", sample);
  on("auto", "change", () => ((state.auto = $("auto").checked), store()));
  on("boxes", "change", () => ((state.boxes = $("boxes").checked), store(), shown().forEach((one) => one.render())));
  on("level", "input", () => (stopPlaying(), setLevel(Number($("level").value))));
  on("play", "click", play);
  on("theme", "click", () => theme(THEMES[(THEMES.indexOf(localStorage.getItem("tessera-theme") ?? "auto") + 1) % 3]));
  on("open-export", "click", openExport);
  on("open-help", "click", () => $("help").showModal());
  on("save-png", "click", () => savePng(shown(), sampled));
  on("save-json", "click", () => saveJson(shown(), sampled, facts));
  on("copy", "click", copy);
  for (const button of document.querySelectorAll("dialog .close")) button.addEventListener("click", () => button.closest("dialog").close());
  $("notice").lastElementChild.addEventListener("click", () => notice(null));
  document.addEventListener("keydown", pressed);
  for (const width of [middling, wide]) width.addEventListener("change", renderColumns);
}

// --- the connection -----------------------------------------------------------------------------------------

async function alive(event) {
  const again = !connected && boot !== null;
  connected = true;
  if (boot !== event.boot) await connect(boot !== null);
  else if (again) notice("Connected again.");
  boot = event.boot;
  if (interrupted && !running.sample) {
    interrupted = false;
    sample();
  }
  rest();
}

/** The first answer of a server: the first one, or one that was restarted. */
async function connect(restarted) {
  const before = JSON.stringify(facts?.models);
  facts = await hello();
  if (!restarted) return begin();
  notice("The server was restarted; the page is connected again and your settings were kept.");
  if (JSON.stringify(facts.models) !== before) build(), sample();
}

function begin() {
  Object.assign(state, facts.defaults);
  state.locations = facts.locations.slice(0, 3);
  state.probe = null;
  restore(facts);
  build();
  listen();
  sample();
}

function gone() {
  if (connected) notice("The server cannot be reached; the page keeps trying and keeps your settings.");
  connected = false;
  status("lost");
}

theme(localStorage.getItem("tessera-theme") ?? "auto");
pulse(alive, gone);
