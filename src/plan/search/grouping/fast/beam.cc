#include "src/plan/search/grouping/fast/beam.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace paradyse::fast {
namespace {

// Durations that are tried: those of the longest item under each type, and what is left in so many
// equal micro-batches; none nearer to the one before than kApart, none that no work fills.
constexpr double kTimes[] = {1.0, 1.2, 1.5, 2.0};
constexpr int kParts = 8;
constexpr double kApart = 1.03;
constexpr double kEmpty = 3;

// Micro-batches so far.
struct State {
  std::vector<int> rest;
  std::vector<std::size_t> micro_batches = {};  // into the pool
  double seconds = 0;
  double area = 0;  // of rest, as the next
  double tokens = 0;
  double score = 0;
};

std::vector<double> durations(const Items& items, const State& state) {
  const int ranks = items.task().ranks;
  const int longest = state.rest.front();
  std::vector<double> all;
  const Items::Sizes sizes = items.sizes_for(longest);
  for (std::size_t size = items.smallest(longest, sizes); size < sizes.last; ++size) {
    for (const double times : kTimes) {
      all.push_back(times * items.alone(size, longest));
    }
  }
  all.reserve(all.size() + idx(kParts));
  for (int parts = 1; parts <= kParts; ++parts) {
    all.push_back(state.area / ranks / parts * kApart);
  }
  std::ranges::sort(all);
  const double least = items.fastest(longest);
  const double most = std::max(2 * least, kEmpty * state.area / ranks);
  std::vector<double> kept;
  for (const double seconds : all) {
    if (seconds >= least && seconds <= most && (kept.empty() || seconds >= kApart * kept.back())) {
      kept.push_back(seconds);
    }
  }
  return kept;
}

}  // namespace

std::vector<Packed> beam(Packer& packer, const BeamOptions& options) {
  const Items& items = packer.items();
  const GroupingTask& task = items.task();
  const double beside = task.micro_batch_seconds;
  State first{.rest = std::vector<int>(idx(items.size()))};
  std::iota(first.rest.begin(), first.rest.end(), 0);
  first.area = packer.area(first.rest);
  first.tokens = packer.tokens(first.rest);
  std::vector<State> states;
  if (items.size() > 0) {
    states.push_back(std::move(first));
  }
  std::vector<Packed> pool;
  std::vector<std::size_t> best;
  double least = kNever;
  Packed packed;
  Packed shorter;
  std::vector<int> left;
  while (!states.empty()) {
    std::vector<State> next;
    for (const State& state : states) {
      for (const double seconds : durations(items, state)) {
        packer.pack(seconds, {}, state.rest, packed, left);
        if (packed.items.empty()) {
          continue;
        }
        const double area = packer.area(left);
        const double tokens = packer.tokens(left);
        constexpr int kHalvings = 6;
        if (left.empty() && packer.solve(state.rest, {}, shorter, packed.slowest, kHalvings)) {
          std::swap(packed, shorter);
        }
        const double sum = state.seconds + task.micro_batch(packed.slowest);
        const double bound = sum + area / task.ranks +
                             (task.overlapped ? 0 : std::ceil(tokens / items.room()) * beside);
        if (bound >= least) {
          continue;
        }
        State grown{
            .rest = left,
            .micro_batches = state.micro_batches,
            .seconds = sum,
            .area = area,
            .tokens = tokens,
            .score = sum + options.price * area / task.ranks +
                     (task.overlapped ? 0 : tokens * beside / (items.room() * options.fill))};
        grown.micro_batches.push_back(pool.size());
        pool.push_back(packed);
        if (left.empty()) {
          least = sum;
          best = std::move(grown.micro_batches);
        } else {
          next.push_back(std::move(grown));
        }
      }
    }
    std::ranges::stable_sort(next, {}, &State::score);
    if (next.size() > idx(options.width)) {
      next.erase(next.begin() + options.width, next.end());
    }
    states = std::move(next);
  }
  std::vector<Packed> found;
  found.reserve(best.size());
  for (const std::size_t micro_batch : best) {
    found.push_back(std::move(pool[micro_batch]));
  }
  return found;
}

}  // namespace paradyse::fast
