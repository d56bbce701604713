// A receiver of webhooks that verifies signatures, without dependencies:
//   WEBHOOK_SECRET=whsec_… node examples/webhook_receiver.mjs 8000
import { createHmac, timingSafeEqual } from "node:crypto";
import { createServer } from "node:http";

if (!process.env.WEBHOOK_SECRET || process.argv.length !== 3) {
  console.error("usage: WEBHOOK_SECRET=whsec_… node webhook_receiver.mjs PORT");
  process.exit(1);
}
const key = Buffer.from(process.env.WEBHOOK_SECRET.replace(/^whsec_/, ""), "base64");
const seen = new Set();

function verified(headers, body) {
  const { "webhook-id": id, "webhook-timestamp": sentAt, "webhook-signature": signatures } = headers;
  if (!id || !signatures || !(Math.abs(Date.now() / 1000 - Number(sentAt)) <= 300)) return false;
  const expected = Buffer.from("v1," + createHmac("sha256", key).update(`${id}.${sentAt}.`).update(body).digest("base64"));
  return signatures.split(" ").map((one) => Buffer.from(one)).some((one) => one.length === expected.length && timingSafeEqual(one, expected));
}

const server = createServer(async (request, response) => {
  const chunks = [];
  for await (const chunk of request) chunks.push(chunk);
  const body = Buffer.concat(chunks);
  if (!verified(request.headers, body)) return response.writeHead(401).end();
  // The same delivery may arrive twice. A program that must not act twice stores the id with its effect.
  if (!seen.has(request.headers["webhook-id"])) {
    seen.add(request.headers["webhook-id"]);
    const event = JSON.parse(body);
    console.log(event.type, event.data.job_id ?? "");
  }
  response.writeHead(204).end();
});
server.listen(Number(process.argv[2]), "127.0.0.1", () => console.log(`listening at port ${server.address().port}`));
