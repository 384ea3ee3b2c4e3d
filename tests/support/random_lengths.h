// Lengths of documents as corpora have them: mostly short, few long.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace paradyse::test {

// Lognormal, none longer than `most`: what is longer is drawn again.
template <class Random>
std::vector<std::int64_t> random_lengths(
    Random& random, int documents, double median, double sigma, std::int64_t most) {
  std::lognormal_distribution<double> draw(std::log(median), sigma);
  std::vector<std::int64_t> lengths;
  while (std::ssize(lengths) < documents) {
    const auto n = static_cast<std::int64_t>(draw(random));
    if (n >= 1 && n <= most) {
      lengths.push_back(n);
    }
  }
  return lengths;
}

}  // namespace paradyse::test
