// A worker in Node, 18.17 or newer, without dependencies. docs/service-workers.md describes the protocol.
//   HOLDFAST_URL=http://127.0.0.1:8040 HOLDFAST_TOKEN=hf_… node examples/worker.mjs
// On SIGTERM it claims no more jobs and finishes those that it has.
import { randomUUID } from "node:crypto";
import { hostname } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";

const { HOLDFAST_URL: url = "http://127.0.0.1:8040", HOLDFAST_TOKEN: token } = process.env;
const worker = `${hostname()}-${process.pid}`;
const concurrency = 4;
const leaseSeconds = 30;
const stopping = new AbortController();
process.once("SIGTERM", () => stopping.abort());
process.once("SIGINT", () => stopping.abort());

// What this worker does: a function for each kind. It returns the result; an exception fails the attempt.
const handlers = {
  async "text.upper"({ text }, { emit }) {
    await emit(`${text.length} characters\n`);
    return { text: text.toUpperCase() };
  },
};

class Refused extends Error {}

// Send a call until the service has answered; every call of the protocol may be sent again.
async function call(path, body, signal) {
  for (let pause = 100; ; pause = Math.min(pause * 2, 5_000)) {
    try {
      const response = await fetch(`${url}/v1/${path}`, {
        method: "POST",
        headers: { "Content-Type": "application/json", ...(token && { Authorization: `Bearer ${token}` }) },
        body: JSON.stringify(body),
        // Longer than the longest wait: a connection that has died must not be waited for.
        signal: AbortSignal.any([AbortSignal.timeout(60_000), ...(signal ? [signal] : [])]),
      });
      const answer = await response.json();
      if (response.ok) return answer;
      if (response.status < 500 && response.status !== 408) throw new Refused(`${answer.code}: ${answer.detail}`);
    } catch (error) {
      if (error instanceof Refused || signal?.aborted) throw error;
      if (pause === 100) console.error(`${url}: ${error.cause?.message ?? error.message}; trying again`);
    }
    await sleep(pause * (0.5 + Math.random()));
  }
}

async function run({ job, epoch, lease_token }) {
  const path = `claims/${encodeURIComponent(job.id)}`;
  const lease = { epoch, lease_token };
  const lost = new AbortController();
  await call(`${path}/acknowledge`, { ...lease, lease: leaseSeconds });
  const renewing = setInterval(async () => {
    try {
      const renewal = await call(`${path}/heartbeat`, { ...lease, lease: leaseSeconds });
      if (renewal.cancel_requested) lost.abort();
    } catch {
      lost.abort();
    }
  }, (leaseSeconds * 1000) / 3);
  let outcome;
  try {
    let part = 0;
    const emit = (text) => call(`${path}/output`, { ...lease, text, part: part++ });
    // A handler that takes long checks `signal`: the job was cancelled, or another worker has it.
    const result = await handlers[job.kind](job.payload, { job, emit, signal: lost.signal });
    outcome = { outcome: "done", result: result ?? null };
  } catch (error) {
    outcome = { outcome: "failed", message: String(error?.message ?? error), traceback: error?.stack ?? null };
  } finally {
    clearInterval(renewing);
  }
  await call(`${path}/settle`, { ...lease, ...outcome });
}

async function work() {
  while (!stopping.signal.aborted) {
    // A claim with the same token returns the same job, if the answer was lost.
    const claim = { worker, kinds: Object.keys(handlers), wait: 30, lease_token: randomUUID() };
    let claimed;
    try {
      claimed = await call("claims", claim, stopping.signal);
    } catch (error) {
      if (stopping.signal.aborted) return;
      throw error;
    }
    for (const one of claimed.claims) {
      // A refused call means that the job was lost to another worker, which goes on with it.
      await run(one).catch((error) => console.error(`${one.job.id}: ${error.message}`));
    }
  }
}

try {
  await Promise.all(Array.from({ length: concurrency }, work));
} catch (error) {
  console.error(error.message);
  process.exit(1);
}
