// The rules of the model that cluster.cpp searches: one object, NODES nodes, one log, one origin.
//
// The rules of nodes are those of shadeproxy/cluster/membership.py. The rules of the log are those of redis_scripts.py.
// A life of the log is an incarnation in the sense of docs/glossary.md.
//
// No action has to happen soon. A node that does not act is a paused node. A message that is not handled is a message
// that is delayed, lost or cut off.
// Ticks of time may pass at any point. Reading a clock and acting on it is one step. Clocks differ by the worst case
// that the rules allow: a lease lasts `lease` ticks after its beat was sent, and others may retire it `retire` ticks
// after the log handled the beat. A call to the log is a compare-and-set, so a call that arrives late has the same
// effect as a call that is sent late. A read has no state and may begin at any instant, so what holds in every state
// holds for every read.
//
// With COPY=1 the last process has the same node id as process 0, as if its state directory were a copy.
//
// Not modelled: two servers that both act as the log, two objects in one write, relayed reads, and the time for which
// an owner waits for late writes of a dead node.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "cluster_config.hpp"

#ifndef NODES
#define NODES 2
#endif
#ifndef COPY
#define COPY 0
#endif

namespace {

using std::max;
using std::min;
using std::string;
using std::vector;
using u8 = uint8_t;

const int VIEWS = 8, CAP = 7, IDS = NODES - COPY;
const u8 NOBODY = 255;  // in `boots`: no process has the seat yet

// The node id of a process.
int id(int i) { return i < IDS ? i : 0; }

// ---------------------------------------------------------------------------------------------- state

struct Node {
  u8 boot;                                      // the number of this process among those of its node
  u8 lease_age, token;                          // ticks since the granted beat was sent, capped; the name of the lease
  u8 life, lease_life;                          // the log's life in its last answer; the life that granted the lease
  u8 kept;                                      // the life whose lease still lasted when `life` was first seen; 0: none
  u8 view, settled;                             // the adopted view, and the view that it is told is settled; 0: none
  u8 beat, beat_age, beat_view, beat_life;      // 0: no beat, 1: beat on its way, 2: answer on its way; its age, and
                                                // the view and life that it acknowledges
  u8 beat_kept;                                 // the life that the beat claims (see `claim`)
  u8 granted, new_token, new_life, new_view, new_settled;  // the answer to the beat
  u8 cached, cached_trust, fill, fill_trust;    // versions of the cached page and of the flight (0: none); if trusted
  u8 write, written;                            // 0: no write, 1: sent, 2: applied by the origin as version `written`
};

struct State {
  u8 tick, beats, writes, crashes, losses, failovers, views, lost, ghosts_made;  // number of events so far
  u8 origin, acked, ghosts;                     // versions; number of late writes that no node waits for any more
  u8 life, life_age, view, settled, view_count; // the log: its life, the newest and the settled view, all views
  u8 members[VIEWS], away[VIEWS], view_life[VIEWS];  // by view: bit masks, and the life of the log
  u8 known[NODES], age[NODES], count_token[NODES], acks[NODES], retired[NODES], boots[NODES];  // by node, in the log
  u8 reserved[NODES];                           // 1: the seat is kept for the process that had it in life `from`
  u8 from;                                      // the life whose view was restored in this life; 0: none was
  u8 restores, call[NODES], call_life[NODES];   // by process: the view that its call under way asks to restore; 0: none
  u8 tokens;
  Node nodes[NODES];
};

// Return the object's owner by a view: the first node that is in the view and not away.
int owner(const State& s, int view) {
  int here = view ? s.members[view] & ~s.away[view] : 0;
  for (int i = 0; i < IDS; i++)
    if (here >> i & 1) return i;
  return -1;
}

bool leased(const Node& n) { return n.lease_age < config.lease; }

bool mine(const State& s, int i) {
  const Node& n = s.nodes[i];
  if (!leased(n) || !n.view || owner(s, n.view) != id(i)) return false;
  return !config.settled || n.settled == n.view || owner(s, n.settled) == id(i);
}

void distrust(Node& n) {
  n.cached_trust = 0;
  if (config.flight) n.fill_trust = 0;
}

void drop(Node& n) { n.cached = n.cached_trust = n.fill = n.fill_trust = 0; }

const char* violation(const State& s) {
  int owners = 0;
  for (int i = 0; i < NODES; i++) {
    if (!mine(s, i)) continue;
    owners++;
    const Node& n = s.nodes[i];
    if (n.write) continue;
    if (n.cached && n.cached_trust && n.cached < s.acked) return "an owner answers an older version than the acknowledged";
    if (n.fill && (n.fill_trust || !config.join) && n.fill < s.acked) return "a read joins a flight older than the last write";
  }
  return owners > 1 ? "two nodes own the object" : nullptr;
}

// ---------------------------------------------------------------------------------------------- the log

bool is_open(const State& s) { return !config.closing || s.from || s.life_age >= config.closed; }

void forget(State& s, int i) {
  s.known[i] = s.age[i] = s.count_token[i] = s.acks[i] = s.retired[i] = s.reserved[i] = 0;
  s.boots[i] = NOBODY;
}

void settle(State& s) {
  if (!s.view) return;
  int need = s.members[s.view];
  if (config.all)
    for (int v = s.settled; v < s.view; v++) need |= s.members[v];
  for (int i = 0; i < IDS; i++)
    if (need >> i & 1 && !s.retired[i] && s.acks[i] < s.view) return;
  s.settled = s.view;
  for (int i = 0; i < IDS; i++)
    if (!(s.members[s.view] >> i & 1)) forget(s, i);
}

void forget_all(State& s) {
  s.life++;
  s.life_age = 0;
  s.view = s.settled = s.from = 0;
  for (int i = 0; i < IDS; i++) forget(s, i);
}

void propose(State& s, int members, int away) {
  int before = s.view ? s.members[s.view] : 0;
  s.members[++s.view_count] = members;
  s.away[s.view_count] = away;
  s.view_life[s.view_count] = s.life;
  if (!s.view) s.settled = s.view_count;
  s.view = s.view_count;
  for (int i = 0; i < IDS; i++)
    if (members >> i & 1 && !(before >> i & 1) && (s.retired[i] || !s.known[i])) {
      u8 acked = s.acks[i];
      forget(s, i);
      s.known[i] = 1;
      s.acks[i] = acked;
    }
}

// Open this life of the log with the view that node i had in the life before.
void restore(State& s, int i) {
  s.from = s.view_life[s.call[i]];
  if (config.same) propose(s, s.members[s.call[i]], s.away[s.call[i]]);
  for (int k = 0; k < IDS; k++) {
    if (!config.same || !(s.members[s.call[i]] >> k & 1)) continue;
    s.age[k] = config.fresh ? 0 : config.retire;
    s.reserved[k] = config.reserve;
  }
}

void handle_beat(State& s, int i) {
  Node& n = s.nodes[i];
  int k = id(i);
  bool open = is_open(s);
  bool member = s.view && s.members[s.view] >> k & 1;
  bool reserved = s.reserved[k] && !s.retired[k], named = n.beat_life == s.life || !config.named;
  n.beat = 2;
  n.new_life = s.life;
  n.granted = n.new_token = n.new_view = n.new_settled = 0;
  // A process may take a seat that is kept only after it has learnt the life of the log.
  if (open && member && reserved && !named) return;
  if (reserved && n.beat_kept && n.beat_kept == s.from) s.reserved[k] = reserved = 0, s.boots[k] = n.boot;
  bool taken = reserved || (!s.retired[k] && s.boots[k] != NOBODY && s.boots[k] != n.boot);
  n.granted = open && member && !taken;
  if (n.granted) {
    if (!s.count_token[k] || s.retired[k]) s.count_token[k] = ++s.tokens;
    s.age[k] = s.retired[k] = s.reserved[k] = 0;
    s.boots[k] = n.boot;
  }
  bool own = s.boots[k] == n.boot && n.beat_life == s.life;
  if (open && own && n.beat_view <= s.view) s.acks[k] = max(s.acks[k], n.beat_view);
  if (open) settle(s);
  n.new_token = s.count_token[k];
  n.new_view = s.view;
  n.new_settled = s.settled;
}

// ---------------------------------------------------------------------------------------------- a node

void no_beat(Node& n) {
  n.beat = n.beat_age = n.beat_view = n.beat_life = n.beat_kept = 0;
  n.granted = n.new_token = n.new_life = n.new_view = n.new_settled = 0;
}

void adopt_answer(State& s, int i) {
  Node& n = s.nodes[i];
  if (n.life != n.new_life) n.kept = leased(n) || !config.running ? n.lease_life : 0;
  n.life = n.new_life;
  if (n.new_view && !n.granted && (config.denied || n.new_life != n.lease_life)) n.lease_age = CAP;
  if (n.new_view && (n.new_view != n.view || n.new_settled != n.settled)) {
    bool gained = owner(s, n.new_settled) == id(i) && !(n.settled && owner(s, n.settled) == id(i));
    if (config.moved && (owner(s, n.new_view) != id(i) || gained)) distrust(n);
    n.view = n.new_view;
    n.settled = n.new_settled;
  }
  if (n.granted && n.beat_age < config.lease) {
    // If another life of the log renews a lease that still lasts, the lease gets another name, but has not ended.
    bool renamed = n.token != n.new_token && (n.lease_life == n.new_life || !config.goes_on);
    if (config.lapse && (!leased(n) || renamed)) distrust(n);
    n.lease_age = n.beat_age;
    n.lease_life = n.new_life;
    n.token = n.new_token;
    n.kept = 0;
  }
  no_beat(n);
}

// ---------------------------------------------------------------------------------------------- actions

// Make one state of all states that no rule can tell apart.
void canonical(State& s) {
  if (!config.closing) s.life_age = 0;
  s.life_age = min<int>(s.life_age, config.closed);
  // Rules compare tokens only for equality, so number the tokens from 1 in the order in which they are met.
  u8 rename[64] = {0}, next = 0;
  auto fresh = [&](u8& token) {
    if (token) token = rename[token] ? rename[token] : (rename[token] = ++next);
  };
  for (int i = 0; i < NODES; i++) {
    Node& n = s.nodes[i];
    s.age[i] = min<int>(s.age[i], config.retire);
    n.lease_age = min<int>(n.lease_age, config.lease);
    n.beat_age = min<int>(n.beat_age, config.lease);
    if (n.beat != 2) n.granted = n.new_token = n.new_life = n.new_view = n.new_settled = 0;
    if (!n.granted) n.new_token = 0;
    if (!leased(n) && config.running) n.token = n.lease_life = 0;
    if (!n.cached) n.cached_trust = 0;
    if (!n.fill) n.fill_trust = 0;
    fresh(n.token);
    fresh(n.new_token);
    fresh(s.count_token[i]);
    if (!s.call[i]) s.call_life[i] = 0;
    if (s.retired[i]) s.reserved[i] = 0;
  }
  s.tokens = next;
}

struct Steps {
  vector<State> states;
  vector<string> names;
  bool named = false;
  void add(State s, const char* name, int a = 0, int b = 0) {
    canonical(s);
    states.push_back(s);
    if (!named) return;
    char text[160];
    snprintf(text, sizeof text, name, a, b);
    names.push_back(text);
  }
};

// Return the life of the log in which node i may claim to have had a seat until that life ended; 0: none.
int claim(const State& s, int i) {
  const Node& n = s.nodes[i];
  return config.named ? n.kept : leased(n) ? n.lease_life : 0;
}

// Return whether node i knows that only its own view was settled when the claimed life ended.
bool can_restore(const State& s, int i) {
  const Node& n = s.nodes[i];
  if (!n.view || !claim(s, i) || s.view_life[n.view] != claim(s, i)) return false;
  return !config.whole || n.settled == n.view;
}

void steps_of_node(const State& s, int i, Steps& out) {
  const Node& n = s.nodes[i];
  State x = s;
  Node& y = x.nodes[i];
  auto again = [&] { x = s; };
  if (s.crashes < config.crashes) {
    x.crashes++;
    if (n.write == 1 && s.ghosts_made < config.ghosts) x.ghosts++, x.ghosts_made++;
    u8 cached = n.cached, boot = n.boot + 1 + COPY;
    memset(&y, 0, sizeof y);
    y.cached = cached;
    y.boot = boot;
    y.lease_age = CAP;
    out.add(x, "node %d crashes and starts again, with its pages", i);
    again();
  }
  if (!n.beat && s.beats < config.beats) {
    x.beats++;
    y.beat = 1;
    y.beat_view = n.view;
    y.beat_life = n.life;
    y.beat_kept = claim(s, i);
    out.add(x, "node %d sends a beat that acknowledges view %d", i, n.view);
    again();
  }
  if (n.beat == 1) {
    handle_beat(x, i);
    out.add(x, "the log answers node %d, granted: %d", i, y.granted);
    if (s.lost < config.lostbeats) {
      x.lost++;
      no_beat(y);
      out.add(x, "  and the answer to node %d is lost", i);
    }
    again();
  }
  if (n.beat == 2) {
    adopt_answer(x, i);
    out.add(x, "node %d adopts the answer", i);
    again();
  }
  if (s.restores < config.restores && !s.call[i] && can_restore(s, i)) {
    x.restores++;
    x.call[i] = n.view;
    x.call_life[i] = config.named ? n.life : 0;
    out.add(x, "node %d asks to restore view %d", i, n.view);
    again();
  }
  if (!s.view && is_open(s) && n.life == s.life && s.view_count + 1 < VIEWS) {
    int bit = 1 << id(i), members = n.view ? s.members[n.view] | bit : bit;
    propose(x, members, n.view ? s.away[n.view] & ~bit : 0);
    out.add(x, "node %d proposes the view that it knows, as view %d", i, x.view);
    again();
  }
  if (config.reads && !n.fill && !n.write && !(n.cached && n.cached_trust) && n.view && owner(s, n.view) == id(i)) {
    y.fill = s.origin;
    y.fill_trust = 1;
    out.add(x, "node %d reads version %d at the origin", i, s.origin);
    again();
  }
  if (n.fill) {
    y.cached = n.fill;
    y.cached_trust = n.fill_trust;
    y.fill = y.fill_trust = 0;
    out.add(x, "node %d stores version %d", i, n.fill);
    again();
  }
  if (!n.write && s.writes < config.writes && mine(s, i)) {
    x.writes++;
    drop(y);
    y.write = 1;
    out.add(x, "node %d takes a write and sends it", i);
    again();
  }
  if (n.write == 1) {
    y.written = ++x.origin;
    y.write = 2;
    out.add(x, "the origin applies the write of node %d as version %d", i, x.origin);
    again();
  }
  if (n.write == 2 && (mine(s, i) || !config.again)) {
    x.acked = max(x.acked, n.written);
    drop(y);
    y.write = y.written = 0;
    out.add(x, "node %d acknowledges version %d", i, x.acked);
    again();
  }
  if (n.write && (n.write == 2 || s.ghosts_made < config.ghosts)) {
    if (n.write == 1) x.ghosts++, x.ghosts_made++;
    drop(y);
    y.write = y.written = 0;
    out.add(x, "node %d answers that the outcome is unknown", i);
    again();
  }
}

void steps_of_log(const State& s, Steps& out) {
  for (int i = 0; i < NODES; i++)
    if (s.call[i]) {
      State x = s;
      bool here = !s.call_life[i] || s.call_life[i] == s.life;
      if (here && !s.view && !is_open(s) && s.view_count + 1 < VIEWS) restore(x, i);
      int view = s.call[i];
      x.call[i] = 0;
      out.add(x, "the log is asked by node %d to restore view %d", i, view);
    }
  for (int i = 0; i < IDS; i++)
    if (s.view && is_open(s) && !s.retired[i] && s.age[i] >= config.retire) {
      State x = s;
      x.retired[i] = 1;
      settle(x);
      out.add(x, "node %d is retired", i);
    }
  if (s.losses < config.losses) {
    State x = s;
    x.losses++;
    forget_all(x);
    out.add(x, "the log loses everything");
  }
  if (s.failovers < config.failovers) {
    State x = s;
    x.failovers++;
    if (config.run) forget_all(x);
    // Without the rule, the new server goes on with an older copy: the last renewals and the last view are lost.
    else
      for (int i = 0; i < IDS; i++) x.age[i] = config.retire, x.acks[i] = min<int>(x.acks[i], s.settled);
    if (!config.run && s.view > s.settled) x.view--;
    out.add(x, "the log fails over");
  }
  if (!s.view || !is_open(s) || s.views >= config.views || s.view_count + 1 >= VIEWS) return;
  // A node may propose a view by what it saw some time ago, so a new view may change any one node's place.
  for (int i = 0; i < IDS; i++) {
    int bit = 1 << i, members = s.members[s.view], away = s.away[s.view];
    for (int place = 0; place < 3; place++) {  // 0: out of the view, 1: in it, 2: in it and away
      int m = place ? members | bit : members & ~bit, a = place == 2 ? away | bit : away & ~bit;
      if (!m || (m == members && a == away)) continue;
      State x = s;
      x.views++;
      propose(x, m, a);
      const char* names[] = {"view without node %d: %d", "view with node %d: %d", "view with node %d away: %d"};
      out.add(x, names[place], i, x.view);
    }
  }
}

void steps(const State& s, Steps& out) {
  if (s.tick < config.ticks) {
    State x = s;
    x.tick++;
    x.life_age = min(x.life_age + 1, CAP);
    for (int i = 0; i < NODES; i++) {
      Node& n = x.nodes[i];
      x.age[i] = min(x.age[i] + 1, CAP);
      n.lease_age = min(n.lease_age + 1, CAP);
      if (n.beat) n.beat_age = min(n.beat_age + 1, CAP);
    }
    out.add(x, "-- tick --");
  }
  for (int i = 0; i < NODES; i++) steps_of_node(s, i, out);
  if (s.ghosts) {
    State x = s;
    x.ghosts--;
    x.origin++;
    out.add(x, "the origin applies a write without a writer as version %d", x.origin);
  }
  steps_of_log(s, out);
}

State start() {
  State s;
  memset(&s, 0, sizeof s);
  s.origin = s.acked = s.life = s.view = s.settled = s.view_count = 1;
  s.members[1] = config.first;
  s.life_age = CAP;
  s.view_life[1] = 1;
  for (int i = 0; i < IDS; i++) forget(s, i);
  for (int i = 0; i < NODES; i++) {
    Node& n = s.nodes[i];
    bool member = i < IDS && config.first >> i & 1;
    n.life = n.view = n.settled = 1;
    n.boot = i >= IDS;
    n.lease_age = member ? 0 : CAP;
    if (member) n.token = s.count_token[i] = ++s.tokens, s.acks[i] = n.lease_life = s.known[i] = 1, s.boots[i] = 0;
    if (i < IDS && owner(s, 1) == i) n.cached = n.cached_trust = 1;
  }
  canonical(s);
  return s;
}

}  // namespace
