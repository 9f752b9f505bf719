/**
 * The page's types, compared by the compiler with what the gateway's OpenAPI document describes.
 *
 * `Reads` is an error where what is sent can't be read so, or a field is read that is never sent. `Writes` is one where
 * what the page writes is not taken, or has a field that nobody knows.
 */
import type { components, operations } from "openapi";
import type * as gateway from "page/conversation/gateway.js";
import type * as page from "page/conversation/wire.js";

type Sent = components["schemas"];
type NamesOf<Shape> = Shape extends unknown ? keyof Shape : never;
type Known<Read, Sent> = { [Name in keyof Read]: Name extends NamesOf<Sent> ? unknown : never };
type Reads<Read extends Known<Read, Sent>, Sent extends Read> = [Read, Sent];
type Writes<Written extends Known<Written, Taken> & Taken, Taken> = [Written, Taken];

/** Every type of `wire.js`, under its name. */
export interface Compared {
  TurnStatus: Reads<page.TurnStatus, Sent["ConversationMessage"]["status"]>;
  SessionStatus: Reads<page.SessionStatus, Sent["ConversationUpdate"]["status"]>;
  PromptMode: Reads<page.PromptMode, Sent["QueuedPrompt"]["mode"]>;
  Decision: Reads<page.Decision, Sent["ApprovalDecided"]["decision"]>;
  Seen: Reads<page.Seen, Sent["TurnInContext"]["seen"]>;
  BlobRef: Reads<page.BlobRef, Sent["BlobRef"]>;
  Usage: Reads<page.Usage, Sent["Usage"]>;
  TurnMetrics: Reads<page.TurnMetrics, Sent["TurnMetrics"]>;
  CopyReceipt: Reads<page.CopyReceipt, Sent["CopyReceipt"]>;
  Approval: Reads<page.Approval, Sent["Approval"]>;
  Attachment: Reads<page.Attachment, Sent["CodeAttachment"] | Sent["ImageAttachment"] | Sent["FileAttachment"]>;
  ToolResult: Reads<page.ToolResult, Sent["ToolResult"]>;
  ToolCall: Reads<page.ToolCall, Sent["ToolCall"]>;
  ModelStep: Reads<page.ModelStep, Sent["ModelStep"]>;
  UserStep: Reads<page.UserStep, Sent["UserStep"]>;
  Turn: Reads<page.Turn, Sent["ConversationMessage"]>;
  SessionState: Reads<page.SessionState, Sent["ConversationUpdate"]>;
  ConversationUpdate: Reads<page.ConversationUpdate, Sent["ConversationUpdate"]>;
  FullConversation: Reads<page.FullConversation, Sent["FullConversation"]>;
  TaskStatus: Reads<page.TaskStatus, Sent["SubTask"]["status"]>;
  SubTask: Reads<page.SubTask, Sent["SubTask"]>;
  SessionInTranscript: Reads<page.SessionInTranscript, Sent["SessionSummary"]>;
  PendingApproval: Reads<page.PendingApproval, Sent["PendingApproval"]>;
  PendingApprovals: Reads<page.PendingApprovals, Sent["PendingApprovals"]>;
  QueuedPrompt: Reads<page.QueuedPrompt, Sent["QueuedPrompt"]>;
  WaitingPrompts: Reads<page.WaitingPrompts, Sent["WaitingPrompts"]>;
  Fate: Reads<page.Fate, Sent["Fate"]>;
  QueueView: Reads<page.QueueView, Sent["QueueView"]>;
  GrownPart: Reads<page.GrownPart, Sent["GrownPart"]>;
  PartialGrowth: Reads<page.PartialGrowth, Sent["PartialGrowth"]>;
  CallProgress: Reads<page.CallProgress, Sent["CallProgress"]>;
  Agent: Reads<page.Agent, Sent["Agent"]>;
  AgentList: Reads<page.AgentList, Sent["AgentList"]>;
  SessionDescription: Reads<page.SessionDescription, Sent["SessionDescription"]>;
  ListedSession: Reads<page.ListedSession, Sent["ListedSession"]>;
  SessionList: Reads<page.SessionList, Sent["SessionList"]>;
  Caller: Reads<page.Caller, Sent["CallerDescription"]>;
  Me: Reads<page.Me, Sent["Me"]>;
  TurnInContext: Reads<page.TurnInContext, Sent["TurnInContext"]>;
  SummaryInContext: Reads<page.SummaryInContext, Sent["SummaryInContext"]>;
  ContextView: Reads<page.ContextView, Sent["ContextView"]>;
}

type AnswerTo<Name extends keyof operations> = operations[Name] extends {
  responses: { 200: { content: { "application/json": infer Answer } } };
}
  ? Answer
  : never;
type BodyOf<Name extends keyof operations> = operations[Name] extends {
  requestBody?: { content: { "application/json": infer Body } };
}
  ? Body
  : never;
type Result<Call extends (...words: never[]) => unknown> = Awaited<ReturnType<Call>>;

/** What the page's functions make of the answers to the operations that they call. */
export type Answers = [
  Reads<Result<typeof gateway.listSessions>, AnswerTo<"list_sessions">>,
  Reads<Result<typeof gateway.describe>, AnswerTo<"describe_session">>,
  Reads<Result<typeof gateway.readNewest>, AnswerTo<"get_full_conversation">>,
  Reads<Result<typeof gateway.readBefore>, AnswerTo<"get_full_conversation">>,
  Reads<Result<typeof gateway.readContext>, AnswerTo<"get_context">>,
  Reads<Result<typeof gateway.readApprovals>, AnswerTo<"get_pending_approvals">>,
  Reads<Result<typeof gateway.readQueue>, AnswerTo<"get_queue">>,
];

/** What the page writes is what the operations take. */
export type Bodies = [
  Writes<Parameters<typeof gateway.startSession>[0], BodyOf<"start_session">>,
  Writes<Parameters<typeof gateway.configure>[1], BodyOf<"configure_session">>,
  Writes<Parameters<typeof gateway.decide>[2], BodyOf<"resolve_approval">>,
  Writes<page.PromptMode, NonNullable<BodyOf<"send_prompt">["mode"]>>,
];

/** That the comparison can fail: of each line the compiler has to complain, or it complains of the line above it. */
export type Wrong = [
  // @ts-expect-error: a field of another type
  Reads<{ id: number }, Sent["ToolCall"]>,
  // @ts-expect-error: null is sent too
  Reads<{ title: string }, Sent["ListedSession"]>,
  // @ts-expect-error: a value that the page does not know
  Reads<Exclude<page.TurnStatus, "failed">, Sent["ConversationMessage"]["status"]>,
  // @ts-expect-error: a field that is not sent
  Reads<{ nickname: string }, Sent["SessionDescription"]>,
  // @ts-expect-error: a field that is not sent, though the page does without
  Reads<{ nickname?: string }, Sent["SessionDescription"]>,
  // @ts-expect-error: a field that the operation does not take
  Writes<{ title: string; nickname?: string }, BodyOf<"configure_session">>,
];
