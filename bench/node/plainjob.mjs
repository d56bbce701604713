// plainjob as a candidate: reads one request per line and answers with the seconds by its own clock.
import Database from "better-sqlite3";
import { better, defineQueue, defineWorker } from "plainjob";
import { createInterface } from "node:readline";

const [file, durability] = process.argv.slice(2);
const BULK = 1000;
const quiet = { debug() {}, info() {}, warn() {}, error: console.error };
const connection = better(new Database(file));
const queue = defineQueue({ connection, logger: quiet });
// plainjob sets NORMAL; set FULL afterwards.
connection.pragma(`synchronous = ${durability === "full" ? "FULL" : "NORMAL"}`);

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

function enqueueEach(count) {
  for (let number = 0; number < count; number++) queue.add("mail", payload(number));
}

function fill(count) {
  for (let first = 0; first < count; first += BULK) {
    const many = Math.min(BULK, count - first);
    queue.addMany("mail", Array.from({ length: many }, (_, index) => payload(first + index)));
  }
}

async function drain(count) {
  fill(count);
  let handled = 0;
  const begun = process.hrtime.bigint();
  let took = 0;
  const worker = defineWorker("mail", (job) => void JSON.parse(job.data), {
    queue,
    logger: quiet,
    pollIntervall: 1,
    onCompleted: () => {
      handled += 1;
      if (handled === count) {
        took = seconds(begun);
        void worker.stop();
      }
    },
  });
  await worker.start();
  return took;
}

const scenarios = {
  // Answer after opening: if two processes open the file at the same time, one may find it locked.
  warm: () => 0,
  single: (count) => {
    const begun = process.hrtime.bigint();
    enqueueEach(count);
    return seconds(begun);
  },
  bulk: (count) => {
    const begun = process.hrtime.bigint();
    fill(count);
    return seconds(begun);
  },
  drain,
  "one-by-one": drain,
};

// Pick-up: the job contains a monotonic timestamp; processes of one machine share the clock.
async function receive(count) {
  const taken = [];
  const worker = defineWorker(
    "pickup",
    (job) => void taken.push(Number(process.hrtime.bigint() - BigInt(JSON.parse(job.data).sent)) / 1e9),
    { queue, logger: quiet, pollIntervall: 1, onCompleted: () => taken.length === count && void worker.stop() },
  );
  console.log(JSON.stringify({ ready: true }));
  await worker.start();
  return taken;
}

function send() {
  queue.add("pickup", { sent: process.hrtime.bigint().toString() });
  return 0;
}

for await (const line of createInterface({ input: process.stdin })) {
  const { scenario, count } = JSON.parse(line);
  if (scenario === "receive") console.log(JSON.stringify({ taken: await receive(count) }));
  else if (scenario === "send") console.log(JSON.stringify({ seconds: send() }));
  else console.log(JSON.stringify({ seconds: await scenarios[scenario](count) }));
}
queue.close();
