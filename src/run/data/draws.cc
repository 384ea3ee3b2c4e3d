#include "src/run/data/draws.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "paradyse/plan/detail/index.h"

namespace paradyse {
namespace {

// A whole number below `bound`, every one as likely.  The standard's own distributions give other
// numbers in other libraries.
std::uint64_t draw_below(std::uint64_t bound, std::mt19937_64& random) {
  const std::uint64_t uneven = (0 - bound) % bound;  // 2^64 mod bound: so many draws are redrawn
  std::uint64_t draw = random();
  while (draw < uneven) {
    draw = random();
  }
  return draw % bound;
}

// Of path k of a blend: paths of as many documents are not drawn alike.
std::uint64_t seed_of_path(std::uint64_t seed, std::size_t k) {
  std::seed_seq numbers = {
      static_cast<std::uint32_t>(seed),
      static_cast<std::uint32_t>(seed >> 32U),
      static_cast<std::uint32_t>(k)};
  std::uint32_t halves[2] = {};
  numbers.generate(std::begin(halves), std::end(halves));
  return (std::uint64_t{halves[0]} << 32U) + halves[1];
}

}  // namespace

Draws::Draws(
    std::function<std::int64_t(std::int64_t document)> length,
    Order order,
    std::uint64_t seed,
    const Blend& blend)
    : length_(std::move(length)), order_(order) {
  const std::int64_t documents = blend.ends.empty() ? 0 : blend.ends.back();
  if (documents > std::numeric_limits<std::uint32_t>::max()) {
    throw std::invalid_argument(
        fmt::format("data.path has {} documents; at most 2^32 - 1 can be drawn from", documents));
  }
  if (blend.weights.empty()) {
    paths_.push_back({.documents = {0, documents}, .random = std::mt19937_64(seed)});
    return;
  }
  if (blend.weights.size() != blend.ends.size()) {
    throw std::invalid_argument(fmt::format(
        "data.weights has {} numbers for the {} entries of data.path; give one for each",
        blend.weights.size(),
        blend.ends.size()));
  }
  std::int64_t begin = 0;
  for (std::size_t k = 0; k < blend.ends.size(); ++k) {
    if (blend.ends[k] == begin) {
      throw std::invalid_argument(fmt::format(
          "data.weights: entry {} of data.path has no document to use; leave it and its weight "
          "out",
          k + 1));
    }
    paths_.push_back(
        {.documents = {begin, blend.ends[k]},
         .weight = blend.weights[k],
         .random = std::mt19937_64(seed_of_path(seed, k))});
    begin = blend.ends[k];
  }
}

std::int64_t Draws::next() {
  Path& path = *std::ranges::min_element(paths_, {}, &Path::tokens);
  if (path.drawn == path.epoch.size()) {
    begin_epoch(path);
  }
  const std::int64_t document = path.documents.begin + path.epoch[path.drawn++];
  if (paths_.size() > 1) {  // an empty document counts as a token: its path may have no other
    path.tokens += static_cast<double>(std::max<std::int64_t>(1, length_(document))) / path.weight;
  }
  return document;
}

void Draws::begin_epoch(Path& path) const {
  path.drawn = 0;
  if (order_ == Order::sorted && !path.epoch.empty()) {
    return;
  }
  path.epoch.resize(idx(path.documents.size()));
  std::iota(path.epoch.begin(), path.epoch.end(), std::uint32_t{0});
  if (order_ == Order::sorted) {
    // Stable: which of two equally long documents comes first must not depend on the library.
    std::ranges::stable_sort(
        path.epoch, {}, [&](std::uint32_t d) { return length_(path.documents.begin + d); });
    return;
  }
  for (std::size_t i = path.epoch.size(); i > 1; --i) {  // Fisher and Yates; Durstenfeld 1964
    std::swap(path.epoch[i - 1], path.epoch[idx(draw_below(i, path.random))]);
  }
}

std::vector<std::int64_t> drawn_documents(
    const std::function<std::int64_t(std::int64_t document)>& length,
    Order order,
    std::int64_t count,
    std::uint64_t seed,
    double share,
    const Draws::Blend& blend) {
  Draws draws(length, order == Order::sorted ? Order::sorted : Order::shuffled, seed, blend);
  std::vector<std::int64_t> documents(idx(count));
  std::ranges::generate(documents, [&] { return draws.next(); });
  if (order == Order::curriculum) {
    const auto first = std::llround(share * static_cast<double>(count));
    std::stable_sort(
        documents.begin(), documents.begin() + first, [&](std::int64_t a, std::int64_t b) {
          return length(a) < length(b);
        });
  }
  return documents;
}

std::vector<std::int64_t> document_order(
    const std::vector<std::int64_t>& lengths,
    Order order,
    std::int64_t count,
    std::uint64_t seed,
    double curriculum_share) {
  if (count < 0 || (count > 0 && lengths.empty())) {
    throw std::invalid_argument(
        "document_order: " + std::to_string(count) + " draws from " +
        std::to_string(lengths.size()) + " documents; it takes a count from 0, and documents");
  }
  if (!(curriculum_share >= 0 && curriculum_share <= 1)) {  // a NaN is neither
    throw std::invalid_argument(
        "document_order: curriculum_share is " + std::to_string(curriculum_share) +
        "; it takes a share from 0 to 1");
  }
  return drawn_documents(
      [&](std::int64_t d) { return lengths[idx(d)]; },
      order,
      count,
      seed,
      curriculum_share,
      {.ends = {std::ssize(lengths)}, .weights = {}});
}

}  // namespace paradyse
