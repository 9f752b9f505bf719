// Calls one tool through the Tasks extension's own package, and asks the test what it is asked for on the way.
// One JSON object a line: what happens to stdout, answers from stdin.
//
//   node tasks.mjs <url of /mcp> <tool> <arguments as JSON>

import { createInterface } from "node:readline";
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { createTaskSessionFromClient, DispatchError } from "@modelcontextprotocol/ext-tasks/client";

const [url, tool, args] = process.argv.slice(2);
const VERSION = "2026-07-28";
const clientInfo = { name: "turnkeeper-interop", version: "1.0.0" };
const clientCapabilities = { elicitation: { form: {} } };

const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const say = (event) => process.stdout.write(`${JSON.stringify(event)}\n`);

/** Send a request of the extension as it is: the package leaves the transport to its host. */
let requests = 0;
async function rawDispatch(request, options = {}) {
  const headers = {
    "content-type": "application/json",
    accept: "application/json, text/event-stream",
    "mcp-protocol-version": VERSION,
    "mcp-method": request.method,
    ...(request.method === "tools/call" ? { "mcp-name": request.params.name } : {}),
    ...options.context?.headers,
  };
  const body = JSON.stringify({ jsonrpc: "2.0", id: `raw-${++requests}`, ...request });
  const response = await fetch(url, { method: "POST", headers, body, signal: options.signal }).catch((error) => {
    throw new DispatchError("The gateway can't be reached", true, { cause: error });
  });
  const answer = await response.json();
  return answer.error ? { kind: "error", error: answer.error } : { kind: "result", result: answer.result };
}

const client = new Client(clientInfo, {
  capabilities: clientCapabilities,
  versionNegotiation: { mode: { pin: VERSION } },
});
await client.connect(new StreamableHTTPClientTransport(new URL(url)));

const session = createTaskSessionFromClient(client, {
  endpointId: url,
  rawDispatch,
  v2RequestFraming: { protocolVersion: VERSION, clientInfo, clientCapabilities },
  onError: (error) => say({ event: "error", message: String(error) }),
  onInputRequest: async (request) => {
    say({ event: "input", request });
    return JSON.parse((await lines.next()).value);
  },
});
const execution = await session.callTool(tool, JSON.parse(args));
say({ event: "called", kind: execution.kind, handle: execution.handle });
const { outcome } = await execution.settle();
say({ event: "settled", outcome: { ...outcome, error: outcome.error && String(outcome.error) } });
await session.close();
await client.close();
process.exit(0);
