// The AI SDK's chats without React, driven from outside: commands come in on stdin, every change goes out on stdout,
// one JSON object a line.

import { createInterface } from "node:readline";
import {
  AbstractChat,
  DefaultChatTransport,
  lastAssistantMessageIsCompleteWithApprovalResponses,
} from "ai";

const chats = new Map();

function tell(event) {
  process.stdout.write(`${JSON.stringify(event)}\n`);
}

/** What React's state is to `useChat`, with a line for every change. */
class ToldState {
  #status = "ready";
  #error = undefined;
  #messages;

  constructor(chat, messages) {
    this.chat = chat;
    this.#messages = messages;
  }

  get status() {
    return this.#status;
  }

  set status(status) {
    this.#status = status;
    this.#tell();
  }

  get error() {
    return this.#error;
  }

  set error(error) {
    this.#error = error;
    this.#tell();
  }

  get messages() {
    return this.#messages;
  }

  set messages(messages) {
    this.#messages = [...messages];
    this.#tell();
  }

  pushMessage = (message) => {
    this.messages = [...this.#messages, message];
  };

  popMessage = () => {
    this.messages = this.#messages.slice(0, -1);
  };

  replaceMessage = (index, message) => {
    this.messages = this.#messages.with(index, structuredClone(message));
  };

  snapshot = (thing) => structuredClone(thing);

  #tell() {
    tell({ chat: this.chat, status: this.#status, error: this.#error?.message ?? null, messages: this.#messages });
  }
}

class Chat extends AbstractChat {
  constructor({ chat, messages = [], ...init }) {
    super({ ...init, state: new ToldState(chat, messages) });
  }
}

/** What docs/ai-sdk.md has a page do after an error. */
async function resumeIfItGoesOn(chat, url) {
  const session = await fetch(`${url}/workflow/${chat.id}`).catch(() => null);
  const isAway = session === null || session.status >= 500;
  if (isAway || (session.ok && (await session.json()).status !== "idle")) await chat.resumeStream();
}

const commands = {
  open({ chat, id, url, messages, body, headers, only_last: onlyLast, queue, resumes }) {
    const last = ({ id, messages, trigger, messageId }) => ({
      body: { id, message: messages.at(-1), trigger, messageId },
    });
    const opened = new Chat({
      chat,
      id,
      messages,
      experimental_queue: queue,
      transport: new DefaultChatTransport({
        api: `${url}/api/chat`,
        body,
        headers,
        prepareSendMessagesRequest: onlyLast ? last : undefined,
      }),
      sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithApprovalResponses,
      onFinish: ({ isAbort, isDisconnect, isError, finishReason }) =>
        tell({ chat, finish: { isAbort, isDisconnect, isError, finishReason } }),
    });
    opened.onError = resumes ? () => setTimeout(() => resumeIfItGoesOn(opened, url), 200) : undefined;
    chats.set(chat, opened);
  },
  send: ({ chat, message }) => chats.get(chat).sendMessage(message),
  approve: ({ chat, ...response }) => chats.get(chat).addToolApprovalResponse(response),
  regenerate: ({ chat, messageId }) => chats.get(chat).regenerate({ messageId }),
  resume: ({ chat }) => chats.get(chat).resumeStream(),
  stop: ({ chat }) => chats.get(chat).stop(),
};

createInterface({ input: process.stdin })
  .on("line", async (line) => {
    const { number, name, ...command } = JSON.parse(line);
    try {
      await commands[name](command);
      tell({ done: number });
    } catch (error) {
      tell({ done: number, threw: String(error) });
    }
  })
  .on("close", () => process.exit(0));
