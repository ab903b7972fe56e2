// The list of kept conversations: search, rename, export, delete.

import { $, download, h, iconButton, toast } from "./dom.js";
import { toMarkdown } from "./tree.js";

const DAY = 86_400_000;

function groupOf(time) {
  const today = new Date().setHours(0, 0, 0, 0);
  if (time >= today) return "Today";
  if (time >= today - DAY) return "Yesterday";
  return time >= today - 7 * DAY ? "This week" : "Earlier";
}

function matches(conversation, words) {
  const texts = [conversation.title, ...Object.values(conversation.nodes).map((node) => node.content ?? "")];
  const all = texts.join("\n").toLowerCase();
  return words.every((word) => all.includes(word));
}

const fileName = (title) => (title.replace(/[^\p{L}\p{N} _-]/gu, "").trim().slice(0, 60) || "conversation");

/** Export for reading, or all of it with every version. */
export function exportOne(conversation) {
  const name = fileName(conversation.title);
  download(`${name}.md`, "text/markdown", toMarkdown(conversation));
  toast("Exported as Markdown", "All versions as JSON", () => {
    download(`${name}.json`, "application/json", JSON.stringify(conversation, null, 1));
  });
}

function rename(row, conversation, actions) {
  const field = h("input", { class: "rename", "aria-label": "Title", maxlength: "120" });
  field.value = conversation.title;
  let done = false;
  const end = (keep) => {
    if (done) return;
    done = true;
    if (keep && field.value.trim()) actions.rename(conversation, field.value.trim());
    else actions.refresh();
    document.querySelector(`[data-conversation="${conversation.id}"]`)?.focus();
  };
  field.addEventListener("keydown", (event) => {
    event.stopPropagation();
    if (event.key === "Enter" && !event.isComposing) end(true);
    if (event.key === "Escape") end(false);
  });
  field.addEventListener("blur", () => end(true));
  row.replaceChildren(field);
  field.select();
}

function rowOf(conversation, current, actions) {
  const title = conversation.title || "New conversation";
  const row = h("div", { class: "row" });
  row.append(
    h("button", {
      type: "button",
      class: "row-title",
      "data-conversation": conversation.id,
      "aria-current": conversation === current && "true",
      title,
      onclick: () => actions.open(conversation),
    }, title),
    h("span", { class: "row-actions" },
      iconButton("edit", `Rename ${title}`, () => rename(row, conversation, actions)),
      iconButton("save", `Export ${title}`, () => exportOne(conversation)),
      iconButton("bin", `Delete ${title}`, () => actions.remove(conversation))),
  );
  return row;
}

/** Show the conversations that hold every word of the search. */
export function showList(conversations, current, actions) {
  const words = $("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const shown = conversations.filter((one) => matches(one, words)).sort((a, b) => b.updated - a.updated);
  const parts = [];
  let group = "";
  for (const conversation of shown) {
    if (groupOf(conversation.updated) !== group) parts.push(h("h3", {}, (group = groupOf(conversation.updated))));
    parts.push(rowOf(conversation, current, actions));
  }
  if (!shown.length) parts.push(h("p", { class: "muted" }, words.length ? "Nothing found" : "No conversations yet"));
  $("list").replaceChildren(...parts);
}
