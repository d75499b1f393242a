// Bounds of the model's search, and the rules of the model. Each rule can be switched off.
#pragma once

#include <map>
#include <string>

namespace {

struct Config {
  // Times in ticks: a lease lasts for `lease`, the log may retire a node `retire` after its last beat, and a new life
  // of the log stays closed for `closed`.
  int lease = 3, retire = 3, closed = 3;
  // How often each kind of event may happen in one run.
  int ticks = 8, beats = 4, writes = 1, crashes = 1, losses = 1, failovers = 0, views = 1, lostbeats = 1, ghosts = 1,
      restores = 1;
  int first = 3;  // the nodes of the first view, as a bit mask
  int reads = 1;  // 1: owners read from the origin; 0: the search looks at ownership only
  // The rules of the product, 1: on. If a rule is off, the search must find a violation.
  int join = 1;      // a read joins a flight only if the flight is trusted
  int flight = 1;    // a flight carries the epoch of its start
  int again = 1;     // after the origin's answer to a write, the owner checks that it still is the owner
  int closing = 1;   // a new life of the log grants no leases at first
  int run = 1;       // a failover of the log begins a new life of the log
  int settled = 1;   // a node owns the object only if it does so by the settled view, too
  int all = 1;       // a view settles when the nodes of all views since the settled one have adopted it
  int lapse = 1;     // a lapsed or renamed lease ends trust
  int moved = 1;     // a new view ends a node's trust in the pages of objects that the view moves
  int denied = 1;    // an answer that grants no lease ends the lease that the node had
  // The rules by which a node restores its view in a new life of the log. The node may do so only if the first three
  // hold; the others say what the log does.
  int running = 1;   // the node's lease still lasted when it first saw the new life
  int whole = 1;     // the node's view is settled
  int named = 1;     // the node knows the new life, and its call names this life
  int same = 1;      // the log opens the new life with the restored view, in one step
  int reserve = 1;   // seats are also kept for the other processes whose lease lasted
  int fresh = 1;     // nodes may be retired no sooner than if each had just sent a beat
  // A permission, and no rule: a node goes on trusting its pages after a loss of the log, as long as its lease lasts.
  int goes_on = 1;
};
Config config;

const std::map<std::string, int Config::*> OPTIONS = {
    {"lease", &Config::lease},     {"retire", &Config::retire},       {"closed", &Config::closed},
    {"ticks", &Config::ticks},     {"beats", &Config::beats},         {"writes", &Config::writes},
    {"crashes", &Config::crashes}, {"losses", &Config::losses},       {"failovers", &Config::failovers},
    {"views", &Config::views},     {"lostbeats", &Config::lostbeats}, {"ghosts", &Config::ghosts},
    {"first", &Config::first},     {"reads", &Config::reads},         {"join", &Config::join},           {"flight", &Config::flight},
    {"again", &Config::again},     {"closing", &Config::closing},
    {"run", &Config::run},         {"settled", &Config::settled},     {"all", &Config::all},
    {"lapse", &Config::lapse},     {"moved", &Config::moved},         {"restores", &Config::restores},
    {"running", &Config::running}, {"whole", &Config::whole},         {"denied", &Config::denied},
    {"named", &Config::named},     {"same", &Config::same},           {"reserve", &Config::reserve},
    {"fresh", &Config::fresh},     {"goes_on", &Config::goes_on},
};

}  // namespace
