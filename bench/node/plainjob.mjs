// plainjob as a candidate: reads one request per line and answers with the seconds by its own clock.
import Database from "better-sqlite3";
import { better, defineQueue, defineWorker } from "plainjob";
import { fill, now, payload, seconds, serve, timed } from "./protocol.mjs";

const [file, durability] = process.argv.slice(2);
const quiet = { debug() {}, info() {}, warn() {}, error: console.error };
const connection = better(new Database(file));
const queue = defineQueue({ connection, logger: quiet });
// plainjob sets NORMAL; set FULL afterwards.
connection.pragma(`synchronous = ${durability === "full" ? "FULL" : "NORMAL"}`);

const addMany = (bodies) => queue.addMany("mail", bodies);

async function drain(count) {
  await fill(count, addMany);
  let handled = 0;
  const begun = now();
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

async function receive(count, ready) {
  const taken = [];
  const worker = defineWorker("pickup", (job) => void taken.push(seconds(BigInt(JSON.parse(job.data).sent))), {
    queue,
    logger: quiet,
    pollIntervall: 1,
    onCompleted: () => taken.length === count && void worker.stop(),
  });
  ready();
  await worker.start();
  return taken;
}

const scenarios = {
  // Answer after opening: if two processes open the file at the same time, one may find it locked.
  warm: () => 0,
  single: (count) =>
    timed(() => {
      for (let number = 0; number < count; number++) queue.add("mail", payload(number));
    }),
  bulk: (count) => timed(() => fill(count, addMany)),
  drain,
  "one-by-one": drain,
  send: () => {
    queue.add("pickup", { sent: now().toString() });
    return 0;
  },
};

await serve(scenarios, receive);
queue.close();
