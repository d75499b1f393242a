"use strict";
// The charts of an hour, drawn by uPlot from GET /v1/history.
const CHARTS = [
  { title: "Reads by source", show: rate, series: [
    ["RAM", "hits_ram_per_s"], ["disk", "hits_disk_per_s"], ["origin", "origin_per_s"],
    ["joined a fetch", "coalesced_per_s"], ["past the cache", "bypass_per_s"]] },
  { title: "Hit ratio", show: share, most: 1, series: [["hits", "hit_ratio"]] },
  { title: "Bytes a second", show: (bytes) => size(bytes) + "/s", series: [
    ["to clients", "bytes_per_s"], ["from the origin", "origin_bytes_per_s"],
    ["uploaded", "received_bytes_per_s"]] },
  { title: "Latency of the origin", show: time, series: [["mean", "origin_latency_s"]] },
  { title: "Errors", show: rate, series: [
    ["5xx to clients", "server_errors_per_s"], ["4xx to clients", "client_errors_per_s"],
    ["origin failed", "origin_errors_per_s"], ["throttled", "origin_throttled_per_s"]] },
  { title: "Training waits", show: (ranks) => ranks.toFixed(2), series: [
    ["ranks that wait for data", "stall_s_per_s"], ["ranks that compute", "compute_s_per_s"]] },
];
const clock = (seconds) => new Date(1000 * seconds).toLocaleTimeString([], { hour12: false, hour: "2-digit", minute: "2-digit" });
const HEIGHT = 150, LEAST_S = 300, MOST_POINTS = 720, DASHES = [[], [8, 4], [2, 3], [12, 3, 2, 3], [5, 2]];
const COLOURS = ["--one", "--two", "--three", "--four", "--five"];
const past = { times: [], series: {} };
const drawn = [];

// Times that are not after the last one come from a clock that was set back: they replace the earlier ones.
function takeHistory(answer) {
  if (answer.times[0] <= past.times.at(-1)) Object.assign(past, { times: [], series: {} });
  past.times = past.times.concat(answer.times).slice(-MOST_POINTS);
  for (const [name, values] of Object.entries(answer.series)) {
    past.series[name] = (past.series[name] || []).concat(values).slice(-MOST_POINTS);
  }
}

const latest = (name) => (past.series[name] || []).at(-1) ?? null;
const columns = (chart) => [past.times, ...chart.series.map(([, name]) => past.series[name] || [])];

function legend(chart, node, place) {
  const parts = chart.series.map(([label, name], number) => {
    const value = (past.series[name] || []).at(place) ?? null;
    return element("span", `${label} ${value === null ? "\u2013" : chart.show(value)}`, `mark-${number}`);
  });
  node.replaceChildren(...parts);
  return parts.map((part) => part.textContent).join(", ");
}

function options(chart, width, onCursor) {
  const styles = getComputedStyle(document.documentElement);
  const colour = (name) => styles.getPropertyValue(name).trim();
  const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
  return {
    width, height: HEIGHT, legend: { show: false },
    cursor: { drag: { x: false, y: false } },
    scales: {
      x: { range: (_plot, first, last) => [Math.min(first ?? 0, (last ?? 0) - LEAST_S), last ?? 0] },
      y: { range: (_plot, _low, high) => [0, chart.most || high * 1.1 || 1] },
    },
    axes: [
      { ...axis, size: 30, values: (_plot, ticks) => ticks.map(clock), space: 60 },
      { ...axis, size: 84, values: (_plot, ticks) => ticks.map((tick) => chart.show(tick)) }],
    series: [{}, ...chart.series.map((_one, number) => ({
      stroke: colour(COLOURS[number]), width: 2, dash: DASHES[number], points: { show: () => past.times.length < 3 } }))],
    hooks: { setCursor: [(plot) => onCursor(plot.cursor.idx ?? -1)] },
  };
}

function makeCharts() {
  for (const one of drawn.splice(0)) one.plot.destroy();
  byId("charts").replaceChildren();
  for (const chart of CHARTS) {
    const figure = document.createElement("figure"), plotted = document.createElement("div");
    const named = element("div", "", "legend");
    plotted.setAttribute("role", "img");
    figure.append(element("figcaption", chart.title), plotted, named);
    byId("charts").append(figure);
    const made = options(chart, figure.clientWidth, (place) => legend(chart, named, place));
    drawn.push({ chart, figure, plotted, named, plot: new uPlot(made, columns(chart), plotted) });
  }
}

function showCharts() {
  if (!drawn.length) makeCharts();
  for (const { chart, figure, plotted, named, plot } of drawn) {
    if (plot.width !== figure.clientWidth) plot.setSize({ width: figure.clientWidth, height: HEIGHT });
    plot.setData(columns(chart));
    const text = legend(chart, named, plot.cursor.idx ?? -1);
    plotted.setAttribute("aria-label", `${chart.title} over the last hour; now: ${text}`);
  }
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { if (drawn.length) makeCharts(); });
addEventListener("resize", () => { if (drawn.length) showCharts(); });
