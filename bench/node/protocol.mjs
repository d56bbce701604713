// What the candidates on Node have in common: the job body, the clock, and one line for each request and answer.
import { createInterface } from "node:readline";

const BULK = 1000;

export const now = () => process.hrtime.bigint();
export const seconds = (begun) => Number(now() - begun) / 1e9;

// The same body as that of the candidates in Python.
export function payload(number) {
  return {
    number,
    customer: "7d1f0a52-6c1e-4b8f-9a37-0d6a3ef1c2b4",
    action: "send-invoice",
    address: { street: "12 Harbour Road", town: "Port Example", country: "XX" },
    tags: ["monthly", "reminder"],
  };
}

// Pass the bodies of `count` jobs to `addMany`, a thousand at a time.
export async function fill(count, addMany) {
  for (let first = 0; first < count; first += BULK) {
    const many = Math.min(BULK, count - first);
    await addMany(Array.from({ length: many }, (_, index) => payload(first + index)));
  }
}

export async function timed(call) {
  const begun = now();
  await call();
  return seconds(begun);
}

// Answer requests until standard input ends. A scenario returns its seconds; `receive` returns the seconds that each job
// took, and calls its second argument when it is ready. The jobs of a pick-up contain a monotonic timestamp, because
// processes of one machine share the clock.
export async function serve(scenarios, receive) {
  const write = (answer) => console.log(JSON.stringify(answer));
  for await (const line of createInterface({ input: process.stdin })) {
    const { scenario, count } = JSON.parse(line);
    if (scenario === "receive") write({ taken: await receive(count, () => write({ ready: true })) });
    else write({ seconds: await scenarios[scenario](count) });
  }
}
