// One column per model: its image and the verdict on it, and what goes on inside.

import * as paint from "./paint.js";
import { state } from "./state.js";

const percent = (share) => `${Math.round(100 * share)}%`;

export class Column {
  constructor(card, facts, { onProbe, onPick }) {
    Object.assign(this, { card, facts, onProbe, onPick });
    this.root = document.getElementById("model").content.firstElementChild.cloneNode(true);
    this.find = (selector) => this.root.querySelector(selector);
    this.root.dataset.model = card.name;
    this.find("h2").textContent = card.name;
    this.find(".about").textContent = aboutWords(card);
    this.find(".save").setAttribute("aria-label", `Save the image by ${card.name}, exact pixels`);
    this.find(".save").addEventListener("click", () => this.save());
    for (const [kind, words] of Object.entries(VIEWS)) this.prepare(kind, words);
    this.forget();
  }

  prepare(kind, words) {
    const frame = this.find(`.${kind} .frame`);
    frame.setAttribute("role", "application");
    frame.setAttribute("aria-label", `${words} by ${this.card.name}. Arrow keys move the probe, Enter probes.`);
    frame.addEventListener("click", (event) => {
      const here = frame.getBoundingClientRect();
      this.onProbe(this.center([(event.clientX - here.left) / here.width, (event.clientY - here.top) / here.height]), true);
    });
    frame.addEventListener("keydown", (event) => this.pressed(event));
  }

  pressed(event) {
    const far = event.shiftKey ? 4 : 1;
    const move = { ArrowLeft: [-far, 0], ArrowRight: [far, 0], ArrowUp: [0, -far], ArrowDown: [0, far] }[event.key];
    const from = state.probe ?? [0.5, 0.5];
    if (event.key === "Enter" || event.key === " ") this.onProbe(this.center(from), true);
    else if (move) this.onProbe(this.center(from.map((c, axis) => c + move[axis] / this.card.size)), false);
    else return;
    event.preventDefault();
  }

  /** The center of the pixel at a location. */
  center(location) {
    const { size } = this.card;
    return location.map((c) => (Math.max(0, Math.min(size - 1, Math.floor(c * size))) + 0.5) / size);
  }

  forget() {
    this.result = this.way = this.probed = this.images = this.sentence = null;
  }

  // -- what arrives --------------------------------------------------------------------------------------

  begin() {
    this.sentence = this.result = null;
    for (const measured of [this.way, this.probed]) if (measured) measured.past = true;
    this.root.classList.remove("refused");
    this.find(".image").classList.add("stale");
    this.stale();
    this.progress(0);
  }

  /** What was measured of other images is shown faintly until it is measured anew. */
  stale() {
    for (const kind of ["heat", "noisy", "clean"]) this.find(`.${kind}`).classList.add("stale");
  }

  progress(share) {
    const bar = this.find("progress");
    bar.value = share;
    bar.classList.toggle("idle", share >= 1);
  }

  async step(event) {
    this.progress((event.step + 1) / event.steps);
    const images = await Promise.all(event.clean.map(paint.image));
    this.images = images;
    this.find(".image").classList.remove("stale");
    this.find(".sum").textContent = `drawing, σ = ${sigmaWords(event.sigma)}`;
    this.find(".reason").textContent = "";
    this.renderImage();
  }

  async done(event) {
    const images = await Promise.all(event.images.map(paint.image));
    this.images = images;
    this.result = event;
    this.find(".image").classList.remove("stale");
    this.progress(1);
    this.render();
  }

  async watched(event) {
    const [noisy, clean] = await Promise.all([event.noisy, event.clean].map(paint.image));
    this.way = { ...event, noisy, clean };
    this.renderWay();
  }

  measured(event) {
    this.probed = { ...event, values: paint.floats(event.influence) };
    this.renderProbe();
  }

  refused(sentence) {
    this.forget();
    this.sentence = sentence;
    this.progress(1);
    this.render();
  }

  // -- what is shown -------------------------------------------------------------------------------------

  render() {
    this.renderImage();
    this.renderVerdict();
    this.renderWay();
    this.renderProbe();
  }

  get number() {
    return Math.min(state.image, (this.images?.length ?? 1) - 1);
  }

  get verdict() {
    return this.result ? this.result.verdicts[this.number] : null;
  }

  renderImage() {
    const canvas = this.find(".image canvas");
    if (this.images) paint.show(canvas, this.images[this.number]);
    else paint.blank(canvas);
    this.find(".save").disabled = !this.result;
    this.find(".image svg").replaceChildren(...this.scores(), ...this.aim());
    this.renderThumbs();
  }

  renderThumbs() {
    const images = this.images?.length > 1 ? this.images : [];
    this.find(".thumbs").replaceChildren(...images.map((image, n) => this.thumb(image, n)));
  }

  thumb(image, n) {
    const button = document.createElement("button");
    const verdict = this.result ? this.result.verdicts[n] : null;
    button.type = "button";
    button.setAttribute("aria-pressed", String(n === this.number));
    button.setAttribute("aria-label", `Image ${n + 1}${verdict ? (verdict.ok ? ", as asked" : ", not as asked") : ""}`);
    const canvas = document.createElement("canvas");
    paint.show(canvas, image);
    button.append(canvas);
    if (verdict) {
      const dot = document.createElement("i");
      dot.className = verdict.ok ? "ok" : "not";
      button.append(dot);
    }
    button.addEventListener("click", () => this.onPick(n, this.card.name));
    return button;
  }

  /** Boxes around what was found, rings where it was asked for. */
  scores() {
    if (!state.boxes || !this.verdict) return [];
    const locations = this.verdict.prompts.filter((want) => typeof want !== "string");
    const rings = locations.flatMap((location, n) => paint.ring(location, this.verdict.filled[n] ? "good" : "bad"));
    const boxes = this.verdict.detections.flatMap((found, n) => paint.box(found.box, kindOf(found), n + 1));
    return [...rings, ...boxes];
  }

  aim() {
    return state.probe ? paint.aim(state.probe, this.card.size) : [];
  }

  renderVerdict() {
    const [sum, reason] = [this.find(".sum"), this.find(".reason")];
    this.root.classList.toggle("refused", this.sentence !== null);
    if (this.sentence !== null) return void (sum.replaceChildren(), (reason.textContent = this.sentence));
    const verdict = this.verdict;
    if (!verdict) return void sum.replaceChildren();
    sum.replaceChildren(...sumParts(verdict, this.result.verdicts));
    reason.textContent = reasonWords(verdict, this.card);
  }

  renderWay() {
    const fits = this.way?.image === this.number && !this.way.past;
    const step = Math.min(state.step ?? 0, (this.way?.sigmas.length ?? 1) - 1);
    for (const kind of ["noisy", "clean"]) {
      const canvas = this.find(`.${kind} canvas`);
      if (this.way) paint.show(canvas, this.way[kind], step);
      else paint.blank(canvas);
      this.find(`.${kind}`).classList.toggle("stale", !fits);
      this.find(`.${kind} svg`).replaceChildren(...this.aim());
    }
  }

  renderProbe() {
    const canvas = this.find(".heat canvas");
    if (!this.probed) paint.blank(canvas);
    else paint.showHeat(canvas, this.probed.values, this.probed.size, this.facts);
    this.find(".heat").classList.toggle("stale", !this.probeFits());
    this.find(".heat figcaption").textContent = state.probe ? "what moves the pixel" : "click a pixel: what moves it?";
    this.find(".heat svg").replaceChildren(...this.probeScores());
    this.renderMoved();
  }

  /** Whether the heat-map belongs to the image, the level and the pixel on the screen. */
  probeFits() {
    const probed = this.probed;
    if (!probed || probed.past || !state.probe) return false;
    const [x, y] = this.center(state.probe);
    const same = Math.abs(x - (probed.col + 0.5) / probed.size) + Math.abs(y - (probed.row + 0.5) / probed.size) < 1e-9;
    return same && probed.image === this.number && probed.step === state.step;
  }

  probeScores() {
    if (!this.probed) return state.probe ? this.aim() : [];
    const { row, col, size, side90, conditions } = this.probed;
    const at = [(col + 0.5) / size, (row + 0.5) / size];
    const most = Math.max(...conditions, 1e-30);
    const crosses = this.prompts().flatMap((want, n) =>
      typeof want === "string" ? [] : paint.cross(want, this.ink(n), Math.sqrt(conditions[n] / most)),
    );
    return [...paint.square(at, side90, size), ...crosses, ...paint.aim(at, size)];
  }

  prompts() {
    return this.probed?.prompts ?? [];
  }

  ink(n) {
    const want = this.prompts()[n];
    return typeof want === "string" ? this.facts.colors[want] : this.facts.conditions[n % this.facts.conditions.length];
  }

  renderMoved() {
    const [words, bar] = [this.find(".moved p"), this.find(".bar")];
    bar.replaceChildren();
    bar.hidden = !this.probed?.conditions.some((told) => told > 0);
    if (!this.probed) return void (words.textContent = "");
    const { side90, size, conditions } = this.probed;
    const total = conditions.reduce((a, b) => a + b, 0);
    const moved = !conditions.length ? "" : total > 0 ? "; conditions:" : "; no condition moves it";
    words.textContent = `90% within ${side90} × ${side90} of ${size} pixels${moved}`;
    const shares = conditions.map((told) => (total > 0 ? told / total : 0));
    bar.append(...shares.flatMap((share, n) => (share > 0.002 ? this.segment(share, n) : [])));
    bar.setAttribute("aria-label", `Shares of the conditions: ${shares.map((s, n) => `${n + 1}: ${percent(s)}`).join(", ")}`);
  }

  segment(share, n) {
    const part = document.createElement("span");
    part.style.flexGrow = share;
    part.style.flexBasis = "0";
    part.style.background = this.ink(n);
    part.style.color = paint.textOn(this.ink(n));
    part.title = `${n + 1}: ${percent(share)}`;
    part.textContent = share > 0.08 ? `${n + 1} ${percent(share)}` : "";
    return part;
  }

  save() {
    download(`${this.card.name}-${this.result.seeds[this.number]}.png`, this.result.images[this.number]);
  }
}

const VIEWS = { image: "Image", heat: "Influence on the probed pixel", noisy: "Noisy image", clean: "Denoised image" };

export const sigmaWords = (sigma) => Number(sigma.toPrecision(2)).toString();

function aboutWords(card) {
  const parts = [card.about, card.max_train_objects && `at most ${card.max_train_objects} in training`, card.k_max && `K_max ${card.k_max}`];
  const words = parts.filter(Boolean).join("; ");
  return words ? words[0].toUpperCase() + words.slice(1) + "." : `${card.size} × ${card.size} pixels.`;
}

function kindOf(found) {
  if (!found.well_formed) return "odd";
  return found.prompt === null ? "bad" : "good";
}

function sumParts(verdict, all) {
  const badge = document.createElement("b");
  badge.className = verdict.ok ? "ok" : "not";
  badge.textContent = verdict.ok ? "as asked" : "not as asked";
  const words = [`found ${verdict.found} of ${verdict.wanted}`, `missing ${verdict.missing}`, `extra ${verdict.extra}`];
  const counts = document.createElement("span");
  counts.textContent = words.join(" · ");
  if (all.length < 2) return [badge, counts];
  const share = document.createElement("span");
  share.textContent = `(${all.filter((one) => one.ok).length} of ${all.length} images)`;
  return [badge, counts, share];
}

function reasonWords(verdict, card) {
  const sentence = verdict.reason[0].toUpperCase() + verdict.reason.slice(1) + ".";
  const allowed = verdict.ok && verdict.extra ? ` Up to ${card.extras_allowed} extra are no failure: training did not tell of all objects.` : "";
  const odd = verdict.ood > 1 ? " The detector does not know such images; do not trust it here." : "";
  return sentence + allowed + odd;
}

export function download(name, url) {
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
}
