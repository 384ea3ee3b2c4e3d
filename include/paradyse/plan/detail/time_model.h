// Seconds of the parts of a layer, from what they do (counted) and what a machine takes for it
// (measured).
//
// A model answers for one part: attention or MLP of one layer under a strategy and a recompute
// level, or the rest (embedding and head).  Three kinds: the closed form of a machine's few
// numbers, and the two that `paradyse fit` makes of a profile (fit.h).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "paradyse/plan/cost.h"
#include "paradyse/plan/strategy.h"

namespace paradyse {

// What the time of a phase grows with.
struct Amounts {
  // Sent: in a group that is on one node, in one that is on several, and of weights and their
  // gradients over the sharding group, since other links join them.
  enum Of : std::size_t {
    matmul_flops,
    attention_flops,
    touched_bytes,
    calls,
    sent_bytes,
    collectives,
    bytes_across_nodes,
    collectives_across_nodes,
    weight_bytes,
    weight_collectives
  };
  static constexpr std::size_t kCount = 10;
  static constexpr std::array<const char*, kCount> kNames = {
      "matmul_flops",
      "attention_flops",
      "touched_bytes",
      "calls",
      "sent_bytes",
      "collectives",
      "bytes_across_nodes",
      "collectives_across_nodes",
      "weight_bytes",
      "weight_collectives"};

  std::array<double, kCount> values{};  // by Of

  Amounts& operator+=(const Amounts& other);
  Amounts& operator*=(double factor);
  friend bool operator==(const Amounts&, const Amounts&) = default;
};

enum class PartPhase { forward, backward, recompute };
inline constexpr std::size_t kPartPhases = 3;
inline constexpr std::array<const char*, kPartPhases> kPhaseNames = {
    "forward", "backward", "recompute"};  // in files

// Of one part, by PartPhase.
struct PartWork {
  std::array<Amounts, kPartPhases> phases{};

  PartWork& operator+=(const PartWork& other);
  PartWork& operator*=(double factor);
  friend bool operator==(const PartWork&, const PartWork&) = default;
};

// What `seat` does for this part.
PartWork part_work(const ScheduledPart& part, Seat seat, Precision precision);

// Of that by the closed form, what a rank computes itself: nothing is sent.
double computing_seconds(const PartWork& work, const MachineNumbers& machine);

// What decides how long ranks take together that share cores: the work of the rank that is slowest
// by the closed form's defaults; of more ranks than cores the mean work of a core, if that is more.
PartWork together(std::span<const PartWork> of_ranks, int cores);

// By PartPhase.
struct PartSeconds {
  std::array<double, kPartPhases> phases{};
  double error = 0;  // what the model takes for its relative error, one sigma; 0: not known

  [[nodiscard]] double total() const { return phases[0] + phases[1] + phases[2]; }
};

// One document of `length` tokens on a group of `ranks`; with a one-rank strategy each rank of the
// machine's `world` has such a document, and `work` is of all of them together().
struct PartQuestion {
  std::string part = {};      // "attention", "mlp", "rest"
  std::string strategy = {};  // a strategy's name, a verb, or "" for the rest
  Recompute recompute = Recompute::none;
  int ranks = 1;
  std::int64_t length = 0;
  PartWork work = {};  // together() of the ranks
};

class TimeModel {
 public:
  virtual ~TimeModel() = default;

  [[nodiscard]] virtual std::string name() const = 0;  // "closed form", "structured", "hybrid"
  // Whether it goes by the work alone, whatever the length: then the work of several documents may
  // be asked for at once.
  [[nodiscard]] virtual bool by_work() const = 0;
  // Whether it knows of this strategy of a part what it knows of others: by unlike knowledge they
  // do not compare, and the best of many guesses is a guess.
  [[nodiscard]] virtual bool compares(
      const std::string& /*part*/, const std::string& /*strategy*/) const {
    return true;
  }
  // Wall seconds of each phase of one layer's part.
  [[nodiscard]] virtual PartSeconds seconds(const PartQuestion& question) const = 0;
};

// Each amount divided by its speed.
std::shared_ptr<const TimeModel> closed_form(const MachineNumbers& machine);

}  // namespace paradyse
