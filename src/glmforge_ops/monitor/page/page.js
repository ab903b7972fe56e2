// The page: which dashboard, run and time are chosen, and the panels, asked for again every 15 seconds.
import { clock, draw, shown } from "./chart.js";

const find = (id) => document.getElementById(id);
const AGAIN_MS = 15000;
let overview = null, chosen = 0, turn = 0;

function made(name, text, kind) {
  const node = document.createElement(name);
  if (text !== undefined) node.textContent = text;
  if (kind) node.className = kind;
  return node;
}

async function ask(path) {
  const reply = await fetch(path);
  const answer = await reply.json();
  if (!reply.ok) throw new Error(answer.error);
  return answer;
}

const hours = (minutes) => (minutes < 60 ? `${minutes} min` : minutes < 1440 ? `${minutes / 60} h` : `${minutes / 1440} days`);

function fill(select, options, kept) {
  select.replaceChildren(...options.map(([value, text]) => {
    const option = made("option", text);
    option.value = value;
    return option;
  }));
  if (options.some(([value]) => value === kept)) select.value = kept;
}

function nearest(points, at) {
  let best = null;
  for (const point of points) if (point[1] !== null && (best === null || Math.abs(point[0] - at) < Math.abs(best[0] - at))) best = point;
  return best;
}

function showLegend(list, data, unit, at) {
  list.replaceChildren(...data.series.map((one, number) => {
    const item = made("li", "", `k${number % 8}`), point = nearest(one.points, at ?? data.end);
    item.append(made("span", point ? `${one.name} ${shown(point[1], unit)}` : one.name));
    return item;
  }));
  if (data.left_out) list.append(made("li", `${data.left_out} more are not drawn`));
  if (at !== null) list.append(made("li", clock(at, true)));
}

async function fillPanel(section, number, mine) {
  const panel = overview.dashboards[chosen].panels[number];
  const [box, list] = [section.querySelector(".chart"), section.querySelector(".legend")];
  const query = new URLSearchParams({ dashboard: chosen, panel: number, minutes: find("minutes").value, run: find("run").value });
  let data = null, problem = panel.needs ? `No data; needs ${panel.needs}.` : "No data in this time.";
  try { data = await ask(`api/panel?${query}`); } catch (error) { problem = error.message; }
  if (mine !== turn) return;
  const drawn = data !== null && data.series.some((one) => one.points.some((point) => point[1] !== null));
  section.dataset.state = drawn ? "drawn" : "empty";
  if (drawn) {
    draw(box, data, panel.unit, (at) => showLegend(list, data, panel.unit, at));
    showLegend(list, data, panel.unit, null);
  } else {
    box.replaceChildren(made("p", problem, "empty"));
    list.replaceChildren();
  }
}

async function fillPanels() {
  turn += 1;
  await Promise.all([...find("panels").children].map((section, number) => fillPanel(section, number, turn)));
}

function showDashboard(number) {
  chosen = number;
  location.hash = String(number);
  find("tabs").replaceChildren(...overview.dashboards.map((one, place) => {
    const button = made("button", one.title);
    if (place === number) button.setAttribute("aria-current", "page");
    button.addEventListener("click", () => { showDashboard(place); fillPanels(); });
    return button;
  }));
  find("panels").replaceChildren(...overview.dashboards[number].panels.map((panel) => {
    const section = made("section");
    section.append(made("h2", panel.title), made("div", "", "chart"), made("ul", "", "legend"));
    return section;
  }));
}

function showState() {
  find("state").className = overview.down ? "bad" : "";
  find("state").textContent = `${overview.up} targets up` + (overview.down ? `, ${overview.down} down` : "");
  find("alerts").replaceChildren(...overview.alerts.map((one) =>
    made("li", [one.alertname, one.severity, one.run, one.hostname ?? one.instance].filter(Boolean).join(" · "))));
}

async function look() {
  try {
    overview = await ask("api/overview");
    const run = find("run").value;
    fill(find("run"), [["", "all"], ...overview.runs.map((name) => [name, name])], run);
    showState();
    return true;
  } catch (error) {
    find("state").className = "bad";
    find("state").textContent = error.message;
    return false;
  }
}

async function begin() {
  if (!(await look())) { setTimeout(begin, AGAIN_MS); return; }
  fill(find("minutes"), overview.minutes.map((one) => [String(one), hours(one)]), "60");
  const wanted = Number(location.hash.slice(1));
  showDashboard(overview.dashboards[wanted] ? wanted : 0);
  for (const id of ["run", "minutes"]) find(id).addEventListener("change", fillPanels);
  let resized = null;
  addEventListener("resize", () => { clearTimeout(resized); resized = setTimeout(fillPanels, 200); });
  await fillPanels();
  document.documentElement.dataset.ready = "";
  setInterval(async () => { if (!document.hidden && (await look())) await fillPanels(); }, AGAIN_MS);
}

begin();
