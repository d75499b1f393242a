"use strict";
// Asks the proxy, and shows what it answers. The token stays in this tab (sessionStorage), never in a URL.
const TOKEN = "shadeproxy-token", EVERY_MS = 2000, DOCTOR_EVERY_MS = 30000;
// A proxy that hangs still accepts connections: without a limit its last numbers would stay as if they were new.
const ANSWER_MS = 10000, DOCTOR_MS = 30000, DOCTOR = "v1/doctor";
const STATUS_WORDS = {
  400: "bad request", 403: "refused", 404: "not found", 405: "method not allowed", 409: "conflict",
  411: "length missing", 412: "precondition failed", 416: "range not satisfiable", 499: "client left",
  500: "internal error", 501: "not implemented", 502: "bad gateway", 503: "slow down, or unavailable",
};
// The texts for an origin that answers, does not, or was not asked yet: state and text of the page, then the
// text and class of its cards.
const ORIGIN_STATES = new Map([
  [true, { state: ["live", "live"], card: ["up", "good"] }],
  [false, { state: ["down", "origin down: cached objects are still served"], card: ["down", "bad"] }],
  [null, { state: ["checking", "checking the origin"], card: ["checking", ""] }],
]);
const cancelled = new Set(), rows = new Map();
let askedDoctor = 0;

class Locked extends Error {}

async function ask(path, method = "GET") {
  const headers = {}, token = sessionStorage.getItem(TOKEN);
  // A header carries bytes: the letters of the token as UTF-8.
  if (token) headers.Authorization = "Bearer " + String.fromCharCode(...new TextEncoder().encode(token));
  const signal = AbortSignal.timeout(path === DOCTOR ? DOCTOR_MS : ANSWER_MS);
  const answer = await fetch(path, { method, headers, signal, cache: "no-store", credentials: "omit" });
  if (answer.status === 401) throw new Locked(token ? "The token is wrong." : "");
  if (!answer.ok) throw new Error(`${path} answered ${answer.status}`);
  return answer.json();
}

function state(kind, text) {
  const node = byId("state");
  if (node.textContent !== text) node.textContent = text;
  node.dataset.state = kind;
}

function showFindings(report) {
  const findings = report.findings.map((finding) => {
    const item = element("li", "", "finding " + finding.severity);
    const name = element("p", element("strong", `${finding.severity}: ${finding.name}`));
    item.append(name, element("p", finding.cause), element("p", "To do: " + finding.remedy));
    return item;
  });
  byId("findings").replaceChildren(...(findings.length ? findings : [element("li", "Nothing is wrong.", "empty")]));
}

function showNow(stats, originState) {
  const totals = stats.totals, waits = latest("stall_s_per_s"), works = latest("compute_s_per_s");
  const busy = (waits || 0) + (works || 0);
  const known = latest("requests_per_s") !== null;
  terms(byId("cards"), [
    ["hit ratio, last 5 s", share(latest("hit_ratio"))],
    ["hit ratio in all", totals.requests ? share(totals.hit_ratio) : "\u2013"],
    ["by bytes", totals.requests ? share(totals.byte_hit_ratio) : "\u2013"],
    ["requests", known ? rate(latest("requests_per_s")) : "\u2013"],
    ["to clients", known ? size(latest("bytes_per_s")) + "/s" : "\u2013"],
    ["from the origin", known ? size(latest("origin_bytes_per_s")) + "/s" : "\u2013"],
    ["errors 5xx", known ? [rate(latest("server_errors_per_s")), latest("server_errors_per_s") ? "bad" : ""] : "\u2013"],
    ["training waits", busy ? share(waits / busy) : "\u2013"],
    ["origin", originState.card],
  ]);
}

function epochOf(job, reads) {
  const order = job && job.order;
  if (order && order.epoch !== null) {
    const all = order.epochs[order.epoch] || 0;
    return { name: order.epoch, done: Math.min(order.position * job.world_size, all), all, distinct: order.distinct };
  }
  const ranks = Object.values((job && job.progress) || {});
  const numbers = Object.keys(reads ? reads.epochs : {}).filter((name) => /^\d+$/.test(name)).map(Number);
  if (ranks.length) {
    const name = Math.max(...ranks.map((rank) => rank.epoch));
    const here = ranks.filter((rank) => rank.epoch === name);
    return { name, done: here.reduce((sum, rank) => sum + rank.position, 0), all: job.count, distinct: null };
  }
  const name = numbers.length ? Math.max(...numbers) : null;
  const done = name === null ? 0 : reads.epochs[name].requests;
  return { name, done, all: (job && job.count) || 0, distinct: null };
}

// Without a report of the training nothing is known of its waiting, though the job reads.
function stallShare(reads, ranks, isReported) {
  if (!reads || !(isReported || reads.stall_s || reads.compute_s)) return null;
  if (reads.compute_s) return reads.stall_s / (reads.stall_s + reads.compute_s);
  return reads.wall_s ? Math.min(1, reads.stall_s / (reads.wall_s * ranks)) : null;
}

// The needs of a job, in whatever depth the proxy tells them.
function flat(value, path = "") {
  if (value === null || typeof value !== "object") return [[path, String(value ?? "\u2013")]];
  return Object.entries(value).flatMap(([name, inner]) => flat(inner, path ? `${path} ${name}` : name));
}

function jobCard(name, job, reads) {
  const card = element("article"), facts = document.createElement("dl"), epoch = epochOf(job, reads);
  const here = reads && epoch.name !== null ? reads.epochs[epoch.name] : undefined;
  const now = here && here.requests ? here : reads;
  const ratio = (hits) => now && now.requests ? share(now[hits] / now.requests) : "\u2013";
  const isReported = Object.keys((job && job.progress) || {}).length > 0;
  const waits = stallShare(here || reads, (job && job.world_size) || 1, isReported);
  const alive = job ? (job.live ? "alive" : `silent for ${time(job.silent_s)}`) : "not registered";
  card.append(element("h3", name));
  if (epoch.all) card.append(bar("progress", `Progress of ${name} in its epoch`, epoch.done, epoch.all));
  list(facts, [
    ["epoch", epoch.name === null ? "\u2013" : String(epoch.name)],
    ["samples read", epoch.all ? `${count(epoch.done)} of ${count(epoch.all)}` : count(epoch.done)],
    ["hits from RAM", ratio("hits_ram")], ["hits from disk", ratio("hits_disk")],
    ["waits for data", waits === null ? "not reported" : share(waits)],
    ["distinct samples", epoch.distinct === null ? "not announced" : `${count(epoch.distinct)} of ${count(epoch.all)}`],
    ["state", alive],
    ...flat((job && job.needs) || {}),
  ]);
  card.append(facts);
  return card;
}

function showJobs(stats, jobs) {
  const known = new Map(jobs.map((job) => [job.job, job]));
  const names = [...new Set([...known.keys(), ...Object.keys(stats.jobs)])].sort();
  const cards = names.map((name) => jobCard(name, known.get(name), stats.jobs[name]));
  byId("jobs").replaceChildren(...(cards.length ? cards : [element("p", "No job reads.", "empty")]));
}

// Rows stay, so that the keyboard's focus stays on a button while the numbers change.
function operationRow(operation) {
  const row = document.createElement("li"), button = element("button", "Cancel");
  button.type = "button";
  button.setAttribute("aria-label", `Cancel ${operation.kind} of ${operation.uri}`);
  button.addEventListener("click", async () => {
    cancelled.add(operation.id);
    button.disabled = true;
    try { await ask("v1/operations/" + encodeURIComponent(operation.id), "DELETE"); } finally { poll(); }
  });
  const made = { row, button, what: element("span", "", "what"), bar: bar("progress", `Progress of ${operation.uri}`, 0, 1) };
  row.append(made.what, made.bar, button);
  return made;
}

function showOperations(operations) {
  const recent = operations.slice(-10).reverse();
  for (const operation of recent) {
    if (!rows.has(operation.id)) rows.set(operation.id, operationRow(operation));
    const { what, bar: progress, button } = rows.get(operation.id), failed = operation.error ? `: ${operation.error}` : "";
    what.textContent = `${operation.kind} ${operation.uri}${operation.dry_run ? " (dry run)" : ""}: ${operation.state}, `
      + `${count(operation.done)} of ${count(operation.total)} objects, ${size(operation.bytes)}${failed}`;
    progress.max = operation.total || 1;
    progress.value = operation.state === "done" ? progress.max : operation.done;
    button.hidden = operation.state !== "running";
    button.disabled = cancelled.has(operation.id);
  }
  const wanted = recent.map((operation) => rows.get(operation.id).row), node = byId("operations");
  if (!wanted.length) node.replaceChildren(element("li", "None within the hour. `shadeproxy warm` begins one.", "empty"));
  else if (wanted.length !== node.children.length || wanted.some((row, place) => row !== node.children[place])) {
    node.replaceChildren(...wanted);
  }
}

function tierCell(name, tier) {
  if (tier.disabled_reason) return { words: `${name} (stores nothing: ${tier.disabled_reason})` };
  return tier.hanging ? { words: `${name} (its disk hangs)` } : name;
}

function showTiers(stats) {
  table("tiers", "Tiers", ["tier", "used", "capacity", "filled", "pages", "hits", "hit ratio", "stored", { words: "evicted, by reason" }],
    Object.entries(stats.tiers).map(([name, tier]) => [
      tierCell(name, tier),
      size(tier.used_bytes), size(tier.capacity_bytes),
      bar("meter", `Used share of ${name}`, tier.used_bytes, tier.capacity_bytes), count(tier.pages),
      count(tier.hits), share(tier.hit_ratio), count(tier.admissions), { words: listed(tier.evictions) }]), "no tier");
}

function nodeState(node, cluster, counts) {
  const fault = node.node === cluster.node ? cluster.refusal || cluster.problem : counts && counts.problem;
  if (fault) return fault;
  if (node.away) return "away";
  if (node.skipped) return "reads go past it";
  return node.weight ? "here" : "drained";
}

// Counts of the proxies are known only if they share their pages.
function showCluster(cluster, nodes) {
  const known = new Map(nodes.map((node) => [node.node, node])), owned = cluster.pages === "owned";
  byId("cluster-section").hidden = !cluster.name;
  table("nodes", "Proxies of the cluster", ["proxy", { words: "state" }, "share", "hit ratio", "relayed", "lease"],
    cluster.nodes.map((node) => {
      const here = node.node === cluster.node, counts = known.get(node.node), told = counts && !counts.problem;
      const lease = here ? cluster.lease_s : told ? counts.lease_s : null;
      return [node.node + (here ? " (this one)" : ""), { words: nodeState(node, cluster, counts) },
        owned ? share(node.share) : "\u2013", told && counts.reads ? share(counts.hits / counts.reads) : "\u2013",
        told ? count(counts.relayed) : "\u2013", lease === 0 ? "none" : time(lease)];
    }), "none yet");
}

function showOrigin(stats, info, originState) {
  const origin = stats.origin, health = origin.health, failure = health.last_failure;
  terms(byId("origin"), [
    ["state", originState.card],
    ["latency p50 / p99", `${time(origin.latency_s.p50)} / ${time(origin.latency_s.p99)}`],
    ["in flight", count(stats.gauges.origin_inflight ?? 0)], ["waiting", count(stats.gauges.origin_waiting ?? 0)],
    ["bytes in flight", size(stats.gauges.inflight_bytes ?? 0)],
    ["errors", [count(origin.errors), origin.errors ? "bad" : ""]], ["throttled", count(health.throttled ?? 0)],
    ["last failure", failure ? `${failure.kind}, ${time(failure.age_s)} ago` : "none"],
    ["endpoint", info.origin ?? "\u2013"],
  ]);
  table("kinds", "Requests to the origin", ["request", "count", "bytes", "p50", "p99"],
    Object.entries(origin.by_kind).map(([kind, one]) =>
      [kind, count(one.requests), size(one.bytes), time(one.latency_s.p50), time(one.latency_s.p99)]), "none yet");
}

function showErrors(stats) {
  const found = new Map();
  for (const [operation, shown] of Object.entries(stats.requests.by_operation)) {
    for (const [status, number] of Object.entries(shown.statuses)) {
      if (status < 400) continue;
      if (!found.has(status)) found.set(status, {});
      found.get(status)[operation] = number;
    }
  }
  const sum = (counts) => Object.values(counts).reduce((all, one) => all + one, 0);
  table("errors", "Errors sent to clients", ["code", { words: "meaning" }, "count", { words: "operations" }],
    [...found].sort().map(([status, counts]) =>
      [status, { words: STATUS_WORDS[status] || "" }, count(sum(counts)), { words: listed(counts) }]), "none");
}

function showBuckets(stats) {
  table("buckets", "Buckets", ["bucket", "requests", "hit ratio", "byte hit ratio", "bytes"],
    Object.entries(stats.buckets).sort((a, b) => b[1].requests - a[1].requests).map(([name, one]) =>
      [name, count(one.requests), share(one.hit_ratio), share(one.byte_hit_ratio), size(one.bytes)]), "none yet");
}

async function look() {
  const since = past.times.at(-1) ?? 0;
  const [stats, answer, jobs, operations, info] = await Promise.all([
    ask("v1/stats"), ask(`v1/history?since=${since}`), ask("v1/jobs"), ask("v1/operations"), ask("v1/info")]);
  const originState = ORIGIN_STATES.get(stats.origin.health.answering);
  if ((past.times.at(-1) ?? 0) === since) takeHistory(answer);
  byId("token-form").hidden = true;
  byId("numbers").hidden = false;
  byId("about").textContent = `version ${info.version}, up ${time(info.uptime_s)}, policy ${info.policy ?? "\u2013"}, `
    + `origin ${info.origin ?? "\u2013"}`;
  showNow(stats, originState); showCharts(); showJobs(stats, jobs.jobs); showOperations(operations.operations);
  showTiers(stats); showOrigin(stats, info, originState); showErrors(stats); showBuckets(stats);
  state(...originState.state);
}

async function lookAtFindings() {
  if (Date.now() - askedDoctor < DOCTOR_EVERY_MS) return;
  askedDoctor = Date.now();
  // Not awaited by ``poll``: the doctor may wait five seconds for an origin that is down.
  try { showFindings(await ask(DOCTOR)); } catch (error) {
    byId("findings").replaceChildren(element("li", "The doctor does not answer: " + error.message, "finding warning"));
  }
}

let askingCluster = false;
async function lookAtCluster() {
  if (askingCluster) return;
  askingCluster = true;
  // Not awaited by ``poll``, as the doctor: a proxy that hangs delays the counts of all by two seconds.
  try {
    const cluster = await ask("v1/cluster");
    showCluster(cluster, cluster.pages === "owned" ? (await ask("v1/stats?cluster=1")).nodes : []);
  } catch { /* ``poll`` shows why, and the next look has the numbers. */ } finally { askingCluster = false; }
}

let timer = 0, polling = false;
async function poll() {
  if (polling) return;
  polling = true;
  clearTimeout(timer);
  try {
    if (!document.hidden) {
      await look();
      lookAtFindings();
      lookAtCluster();
    }
  } catch (error) {
    if (error instanceof Locked) {
      state("locked", "locked: type the control token");
      byId("numbers").hidden = true;
      byId("token-error").textContent = error.message;
      if (byId("token-form").hidden) {
        byId("token-form").hidden = false;
        byId("token").focus();
      }
    } else if (error.name === "TimeoutError") state("lost", "no answer from the proxy: the numbers are old");
    else state("lost", "not reachable: " + error.message);
  }
  polling = false;
  timer = setTimeout(poll, EVERY_MS);
}

byId("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(TOKEN, byId("token").value);
  byId("token").value = "";
  askedDoctor = 0;
  poll();
});
document.addEventListener("visibilitychange", poll);
poll();
