// A conversation is a tree of messages: an edited question or another answer is a sibling, and each node says which of
// its children is shown. Plain objects, kept and exported as they are.

export function newId() {
  return [...crypto.getRandomValues(new Uint8Array(12))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

export function newConversation(settings) {
  const now = Date.now();
  return { id: newId(), title: "", created: now, updated: now, settings: { ...settings }, nodes: { root: { children: [], shown: 0 } } };
}

/** Add a message below `parent`, and show it. */
export function addNode(conversation, parent, fields) {
  const node = { id: newId(), parent, children: [], shown: 0, created: Date.now(), content: "", ...fields };
  const above = conversation.nodes[parent];
  conversation.nodes[node.id] = node;
  above.shown = above.children.push(node.id) - 1;
  conversation.updated = Date.now();
  return node;
}

/** The messages shown, from the first to the last. */
export function pathOf(conversation) {
  const path = [];
  let node = conversation.nodes.root;
  while (node?.children.length) {
    node = conversation.nodes[node.children[node.shown] ?? node.children.at(-1)];
    if (node) path.push(node);
  }
  return path;
}

export const siblings = (conversation, node) => conversation.nodes[node.parent].children;

/** Show the version `by` places further. */
export function showVersion(conversation, node, by) {
  const above = conversation.nodes[node.parent];
  above.shown = Math.min(Math.max(above.children.indexOf(node.id) + by, 0), above.children.length - 1);
}

/** Messages as the API wants them. `upTo` (a node's id) is the last one. */
export function messagesUpTo(conversation, upTo) {
  const messages = [];
  if (conversation.settings.system.trim()) messages.push({ role: "system", content: conversation.settings.system });
  const nodes = [];
  for (let id = upTo; id && id !== "root"; id = conversation.nodes[id].parent) nodes.unshift(conversation.nodes[id]);
  for (const node of nodes) {
    const message = { role: node.role, content: node.content };
    if (node.role === "assistant" && node.reasoning) message.reasoning_content = node.reasoning;
    if (node.calls?.length) {
      message.tool_calls = node.calls.map(({ id, name, arguments: text }) => ({ id, type: "function", function: { name, arguments: text || "{}" } }));
    }
    if (node.role === "tool") message.tool_call_id = node.call;
    messages.push(message);
  }
  return messages;
}

/** Take a chunk of a streamed answer into its node. Returns whether it carried text. */
export function addChunk(node, chunk, now) {
  if (chunk?.usage) node.usage = chunk.usage;
  if (typeof chunk?.model === "string") node.model = chunk.model;
  const choice = chunk?.choices?.[0];
  if (!choice) return false;
  const delta = choice.delta ?? {};
  const reasoning = delta.reasoning_content ?? delta.reasoning;
  const carries = Boolean(reasoning || delta.content || delta.tool_calls?.length);
  if (carries) {
    node.firstAt ??= now;
    node.lastAt = now;
    node.chunks = (node.chunks ?? 0) + 1;
  }
  if (typeof reasoning === "string" && reasoning) {
    node.reasoning = (node.reasoning ?? "") + reasoning;
    node.thoughtFrom ??= now;
    node.thoughtTo = now;
  }
  if (typeof delta.content === "string") node.content += delta.content;
  for (const call of Array.isArray(delta.tool_calls) ? delta.tool_calls : []) addCall((node.calls ??= []), call);
  if (choice.finish_reason) node.finish = String(choice.finish_reason);
  return carries;
}

function addCall(calls, { index, id, function: called = {} }) {
  let known = calls.find((call) => call.index === (index ?? 0));
  if (!known) calls.push((known = { index: index ?? 0, id: "", name: "", arguments: "" }));
  if (id) known.id = String(id);
  if (called.name) known.name += String(called.name);
  if (called.arguments) known.arguments += typeof called.arguments === "string" ? called.arguments : JSON.stringify(called.arguments);
}

/** For reading: the messages shown, under headings. */
export function toMarkdown(conversation) {
  const parts = [`# ${conversation.title || "Conversation"}`];
  if (conversation.settings.system.trim()) parts.push(`## System\n\n${conversation.settings.system}`);
  for (const node of pathOf(conversation)) {
    parts.push(`## ${{ user: "You", assistant: node.model || "Assistant", tool: "Tool result" }[node.role]}`);
    if (node.reasoning) parts.push(node.reasoning.trim().replace(/^/gm, "> "));
    if (node.content) parts.push(node.content);
    for (const call of node.calls ?? []) parts.push(`Tool call \`${call.name}\`\n\n\`\`\`json\n${call.arguments}\n\`\`\``);
  }
  return `${parts.join("\n\n")}\n`;
}
