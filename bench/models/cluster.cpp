// Explicit-state model of the leases and views of a cluster.
//
// This program visits every state that the rules in cluster_rules.hpp can reach within bounds, or walks at random
// beyond them. It stops at the first state in which an owner could answer an older version than the last acknowledged
// one, or in which there are two owners. It prints the steps that lead to this state.
//
//   cluster              all states within the default bounds
//   cluster walks=N      N random walks, with the seed of seed=S
//   cluster RULE=0       the same as above, but without the rule RULE of cluster_config.hpp
//   cluster mutants=1    one rule after another is left out; each time a violation must be found
#include <chrono>
#include <cstdlib>
#include <deque>
#include <random>
#include <utility>

#include "cluster_rules.hpp"

namespace {
// ---------------------------------------------------------------------------------------------- search

uint64_t mix(uint64_t h) {
  h = (h ^ h >> 33) * 0xff51afd7ed558ccdULL;
  h = (h ^ h >> 33) * 0xc4ceb9fe1a85ec53ULL;
  return h ^ h >> 33;
}

uint64_t fingerprint(const State& s) {
  uint64_t h = 0, word;
  const char* bytes = reinterpret_cast<const char*>(&s);
  for (size_t at = 0; at < sizeof s; at += 8) {
    word = 0;
    memcpy(&word, bytes + at, min<size_t>(8, sizeof s - at));
    h = mix(h ^ word) + 0x9e3779b97f4a7c15ULL;
  }
  return mix(h) | 1;
}

// The set of the fingerprints of all states seen so far: a hash table in which 0 marks a free place.
class Seen {
 public:
  explicit Seen(int bits) : slots_(size_t{1} << bits), mask_(slots_.size() - 1) {}
  bool add(uint64_t h) {
    size_t i = mix(h) & mask_;
    for (; slots_[i]; i = (i + 1) & mask_)
      if (slots_[i] == h) return false;
    slots_[i] = h;
    count++;
    return true;
  }
  bool full() const { return count > slots_.size() / 4 * 3; }
  size_t count = 0;

 private:
  vector<uint64_t> slots_;
  size_t mask_;
};

void print_path(const vector<int>& path) {
  State s = start();
  for (size_t at = 0; at < path.size(); at++) {
    Steps out;
    out.named = true;
    steps(s, out);
    printf("  %2zu %s\n", at + 1, out.names[path[at]].c_str());
    s = out.states[path[at]];
  }
}

struct Result {
  const char* found = nullptr;
  bool complete = false;
  size_t states = 0, steps = 0, acknowledged = 0;
  vector<int> path;
};

Result search(int bits, double limit_s) {
  auto began = std::chrono::steady_clock::now();
  Seen seen(bits);
  std::deque<std::pair<State, uint32_t>> queue;
  vector<std::pair<uint32_t, uint16_t>> parents = {{0, 0}};
  Result result;
  State first = start();
  seen.add(fingerprint(first));
  queue.push_back({first, 0});
  Steps out;
  while (!queue.empty()) {
    auto [s, id] = queue.front();
    queue.pop_front();
    out.states.clear();
    steps(s, out);
    for (size_t c = 0; c < out.states.size(); c++) {
      result.steps++;
      if (!seen.add(fingerprint(out.states[c]))) continue;
      parents.push_back({id, static_cast<uint16_t>(c)});
      result.acknowledged += out.states[c].acked > s.acked;
      if ((result.found = violation(out.states[c]))) {
        for (uint32_t at = parents.size() - 1; at; at = parents[at].first) result.path.push_back(parents[at].second);
        std::reverse(result.path.begin(), result.path.end());
        result.states = seen.count;
        return result;
      }
      queue.push_back({out.states[c], static_cast<uint32_t>(parents.size() - 1)});
    }
    std::chrono::duration<double> spent = std::chrono::steady_clock::now() - began;
    if (seen.full() || spent.count() > limit_s) break;
  }
  result.states = seen.count;
  result.complete = queue.empty();
  return result;
}

Result walk(long walks, int seed, double limit_s) {
  auto began = std::chrono::steady_clock::now();
  std::mt19937_64 draw(seed);
  Result result;
  for (long w = 0; w < walks; w++) {
    State s = start();
    vector<int> path;
    for (int depth = 0; depth < 400; depth++) {
      Steps out;
      steps(s, out);
      if (out.states.empty()) break;
      int c = draw() % out.states.size();
      if (c == 0 && draw() % 3) c = draw() % out.states.size();
      path.push_back(c);
      result.acknowledged += out.states[c].acked > s.acked;
      s = out.states[c];
      result.steps++;
      if ((result.found = violation(s))) {
        result.path = path;
        return result;
      }
    }
    result.states++;
    std::chrono::duration<double> spent = std::chrono::steady_clock::now() - began;
    if (spent.count() > limit_s) return result;
  }
  result.complete = true;
  return result;
}

// The rules that mutants=1 leaves out, one after another, with 2 node ids and a copy. `lapse` is not among them:
// `moved` prevents most violations that `lapse` prevents. A violation without `lapse` is found by a search of
// 40 million states: lapse=0 crashes=0 losses=0 lostbeats=0 ghosts=0 views=2 beats=6 writes=1 ticks=3 bits=27.
const vector<std::pair<string, int>> MUTANTS = {
    {"join", 0}, {"flight", 0}, {"again", 0}, {"closing", 0}, {"run", 0},
    {"settled", 0}, {"all", 0}, {"moved", 0}, {"retire", 2}, {"denied", 0},
    {"running", 0}, {"whole", 0}, {"named", 0}, {"same", 0}, {"reserve", 0}, {"fresh", 0},
};
const vector<string> OF_RESTORING = {"running", "whole", "named", "same", "reserve", "fresh"};

}  // namespace

int main(int count, char** words) {
  int bits = 26, seed = 1, mutants = 0;
  long walks = 0;
  double limit_s = 600;
  for (int i = 1; i < count; i++) {
    string word = words[i], name = word.substr(0, word.find('=')), value = word.substr(word.find('=') + 1);
    if (name == "bits") bits = stoi(value);
    else if (name == "seed") seed = stoi(value);
    else if (name == "walks") walks = stol(value);
    else if (name == "seconds") limit_s = stod(value);
    else if (name == "mutants") mutants = stoi(value);
    else if (OPTIONS.count(name)) config.*OPTIONS.at(name) = stoi(value);
    else return fprintf(stderr, "unknown: %s\n", name.c_str()), 2;
  }
  if (mutants) {
    int missed = 0;
    const Config whole = config;
    for (const auto& [rule, value] : MUTANTS) {
      config = whole;
      bool log_fails = rule == "closing" || rule == "run";
      config.crashes = config.lostbeats = config.ghosts = 0;
      bool restores = std::count(OF_RESTORING.begin(), OF_RESTORING.end(), rule);
      config.losses = rule == "closing" || restores;
      config.failovers = rule == "run";
      config.views = 2, config.writes = 2, config.beats = 8, config.ticks = log_fails ? 10 : 8;
      if (restores) config.beats = 14, config.ticks = 10;
      if (rule == "named") config.losses = config.restores = 2, config.ticks = 6;
      bool walks = rule != "denied";  // Few of the many ways lead to a violation, so search them all.
      if (!walks) config.beats = 10, config.ticks = config.writes = config.reads = 0;
      config.*OPTIONS.at(rule) = value;
      Result result = walks ? walk(100000000, seed, limit_s) : search(bits, limit_s);
      missed += !result.found;
      const char* found = result.found ? result.found : "NOTHING IS FOUND";
      printf("%s=%d: %s, %zu steps\n", rule.c_str(), value, found, result.path.size());
      fflush(stdout);
    }
    return missed != 0;
  }
  Result result = walks ? walk(walks, seed, limit_s) : search(bits, limit_s);
  printf("%d nodes: %s; %zu %s, %zu steps, %zu acknowledged writes\n", NODES,
         result.found ? result.found : result.complete ? "no violation" : "no violation within the limit", result.states,
         walks ? "walks" : "states", result.steps, result.acknowledged);
  if (result.found) print_path(result.path);
  return result.found != nullptr;
}
