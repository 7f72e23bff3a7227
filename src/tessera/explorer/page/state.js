// What the person has set. It lives in the address, so that a reload, a bookmark or a restart loses nothing.

export const state = {
  mode: "places",
  places: [], // [x, y] in [0, 1]
  colors: [], // names, grouped in the server's order
  seed: 0,
  each: 1,
  steps: 18,
  how: "plain",
  radius: 2,
  hidden: [], // names of models that are switched off
  picture: 0,
  step: null, // noise level that is looked at; null: near sigma 1
  probe: null, // [x, y] of the pixel's centre
  auto: true,
  boxes: true,
};

const KEPT = Object.keys(state);
const past = []; // wishes before the present one, newest last

const wish = () => JSON.stringify([state.places, state.colors]);

/** Remember the wish before it changes. */
export function remember() {
  past.push(wish());
  if (past.length > 100) past.shift();
}

export function undo() {
  if (!past.length) return false;
  [state.places, state.colors] = JSON.parse(past.pop());
  return true;
}

export function store() {
  const kept = Object.fromEntries(KEPT.map((name) => [name, state[name]]));
  history.replaceState(null, "", "#" + encodeURIComponent(JSON.stringify(kept)));
}

/** What the address holds, entry by entry, as far as it makes sense. */
export function restore(facts) {
  let kept = {};
  try {
    kept = JSON.parse(decodeURIComponent(location.hash.slice(1)) || "{}");
  } catch {
    return; // not ours
  }
  for (const name of KEPT) if (name in kept && fits(name, kept[name], facts)) state[name] = kept[name];
}

function fits(name, value, facts) {
  const { limits } = facts;
  const isPlace = (p) => Array.isArray(p) && p.length === 2 && p.every((c) => typeof c === "number" && c >= 0 && c <= 1);
  const isWhole = (low, high) => Number.isInteger(value) && value >= low && value <= high;
  const checks = {
    mode: () => facts.models.some((model) => model.told === value),
    places: () => Array.isArray(value) && value.length <= limits.things && value.every(isPlace),
    colors: () => Array.isArray(value) && value.length <= limits.things && value.every((c) => c in facts.colors),
    seed: () => isWhole(0, limits.seed),
    each: () => isWhole(1, limits.each),
    steps: () => isWhole(1, limits.steps),
    how: () => facts.hows.includes(value),
    radius: () => isWhole(0, limits.radius),
    hidden: () => Array.isArray(value),
    picture: () => isWhole(0, limits.each - 1),
    step: () => value === null || isWhole(0, limits.steps - 1),
    probe: () => value === null || isPlace(value),
  };
  return checks[name] ? checks[name]() : typeof value === typeof state[name];
}

/** "0.65,0.65 0.25,0.65" as places, or a sentence. */
export function parsePlaces(text, most) {
  const places = [];
  for (const word of text.replaceAll(";", " ").trim().split(/\s+/).filter(Boolean)) {
    const numbers = word.split(",").map((part) => (part.trim() === "" ? NaN : Number(part)));
    if (numbers.length !== 2 || numbers.some(Number.isNaN)) return { sentence: `“${word}” is no place; write x,y such as 0.65,0.25.` };
    if (numbers.some((c) => c < 0 || c > 1)) return { sentence: `“${word}” lies outside the picture: both numbers must be within 0 and 1.` };
    places.push(numbers);
  }
  return places.length > most ? { sentence: `At most ${most} things can be asked for.` } : { places };
}

/** A whole number within limits, or a sentence. */
export function parseWhole(text, low, high, what) {
  if (!/^\s*\d+\s*$/.test(text) || Number(text) < low || Number(text) > high) {
    return { sentence: `${what} must be a whole number from ${low} to ${high}.` };
  }
  return { value: Number(text) };
}

export const inWords = (places) => places.map((place) => place.map((c) => +c.toFixed(6)).join(",")).join(" ");
