// Bounds of the model's search, and its rules, each of which can be left out.
#pragma once

#include <map>
#include <string>

namespace {

struct Config {
  // Times, in ticks.
  int lease = 3, retire = 3, closed = 3;
  // How often something may happen.
  int ticks = 8, beats = 4, writes = 1, crashes = 1, losses = 1, failovers = 0, views = 1, lostbeats = 1, ghosts = 1,
      restores = 1;
  int first = 3;  // nodes of the first view, as a mask
  int reads = 1;  // whether owners read from the origin; 0: only ownership is of interest
  // The rules. Each one off is a fault that the search must find.
  int join = 1;      // a read joins a flight only if the flight is trusted
  int flight = 1;    // a flight carries the epoch of its start
  int again = 1;     // the owner checks that it is the owner after the origin's answer
  int closing = 1;   // a new life of the log is closed at first
  int run = 1;       // a failover begins a new life
  int settled = 1;   // ownership needs the settled view too
  int all = 1;       // a view settles when the nodes of all views since the settled one have adopted it
  int lapse = 1;     // a lapsed or renamed lease ends trust
  int moved = 1;     // a view ends trust in what it moves
  int denied = 1;    // an answer without a lease ends the one before
  // The rules by which a node restores its view in a new life of the log.
  int running = 1;   // its lease lasted when it saw the new life
  int whole = 1;     // its view is settled
  int named = 1;     // it knows of the new life, and the call names it
  int same = 1;      // the new life is opened with that view, in one step
  int reserve = 1;   // the seats are kept for the processes whose lease lasted, too
  int fresh = 1;     // others may be retired no sooner than if they had just sent a beat
  // A liberty, not a rule: trust outlives the loss of the log if the lease does.
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
