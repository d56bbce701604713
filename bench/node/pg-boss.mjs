// pg-boss as a candidate: reads one request per line and answers with the seconds by its own clock.
import PgBoss from "pg-boss";
import { fill, now, payload, seconds, serve, timed } from "./protocol.mjs";

const [connectionString] = process.argv.slice(2);
const BATCH = 500;
const LOOPS = 2;
// Its shortest interval.
const polling = { batchSize: BATCH, pollingIntervalSeconds: 0.5 };

const boss = new PgBoss({ connectionString, supervise: false, schedule: false });
boss.on("error", console.error);
await boss.start();
for (const name of ["mail", "pickup"]) await boss.createQueue(name);

const addMany = (bodies) => boss.insert(bodies.map((body) => ({ name: "mail", data: body })));

// Its workers poll, so jobs are fetched and completed in batches without them, by two loops at once.
async function drain(count) {
  await fill(count, addMany);
  let handled = 0;
  const loop = async () => {
    for (;;) {
      const jobs = await boss.fetch("mail", { batchSize: BATCH });
      if (jobs.length === 0) return;
      handled += jobs.length;
      await boss.complete("mail", jobs.map(({ id }) => id));
    }
  };
  const took = await timed(() => Promise.all(Array.from({ length: LOOPS }, loop)));
  if (handled !== count) throw new Error(`handled ${handled} of ${count} jobs`);
  return took;
}

async function receive(count, ready) {
  const taken = [];
  let begin, finish;
  const begun = new Promise((resolve) => (begin = resolve));
  const finished = new Promise((resolve) => (finish = resolve));
  await boss.work("pickup", polling, async (jobs) => {
    for (const { data } of jobs) {
      if (data.sent === "0") begin();
      else taken.push(seconds(BigInt(data.sent)));
    }
    if (taken.length === count) finish();
  });
  await boss.send("pickup", { sent: "0" });
  await begun;
  ready();
  await finished;
  await boss.offWork("pickup");
  return taken;
}

const scenarios = {
  warm: drain,
  single: (count) =>
    timed(async () => {
      for (let number = 0; number < count; number++) await boss.send("mail", payload(number));
    }),
  bulk: (count) => timed(() => fill(count, addMany)),
  drain,
  send: async (count) => {
    for (let sent = 0; sent < count; sent++) await boss.send("pickup", { sent: now().toString() });
    return 0;
  },
};

await serve(scenarios, receive);
await boss.stop({ graceful: false });
