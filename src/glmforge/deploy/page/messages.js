// How messages look: questions, answers with thought and tool calls, and what can be done with each.

import { copyButton, grow, h, icon, iconButton, seconds } from "./dom.js";
import { apiKey } from "./api.js";
import { codeBlock, showMarkdown } from "./markdown.js";
import { siblings } from "./tree.js";

const drafts = new Map(); // results of tools being typed, by the call's node and number

function versions(conversation, node, actions) {
  const all = siblings(conversation, node);
  if (all.length < 2) return null;
  const at = all.indexOf(node.id);
  return h("span", { class: "versions", role: "group", "aria-label": "Versions" },
    iconButton("left", "Version before", () => actions.version(node, -1), { disabled: at === 0 }),
    h("span", {}, `${at + 1} / ${all.length}`),
    iconButton("right", "Next version", () => actions.version(node, 1), { disabled: at === all.length - 1 }));
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text; // not whole yet, or no JSON
  }
}

function question(conversation, node, actions) {
  return h("article", { class: "message user", role: "listitem", "aria-label": "You", "data-node": node.id },
    h("div", { class: "bubble" }, node.content),
    h("div", { class: "actions" },
      versions(conversation, node, actions),
      copyButton(() => node.content, "Copy message"),
      iconButton("edit", "Edit message", () => actions.edit(node))));
}

/** The question's bubble becomes a field. */
export function editQuestion(element, node, done) {
  const area = h("textarea", { class: "edit", "aria-label": "Edit message", rows: "1" });
  const buttons = h("div", { class: "edit-end" },
    h("button", { type: "button", class: "link", onclick: () => done(null) }, "Cancel"),
    h("button", { type: "button", class: "primary", onclick: () => done(area.value) }, "Send"));
  area.value = node.content;
  area.addEventListener("input", () => grow(area));
  area.addEventListener("keydown", (event) => {
    if (event.isComposing) return;
    if (event.key === "Escape") done(null);
    else if (event.key === "Enter" && !event.shiftKey) done(area.value);
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  element.replaceChildren(h("div", { class: "bubble editing" }, area, buttons));
  grow(area);
  area.focus();
  area.setSelectionRange(area.value.length, area.value.length);
}

/** An answer; `update()` shows what its node has become. */
class Answer {
  constructor(conversation, node, results, actions) {
    Object.assign(this, { conversation, node, results, actions });
    this.thought = h("div", { class: "thought markdown" });
    this.summary = h("summary", {});
    this.thinking = h("details", { class: "thinking", hidden: true }, this.summary, this.thought);
    this.thinking.addEventListener("toggle", () => this.thinking.open && showMarkdown(this.thought, node.reasoning ?? ""));
    this.text = h("div", { class: "markdown" });
    this.calls = h("div", { class: "calls" });
    this.end = h("div", {});
    this.element = h("article", { class: "message assistant", role: "listitem", "aria-label": "Answer", "data-node": node.id },
      this.thinking, this.text, this.calls, this.end);
  }

  update(live) {
    const { node } = this;
    const thinks = live && !node.content && !node.calls?.length;
    this.element.classList.toggle("live", live);
    this.element.classList.toggle("waiting", live && !node.reasoning && !node.content && !node.calls?.length);
    this.thinking.hidden = !node.reasoning;
    if (node.reasoning) {
      const time = seconds((thinks ? performance.timeOrigin + performance.now() : node.thoughtTo) - node.thoughtFrom);
      this.summary.textContent = thinks ? `Thinking · ${time}` : `Thought for ${time}`;
      this.summary.classList.toggle("shimmer", thinks);
      if (this.thinking.open) showMarkdown(this.thought, node.reasoning);
    }
    showMarkdown(this.text, node.content);
    this.showCalls(live);
    if (!live) this.end.replaceChildren(...[this.fault(), this.actionRow()].filter(Boolean));
  }

  showCalls(live) {
    const { calls = [] } = this.node;
    calls.forEach((call, number) => {
      const text = pretty(call.arguments);
      const shown = this.calls.children[number];
      if (shown?.text === text && shown.live === live) return;
      const card = h("section", { class: "call", "aria-label": `Tool call ${call.name}` },
        h("div", { class: "call-head" }, icon("tool"), h("span", { class: "call-name" }, call.name), h("span", { class: "muted" }, "tool call")),
        text && codeBlock(text, "json", "Arguments"), !live && this.resultOf(call, number));
      Object.assign(card, { text, live });
      if (shown) shown.replaceWith(card);
      else this.calls.append(card);
    });
    if (calls.length && !live && !this.results.length && !this.calls.querySelector(".send-results")) {
      this.calls.append(h("button", { type: "button", class: "primary send-results", onclick: () => this.sendResults() },
        calls.length > 1 ? "Send results" : "Send result"));
    }
  }

  resultOf(call, number) {
    const known = this.results[number];
    if (known) {
      return h("div", { class: "result" }, codeBlock(pretty(known.content), "json", "Result"),
        number === 0 && h("div", { class: "actions" }, versions(this.conversation, known, this.actions),
          iconButton("edit", "Edit results", () => this.editResults())));
    }
    const key = `${this.node.id}/${number}`;
    const area = h("textarea", { class: "mono", rows: "2", placeholder: "What the tool returned", "aria-label": `Result of ${call.name}` });
    area.value = drafts.get(key) ?? "";
    area.addEventListener("input", () => (drafts.set(key, area.value), grow(area)));
    area.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.sendResults();
    });
    return h("label", { class: "result" }, h("span", { class: "label" }, "Result"), area);
  }

  editResults() {
    this.results.forEach((known, number) => drafts.set(`${this.node.id}/${number}`, known.content));
    this.results = [];
    this.calls.replaceChildren();
    this.showCalls(false);
    this.calls.querySelector("textarea")?.focus();
  }

  sendResults() {
    const texts = this.node.calls.map((_, number) => drafts.get(`${this.node.id}/${number}`) ?? "");
    const empty = texts.findIndex((text) => !text.trim());
    if (empty >= 0) this.calls.querySelectorAll("textarea")[empty]?.focus();
    else this.actions.results(this.node, texts);
  }

  fault() {
    const { node, actions } = this;
    if (!node.error) return node.finish === "length" ? this.cut() : null;
    const button = (label, act, kind = "") => h("button", { type: "button", class: kind, onclick: act }, label);
    const card = h("div", { class: "fault", role: "alert" }, h("p", {}, node.error.message));
    if (node.error.kind === "key") {
      const field = h("input", { type: "password", "aria-label": "API key", placeholder: "API key", autocomplete: "off" });
      const form = h("form", { class: "fault-row", onsubmit: (event) => (event.preventDefault(), apiKey(field.value), actions.retry(node)) },
        field, h("button", { class: "primary" }, "Use key"));
      card.append(form, h("p", { class: "muted" }, "Kept until this tab is closed."));
    } else {
      const row = h("div", { class: "fault-row" });
      if (this.canGoOn()) row.append(button("Continue", () => actions.carryOn(node), "primary"));
      row.append(button(node.content || node.reasoning ? "Regenerate" : "Try again", () => actions.retry(node)));
      card.append(row);
      if (node.error.retryAfter) card.append(h("p", { class: "muted" }, `The server asks to wait ${node.error.retryAfter} s.`));
    }
    return card;
  }

  canGoOn() {
    return this.node.content && !this.node.calls?.length && !this.node.children.length;
  }

  cut() {
    return h("p", { class: "muted cut" }, "Ended at the limit of tokens. ",
      this.canGoOn() && h("button", { type: "button", class: "link", onclick: () => this.actions.carryOn(this.node) }, "Continue"));
  }

  actionRow() {
    const { node } = this;
    const facts = [];
    const tokens = node.usage?.completion_tokens ?? node.chunks;
    if (tokens) facts.push(`${node.usage ? "" : "~"}${tokens} tokens`);
    const took = (node.lastAt - node.firstAt) / 1000;
    const rate = (tokens - 1) / took; // of those after the first
    if (tokens > 1 && took > 0.02) facts.push(`${rate.toFixed(rate < 100 ? 1 : 0)} tok/s`);
    if (node.firstAt) facts.push(`first after ${seconds(node.firstAt - node.askedAt)}`);
    if (node.usage?.prompt_tokens) facts.push(`prompt ${node.usage.prompt_tokens}`);
    if (node.stopped) facts.push("stopped");
    return h("div", { class: "actions" }, versions(this.conversation, node, this.actions),
      node.content && copyButton(() => node.content, "Copy answer"),
      !node.error && iconButton("again", "Regenerate", () => this.actions.regenerate(node)),
      h("span", { class: "facts", title: node.model ?? "" }, facts.join(" · ")));
  }
}

/** Elements of a path, and the views of its answers by node. Results of tools stand in their calls' cards. */
export function messageViews(conversation, path, liveNode, actions) {
  const views = new Map();
  const elements = [];
  path.forEach((node, number) => {
    if (node.role === "user") elements.push(question(conversation, node, actions));
    if (node.role !== "assistant") return;
    const results = [];
    for (let next = number + 1; path[next]?.role === "tool"; next += 1) results.push(path[next]);
    const view = new Answer(conversation, node, results, actions);
    view.update(node === liveNode);
    views.set(node.id, view);
    elements.push(view.element);
  });
  return { elements, views };
}
