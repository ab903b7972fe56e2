// OpenAI's chat completions over fetch. One kind of error for everything that goes wrong.

const KEY = "glmforge.key";
const address = (path) => new URL(`v1/${path}`, document.baseURI);

export class ApiError extends Error {
  /** kind: "key" (401, 403), "busy" (429, 503), "refused" (other 4xx), "server" (5xx), "lost" (the connection). */
  constructor(kind, message, retryAfter = null) {
    super(message);
    this.kind = kind;
    this.retryAfter = retryAfter;
  }
}

export function apiKey(value) {
  try {
    if (value === undefined) return sessionStorage.getItem(KEY) ?? "";
    sessionStorage.setItem(KEY, value.trim());
  } catch {
    apiKey.kept = value ?? apiKey.kept ?? ""; // storage is blocked: as long as the page lives
  }
  return apiKey.kept ?? "";
}

async function request(path, options = {}) {
  const headers = { "Content-Type": "application/json" };
  // A header takes Latin-1 only; a key of other characters cannot be right, which the server says.
  if (apiKey()) headers.Authorization = `Bearer ${apiKey().replace(/[^\x21-\x7e]/g, "?")}`;
  let response;
  try {
    response = await fetch(address(path), { ...options, headers, cache: "no-store", credentials: "same-origin" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("lost", "The server cannot be reached. Is it running?");
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

async function refusal(response) {
  const { status } = response;
  const text = await response.text().catch(() => "");
  let message = text.slice(0, 500) || response.statusText;
  try {
    const { error, detail } = JSON.parse(text);
    message = String(error?.message ?? error ?? detail ?? message);
  } catch {
    // not JSON: its beginning is shown
  }
  const wait = Number(response.headers.get("Retry-After"));
  const kind = status === 401 || status === 403 ? "key" : status === 429 || status === 503 ? "busy" : status < 500 ? "refused" : "server";
  return new ApiError(kind, message || `The server answered ${status}`, wait > 0 ? wait : null);
}

/** Models that the server knows. */
export async function listModels() {
  const { data } = await (await request("models")).json();
  if (!Array.isArray(data)) throw new ApiError("server", "The list of models cannot be read");
  return data.filter((model) => typeof model?.id === "string");
}

/** The texts of the `data:` fields of server-sent events. */
async function* dataOf(stream) {
  const reader = stream.getReader(); // not piped: a pipe that breaks drops what has arrived
  const decoder = new TextDecoder();
  let rest = "";
  let data = [];
  for (;;) {
    let read;
    try {
      read = await reader.read();
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiError("lost", "The connection was lost in the middle of the answer.");
    }
    if (read.done) return;
    const lines = (rest + decoder.decode(read.value, { stream: true })).split("\n");
    rest = lines.pop();
    for (const line of lines.map((one) => one.replace(/\r$/, ""))) {
      if (line.startsWith("data:")) data.push(line.slice(line[5] === " " ? 6 : 5));
      else if (line === "" && data.length) {
        yield data.join("\n");
        data = [];
      }
    }
  }
}

/** The chunks of a streamed answer. Throws ApiError, or AbortError after `signal`. */
export async function* streamChat(body, signal) {
  const streamed = { ...body, stream: true, stream_options: { include_usage: true } };
  const response = await request("chat/completions", { method: "POST", body: JSON.stringify(streamed), signal });
  let finished = false;
  for await (const data of dataOf(response.body)) {
    if (data === "[DONE]") return;
    let chunk;
    try {
      chunk = JSON.parse(data);
    } catch {
      throw new ApiError("server", "The server sent a part of the answer that is not JSON.");
    }
    if (chunk?.error) throw new ApiError("server", String(chunk.error.message ?? chunk.error));
    finished ||= Boolean(chunk?.choices?.[0]?.finish_reason);
    yield chunk;
  }
  if (!finished) throw new ApiError("lost", "The connection was lost in the middle of the answer.");
}
