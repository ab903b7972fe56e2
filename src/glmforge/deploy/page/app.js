// The page: which conversation is open, what is being answered, and what keys and buttons do.

import { $, announce, download, grow, iconButton, h, toast } from "./dom.js";
import { ApiError, apiKey, listModels, streamChat } from "./api.js";
import { editQuestion, messageViews } from "./messages.js";
import { openSettings, requestFields } from "./settings.js";
import { showList } from "./sidebar.js";
import { forget, keep, openStore, readSettings, recall, remember, writeSettings } from "./store.js";
import { addChunk, addNode, messagesUpTo, newConversation, pathOf, showVersion } from "./tree.js";

const KEEP_EVERY = 1000; // ms, while an answer grows
const THEMES = ["auto", "light", "dark"];
const LOST = { kind: "lost", message: "This answer was interrupted." };

let conversations = [];
let current = newConversation(readSettings());
let views = new Map();
let running = null; // { conversation, node, controller }
let following = true; // the view stays at the end

const now = () => performance.timeOrigin + performance.now();
const narrow = () => matchMedia("(max-width: 760px)").matches;
/** One answer at a time: whether another is being written, which is said. */
function busy() {
  if (running) toast("Another answer is being written.", "Stop it", stop);
  return Boolean(running);
}

// On a phone the field would bring up the keyboard.
const focusInput = () => matchMedia("(pointer: coarse)").matches || $("input").focus();
const isLive = (node) => running?.node === node;

// ---- what is shown

function refresh() {
  const path = pathOf(current);
  const made = messageViews(current, path, running?.node, actions);
  views = made.views;
  $("messages").replaceChildren(...made.elements);
  $("empty").hidden = path.length > 0;
  $("title").textContent = current.title;
  document.title = current.title ? `${current.title} · glmforge` : "glmforge";
  $("thinking").setAttribute("aria-pressed", String(current.settings.thinking));
  if (current.settings.model && [...$("model").options].some((one) => one.value === current.settings.model)) $("model").value = current.settings.model;
  showRunning();
  refreshList();
  follow();
}

function refreshList() {
  showList(conversations, current, { open, rename, remove, refresh: refreshList });
}

function showRunning() {
  const here = running?.conversation === current;
  $("stop").hidden = !here;
  $("send").hidden = here;
}

function follow() {
  if (following) $("scroll").scrollTop = $("scroll").scrollHeight;
}

function notice(text, ...more) {
  $("notice").replaceChildren(...(text ? [h("div", { class: "notice-card" }, h("span", {}, text), ...more)] : []));
}

async function save(conversation) {
  if (!conversations.includes(conversation)) return;
  try {
    await keep(conversation);
  } catch (error) {
    const full = error?.name === "QuotaExceededError";
    notice(full ? "This browser's storage is full: new messages are not kept. Export or delete conversations." : `This browser keeps no conversations: ${error?.message ?? error}`,
      iconButton("close", "Close", () => notice("")));
  }
}

// ---- answers

async function answer(parent, continued = null) {
  if (busy()) return;
  const conversation = current;
  const node = continued ?? addNode(conversation, parent, { role: "assistant" });
  const controller = new AbortController();
  running = { conversation, node, controller };
  Object.assign(node, { askedAt: now(), error: null, finish: null, stopped: false, usage: null, chunks: 0, firstAt: undefined });
  following = true;
  refresh();
  save(conversation);
  announce("Answering");
  const ticking = setInterval(() => draw(node), 200); // the duration of a thought goes on without chunks
  let kept = now();
  try {
    const body = { model: current.settings.model || $("model").value, messages: messagesUpTo(conversation, continued ? node.id : parent), ...requestFields(conversation.settings) };
    if (continued) Object.assign(body, { continue_final_message: true, add_generation_prompt: false });
    for await (const chunk of streamChat(body, controller.signal)) {
      if (addChunk(node, chunk, now())) draw(node);
      if (now() - kept > KEEP_EVERY) {
        kept = now();
        save(conversation);
      }
    }
    announce("Answer finished");
  } catch (error) {
    if (controller.signal.aborted) node.stopped = true;
    else node.error = { kind: error instanceof ApiError ? error.kind : "refused", message: error.message, retryAfter: error.retryAfter ?? null };
    announce(node.stopped ? "Stopped" : "The answer failed");
  } finally {
    clearInterval(ticking);
    node.finish ??= node.stopped || node.error ? "interrupted" : "stop";
    running = null;
    conversation.updated = Date.now();
    if (conversation === current) {
      views.get(node.id)?.update(false);
      showRunning();
      follow();
    }
    refreshList();
    await save(conversation);
  }
}

let frame = 0;
let cost = 0; // ms that the last drawing took: long answers are drawn less often

function draw(node) {
  if (frame) return;
  frame = setTimeout(() => requestAnimationFrame(() => {
    frame = 0;
    if (!isLive(node) || running.conversation !== current) return;
    const from = performance.now();
    views.get(node.id)?.update(true);
    follow();
    cost = performance.now() - from;
  }), Math.min(3 * cost, 500));
}

function send(text) {
  if (!text.trim() || busy()) return false;
  if (!conversations.includes(current)) {
    current.title = text.trim().replace(/\s+/g, " ").slice(0, 60);
    conversations.unshift(current);
  }
  const last = pathOf(current).at(-1);
  const node = addNode(current, last?.id ?? "root", { role: "user", content: text });
  answer(node.id);
  return true;
}

const actions = {
  version(node, by) {
    if (running?.conversation === current) return;
    showVersion(current, node, by);
    following = false;
    refresh();
    save(current);
    document.querySelector(`[data-node="${pathOf(current).find((one) => one.parent === node.parent)?.id}"] .versions button:enabled`)?.focus();
  },
  edit(node) {
    if (running?.conversation === current) return;
    const element = document.querySelector(`[data-node="${node.id}"]`);
    editQuestion(element, node, (text) => {
      if (text?.trim() && busy()) return;
      if (text?.trim()) answer(addNode(current, node.parent, { role: "user", content: text }).id);
      else refresh();
      $("input").focus();
    });
  },
  regenerate: (node) => answer(node.parent),
  carryOn: (node) => answer(node.parent, node),
  /** Ask again in place of an answer without text; otherwise beside it. */
  retry(node) {
    if (busy()) return;
    if (!node.content && !node.reasoning && !node.calls?.length && !node.children.length) {
      const above = current.nodes[node.parent];
      above.children = above.children.filter((id) => id !== node.id);
      above.shown = Math.max(above.children.length - 1, 0);
      delete current.nodes[node.id];
    }
    answer(node.parent);
    loadModels();
    $("input").focus();
  },
  results(node, texts) {
    if (busy()) return;
    let parent = node.id;
    texts.forEach((content, number) => {
      parent = addNode(current, parent, { role: "tool", content, call: node.calls[number].id }).id;
    });
    answer(parent);
    $("input").focus();
  },
};

const stop = () => running?.controller.abort();

// ---- conversations

function open(conversation) {
  current = conversation;
  following = true;
  refresh();
  if (narrow()) showSidebar(false);
  focusInput();
}

function rename(conversation, title) {
  conversation.title = title;
  save(conversation);
  if (conversation === current) $("title").textContent = title;
  refreshList();
}

function remove(conversation) {
  if (running?.conversation === conversation) stop();
  conversations = conversations.filter((one) => one !== conversation);
  forget(conversation.id).catch(() => {});
  if (conversation === current) current = newConversation(readSettings());
  refresh();
  $("search").focus();
  toast("Conversation deleted", "Undo", () => {
    conversations.push(conversation);
    save(conversation);
    open(conversation);
  });
}

function showSidebar(shown) {
  document.body.classList.toggle("side-closed", !shown);
  $("backdrop").hidden = !shown || !narrow();
  $("sidebar").inert = !shown;
  $("menu").setAttribute("aria-expanded", String(shown));
  if (narrow()) (shown ? $("new") : $("menu")).focus();
}

const sidebarShown = () => !document.body.classList.contains("side-closed");

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  $("theme").setAttribute("aria-label", `Theme: ${theme}`);
  $("theme").title = `Theme: ${theme}`;
  remember("glmforge.theme", theme);
}

function settings() {
  openSettings(current.settings, (changed) => {
    writeSettings(changed);
    $("thinking").setAttribute("aria-pressed", String(changed.thinking));
    save(current);
  });
}

async function loadModels() {
  try {
    const models = await listModels();
    $("model").replaceChildren(...models.map((model) => h("option", { value: model.id }, model.id)));
    $("model").disabled = models.length < 2;
    if (models.some((model) => model.id === current.settings.model)) $("model").value = current.settings.model;
    else current.settings.model = "";
    notice("");
  } catch (error) {
    if (error.kind !== "key") return notice(error.message, h("button", { type: "button", class: "link", onclick: loadModels }, "Try again"));
    const field = h("input", { type: "password", "aria-label": "API key of this server", placeholder: "API key", autocomplete: "off" });
    notice("This server wants an API key.", h("form", { class: "fault-row", onsubmit: (event) => (event.preventDefault(), apiKey(field.value), loadModels()) },
      field, h("button", { class: "primary" }, "Use key")));
  }
}

// ---- keys and buttons

function onComposerKey(event) {
  if (event.isComposing) return;
  const input = $("input");
  if (event.key === "Enter" && !event.shiftKey) {
    event.preventDefault();
    $("composer").requestSubmit();
  } else if (event.key === "ArrowUp" && !input.value) {
    const last = pathOf(current).findLast((node) => node.role === "user");
    if (!last) return;
    event.preventDefault();
    actions.edit(last);
  }
}

function onKey(event) {
  const typing = event.target.closest?.("input, textarea, select");
  if (event.key === "Escape" && !document.querySelector("dialog[open]")) {
    if (running?.conversation === current) stop();
    else if (narrow() && sidebarShown()) showSidebar(false);
    return;
  }
  if (typing || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const keys = { "?": () => $("help").showModal(), n: () => $("new").click(), "/": () => (showSidebar(true), $("search").focus()), ",": settings };
  if (!keys[event.key]) return;
  event.preventDefault();
  keys[event.key]();
}

function listen() {
  $("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    if (!send($("input").value)) return;
    $("input").value = "";
    grow($("input"));
  });
  $("input").addEventListener("keydown", onComposerKey);
  $("input").addEventListener("input", () => grow($("input")));
  $("stop").addEventListener("click", () => (stop(), $("input").focus()));
  $("new").addEventListener("click", () => open(newConversation(readSettings())));
  $("search").addEventListener("input", refreshList);
  $("export-all").addEventListener("click", () => download("conversations.json", "application/json", JSON.stringify(conversations, null, 1)));
  $("help-button").addEventListener("click", () => $("help").showModal());
  $("tune").addEventListener("click", settings);
  $("theme").addEventListener("click", () => setTheme(THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % 3]));
  $("menu").addEventListener("click", () => showSidebar(!sidebarShown()));
  $("close-side").addEventListener("click", () => showSidebar(false));
  $("backdrop").addEventListener("click", () => showSidebar(false));
  $("model").addEventListener("change", () => {
    current.settings.model = $("model").value;
    writeSettings(current.settings);
    save(current);
  });
  $("thinking").addEventListener("click", () => {
    current.settings.thinking = !current.settings.thinking;
    writeSettings(current.settings);
    $("thinking").setAttribute("aria-pressed", String(current.settings.thinking));
    save(current);
  });
  $("scroll").addEventListener("scroll", () => {
    const { scrollHeight, scrollTop, clientHeight } = $("scroll");
    following = scrollHeight - scrollTop - clientHeight < 48;
    $("latest").hidden = following;
  });
  $("latest").addEventListener("click", () => {
    following = true;
    follow();
  });
  addEventListener("keydown", onKey);
  addEventListener("pagehide", () => running && save(running.conversation));
}

async function start() {
  setTheme(THEMES.includes(recall("glmforge.theme")) ? recall("glmforge.theme") : "auto");
  if (narrow()) showSidebar(false);
  listen();
  const models = loadModels();
  try {
    conversations = await openStore();
    // A page that was closed in the middle of an answer left it without an end.
    for (const node of conversations.flatMap((one) => Object.values(one.nodes))) {
      if (node.role === "assistant" && !node.finish) Object.assign(node, { finish: "interrupted", error: LOST });
    }
  } catch (error) {
    await models;
    notice(`This browser keeps no conversations: ${error?.message ?? error}`, iconButton("close", "Close", () => notice("")));
  }
  if (location.hash !== "#new" && conversations.length) current = conversations[0];
  refresh();
  await models;
  focusInput();
  document.documentElement.dataset.ready = "true";
}

start();
