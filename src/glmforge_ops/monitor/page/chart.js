// One chart of lines as SVG. Text from outside is only ever set as text.
const SVG = "http://www.w3.org/2000/svg";
const LEFT = 56, BOTTOM = 20, TOP = 8, RIGHT = 10;
const LEVELS = ["", "k", "M", "G", "T", "P"];

function scaled(value, base, suffixes, unit) {
  let level = 0, size = Math.abs(value);
  while (size >= base && level < suffixes.length - 1) { size /= base; level += 1; }
  return `${Number((value / base ** level).toPrecision(3))}${suffixes[level]}${unit}`;
}

function seconds(value) {
  const size = Math.abs(value);
  if (size === 0) return "0 s";
  if (size < 1e-3) return `${Number((value * 1e6).toPrecision(3))} µs`;
  if (size < 1) return `${Number((value * 1e3).toPrecision(3))} ms`;
  if (size < 120) return `${Number(value.toPrecision(3))} s`;
  if (size < 7200) return `${Number((value / 60).toPrecision(3))} min`;
  return `${Number((value / 3600).toPrecision(3))} h`;
}

const FORMS = {
  s: seconds,
  percentunit: (value) => `${Number((value * 100).toPrecision(3))} %`,
  bytes: (value) => scaled(value, 1024, ["", " Ki", " Mi", " Gi", " Ti"], "B"),
  Bps: (value) => scaled(value, 1000, [" ", " k", " M", " G", " T"], "B/s"),
  celsius: (value) => `${Number(value.toPrecision(3))} °C`,
  watt: (value) => `${Number(value.toPrecision(3))} W`,
  none: (value) => (value !== 0 && Math.abs(value) < 1e-3 ? value.toExponential(1) : scaled(value, 1000, LEVELS, "")),
};

export const shown = (value, unit) => (FORMS[unit] ?? FORMS.none)(value);

const twoDigits = (number) => String(number).padStart(2, "0");

export function clock(at, long) {
  const date = new Date(at * 1000);
  const time = `${twoDigits(date.getHours())}:${twoDigits(date.getMinutes())}`;
  return long ? `${twoDigits(date.getMonth() + 1)}-${twoDigits(date.getDate())} ${time}` : time;
}

function element(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

// Round values that hold the range, three to six of them.
export function ticks(low, high) {
  if (low === high) { const pad = Math.abs(low) * 0.1 || 1; low -= low === 0 ? 0 : pad; high += pad; }
  const rough = (high - low) / 4, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((one) => one >= rough);
  const found = [];
  for (let at = Math.floor(low / step); at <= Math.ceil(high / step); at += 1) found.push(Number((at * step).toPrecision(12)));
  return found;
}

// Breaks where a point is missing or more than `gap` seconds lie between two.
export function paths(points, x, y, gap) {
  let text = "", before = null;
  for (const [at, value] of points) {
    if (value === null) { before = null; continue; }
    text += `${before !== null && at - before <= gap ? "L" : "M"}${x(at).toFixed(1)},${y(value).toFixed(1)}`;
    before = at;
  }
  return text;
}

export function draw(box, data, unit, read) {
  const width = box.clientWidth, height = box.clientHeight;
  const values = data.series.flatMap((one) => one.points.map((point) => point[1]).filter((value) => value !== null));
  const marks = ticks(Math.min(...values), Math.max(...values));
  const low = marks[0], high = marks[marks.length - 1];
  const x = (at) => LEFT + ((at - data.start) / (data.end - data.start)) * (width - LEFT - RIGHT);
  const y = (value) => height - BOTTOM - ((value - low) / (high - low)) * (height - BOTTOM - TOP);
  const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" });
  for (const mark of marks) {
    svg.append(element("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(mark), y2: y(mark) }));
    svg.append(element("text", { x: LEFT - 6, y: y(mark) + 4, "text-anchor": "end" }, shown(mark, unit)));
  }
  const long = data.end - data.start > 86400, count = width > 340 ? 4 : 3;
  for (let i = 0; i < count; i += 1) {
    const at = data.start + ((data.end - data.start) * i) / (count - 1);
    const anchor = i === 0 ? "start" : i === count - 1 ? "end" : "middle";
    svg.append(element("text", { x: x(at), y: height - 4, "text-anchor": anchor }, clock(at, long)));
  }
  const gap = ((data.end - data.start) / 240) * 2.5;
  data.series.forEach((one, number) => {
    const line = element("path", { class: `series k${number % 8}`, d: paths(one.points, x, y, gap) });
    svg.append(line);
    const known = one.points.filter((point) => point[1] !== null);
    if (known.length === 1) svg.append(element("circle", { class: `dot k${number % 8}`, cx: x(known[0][0]), cy: y(known[0][1]), r: 2 }));
  });
  const cursor = element("line", { class: "cursor", y1: TOP, y2: height - BOTTOM, visibility: "hidden" });
  svg.append(cursor);
  svg.addEventListener("pointermove", (event) => {
    const share = (event.clientX - svg.getBoundingClientRect().left - LEFT) / (width - LEFT - RIGHT);
    const at = data.start + Math.min(1, Math.max(0, share)) * (data.end - data.start);
    for (const end of ["x1", "x2"]) cursor.setAttribute(end, x(at));
    cursor.setAttribute("visibility", "visible");
    read(at);
  });
  svg.addEventListener("pointerleave", () => { cursor.setAttribute("visibility", "hidden"); read(null); });
  box.replaceChildren(svg);
}
