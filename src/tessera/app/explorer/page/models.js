// One column per model: its image and score, and the trajectory and the probe behind it.

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
    this.find(".about").textContent = aboutText(card);
    this.find(".save").setAttribute("aria-label", `Save the image of ${card.name}, exact pixels`);
    this.find(".save").addEventListener("click", () => this.save());
    for (const [kind, label] of Object.entries(VIEWS)) this.prepare(kind, label);
    this.reset();
  }

  prepare(kind, label) {
    const frame = this.find(`.${kind} .frame`);
    frame.setAttribute("role", "application");
    frame.setAttribute("aria-label", `${label} of ${this.card.name}. Arrow keys move the probe, Enter probes.`);
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

  reset() {
    this.result = this.trajectory = this.probed = this.images = this.sentence = null;
  }

  // -- what arrives --------------------------------------------------------------------------------------

  begin() {
    this.sentence = this.result = null;
    for (const measured of [this.trajectory, this.probed]) if (measured) measured.outdated = true;
    this.root.classList.remove("refused");
    this.find(".image").classList.add("stale");
    this.stale();
    this.progress(0);
  }

  /** Measurements of earlier images are dimmed until they are measured again. */
  stale() {
    for (const kind of ["heat", "noisy", "denoised"]) this.find(`.${kind}`).classList.add("stale");
  }

  progress(share) {
    const bar = this.find("progress");
    bar.value = share;
    bar.classList.toggle("idle", share >= 1);
  }

  async step(event) {
    this.progress((event.step + 1) / event.steps);
    const images = await Promise.all(event.denoised.map(paint.image));
    this.images = images;
    this.find(".image").classList.remove("stale");
    this.find(".sum").textContent = `sampling, σ = ${formatSigma(event.sigma)}`;
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

  async showTrajectory(event) {
    const [noisy, denoised] = await Promise.all([event.noisy, event.denoised].map(paint.image));
    this.trajectory = { ...event, noisy, denoised };
    this.renderTrajectory();
  }

  showProbe(event) {
    this.probed = { ...event, values: paint.floats(event.influence) };
    this.renderProbe();
  }

  refused(sentence) {
    this.reset();
    this.sentence = sentence;
    this.progress(1);
    this.render();
  }

  // -- what is shown -------------------------------------------------------------------------------------

  render() {
    this.renderImage();
    this.renderScore();
    this.renderTrajectory();
    this.renderProbe();
  }

  get number() {
    return Math.min(state.image, (this.images?.length ?? 1) - 1);
  }

  get score() {
    return this.result ? this.result.scores[this.number] : null;
  }

  renderImage() {
    const canvas = this.find(".image canvas");
    if (this.images) paint.show(canvas, this.images[this.number]);
    else paint.blank(canvas);
    this.find(".save").disabled = !this.result;
    this.find(".image svg").replaceChildren(...this.annotations(), ...this.target());
    this.renderThumbs();
  }

  renderThumbs() {
    const images = this.images?.length > 1 ? this.images : [];
    this.find(".thumbs").replaceChildren(...images.map((image, n) => this.thumb(image, n)));
  }

  thumb(image, n) {
    const button = document.createElement("button");
    const score = this.result ? this.result.scores[n] : null;
    button.type = "button";
    button.setAttribute("aria-pressed", String(n === this.number));
    button.setAttribute("aria-label", `Image ${n + 1}${score ? (score.ok ? ", correct" : ", incorrect") : ""}`);
    const canvas = document.createElement("canvas");
    paint.show(canvas, image);
    button.append(canvas);
    if (score) {
      const dot = document.createElement("i");
      dot.className = score.ok ? "ok" : "not";
      button.append(dot);
    }
    button.addEventListener("click", () => this.onPick(n, this.card.name));
    return button;
  }

  /** Boxes around detections, rings at the prompt's locations. */
  annotations() {
    if (!state.boxes || !this.score) return [];
    const locations = this.score.targets.filter((target) => typeof target !== "string");
    const rings = locations.flatMap((location, n) => paint.ring(location, this.score.found[n] ? "good" : "bad"));
    const boxes = this.score.detections.flatMap((found, n) => paint.box(found.box, kindOf(found), n + 1));
    return [...rings, ...boxes];
  }

  target() {
    return state.probe ? paint.target(state.probe, this.card.size) : [];
  }

  renderScore() {
    const [sum, reason] = [this.find(".sum"), this.find(".reason")];
    this.root.classList.toggle("refused", this.sentence !== null);
    if (this.sentence !== null) return void (sum.replaceChildren(), (reason.textContent = this.sentence));
    const score = this.score;
    if (!score) return void sum.replaceChildren();
    sum.replaceChildren(...sumParts(score, this.result.scores));
    reason.textContent = reasonText(score, this.card);
  }

  renderTrajectory() {
    const fits = this.trajectory?.image === this.number && !this.trajectory.outdated;
    const step = Math.min(state.step ?? 0, (this.trajectory?.sigmas.length ?? 1) - 1);
    for (const kind of ["noisy", "denoised"]) {
      const canvas = this.find(`.${kind} canvas`);
      if (this.trajectory) paint.show(canvas, this.trajectory[kind], step);
      else paint.blank(canvas);
      this.find(`.${kind}`).classList.toggle("stale", !fits);
      this.find(`.${kind} svg`).replaceChildren(...this.target());
    }
  }

  renderProbe() {
    const canvas = this.find(".heat canvas");
    if (!this.probed) paint.blank(canvas);
    else paint.showHeat(canvas, this.probed.values, this.probed.size, this.facts);
    this.find(".heat").classList.toggle("stale", !this.probeFits());
    this.find(".heat figcaption").textContent = state.probe ? "pixel influence (Eq. 9)" : "pixel influence: click a pixel";
    this.find(".heat svg").replaceChildren(...this.probeAnnotations());
    this.renderInfluence();
  }

  /** Whether the influence map belongs to the image, the level and the pixel on the screen. */
  probeFits() {
    const probed = this.probed;
    if (!probed || probed.outdated || !state.probe) return false;
    const [x, y] = this.center(state.probe);
    const same = Math.abs(x - (probed.col + 0.5) / probed.size) + Math.abs(y - (probed.row + 0.5) / probed.size) < 1e-9;
    return same && probed.image === this.number && probed.step === state.step;
  }

  probeAnnotations() {
    if (!this.probed) return state.probe ? this.target() : [];
    const { row, col, size, side90, conditions } = this.probed;
    const at = [(col + 0.5) / size, (row + 0.5) / size];
    const most = Math.max(...conditions, 1e-30);
    const crosses = this.wanted().flatMap((want, n) =>
      typeof want === "string" ? [] : paint.cross(want, this.ink(n), Math.sqrt(conditions[n] / most)),
    );
    return [...paint.square(at, side90, size), ...crosses, ...paint.target(at, size)];
  }

  wanted() {
    return this.probed?.wanted ?? [];
  }

  ink(n) {
    const want = this.wanted()[n];
    return typeof want === "string" ? this.facts.colors[want] : this.facts.conditions[n % this.facts.conditions.length];
  }

  renderInfluence() {
    const [text, bar] = [this.find(".influence p"), this.find(".bar")];
    bar.replaceChildren();
    bar.hidden = !this.probed?.conditions.some((influence) => influence > 0);
    if (!this.probed) return void (text.textContent = "");
    const { side90, size, conditions } = this.probed;
    const total = conditions.reduce((a, b) => a + b, 0);
    const ofConditions = !conditions.length ? "" : total > 0 ? "; condition influence:" : "; no condition influences it";
    text.textContent = `90% within ${side90} × ${side90} of ${size} pixels${ofConditions}`;
    const shares = conditions.map((influence) => (total > 0 ? influence / total : 0));
    bar.append(...shares.flatMap((share, n) => (share > 0.002 ? this.segment(share, n) : [])));
    bar.setAttribute("aria-label", `Condition influence, shares: ${shares.map((s, n) => `${n + 1}: ${percent(s)}`).join(", ")}`);
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

const VIEWS = { image: "Image", heat: "Pixel influence on the probed pixel", noisy: "Noisy image", denoised: "Denoised image" };

export const formatSigma = (sigma) => Number(sigma.toPrecision(2)).toString();

function aboutText(card) {
  const parts = [card.about, card.max_train_objects && `at most ${card.max_train_objects} in training`, card.k_max && `K_max ${card.k_max}`];
  const text = parts.filter(Boolean).join("; ");
  return text ? text[0].toUpperCase() + text.slice(1) + "." : `${card.size} × ${card.size} pixels.`;
}

function kindOf(found) {
  if (!found.well_formed) return "odd";
  return found.target === null ? "bad" : "good";
}

function sumParts(score, all) {
  const badge = document.createElement("b");
  badge.className = score.ok ? "ok" : "not";
  badge.textContent = score.ok ? "correct" : "incorrect";
  const parts = [`found ${score.num_found} of ${score.wanted}`, `missing ${score.missing}`, `extra ${score.extra}`];
  const counts = document.createElement("span");
  counts.textContent = parts.join(" · ");
  if (all.length < 2) return [badge, counts];
  const share = document.createElement("span");
  share.textContent = `(${all.filter((one) => one.ok).length} of ${all.length} images correct)`;
  return [badge, counts, share];
}

function reasonText(score, card) {
  const sentence = score.reason[0].toUpperCase() + score.reason.slice(1) + ".";
  const allowed = score.ok && score.extra ? ` Up to ${card.extras_allowed} extra objects are allowed: training labeled only some objects.` : "";
  const odd = score.ood > 1 ? " The image is out of distribution for the detector, so the score is unreliable." : "";
  return sentence + allowed + odd;
}

export function download(name, url) {
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
}
