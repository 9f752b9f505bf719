// Runs scenarios of the conformance suite, one after the other, in one process: to load the suite takes longer than most
// of them. Each line of standard input is a JSON list of arguments for its command line; each line of standard output is
// what the suite printed of it, as a JSON string.

import { createInterface } from "node:readline";

const SUITE = import.meta.resolve("@modelcontextprotocol/conformance/dist/index.js");

class Exit extends Error {}

let printed = [];
let ended;

console.log = console.error = (...words) => printed.push(words.join(" "));
process.exit = () => {
  ended();
  throw new Exit();
};
process.on("unhandledRejection", (error) => {
  if (error instanceof Exit) return;
  printed.push(String(error?.stack ?? error));
  ended();
});

let count = 0;
for await (const line of createInterface({ input: process.stdin })) {
  printed = [];
  process.argv.splice(2, Infinity, ...JSON.parse(line));
  const end = new Promise((resolve) => (ended = resolve));
  await import(`${SUITE}?${(count += 1)}`); // read anew, so that it runs again
  await end;
  process.stdout.write(`${JSON.stringify(printed.join("\n"))}\n`);
}
