// graphile-worker as a candidate: reads one request per line and answers with the seconds by its own clock.
import { makeWorkerUtils, run } from "graphile-worker";
import pg from "pg";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";

const [connectionString] = process.argv.slice(2);
const BULK = 1000;
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

const seconds = (begun) => Number(process.hrtime.bigint() - begun) / 1e9;

function payload(number) {
  return {
    number,
    customer: "7d1f0a52-6c1e-4b8f-9a37-0d6a3ef1c2b4",
    action: "send-invoice",
    address: { street: "12 Harbour Road", town: "Port Example", country: "XX" },
    tags: ["monthly", "reminder"],
  };
}

async function fill(count) {
  for (let first = 0; first < count; first += BULK) {
    const many = Math.min(BULK, count - first);
    const jobs = Array.from({ length: many }, (_, index) => ({ identifier: "mail", payload: payload(first + index) }));
    await utils.addJobs(jobs);
  }
}

const start = (identifier, handle) => run({ preset, taskList: { [identifier]: handle }, noHandleSignals: true });

async function unsettled() {
  // Finished jobs are deleted.
  const { rows } = await watcher.query("select exists (select from graphile_worker._private_jobs) as left");
  return rows[0].left;
}

// From the start of the first job to the settlement of the last, without the start of the worker.
async function drain(count) {
  await fill(count);
  let handled = 0;
  let begun = 0n;
  let finish;
  const finished = new Promise((resolve) => (finish = resolve));
  const runner = await start("mail", () => {
    if (handled === 0) begun = process.hrtime.bigint();
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

const scenarios = {
  warm: drain,
  single: async (count) => {
    const begun = process.hrtime.bigint();
    for (let number = 0; number < count; number++) await utils.addJob("mail", payload(number));
    return seconds(begun);
  },
  bulk: async (count) => {
    const begun = process.hrtime.bigint();
    await fill(count);
    return seconds(begun);
  },
  drain,
  // The job contains a monotonic timestamp; processes of one machine share the clock.
  send: async (count) => {
    for (let sent = 0; sent < count; sent++) {
      await utils.addJob("pickup", { sent: process.hrtime.bigint().toString() });
    }
    return 0;
  },
};

async function receive(count) {
  const taken = [];
  let begin, finish;
  const ready = new Promise((resolve) => (begin = resolve));
  const finished = new Promise((resolve) => (finish = resolve));
  const runner = await start("pickup", ({ sent }) => {
    if (sent === "0") return begin();
    taken.push(Number(process.hrtime.bigint() - BigInt(sent)) / 1e9);
    if (taken.length === count) finish();
  });
  // The worker sends itself a first job; when it arrives, the worker is listening and warm.
  await utils.addJob("pickup", { sent: "0" });
  await ready;
  console.log(JSON.stringify({ ready: true }));
  await finished;
  await runner.stop();
  return taken;
}

for await (const line of createInterface({ input: process.stdin })) {
  const { scenario, count } = JSON.parse(line);
  if (scenario === "receive") console.log(JSON.stringify({ taken: await receive(count) }));
  else console.log(JSON.stringify({ seconds: await scenarios[scenario](count) }));
}
await watcher.end();
await utils.release();
