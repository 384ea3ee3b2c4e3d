// In which order documents are trained on: one after the other, the i-th by the seed and i alone.
#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <vector>

#include "paradyse/plan/detail/layout.h"
#include "paradyse/run/data.h"

namespace paradyse {

class Draws {
 public:
  // Of a blend: documents [ends[k - 1], ends[k]) are those of path k, which has this weight.  A
  // blend gives each path a share of the *tokens* in proportion to its weight: the next document is
  // always one of the path whose tokens, by its weight, are fewest so far (of several the first).
  // So at any time the tokens of two paths, each by its weight, differ by at most the longest
  // document by the least weight.  Each path is drawn in epochs of its own.
  struct Blend {
    std::vector<std::int64_t> ends;
    std::vector<double> weights;  // {}: no blend, all documents are drawn alike
  };

  // Epoch after epoch, in each every document once.  `order`: shuffled or sorted.
  // Throws std::invalid_argument naming data.weights for another number of weights than paths, and
  // for a path without documents.
  Draws(
      std::function<std::int64_t(std::int64_t document)> length,
      Order order,
      std::uint64_t seed,
      const Blend& blend);

  std::int64_t next();

 private:
  // Documents that are drawn in epochs of their own.
  struct Path {
    Interval documents;
    double weight = 1;
    std::mt19937_64 random;
    std::vector<std::uint32_t> epoch = {};  // by their number in it
    std::size_t drawn = 0;                  // of this epoch
    double tokens = 0;                      // so far, by the weight
  };
  void begin_epoch(Path& path) const;

  std::function<std::int64_t(std::int64_t document)> length_;
  Order order_;
  std::vector<Path> paths_;
};

// So many draws, in curriculum order those of the first `share` sorted by length.
std::vector<std::int64_t> drawn_documents(
    const std::function<std::int64_t(std::int64_t document)>& length,
    Order order,
    std::int64_t count,
    std::uint64_t seed,
    double share,
    const Draws::Blend& blend);

}  // namespace paradyse
