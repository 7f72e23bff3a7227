// The settings. They are kept in the address, so that a reload, a bookmark or a restart loses nothing.

export const state = {
  mode: "locations",
  locations: [], // [x, y] in [0, 1]
  colors: [], // names, grouped in the server's order
  seed: 0,
  each: 1,
  steps: 18,
  compose: "plain",
  radius: 2,
  hidden: [], // names of models that are switched off
  image: 0,
  step: null, // the noise level shown; null: the one nearest to sigma 1
  probe: null, // [x, y] of the pixel's center
  auto: true,
  boxes: true,
};

const KEPT = Object.keys(state);
const past = []; // earlier prompts, newest last

const prompt = () => JSON.stringify([state.locations, state.colors]);

/** Keep the prompt for `undo` before it changes. */
export function remember() {
  past.push(prompt());
  if (past.length > 100) past.shift();
}

export function undo() {
  if (!past.length) return false;
  [state.locations, state.colors] = JSON.parse(past.pop());
  return true;
}

export function store() {
  const kept = Object.fromEntries(KEPT.map((name) => [name, state[name]]));
  history.replaceState(null, "", "#" + encodeURIComponent(JSON.stringify(kept)));
}

/** Read the settings in the address, as far as they are valid. */
export function restore(facts) {
  let kept = {};
  try {
    kept = JSON.parse(decodeURIComponent(location.hash.slice(1)) || "{}");
  } catch {
    return; // not written by this page
  }
  for (const name of KEPT) if (name in kept && fits(name, kept[name], facts)) state[name] = kept[name];
}

function fits(name, value, facts) {
  const { limits } = facts;
  const isLocation = (p) => Array.isArray(p) && p.length === 2 && p.every((c) => typeof c === "number" && c >= 0 && c <= 1);
  const isWhole = (low, high) => Number.isInteger(value) && value >= low && value <= high;
  const checks = {
    mode: () => facts.models.some((model) => model.condition_kind === value),
    locations: () => Array.isArray(value) && value.length <= limits.objects && value.every(isLocation),
    colors: () => Array.isArray(value) && value.length <= limits.objects && value.every((c) => c in facts.colors),
    seed: () => isWhole(0, limits.seed),
    each: () => isWhole(1, limits.each),
    steps: () => isWhole(1, limits.steps),
    compose: () => facts.compose_methods.includes(value),
    radius: () => isWhole(0, limits.radius),
    hidden: () => Array.isArray(value),
    image: () => isWhole(0, limits.each - 1),
    step: () => value === null || isWhole(0, limits.steps - 1),
    probe: () => value === null || isLocation(value),
  };
  return checks[name] ? checks[name]() : typeof value === typeof state[name];
}

/** "0.65,0.65 0.25,0.65" as locations, or a sentence about what is wrong. */
export function parseLocations(text, most) {
  const locations = [];
  for (const word of text.replaceAll(";", " ").trim().split(/\s+/).filter(Boolean)) {
    const numbers = word.split(",").map((part) => (part.trim() === "" ? NaN : Number(part)));
    if (numbers.length !== 2 || numbers.some(Number.isNaN)) return { sentence: `“${word}” is not a location; write x,y such as 0.65,0.25.` };
    if (numbers.some((c) => c < 0 || c > 1)) return { sentence: `“${word}” lies outside the image: both numbers must be within 0 and 1.` };
    locations.push(numbers);
  }
  return locations.length > most ? { sentence: `A prompt has at most ${most} objects.` } : { locations };
}

/** A whole number within limits, or a sentence about what is wrong. */
export function parseWhole(text, low, high, what) {
  if (!/^\s*\d+\s*$/.test(text) || Number(text) < low || Number(text) > high) {
    return { sentence: `${what} must be a whole number from ${low} to ${high}.` };
  }
  return { value: Number(text) };
}

export const locationText = (locations) => locations.map((location) => location.map((c) => +c.toFixed(6)).join(",")).join(" ");
