// Drives Emmett on PostgreSQL: `node drive_emmett.mjs FOLDER WORK`, FOLDER holding node_modules.
// Takes and prints the same JSON documents as the drivers in Python (see closed_loop.py).

import { randomUUID } from "node:crypto";
import { createRequire } from "node:module";
import { join } from "node:path";
import { performance } from "node:perf_hooks";
import { setTimeout as sleep } from "node:timers/promises";

const [folder, document] = process.argv.slice(2);
const load = createRequire(join(folder, "package.json"));
const pg = load("pg");
const emmett = load("@event-driven-io/emmett-postgresql");
const { dumbo } = load("@event-driven-io/dumbo");

const work = JSON.parse(document);
const data = JSON.parse(work.data);
const PAGE = 1_000;
const DRAIN_MS = 5_000;

const percentile = (ordered, percent) =>
  ordered[Math.min(ordered.length - 1, Math.floor((ordered.length * percent) / 100))];
const ascending = (values) => [...values].sort((a, b) => a - b);
const cpuSeconds = () => {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1e6;
};

function open() {
  const pool = new pg.Pool({ connectionString: work.address, max: work.clients + 1 });
  return { pool, store: emmett.getPostgreSQLEventStore(work.address, { connectionOptions: { pool } }) };
}

async function closedLoop(client) {
  const latencies = [];
  let events = 0;
  let allEvents = 0;
  const cpu = cpuSeconds();
  const from = performance.now() + work.warm_s * 1000;
  const until = from + work.seconds * 1000;
  const loop = async (call) => {
    for (let sent = performance.now(); sent < until; sent = performance.now()) {
      const done = await call();
      const answered = performance.now();
      allEvents += done;
      if (sent >= from && answered <= until) {
        events += done;
        latencies.push(answered - sent);
      }
    }
  };
  await Promise.all(Array.from({ length: work.clients }, (_, number) => loop(client(number))));
  const ordered = ascending(latencies);
  return {
    events_per_s: events / work.seconds,
    p50_ms: percentile(ordered, 50),
    p99_ms: percentile(ordered, 99),
    client_cpu_us_per_event: ((cpuSeconds() - cpu) * 1e6) / Math.max(1, allEvents),
    all_events: allEvents,
  };
}

async function append(store) {
  let number = 0;
  return closedLoop(() => async () => {
    const events = Array.from({ length: work.batch }, () => ({ type: "placed", data }));
    await store.appendToStream(`order-${number++ % work.streams}`, events);
    return work.batch;
  });
}

async function read() {
  const reader = dumbo({ connectionString: work.address });
  const figures = await closedLoop(() => {
    let after = 0n;
    return async () => {
      const page = await emmett.readMessagesBatch(reader.execute, { after, batchSize: PAGE });
      after = page.messages.length === 0 ? 0n : page.currentGlobalPosition;
      return page.messages.length;
    };
  });
  await reader.close();
  return figures;
}

async function deliver(store) {
  const sent = new Map();
  const acknowledged = new Map();
  const seen = new Map();
  const probe = await store.appendToStream("probe", [{ type: "placed", data }]);
  const consumer = store.consumer();
  consumer.reactor({
    processorId: `bench-${randomUUID()}`,
    // "END" would begin at the store's first message.
    startFrom: { lastCheckpoint: probe.lastEventGlobalPosition },
    eachMessage: (message) => {
      seen.set(message.metadata.globalPosition, performance.now());
    },
  });
  const running = consumer.start();
  // Starting takes it a while, and what is appended before is waiting time, not delivery.
  for (let tries = 0; seen.size === 0 && tries < 100; tries++) {
    await store.appendToStream("probe", [{ type: "placed", data }]);
    await sleep(100);
  }
  await sleep(work.warm_s * 1000);
  const begun = performance.now();
  const until = begun + work.seconds * 1000;
  let next = 0;
  const client = async (number) => {
    for (;;) {
      const due = begun + (next++ / work.rate) * 1000;
      if (due >= until) return;
      const wait = due - performance.now();
      if (wait > 0) await sleep(wait);
      if (performance.now() >= until) return;
      const from = performance.now();
      const { lastEventGlobalPosition } = await store.appendToStream(`paced-${number}`, [
        { type: "placed", data },
      ]);
      acknowledged.set(lastEventGlobalPosition, performance.now());
      sent.set(lastEventGlobalPosition, from);
    }
  };
  await Promise.all(Array.from({ length: work.clients }, (_, number) => client(number)));
  const seconds = (performance.now() - begun) / 1000;
  const deadline = performance.now() + DRAIN_MS;
  const missing = () => [...acknowledged.keys()].filter((position) => !seen.has(position));
  while (missing().length > 0 && performance.now() < deadline) await sleep(10);
  // What is missing is as late as we have waited, at least.
  const ended = performance.now();
  const positions = [...acknowledged.keys()];
  const unseen = positions.filter((at) => !seen.has(at)).length;
  const seenAt = (at) => seen.get(at) ?? ended;
  const afterAck = ascending(positions.map((at) => Math.max(0, seenAt(at) - acknowledged.get(at))));
  const afterSend = ascending(positions.map((at) => seenAt(at) - sent.get(at)));
  await consumer.stop();
  await running;
  return {
    events_per_s: acknowledged.size / seconds,
    p50_ms: percentile(afterAck, 50),
    p99_ms: percentile(afterAck, 99),
    sent_p50_ms: percentile(afterSend, 50),
    sent_p99_ms: percentile(afterSend, 99),
    not_seen: unseen,
    all_events: acknowledged.size,
  };
}

const { pool, store } = open();
await store.schema.migrate();
const figures = await { append, read, deliver }[work.line](store);
console.log(JSON.stringify(figures));
await store.close();
await pool.end().catch(() => undefined);
process.exit(0);
