// graphile-worker as a candidate: reads one request per line and answers with the seconds by its own clock.
import { makeWorkerUtils, run } from "graphile-worker";
import pg from "pg";
import { setTimeout as sleep } from "node:timers/promises";
import { fill, now, payload, seconds, serve, timed } from "./protocol.mjs";

const [connectionString] = process.argv.slice(2);
const quiet = { scope: () => quiet, error: console.error, warn() {}, info() {}, debug() {} };
// Settings of its performance page, including batched completion.
const preset = {
  worker: {
    connectionString,
    concurrentJobs: 24,
    maxPoolSize: 25,
    localQueue: { size: 500 },
    completeJobBatchDelay: 0,
    failJobBatchDelay: 0,
    logger: quiet,
  },
};

const utils = await makeWorkerUtils({ preset });
await utils.migrate();
const watcher = new pg.Client({ connectionString });
await watcher.connect();

const addMany = (bodies) => utils.addJobs(bodies.map((body) => ({ identifier: "mail", payload: body })));
const start = (identifier, handle) => run({ preset, taskList: { [identifier]: handle }, noHandleSignals: true });

async function unsettled() {
  // Finished jobs are deleted.
  const { rows } = await watcher.query("select exists (select from graphile_worker._private_jobs) as left");
  return rows[0].left;
}

// From the start of the first job to the settlement of the last, without the start of the worker.
async function drain(count) {
  await fill(count, addMany);
  let handled = 0;
  let begun = 0n;
  let finish;
  const finished = new Promise((resolve) => (finish = resolve));
  const runner = await start("mail", () => {
    if (handled === 0) begun = now();
    handled += 1;
    if (handled === count) finish();
  });
  await finished;
  while (await unsettled()) await sleep(1);
  const took = seconds(begun);
  await runner.stop();
  if (handled !== count) throw new Error(`handled ${handled} of ${count} jobs`);
  return took;
}

async function receive(count, ready) {
  const taken = [];
  let begin, finish;
  const begun = new Promise((resolve) => (begin = resolve));
  const finished = new Promise((resolve) => (finish = resolve));
  const runner = await start("pickup", ({ sent }) => {
    if (sent === "0") return begin();
    taken.push(seconds(BigInt(sent)));
    if (taken.length === count) finish();
  });
  // The worker sends itself a first job; when it arrives, the worker is listening and warm.
  await utils.addJob("pickup", { sent: "0" });
  await begun;
  ready();
  await finished;
  await runner.stop();
  return taken;
}

const scenarios = {
  warm: drain,
  single: (count) =>
    timed(async () => {
      for (let number = 0; number < count; number++) await utils.addJob("mail", payload(number));
    }),
  bulk: (count) => timed(() => fill(count, addMany)),
  drain,
  send: async (count) => {
    for (let sent = 0; sent < count; sent++) await utils.addJob("pickup", { sent: now().toString() });
    return 0;
  },
};

await serve(scenarios, receive);
await watcher.end();
await utils.release();
