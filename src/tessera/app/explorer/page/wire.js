// Requests to the server: answers as server-sent events, and a pulse that shows whether the server runs.

const page = crypto.randomUUID ? crypto.randomUUID() : String(Math.random()).slice(2);
const PATIENCE = 12000; // ms without a pulse after which the server counts as gone
const pause = (ms) => new Promise((go) => setTimeout(go, ms));

export class Refused extends Error {} // with the server's sentence
export class Lost extends Error {} // the connection broke

export async function hello() {
  return (await reach("/api/hello", {})).json();
}

/** Events {event, ...} of a job, as they come. Leaving the loop, or `signal`, makes the server drop the job. */
export async function* job(path, body, signal) {
  const headers = { "Content-Type": "application/json", "X-Page": page };
  const answer = await reach(path, { method: "POST", headers, body: JSON.stringify(body), signal });
  let ended = false;
  for await (const event of events(answer, signal)) {
    if (event.event === "error") throw new Refused(event.sentence);
    ended = event.event === "end";
    yield event;
  }
  if (!ended && !signal?.aborted) throw new Lost();
}

/** Calls `alive(event)` at every pulse and `gone()` when the server cannot be reached; tries again for ever. */
export async function pulse(alive, gone) {
  for (let wait = 300; ; wait = Math.min(wait * 1.5, 2000)) {
    const stop = new AbortController();
    let watchdog = setTimeout(() => stop.abort(), PATIENCE);
    try {
      for await (const event of events(await reach("/api/pulse", { signal: stop.signal }), stop.signal)) {
        clearTimeout(watchdog);
        watchdog = setTimeout(() => stop.abort(), PATIENCE);
        wait = 300;
        await alive(event);
      }
    } catch (error) {
      if (!(error instanceof Lost) && error.name !== "AbortError") console.warn(error);
    }
    clearTimeout(watchdog);
    gone();
    await pause(wait);
  }
}

async function reach(path, options) {
  let answer;
  try {
    answer = await fetch(path, { cache: "no-store", ...options });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new Lost();
  }
  if (answer.ok) return answer;
  const body = await answer.json().catch(() => ({}));
  throw new Refused(body.sentence ?? `The server answered ${answer.status}.`);
}

/** The events in a text/event-stream, parsed. */
async function* events(answer, signal) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      text += value;
      const blocks = text.split("\n\n");
      text = blocks.pop();
      for (const block of blocks) {
        const event = parsed(block);
        if (event) yield event;
      }
    }
  } catch (error) {
    if (signal?.aborted || error instanceof Refused) throw error;
    throw new Lost();
  } finally {
    reader.cancel().catch(() => {});
  }
}

function parsed(block) {
  const found = { event: null, data: "" };
  for (const line of block.split("\n")) {
    const colon = line.indexOf(": ");
    if (colon > 0) found[line.slice(0, colon)] = line.slice(colon + 2);
  }
  return found.event && { event: found.event, ...JSON.parse(found.data) };
}
