/**
 * The types of the gateway's responses, with the fields that the page reads. A test compares them with `/docs`.
 *
 * @typedef {"processing" | "awaiting_approval" | "completed" | "failed" | "cancelled"} TurnStatus
 * @typedef {"idle" | "processing" | "awaiting_approval" | "waiting_retry" | "ending" | "ended" | "cancelled"
 *   | "terminated" | "stuck"} SessionStatus
 * @typedef {"enqueue" | "steer" | "interrupt"} PromptMode
 * @typedef {"approve" | "allow_for_session" | "reject"} Decision
 * @typedef {"verbatim" | "truncated" | "summarised" | "refused" | "retried" | "not_at_all"} Seen
 *
 * @typedef {{hash: string, chars: number}} BlobRef
 * @typedef {{input_tokens: number, output_tokens: number, cached_tokens: number, reasoning_tokens: number,
 *   estimated_tokens: number, cost: number | null}} Usage
 * @typedef {{message_count: number, estimated_tokens: number}} TurnMetrics
 * @typedef {{args_digest: string, expires_at: string, decision: Decision | "expired" | null,
 *   reason: string | null, decided_at: string | null, decided_by?: string | null}} Approval
 * @typedef {{type: "code" | "image" | "file", name?: string | null, language?: string, content?: string,
 *   media_type?: string | null, data?: string, url?: string | null, hash?: string | null,
 *   bytes?: number | null}} Attachment
 * @typedef {{outcome: string, content: string, status: "ok" | "error" | "denied" | "cancelled" | "outcome_unknown",
 *   duration_ms: number | null, blob: BlobRef | null, cut: boolean,
 *   attachments?: Attachment[]}} ToolResult
 * @typedef {{id: string, name: string, legible_args?: string | null, args_blob: BlobRef | null,
 *   approval: Approval | null, result: ToolResult | null}} ToolCall
 * @typedef {{kind: "model", number: number, thinking: string | null, thinking_blob: BlobRef | null,
 *   text: string | null, text_blob: BlobRef | null, tool_calls: ToolCall[], interrupted: boolean,
 *   model: string | null, left_out?: string}} ModelStep
 * @typedef {{kind: "user", message_id: string, content: string, attachments?: Attachment[]}} UserStep
 *
 * @typedef {object} Turn
 * @property {string} id
 * @property {string} timestamp
 * @property {string} user_message
 * @property {string} user_timestamp
 * @property {Attachment[]} [attachments]
 * @property {string | null} agent_message
 * @property {BlobRef | null} agent_message_blob
 * @property {{steps: (ModelStep | UserStep)[]} | null} reasoning_trajectory
 * @property {number} steps_omitted
 * @property {number | null} processing_time_ms
 * @property {string | null} error
 * @property {Usage | null} usage
 * @property {Usage | null} tasks_usage
 * @property {TurnMetrics | null} conversation_metrics
 * @property {TurnStatus} status
 * @property {boolean} is_complete
 * @property {string | null} [agent] the version of an agent that it ran with
 *
 * @typedef {"working" | "input_required" | "completed" | "failed" | "cancelled"} TaskStatus
 * @typedef {{task_id: string, title: string, status: TaskStatus, percent: number | null, message: string | null}} SubTask
 *
 * @typedef {object} SessionState The fields of an update that are not turns.
 * @property {boolean} is_processing
 * @property {string | null} current_message_id
 * @property {number} revision
 * @property {SessionStatus} status
 * @property {string | null} waiting_until
 * @property {string | null} waiting_reason
 * @property {number} queue_length
 * @property {string | null} [archive_time] set if no worker answered, and the archive did
 *
 * @typedef {{new_messages: Turn[], updated_messages: Turn[], last_seen_message_id: string | null, reset: boolean,
 *   tasks: SubTask[]} & SessionState} ConversationUpdate
 * @typedef {{messages: Turn[], has_more: boolean, session: SessionInTranscript} & SessionState} FullConversation
 * @typedef {{task: {parent: string | null} | null, tasks: SubTask[]}} SessionInTranscript
 *
 * @typedef {{workflow_id: string | null, call_id: string, tool: string, args_blob: BlobRef | null, args_digest: string,
 *   change: {sha256?: string | null} | null, text: string, is_whole: boolean, expires_at: string}} PendingApproval
 * @typedef {{approvals: PendingApproval[]}} PendingApprovals
 *
 * @typedef {{id: string, text: string, mode: PromptMode, attachments?: Attachment[]}} QueuedPrompt
 * @typedef {{waiting: QueuedPrompt[]}} WaitingPrompts
 * @typedef {{id: string, fate: "started" | "steered" | "withdrawn" | "discarded" | "rejected", reason?: string | null}}
 *   Fate
 * @typedef {{fates: Fate[]}} QueueView
 *
 * @typedef {{index: number, kind: "think" | "respond" | "call", text: string, omitted: number}} GrownPart
 * @typedef {{message_id: string, step: number, request: number, attempt: number, fresh: boolean,
 *   parts: GrownPart[]}} PartialGrowth
 * @typedef {{call_id: string, text: string}} CallProgress
 *
 * @typedef {{name: string, label: string, model: string | null}} Agent
 * @typedef {{agents: Agent[], default: string | null, tool_problems: Object<string, string>}} AgentList
 *
 * @typedef {{title: string | null, model: string | null, agent: string | null, status: SessionStatus, created_at: string | null,
 *   usage: Usage | null, tasks_usage: Usage | null, conversation_metrics: {max_messages: number} & TurnMetrics | null,
 *   links: {temporal: string | null}}} SessionDescription
 * @typedef {{workflow_id: string, status: "running" | "done" | "failed", reason: string | null}} CopyReceipt
 * @typedef {{workflow_id: string, title: string | null, preview: string | null, turn_count: number,
 *   cost: number | null, started_at: string, last_activity_at: string | null, closed_at: string | null,
 *   status: "open" | "awaiting_approval" | "ended" | "cancelled" | "terminated"}} ListedSession
 * @typedef {{sessions: ListedSession[], next_cursor: string | null}} SessionList
 *
 * @typedef {{tenant: string, user: string | null, role: "reader" | "writer" | "approver" | "admin"}} Caller
 * @typedef {{authentication: boolean, caller: Caller | null}} Me
 *
 * @typedef {{number: number, message_id: string | null, seen: Seen, estimated_tokens: number}} TurnInContext
 * @typedef {{text: string, turns: [number, number][], estimated_tokens: number}} SummaryInContext
 * @typedef {{message_count: number, max_messages: number, max_tokens: number | null, estimated_tokens: number,
 *   reported_tokens: number | null, fixed: {tools: string[], tools_not_offered: string[]}, summary: SummaryInContext | null,
 *   absent_tool_servers: {server: string, text: string}[], turns: TurnInContext[], has_more: boolean}} ContextView
 */

export {};
