// The settings of a conversation: their dialog, and what they add to a request.

import { $ } from "./dom.js";
import { DEFAULTS } from "./store.js";

const form = () => $("settings").querySelector("form");

/** A list of tools from JSON: OpenAI's form, or functions alone. Throws an Error that says what is wrong. */
export function parseTools(text) {
  if (!text.trim()) return [];
  let tools;
  try {
    tools = JSON.parse(text);
  } catch (error) {
    throw new Error(`Not JSON: ${error.message}`, { cause: error });
  }
  if (!Array.isArray(tools)) tools = [tools];
  return tools.map((tool, number) => {
    const called = tool?.function ?? tool;
    if (typeof called?.name !== "string" || !called.name) throw new Error(`Tool ${number + 1} has no name`);
    return { type: "function", function: called };
  });
}

/** The fields of a request, besides its messages. Throws an Error for tools that cannot be read. */
export function requestFields(settings) {
  const fields = { chat_template_kwargs: { enable_thinking: settings.thinking } };
  const numbers = { temperature: "temperature", topP: "top_p", maxTokens: "max_tokens", seed: "seed" };
  for (const [name, wire] of Object.entries(numbers)) {
    if (settings[name] !== "" && Number.isFinite(Number(settings[name]))) fields[wire] = Number(settings[name]);
  }
  const tools = parseTools(settings.tools);
  if (tools.length) fields.tools = tools;
  return fields;
}

function check() {
  const { tools } = form().elements;
  let fault = "";
  try {
    parseTools(tools.value);
  } catch (error) {
    fault = error.message;
  }
  $("tools-error").textContent = fault;
  tools.setAttribute("aria-invalid", String(Boolean(fault)));
}

function fill(settings) {
  for (const field of form().elements) {
    if (!(field.name in DEFAULTS)) continue;
    if (field.type === "checkbox") field.checked = settings[field.name];
    else field.value = settings[field.name];
  }
  check();
}

/** Open the dialog. `change(settings)` hears of every change at once: nothing needs to be saved. */
export function openSettings(settings, change) {
  fill(settings);
  const read = () => {
    for (const field of form().elements) {
      if (!(field.name in DEFAULTS)) continue;
      if (field.type === "checkbox") settings[field.name] = field.checked;
      else if (field.validity.valid) settings[field.name] = field.value;
    }
    check();
    change(settings);
  };
  form().oninput = read;
  $("reset").onclick = () => {
    fill({ ...DEFAULTS, model: settings.model });
    read();
  };
  $("settings").showModal();
}
